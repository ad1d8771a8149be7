"""Parameter blocks: x = [x_(1); ...; x_(N); x_s] (Eq. (2)), and which of them one client uploads.

Parameters are one flat vector x of d floats, laid out block after block with the shared block last, so that a block of
the paper is a Python slice.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .paper_blocks import PAPER


@dataclass(frozen=True)
class Slot:
    """One client's place in one round: its block j and the cuts of the flat vector that it uploads."""

    client: int
    block: int  # j, counted from 0
    cuts: tuple[tuple[str, slice], ...]  # ("block", x_(j)) and ("shared", x_s), empty ones left out

    def mask(self, x: Tensor) -> Tensor:
        """1 on the coordinates of the uploaded cuts and 0 elsewhere, shape (d,) like x."""
        mask = torch.zeros_like(x)
        for _, cut in self.cuts:
            mask[cut] = 1
        return mask


@dataclass(frozen=True)
class Slots:
    """The places of S clients that are trained together."""

    slots: tuple[Slot, ...]

    def mask(self, x: Tensor) -> Tensor:
        """The masks of all clients, shape (S, d)."""
        return torch.stack([slot.mask(x) for slot in self.slots])


@dataclass(frozen=True)
class Blocks:
    """Sizes (floats) of the N exclusive blocks and of the shared block, in the order of the flat vector.

    `order` names the parameters in the order in which they are laid out; empty means the module's own order. A block
    may end inside a parameter: cutting a large layer into row slices needs nothing more.
    """

    sizes: tuple[int, ...]
    shared: int = 0
    order: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "order", tuple(self.order))
        if len(self.sizes) < 1:
            raise ValueError(f"{len(self.sizes)} blocks were given: the number of blocks N must be at least 1.")
        if min(self.sizes) < 0 or self.shared < 0 or self.d == 0:
            raise ValueError(
                f"block sizes {self.sizes} and shared size {self.shared} were given: sizes must be >= 0 and not all 0."
            )

    @property
    def n_blocks(self) -> int:
        return len(self.sizes)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return sum(self.sizes) + self.shared

    @property
    def mean_upload_d(self) -> float:
        """Mean upload of a client in units of d, one client a block: ((d - d_s)/N + d_s)/d."""
        return ((self.d - self.shared) / self.n_blocks + self.shared) / self.d

    @property
    def max_upload_d(self) -> float:
        """Largest upload of a client in units of d: max_j (d_j + d_s)/d; a synchronous round waits for this one."""
        return (max(self.sizes) + self.shared) / self.d

    def slot(self, client: int, block: int) -> Slot:
        """The cuts that `client` uploads when it belongs to group `block`."""
        start = sum(self.sizes[:block])
        cuts = (("block", slice(start, start + self.sizes[block])), ("shared", slice(self.d - self.shared, self.d)))
        return Slot(client, block, tuple((part, cut) for part, cut in cuts if cut.stop > cut.start))

    def without_shared(self) -> "Blocks":
        """The same layout with the shared block appended to block N (the ablation of Figure 5)."""
        return Blocks((*self.sizes[:-1], self.sizes[-1] + self.shared), 0, self.order)


def partition(module: nn.Module, blocks) -> Blocks:
    """Resolve a description of blocks for one module.

    blocks: "paper" (Tables 7-11), "authors" (their script's list) or "balanced5" (blocks of similar size), both for
    LeNet-5; "whole" (one block), "balanced:N" (N equal slices), "layers:N" (N runs of whole layers, the largest as
    small as possible); the last layer is shared in these two. Or `Blocks`, or (groups, shared) with names of parameters
    or submodules: ((("conv",), ("fc1",)), ("fc2",)). Here "fc1[1/3]" is the first third of the floats of fc1, whose
    rows come before its biases; the other two thirds follow it.
    """
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    if not sizes:
        raise ValueError(f"{type(module).__name__} has no trainable parameter: nothing can be learned or sent.")
    if isinstance(blocks, Blocks):
        return _check(blocks, sizes, module)
    if not isinstance(blocks, str):
        return _from_groups(blocks, sizes)
    kind, _, count = blocks.partition(":")
    if kind == "whole" and not count:
        return Blocks((sum(sizes.values()),))
    if blocks in {name for _, name in PAPER}:
        if (type(module).__name__, blocks) not in PAPER:
            raise ValueError(
                f"no {blocks!r} partition is known for {type(module).__name__}: use 'balanced:N', 'layers:N' or a list "
                "of blocks."
            )
        return _from_groups(PAPER[type(module).__name__, blocks], sizes)
    if kind in ("balanced", "layers") and count.removeprefix("-").isdigit():
        return (_balanced if kind == "balanced" else _layers)(sizes, int(count))
    raise ValueError(
        f"unknown blocks {blocks!r}: expected 'paper', 'authors', 'balanced5', 'whole', 'balanced:N', 'layers:N', "
        "Blocks(...) or (groups, shared)."
    )


def _check(blocks: Blocks, sizes: dict, module: nn.Module) -> Blocks:
    if blocks.d != sum(sizes.values()):
        raise ValueError(
            f"the blocks hold {blocks.d} floats but {type(module).__name__} has {sum(sizes.values())} parameters: "
            "sizes and shared must add up to that."
        )
    if blocks.order and sorted(blocks.order) != sorted(sizes):
        raise ValueError(
            f"Blocks.order must name every parameter once: given {blocks.order}, expected some order of {tuple(sizes)}."
        )
    return blocks


def _from_groups(groups_and_shared, sizes: dict) -> Blocks:
    """Blocks from names; each parameter must be in exactly one block."""
    try:
        groups, shared = groups_and_shared
        groups = [*map(_names, groups), _names(shared)]
    except (TypeError, ValueError):
        raise ValueError(
            f"blocks {groups_and_shared!r} are not (groups, shared): expected for example ((('conv',), ('fc1',)), "
            "('fc2',))."
        ) from None
    if len(groups) < 2:
        raise ValueError("0 blocks were given: the number of blocks N must be at least 1.")
    _check_slices([entry for group in groups for entry in group])
    chosen = [[_expand(entry, sizes) for entry in group] for group in groups]
    order = [name for group in chosen for names, _ in group for name in names]
    repeated = sorted({name for name in order if order.count(name) > 1})
    missing = [name for name in sizes if name not in order]
    if repeated:
        raise ValueError(f"the block list repeats {', '.join(repeated)}: every parameter belongs to exactly one block.")
    if missing:
        raise ValueError(f"the block list misses {', '.join(missing)}: every parameter belongs to exactly one block.")
    *counts, d_s = [sum(count for _, count in group) for group in chosen]
    return Blocks(tuple(counts), d_s, tuple(order))


def _names(group) -> tuple[str, ...]:
    if isinstance(group, str):
        raise TypeError
    return tuple(group)


def _expand(entry: str, sizes: dict) -> tuple[list[str], int]:
    """(parameters that begin with this entry of a block, its floats); a later slice of a layer begins none."""
    layer, i, n = _slice(entry)
    names = [name for name in sizes if name == layer or name.startswith(f"{layer}.")]
    if not names:
        raise ValueError(
            f"the block list names {layer!r}, which is no parameter of the model: expected names among "
            f"{', '.join(sizes)}."
        )
    d = sum(sizes[name] for name in names)
    return names if i == 1 else [], d * i // n - d * (i - 1) // n


def _slice(entry: str) -> tuple[str, int, int]:
    """(layer, i, n) of "layer[i/n]"; an entry without brackets is the only slice of its layer."""
    match = re.fullmatch(r"(.+)\[(\d+)/([1-9]\d*)\]", str(entry))
    return (match[1], int(match[2]), int(match[3])) if match else (entry, 1, 1)


def _check_slices(entries: list[str]) -> None:
    """All slices of a layer, from the first to the last, one behind the other: the flat vector keeps it together."""
    for place, entry in enumerate(entries):
        layer, i, n = _slice(entry)
        expected, first = [f"{layer}[{k}/{n}]" for k in range(1, n + 1)], max(place - i + 1, 0)
        if entry != layer and (entry not in expected or entries[first : first + n] != expected):
            raise ValueError(
                f"the block list names {entry!r}: expected all slices of {layer} in order, from {expected[0]} to "
                f"{expected[-1]}, with nothing between them."
            )


def _split_off_last_layer(sizes: dict) -> tuple[dict, int]:
    """(parameters before the last layer, size of the last layer); with a single layer nothing is shared."""
    last = next(reversed(sizes)).rpartition(".")[0]
    body = {name: size for name, size in sizes.items() if name.rpartition(".")[0] != last}
    return (body, sum(sizes.values()) - sum(body.values())) if body else (sizes, 0)


def _ordered(body: dict, sizes: dict) -> tuple[str, ...]:
    return (*body, *(name for name in sizes if name not in body))


def _balanced(sizes: dict, n_blocks: int) -> Blocks:
    body, d_s = _split_off_last_layer(sizes)
    d = sum(body.values())
    _check_count(n_blocks, d, "parameters before the last layer")
    ends = [d * j // n_blocks for j in range(n_blocks + 1)]
    return Blocks(tuple(b - a for a, b in zip(ends, ends[1:])), d_s, _ordered(body, sizes))


def _layers(sizes: dict, n_blocks: int) -> Blocks:
    """Whole layers in order, cut into N runs whose largest is as small as possible (bisection on that largest size)."""
    body, d_s = _split_off_last_layer(sizes)
    layers: dict[str, int] = {}
    for name, size in body.items():
        layers[name.rpartition(".")[0]] = layers.get(name.rpartition(".")[0], 0) + size
    counts = list(layers.values())
    _check_count(n_blocks, len(counts), "layers before the last one")
    low, high = max(counts), sum(counts)
    while low < high:
        limit = (low + high) // 2
        low, high = (low, limit) if len(_runs(counts, limit, 1)) <= n_blocks else (limit + 1, high)
    order = tuple(name for layer in layers for name in body if name.rpartition(".")[0] == layer)
    return Blocks(tuple(_runs(counts, low, n_blocks)), d_s, _ordered(dict.fromkeys(order), sizes))


def _runs(counts: list[int], limit: int, at_least: int) -> list[int]:
    """Greedy runs of at most `limit`, closed early when only enough layers are left to reach `at_least` runs."""
    runs = [0]
    for i, count in enumerate(counts):
        if runs[-1] and (runs[-1] + count > limit or len(runs) + len(counts) - i <= at_least):
            runs.append(0)
        runs[-1] += count
    return runs


def _check_count(n_blocks: int, most: int, what: str) -> None:
    if not 1 <= n_blocks <= most:
        raise ValueError(f"N = {n_blocks} blocks were asked for: expected 1 to {most}, the number of {what}.")
