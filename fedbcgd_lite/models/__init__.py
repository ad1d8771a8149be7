"""The models of the paper, each made as Model(image, n_classes, width). They import nothing else from the package.

image: shape of one input, (channels, height, width) in pixels.
width: channels of the first convolution, 64 in the paper; everything else scales with it.
"""

from functools import partial

from .images import channels_innermost
from .lenet import LeNet5
from .linear import LogisticRegression
from .resnet import ResNet18
from .vgg import VGG11, VGG19, VGG11Table8
from .vit import ViTBase, ViTSmall

MODELS = {
    "lenet5": LeNet5,
    "vgg11": VGG11,
    "vgg11_table8": VGG11Table8,
    "vgg19": VGG19,
    "resnet18": ResNet18,
    "vit_base": ViTBase,
    "vit_base_pretrained": partial(ViTBase, pretrained=True),
    "vit_small": ViTSmall,
    "logistic": LogisticRegression,
}
LABELS = {  # as the paper's tables write them
    "lenet5": "LeNet-5",
    "vgg11": "VGG-11",
    "vgg11_table8": "VGG-11 (Table 8)",
    "vgg19": "VGG-19",
    "resnet18": "ResNet-18",
    "vit_base": "ViT-Base",
    "vit_base_pretrained": "ViT-Base (pretrained)",
    "vit_small": "ViT-Small",
    "logistic": "logistic regression",
}

__all__ = [
    "LABELS",
    "MODELS",
    "LeNet5",
    "LogisticRegression",
    "ResNet18",
    "VGG11",
    "VGG11Table8",
    "VGG19",
    "ViTBase",
    "ViTSmall",
    "channels_innermost",
]
