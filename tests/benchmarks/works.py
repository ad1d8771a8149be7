"""The works that are timed: one round of FedAvg with 100 clients, 10 a round, and batches of fifty."""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import fedbcgd_lite as fb
from fedbcgd_lite.data import Normalise
from fedbcgd_lite.models import LeNet5, LogisticRegression


@dataclass(frozen=True)
class Work:
    """A model on random images."""

    name: str
    what: str
    image: tuple[int, int, int]
    samples: int  # of a client
    epochs: int
    weight_decay: float
    turns: int  # measured turns of each engine
    rounds: int  # of a turn

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        return 10 * self.epochs * self.samples // 50

    @property
    def training(self) -> dict:
        """Its protocol."""
        return {"local_epochs": self.epochs, "lr": 0.01, "weight_decay": self.weight_decay}

    def images(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random bytes and labels."""
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (100 * self.samples, *self.image), dtype=np.uint8)
        return torch.from_numpy(images), torch.from_numpy(rng.integers(0, 10, len(images)))

    def model(self) -> nn.Module:
        """As the companion has it; ResNet-18 is torchvision's with GroupNorm and a first layer for small images."""
        if self.name == "ResNet-18":
            from torchvision.models import resnet18

            model = resnet18(num_classes=10, norm_layer=lambda channels: nn.GroupNorm(32, channels))
            model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
            return model
        return (LogisticRegression if self.name == "W1" else LeNet5)(self.image)

    def problem(self, device: str = "cpu") -> fb.Problem:
        """For `simulate`."""
        scale = torch.full((self.image[0], 1, 1), 1 / 73.9)
        transform = Normalise(scale, -127.5 * scale).to(device)
        clients = np.split(np.arange(100 * self.samples), 100)
        return fb.Problem(self.model(), self.images(), clients, device=device, transform=transform)


WORKS = [
    Work("W1", "linear 784-10, 100 samples a client, 1 epoch", (1, 28, 28), 100, 1, 0.0, turns=21, rounds=20),
    Work("W2", "LeNet-5 (64 channels), 28 x 28, 100 samples a client, 5 epochs", (1, 28, 28), 100, 5, 1e-3, 7, 1),
    Work("W3", "LeNet-5 (64 channels), 32 x 32, 500 samples a client, 5 epochs", (3, 32, 32), 500, 5, 1e-3, 3, 1),
]
RESNET = Work("ResNet-18", "GroupNorm, 32 x 32, 100 samples a client, 1 epoch", (3, 32, 32), 100, 1, 1e-3, 1, 1)


def chosen(parser: argparse.ArgumentParser, names: str, works: list[Work]) -> list[Work]:
    """Works by their names, separated by commas and in that order."""
    known = {work.name: work for work in works}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        parser.error(f"unknown work {', '.join(unknown)}: expected some of {', '.join(known)}, separated by commas")
    return [known[name] for name in names.split(",")]
