"""Data sets as tensors in memory, and their mini-batches."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .augment import Augment
from .datasets import cifar, emnist, imagefolder, tinyimagenet
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


def _embedded(name: str) -> dict:
    """A data set that is part of the package: images (n, 28, 28) get their one channel."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: (file[key][:, None] if key.startswith("x") else file[key]) for key in file.files}
    return {**arrays, "n_classes": int(arrays["y_train"].max()) + 1}


DATASETS = {  # name: reader of the name, or of what stands after its colon
    "fmnist12k": _embedded,
    "glyphs100": _embedded,
    **dict.fromkeys(["cifar10", "cifar100"], cifar.read),
    **dict.fromkeys(["emnist-balanced", "emnist-byclass"], emnist.read),
    "tinyimagenet": tinyimagenet.read,
    "imagefolder": imagefolder.read,
}
LABELS = {  # as tables and figures write them
    "fmnist12k": "Fashion-MNIST-12k",
    "glyphs100": "Glyphs-100",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "emnist-balanced": "EMNIST",
    "emnist-byclass": "EMNIST (byclass)",
    "tinyimagenet": "Tiny ImageNet",
}

SHAPES = {  # image (channels, height, width), classes and training samples of what is not read just to be counted
    "fmnist12k": ((1, 28, 28), 10, 10_000),
    "glyphs100": ((1, 28, 28), 100, 10_000),
    "cifar10": ((3, 32, 32), 10, 50_000),
    "cifar100": ((3, 32, 32), 100, 50_000),
    "emnist-balanced": ((1, 28, 28), 47, 112_800),
    "emnist-byclass": ((1, 28, 28), 62, 697_932),
    "tinyimagenet": ((3, 64, 64), 200, 100_000),
}


def shape(dataset: str) -> tuple[tuple[int, int, int], int, int]:
    """(image, classes, training samples) of a data set; only an image folder is read for it."""
    check_name(dataset)
    if dataset in SHAPES:
        return SHAPES[dataset]
    loaded = load(dataset)
    return tuple(loaded.x_train.shape[1:]), loaded.n_classes, len(loaded.y_train)


def label(dataset: str) -> str:
    """The name in tables and figures; an image folder goes by its own."""
    return LABELS.get(dataset) or Path(dataset.partition(":")[2]).name


def check_name(dataset: str) -> None:
    """Refuse what is neither the name of a data set nor "imagefolder:<folder>"."""
    kind, colon, folder = str(dataset).partition(":")
    if kind not in DATASETS or bool(folder) != (kind == "imagefolder") or bool(colon) != bool(folder):
        names = ", ".join(repr(name) for name in LABELS)
        raise ValueError(f"unknown dataset {dataset!r}: expected {names} or 'imagefolder:<folder>'.")


def augmentation(dataset: str) -> Augment:
    """The crops and flips that suit a data set: writing, and clothes by their rule, are not mirrored."""
    check_name(dataset)
    kind = dataset.partition(":")[0]
    if kind in ("cifar10", "cifar100", "tinyimagenet", "imagefolder"):
        return Augment(pad=8 if kind == "tinyimagenet" else 4, flip=True)
    return Augment(pad=2, flip=False)


@lru_cache(maxsize=1)
def load(dataset: str) -> Data:
    """A data set by name as tensors; its mean and std are those of all training pixels, from exact integers."""
    check_name(dataset)
    kind, _, folder = dataset.partition(":")
    raw = DATASETS[kind](folder or kind)
    n_classes = raw.pop("n_classes")
    _check(dataset, raw, n_classes)
    found = {key: torch.from_numpy(values) for key, values in raw.items()}
    found |= {key: found[key].long() for key in ("y_train", "y_test")}
    return Data(**found, n_classes=n_classes, normalise=normalisation(raw["x_train"]))


def _check(dataset: str, raw: dict[str, np.ndarray], n_classes: int) -> None:
    """Refuse images without a label of their own, and labels of no class."""
    for part in ("train", "test"):
        images, labels = len(raw[f"x_{part}"]), raw[f"y_{part}"]
        if images != len(labels) or images == 0 or labels.min() < 0 or labels.max() >= n_classes:
            span = f" from {labels.min()} to {labels.max()}" if len(labels) else ""
            raise ValueError(
                f"{dataset} has {images} {part} images and {len(labels)} labels{span}: expected a label from 0 to "
                f"{n_classes - 1} for each image, so put its original files there."
            )


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


# --- mini-batches ---------------------------------------------------------------------------------------------------


def batch_plan(indices: np.ndarray, batch_size: int, epochs: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`epochs` passes over a client's samples in fresh random order; the last batch of a pass may be smaller."""
    passes = [rng.permutation(indices) for _ in range(epochs)]
    return [order[start : start + batch_size] for order in passes for start in range(0, len(order), batch_size)]
