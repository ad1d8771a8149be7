"""What runs will take: rounds, gradient steps and uploads by arithmetic, seconds from a short measurement."""

import dataclasses
import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from . import algorithms
from .blocks import partition
from .calibrate import fastest, step_seconds
from .machine import Machine
from .problem import Problem
from .runs import Run, Task
from .simulate import simulate
from .theory import rounds_for_budget


@dataclass(frozen=True)
class Estimate:
    """What a run will take, and the machine for which this was measured."""

    seconds: float
    machine: Machine


@dataclass(frozen=True)
class Work:
    """What a run consists of, the same on every machine."""

    rounds: float
    steps: float  # gradients of a mini-batch, of all clients and rounds; each full pass counts as many
    evaluations: float
    upload_d: float  # of a participating client in the whole run, units of d
    d: int

    @property
    def upload_MB(self) -> float:
        """10^6 bytes of float32."""
        return self.upload_d * self.d * 4 / 1e6


def work(run: Run, problem: Problem, samples: float) -> Work:
    """The arithmetic of one run of a problem with so many samples a client (all of them for CentralisedSGD)."""
    task, algorithm = run.task, run.algorithm
    passes = algorithm.passes(task.local_epochs) * np.ceil(samples / task.batch_size)
    layout = algorithm.layout(partition(problem.model, algorithm.blocks))
    if algorithm.pooled:
        return Work(task.rounds, task.rounds * passes, task.rounds, 0.0, layout.d)
    upload_d = layout.mean_upload_d * layout.n_blocks * algorithm.nominal_upload_d(layout)
    by_budget = max(1, rounds_for_budget(task.budget_d, upload_d)) if task.budget_d else np.inf
    rounds = min(task.rounds or np.inf, by_budget)
    evaluations = rounds * min(1, upload_d / task.eval_every_d if task.eval_every_d else 1)
    return Work(rounds, rounds * task.clients_per_round * passes, evaluations, rounds * upload_d, layout.d)


def estimate(runs: list[Run], device: str = "cpu", cores: int | None = None) -> list[Estimate]:
    """One for each run, when it has `cores` threads (default: all)."""
    return [_estimate(run, *_measure(_alike(run.task), device, cores)) for run in runs]


def _alike(task: Task) -> Task:
    """The task without what changes no time."""
    return dataclasses.replace(task, lr=0.01, clip=None, rounds=5, budget_d=None)


def _estimate(run: Run, machine: Machine, problem: Problem, step: float, evaluation: float) -> Estimate:
    n = len(problem.train[1]) if run.algorithm.pooled else np.mean([len(client) for client in problem.clients])
    of_run = work(run, problem, n)
    return Estimate(of_run.steps * step + of_run.evaluations * evaluation, machine)


@lru_cache(maxsize=8)
def _measure(task: Task, device: str, cores: int | None) -> tuple[Machine, Problem, float, float]:
    """(machine, problem, seconds of a local step, seconds of an evaluation) from five short rounds of FedAvg.

    The first round warms up, the fastest of the next three counts, the last one is followed by an evaluation.
    """
    problem, marks = task.problem(0, device), []
    machine = fastest(problem, task, cores)
    short = {"eval_every_d": 1e9, "clients_per_round": min(4, task.clients_per_round), "local_epochs": 1}
    probe = dataclasses.replace(task, **short)
    simulate(problem, algorithms.FedAvg(), probe, machine=machine, on_round=lambda t: marks.append(time.monotonic()))
    _, *plain, with_evaluation = np.diff(marks, prepend=marks[0])
    steps = probe.clients_per_round * np.ceil(np.mean([len(c) for c in problem.clients]) / task.batch_size)
    return machine, problem, min(plain) / steps, max(0.0, with_evaluation - min(plain))


# --- before anything is loaded --------------------------------------------------------------------------------------


def forecast(runs: list[Run]) -> list[dict]:
    """A row for each method and task: what it consists of, and hours on each device here, from steps on noise."""
    groups: dict[tuple, list[Run]] = {}
    for run in dict.fromkeys(runs):
        groups.setdefault((run.algorithm.label, _alike(run.task), run.task.rounds, run.task.budget_d), []).append(run)
    rows = []
    for same in groups.values():
        task = same[0].task
        n = task.n_samples
        problem, seconds = _stand_in(_alike(task))
        of_run = work(same[0], problem, n if same[0].algorithm.pooled else n / task.n_clients)
        row = {"method": same[0].algorithm.label, **dict(zip(("model", "data"), task.names))}
        row |= {"runs": len(same), "rounds": int(of_run.rounds), "gradient steps": int(of_run.steps)}
        row |= {"upload (d)": round(of_run.upload_d, 1), "upload (MB)": round(of_run.upload_MB, 1)}
        row |= {f"time on {device}": duration(len(same) * of_run.steps * step) for device, step in seconds.items()}
        rows.append(row)
    return rows


@lru_cache(maxsize=8)
def _stand_in(task: Task) -> tuple[Problem, dict[str, float]]:
    """(problem on the CPU, seconds of a local step on each device here)."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    seconds = {}
    for device in devices:
        problem = task.stand_in(device)
        machine = fastest(problem, task)
        clients = min(task.clients_per_round, machine.workers * machine.chunk)
        seconds[device] = step_seconds(problem, task, clients, machine) / clients
    return task.stand_in(), seconds


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
