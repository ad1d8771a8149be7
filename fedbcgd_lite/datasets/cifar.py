"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 pixels in colour."""

import warnings

import numpy as np

from . import files

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def read(name: str) -> dict:
    """Images (n, 3, 32, 32) as bytes and labels (n,) of "cifar10" or "cifar100", with the checksums of torchvision."""
    kind = getattr(files.torchvision_datasets(), name.upper())
    names = [file for file, _ in kind.train_list + kind.test_list] + [kind.meta["filename"]]

    def parts(download: bool) -> list:
        with warnings.catch_warnings():  # NumPy 2.4.0 to 2.4.4 warn of pickles as old as these
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            return [kind(files.root(), train, download=download) for train in (True, False)]

    found = files.opened(TITLES[name], kind.url, files.root() / kind.base_folder, names, parts)
    arrays = {}
    for part, split in zip(("train", "test"), found):
        arrays |= {f"x_{part}": split.data.transpose(0, 3, 1, 2), f"y_{part}": np.array(split.targets)}
    return {**arrays, "n_classes": len(found[0].classes)}
