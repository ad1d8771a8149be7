"""The paper's methods: FedBCGD (Section 3.1) and FedBCGD+ (Section 3.2, Appendix E)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import checks
from ..blocks import Blocks, Slot
from ..messages import Mail
from .base import Algorithm, State, check_momentum, check_option, count, frozen


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
        check_momentum("momentum", self.momentum)
        object.__setattr__(self, "blocks", frozen(self.blocks))

    @property
    def label(self) -> str:
        """FedBCGD, with the ablations in brackets."""
        ablations = {"freezing": self.freeze, "no shared block": not self.shared, "no momentum": self.momentum == 0}
        return _named("FedBCGD", ablations)

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


@dataclass(frozen=True)
class FedBCGDPlus(Algorithm):
    """FedBCGD with SVRG and control variates: g = grad f_i(y; zeta) - grad f_i(x; zeta) + a_i + c - c_i.

    Section 3.2 and Appendix E with the signs and scales under which the method converges: a_i = grad f_i(x), a client
    overwrites only the blocks of c_i that it sends, and c += (1/M) sum dc in every block, so that c = mean_i c_i.
    option 1: c_i becomes a_i (Appendix E); option 2: the mean gradient along the local path, as in SCAFFOLD.

    What the paper prints instead, for comparison: sign=-1 is Eq. (4), shared_factor=1/N is Eq. (5), block_factor=K is
    Appendix E; full=True overwrites all of c_i, which the text leaves open.
    """

    blocks: str | tuple | Blocks = "paper"
    momentum: float = 0.6  # lambda
    option: int = 1
    svrg: bool = True
    sign: int = 1
    block_factor: float = 1.0
    shared_factor: float = 1.0
    full: bool = False
    broadcast: ClassVar[tuple[str, ...]] = ("x", "c")

    def __post_init__(self):
        check_momentum("momentum", self.momentum)
        check_option(self.option)
        if self.sign not in (1, -1):
            raise ValueError(f"sign = {self.sign!r} was given: expected 1, or -1 for Eq. (4) as printed.")
        for name in ("block_factor", "shared_factor"):
            checks.number(name, getattr(self, name), lambda value: value > 0, "above 0")
        object.__setattr__(self, "blocks", frozen(self.blocks))

    @property
    def label(self) -> str:
        """FedBCGD+, with what differs from the default in brackets."""
        readings = {
            "Eq. (4)": self.sign == -1,
            "Eq. (5)": self.shared_factor != 1,
            "Appendix E": self.block_factor != 1,
            "full c_i": self.full,
            "option II": self.option == 2,
            "no SVRG": not self.svrg,
            "no momentum": self.momentum == 0,
        }
        return _named("FedBCGD+", readings)

    @property
    def paper_name(self) -> str:
        return "FedBCGD+"

    def nominal_upload_d(self, blocks: Blocks) -> float:
        return 2 / blocks.n_blocks

    def passes(self, local_epochs: int) -> int:
        return local_epochs * (1 + self.svrg) + (self.svrg or self.option == 1)

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        server = {"x": x, "v": torch.zeros_like(x), "c": torch.zeros_like(x), "M": count(n_clients, x)}
        return server, {"c_i": torch.zeros_like(x)}

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x, c, c_i = server["x"], server["c"], client["c_i"]  # (d,)
        a_i = sgd.full_gradient(x) if self.svrg or self.option == 1 else None
        fixed = self.sign * (c - c_i + a_i if self.svrg else c - c_i)  # the part of Eq. (4) without zeta

        def correction(y: Tensor, batch) -> Tensor:
            return torch.sub(fixed, sgd.gradient(x, batch), alpha=self.sign) if self.svrg else fixed

        y = sgd(x, correction=correction)
        new = a_i if self.option == 1 else c_i - c + (x - y) / (sgd.steps * sgd.lr)
        return {"dx": y - x, "dc": new - c_i}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        message = {f"{key}.{part}": encode(out[key][cut]) for key in ("dx", "dc") for part, cut in slot.cuts}
        c_i = client["c_i"] + out["dc"] if self.full else client["c_i"].clone()
        for part, cut in slot.cuts:
            c_i[cut] = client["c_i"][cut] + message[f"dc.{part}"].decode()  # what was sent, so that c = mean c_i
        return message, {"c_i": c_i}

    def aggregate(self, server: State, mail: Mail) -> State:
        c, M = server["c"].clone(), server["M"]
        for part, j, pieces in mail.by_cut("dc"):  # Eq. (5)
            c[j] += (self.shared_factor if part == "shared" else self.block_factor) / M * sum(pieces)
        return {**server, **FedBCGD.aggregate(self, server, mail), "c": c}  # x and v exactly as there


@dataclass(frozen=True)
class FedBCGDPlusScript(FedBCGDPlus):
    """FedBCGD+ as the script does it that the authors published, to show what becomes of it.

    Variates are kept multiplied by the step size and applied without it; a client overwrites all of c_i and sends
    c_i - c; the server takes the first mean as it is and adds S/M times every later one. No SVRG, option 2.
    """

    option: int = 2
    svrg: bool = False
    full: bool = True

    @property
    def label(self) -> str:
        return "FedBCGD+ (the authors' script)"

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        server, client = super().init(x, n_clients)
        return {**server, "begun": x.new_zeros(())}, client

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        x, c, c_i = server["x"], server["c"], client["c_i"]  # (d,)
        y = sgd(x, correction=lambda y, batch: (c - c_i) / sgd.lr)
        new = c_i - c + (x - y) / sgd.steps
        return {"dx": y - x, "dc": new - c, "c_i": new}, client

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        message = {f"{key}.{part}": encode(out[key][cut]) for key in ("dx", "dc") for part, cut in slot.cuts}
        return message, {"c_i": out["c_i"]}

    def aggregate(self, server: State, mail: Mail) -> State:
        c, rate = server["c"].clone(), len(mail.letters) / server["M"]
        for j, D in mail.block_means("dc"):
            c[j] = c[j] + rate * D if server["begun"] else D
        moved = FedBCGD.aggregate(self, server, mail)
        return {**server, **moved, "c": c, "begun": torch.ones_like(server["begun"])}


def _named(name: str, remarks: dict[str, bool]) -> str:
    present = [remark for remark, holds in remarks.items() if holds]
    return f"{name} ({', '.join(present)})" if present else name
