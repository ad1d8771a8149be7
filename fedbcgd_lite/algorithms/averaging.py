"""Methods that average whole models: FedAvg, FedAvgM, FedAdam, and SGD without federation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import checks
from ..blocks import Blocks
from ..messages import Mail
from .base import Algorithm, State, check_momentum


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

    @property
    def paper_name(self) -> str:
        return "Centralised SGD"

    def nominal_upload_d(self, blocks: Blocks) -> float:
        return 0.0


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """v = lambda v + mean_S dx; x += v (Hsu et al., 2019)."""

    momentum: float = 0.6  # lambda

    def __post_init__(self):
        check_momentum("momentum", self.momentum)

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x, "v": torch.zeros_like(x)}, {}

    def aggregate(self, server: State, mail: Mail) -> State:
        x, v = server["x"], server["v"]
        v = self.momentum * v + mail.mean("dx")
        return {"x": x + v, "v": v}


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """m = b1 m + (1 - b1) D, w = b2 w + (1 - b2) D^2, x += eta_s m / (sqrt(w) + tau) with D = mean_S dx.

    Reddi et al. (2021), Algorithm 2: m starts at 0, w at tau^2, and nothing is corrected for that start;
    bias_correction=True divides m and w by 1 - b^r, as Adam does.
    """

    server_lr: float = 0.01  # eta_s
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False

    def __post_init__(self):
        for name in ("b1", "b2"):
            check_momentum(name, getattr(self, name))
        for name in ("server_lr", "tau"):
            checks.number(name, getattr(self, name), lambda value: value > 0, "above 0")

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        return {"x": x, "m": torch.zeros_like(x), "w": torch.full_like(x, self.tau**2), "r": x.new_zeros(())}, {}

    def aggregate(self, server: State, mail: Mail) -> State:
        D, r = mail.mean("dx"), server["r"] + 1
        m = self.b1 * server["m"] + (1 - self.b1) * D
        w = self.b2 * server["w"] + (1 - self.b2) * D * D
        m_hat, w_hat = (m / (1 - self.b1**r), w / (1 - self.b2**r)) if self.bias_correction else (m, w)
        x = server["x"] + self.server_lr * m_hat / (w_hat.sqrt() + self.tau)
        return {"x": x, "m": m, "w": w, "r": r}
