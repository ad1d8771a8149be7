"""FedAvg as a competent user would write it in plain PyTorch: the yardstick of the benchmark."""

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F


class PlainLeNet5(nn.Module):
    """LeNet-5 of the paper without any thought of speed."""

    def __init__(self, image: tuple[int, int, int]):
        super().__init__()
        channels, *pixels = image
        rows, columns = [((n - 4) // 2 - 4) // 2 for n in pixels]
        self.conv1, self.conv2 = nn.Conv2d(channels, 64, 5), nn.Conv2d(64, 64, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(64 * rows * columns, 384), nn.Linear(384, 192), nn.Linear(192, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def rounds(model: nn.Module, images, labels, clients, epochs: int, lr: float, weight_decay: float) -> Iterator[None]:
    """Endless FedAvg with ten clients a round and batches of fifty; yields after each round."""
    while True:
        parts = []
        for client in torch.randperm(len(clients))[:10].tolist():
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=lr, weight_decay=weight_decay)
            for _ in range(epochs):
                for batch in clients[client][torch.randperm(len(clients[client]))].split(50):
                    optimizer.zero_grad()
                    F.cross_entropy(local(images[batch]), labels[batch]).backward()
                    optimizer.step()
            parts.append(local.state_dict())
        model.load_state_dict({name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]})
        yield
