"""Codecs: how a client's tensor becomes a payload.

A codec is a frozen dataclass with `encode(u, rng)`, where u is (n,) and rng a NumPy generator (chances are drawn on the
CPU for every device, so that a result does not depend on it), and `floats_per_float(n)`, the payload of n float32
numbers in units of n floats. A codec never hides a NaN or an infinity: what it sends then decodes to one, too.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from . import checks
from .payloads import Dense, Quantized, Sparse, precise

MOST_LEVELS = 2**23 - 1  # 24 bits a number, the precision of a float32


@dataclass(frozen=True)
class Codec:
    """What all codecs share."""

    error_feedback = False  # True: a client keeps what it could not send and adds it the next time

    def encode(self, u: Tensor, rng: np.random.Generator):
        raise NotImplementedError

    def floats_per_float(self, n: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Identity(Codec):
    """Tensors as they are."""

    def encode(self, u: Tensor, rng: np.random.Generator | None = None) -> Dense:
        return Dense(u)

    def floats_per_float(self, n: int) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class TopK(Codec):
    """The k largest |u_l|, the first ones where several are equal (Aji and Heafield, 2017).

    k: a whole number of coordinates, at least 1, or a fraction of them in (0, 1]; the fraction keeps k n of n, rounded,
    and at least one. index_bits: 32 bits an index, or "log2" for ceil(log2 n) bits. error_feedback: a client adds what
    it did not send to what it sends next; the method does this, the codec only carries the choice.
    """

    k: float | int = 0.1
    index_bits: int | str = 32
    error_feedback: bool = True

    def __post_init__(self):
        _check_k(self.k)
        if isinstance(self.index_bits, bool) or self.index_bits not in (32, "log2"):
            raise ValueError(f"index_bits = {self.index_bits!r} was given: expected 32 or 'log2'.")
        if not isinstance(self.error_feedback, bool):
            raise ValueError(f"error_feedback = {self.error_feedback!r} was given: expected True or False.")

    def __eq__(self, other) -> bool:
        return isinstance(other, TopK) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple:
        """One coordinate (1) and all of them (1.0) are two codecs, though Python calls the numbers equal."""
        return isinstance(self.k, Integral), self.k, self.index_bits, self.error_feedback

    def count(self, n: int) -> int:
        """Coordinates kept of n."""
        if isinstance(self.k, Integral):
            if self.k > n:
                raise ValueError(
                    f"k = {self.k} was given for a tensor of {n} numbers: expected at most {n}; a fraction fits any."
                )
            return int(self.k)
        return min(n, max(1, round(self.k * n)))

    def encode(self, u: Tensor, rng: np.random.Generator | None = None) -> Sparse:
        return Sparse.pack(u, _largest(u, self.count(len(u))), self._width(len(u)))

    def floats_per_float(self, n: int) -> float:
        return self.count(n) * (32 + self._width(n)) / 32 / max(n, 1)

    def _width(self, n: int) -> int:
        """Bits of an index below n."""
        return max(n - 1, 0).bit_length() if self.index_bits == "log2" else 32


@dataclass(frozen=True)
class QSGD(Codec):
    """Q(u)_l = |u| sign(u_l) xi_l, unbiased, in buckets with a norm each (Alistarh et al., 2017).

    With q = s |u_l| / |u|, xi_l is floor(q) / s or, with probability q - floor(q), the level above it; for a bucket of
    b coordinates E |Q(u) - u|^2 <= min(b / s^2, sqrt(b) / s) |u|^2. |u| is rounded up to a float32, so that no level
    exceeds s and Q stays unbiased. levels: s >= 1. bucket: b >= 1.
    """

    levels: int = 127
    bucket: int = 512

    def __post_init__(self):
        checks.whole("levels", self.levels, at_least=1)
        checks.whole("bucket", self.bucket, at_least=1)
        if self.levels > MOST_LEVELS:
            raise ValueError(f"levels = {self.levels} was given: expected at most {MOST_LEVELS}, or take Identity().")

    def encode(self, u: Tensor, rng: np.random.Generator) -> Quantized:
        size = max(1, min(self.bucket, len(u)))
        rows = F.pad(u.to(precise(u.dtype)), (0, -len(u) % size)).view(-1, size)  # (buckets, b)
        norms = _norms(rows)  # (buckets, 1)
        q = rows.abs().div_(norms).clamp_(max=1).nan_to_num_(nan=0).mul_(self.levels)
        level = q.floor()
        level += _chances(rows, rng) < q.sub_(level)
        return Quantized.pack(u, norms, level.copysign_(rows).view(-1)[: len(u)], self.levels, self.bucket)

    def floats_per_float(self, n: int) -> float:
        """The size of a payload depends on its constants alone."""
        return Quantized(b"", n, torch.float32, "cpu", self.levels, self.bucket).floats / max(n, 1)


def _check_k(k) -> None:
    whole = isinstance(k, Integral) and not isinstance(k, bool) and k >= 1
    fraction = isinstance(k, Real) and not isinstance(k, Integral) and math.isfinite(k) and 0 < k <= 1
    if not whole and not fraction:
        raise ValueError(f"k = {k!r} was given: expected a fraction in (0, 1] or a whole number of at least 1.")


def _largest(u: Tensor, k: int) -> Tensor:
    """Where the k largest |u_l| are, ascending (k,); NaN counts as infinity."""
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=u.device)
    size = u.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    least = size.topk(k, sorted=False).values.min()
    keep = size > least
    equal = (size == least).nonzero().view(-1)
    keep[equal[: k - int(keep.sum())]] = True
    return keep.nonzero().view(-1)


def _norms(rows: Tensor) -> Tensor:
    """The smallest float32 that is not below |row|, (buckets, 1)."""
    exact = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    near = exact.to(torch.float32)
    return torch.where(near < exact, near.nextafter(near.new_tensor(math.inf)), near)


def _chances(like: Tensor, rng: np.random.Generator) -> Tensor:
    """Uniform in [0, 1), in the shape and the type of `like`."""
    kind = str(like.dtype).removeprefix("torch.")
    return torch.from_numpy(rng.random(like.shape, dtype=kind)).to(like.device)
