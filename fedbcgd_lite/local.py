"""Local SGD of one client: y <- y - eta mask * (gradient + wd y + correction(y, batch)), T times."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .flat import Flat


@dataclass
class LocalSGD:
    """What `train` of an algorithm works with: a client's data and its plan of the round, as functions of a vector."""

    flat: Flat
    inputs: Tensor  # (n, ...) the whole training set; batches index into it
    targets: Tensor  # (n, ...)
    samples: np.ndarray  # indices of the client's samples
    batches: list[np.ndarray]  # this round's mini-batches, T of them
    lr: float  # eta_r
    weight_decay: float = 0.0
    loss: float = field(default=float("nan"), init=False)  # mean mini-batch loss along the last call; a measurement

    @property
    def steps(self) -> int:
        """T, the number of local steps."""
        return len(self.batches)

    def __call__(self, x: Tensor, mask: Tensor | None = None, correction: Callable | None = None) -> Tensor:
        """y after T steps from x. mask (d,): what trains; correction(y, batch) (d,): added to the gradient."""
        y, losses = x.clone(), []
        for batch in self.batches:
            g, loss = self._gradient(y, batch)
            g = g + self.weight_decay * y
            if correction is not None:
                g = g + correction(y, batch)
            if mask is not None:
                g = g * mask
            y -= self.lr * g
            losses.append(loss)
        self.loss = torch.stack(losses).mean().item()
        return y

    def gradient(self, y: Tensor, batch: np.ndarray) -> Tensor:
        """Gradient (d,) of the mean loss over one mini-batch at y, weight decay not included."""
        return self._gradient(y, batch)[0]

    def full_gradient(self, x: Tensor) -> Tensor:
        """Gradient (d,) of the client's whole objective f_i at x, weight decay not included."""
        return self.gradient(x, self.samples)

    def _gradient(self, y: Tensor, batch: np.ndarray) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(batch).to(self.inputs.device)
        return self.flat.gradient(y, self.inputs[rows], self.targets[rows])
