"""Methods that correct the drift of local steps with state kept by the clients: SCAFFOLD and FedDC."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import checks
from ..blocks import Blocks, Slot
from ..messages import Mail
from .base import Algorithm, State, check_option, count


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """y <- y - eta (g - c_i + c); x += mean_S dx, c += (1/M) sum_S dc (Karimireddy et al., 2020, Algorithm 1).

    option 1: c_i becomes grad f_i(x), one more pass over the client's data; option 2: the mean gradient along the local
    path, c_i - c + (x - y) / (T eta).
    """

    option: int = 2
    broadcast: ClassVar[tuple[str, ...]] = ("x", "c")

    def __post_init__(self):
        check_option(self.option)

    @property
    def label(self) -> str:
        return "SCAFFOLD" if self.option == 2 else "SCAFFOLD (option I)"

    @property
    def paper_name(self) -> str:
        return "SCAFFOLD"

    def nominal_upload_d(self, blocks: Blocks) -> float:
        return 2.0

    def passes(self, local_epochs: int) -> int:
        return local_epochs + (self.option == 1)

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x, "c": torch.zeros_like(x), "M": count(n_clients, x)}, {"c_i": torch.zeros_like(x)}

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x, c, c_i = server["x"], server["c"], client["c_i"]  # (d,)
        drift = c - c_i
        y = sgd(x, correction=lambda y, batch: drift)
        new = sgd.full_gradient(x) if self.option == 1 else (x - y) / (sgd.steps * sgd.lr) - drift
        return {"dx": y - x, "dc": new - c_i}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        message = {"dx": encode(out["dx"]), "dc": encode(out["dc"])}
        return message, {"c_i": client["c_i"] + message["dc"].decode()}  # what was sent, so that c = mean c_i

    def aggregate(self, server: State, mail: Mail) -> State:
        c = server["c"] + mail.sum("dc") / server["M"]
        return {**server, "x": server["x"] + mail.mean("dx"), "c": c}


@dataclass(frozen=True)
class FedDC(Algorithm):
    """Drift h_i is learned and added back: y <- y - eta (g + a (y - (x - h_i)) + gbar - g_i) (Gao et al., 2022).

    x = mean_S y_i + (1/M) sum_i h_i over *all* clients, whose mean the server keeps as h.
    """

    penalty: float = 0.01  # a
    broadcast: ClassVar[tuple[str, ...]] = ("x", "g")

    def __post_init__(self):
        checks.number("penalty", self.penalty, lambda value: value >= 0, "of at least 0")

    def nominal_upload_d(self, blocks: Blocks) -> float:
        return 2.0

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        server = {"x": x, "h": torch.zeros_like(x), "g": torch.zeros_like(x), "M": count(n_clients, x)}
        return server, {"h_i": torch.zeros_like(x), "g_i": torch.zeros_like(x)}

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x, g, h_i, g_i = server["x"], server["g"], client["h_i"], client["g_i"]  # (d,)
        fixed = g - g_i - self.penalty * (x - h_i)
        y = sgd(x, correction=lambda y, batch: torch.add(fixed, y, alpha=self.penalty))
        return {"dx": y - x, "dg": (x - y) / (sgd.steps * sgd.lr) - g}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        message = {"dx": encode(out["dx"]), "dg": encode(out["dg"])}
        dx, dg = (payload.decode() for payload in message.values())
        return message, {"h_i": client["h_i"] + dx, "g_i": client["g_i"] + dg}

    def aggregate(self, server: State, mail: Mail) -> State:
        h = server["h"] + mail.sum("dx") / server["M"]
        g = server["g"] + mail.sum("dg") / server["M"]
        return {**server, "x": server["x"] + mail.mean("dx") + h, "h": h, "g": g}
