"""Local SGD of a client: y <- y - eta clip(mask * (gradient + wd y + correction(y, batch))), T times."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .problem import Batch, Problem


@dataclass(frozen=True)
class Draws:
    """Uniform numbers in [0, 1) for the augmentation of one client in one round, a few for each sample."""

    samples: Tensor  # (n, k) for the samples that the client holds
    steps: list[Tensor]  # T tensors (B, k) for its mini-batches


@dataclass
class LocalSGD:
    """What `train` of an algorithm works with: a client's data and its plan of the round, as functions of a vector.

    For S clients that are trained together, rows, vectors and losses have a leading axis of length S. A batch is a pair
    (inputs, targets), made once a step: a correction that needs a gradient on it sees the tensors that the step saw.
    """

    problem: Problem
    gradient_of: Callable  # (x, inputs, targets) -> (gradient (d,), loss ()), as Flat.gradient
    rows: list[Tensor]  # this round's mini-batches (B,), T of them, as rows of the training set
    all_rows: Tensor  # (n,) the rows that the client holds
    lr: float  # eta_r
    weight_decay: float = 0.0
    clip: float | None = None  # largest norm of a step divided by eta, the same for every method
    draws: Draws | None = None  # what augmentation draws, where there is any
    loss: Tensor | None = field(default=None, init=False)  # mean mini-batch loss along the last call; a measurement

    @property
    def steps(self) -> int:
        """T, the number of local steps."""
        return len(self.rows)

    def __call__(self, x: Tensor, mask: Tensor | None = None, correction: Callable | None = None) -> Tensor:
        """y after T steps from x. mask (d,): what trains; correction(y, batch) (d,): added to the gradient."""
        y = x.expand(*self.all_rows.shape[:-1], -1).clone()
        losses = []
        for t, rows in enumerate(self.rows):
            batch = self.problem.batch(rows, self.draws and self.draws.steps[t])
            g, loss = self.gradient_of(y, *batch)
            g.add_(y, alpha=self.weight_decay)
            if correction is not None:
                g += correction(y, batch)
            if mask is not None:
                g *= mask
            if self.clip is not None:
                g *= (self.clip / g.norm(dim=-1, keepdim=True)).clamp(max=1)
            y.add_(g, alpha=-self.lr)
            losses.append(loss)
        self.loss = torch.stack(losses).mean(0)
        return y

    def gradient(self, x: Tensor, batch: Batch) -> Tensor:
        """Gradient (d,) of the mean loss over one mini-batch at x, weight decay not included."""
        return self.gradient_of(x.expand(*self.all_rows.shape[:-1], -1), *batch)[0]

    def full_gradient(self, x: Tensor) -> Tensor:
        """Gradient (d,) of the client's whole objective f_i at x, weight decay not included.

        Formed in pieces of the size of a mini-batch, so that it needs no more memory than a step. Where images are
        augmented, each sample is drawn once more, so that its expectation is that of a mini-batch's gradient.
        """
        n = self.all_rows.shape[-1]
        size = max(rows.shape[-1] for rows in self.rows)
        rows = self.all_rows.split(size, -1)
        draws = self.draws.samples.split(size, -2) if self.draws else [None] * len(rows)
        pieces = zip(rows, draws)
        return sum(self.gradient(x, self.problem.batch(r, u)) * (r.shape[-1] / n) for r, u in pieces)
