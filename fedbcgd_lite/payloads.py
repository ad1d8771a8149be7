"""Payloads: one tensor as it travels, with the bits that it really takes.

A payload has `.bits` (exact bits of its content, without the up to 7 that fill its last byte), `.floats` (numbers sent;
bits / 32 where they are packed), `.packed()` (its bytes) and `.decode()` (the tensor (n,) that the receiver
reconstructs, in the type and on the device of the one that was sent). `Sparse` and `Quantized` hold nothing else than
their bytes and the constants that both sides know, so that what is counted is what can be decoded.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PIECE = 2**16  # numbers that are packed at a time: whole bytes at any width, and little memory


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

    def packed(self) -> bytes:
        return raw(self.values.cpu()).tobytes()

    def decode(self) -> Tensor:
        return self.values


@dataclass(frozen=True)
class Packed:
    """Bytes, and what both sides know of the tensor that they stand for: n numbers of a type on a device."""

    data: bytes
    n: int
    dtype: torch.dtype
    device: torch.device

    @property
    def floats(self) -> float:
        """Bits sent in units of 32."""
        return self.bits / 32

    def packed(self) -> bytes:
        return self.data


@dataclass(frozen=True)
class Sparse(Packed):
    """k of n coordinates, zero elsewhere: their values in the tensor's own type, then their indices."""

    k: int
    index_bits: int

    @classmethod
    def pack(cls, u: Tensor, index: Tensor, index_bits: int) -> "Sparse":
        """The coordinates `index` (k,) of u (n,)."""
        indices = pack(index.cpu().numpy(), index_bits)
        return cls(raw(u[index].cpu()).tobytes() + indices, len(u), u.dtype, u.device, len(index), index_bits)

    @property
    def bits(self) -> int:
        """k values of the tensor's type and k indices."""
        return self.k * (8 * self.dtype.itemsize + self.index_bits)

    def decode(self) -> Tensor:
        values = torch.empty(self.k, dtype=self.dtype)
        cut = self.k * self.dtype.itemsize
        raw(values)[:] = np.frombuffer(self.data, np.uint8, cut)
        index = torch.from_numpy(unpack(self.data[cut:], self.index_bits, self.k).astype(np.int64))
        sent = torch.zeros(self.n, dtype=self.dtype, device=self.device)
        sent[index.to(self.device)] = values.to(self.device)
        return sent


@dataclass(frozen=True)
class Quantized(Packed):
    """Norm times level / s in buckets: a float32 norm each, then sign and level of all coordinates.

    Sign and level are one whole number, level + s in 0 .. 2s, of 1 + ceil(log2(s + 1)) bits. The last bucket may be
    shorter than the others.
    """

    levels: int  # s
    bucket: int  # b, coordinates that share a norm

    @classmethod
    def pack(cls, u: Tensor, norms: Tensor, level: Tensor, levels: int, bucket: int) -> "Quantized":
        """The tensor u (n,) as norms (ceil(n / b),) and signed levels (n,)."""
        numbers = (level + levels).to(torch.uint8 if 2 * levels < 256 else torch.int32).cpu().numpy()
        data = norms.cpu().numpy().astype("<f4").tobytes() + pack(numbers, width(levels))
        return cls(data, len(u), u.dtype, u.device, levels, bucket)

    @property
    def bits(self) -> int:
        """n (1 + ceil(log2(s + 1))) + 32 ceil(n / b)."""
        return self.n * width(self.levels) + 32 * self.buckets

    @property
    def buckets(self) -> int:
        return -(-self.n // self.bucket)

    def decode(self) -> Tensor:
        kind = precise(self.dtype)
        norms = torch.from_numpy(np.frombuffer(self.data, "<f4", self.buckets).astype(np.float32)).to(self.device)
        numbers = unpack(self.data[4 * self.buckets :], width(self.levels), self.n)
        values = torch.from_numpy(numbers.astype(str(kind).removeprefix("torch."))).to(self.device)
        values.sub_(self.levels).div_(self.levels)  # (n,) in -1 .. 1
        whole = self.n // self.bucket
        cut = whole * self.bucket
        values[:cut].view(whole, self.bucket).mul_(norms[:whole, None])
        values[cut:].mul_(norms[whole:])
        return values.to(self.dtype)


def width(levels: int) -> int:
    """Bits of a sign and a level in 0 .. s: 1 + ceil(log2(s + 1))."""
    return 1 + levels.bit_length()


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of this type are quantised: float32, and float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def raw(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor on the CPU; they share its memory where it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def pack(numbers: np.ndarray, width: int) -> bytes:
    """Whole numbers (n,) below 2**width, at most 32 bits each, as ceil(n width / 8) bytes: the highest bit first."""
    if width in (8, 16, 32):
        return numbers.astype(f">u{width // 8}").tobytes()
    pieces = (numbers[start : start + PIECE].astype(">u4") for start in range(0, len(numbers), PIECE))
    bits = (np.unpackbits(piece.view(np.uint8)).reshape(-1, 32)[:, 32 - width :] for piece in pieces)
    return b"".join(np.packbits(piece).tobytes() for piece in bits)


def unpack(data: bytes, width: int, n: int) -> np.ndarray:
    """The n whole numbers that `pack` made these bytes of."""
    if width in (8, 16, 32):
        return np.frombuffer(data, f">u{width // 8}", n)
    numbers = np.empty(n, np.uint32)
    for start in range(0, n, PIECE):
        piece = numbers[start : start + PIECE]
        bits = np.frombuffer(data, np.uint8)[start * width // 8 : (start + PIECE) * width // 8]
        wide = np.zeros((len(piece), 32), np.uint8)
        wide[:, 32 - width :] = np.unpackbits(bits, count=len(piece) * width).reshape(len(piece), width)
        piece[:] = np.packbits(wide).view(">u4")
    return numbers
