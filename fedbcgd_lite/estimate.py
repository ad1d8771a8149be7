"""How long runs will take, from a short measurement on this machine."""

import dataclasses
import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import algorithms
from .blocks import partition
from .calibrate import fastest
from .machine import Machine
from .problem import Problem
from .runs import Run, Task
from .simulate import simulate


@dataclass(frozen=True)
class Estimate:
    """What a run will take, and the machine for which this was measured."""

    seconds: float
    machine: Machine


def estimate(runs: list[Run], device: str = "cpu", cores: int | None = None) -> list[Estimate]:
    """One for each run, when it has `cores` threads (default: all)."""
    measured = [_measure(dataclasses.replace(run.task, lr=0.01), device, cores) for run in runs]
    return [Estimate(_seconds(run, *costs), machine) for run, (machine, *costs) in zip(runs, measured)]


def _seconds(run: Run, problem: Problem, step: float, evaluation: float) -> float:
    """Seconds of one run: its rounds times local steps, and its evaluations."""
    if run.algorithm.pooled:
        steps = run.task.local_epochs * np.ceil(len(problem.train[1]) / run.task.batch_size)
        return run.task.rounds * (steps * step + evaluation)
    layout = run.algorithm.layout(partition(problem.model, run.algorithm.blocks))
    upload_d = layout.mean_upload_d * layout.n_blocks * run.algorithm.nominal_upload_d(layout)
    by_budget = run.task.budget_d / upload_d if run.task.budget_d and upload_d else np.inf
    rounds = min(run.task.rounds or np.inf, by_budget)
    evaluations = rounds * min(1, upload_d / run.task.eval_every_d if run.task.eval_every_d else 1)
    return rounds * _steps_per_round(run.task, problem) * step + evaluations * evaluation


def _steps_per_round(task: Task, problem: Problem) -> float:
    samples = np.mean([len(client) for client in problem.clients])
    return task.clients_per_round * task.local_epochs * np.ceil(samples / task.batch_size)


@lru_cache(maxsize=4)
def _measure(task: Task, device: str, cores: int | None) -> tuple[Machine, Problem, float, float]:
    """(machine, problem, seconds of a local step, seconds of an evaluation) from five short rounds of FedAvg.

    The first round warms up, the fastest of the next three counts, the last one is followed by an evaluation.
    """
    problem, marks = task.problem(0, device), []
    machine = fastest(problem, task, cores)
    short = {"rounds": 5, "budget_d": None, "eval_every_d": 1e9, "clients_per_round": min(4, task.clients_per_round)}
    probe = dataclasses.replace(task, **short, local_epochs=1)
    simulate(problem, algorithms.FedAvg(), probe, machine=machine, on_round=lambda t: marks.append(time.monotonic()))
    _, *plain, with_evaluation = np.diff(marks, prepend=marks[0])
    of_steps = min(plain)
    return machine, problem, of_steps / _steps_per_round(probe, problem), max(0.0, with_evaluation - of_steps)


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
