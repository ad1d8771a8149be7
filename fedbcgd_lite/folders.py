"""Image folders on disk: <folder>/train/<class>/*.jpg and <folder>/test/<class>/*.jpg, all images of one size."""

import os
from pathlib import Path

import joblib
import numpy as np


def read(folder: str) -> dict[str, np.ndarray]:
    """Images (n, 3, height, width) as bytes and labels (n,), numbered as the sorted classes of train/.

    A relative folder lies in FEDBCGD_DATA (default: ./data).
    """
    from torchvision.datasets import ImageFolder

    root = Path(os.environ.get("FEDBCGD_DATA", "data")) / Path(folder).expanduser()
    try:
        parts = {part: ImageFolder(root / part) for part in ("train", "test")}
    except FileNotFoundError as error:
        wanted = "train/<class>/*.jpg and test/<class>/*.jpg"
        raise ValueError(f"the image folder {root} cannot be read ({error}): expected {wanted} in it.") from error
    if parts["train"].classes != parts["test"].classes:
        raise ValueError(f"{root} holds other classes in test/ than in train/: expected the same folders in both.")
    paths = {part: [path for path, _ in found.samples] for part, found in parts.items()}
    pixels = joblib.Parallel(n_jobs=-1, backend="threading")(map(joblib.delayed(_pixels), sum(paths.values(), [])))
    _check_sizes(pixels, sum(paths.values(), []))
    n = len(paths["train"])
    labels = {f"y_{part}": np.array(found.targets) for part, found in parts.items()}
    return {"x_train": np.stack(pixels[:n]), "x_test": np.stack(pixels[n:]), **labels}


def _pixels(path: str) -> np.ndarray:
    """One image as bytes (3, height, width)."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except OSError as error:
        raise ValueError(f"{path} is no image that can be read ({error}): replace it or take it away.") from error


def _check_sizes(pixels: list[np.ndarray], paths: list[str]) -> None:
    for image, path in zip(pixels, paths):
        if image.shape != pixels[0].shape:
            sizes = ["{2} x {1}".format(*shape) for shape in (image.shape, pixels[0].shape)]
            raise ValueError(f"{path} has {sizes[0]} pixels, {paths[0]} has {sizes[1]}: expected images of one size.")
