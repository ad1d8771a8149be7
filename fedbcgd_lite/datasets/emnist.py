"""EMNIST (Cohen et al., 2017): handwritten digits and letters of 28 x 28 pixels.

balanced: 47 classes, 112,800 training and 18,800 test images; byclass: 62 classes, 697,932 and 116,323 images.
"""

import numpy as np

from . import files


def read(name: str) -> dict:
    """Upright images (n, 1, 28, 28) as bytes and labels (n,) of "emnist-balanced" or "emnist-byclass"."""
    kind, split = files.torchvision_datasets().EMNIST, name.removeprefix("emnist-")
    names = [
        f"emnist-{split}-{part}-{what}-ubyte" for part in ("train", "test") for what in ("images-idx3", "labels-idx1")
    ]

    def parts(download: bool) -> list:
        return [kind(files.root(), split, train=train, download=download) for train in (True, False)]

    found = files.opened(f"EMNIST ({split})", kind.url, files.root() / "EMNIST" / "raw", names, parts)
    arrays = {}
    for part, half in zip(("train", "test"), found):
        upright = half.data.numpy().swapaxes(1, 2)  # the files hold columns where others hold rows
        arrays |= {f"x_{part}": np.ascontiguousarray(upright)[:, None], f"y_{part}": half.targets.numpy()}
    return {**arrays, "n_classes": len(found[0].classes)}
