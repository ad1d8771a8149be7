"""make gpu-check: what a GPU must show, in at most eight minutes; runs that are cut off go on the next time.

(a) agreement.csv: small runs on CPU and GPU. `apart` is the distance of the two models over the distance from the
    start: at most 1e-9 in float64, and 1e-3 in float32.
(b) speed.csv: one round of each work for every way of training its clients, `seconds_per_round` and `peak_share`, the
    useful operations over those of the best matrix product measured here in the same precision. profile.json.gz: the
    kernels of a round of the first work, for chrome://tracing.
(c) with --images: records of FedAvg and FedBCGD, LeNet-5 at the scale of the paper's Table 6 (100 clients of 500
    images, T = 50, 200 d), as far as the time reaches.

--device cpu is a test of this script.
"""

import argparse
import gzip
import itertools
import os
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode
from works import RESNET, WORKS, Work, chosen

import fedbcgd_lite as fb
from fedbcgd_lite.flat import Flat

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
METHODS = [fb.FedAvg(), fb.FedBCGD()]


def ways(device: str) -> list[fb.Machine]:
    """Clients one by one, in streams and together, without and with CUDA graphs; compiled; with repeatable kernels."""
    shapes = [(1, 1), (4, 1), (8, 1), (1, 10)]
    graphs = (False, True) if device != "cpu" else (False,)
    machines = [fb.Machine(workers, chunk, g) for g in graphs for workers, chunk in shapes]
    return [*machines, fb.Machine(compile=True), fb.Machine(deterministic=True)] if device != "cpu" else machines


def trials(works: list[Work], device: str) -> Iterator[tuple[Work, str, fb.Machine]]:
    """What is timed: every way in full precision, those that can win in the others; torch.compile only once."""
    for work, machine in itertools.product(works, ways(device)):
        if not machine.compile or work.name == "W3":
            yield work, "full", machine
    for work, precision, machine in itertools.product(works, ("bf16", "tf32"), ways(device)):
        if machine.graphs or device == "cpu":
            yield work, precision, machine


def agreement(device: str) -> pd.DataFrame:
    """One round of T = 10 steps on the CPU, and in every way but the compiled one on the GPU."""
    rows = []
    task = fb.task("smoke", rounds=1, budget_d=None, local_epochs=5)
    for kind, algorithm in itertools.product((torch.float64, torch.float32), METHODS):
        reference, start = _round(task, algorithm, kind, "cpu", fb.Machine())
        for machine in (way for way in ways(device) if not way.compile):
            x, _ = _round(task, algorithm, kind, device, machine)
            apart = ((x.cpu() - reference).norm() / (reference - start).norm()).item()
            name = str(kind).removeprefix("torch.")
            agrees = apart <= TOLERANCE[name]
            rows.append({"method": algorithm.label, "type": name, **asdict(machine), "apart": apart, "agrees": agrees})
    return pd.DataFrame(rows)


def _round(task: fb.Task, algorithm, kind: torch.dtype, device: str, machine: fb.Machine):
    problem = task.problem(0, device)
    normalise = problem.transform
    converted = fb.Problem(
        problem.model.to(kind),
        problem.train,
        problem.clients,
        device=device,
        transform=lambda images: normalise(images).to(kind),
    )
    run = fb.simulate(converted, algorithm, task, machine=machine)
    return run.x.cpu(), Flat(converted.model, run.blocks, converted.loss).x0.cpu()


def speed(device: str, works: list[Work], end: float) -> pd.DataFrame:
    """Every work in every way and precision, until the time is over; a way that fails says why."""
    rows, peaks = [], {precision: peak(device, precision) for precision in ("full", "tf32", "bf16")}
    for work, precision, machine in trials(works, device):
        if time.monotonic() > end:
            break
        row = {"work": work.name, "precision": precision, **asdict(machine)}
        try:
            seconds = _seconds(work, precision, machine, device)
            share = round(flops(work) / seconds / peaks[precision], 3)
            rows.append({**row, "seconds_per_round": round(seconds, 5), "peak_share": share})
        except RuntimeError as error:  # out of memory, or a kernel that does not exist
            rows.append({**row, "failed": str(error).splitlines()[0][:80]})
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def _seconds(work: Work, precision: str, machine: fb.Machine, device: str, rounds: int = 4) -> float:
    """Median of all rounds but the first two, in which kernels are chosen and graphs captured."""
    marks = []

    def mark(_):
        if device != "cpu":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())

    training = fb.Training(rounds=rounds + 2, precision=precision, **work.training)
    fb.simulate(problem_of(work, device), fb.FedAvg(), training, machine=machine, on_round=mark)
    return statistics.median(after - before for before, after in zip(marks[1:], marks[2:]))


@lru_cache(maxsize=1)
def problem_of(work: Work, device: str) -> fb.Problem:
    """Made once for all ways of training it."""
    return work.problem(device)


@lru_cache
def flops(work: Work) -> float:
    """Floating-point operations of the gradients of one round."""
    problem = work.problem()
    flat = Flat(problem.model, fb.blocks.partition(problem.model, "whole"), problem.loss)
    with FlopCounterMode(display=False) as counter:
        flat.gradient(flat.x0, *problem.batch(torch.arange(50)))
    return counter.get_total_flops() * work.steps


def peak(device: str, precision: str) -> float:
    """Operations a second of a large matrix product, the best of ten."""
    n = 8192 if device != "cpu" else 1024
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, times = torch.randn(n, n, device=device, dtype=kind), []
    with fb.machine.settings(precision):
        for _ in range(10):
            started = time.perf_counter()
            a @ a
            if device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
    return 2 * n**3 / min(times)


def trace(device: str, work: Work, path: Path) -> None:
    """The kernels of a round of one local epoch."""
    problem = work.problem(device)
    with torch.profiler.profile() as profile:
        fb.simulate(problem, fb.FedAvg(), rounds=1, machine=fb.Machine(), **{**work.training, "local_epochs": 1})
    profile.export_chrome_trace(str(path.with_suffix("")))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    path.with_suffix("").unlink()


def table6(images: str, device: str, seconds: float, seeds: int = 3) -> None:
    """Records of the paper's setting, one after another, until the time is over; checkpoints stay."""
    folder = Path(images).resolve()
    os.environ["FEDBCGD_DATA"] = str(folder.parent)
    _, cifar10 = fb.columns("table06_compression", "paper")
    task = replace(cifar10.task, dataset=f"imagefolder:{folder.name}", eval_every_d=2.0)
    runs = [run for seed in range(seeds) for run in fb.contenders(task, ("FedAvg", "FedBCGD"), [seed])]
    runs = [replace(run, task=replace(run.task, profile="gpu-check")) for run in runs]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(max(1, int(seconds)))
    try:
        for run in runs:
            (result,) = fb.run_grid([run], device, jobs=1)
            print(run.algorithm.label, result.rows[-1], flush=True)
    except KeyboardInterrupt:
        print("The time is over; what is missing goes on from its checkpoint the next time.")
    finally:
        signal.alarm(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="an image folder for (c)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--works", default="W3,W2,W1,ResNet-18", help="what is timed, in this order")
    options = parser.parse_args()
    works = chosen(parser, options.works, [*WORKS, RESNET])
    started, device = time.monotonic(), fb.problem.resolve_device(options.device)
    end = started + 60 * options.minutes
    folder = fb.runs.results_folder("gpu-check")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["FEDBCGD_CACHE"] = str(folder / "cache")

    agreed = agreement(device)
    agreed.to_csv(folder / "agreement.csv", index=False)
    print(agreed.to_string(index=False), flush=True)

    until = started + 60 * options.minutes * (0.45 if options.images else 0.9)
    measured = speed(device, works, until)
    measured.to_csv(folder / "speed.csv", index=False)
    print(measured.to_string(index=False), flush=True)
    trace(device, works[0], folder / "profile.json.gz")

    if options.images:
        table6(options.images, device, end - time.monotonic() - 5)
    print(f"{folder}, {time.monotonic() - started:.0f} s")
    return 0 if agreed["agrees"].all() else 1


if __name__ == "__main__":
    raise SystemExit(main())
