"""The models of the paper, each with a `width` that scales it down. They import nothing from the package."""

import torch
from torch import nn
from torch.nn import functional as F


class LeNet5(nn.Module):
    """LeNet-5 of Table 7: two 5x5 convolutions, three linear layers, ReLU, max-pooling by 2.

    Pooling stands before ReLU: the two commute, gradients included, and ReLU then works on a quarter of the numbers.

    width: channels of the convolutions (64 in the paper); the hidden layers keep the paper's ratio, 6 and 3 times the
    width.
    image: shape of one input, (channels, height, width) in pixels.
    """

    def __init__(self, image=(3, 32, 32), n_classes: int = 10, width: int = 64):
        super().__init__()
        channels, *pixels = image
        rows, columns = [((n - 4) // 2 - 4) // 2 for n in pixels]
        if min(rows, columns) < 1:
            raise ValueError(f"images of {pixels[0]} x {pixels[1]} pixels were given: LeNet-5 needs at least 16 x 16.")
        self.conv1 = nn.Conv2d(channels, width, 5)
        self.conv2 = nn.Conv2d(width, width, 5)
        self.fc1 = nn.Linear(width * rows * columns, 6 * width)
        self.fc2 = nn.Linear(6 * width, 3 * width)
        self.fc3 = nn.Linear(3 * width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = channels_innermost(x)
        x = F.relu(F.max_pool2d(self.conv1(x), 2))  # (B, width, 14, 14) for 32 x 32 pixels
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # (B, width, 5, 5)
        x = F.relu(self.fc1(x.flatten(1)))  # (B, 6 width)
        return self.fc3(F.relu(self.fc2(x)))  # (B, n_classes)


class LogisticRegression(nn.Module):
    """Multinomial logistic regression on flattened inputs; `width` is accepted and has no effect."""

    def __init__(self, image=(1, 28, 28), n_classes: int = 10, width: int = 1):
        super().__init__()
        self.linear = nn.Linear(torch.Size(image).numel(), n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def channels_innermost(x: torch.Tensor) -> torch.Tensor:
    """The same images (B, C, H, W), in memory as (B, H, W, C) on a CPU, where convolutions are faster that way.

    The view says so even for one channel, where both orders are the same bytes and torch would assume the other one.
    """
    if x.device.type != "cpu":
        return x
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).flatten(1).view(n, h, w, c).permute(0, 3, 1, 2)


MODELS = {"lenet5": LeNet5, "logistic": LogisticRegression}
LABELS = {"lenet5": "LeNet-5", "logistic": "logistic regression"}  # as the paper's tables write them
