"""The contract of a method: frozen hyper-parameters and four pure functions.

    init(x, n_clients)                    -> server state, blank client state
    train(server, client, slot, sgd)      -> out, client      one client; server holds only the `broadcast` keys
    upload(out, client, slot, encode)     -> message, client  what the client sends; encode: tensor -> payload
    aggregate(server, mail)               -> server           sees nothing but decoded messages

State is a dict of tensors with the paper's letters, passed in and returned, never kept: x (d,) the global model,
v (d,) the server momentum, c and c_i (d,) the control variates, M () the number of clients, dx = y - x the displacement
of a client. A client's state is stored between its rounds by the caller.

`sgd(x, mask=None, correction=None)` is local SGD from x (local.py); `sgd.lr` and `sgd.steps` are eta_r and T,
`sgd.gradient(x, batch)` and `sgd.full_gradient(x)` are gradients of the client at x.

What a client must remember of what was *really* sent (c_i += Q(dc), the residual of top-k) it reads from
payload.decode() inside upload: this is why upload returns the client state, and why messages are built there.

A leading client axis may stand before d in train: methods write arithmetic that broadcasts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import checks
from ..blocks import Blocks, Slot
from ..codecs import Identity
from ..messages import Mail

State = dict[str, Tensor]


@dataclass(frozen=True)
class Algorithm:
    """What all methods share: plain local SGD, and the flat vector as one block."""

    broadcast: ClassVar[tuple[str, ...]] = ("x",)  # server keys that travel down
    pooled: ClassVar[bool] = False  # True: one place holds all data and nothing is sent
    blocks: ClassVar = "whole"
    codec = Identity()  # no field: what `encode` of upload does to a tensor

    @property
    def label(self) -> str:
        """The name in legends and in our tables."""
        return type(self).__name__

    @property
    def paper_name(self) -> str:
        """The name in the paper's tables."""
        return self.label

    def layout(self, blocks: Blocks) -> Blocks:
        """The blocks as this method uses them."""
        return blocks

    def nominal_upload_d(self, blocks: Blocks) -> float:
        """The paper's nominal upload of a client and round in units of d (Table 1, last column)."""
        return 1.0

    def passes(self, local_epochs: int) -> int:
        """How often a client's gradient is formed on each of its samples in a round: what a method costs to compute."""
        return local_epochs

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x}, {}

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x = server["x"]  # (d,)
        return {"dx": sgd(x) - x}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        return {"dx": encode(out["dx"])}, client

    def aggregate(self, server: State, mail: Mail) -> State:
        raise NotImplementedError


def count(n_clients: int, x: Tensor) -> Tensor:
    """M as a number of the server's state, in the type and on the device of x."""
    return torch.tensor(float(n_clients), dtype=x.dtype, device=x.device)


def frozen(value):
    """Nested lists as tuples, so that a run can be hashed."""
    return tuple(map(frozen, value)) if isinstance(value, (list, tuple)) else value


def check_momentum(name: str, momentum: float) -> None:
    checks.number(name, momentum, lambda value: 0 <= value < 1, "in [0, 1)")


def check_option(option: int) -> None:
    if option not in (1, 2) or isinstance(option, bool):
        raise ValueError(
            f"option = {option!r} was given: expected 1 (c_i becomes the gradient at x) or 2 (the mean gradient along "
            "the local path)."
        )
