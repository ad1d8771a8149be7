"""VGG-11 and VGG-19 without normalisation layers, as Tables 8 and 10 count them."""

import torch
from torch import nn
from torch.nn import functional as F

from .images import channels_innermost, check_pixels

P = "pooling"


class VGG(nn.Module):
    """Rows of 3x3 convolutions with ReLU and max-pooling by 2, then linear layers with ReLU.

    Pooling rounds up (28 -> 14 -> 7 -> 4 -> 2 -> 1) and stands before ReLU, with which it commutes. All layers but the
    last begin with He's normal values: from PyTorch's own, too small for so many layers, training does not start.

    plan: channels of the convolutions in units of the width, and P where images are pooled.
    hidden: outputs of the linear layers before the last one.
    """

    def __init__(self, image, n_classes: int, width: int, plan: tuple, hidden: tuple[int, ...]):
        super().__init__()
        poolings = plan.count(P)
        check_pixels(image, 2 ** (poolings - 1) + 1, type(self).__name__)
        channels, *pixels = image
        self.convolutions, self.linears = [], [f"fc{i + 1}" for i in range(len(hidden) + 1)]  # names, in their order
        for step, following in zip(plan, (*plan[1:], None)):
            if step == P:
                continue
            name = f"conv{len(self.convolutions) + 1}"
            self.add_module(name, nn.Conv2d(channels, step * width, 3, padding=1))
            self.convolutions.append((name, following == P))
            channels = step * width
        rows, columns = [-(-n // 2**poolings) for n in pixels]
        widths = channels * rows * columns, *hidden, n_classes
        for name, inputs, outputs in zip(self.linears, widths, widths[1:]):
            self.add_module(name, nn.Linear(inputs, outputs))
        for layer in [*self.children()][:-1]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = channels_innermost(x)
        for name, pooled in self.convolutions:
            x = self.get_submodule(name)(x)
            x = F.relu(F.max_pool2d(x, 2, ceil_mode=True) if pooled else x)  # (B, channels, rows, columns)
        x = x.flatten(1)
        for name in self.linears[:-1]:
            x = F.relu(self.get_submodule(name)(x))  # (B, hidden)
        return self.get_submodule(self.linears[-1])(x)  # (B, n_classes)


VGG11_PLAN = (1, P, 2, P, 4, 4, P, 8, 8, P, 8, 8, P)
VGG19_PLAN = (1, 1, P, 2, 2, P, 4, 4, 4, 4, P, 8, 8, 8, 8, P, 8, 8, 8, 8)  # without the last pooling


class VGG11(VGG):
    """VGG-11 with the heads of the authors' script at width 64: 512-100-C up to 10 classes, 512-256-C above."""

    def __init__(self, image=(3, 32, 32), n_classes: int = 10, width: int = 64):
        hidden = -(-100 * width // 64) if n_classes <= 10 else 4 * width
        super().__init__(image, n_classes, width, VGG11_PLAN, (hidden,))


class VGG11Table8(VGG):
    """VGG-11 with the head that Table 8 comes closest to at width 64: 512-2048-1024-C."""

    def __init__(self, image=(3, 32, 32), n_classes: int = 100, width: int = 64):
        super().__init__(image, n_classes, width, VGG11_PLAN, (32 * width, 16 * width))


class VGG19(VGG):
    """VGG-19 of Table 10: no pooling behind the last convolutions, and at width 64 the head 2048-512-256-C."""

    def __init__(self, image=(3, 32, 32), n_classes: int = 100, width: int = 64):
        super().__init__(image, n_classes, width, VGG19_PLAN, (8 * width, 4 * width))
