"""Do the kept records still describe the code? Their first rounds, computed again and compared."""

import dataclasses
from pathlib import Path

import joblib

from . import records
from .problem import resolve_device
from .results import Result, rounds_of
from .runs import from_plain
from .simulate import simulate
from .workers import default_jobs, in_parallel

REPLAYED = 2  # evaluations that are computed again
# Another processor rounds differently, and training amplifies it: accuracy in percent, losses and gaps relative, the
# rest exact.
TOLERANCE = {"accuracy": 2.0, "test_loss": 1e-2, "train_loss": 1e-2, "gap": 1e-2}


def replay(paths: list[Path], device: str = "auto", jobs: int | None = None) -> dict[Path, str]:
    """Compute the first evaluations of kept records again; returns what differs, by path (empty when all agree)."""
    device = resolve_device(device)
    calls = (joblib.delayed(_replay_one)(path, device) for path in paths)
    with in_parallel(calls, jobs or default_jobs(device)) as outputs:
        found = dict(outputs)
    return {path: found[path] for path in paths if found[path]}


def _replay_one(path: Path, device: str) -> tuple[Path, str | None]:
    return path, _difference(path, device)


def _difference(path: Path, device: str) -> str | None:
    record = records.read_record(path)
    if record is None:
        return "no valid record"
    try:
        run = from_plain(record["run"])
    except (KeyError, TypeError, ValueError) as error:
        return f"describes no run of this version ({error})"
    if run.key != record["key"]:
        return "its key is not the key of its run in this version"
    kept = Result(run, record)
    rows = kept.rows[: REPLAYED + 1]
    short = dataclasses.replace(run.task, rounds=max(1, rows[-1]["round"]), budget_d=None)
    t = simulate(run.task.problem(run.seed, device), run.algorithm, short, run.seed)
    if len(t.rows) < len(rows):
        return f"now stops in round {t.round}: {t.diverged}"
    if rounds_of(t.ledger, t.round) != record["rounds"][: t.round]:
        return "other clients, blocks or uploads"
    for was, now in zip(rows, t.rows):
        for name in was:
            if not _agree(name, was[name], now[name]):
                return f"{name} in round {was['round']} was {was[name]}, is now {now[name]}"
    return None


def _agree(name: str, was: float | None, now: float | None) -> bool:
    if was == now or None in (was, now):
        return was == now
    return abs(was - now) <= TOLERANCE.get(name, 0) * (1 if name == "accuracy" else abs(was))
