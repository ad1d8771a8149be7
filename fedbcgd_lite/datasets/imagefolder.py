"""Image folders on disk: <folder>/train/<class>/*.jpg and <folder>/test/<class>/*.jpg, all images of one size."""

from pathlib import Path

import numpy as np

from . import files


def read(folder: str) -> dict:
    """Images (n, 3, height, width) as bytes and labels (n,), numbered as the sorted classes of train/.

    A relative folder lies in FEDBCGD_DATA (default: ./data).
    """
    kind, root = files.torchvision_datasets().ImageFolder, files.root() / Path(folder).expanduser()
    try:
        parts = {part: kind(root / part) for part in ("train", "test")}
    except FileNotFoundError as error:
        wanted = "train/<class>/*.jpg and test/<class>/*.jpg"
        raise ValueError(f"the image folder {root} cannot be read ({error}): expected {wanted} in it.") from error
    classes = parts["train"].classes
    if classes != parts["test"].classes:
        raise ValueError(f"{root} holds other classes in test/ than in train/: expected the same folders in both.")
    paths = [path for found in parts.values() for path, _ in found.samples]
    images, n = files.images(paths, files.image_size(paths[0]), like=paths[0]), len(parts["train"])
    labels = {f"y_{part}": np.array(found.targets) for part, found in parts.items()}
    return {"x_train": images[:n], "x_test": images[n:], **labels, "n_classes": len(classes)}
