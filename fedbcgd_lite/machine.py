"""What a machine may choose freely: how many clients at a time, and how launched. It changes time, and rounding."""

import ctypes
import os
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch

from . import checks

# glibc's options by their numbers in malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD (bytes), M_ARENA_MAX
MALLOC = {-1: 2**31 - 1, -2: 2**26, -3: 2**26, -8: 1}


@dataclass(frozen=True)
class Machine:
    """How the clients of a round are trained.

    workers: threads (on a GPU: each with a stream of its own) that train clients at the same time. Each client is
    trained by one thread in the same order of operations, so that the result does not depend on their number.
    chunk: clients that are trained together, as one batched computation. Sums are formed in another order than for
    chunk=1: results agree up to rounding. Worth it for small dense models; never for convolutions on a CPU.
    graphs: launch gradients as CUDA graphs; without a GPU it has no effect.
    compile: gradients through torch.compile; needs a C++ compiler, and a minute for every shape of a batch.
    deterministic: on a GPU, only kernels that repeat bit for bit. A CPU always repeats.
    """

    workers: int = 1
    chunk: int = 1
    graphs: bool = False
    compile: bool = False
    deterministic: bool = False

    def __post_init__(self):
        checks.whole("workers", self.workers, at_least=1)
        checks.whole("chunk", self.chunk, at_least=1)


@contextmanager
def settings(precision: str = "full", deterministic: bool = False):
    """PyTorch's global switches inside the block, restored after it.

    One intra-op thread, so that sums are formed in the same order whatever else the machine does, and products on a GPU
    in the precision that was asked for.
    """
    _keep_memory()
    backends = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]
    threads, precisions = torch.get_num_threads(), [backend.fp32_precision for backend in backends]
    with _repeatable_kernels() if deterministic else nullcontext():
        try:
            torch.set_num_threads(1)
            for backend in backends:
                backend.fp32_precision = "tf32" if precision == "tf32" else "ieee"
            yield
        finally:
            torch.set_num_threads(threads)
            for backend, was in zip(backends, precisions):
                backend.fp32_precision = was


@contextmanager
def _repeatable_kernels():
    """Apart, as to ask torch for it costs the import of its compiler, a second."""
    before = torch.are_deterministic_algorithms_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@lru_cache(maxsize=1)
def _keep_memory() -> None:
    """Let glibc keep what training frees and asks for again in every step, instead of handing it back to the kernel.

    A step of LeNet-5 then meets no page fault, where it met a thousand. Blocks above 64 MiB go back as before. MALLOC_*
    variables of the user come first; other C libraries are left alone.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        for option, value in MALLOC.items():
            library.mallopt(option, value)
