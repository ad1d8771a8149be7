"""The fastest way to train a round here: a short measurement, made once and kept for the machine."""

import json
import math
import os
import platform
import time
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import joblib
import numpy as np
import torch
from torch import nn

from .algorithms import FedAvg
from .blocks import partition
from .engine import Engine, Visit
from .machine import Machine, settings
from .problem import Problem, Training
from .records import write_atomic

WORTH_IT = 0.9  # of the time of a simpler machine, from which a less simple one is taken
LONG = 0.5  # seconds after which a candidate is not tried again
TOGETHER = 4_000_000  # floats, S times d, up to which training clients together is tried on a CPU


def fastest(problem: Problem, training: Training, cores: int | None = None) -> Machine:
    """The fastest Machine for a problem with `cores` threads (default: all), measured here or before.

    FEDBCGD_MACHINE="workers=2,chunk=1" says it without a measurement. Kept in machine.json under FEDBCGD_CACHE
    (default: ~/.cache/fedbcgd-lite).
    """
    if "FEDBCGD_MACHINE" in os.environ:
        return _said(os.environ["FEDBCGD_MACHINE"])
    cores = cores or joblib.cpu_count()
    S = min(training.clients_per_round, len(problem.holders()))
    candidates = _candidates(problem, S, cores)
    if len(candidates) == 1 or problem.draws:
        return candidates[0]
    inputs, d = problem.train[0], partition(problem.model, "whole").d
    where = platform.node(), problem.device, torch.__version__, cores
    what = type(problem.model).__qualname__, d, *inputs.shape[1:], inputs.dtype, training.batch_size, S
    key = " ".join(map(str, (*where, *what, training.precision)))
    kept = _kept()
    if key not in kept:
        kept[key] = _measured(problem, training, S, candidates)
        _keep(kept)
    return kept[key]


def _said(text: str) -> Machine:
    try:
        said = dict(word.split("=") for word in text.split(","))
        return Machine(**{name: int(value) for name, value in said.items()})
    except (ValueError, TypeError) as error:
        raise ValueError(f"FEDBCGD_MACHINE = {text!r} was given ({error}): expected 'workers=2,chunk=1'.") from None


def _candidates(problem: Problem, S: int, cores: int) -> list[Machine]:
    """What is worth a try, the simplest first."""
    W = min(cores, S)
    if problem.device.startswith("cuda"):
        ways = [(1, 1), (min(4, S), 1), (1, S)]
        return [Machine(workers, chunk, graphs) for graphs in (False, True) for workers, chunk in ways]
    d = partition(problem.model, "whole").d
    convolutions = any(isinstance(module, nn.modules.conv._ConvNd) for module in problem.model.modules())
    chunks = [1] if convolutions or S * d > TOGETHER else [1, S, math.ceil(S / W)]
    tried = [Machine(workers, chunk) for chunk in chunks for workers in (1, min(W, math.ceil(S / chunk)))]
    return list(dict.fromkeys(tried))


def _measured(problem: Problem, training: Training, S: int, candidates: list[Machine]) -> Machine:
    """The first candidate that no later one beats by more than a tenth."""
    clients = S if any(machine.chunk > 1 for machine in candidates) else max(m.workers for m in candidates)
    best, seconds = candidates[0], math.inf
    for machine in candidates:
        took = step_seconds(problem, training, clients, machine)
        if took < seconds * (WORTH_IT if best is not machine else 1):
            best, seconds = machine, took
    return best


def step_seconds(problem: Problem, training: Training, clients: int, machine: Machine) -> float:
    """Seconds of a local step of some clients; infinite where the model cannot be trained this way."""
    rows = np.arange(min(training.batch_size, len(problem.train[1])))
    blocks = partition(problem.model, "whole")
    visits = [Visit(blocks.slot(client, 0), {}, rows, [rows]) for client in range(clients)]
    with settings(training.precision), Engine(problem, FedAvg(), blocks, training, machine) as engine:
        server, times = {"x": engine.x0}, []
        while len(times) < 4 and sum(times) < LONG:
            started = time.perf_counter()
            try:
                _, _, losses = zip(*engine.train(server, visits, 0, 0))
                torch.stack(losses).tolist()  # a GPU is waited for
            except RuntimeError:
                return math.inf
            times.append(time.perf_counter() - started)
    return min(times[1:] or times)


def _file() -> Path:
    return Path(os.environ.get("FEDBCGD_CACHE", "~/.cache/fedbcgd-lite")).expanduser() / "machine.json"


@lru_cache(maxsize=1)
def _kept() -> dict[str, Machine]:
    """What was measured before; a file that cannot be understood is as good as none."""
    try:
        return {key: Machine(**settings) for key, settings in json.loads(_file().read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(kept: dict[str, Machine]) -> None:
    """For the next process; where nothing can be written, it is measured again."""
    try:
        write_atomic(_file(), json.dumps({key: asdict(machine) for key, machine in kept.items()}, indent=1).encode())
    except OSError:
        pass
