"""Where data sets lie, how they get there, and how their images are read."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np


def root() -> Path:
    """The folder of all data sets: FEDBCGD_DATA, or ./data."""
    return Path(os.environ.get("FEDBCGD_DATA", "data")).expanduser()


def torchvision_datasets():
    """The readers of torchvision, a library that the package can do without."""
    try:
        from torchvision import datasets
    except ImportError as error:
        raise ValueError(
            "torchvision is not there: expected for data sets in files, so pip install torchvision."
        ) from error
    return datasets


def opened(title: str, url: str, folder: Path, names: list[str], read: Callable):
    """What `read(download)` returns: it downloads where `folder` holds none of the files `names`, and reads otherwise.

    It raises a ValueError with the folder, the files and their source where either fails.
    """
    absent = not any((folder / name).exists() for name in names)
    if absent:
        print(f"{title} is not in {folder}: downloading it from {url}.", file=sys.stderr)
    try:
        return read(absent)
    except Exception as error:  # damaged files and broken connections raise errors of many kinds
        happened = "is not there and could not be downloaded" if absent else "is incomplete or damaged"
        again = "" if absent else ", or no file at all so that they are downloaded again"
        raise ValueError(
            f"{title} in {folder} {happened} ({type(error).__name__}: {error}): "
            f"expected there {', '.join(names)} as they are in {url}{again}."
        ) from error


def images(paths: list[Path], size: tuple[int, int], like: str) -> np.ndarray:
    """Image files as bytes (n, 3, height, width), grey ones in three equal channels.

    All must be of `size`, (width, height) in pixels, as `like` is.
    """
    found = np.empty((len(paths), 3, *reversed(size)), np.uint8)

    def fill(i: int) -> None:
        found[i] = _image(paths[i], size, like)

    joblib.Parallel(n_jobs=-1, backend="threading")(joblib.delayed(fill)(i) for i in range(len(paths)))
    return found


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image file in pixels."""
    return _open(path).size


def _image(path: Path, size: tuple[int, int], like: str) -> np.ndarray:
    """One image file as bytes (3, height, width)."""
    image = _open(path)
    if image.size != size:
        found, wanted = ("{} x {}".format(*pixels) for pixels in (image.size, size))
        raise ValueError(f"{path} has {found} pixels: expected {wanted} as {like} has, for images must be of one size.")
    return np.asarray(image).transpose(2, 0, 1)


def _open(path: Path):
    """One image file as a PIL image of three channels."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise ValueError(f"{path} is no image that can be read ({error}): replace it or take it away.") from error
