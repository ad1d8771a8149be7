"""Grids of runs: read where there is a record, resumed where there is a checkpoint, computed in parallel otherwise."""

import dataclasses
import os
import sys
import time
import warnings
from pathlib import Path

import joblib
import tqdm.auto

from . import blocks, checks, records
from .estimate import duration, estimate
from .ledger import Ledger
from .machine import Machine
from .problem import resolve_device
from .protocols import Column
from .results import Result, to_record
from .runs import Run
from .simulate import Trajectory, simulate
from .states import StatesInFiles
from .workers import default_jobs, in_parallel

LONG = 20  # seconds from which a grid says beforehand how long it will take
CHECKPOINT_SHARE = 20  # times what the last checkpoint took must pass before the next one


class OnlyPlanned(Exception):
    """Raised by run_grid in the place of computing anything, where FEDBCGD_DRY=1 asks for the plan."""

    def __init__(self, runs: list[Run]):
        super().__init__(f"{len(runs)} runs")
        self.runs = runs


def run_grid(runs: list[Run], device: str = "auto", jobs: int | None = None) -> list[Result]:
    """The results of all runs, in their order. An interrupted grid goes on where it was when it is called again.

    jobs: runs at a time (default: FEDBCGD_JOBS, or one for each core; 1 on a GPU).
    FEDBCGD_FRESH=<unix time>: records and checkpoints older than that are not used, except for those on a validation
    split, unless FEDBCGD_FRESH_SEARCH=1. FEDBCGD_DRY=1: nothing is computed.
    """
    if os.environ.get("FEDBCGD_DRY") == "1":
        raise OnlyPlanned(runs)
    device = resolve_device(device)
    jobs = int(_setting("FEDBCGD_JOBS", default_jobs(device))) if jobs is None else jobs
    checks.whole("jobs", jobs, at_least=1)
    found = {run: record for run in dict.fromkeys(runs) if (record := _recorded(run)) is not None}
    missing = [run for run in dict.fromkeys(runs) if run not in found]
    if missing:
        found |= _compute(missing, device, jobs)
    for run in dict.fromkeys(runs):
        if found[run]["status"] == "diverged":
            print(f"{_name(run)}: diverged ({found[run]['reason']})")
    return [Result(run, found[run]) for run in runs]


def run_columns(columns: list[Column], seeds: int, device: str = "auto") -> list[list[Result]]:
    """The results of each column of a table, all its methods with seeds 0, 1, ..., as one grid."""
    return run_grids([column.runs(range(seeds)) for column in columns], device)


def run_grids(grids: list[list[Run]], device: str = "auto") -> list[list[Result]]:
    """The results of several lists of runs, computed as one grid."""
    results = iter(run_grid(sum(grids, []), device))
    return [[next(results) for _ in runs] for runs in grids]


def _setting(name: str, default: float) -> float:
    """A number from the environment."""
    text = os.environ.get(name, default)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} = {text!r} was given: expected a number.") from None


def _usable(path: Path, run: Run) -> bool:
    """Whether a file may be used: always, unless FEDBCGD_FRESH asks for newer ones.

    That goes for results, and for the search that chose their settings only where FEDBCGD_FRESH_SEARCH=1 says so.
    """
    searched = run.task.validation > 0 and os.environ.get("FEDBCGD_FRESH_SEARCH") != "1"
    return searched or not path.exists() or path.stat().st_mtime >= _setting("FEDBCGD_FRESH", 0)


def _recorded(run: Run) -> dict | None:
    return records.read_record(run.path, run.key) if _usable(run.path, run) else None


def _compute(missing: list[Run], device: str, jobs: int) -> dict[Run, dict]:
    for folder in {run.path.parent for run in missing}:
        records.check_writable(folder)
    jobs = min(jobs, len(missing))
    estimates = estimate(missing, device, max(1, joblib.cpu_count() // jobs))
    seconds = sum(one.seconds for one in estimates) / jobs
    if seconds > LONG:
        _say(f"{len(missing)} runs to compute: about {duration(seconds)}, {jobs} at a time.")
    done = {}
    try:
        with _progress_bar(len(missing)) as bar:
            machines = [one.machine for one in estimates]
            calls = (joblib.delayed(_compute_one)(run, machine, device) for run, machine in zip(missing, machines))
            with in_parallel(calls, jobs) as outputs:
                for run, record, remarks in outputs:
                    done[run] = record
                    for remark in remarks:
                        warnings.warn(remark, stacklevel=4)
                    bar.set_postfix_str(_name(run))
                    bar.update()
    except KeyboardInterrupt:
        kept = f"{len(done)} of {len(missing)} runs are finished and kept"
        _say(f"Interrupted: {kept}, the others go on from their last checkpoint next time.")
        raise
    return done


def _compute_one(run: Run, machine: Machine, device: str) -> tuple[Run, dict, list[str]]:
    """One run from its checkpoint (or from the start) to its record, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record = _play(run, machine, device)
    return run, record, [str(warning.message) for warning in caught if warning.category is UserWarning]


def _play(run: Run, machine: Machine, device: str) -> dict:
    checkpoint = run.path.with_suffix(".checkpoint")
    for leftover in run.path.parent.glob(f".{run.path.stem}.*.tmp"):  # of a kill between write and rename
        leftover.unlink(missing_ok=True)
    every = _setting("FEDBCGD_CHECKPOINT_SECONDS", 5)
    share = 0 if "FEDBCGD_CHECKPOINT_SECONDS" in os.environ else CHECKPOINT_SHARE
    state = records.read_checkpoint(checkpoint, run.key, device) if _usable(checkpoint, run) else None
    before = state["seconds"] if state else 0.0
    started = saved = time.monotonic()
    took = 0.0

    def save(t: Trajectory) -> None:
        nonlocal saved, took
        begun = time.monotonic()
        if begun - saved >= max(every, share * took):
            records.write_checkpoint(checkpoint, {"key": run.key, "seconds": before + begun - started, **_pack(t)})
            saved = time.monotonic()
            took = saved - begun

    states = run.path.with_suffix(".states")
    resume = _unpack(state, states, device) if state else None
    if resume is None:
        before = 0.0
    hooks = {"machine": machine, "resume": resume, "states": states, "on_round": save}
    t = simulate(run.task.problem(run.seed, device), run.algorithm, run.task, run.seed, **hooks)
    record = to_record(run, t, before + time.monotonic() - started, device)
    records.write_record(run.path, record)
    checkpoint.unlink(missing_ok=True)
    if isinstance(t.clients, StatesInFiles):
        t.clients.close(delete=True)
    return record


def _pack(t: Trajectory) -> dict:
    fields = {f.name: getattr(t, f.name) for f in dataclasses.fields(t)}
    clients = {"snapshot": t.clients.snapshot()} if isinstance(t.clients, StatesInFiles) else t.clients
    return {**fields, "clients": clients, "blocks": dataclasses.asdict(t.blocks), "ledger": t.ledger.rows}


def _unpack(state: dict, folder: Path, device: str) -> Trajectory | None:
    """The trajectory of a checkpoint; None, with a warning, where files of client states that it needs are gone."""
    fields = {f.name: state[f.name] for f in dataclasses.fields(Trajectory)}
    if "snapshot" in fields["clients"]:
        try:
            fields["clients"] = StatesInFiles.restore(folder, fields["clients"]["snapshot"], device)
        except ValueError as error:
            warnings.warn(f"{error} The run is computed again.", stacklevel=2)
            return None
    return Trajectory(**{**fields, "blocks": blocks.Blocks(**state["blocks"]), "ledger": Ledger(state["ledger"])})


def _name(run: Run) -> str:
    momentum = f"momentum {run.algorithm.momentum}, " if hasattr(run.algorithm, "momentum") else ""
    return f"{run.algorithm.label}, {' on '.join(run.task.names)}, {momentum}lr {run.task.lr}, seed {run.seed}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _progress_bar(total: int):
    """One bar over runs, in a terminal and in a live notebook; PROGRESS=0 hides it, PROGRESS=1 draws it as text."""
    wanted = os.environ.get("PROGRESS")
    if wanted is None and "ipykernel" in sys.modules:
        return tqdm.auto.tqdm(total=total, unit="run")
    return tqdm.tqdm(total=total, unit="run", disable=not sys.stderr.isatty() if wanted is None else wanted == "0")
