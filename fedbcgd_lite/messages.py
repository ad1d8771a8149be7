"""What travels: payloads that know their own size, and the server's mail.

A *message* is a dict of payloads. A *payload* has `.bits` and `.floats` (its cost, read off the tensors it holds) and
`.decode()` (the tensor that the receiver reconstructs). Client numbers and block numbers are not counted.

`Dense` is the only payload so far. `Sparse` (values and indices) and `Quantized` (levels, signs and a norm per bucket)
fit the same three names: their `.bits` come from the packed tensors, and `.floats` is bits / 32.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .blocks import Slot


@dataclass(frozen=True)
class Dense:
    """A tensor sent as it is."""

    values: Tensor

    @property
    def floats(self) -> int:
        """Numbers sent."""
        return self.values.numel()

    @property
    def bits(self) -> int:
        """Bits sent: numbers times bits of their type."""
        return self.values.numel() * self.values.element_size() * 8

    def decode(self) -> Tensor:
        return self.values


@dataclass(frozen=True)
class Letter:
    """One client's message, decoded, with the slot that says which cuts of the flat vector it holds."""

    slot: Slot
    content: dict[str, Tensor]


@dataclass(frozen=True)
class Mail:
    """All letters of one round: the only thing of the clients that the server sees."""

    letters: list[Letter]

    def mean(self, key: str) -> Tensor:
        """(1/S) sum_i content_i[key] over the clients that sent it."""
        return _mean([letter.content[key] for letter in self.letters])

    def block_means(self, key: str) -> Iterator[tuple[slice, Tensor]]:
        """Each cut that somebody sent, with the mean over the clients that sent it *in this round*.

        That is K clients for a block and S for the shared one. A block that nobody sent does not appear.
        """
        sent: dict[tuple[int, int], list[Tensor]] = {}
        for letter in self.letters:
            for part, cut in letter.slot.cuts:
                sent.setdefault((cut.start, cut.stop), []).append(letter.content[f"{key}.{part}"])
        for (start, stop), pieces in sorted(sent.items(), key=lambda item: item[0]):
            yield slice(start, stop), _mean(pieces)


def _mean(pieces: list[Tensor]) -> Tensor:
    return sum(pieces[1:], pieces[0]) / len(pieces)
