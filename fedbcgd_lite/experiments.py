"""Runs that are cached, resumed and computed in parallel, and the profiles that say how large they are."""

import csv
import dataclasses
import itertools
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import joblib
import numpy as np
import torch
from tqdm.auto import tqdm

from . import algorithms, blocks, data, models, records
from .algorithms import Algorithm
from .ledger import COLUMNS, Ledger
from .problem import Problem, Training, resolve_device
from .rng import global_rng
from .simulate import Trajectory, simulate

LONG = 20  # seconds from which a grid says beforehand how long it will take


# --- what a run is --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task(Training):
    """A data set, a model and a partition, with the protocol that they are trained by."""

    profile: str = "custom"  # results are kept in figures/<profile>
    dataset: str = "fmnist12k"
    model: str = "lenet5"
    width: int = 64
    n_clients: int = 100  # M
    partition: object = field(default=data.Dirichlet(0.6))
    validation: float = 0.0  # above 0: this part of the training set is held out and evaluated on, in the place of the test set

    def __post_init__(self):
        super().__post_init__()
        for what, value, known in (("dataset", self.dataset, data.DATASETS), ("model", self.model, models.MODELS)):
            if value not in known:
                raise ValueError(f"unknown {what} {value!r}: expected one of {', '.join(known)}.")
        if not isinstance(self.partition, data.PARTITIONS):
            raise ValueError(f"partition = {self.partition!r} was given: expected {', '.join(kind.__name__ for kind in data.PARTITIONS)}.")
        if not 1 <= self.clients_per_round <= self.n_clients:
            raise ValueError(f"clients_per_round = {self.clients_per_round} was given: expected 1 to {self.n_clients}, the number of clients.")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation = {self.validation} was given: expected a fraction of the training set in [0, 1).")

    def problem(self, seed: int, device: str = "cpu") -> Problem:
        """The problem of one seed: its partition and its initial model."""
        loaded = _load(self.dataset)
        if self.validation:
            loaded = data.hold_out(loaded, self.validation, seed)
        with global_rng(seed, "init"):  # the one place where modules are built
            module = models.MODELS[self.model](tuple(loaded.x_train.shape[1:]), loaded.n_classes, self.width)
        clients = self.partition.split(loaded.y_train.numpy(), self.n_clients, seed)
        train, test = (loaded.x_train, loaded.y_train), (loaded.x_test, loaded.y_test)
        return Problem(module, train, clients, test, device=device)


_load = lru_cache(maxsize=1)(data.load)

PROFILES = {
    "laptop": {"width": 16, "budget_d": 40.0},
    "smoke": {"width": 4, "budget_d": 2.0, "local_epochs": 1},
}


def task(profile: str = "laptop", **changes) -> Task:
    """The task of a profile ("laptop", "smoke"), with any field of `Task` changed: task("laptop", lr=0.05)."""
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}: expected one of {', '.join(PROFILES)}.")
    _check_fields(changes, _fields(Task), "task")
    return Task(**{"profile": profile, **PROFILES[profile], **changes})


def tuned(method: str) -> dict[str, float]:
    """The step size and momentum of a method, chosen on a validation split (notebooks/hyperparameters.ipynb): {"lr": ..., "momentum": ...}."""
    with (Path(__file__).parent / "tuned.csv").open(newline="") as file:
        rows = {row.pop("method"): {name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)}
    if method not in rows:
        raise ValueError(f"nothing was tuned for {method!r}: expected one of {', '.join(rows)}.")
    return rows[method]


@dataclass(frozen=True)
class Run:
    """One algorithm on one task with one seed: everything that a result depends on, and nothing else."""

    task: Task
    algorithm: Algorithm
    seed: int = 0

    @property
    def key(self) -> str:
        """sha256 of the run's canonical JSON: the name under which its result is kept."""
        return records.digest(to_plain(self))

    @property
    def path(self) -> Path:
        """Where its record is kept."""
        method = "-".join("".join(c if c.isalnum() else " " for c in self.algorithm.label).split()).lower()
        return results_folder(self.task.profile) / "records" / f"{method}-s{self.seed}-{self.key[:12]}.json"


def grid(task: Task, **fields) -> list[Run]:
    """All combinations of the given values; names are those of `Run` (algorithm, seed) and `Task`: grid(task, algorithm=[...], seed=range(3), lr=[0.05, 0.1])."""
    _check_fields(fields, [*_fields(Run), *_fields(Task)], "grid")
    axes = {name: values if isinstance(values, (list, tuple, range)) else [values] for name, values in fields.items() if name != "task"}
    runs = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values))
        of_run = {name: chosen.pop(name) for name in ("algorithm", "seed") if name in chosen}
        runs.append(Run(dataclasses.replace(task, **chosen), **of_run))
    return runs


def _fields(kind) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _check_fields(given: dict, known: list[str], caller: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"{caller}() was given {', '.join(unknown)}: expected names among {', '.join(dict.fromkeys(known))}.")


def to_plain(value):
    """Nested dataclasses as JSON values, each with the name of its class."""
    if dataclasses.is_dataclass(value):
        return {"class": type(value).__name__, **{f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(value):
    """The inverse of to_plain."""
    if isinstance(value, dict):
        kinds = {"Run": Run, "Task": Task, **{k.__name__: k for k in data.PARTITIONS}, **vars(algorithms), **vars(blocks)}
        return kinds[value["class"]](**{name: from_plain(item) for name, item in value.items() if name != "class"})
    return tuple(map(from_plain, value)) if isinstance(value, list) else value


def results_folder(profile: str) -> Path:
    """figures/<profile> of the checkout that the current folder lies in (or of the current folder); FEDBCGD_RESULTS replaces `figures`."""
    if "FEDBCGD_RESULTS" in os.environ:
        return Path(os.environ["FEDBCGD_RESULTS"]) / profile
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / "fedbcgd_lite").is_dir()), here)
    return root / "figures" / profile


# --- results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A run with its record: `rows` of measurements, `rounds` (who sent which block, and how much), `ledger` totals."""

    run: Run
    record: dict

    @property
    def rows(self) -> list[dict]:
        columns = self.record["rows"]
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    @property
    def rounds(self) -> list[list[dict]]:
        """One list a round with a dict(client, block, upload_floats) for each participant."""
        return [[dict(zip(("client", "block", "upload_floats"), entry)) for entry in zip(*r)] for r in self.record["rounds"]]

    @property
    def d(self) -> int:
        return self.record["d"]


def _to_record(run: Run, t: Trajectory, seconds: float, device: str) -> dict:
    return {
        "key": run.key,
        "label": run.algorithm.label,
        "status": "diverged" if t.diverged else "finished",
        "reason": t.diverged,
        "run": to_plain(run),
        "d": t.blocks.d,
        "blocks": {"sizes": list(t.blocks.sizes), "shared": t.blocks.shared},
        "rows": {name: [_json_number(row[name]) for row in t.rows] for name in t.rows[0]},
        "rounds": _rounds(t.ledger, t.round),
        "ledger": [[*name, *amount] for name, amount in t.ledger.totals().items()],
        "x_sha256": records.hashlib.sha256(t.x.cpu().numpy().tobytes()).hexdigest(),
        "made_by": _made_by(seconds, device),
    }


def _json_number(value):
    return value if value is None or np.isfinite(value) else None


def _rounds(ledger: Ledger, n_rounds: int) -> list[list[list[int]]]:
    """[clients, blocks, uploaded floats] of each round, in the order in which the clients were drawn."""
    rounds = [{} for _ in range(n_rounds)]
    for row in ledger.rows:
        entry = dict(zip(COLUMNS, row))
        if entry["direction"] == "up":
            mine = rounds[entry["round"]].setdefault(entry["client"], [entry["block"], 0])
            mine[1] += entry["floats"]
    return [[list(r), [block for block, _ in r.values()], [floats for _, floats in r.values()]] for r in rounds]


def _made_by(seconds: float, device: str) -> dict:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {**versions, "commit": _commit(), "device": f"{device} ({name})", "seconds": round(seconds, 1)}


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The commit of the checkout that this module lies in, "+" when tracked code was changed; None outside a checkout."""
    def git(*words):
        return subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


# --- computing them -------------------------------------------------------------------------------------------------


def run_grid(runs: list[Run], device: str = "auto", jobs: int | None = None) -> list[Result]:
    """The results of all runs, in their order: read where there is a record, resumed where there is a checkpoint, computed otherwise.

    jobs: runs at a time (default: FEDBCGD_JOBS, or one for each core; 1 on a GPU). With FEDBCGD_FRESH=<unix time> records older than that are
    computed again. An interrupted grid goes on where it was when it is called again.
    """
    device = resolve_device(device)
    found = {run: record for run in dict.fromkeys(runs) if (record := _recorded(run)) is not None}
    missing = [run for run in dict.fromkeys(runs) if run not in found]
    if missing:
        found |= _compute(missing, device, jobs or int(os.environ.get("FEDBCGD_JOBS", 0)) or _default_jobs(device))
    for run in dict.fromkeys(runs):
        if found[run]["status"] == "diverged":
            print(f"{run.algorithm.label}, seed {run.seed}: diverged ({found[run]['reason']})")
    return [Result(run, found[run]) for run in runs]


def _default_jobs(device: str) -> int:
    return 1 if device.startswith("cuda") else os.cpu_count() or 1


def _fresh(path: Path) -> bool:
    """Whether a file may be used: always, unless FEDBCGD_FRESH asks for newer ones."""
    return not path.exists() or path.stat().st_mtime >= float(os.environ.get("FEDBCGD_FRESH", 0))


def _recorded(run: Run) -> dict | None:
    return records.read_record(run.path, run.key) if _fresh(run.path) else None


def _compute(missing: list[Run], device: str, jobs: int) -> dict[Run, dict]:
    for folder in {run.path.parent for run in missing}:
        records.check_writable(folder)
    jobs = min(jobs, len(missing))
    seconds = estimate(missing, device) / jobs
    if seconds > LONG:
        print(f"{len(missing)} runs are to be computed: about {_duration(seconds)} with {jobs} at a time. They can be interrupted and go on later.", flush=True)
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    done = {}
    try:
        with tqdm(total=len(missing), unit="run", disable=not _show_progress()) as bar:
            for run, record in parallel(joblib.delayed(_compute_one)(run, device, jobs > 1) for run in missing):
                done[run] = record
                bar.set_postfix_str(f"{run.algorithm.label}, seed {run.seed}")
                bar.update()
    except KeyboardInterrupt:
        print(f"Interrupted: {len(done)} of {len(missing)} runs are finished and kept, the others go on from their last checkpoint next time.", flush=True)
        raise
    return done


def _compute_one(run: Run, device: str, in_worker: bool) -> tuple[Run, dict]:
    """One run from its checkpoint (or from the start) to its record."""
    if in_worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is answered by the parent, once
    checkpoint = run.path.with_suffix(".checkpoint")
    every = float(os.environ.get("FEDBCGD_CHECKPOINT_SECONDS", 5))
    state = records.read_checkpoint(checkpoint, run.key, device) if _fresh(checkpoint) else None
    before = state["seconds"] if state else 0.0
    started = saved = time.monotonic()

    def save(t: Trajectory) -> None:
        nonlocal saved
        if time.monotonic() - saved >= every:
            records.write_checkpoint(checkpoint, {"key": run.key, "seconds": before + time.monotonic() - started, **_pack(t)})
            saved = time.monotonic()

    resume = _unpack(state) if state else None
    t = simulate(run.task.problem(run.seed, device), run.algorithm, run.task, run.seed, resume=resume, on_round=save)
    record = _to_record(run, t, before + time.monotonic() - started, device)
    records.write_record(run.path, record)
    checkpoint.unlink(missing_ok=True)
    return run, record


def _pack(t: Trajectory) -> dict:
    fields = {f.name: getattr(t, f.name) for f in dataclasses.fields(t)}
    return {**fields, "blocks": dataclasses.asdict(t.blocks), "ledger": t.ledger.rows}


def _unpack(state: dict) -> Trajectory:
    fields = {f.name: state[f.name] for f in dataclasses.fields(Trajectory)}
    return Trajectory(**{**fields, "blocks": blocks.Blocks(**state["blocks"]), "ledger": Ledger(state["ledger"])})


def _show_progress() -> bool:
    """A bar in a terminal and in a live notebook; PROGRESS=0 or 1 decides otherwise."""
    if "PROGRESS" in os.environ:
        return os.environ["PROGRESS"] != "0"
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def estimate(runs: list[Run], device: str = "cpu") -> float:
    """Seconds that the runs would take one after another, from a short measurement of each task's local step and evaluation."""
    seconds = 0.0
    for run in runs:
        step, evaluation = _measure(dataclasses.replace(run.task, lr=0.01), device)
        rounds, upload_d = _expected_rounds(run)
        evaluations = rounds * min(1, upload_d / run.task.eval_every_d) if run.task.eval_every_d else rounds
        seconds += rounds * _steps_per_round(run.task) * step + evaluations * evaluation
    return seconds


def _steps_per_round(task: Task) -> float:
    samples = len(_load(task.dataset).y_train) / task.n_clients
    return task.clients_per_round * task.local_epochs * np.ceil(samples / task.batch_size)


def _expected_rounds(run: Run) -> tuple[float, float]:
    """(rounds, upload of a round in units of d) that the run will come to."""
    layout = run.algorithm.layout(blocks.partition(run.task.problem(run.seed).model, run.algorithm.blocks))
    upload_d = layout.mean_upload_d * layout.n_blocks * run.algorithm.nominal_upload_d(layout)
    by_budget = run.task.budget_d / upload_d if run.task.budget_d and upload_d else np.inf
    return min(run.task.rounds or np.inf, by_budget), upload_d


@lru_cache(maxsize=16)
def _measure(task: Task, device: str) -> tuple[float, float]:
    """Seconds of (one local step, one evaluation): three short rounds of FedAvg, the first one to warm up, the last one with an evaluation."""
    marks = []
    short = dataclasses.replace(task, rounds=3, budget_d=None, eval_every_d=1e9, clients_per_round=min(4, task.clients_per_round), local_epochs=1)
    simulate(task.problem(0, device), algorithms.FedAvg(), short, on_round=lambda t: marks.append(time.monotonic()))
    of_steps, with_evaluation = marks[1] - marks[0], marks[2] - marks[1]
    return of_steps / _steps_per_round(short), max(0.0, with_evaluation - of_steps)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# --- do the records still describe the code? ------------------------------------------------------------------------

REPLAYED = 2  # evaluations that are computed again
LOSS_TOLERANCE = 1e-2  # relative; another processor rounds differently, and training amplifies it
ACCURACY_TOLERANCE = 2.0  # percent


def replay(paths: list[Path], device: str = "auto", jobs: int | None = None) -> dict[Path, str]:
    """Compute the first evaluations of kept records again; returns what differs, by path (empty when all agree)."""
    jobs = jobs or _default_jobs(resolve_device(device))
    found = joblib.Parallel(n_jobs=jobs)(joblib.delayed(_replay_one)(path, resolve_device(device)) for path in paths)
    return {path: difference for path, difference in zip(paths, found) if difference}


def _replay_one(path: Path, device: str) -> str | None:
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
    if _rounds(t.ledger, t.round) != record["rounds"][: t.round]:
        return "other clients, blocks or uploads"
    for was, now in zip(rows, t.rows):
        for name in was:
            tolerance = {"accuracy": ACCURACY_TOLERANCE, "test_loss": LOSS_TOLERANCE, "train_loss": LOSS_TOLERANCE}.get(name, 0)
            scale = 1 if name == "accuracy" else abs(was[name] or 0)
            if was[name] != now[name] and (None in (was[name], now[name]) or abs(was[name] - now[name]) > tolerance * scale):
                return f"{name} in round {was['round']} was {was[name]}, is now {now[name]}"
    return None
