"""Randomness as a pure function of (seed, stream, round, client).

No generator is carried from one round to the next, so a result depends neither on the order of execution nor on where
a run was interrupted and resumed.
"""

from contextlib import contextmanager
from numbers import Integral

import numpy as np
import torch

# Numbers are for ever: a stream that goes never shifts another.
STREAMS = {
    "init": 0,
    "partition": 1,
    "validation": 2,
    "select": 3,
    "batches": 4,
    "noise": 5,
    "draw": 7,
    "augment": 8,
    "compress": 9,
    "synthetic": 10,
}


def _sequence(seed: int, stream: str, round: int, client: int) -> np.random.SeedSequence:
    if stream not in STREAMS:
        raise ValueError(f"unknown random stream {stream!r}: expected one of {', '.join(STREAMS)}.")
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed = {seed!r} was given: expected a whole number of at least 0.")
    return np.random.SeedSequence([seed, STREAMS[stream], round, client])


def numpy_rng(seed: int, stream: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The NumPy generator that belongs to this (seed, stream, round, client)."""
    return np.random.Generator(np.random.Philox(_sequence(seed, stream, round, client)))


@contextmanager
def global_rng(seed: int, stream: str, round: int = 0, client: int = 0, device="cpu"):
    """Seed torch's global generator inside the block and restore it after: dropout and initialisers read only that."""
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int(_sequence(seed, stream, round, client).generate_state(1, np.uint64)[0] >> 1))
        yield
