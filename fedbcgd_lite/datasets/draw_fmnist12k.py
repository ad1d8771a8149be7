"""Draw Fashion-MNIST-12k from the original Fashion-MNIST files: 1,000 training and 200 test images of each class.

    python -m fedbcgd_lite.datasets.draw_fmnist12k FOLDER

FOLDER holds the four original files (train-images-idx3-ubyte.gz, ...), for example /usr/share/datasets/fashion-mnist of
the Debian
package dataset-fashion-mnist. Training images come from the original training set and test images from the original
test set.
"""

import gzip
import sys
from pathlib import Path

import numpy as np

from fedbcgd_lite.rng import numpy_rng

SEED = 2024
PER_CLASS = {"train": 1000, "t10k": 200}
TARGET = Path(__file__).with_name("fmnist12k.npz")


def read_idx(path: Path) -> np.ndarray:
    """One idx file as an array of uint8: 4 bytes of magic (the last one counts the axes), 4 bytes an axis, then the
    data.
    """
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def draw(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of the package file: x_train (10000, 28, 28), y_train (10000,), x_test (2000, 28, 28), y_test (2000,),
    all uint8.
    """
    arrays = {}
    for stream, (split, name) in enumerate([("train", "train"), ("t10k", "test")]):
        x, y = (read_idx(folder / f"{split}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
        rng = numpy_rng(SEED, "draw", stream)
        chosen = [rng.choice(np.flatnonzero(y == label), PER_CLASS[split], replace=False) for label in range(10)]
        chosen = rng.permutation(np.concatenate(chosen))
        arrays |= {f"x_{name}": x[chosen], f"y_{name}": y[chosen]}
    return arrays


if __name__ == "__main__":
    np.savez_compressed(TARGET, **draw(Path(sys.argv[1])))
    print(f"wrote {TARGET} ({TARGET.stat().st_size / 1e6:.1f} MB)")
