"""Draw Glyphs-100: 100 training and 20 test images of each of 100 characters, from fonts that matplotlib ships.

    python -m fedbcgd_lite.datasets.draw_glyphs100

A stand-in for CIFAR-100 that needs no network: as many classes, as few images of each, and every image has a face, a
rotation, a scale, a shear, a shift and noise of its own.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from fedbcgd_lite.rng import numpy_rng

SEED = 2024
PER_CLASS = {"train": 100, "test": 20}
TARGET = Path(__file__).with_name("glyphs100.npz")

# Class k is the k-th character. Where several have one shape (O o 0, I l |, S s, X x, Phi phi ...), only one is here.
CHARACTERS = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZabdefghimnqrtΓΔΘΛΞΠΣΦΨΩγδζλμξσωЖЯДЮБЧЭШЫИЦ!#$%&*+/<=>?@[{(~£€§¶©±÷"
FACES = [
    *(f"DejaVu{kind}{style}" for kind in ("Sans", "SansMono") for style in ("", "-Oblique", "-Bold", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Italic", "-Bold", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Italic", "Bol", "BolIta")),
]

PIXELS, FINER = 28, 2  # images are drawn this many times finer, and averaged
FONT_SIZE = 20  # pixels of the image, before scaling
ROTATION, SHEAR, SHIFT = 30, 0.3, 3  # at most, either way: degrees, pixels a pixel, pixels
SCALES = 0.75, 1.25
NOISE, LEVELS = 60, 16  # standard deviation, of 255; grey levels that are kept


def path(face: str) -> str:
    """The font file of a face."""
    return f"{matplotlib.get_data_path()}/fonts/ttf/{face}.ttf"


def faces_with(character: str) -> list[str]:
    """The faces that have a glyph for a character."""
    return [face for face in FACES if FT2Font(path(face)).get_char_index(ord(character))]


def glyph(character: str, face: str) -> Image.Image:
    """A white character in the middle of a black square of FINER * PIXELS pixels."""
    font = ImageFont.truetype(path(face), FINER * FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = font.getbbox(character)
    middle = FINER * PIXELS / 2
    image = Image.new("L", (FINER * PIXELS, FINER * PIXELS))
    ImageDraw.Draw(image).text((middle - (left + right) / 2, middle - (top + bottom) / 2), character, 255, font)
    return image


def moved(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The image rotated, scaled, sheared and shifted at random about its middle, with PIXELS pixels a side."""
    angle = np.radians(rng.uniform(-ROTATION, ROTATION))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    back = np.linalg.inv(turn @ [[1, rng.uniform(-SHEAR, SHEAR)], [0, 1]] * rng.uniform(*SCALES))  # where a pixel was
    shift = FINER * rng.uniform(-SHIFT, SHIFT, 2)
    middle = FINER * PIXELS / 2
    a, b = np.column_stack([back, middle - back @ (middle + shift)])
    return image.transform(image.size, Image.Transform.AFFINE, (*a, *b), Image.Resampling.BILINEAR).reduce(FINER)


def noisy(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same bytes (n, height, width) with Gaussian noise, in LEVELS grey levels so that the file stays small."""
    step = 255 // (LEVELS - 1)
    levels = (images + rng.normal(0, NOISE, images.shape)) / step
    return (levels.round().clip(0, LEVELS - 1) * step).astype(np.uint8)


def draw() -> dict[str, np.ndarray]:
    """The arrays of the package file: x_train (10000, 28, 28), y_train (10000,), x_test (2000, 28, 28), y_test (2000,),
    all uint8.
    """
    glyphs = [[glyph(character, face) for face in faces_with(character)] for character in CHARACTERS]
    arrays = {}
    for stream, (name, per_class) in enumerate(PER_CLASS.items(), start=2):  # 0 and 1 drew Fashion-MNIST-12k
        rng = numpy_rng(SEED, "draw", stream)
        y = rng.permutation(np.repeat(np.arange(len(glyphs)), per_class)).astype(np.uint8)
        x = np.stack([np.asarray(moved(glyphs[label][rng.integers(len(glyphs[label]))], rng)) for label in y])
        arrays |= {f"x_{name}": noisy(x, rng), f"y_{name}": y}
    return arrays


if __name__ == "__main__":
    np.savez_compressed(TARGET, **draw())
    print(f"wrote {TARGET} ({TARGET.stat().st_size / 1e6:.1f} MB)")
