"""Data sets as tensors in memory, and how they are spread over clients.

A partition is a list with one integer array per client: the indices of the training samples that the client holds.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import checks, folders
from .rng import numpy_rng

FOLDER = Path(__file__).parent / "datasets"


# --- data sets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normalise:
    """Bytes (B, channels, height, width) as float32 numbers of mean 0 and standard deviation 1 in each channel."""

    scale: Tensor  # (channels, 1, 1): 1 / std
    shift: Tensor  # (channels, 1, 1): -mean / std

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)

    def to(self, device: str) -> "Normalise":
        """The same with its constants on a device."""
        return Normalise(self.scale.to(device), self.shift.to(device))


@dataclass(frozen=True)
class Data:
    """Images as bytes, integer labels, and the normalisation that belongs to the whole training set."""

    x_train: Tensor  # (n, channels, height, width) uint8
    y_train: Tensor  # (n,) int64
    x_test: Tensor
    y_test: Tensor
    n_classes: int
    normalise: Normalise


def _fmnist12k(_) -> dict[str, np.ndarray]:
    with np.load(FOLDER / "fmnist12k.npz") as file:
        return {name: (file[name][:, None] if name.startswith("x") else file[name]) for name in file.files}


DATASETS = {"fmnist12k": _fmnist12k, "imagefolder": folders.read}  # name: reader of what stands after the colon
LABELS = {"fmnist12k": "Fashion-MNIST-12k"}  # as tables and figures write them


def label(dataset: str) -> str:
    """The name in tables and figures; an image folder goes by its own."""
    return LABELS.get(dataset) or Path(dataset.partition(":")[2]).name


def check_name(dataset: str) -> None:
    """Refuse what is neither the name of a data set in the package nor "imagefolder:<folder>"."""
    kind, colon, folder = str(dataset).partition(":")
    if kind not in DATASETS or bool(folder) != (kind == "imagefolder") or bool(colon) != bool(folder):
        raise ValueError(f"unknown dataset {dataset!r}: expected 'fmnist12k' or 'imagefolder:<folder>'.")


@lru_cache(maxsize=1)
def load(dataset: str) -> Data:
    """A data set by name as tensors; its mean and std are those of all training pixels, from exact integers."""
    check_name(dataset)
    kind, _, folder = dataset.partition(":")
    raw = DATASETS[kind](folder)
    images, labels = (
        {name: torch.from_numpy(raw[name]) for name in (f"{part}_train", f"{part}_test")} for part in "xy"
    )
    labels = {name: values.long() for name, values in labels.items()}
    n_classes = int(max(values.max() for values in labels.values())) + 1
    return Data(**images, **labels, n_classes=n_classes, normalise=normalisation(raw["x_train"]))


def normalisation(images: np.ndarray) -> Normalise:
    """From the bytes of a training set (n, channels, height, width), in exact integers; a single colour becomes 0."""
    counts = np.stack([np.bincount(channel.ravel(), minlength=256) for channel in images.swapaxes(0, 1)])  # (C, 256)
    values, pixels = np.arange(256), images[:, 0].size
    mean = counts @ values / pixels
    std = np.sqrt(counts @ values**2 / pixels - mean**2)
    std[std == 0] = 1
    return Normalise(*(torch.from_numpy(v).float()[:, None, None] for v in (1 / std, -mean / std)))


def hold_out(data: Data, fraction: float, seed: int) -> Data:
    """The same data with a random part of the *training* set in the place of the test set, to choose settings on."""
    order = torch.from_numpy(numpy_rng(seed, "validation").permutation(len(data.y_train)))
    held, kept = order.split([round(fraction * len(order)), len(order) - round(fraction * len(order))])
    x, y = data.x_train, data.y_train
    return replace(data, x_train=x[kept], y_train=y[kept], x_test=x[held], y_test=y[held])


def tensors(dataset) -> tuple[Tensor, Tensor]:
    """Any map-style torch or torchvision data set of (input, label) pairs as a pair of tensors (x, y)."""
    pairs = [dataset[i] for i in range(len(dataset))]
    return torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.as_tensor([int(y) for _, y in pairs])


# --- partitions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IID:
    """Every client holds n / n_clients samples drawn without replacement (sizes differ by one at most)."""

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels = _check_labels(labels, n_clients)
        return np.array_split(numpy_rng(seed, "partition").permutation(len(labels)), n_clients)


@dataclass(frozen=True)
class ByLabel:
    """Samples sorted by label and cut into shards, `shards` random ones a client (McMahan et al., 2017)."""

    shards: int = 2

    def __post_init__(self):
        checks.whole("shards", self.shards, at_least=1)

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels = _check_labels(labels, n_clients)
        if n_clients * self.shards > len(labels):
            raise ValueError(
                f"{n_clients} clients x {self.shards} shards exceed {len(labels)} samples: use fewer of either."
            )
        rng = numpy_rng(seed, "partition")
        shuffled = rng.permutation(len(labels))
        pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], n_clients * self.shards)
        return [
            np.concatenate([pieces[i] for i in mine]) for mine in rng.permutation(len(pieces)).reshape(n_clients, -1)
        ]


@dataclass(frozen=True)
class Dirichlet:
    """A true partition (disjoint and complete) with label skew rho: small rho, few classes a client.

    equal=True: all clients hold n / n_clients samples (sizes differ by one at most). Client i draws label ratios
    p_i ~ Dir(rho, ..., rho); the clients take one sample each in turn, its class drawn from p_i among the classes that
    are not used up.
    equal=False: each class is divided over the clients by ratios ~ Dir(rho, ..., rho), so that sizes differ as well
    (Hsu et al., 2019; Li et al., 2022). The division is drawn again, `tries` times at most, until every client holds
    `min_size` samples; min_size=0 accepts clients without any.
    """

    rho: float
    equal: bool = True
    min_size: int = 1
    tries: int = 1000

    def __post_init__(self):
        _check_rho(self.rho)

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels, rng = _check_labels(labels, n_clients), numpy_rng(seed, "partition")
        if self.equal:
            return self._equal(labels, n_clients, rng)
        best = -1
        for _ in range(self.tries):
            clients = self._unequal(labels, n_clients, rng)
            best = max(best, min(map(len, clients)))
            if best >= self.min_size:
                return clients
        raise ValueError(
            f"Dirichlet(rho={self.rho}) over {n_clients} clients: after {self.tries} draws the smallest client held "
            f"{best} of {len(labels)} samples at best, {self.min_size} wanted; raise rho, or lower n_clients or "
            "min_size."
        )

    def _unequal(self, labels, n_clients, rng) -> list[np.ndarray]:
        parts = [[] for _ in range(n_clients)]
        for label in np.unique(labels):
            pool = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(_dirichlet(rng, self.rho, n_clients))[:-1] * len(pool)
            for part, piece in zip(parts, np.split(pool, np.round(cuts).astype(int))):
                part.append(piece)
        return [np.concatenate(part) for part in parts]

    def _equal(self, labels, n_clients, rng) -> list[np.ndarray]:
        smallest = len(labels) // n_clients
        if smallest < self.min_size:
            raise ValueError(
                f"Dirichlet(rho={self.rho}) over {n_clients} clients: the smallest client would hold {smallest} of "
                f"{len(labels)} samples, {self.min_size} wanted; lower n_clients or min_size."
            )
        pools = [list(rng.permutation(np.flatnonzero(labels == label))) for label in np.unique(labels)]
        left = np.array([len(pool) for pool in pools])
        ratios = [_dirichlet(rng, self.rho, len(pools)) for _ in range(n_clients)]
        clients = [[] for _ in range(n_clients)]
        for start in range(0, len(labels), n_clients):
            for i in rng.permutation(n_clients)[: len(labels) - start]:
                label = _draw(rng, ratios[i] * (left > 0), left)
                left[label] -= 1
                clients[i].append(pools[label].pop())
        return [np.array(client) for client in clients]


@dataclass(frozen=True)
class DirichletDraws:
    """The scheme of the authors' script: n / n_clients draws a client, each from the client's own Dir(rho, ..., rho).

    A class that is used up is reshuffled and used again, so this is no partition: some samples are held twice, others
    by nobody.
    """

    rho: float

    def __post_init__(self):
        _check_rho(self.rho)

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels, rng = _check_labels(labels, n_clients), numpy_rng(seed, "partition")
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        pools = [[] for _ in classes]
        clients = []
        for _ in range(n_clients):
            drawn = rng.choice(len(classes), len(labels) // n_clients, p=_dirichlet(rng, self.rho, len(classes)))
            for label in set(drawn):
                while len(pools[label]) < np.sum(drawn == label):
                    pools[label] = list(rng.permutation(classes[label])) + pools[label]
            clients.append(np.array([pools[label].pop() for label in drawn]))
        return clients


PARTITIONS = (Dirichlet, DirichletDraws, IID, ByLabel)


def _check_rho(rho: float) -> None:
    checks.number("rho", rho, lambda value: value > 0, "above 0")


def _check_labels(labels, n_clients: int) -> np.ndarray:
    labels = np.asarray(labels)
    if not 1 <= n_clients <= len(labels):
        raise ValueError(
            f"{n_clients} clients were asked for with {len(labels)} samples: expected 1 to {len(labels)} clients."
        )
    return labels


def _dirichlet(rng, rho: float, n: int) -> np.ndarray:
    """One draw of Dir(rho, ..., rho), exact in its limits: equal shares for huge rho, all on one for tiny rho."""
    with np.errstate(all="ignore"):
        shares = rng.dirichlet(np.full(n, rho))
    if np.isfinite(shares).all() and np.isclose(shares.sum(), 1):
        return shares
    return np.full(n, 1 / n) if rho > 1 else np.eye(n)[rng.integers(n)]


def _draw(rng, weights: np.ndarray, fallback: np.ndarray) -> int:
    """An index drawn in proportion to `weights`, or to `fallback` where the weights are all 0."""
    cumulative = np.cumsum(weights if weights.sum() > 0 else fallback)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


# --- mini-batches ---------------------------------------------------------------------------------------------------


def batch_plan(indices: np.ndarray, batch_size: int, epochs: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`epochs` passes over a client's samples in fresh random order; the last batch of a pass may be smaller."""
    passes = [rng.permutation(indices) for _ in range(epochs)]
    return [order[start : start + batch_size] for order in passes for start in range(0, len(order), batch_size)]
