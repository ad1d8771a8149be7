"""LeNet-5 as Table 7 counts it."""

import torch
from torch import nn
from torch.nn import functional as F

from .images import channels_innermost, check_pixels


class LeNet5(nn.Module):
    """LeNet-5 of Table 7: two 5x5 convolutions, three linear layers, ReLU, max-pooling by 2.

    Pooling stands before ReLU: the two commute, gradients included, and ReLU then works on a quarter of the numbers.

    width: channels of the convolutions (64 in the paper); the hidden layers keep the paper's ratio, 6 and 3 times the
    width.
    image: shape of one input, (channels, height, width) in pixels.
    """

    def __init__(self, image=(3, 32, 32), n_classes: int = 10, width: int = 64):
        super().__init__()
        check_pixels(image, 16, "LeNet-5")
        channels, *pixels = image
        rows, columns = [((n - 4) // 2 - 4) // 2 for n in pixels]
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
