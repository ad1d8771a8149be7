"""The methods, in the paper's order, as frozen hyper-parameters with four pure functions.

    init(x, n_clients)                    -> server state, blank client state
    train(server, client, slot, sgd)      -> out, client      one client; server holds only the `broadcast` keys
    upload(out, client, slot, encode)     -> message, client  what the client sends; encode: tensor -> payload
    aggregate(server, mail)               -> server           sees nothing but decoded messages

State is a dict of tensors with the paper's letters, passed in and returned, never kept: x (d,) the global model,
v (d,) the server momentum, dx = y - x the displacement of a client. A client's state is stored between its rounds by
the caller. `sgd(x, mask=None, correction=None)` is local SGD from x (local.py); `sgd.lr`, `sgd.steps` are eta_r and T.

How the methods to come fit these four signatures, without a change:

SCAFFOLD      broadcast = ("x", "c"); a client keeps c_i. train: y = sgd(x, correction=lambda y, batch: c - c_i), then
              option II from sgd.lr and sgd.steps, or option I from sgd.full_gradient(x); out has dx and dc.
              upload stores c_i + dc. aggregate: c += (1/M) sum dc; init puts M into the server state.
FedBCGD+      the same, with dx and dc cut by slot.cuts and c_i overwritten on those cuts only (so that c = mean c_i).
              SVRG is a correction that also sees the batch: lambda y, batch: a_i - sgd.gradient(x, batch) + c - c_i,
              with a_i = sgd.full_gradient(x).
FedDC         a client keeps h_i and g_i; correction = lambda y, batch: a (y - (x - h_i)) + gbar - g_i depends on y.
FedAdam       aggregate alone: m and w are server state.
Compressed    wraps an algorithm and gives its upload a lossy `encode`. What a client must remember of what was *really*
              sent (c_i += Q(dc); the residual e_i of top-k) it reads from payload.decode() inside upload: this is why
              upload returns the client state, and why messages are built there and not by the caller.
many clients  a leading client axis may stand before d in train: methods write arithmetic that broadcasts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from . import checks
from .blocks import Blocks, Slot
from .messages import Mail

State = dict[str, Tensor]


@dataclass(frozen=True)
class Algorithm:
    """What all methods share: plain local SGD, and the flat vector as one block."""

    broadcast: ClassVar[tuple[str, ...]] = ("x",)  # server keys that travel down
    pooled: ClassVar[bool] = False  # True: one place holds all data and nothing is sent
    blocks: ClassVar = "whole"

    @property
    def label(self) -> str:
        """The name in tables and legends."""
        return type(self).__name__

    def layout(self, blocks: Blocks) -> Blocks:
        """The blocks as this method uses them."""
        return blocks

    def nominal_upload_d(self, blocks: Blocks) -> float:
        """The paper's nominal upload of a client and round in units of d (Table 1, last column)."""
        return 1.0

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x}, {}

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x = server["x"]  # (d,)
        return {"dx": sgd(x) - x}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        return {"dx": encode(out["dx"])}, client

    def aggregate(self, server: State, mail: Mail) -> State:
        raise NotImplementedError


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """x += mean_S dx (McMahan et al., 2017)."""

    def aggregate(self, server: State, mail: Mail) -> State:
        return {"x": server["x"] + mail.mean("dx")}


@dataclass(frozen=True)
class CentralisedSGD(FedAvg):
    """SGD on the pooled data, the reference without federation: one client that holds everything, and nothing is sent.

    A round is `local_epochs` passes over all training data.
    """

    pooled: ClassVar[bool] = True

    def nominal_upload_d(self, blocks: Blocks) -> float:
        return 0.0


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """v = lambda v + mean_S dx; x += v (Hsu et al., 2019)."""

    momentum: float = 0.6  # lambda

    def __post_init__(self):
        _check_momentum(self.momentum)

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x, "v": torch.zeros_like(x)}, {}

    def aggregate(self, server: State, mail: Mail) -> State:
        x, v = server["x"], server["v"]
        v = self.momentum * v + mail.mean("dx")
        return {"x": x + v, "v": v}


@dataclass(frozen=True)
class FedBCGD(Algorithm):
    """Clients train everything and send block j and the shared block (Section 3.1).

    The ablations of Figure 5 are argument values: freeze=True trains only what is sent, shared=False puts the shared
    block into block N, momentum=0 averages. blocks: see `blocks.partition`.
    """

    blocks: str | tuple | Blocks = "paper"
    momentum: float = 0.6  # lambda
    shared: bool = True
    freeze: bool = False

    def __post_init__(self):
        _check_momentum(self.momentum)
        object.__setattr__(self, "blocks", _frozen(self.blocks))

    @property
    def label(self) -> str:
        """FedBCGD, with the ablations in brackets."""
        ablations = {"freezing": self.freeze, "no shared block": not self.shared, "no momentum": self.momentum == 0}
        named = [name for name, present in ablations.items() if present]
        return f"FedBCGD ({', '.join(named)})" if named else "FedBCGD"

    def layout(self, blocks: Blocks) -> Blocks:
        return blocks if self.shared else blocks.without_shared()

    def nominal_upload_d(self, blocks: Blocks) -> float:
        return 1 / blocks.n_blocks

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x, "v": torch.zeros_like(x)}, {}

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x = server["x"]  # (d,)
        y = sgd(x, mask=slot.mask(x) if self.freeze else None)  # all coordinates, unless frozen
        return {"dx": y - x}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        return {f"dx.{part}": encode(out["dx"][cut]) for part, cut in slot.cuts}, client

    def aggregate(self, server: State, mail: Mail) -> State:
        x, v = server["x"].clone(), server["v"].clone()
        for j, D in mail.block_means("dx"):  # lines 20-22 for the blocks, 24-26 for the shared one
            v[j] = self.momentum * v[j] + D
            x[j] += v[j]
        return {"x": x, "v": v}


def _frozen(value):
    """Nested lists as tuples, so that a run can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _check_momentum(momentum: float) -> None:
    checks.number("momentum", momentum, lambda value: 0 <= value < 1, "in [0, 1)")
