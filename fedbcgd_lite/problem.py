"""What is learned, and how: a reader's own problem, and the protocol of a run. Input is checked here, at the door."""

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import checks
from .flat import Flat
from .rng import global_rng

Batch = tuple[Tensor, Tensor]  # (inputs (B, ...), targets (B, ...))
PRECISIONS = ("full", "tf32", "bf16")
LATER = {"later": True}  # of a field that came after records were kept: at its default it is no part of a run's key


def _unchanged(inputs: Tensor) -> Tensor:
    return inputs


@dataclass(frozen=True)
class Training:
    """The protocol of one run (Section 5.1; the defaults are the paper's where it gives them).

    At least one of `rounds` and `budget_d` says when the run ends. budget_d counts uploaded floats per participating
    client in units of d: after the first round, the run stops when one more like the last would exceed it. The model is
    evaluated at the start, at the end, and whenever `eval_every_d` more was uploaded (CentralisedSGD: every round).
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
    precision: str = "full"  # of the matrix products while training: the model's own, "tf32" (on a GPU) or "bf16"
    clip: float | None = field(default=None, metadata=LATER)  # largest norm of a local step divided by lr

    def __post_init__(self):
        for name in ("rounds", "clients_per_round", "local_epochs", "batch_size"):
            if name != "rounds" or self.rounds is not None:
                checks.whole(name, getattr(self, name), at_least=1)
        for name in ("lr", "lr_decay", "budget_d", "clip"):
            if name not in ("budget_d", "clip") or getattr(self, name) is not None:
                checks.number(name, getattr(self, name), lambda value: value > 0, "above 0")
        for name in ("weight_decay", "eval_every_d"):
            checks.number(name, getattr(self, name), lambda value: value >= 0, "of at least 0")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision = {self.precision!r} was given: expected one of {', '.join(PRECISIONS)}.")
        if self.rounds is None and self.budget_d is None:
            raise ValueError("neither rounds nor budget_d was given: one of them must say when the run ends.")


@dataclass
class Problem:
    """Any module, any tensors, any partition: min_x (1/M) sum_i f_i(x) (Eq. (1)).

    f_i is the mean loss over the samples of client i; clients weigh the same whatever they hold.
    train, test: pairs (inputs (n, ...), targets (n, ...)); `data.tensors` makes one of a torch or torchvision data set.
    transform: what a batch of inputs goes through before the model sees it, such as the normalisation of bytes.
    augment(inputs (B, ...), draws (B, k)): what a training batch goes through before that, a pure function of uniform
    numbers, `augment.DRAWS` = k of them for each sample (augment.py has one for images).
    measure(x (d,)): further columns of each row of measurements, {"gap": f(x) - f*}.
    clients: one array of sample indices per client. loss(output, targets): a mean over the batch.
    Accuracy is reported where the targets are classes.
    """

    model: nn.Module
    train: tuple[Tensor, Tensor]
    clients: list
    test: tuple[Tensor, Tensor] | None = None
    loss: Callable = F.cross_entropy
    device: str = "cpu"
    transform: Callable[[Tensor], Tensor] = _unchanged
    augment: Callable[[Tensor, Tensor], Tensor] | None = None
    measure: Callable[[Tensor], dict[str, float]] | None = None

    def __post_init__(self):
        self.device = resolve_device(self.device)
        self.train = self._pair("train", self.train)
        self.test = None if self.test is None else self._pair("test", self.test)
        self.clients = self._index_arrays(self.clients)
        output = self._check_model()
        self.classifies = not self.train[1].is_floating_point() and output.ndim == 2 and self.train[1].ndim == 1
        if self.classifies:
            self._check_labels(output.shape[1])
        shape = tuple(self.loss(output, self.train[1][:2]).shape)
        if shape not in ((), (1,)):
            raise ValueError(f"loss(output, targets) has shape {shape}: expected one number, the mean over the batch.")

    @property
    def n_clients(self) -> int:
        """M, clients that hold no sample included."""
        return len(self.clients)

    def holders(self) -> np.ndarray:
        """The clients that can be sampled: those that hold at least one sample."""
        return np.flatnonzero([len(client) for client in self.clients])

    def batch(self, rows: Tensor, draws: Tensor | None = None) -> Batch:
        """The training samples at rows (..., B), ready for the model; augmented where draws (..., B, k) are given."""
        inputs, targets = (part.index_select(0, rows.flatten()) for part in self.train)
        if draws is not None:
            inputs = self.augment(inputs, draws.flatten(0, -2))
        inputs = self.transform(inputs)
        return inputs.reshape(*rows.shape, *inputs.shape[1:]), targets.reshape(*rows.shape, *targets.shape[1:])

    def trained(self, run) -> nn.Module:
        """A copy of the model with the parameters that a run (what `simulate` returns) came to."""
        return Flat(self.model, run.blocks, self.loss, self.device).to_module(run.x)

    def _pair(self, name: str, pair) -> tuple[Tensor, Tensor]:
        """(inputs, targets) on the device."""
        if len(pair) != 2:
            raise ValueError(f"{name} holds {len(pair)} parts: expected a pair (inputs, targets) of tensors.")
        for part in pair:
            if not isinstance(part, Tensor):
                raise ValueError(f"{name} holds a {type(part).__name__}: expected a pair (inputs, targets) of tensors.")
        n_inputs, n_targets = map(len, pair)
        if n_inputs != n_targets:
            raise ValueError(
                f"{name} holds {n_inputs} inputs and {n_targets} targets: expected one target for each input."
            )
        if n_inputs == 0:
            raise ValueError(f"{name} holds 0 samples: expected at least one (or None in the place of a test set).")
        return tuple(part.to(self.device) for part in pair)

    def _index_arrays(self, clients) -> list[np.ndarray]:
        """One integer array a client; those without samples are reported."""
        if isinstance(clients, np.ndarray) and clients.ndim < 2:
            raise ValueError("clients is one array of numbers: expected a list with one index array for each client.")
        arrays, n = [np.asarray(client) for client in clients], len(self.train[1])
        for i, client in enumerate(arrays):
            if client.ndim != 1 or (len(client) and not np.issubdtype(client.dtype, np.integer)):
                raise ValueError(
                    f"client {i} holds {client.dtype} values: expected a list of sample indices (integers)."
                )
            if len(client) and not (0 <= client.min() and client.max() < n):
                raise ValueError(
                    f"client {i} holds sample indices from {client.min()} to {client.max()}: expected 0 to {n - 1}; "
                    "the partition belongs to other data."
                )
        empty = [i for i, client in enumerate(arrays) if len(client) == 0]
        if len(empty) == len(arrays):
            raise ValueError(f"{len(arrays)} clients were given and none holds a sample: expected at least one.")
        if empty:
            warnings.warn(f"clients {', '.join(map(str, empty))} hold no sample: they are never sampled.", stacklevel=4)
        return [client.astype(np.int64) for client in arrays]

    def _trial(self, rows) -> tuple[nn.Module, Tensor]:
        """A copy of the model after one forward pass in training mode, and the output; the model is left as it is.

        Along the way: `draws`, whether that pass reads the global random generator (dropout).
        """
        module = copy.deepcopy(self.model).to(self.device).train()
        with global_rng(0, "noise", device=self.device):
            before = self._generator_state()
            output = module(self.batch(torch.as_tensor(rows, device=self.device))[0])
            self.draws = not torch.equal(before, self._generator_state())
        return module, output

    def _generator_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.startswith("cuda") else torch.get_rng_state()

    def _check_model(self) -> Tensor:
        """The output on two samples. Buffers that a forward pass changes would be in no block."""
        dtypes = {p.dtype for p in self.model.parameters() if p.requires_grad}
        if len(dtypes) > 1 or not all(dtype.is_floating_point for dtype in dtypes):
            raise ValueError(
                f"parameters of types {sorted(map(str, dtypes))} were given: expected one floating-point type."
            )
        inputs = self.train[0][:2]
        try:
            module, output = self._trial(range(len(inputs)))
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            raise ValueError(
                f"the model fails on inputs of shape {tuple(inputs.shape)} and type {inputs.dtype} "
                f"({_first_line(error)}): expected training inputs that it accepts."
            ) from error
        before = dict(self.model.named_buffers())
        changed = [name for name, b in module.named_buffers() if not torch.equal(b.cpu(), before[name].cpu())]
        if changed:
            raise ValueError(
                f"the model changes its buffers {', '.join(changed)} while it trains (BatchNorm statistics?): they are "
                "in no block and would never be aggregated; use GroupNorm or track_running_stats=False."
            )
        return output

    def _check_labels(self, n_classes: int) -> None:
        for name, (_, y) in {"train": self.train, "test": self.test or self.train}.items():
            if not (0 <= y.min() and y.max() < n_classes):
                raise ValueError(
                    f"{name} holds labels from {y.min()} to {y.max()}: expected 0 to {n_classes - 1}, as the model has "
                    f"{n_classes} outputs."
                )

    def check_precision(self, precision: str) -> None:
        """Reduced precision is for float32 models: PyTorch would leave float64 as it is and say nothing."""
        kind = next(p.dtype for p in self.model.parameters() if p.requires_grad)
        if precision != "full" and kind != torch.float32:
            raise ValueError(
                f"precision = {precision!r} was given for a model of {kind}: expected a model of torch.float32, or "
                "precision = 'full'."
            )

    def check_last_batches(self, clients: list[np.ndarray], batch_size: int) -> None:
        """A last batch of one sample is trained on like any other; a model that cannot do so is refused beforehand."""
        single = next((i for i, c in enumerate(clients) if len(c) and (len(c) - 1) % batch_size == 0), None)
        if single is None:
            return
        try:
            _, output = self._trial(clients[single][:1])
            self.loss(output, self.train[1][clients[single][:1]]).backward()
        except (ValueError, RuntimeError, IndexError) as error:
            raise ValueError(
                f"client {single} holds {len(clients[single])} samples, so that batches of {batch_size} end with a "
                f"batch of one, on which the model fails ({_first_line(error)}): choose another batch_size."
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def resolve_device(device: str) -> str:
    """The GPU for "auto" when there is one; a device that is named must exist."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"unknown device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:<number>'.")
    if device != "cpu" and int(device.partition(":")[2] or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise ValueError(f"device {device!r} was asked for but PyTorch sees {seen} GPUs here: use 'cpu' or 'auto'.")
    return device
