"""ResNet-18 for small images, with GroupNorm in the place of BatchNorm."""

import torch
from torch import nn
from torch.nn import functional as F

from .images import channels_innermost, check_pixels


class ResNet18(nn.Module):
    """ResNet-18 of Table 9: a 3x3 convolution first, no max-pooling, and GroupNorm with two groups everywhere.

    GroupNorm has the parameters of BatchNorm and no running statistics, which would belong to no block.

    width: channels of the first convolution and of layer1 (64 in the paper), an even number; 2, 4 and 8 times the width
    in layer2 to layer4.
    image: shape of one input, (channels, height, width) in pixels.
    """

    def __init__(self, image=(3, 32, 32), n_classes: int = 10, width: int = 64):
        super().__init__()
        check_pixels(image, 5, "ResNet-18")
        if width % 2:
            raise ValueError(f"width = {width} was given: ResNet-18 needs an even one, for its groups of channels.")
        self.conv1 = nn.Conv2d(image[0], width, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, width)
        self.layer1 = nn.Sequential(Residual(width, width), Residual(width, width))
        self.layer2 = nn.Sequential(Residual(width, 2 * width, 2), Residual(2 * width, 2 * width))
        self.layer3 = nn.Sequential(Residual(2 * width, 4 * width, 2), Residual(4 * width, 4 * width))
        self.layer4 = nn.Sequential(Residual(4 * width, 8 * width, 2), Residual(8 * width, 8 * width))
        self.fc = nn.Linear(8 * width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(channels_innermost(x))))  # (B, width, 32, 32) for 32 x 32 pixels
        x = self.layer2(self.layer1(x))  # (B, 2 width, 16, 16)
        x = self.layer4(self.layer3(x))  # (B, 8 width, 4, 4)
        return self.fc(x.mean((2, 3)))  # (B, n_classes)


class Residual(nn.Module):
    """x + two 3x3 convolutions of x, where a 1x1 convolution takes x along when the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, outputs)
        self.shortcut = nn.Identity()
        if (inputs, stride) != (outputs, 1):
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.GroupNorm(2, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))  # (B, outputs, rows / stride, columns / stride)
