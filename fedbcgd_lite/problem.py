"""What is learned, and how: a reader's own problem, and the protocol of a run. Input is checked here, at the door."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .blocks import Blocks
from .flat import Flat



@dataclass(frozen=True)
class Training:
    """The protocol of one run (Section 5.1; the defaults are the paper's where it gives them)."""

    rounds: int | None = None  # R; at least one of rounds and budget_d is needed
    budget_d: float | None = None  # uploaded floats per participating client, in units of d; the run stops before it exceeds them
    clients_per_round: int = 10  # S
    local_epochs: int = 5  # E
    batch_size: int = 50
    lr: float = 0.1  # eta_0
    lr_decay: float = 0.998  # eta_r = eta_0 * lr_decay^r, r from 0
    weight_decay: float = 1e-3
    eval_every_d: float = 0.5  # evaluate whenever this much more was uploaded, in units of d (and at the start and at the end)

    def __post_init__(self):
        whole = {"rounds": self.rounds, "clients_per_round": self.clients_per_round, "local_epochs": self.local_epochs, "batch_size": self.batch_size}
        for name, value in whole.items():
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} = {value} was given: expected a whole number of at least 1.")
        positive = {"lr": self.lr, "lr_decay": self.lr_decay, "budget_d": self.budget_d}
        for name, value in positive.items():
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} = {value} was given: expected a finite number above 0.")
        for name in ("weight_decay", "eval_every_d"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} = {getattr(self, name)} was given: expected a finite number of at least 0.")
        if self.rounds is None and self.budget_d is None:
            raise ValueError("neither rounds nor budget_d was given: one of them must say when the run ends.")


@dataclass
class Problem:
    """Any module, any tensors, any partition: min_x (1/M) sum_i f_i(x), f_i the mean loss over client i's samples (Eq. (1)).

    train, test: pairs (inputs (n, ...), targets (n, ...)); a torch or torchvision data set becomes one with `data.tensors`.
    clients: one index array per client. loss(output, targets): a mean over the batch. Accuracy is reported for integer targets.
    """

    model: nn.Module
    train: tuple[Tensor, Tensor]
    clients: list
    test: tuple[Tensor, Tensor] | None = None
    loss: Callable = F.cross_entropy
    device: str = "cpu"

    def __post_init__(self):
        self.device = resolve_device(self.device)
        self.train = tuple(t.to(self.device) for t in self.train)
        self.test = None if self.test is None else tuple(t.to(self.device) for t in self.test)
        self.clients = [np.asarray(client, dtype=np.int64) for client in self.clients]
        self.empty = [i for i, client in enumerate(self.clients) if len(client) == 0]  # never sampled
        self._check_clients()
        self._check_model()

    @property
    def n_clients(self) -> int:
        """M, clients that hold no sample included."""
        return len(self.clients)

    def holders(self) -> np.ndarray:
        """The clients that can be sampled: those that hold at least one sample."""
        return np.array([i for i, client in enumerate(self.clients) if len(client)])

    def _check_clients(self) -> None:
        n = len(self.train[1])
        if len(self.train[0]) != n:
            raise ValueError(f"{len(self.train[0])} inputs and {n} targets were given: expected one target for each input.")
        if len(self.empty) == len(self.clients):
            raise ValueError(f"{len(self.clients)} clients were given and none holds a sample: expected at least one non-empty index array.")
        outside = [i for i, client in enumerate(self.clients) if len(client) and not (0 <= client.min() and client.max() < n)]
        if outside:
            raise ValueError(f"client {outside[0]} holds sample indices outside 0..{n - 1}: the partition belongs to other data.")
        if self.empty:
            warnings.warn(f"clients {', '.join(map(str, self.empty))} hold no sample and are never sampled.", stacklevel=4)

    def _check_model(self) -> None:
        """One forward pass: buffers that it changes belong to no block, and labels must be classes of its output."""
        flat = Flat(self.model, Blocks((1,)), self.loss, self.device)
        before = {name: buffer.clone() for name, buffer in flat.module.named_buffers()}
        with torch.no_grad():
            output = flat.module.train()(self.train[0][:2])
        changed = [name for name, buffer in flat.module.named_buffers() if not torch.equal(buffer, before[name])]
        if changed:
            raise ValueError(
                f"the model changes its buffers {', '.join(changed)} while it trains (BatchNorm's running statistics?): they are in no block and would never be aggregated; "
                "use GroupNorm or track_running_stats=False."
            )
        self.classifies = not self.train[1].is_floating_point() and output.ndim == 2 and self.train[1].ndim == 1
        if self.classifies:
            for _, y in filter(None, (self.train, self.test)):
                if len(y) and not (0 <= y.min() and y.max() < output.shape[1]):
                    raise ValueError(f"labels from {y.min()} to {y.max()} were given: the model has {output.shape[1]} outputs, expected 0 to {output.shape[1] - 1}.")

    def check_last_batches(self, batch_size: int) -> None:
        """A last batch of one sample is trained on like any other; a model that cannot is refused before the first round."""
        single = [i for i, client in enumerate(self.clients) if len(client) % batch_size == 1]
        if not single:
            return
        flat = Flat(self.model, Blocks((1,)), self.loss, self.device)
        row = self.clients[single[0]][:1]
        try:
            with torch.no_grad():
                self.loss(flat.module.train()(self.train[0][row]), self.train[1][row])
        except (ValueError, RuntimeError, IndexError) as error:
            raise ValueError(
                f"client {single[0]} holds {len(self.clients[single[0]])} samples, so batches of {batch_size} end with a batch of one, on which the model fails "
                f"({error}): choose another batch_size."
            ) from error


def resolve_device(device: str) -> str:
    """"auto" is the GPU when there is one; a named device must exist."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"unknown device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'.")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} was asked for but PyTorch sees {torch.cuda.device_count()} GPUs here: use 'cpu' or 'auto'.")
    return device
