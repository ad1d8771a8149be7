"""What happens to images before they are normalised, as tensor operations on the device that they are on."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import checks


@dataclass(frozen=True)
class Augment:
    """A random crop of the image with `pad` black pixels on each side, and with `flip` a mirror image half the time."""

    pad: int = 4
    flip: bool = True

    DRAWS: ClassVar[int] = 3  # numbers that an image takes: row, column, flip

    def __post_init__(self):
        checks.whole("pad", self.pad, at_least=0)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images (B, C, H, W) of any type, each changed as its own row of draws (B, 3) in [0, 1) says."""
        height, width = images.shape[-2:]
        offsets = (draws[:, :2] * (2 * self.pad + 1)).long()
        row, column = offsets.clamp(max=2 * self.pad).T[..., None]  # (B, 1) each; a draw just below 1 rounds up
        rows = row + torch.arange(height, device=images.device)  # (B, H) in the padded image
        columns = column + torch.arange(width, device=images.device)  # (B, W)
        if self.flip:
            columns = torch.where(draws[:, 2:] < 0.5, columns.flip(1), columns)
        padded = F.pad(images, [self.pad] * 4).permute(0, 2, 3, 1)  # (B, H + 2 pad, W + 2 pad, C)
        image = torch.arange(len(images), device=images.device)[:, None, None]
        return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Resize:
    """Images with `resize` pixels on the shorter side, and of these the `crop` x `crop` pixels in the middle."""

    resize: int
    crop: int

    def __post_init__(self):
        checks.whole("resize", self.resize, at_least=1)
        checks.whole("crop", self.crop, at_least=1)
        if self.crop > self.resize:
            raise ValueError(f"crop = {self.crop} was given: expected at most resize = {self.resize} pixels.")

    def __call__(self, images: Tensor) -> Tensor:
        """Floats (B, C, H, W) as floats (B, C, crop, crop), interpolated bilinearly with antialiasing."""
        height, width = images.shape[-2:]
        shorter = min(height, width)
        size = [round(pixels * self.resize / shorter) for pixels in (height, width)]
        images = F.interpolate(images, size, mode="bilinear", antialias=True)
        top, left = ((pixels - self.crop) // 2 for pixels in size)
        return images[:, :, top : top + self.crop, left : left + self.crop]
