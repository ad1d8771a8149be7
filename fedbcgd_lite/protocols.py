"""What each table and figure runs at each profile, and how each method is set: protocols.toml and tuned.csv."""

import csv
import dataclasses
import tomllib
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from .algorithms import (
    CentralisedSGD,
    Compressed,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBCGD,
    FedBCGDPlus,
    FedDC,
    Scaffold,
)
from .codecs import QSGD, TopK
from .convex import ConvexTask
from .partitioners import Dirichlet
from .runs import PROFILES, Run, Task, convex_task, grid, task

FOLDER = Path(__file__).parent


def _compressed(method, codec, **settings):
    return Compressed(method(**settings), codec)


METHODS = {  # as the paper's tables write them; all have their settings as arguments
    "Centralised SGD": CentralisedSGD,
    "FedAvg": FedAvg,
    "FedAvgM": FedAvgM,
    "FedAdam": FedAdam,
    "SCAFFOLD": Scaffold,
    "FedDC": FedDC,
    "FedBCGD": FedBCGD,
    "FedBCGD+": FedBCGDPlus,
    "TOP-k": partial(_compressed, FedAvg, TopK()),
    "FedPAQ": partial(_compressed, FedAvg, QSGD()),
    "QSGD+FedBCGD": partial(_compressed, FedBCGD, QSGD()),
    "QSGD+FedBCGD+": partial(_compressed, FedBCGDPlus, QSGD()),
}
SET_LIKE = {"TOP-k": "FedAvg", "FedPAQ": "FedAvg", "QSGD+FedBCGD": "FedBCGD", "QSGD+FedBCGD+": "FedBCGD+"}
OF_TASK = ("lr", "clip", "rounds")  # settings that belong to the task, all others to the algorithm


@dataclass(frozen=True)
class Column:
    """One column of a table: a task, the methods, the target, and where the paper has it.

    target: a test accuracy in percent; for a convex problem a gap f - f*, and no methods, as their steps are searched.
    """

    task: Task | ConvexTask
    methods: tuple[str, ...]
    target: float
    paper_table: int | None = None
    paper_dataset: str | None = None
    paper_model: str | None = None

    def runs(self, seeds) -> list[Run]:
        """All methods with all seeds."""
        return contenders(self.task, self.methods, seeds)


def columns(item: str, profile: str, **changes) -> list[Column]:
    """The columns of a table or figure, "table03_cifar10", at a profile; changes: fields of all tasks."""
    items = _read()
    if item not in items:
        raise ValueError(f"no protocol is known for {item!r}: expected one of {', '.join(items)}.")
    if profile not in items[item]:
        known = ", ".join(name for name in PROFILES if name in items[item])
        raise ValueError(f"{item} has no profile {profile!r}: expected one of {known}.")
    entry, chosen = items[item], items[item][profile]
    make = convex_task if entry.get("convex") else task
    found = []
    for own in chosen["columns"]:
        fields = {**chosen.get("all", {}), **own, **changes}
        target, paper = float(fields.pop("target")), [fields.pop("paper", None), fields.pop("paper_model", None)]
        if "rho" in fields:
            fields["partition"] = Dirichlet(fields.pop("rho"))
        found.append(
            Column(make(profile, **fields), tuple(entry.get("methods", ())), target, entry.get("table"), *paper)
        )
    return found


def contenders(task: Task, methods, seeds=(0,)) -> list[Run]:
    """Runs of the methods on a task, each with its own settings (`tuned`)."""
    runs = []
    for name in methods:
        settings = tuned(name, task)
        of_task = {key: settings.pop(key) for key in OF_TASK if key in settings}
        runs += grid(dataclasses.replace(task, **of_task), algorithm=METHODS[name](**settings), seed=seeds)
    return runs


def tuned(method: str, task: Task) -> dict:
    """The settings of a method on a task, such as {"lr": 0.1, "momentum": 0.6}, from tuned.csv.

    They were chosen on a validation split for this profile, data set and model (notebooks/hyperparameters.ipynb), or
    stand in rows with *, for whatever has no row of its own. A compressed method has the settings of the method that it
    compresses.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: expected one of {', '.join(METHODS)}.")
    own = SET_LIKE.get(method, method)
    profile = task.profile if task.profile in PROFILES else "laptop"
    rows = {(row["profile"], row["dataset"], row["model"], row["method"]): row for row in _settings()}
    for dataset, model in ((task.dataset, task.model), ("*", task.model), ("*", "*")):
        if (profile, dataset, model, own) in rows:
            row = rows[profile, dataset, model, own]
            return {key: _value(text) for key, text in row.items() if key not in IDENTITY and text}
    raise ValueError(f"nothing was tuned for {method} with {task.model} on {task.dataset} at {profile}.")


IDENTITY = ("profile", "dataset", "model", "method", "chosen")


def _value(text: str) -> float | int:
    return int(text) if text.isdigit() else float(text)


@lru_cache
def _settings() -> list[dict]:
    with (FOLDER / "tuned.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@lru_cache
def _read() -> dict:
    return tomllib.loads((FOLDER / "protocols.toml").read_text())
