"""make bench: a round of FedAvg here, beside the plain PyTorch loop on the same work.

Every engine lives in a process of its own, and they play their rounds in turn, so that all see the same machine. A row
of <host class>.csv: work, engine, precision, seconds_per_round (median), ratio (to the plain loop), steps_per_second,
peak_mb (10^6 bytes of the process, PyTorch included), overhead (share of a round outside gradients, where one worker
was measured) and first_round_s (from the call of `simulate`, the measurement of the machine included).
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
import numpy as np
import pandas as pd
import torch
from plain_loop import PlainLeNet5, rounds
from torch import nn

import fedbcgd_lite as fb
from fedbcgd_lite.calibrate import fastest
from fedbcgd_lite.data import Normalise
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.models import LeNet5, LogisticRegression


@dataclass(frozen=True)
class Work:
    """100 clients, 10 a round, batches of 50."""

    name: str
    what: str
    image: tuple[int, int, int]
    samples: int  # of a client
    epochs: int
    weight_decay: float
    turns: int  # measured turns of each engine
    rounds: int  # of a turn

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        return 10 * self.epochs * self.samples // 50


WORKS = [
    Work("W1", "linear 784-10, 100 samples a client, 1 epoch", (1, 28, 28), 100, 1, 0.0, 21, 20),
    Work("W2", "LeNet-5 (64 channels), 28 x 28, 100 samples a client, 5 epochs", (1, 28, 28), 100, 5, 1e-3, 7, 1),
    Work("W3", "LeNet-5 (64 channels), 32 x 32, 500 samples a client, 5 epochs", (3, 32, 32), 500, 5, 1e-3, 3, 1),
]


@dataclass(frozen=True)
class Engine:
    """One way to play a round of a work."""

    name: str
    precision: str = "full"
    algorithm: fb.algorithms.Algorithm | None = fb.FedAvg()  # None: the plain loop
    processes: int = 1  # runs at a time; each has its share of the cores
    cores: int | None = None  # for each process


CORES = joblib.cpu_count()
ENGINES = [
    Engine("plain loop", algorithm=None),
    Engine("FedAvg"),
    Engine("FedBCGD", algorithm=fb.FedBCGD("balanced:5")),
    Engine("FedAvg, bf16", precision="bf16"),
    Engine("FedAvg, one worker", cores=1),
    Engine(f"FedAvg, {CORES} runs at a time", processes=CORES, cores=1),
]


def pictures(work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    """Random bytes and labels."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (100 * work.samples, *work.image), dtype=np.uint8)
    return torch.from_numpy(images), torch.from_numpy(rng.integers(0, 10, len(images)))


def play_plain(work: Work, turn) -> None:
    """NCHW, float32, all threads, images normalised beforehand."""
    images, labels = pictures(work)
    images = images.float().sub_(127.5).div_(73.9)
    clients = list(torch.arange(len(labels)).split(work.samples))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)) if work.name == "W1" else PlainLeNet5(work.image)
    started = time.perf_counter()
    for _ in rounds(model, images, labels, clients, work.epochs, 0.01, work.weight_decay):
        turn(lambda: {"first_round_s": time.perf_counter() - started})


def play_companion(work: Work, engine: Engine, turn) -> None:
    """Through the public call, with nothing set but the protocol; gradients are timed where one worker forms them."""
    model = (LogisticRegression if work.name == "W1" else LeNet5)(work.image)
    scale = torch.full((work.image[0], 1, 1), 1 / 73.9)
    clients = np.split(np.arange(100 * work.samples), 100)
    problem = fb.Problem(model, pictures(work), clients, transform=Normalise(scale, -127.5 * scale))
    protocol = {"local_epochs": work.epochs, "lr": 0.01, "weight_decay": work.weight_decay}
    training = fb.Training(rounds=10**9, precision=engine.precision, **protocol)
    spent = _timed_gradients() if engine.cores == 1 else []
    started = time.perf_counter()
    machine = fastest(problem, training, engine.cores)

    def remarks() -> dict:
        gradients = sum(spent)
        spent.clear()
        return {"first_round_s": time.perf_counter() - started, "gradients": gradients}

    fb.simulate(problem, engine.algorithm, training, machine=machine, on_round=lambda t: turn(remarks))


def _timed_gradients() -> list[float]:
    """Seconds of each gradient from now on."""
    spent, gradient = [], Flat.gradient

    def timed(*arguments):
        started = time.perf_counter()
        result = gradient(*arguments)
        spent.append(time.perf_counter() - started)
        return result

    Flat.gradient = timed
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

    play_plain(work, turn) if engine.algorithm is None else play_companion(work, engine, turn)


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


def measure(work: Work, turns: int) -> list[dict]:
    """One row for each engine."""
    players = [Player(work, engine) for engine in ENGINES]
    for turn in range(-max(1, turns // 10), turns):
        for player in players:
            player.play()
            if turn < 0:  # still warming up
                player.answers.clear()
    for player in players:
        player.stop()
    return [_row(work, player, players[0].seconds) for player in players]


def _row(work: Work, player: Player, plain: float) -> dict:
    shares = [1 - answer["gradients"] / answer["seconds"] for answer in player.answers if answer.get("gradients")]
    return {
        "work": work.name,
        "engine": player.engine.name,
        "precision": player.engine.precision,
        "seconds_per_round": round(player.seconds, 5),
        "ratio": round(player.seconds / plain, 3),
        "steps_per_second": round(work.steps / player.seconds, 1),
        "peak_mb": round(max(answer["peak_mb"] for answer in player.answers)),
        "overhead": round(statistics.median(shares), 3) if shares and player.engine.processes == 1 else None,
        "first_round_s": round(player.first[0]["first_round_s"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="W1,W2,W3", help="works, separated by commas")
    parser.add_argument("--quick", action="store_true", help="one measured round each, and nothing is written")
    options = parser.parse_args()
    rows = []
    for work in WORKS:
        if work.name in options.only.split(","):
            print(f"{work.name}: {work.what}", flush=True)
            rows += measure(work, 1 if options.quick else work.turns)
            print(pd.DataFrame(rows[-len(ENGINES) :]).to_string(index=False), flush=True)
    if not options.quick:
        path = Path(__file__).parent / f"{torch.backends.cpu.get_cpu_capability().lower()}-{CORES}-cores.csv"
        pd.DataFrame(rows).to_csv(path, index=False)
        print(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the time to the first round contains the measurement of the machine
        os.environ["FEDBCGD_CACHE"] = folder
        main()
