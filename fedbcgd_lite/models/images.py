"""What the models of images have in common: the order of their pixels in memory, and a check of their size."""

import torch


def channels_innermost(x: torch.Tensor) -> torch.Tensor:
    """The same images (B, C, H, W), in memory as (B, H, W, C) on a CPU, where convolutions are faster that way.

    The view says so even for one channel, where both orders are the same bytes and torch would assume the other one.
    """
    if x.device.type != "cpu":
        return x
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).flatten(1).view(n, h, w, c).permute(0, 3, 1, 2)


def check_pixels(image: tuple[int, int, int], least: int, name: str) -> None:
    """Refuse images with fewer than `least` rows or columns."""
    _, rows, columns = image
    if min(rows, columns) < least:
        raise ValueError(f"images of {rows} x {columns} pixels were given: {name} needs at least {least} x {least}.")
