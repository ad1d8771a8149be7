"""What a run is: a task, an algorithm and a seed; the profiles that say how large tasks are; where results are kept."""

import dataclasses
import itertools
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from . import algorithms, blocks, checks, codecs, convex, data, models, partitioners, records
from .algorithms import Algorithm
from .augment import Resize
from .problem import LATER, Problem, Training
from .rng import global_rng


@dataclass(frozen=True)
class Task(Training):
    """A data set, a model and a partition, with the protocol that they are trained by."""

    profile: str = "custom"  # results are kept in figures/<profile>
    dataset: str = "fmnist12k"
    model: str = "lenet5"
    width: int = 64
    n_clients: int = 100  # M
    partition: object = field(default=partitioners.Dirichlet(0.6))
    validation: float = 0.0  # part of the training set to hold out and to evaluate on, in the place of the test set
    augment: bool = field(default=False, metadata=LATER)  # random crops and flips while training, as suits the data set
    resize: int | None = field(default=None, metadata=LATER)  # pixels of the shorter side that images are scaled to
    crop: int | None = field(default=None, metadata=LATER)  # pixels of the square that is cut from their middle

    def __post_init__(self):
        super().__post_init__()
        data.check_name(self.dataset)
        if self.model not in models.MODELS:
            raise ValueError(f"unknown model {self.model!r}: expected one of {', '.join(models.MODELS)}.")
        if not isinstance(self.partition, partitioners.PARTITIONS):
            raise ValueError(
                f"partition = {self.partition!r} was given: expected "
                f"{', '.join(kind.__name__ for kind in partitioners.PARTITIONS)}."
            )
        checks.whole("n_clients", self.n_clients, at_least=1)
        checks.whole("width", self.width, at_least=1)
        if not 1 <= self.clients_per_round <= self.n_clients:
            raise ValueError(
                f"clients_per_round = {self.clients_per_round} was given: expected 1 to {self.n_clients}, the number "
                "of clients."
            )
        if (self.resize is None) != (self.crop is None):
            raise ValueError(f"resize = {self.resize} and crop = {self.crop} were given: expected both or neither.")
        if self.crop is not None:
            Resize(self.resize, self.crop)  # refuses what does not fit
        checks.number("validation", self.validation, lambda value: 0 <= value < 1, "in [0, 1), a part of the whole")

    @property
    def names(self) -> tuple[str, str]:
        """Model and data set as tables and figures write them."""
        return models.LABELS[self.model], data.label(self.dataset)

    @property
    def n_samples(self) -> float:
        """How many training samples all clients hold together, without loading them."""
        return data.shape(self.dataset)[2] * (1 - self.validation)

    def problem(self, seed: int, device: str = "cpu") -> Problem:
        """The problem of one seed: its partition and its initial model."""
        loaded = data.load(self.dataset)
        if self.validation:
            loaded = data.hold_out(loaded, self.validation, seed)
        with global_rng(seed, "init"):  # the one place where modules are built
            module = self._module(self.model, tuple(loaded.x_train.shape[1:]), loaded.n_classes)
        clients = self.partition.split(loaded.y_train.numpy(), self.n_clients, seed)
        train, test = (loaded.x_train, loaded.y_train), (loaded.x_test, loaded.y_test)
        steps = [loaded.normalise.to(device), *self._resizing()]
        transform = steps[0] if len(steps) == 1 else partial(_through, steps)
        augment = data.augmentation(self.dataset) if self.augment else None
        return Problem(module, train, clients, test, device=device, transform=transform, augment=augment)

    def stand_in(self, device: str = "cpu") -> Problem:
        """A problem of the same shapes with a batch of noise for each sampled client, to time steps on."""
        image, n_classes, _ = data.shape(self.dataset)
        n = self.clients_per_round * self.batch_size
        with global_rng(0, "init"):
            module = self._module(self.model.removesuffix("_pretrained"), image, n_classes)
            train = torch.rand(n, *image), torch.randint(n_classes, (n,))
        clients = np.split(np.arange(n), self.clients_per_round)
        return Problem(module, train, clients, device=device, transform=partial(_through, self._resizing()))

    def _module(self, name: str, image: tuple[int, int, int], n_classes: int) -> nn.Module:
        return models.MODELS[name]((image[0], self.crop, self.crop) if self.crop else image, n_classes, self.width)

    def _resizing(self) -> list[Resize]:
        return [Resize(self.resize, self.crop)] if self.crop else []


def _through(steps: list, images):
    for step in steps:
        images = step(images)
    return images


FLOATS = (float, float | None)
PROFILES = {
    "laptop": {"width": 16, "budget_d": 40.0},
    "smoke": {"width": 4, "budget_d": 2.0, "local_epochs": 1},
    "paper": {"dataset": "cifar10", "width": 64, "budget_d": 1000.0, "augment": True},
}


def task(profile: str = "laptop", **changes) -> Task:
    """The task of a profile ("laptop", "smoke", "paper"), with any field of `Task` changed: task("laptop", lr=0.05)."""
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}: expected one of {', '.join(PROFILES)}.")
    _check_fields(changes, _fields(Task), "task")
    return Task(**{"profile": profile, **PROFILES[profile], **changes})


def convex_task(profile: str = "laptop", **changes) -> convex.ConvexTask:
    """A convex task whose results are kept with those of a profile: convex_task("laptop", rounds=100, lr=0.5)."""
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}: expected one of {', '.join(PROFILES)}.")
    _check_fields(changes, _fields(convex.ConvexTask), "convex_task")
    return convex.ConvexTask(**{"profile": profile, **changes})


@dataclass(frozen=True)
class Run:
    """One algorithm on one task with one seed: everything that a result depends on, and nothing else."""

    task: Task | convex.ConvexTask
    algorithm: Algorithm
    seed: int = 0

    def __post_init__(self):
        checks.whole("seed", self.seed, at_least=0)
        if not isinstance(self.algorithm, Algorithm):
            given = getattr(self.algorithm, "__name__", repr(self.algorithm))
            raise ValueError(
                f"algorithm = {given} was given: expected an algorithm with its arguments, as in FedAvg()."
            )

    @property
    def key(self) -> str:
        """sha256 of the run's canonical JSON: the name under which its result is kept."""
        return records.digest(to_plain(self))

    @property
    def path(self) -> Path:
        """Where its record is kept."""
        words = "".join(c if c.isalnum() else " " for c in self.algorithm.label.replace("+", " plus "))
        method = "-".join(words.split()).lower()
        return results_folder(self.task.profile) / "records" / f"{method}-s{self.seed}-{self.key[:12]}.json"


def grid(task: Task, **fields) -> list[Run]:
    """All combinations of the given values of `algorithm`, `seed` and the fields of `Task`.

    grid(task, algorithm=[FedAvg(), FedBCGD()], seed=range(3), lr=[0.05, 0.1]) is twelve runs.
    """
    if "algorithm" not in fields:
        raise ValueError("grid() was given no algorithm: expected at least one, as in algorithm=[FedAvg()].")
    _check_fields(fields, ["algorithm", "seed", *_fields(Task)], "grid")
    fields = {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in fields.items()}
    axes = {name: v if isinstance(v, (list, tuple, range)) else [v] for name, v in fields.items()}
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
        raise ValueError(f"{caller}() was given {', '.join(unknown)}: expected names among {', '.join(known)}.")


def to_plain(value):
    """Nested dataclasses as JSON values, each with the name of its class; 1 in a field of floats is 1.0.

    A field that came later (problem.LATER) is left out at its default, so that older runs keep their keys.
    """
    if dataclasses.is_dataclass(value):
        all_fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value)]
        fields = {f.name: (f.type, v) for f, v in all_fields if not (f.metadata.get("later") and v == f.default)}
        plain = {
            name: float(v) if kind in FLOATS and v is not None else to_plain(v) for name, (kind, v) in fields.items()
        }
        return {"class": type(value).__name__, **plain}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def from_plain(value):
    """The inverse of to_plain."""
    if isinstance(value, dict):
        kinds = {"Run": Run, "Task": Task, "ConvexTask": convex.ConvexTask}
        kinds |= {**vars(algorithms), **vars(codecs), **vars(blocks), **vars(partitioners)}
        return kinds[value["class"]](**{name: from_plain(item) for name, item in value.items() if name != "class"})
    return tuple(map(from_plain, value)) if isinstance(value, list) else value


def results_folder(profile: str) -> Path:
    """figures/<profile> of the checkout that the current folder lies in, or of the current folder.

    FEDBCGD_RESULTS=<folder> replaces `figures`.
    """
    if "FEDBCGD_RESULTS" in os.environ:
        return Path(os.environ["FEDBCGD_RESULTS"]) / profile
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / "fedbcgd_lite").is_dir()), here)
    return root / "figures" / profile
