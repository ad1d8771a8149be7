"""Worker processes: several calls at a time, with one answer to Ctrl-C."""

import multiprocessing.resource_tracker
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import joblib.externals.loky.backend.resource_tracker


def default_jobs(device: str) -> int:
    """One call at a time for each core, or one on a GPU."""
    return 1 if device.startswith("cuda") else joblib.cpu_count()


@contextmanager
def in_parallel(calls: Iterable, jobs: int) -> Iterator[Iterator]:
    """The outputs of joblib.delayed calls, as they are done, `jobs` at a time; 1 stays in this process.

    A worker whose memory has grown, as it does from model to model, is replaced by joblib with a warning. Nobody can
    act on it, and where warnings are errors it would end the thread that hands out the calls, and the wait for them
    would not end. So it is not given here.
    """
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    in_main = threading.current_thread() is threading.main_thread()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        if jobs == 1 or not in_main or not hasattr(signal, "pthread_sigmask"):  # Windows has none
            yield parallel(calls)
            return
        with _interrupts_later():
            outputs = parallel(calls)
        yield outputs


@contextmanager
def _interrupts_later():
    """Ctrl-C inside the block takes effect at its end, and processes born inside it never see one.

    The signal mask is what children inherit; the handler is for this process, whose other threads have masks of their
    own. The resource trackers lift the mask as they start, so they start first, and deaf: what is ignored is inherited.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for tracker in (joblib.externals.loky.backend.resource_tracker, multiprocessing.resource_tracker):
        tracker.ensure_running()
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        if pressed:
            signal.raise_signal(signal.SIGINT)
