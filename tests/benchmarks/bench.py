"""make bench: a round of FedAvg here, beside the plain PyTorch loop and the simulators that are installed (peers.py).

Every engine lives in a process of its own, and they play their rounds in turn, so that all see the same machine. A row
of <host class>.csv: work, engine, precision, seconds_per_round (median), ratio (to the plain loop), steps_per_second,
peak_mb (10^6 bytes of the process, PyTorch included), batches and overhead (with one worker: the share of a round that
goes into the making of mini-batches, and into everything else but gradients) and first_round_s (from the call of
`simulate`, the measurement of the machine included).

With --methods: a round of every method beside one of FedAvg, in <host class>-methods.csv; the ratio is to FedAvg.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import joblib
import pandas as pd
import torch
from peers import importable
from plain_loop import PlainLeNet5, rounds
from torch import nn
from works import WORKS, Work, chosen

import fedbcgd_lite as fb
from fedbcgd_lite.calibrate import fastest
from fedbcgd_lite.flat import Flat


@dataclass(frozen=True)
class Engine:
    """One way to play a round of a work."""

    name: str
    precision: str = "full"
    play: Callable | None = None  # (work, turn), in the place of the companion
    algorithm: fb.algorithms.Algorithm = fb.FedAvg()
    processes: int = 1  # runs at a time; each has its share of the cores
    cores: int | None = None  # for each process


def play_plain(work: Work, turn) -> None:
    """NCHW, float32, all threads, images normalised beforehand."""
    images, labels = work.images()
    images = images.float().sub_(127.5).div_(73.9)
    clients = list(torch.arange(len(labels)).split(work.samples))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)) if work.name == "W1" else PlainLeNet5(work.image)
    started = time.perf_counter()
    for _ in rounds(model, images, labels, clients, work.epochs, 0.01, work.weight_decay):
        turn(lambda: {"first_round_s": time.perf_counter() - started})


CORES = joblib.cpu_count()
ENGINES = [
    Engine("plain loop", play=play_plain),
    Engine("FedAvg"),
    Engine("FedBCGD", algorithm=fb.FedBCGD("balanced:5")),
    Engine("FedAvg, bf16", precision="bf16"),
    Engine("FedAvg, one worker", cores=1),
    Engine(f"FedAvg, {CORES} runs at a time", processes=CORES, cores=1),
    *[Engine(name, play=play) for name, play in importable().items()],
]
METHODS = {
    "FedAvg": fb.FedAvg(),
    "FedAdam": fb.FedAdam(),
    "SCAFFOLD": fb.Scaffold(),
    "SCAFFOLD (option I)": fb.Scaffold(option=1),
    "FedDC": fb.FedDC(),
    "FedBCGD": fb.FedBCGD(),
    "FedBCGD+": fb.FedBCGDPlus(),
    "FedBCGD+ (option II)": fb.FedBCGDPlus(option=2),
    "TOP-k": fb.Compressed(fb.FedAvg(), fb.TopK()),
    "FedPAQ": fb.Compressed(fb.FedAvg(), fb.QSGD()),
    "QSGD+FedBCGD": fb.Compressed(fb.FedBCGD(), fb.QSGD()),
}
METHOD_ENGINES = [Engine(name, algorithm=algorithm) for name, algorithm in METHODS.items()]


def play_companion(work: Work, engine: Engine, turn) -> None:
    """Through the public call, with nothing set but the protocol; gradients are timed where one worker forms them."""
    problem = work.problem()
    training = fb.Training(rounds=10**9, precision=engine.precision, **work.training)
    spent = {"gradients": _timed(Flat, "gradient"), "batches": _timed(fb.Problem, "batch")} if engine.cores == 1 else {}
    started = time.perf_counter()
    machine = fastest(problem, training, engine.cores)

    def remarks() -> dict:
        totals = {name: sum(seconds) for name, seconds in spent.items()}
        for seconds in spent.values():
            seconds.clear()
        return {"first_round_s": time.perf_counter() - started, **totals}

    fb.simulate(problem, engine.algorithm, training, machine=machine, on_round=lambda t: turn(remarks))


def _timed(owner: type, name: str) -> list[float]:
    """Seconds of each call of a method from now on."""
    spent, method = [], getattr(owner, name)

    def timed(*arguments):
        started = time.perf_counter()
        result = method(*arguments)
        spent.append(time.perf_counter() - started)
        return result

    setattr(owner, name, timed)
    return spent


def child(pipe, work: Work, engine: Engine) -> None:
    """Play a turn whenever asked to, after one round unasked, and answer with what is known of it."""
    left = 1

    def turn(remarks: Callable[[], dict]) -> None:
        nonlocal left
        left -= 1
        if not left:
            pipe.send({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, **remarks()})
            if pipe.recv() == "stop":
                raise SystemExit
            left = work.rounds

    engine.play(work, turn) if engine.play else play_companion(work, engine, turn)


class Player:
    """The processes of one engine."""

    def __init__(self, work: Work, engine: Engine):
        self.work, self.engine, self.pipes, self.answers = work, engine, [], []
        for _ in range(engine.processes):
            mine, theirs = multiprocessing.get_context("spawn").Pipe()
            multiprocessing.get_context("spawn").Process(target=child, args=(theirs, work, engine), daemon=True).start()
            self.pipes.append(mine)
        self.first = [pipe.recv() for pipe in self.pipes]

    def play(self) -> None:
        started = time.perf_counter()
        for pipe in self.pipes:
            pipe.send("go")
        answers = [pipe.recv() for pipe in self.pipes]
        self.answers.append({**answers[0], "seconds": time.perf_counter() - started})

    @property
    def seconds(self) -> float:
        """Median seconds of a round."""
        return statistics.median(answer["seconds"] for answer in self.answers) / self.work.rounds / len(self.pipes)

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send("stop")


def measure(work: Work, turns: int, engines: list[Engine]) -> list[dict]:
    """One row for each engine; ratios are to the first one."""
    players = [Player(work, engine) for engine in engines]
    for turn in range(-max(1, turns // 10), turns):
        for player in players:
            player.play()
            if turn < 0:  # still warming up
                player.answers.clear()
    for player in players:
        player.stop()
    return [_row(work, player, players[0].seconds) for player in players]


def _row(work: Work, player: Player, plain: float) -> dict:
    shares = {"batches": None, "overhead": None}
    if player.engine.cores == player.engine.processes == 1:
        total, batches, gradients = (
            sum(answer[name] for answer in player.answers) for name in ("seconds", "batches", "gradients")
        )
        shares = {"batches": round(batches / total, 3), "overhead": round(1 - (batches + gradients) / total, 3)}
    return {
        "work": work.name,
        "engine": player.engine.name,
        "precision": player.engine.precision,
        "seconds_per_round": round(player.seconds, 5),
        "ratio": round(player.seconds / plain, 3),
        "steps_per_second": round(work.steps / player.seconds, 1),
        "peak_mb": round(max(answer["peak_mb"] for answer in player.answers)),
        **shares,
        "first_round_s": round(player.first[0]["first_round_s"], 2),
    }


def keep(measured: pd.DataFrame, suffix: str) -> Path:
    """Write the table of this host class; works that were not measured this time keep their rows."""
    path = Path(__file__).parent / f"{torch.backends.cpu.get_cpu_capability().lower()}-{CORES}-cores{suffix}.csv"
    if path.exists():
        before = pd.read_csv(path)
        measured = pd.concat([before[~before["work"].isin(measured["work"])], measured])
    measured.sort_values("work", kind="stable").to_csv(path, index=False)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="W1,W2,W3", help="works, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one measured round each, and nothing is written")
    parser.add_argument("--methods", action="store_true", help="every method beside FedAvg")
    options = parser.parse_args()
    engines, rows = METHOD_ENGINES if options.methods else ENGINES, []
    for work in chosen(parser, options.only, WORKS):
        if options.methods and work.name == "W1":
            continue  # a linear model has one layer: nothing to cut into the paper's blocks
        print(f"{work.name}: {work.what}", flush=True)
        rows += measure(work, 1 if options.quick else work.turns, engines)
        print(pd.DataFrame(rows[-len(engines) :]).to_string(index=False), flush=True)
    if not options.quick:
        print(keep(pd.DataFrame(rows), "-methods" if options.methods else ""))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the time to the first round contains the measurement of the machine
        os.environ["FEDBCGD_CACHE"] = folder
        main()
