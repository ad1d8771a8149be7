"""Tiny ImageNet (Stanford CS231n): 200 classes, 100,000 training and 10,000 validation images of 64 x 64 pixels.

The validation images are the test set, for the labels of the test images were never published.
"""

from pathlib import Path

import numpy as np

from . import files

URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
PIXELS = 64
LAYOUT = ["wnids.txt", "train/<wnid>/images/*.JPEG", "val/val_annotations.txt", "val/images/*.JPEG"]


def read(name: str = "tinyimagenet") -> dict:
    """Images (n, 3, 64, 64) as bytes and labels (n,), numbered in the order of wnids.txt."""
    folder = files.root() / "tiny-imagenet-200"

    def listed(download: bool) -> tuple:
        if download:
            files.torchvision_datasets().utils.download_and_extract_archive(URL, files.root(), md5=MD5)
        wnids = (folder / "wnids.txt").read_text().split()
        return wnids, _training(folder / "train", wnids), _validation(folder / "val", wnids)

    wnids, *parts = files.opened("Tiny ImageNet", URL, folder, LAYOUT, listed)
    arrays = {}
    for part, found in zip(("train", "test"), parts):
        images = files.images([path for path, _ in found], (PIXELS, PIXELS), like="Tiny ImageNet")
        arrays |= {f"x_{part}": images, f"y_{part}": np.array([label for _, label in found])}
    return {**arrays, "n_classes": len(wnids)}


def _training(folder: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    """(path, label) of the training images, class after class."""
    found = {wnid: sorted((folder / wnid / "images").glob("*.JPEG")) for wnid in wnids}
    empty = [wnid for wnid, paths in found.items() if not paths]
    if empty:
        raise ValueError(f"no image in train/{empty[0]}/images")
    return [(path, label) for label, paths in enumerate(found.values()) for path in paths]


def _validation(folder: Path, wnids: list[str]) -> list[tuple[Path, int]]:
    """(path, label) of the validation images, in the order of val_annotations.txt: its lines begin with file, wnid."""
    lines = (folder / "val_annotations.txt").read_text().splitlines()
    labels = {line.split("\t")[0]: wnids.index(line.split("\t")[1]) for line in lines}
    one_sided = labels.keys() ^ {path.name for path in (folder / "images").glob("*.JPEG")}
    if one_sided:
        raise ValueError(f"{min(one_sided)} is only in one of val/images and val/val_annotations.txt")
    return [(folder / "images" / name, label) for name, label in labels.items()]
