"""Any method with compressed messages: top-k, FedPAQ, and QSGD on top of FedBCGD and FedBCGD+ (Table 6)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..blocks import Blocks, Slot
from ..codecs import QSGD, Codec, TopK
from ..messages import Mail
from .averaging import FedAvg
from .base import Algorithm, State

NAMES = {(TopK, FedAvg): "TOP-k", (QSGD, FedAvg): "FedPAQ"}  # combinations that have a name of their own


@dataclass(frozen=True)
class Compressed(Algorithm):
    """A method whose clients send codec(tensor) in the place of every tensor.

    With error feedback (top-k; Aji and Heafield, 2017; Stich et al., 2018) a client keeps the residual e_i of what it
    could not send of dx and adds it the next time: u = dx + e_i, e_i = u - s. Other tensors need none: a control
    variate moves by what was sent, and what is missing is in its next difference.
    """

    algorithm: Algorithm
    codec: Codec = field()

    def __post_init__(self):
        for name, kind in (("algorithm", Algorithm), ("codec", Codec)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r} was given: expected as in Compressed(FedAvg(), QSGD())."
                )
        if isinstance(self.algorithm, Compressed) or self.algorithm.pooled:
            raise ValueError(
                f"algorithm = {self.algorithm!r} was given: expected a method that sends, and whose messages are not "
                "compressed already."
            )

    @property
    def broadcast(self) -> tuple[str, ...]:
        return self.algorithm.broadcast

    @property
    def blocks(self):
        return self.algorithm.blocks

    @property
    def label(self) -> str:
        own = NAMES.get((type(self.codec), type(self.algorithm)))
        return own or f"{type(self.codec).__name__}+{self.algorithm.label}"

    @property
    def paper_name(self) -> str:
        own = NAMES.get((type(self.codec), type(self.algorithm)))
        return own or f"{type(self.codec).__name__}+{self.algorithm.paper_name}"

    def layout(self, blocks: Blocks) -> Blocks:
        return self.algorithm.layout(blocks)

    def nominal_upload_d(self, blocks: Blocks) -> float:
        """The method's own nominal count times the size of what the codec makes of d floats."""
        return self.algorithm.nominal_upload_d(blocks) * self.codec.floats_per_float(blocks.d)

    def passes(self, local_epochs: int) -> int:
        return self.algorithm.passes(local_epochs)

    def init(self, x: Tensor, n_clients: int) -> tuple[State, State]:
        server, client = self.algorithm.init(x, n_clients)
        return server, ({**client, "e_i": torch.zeros_like(x)} if self.codec.error_feedback else client)

    def train(self, server: State, client: State, slot: Slot, sgd) -> tuple[State, State]:
        residual, own = _split(client)
        out, own = self.algorithm.train(server, own, slot, sgd)
        return out, {**own, **residual}

    def upload(self, out: State, client: State, slot: Slot, encode: Callable) -> tuple[dict, State]:
        residual, own = _split(client)
        if not residual:
            return self.algorithm.upload(out, own, slot, encode)
        u = out["dx"] + residual["e_i"]  # (d,)
        message, own = self.algorithm.upload({**out, "dx": u}, own, slot, encode)
        e_i = residual["e_i"].clone()
        for part, cut in slot.cuts:
            s = message["dx" if "dx" in message else f"dx.{part}"].decode()
            e_i[cut] = u[cut] - s
        return message, {**own, "e_i": e_i}

    def aggregate(self, server: State, mail: Mail) -> State:
        return self.algorithm.aggregate(server, mail)


def _split(client: State) -> tuple[State, State]:
    """(the residual, the method's own state)."""
    return {k: v for k, v in client.items() if k == "e_i"}, {k: v for k, v in client.items() if k != "e_i"}
