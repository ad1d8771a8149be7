"""What is learned, and how: a reader's own problem, and the protocol of a run. Input is checked here, at the door."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Training:
    """The protocol of one run (Section 5.1; the defaults are the paper's where it gives them).

    At least one of `rounds` and `budget_d` says when the run ends. budget_d counts uploaded floats per participating
    client in units of d; the run stops before it exceeds them. It is evaluated at the start, at the end, and whenever
    `eval_every_d` more was uploaded.
    """

    rounds: int | None = None  # R
    budget_d: float | None = None  # units of d
    clients_per_round: int = 10  # S
    local_epochs: int = 5  # E
    batch_size: int = 50  # samples
    lr: float = 0.1  # eta_0
    lr_decay: float = 0.998  # eta_r = eta_0 * lr_decay^r, r from 0
    weight_decay: float = 1e-3
    eval_every_d: float = 0.5  # units of d

    def __post_init__(self):
        for name in ("rounds", "clients_per_round", "local_epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} = {value} was given: expected a whole number of at least 1.")
        for name in ("lr", "lr_decay", "budget_d"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} = {value} was given: expected a finite number above 0.")
        for name in ("weight_decay", "eval_every_d"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} = {getattr(self, name)} was given: expected a finite number of at least 0.")
        if self.rounds is None and self.budget_d is None:
            raise ValueError("neither rounds nor budget_d was given: one of them must say when the run ends.")


@dataclass
class Problem:
    """Any module, any tensors, any partition: min_x (1/M) sum_i f_i(x) (Eq. (1)).

    f_i is the mean loss over the samples of client i; clients weigh the same whatever they hold.
    train, test: pairs (inputs (n, ...), targets (n, ...)); `data.tensors` makes one of a torch or torchvision data set.
    clients: one array of sample indices per client. loss(output, targets): a mean over the batch.
    Accuracy is reported where the targets are classes.
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
        self._check_clients()
        output = self._check_model()
        self.classifies = not self.train[1].is_floating_point() and output.ndim == 2 and self.train[1].ndim == 1
        if self.classifies:
            self._check_labels(output.shape[1])

    @property
    def n_clients(self) -> int:
        """M, clients that hold no sample included."""
        return len(self.clients)

    def holders(self) -> np.ndarray:
        """The clients that can be sampled: those that hold at least one sample."""
        return np.flatnonzero([len(client) for client in self.clients])

    def _check_clients(self) -> None:
        inputs, targets = map(len, self.train)
        if inputs != targets:
            raise ValueError(f"{inputs} inputs and {targets} targets were given: expected one target for each input.")
        if len(self.holders()) == 0:
            raise ValueError(f"{self.n_clients} clients were given and none holds a sample: expected at least one.")
        for i, client in enumerate(self.clients):
            if len(client) and not (0 <= client.min() and client.max() < targets):
                raise ValueError(
                    f"client {i} holds sample indices from {client.min()} to {client.max()}: expected 0 to "
                    f"{targets - 1}; the partition belongs to other data."
                )
        empty = sorted({*range(self.n_clients)} - {*self.holders().tolist()})
        if empty:
            warnings.warn(f"clients {', '.join(map(str, empty))} hold no sample: they are never sampled.", stacklevel=4)

    def _check_model(self) -> Tensor:
        """One forward pass; buffers that it changes would be in no block. Returns the output."""
        module = copy.deepcopy(self.model).to(self.device).train()
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        with torch.no_grad():
            output = module(self.train[0][:2])
        changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])]
        if changed:
            raise ValueError(
                f"the model changes its buffers {', '.join(changed)} while it trains (BatchNorm statistics?): "
                "they are in no block and would never be aggregated; use GroupNorm or track_running_stats=False."
            )
        return output

    def _check_labels(self, n_classes: int) -> None:
        for _, y in filter(None, (self.train, self.test)):
            if len(y) and not (0 <= y.min() and y.max() < n_classes):
                raise ValueError(
                    f"labels from {y.min()} to {y.max()} were given: expected 0 to {n_classes - 1}, as the model has "
                    f"{n_classes} outputs."
                )

    def check_last_batches(self, batch_size: int) -> None:
        """A last batch of one sample is trained on like any other; a model that cannot do so is refused beforehand."""
        single = [i for i, client in enumerate(self.clients) if len(client) and (len(client) - 1) % batch_size == 0]
        if not single:
            return
        row = self.clients[single[0]][:1]
        module = copy.deepcopy(self.model).to(self.device).train()
        try:
            with torch.no_grad():
                self.loss(module(self.train[0][row]), self.train[1][row])
        except (ValueError, RuntimeError, IndexError) as error:
            raise ValueError(
                f"client {single[0]} holds {len(self.clients[single[0]])} samples, so that batches of {batch_size} end "
                f"with a batch of one, on which the model fails ({error}): choose another batch_size."
            ) from error


def resolve_device(device: str) -> str:
    """The GPU for "auto" when there is one; a device that is named must exist."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"unknown device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'.")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device!r} was asked for but PyTorch sees {torch.cuda.device_count()} GPUs here: use 'cpu' or "
            "'auto'."
        )
    return device
