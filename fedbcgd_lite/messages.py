"""What travels: messages, and the server's mail.

A *message* is a dict of payloads (payloads.py); the server gets it decoded, as a `Letter`. Client numbers and block
numbers are not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .blocks import Slot


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
        return self.sum(key) / len(self.letters)

    def sum(self, key: str) -> Tensor:
        """sum_i content_i[key] over the clients of the round."""
        return _sum([letter.content[key] for letter in self.letters])

    def by_cut(self, key: str) -> Iterator[tuple[str, slice, list[Tensor]]]:
        """("block" or "shared", cut, what the clients sent of it *in this round*) for each cut that somebody sent."""
        sent: dict[tuple[int, int, str], list[Tensor]] = {}
        for letter in self.letters:
            for part, cut in letter.slot.cuts:
                sent.setdefault((cut.start, cut.stop, part), []).append(letter.content[f"{key}.{part}"])
        for (start, stop, part), pieces in sorted(sent.items(), key=lambda item: item[0]):
            yield part, slice(start, stop), pieces

    def block_means(self, key: str) -> Iterator[tuple[slice, Tensor]]:
        """Each cut that somebody sent, with the mean over the clients that sent it *in this round*.

        That is K clients for a block and S for the shared one. A block that nobody sent does not appear.
        """
        for _, cut, pieces in self.by_cut(key):
            yield cut, _sum(pieces) / len(pieces)


def _sum(pieces: list[Tensor]) -> Tensor:
    return sum(pieces[1:], pieces[0])
