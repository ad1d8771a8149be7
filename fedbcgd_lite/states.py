"""Where the states of clients live between their rounds: a dict, or files where they are too large for memory."""

import math
import os
import shutil
import uuid
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from . import checks
from .payloads import raw
from .records import StorageError

State = dict[str, Tensor]

STAMP = 16  # bytes in front of a row


class StatesInFiles(MutableMapping):
    """{client: {key: tensor}} like a dict, in one sparse file for each key.

    A file has two rows for each client. A new state goes into the one that the last snapshot does not refer to: the
    checkpoint with that snapshot stays good however the process ends, and no state is copied for it. Every row begins
    with a stamp, new at each writing, by which `restore` knows the row that was meant. What is read is a copy. One
    process at a time uses a folder. Files are read and written, not mapped into memory: a full disk is then an error
    and not the end of the process, and what was read does not count as its memory.
    """

    def __init__(self, folder: Path | str, n_clients: int, blank: State):
        """New and empty, for states with the keys, shapes, types and devices of `blank`; older files are removed."""
        checks.whole("n_clients", n_clients, at_least=1)
        self._bind(folder, n_clients, {key: (tuple(t.shape), t.dtype, t.device) for key, t in blank.items()})
        with _storing(self.folder):
            self.close(delete=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_space(self.folder, n_clients, sum(column.bytes for column in self.columns.values()))
            for column in self.columns.values():
                column.create()

    @classmethod
    def restore(cls, folder: Path | str, snapshot: dict, device: torch.device | str = "cpu") -> "StatesInFiles":
        """The states as they were at a snapshot, whatever was written since; later snapshots make older ones void."""
        store = cls.__new__(cls)
        forms = {key: (tuple(shape), getattr(torch, kind), device) for key, (shape, kind) in snapshot["keys"].items()}
        store._bind(folder, snapshot["n_clients"], forms)
        for column in store.columns.values():
            column.check(snapshot["rows"])
        store.current = {client: tuple(row) for client, row in snapshot["rows"].items()}
        store.kept = dict(store.current)
        return store

    def _bind(self, folder: Path | str, n_clients: int, forms: dict) -> None:
        self.folder, self.n_clients = Path(folder), n_clients
        self.columns = {
            key: _Column(self.folder / f"{quote(key, safe='')}.states", 2 * n_clients, *form)
            for key, form in forms.items()
        }
        self.current: dict[int, tuple[int, str]] = {}  # client: (the row that holds its state, 0 or 1; its stamp)
        self.kept: dict[int, tuple[int, str]] = {}  # the same at the last snapshot

    def snapshot(self) -> dict:
        """Plain data for a checkpoint, from which `restore` finds the present states; they are on the disk by then.

        Write the checkpoint before anything else is stored here: an older one is good until then.
        """
        for column in self.columns.values():
            column.sync()
        self.kept = dict(self.current)
        keys = {key: [list(c.shape), str(c.dtype).removeprefix("torch.")] for key, c in self.columns.items()}
        rows = {client: list(row) for client, row in self.current.items()}
        return {"n_clients": self.n_clients, "keys": keys, "rows": rows}

    def close(self, delete: bool = False) -> None:
        """Nothing stays open between two calls; delete=True removes the files, and the folder if it is empty then."""
        if delete:
            self.current, self.kept = {}, {}
            for column in self.columns.values():
                column.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.folder.rmdir()

    def __getitem__(self, client: int) -> State:
        which, _ = self.current[client]
        return {key: column.read(2 * client + which) for key, column in self.columns.items()}

    def __setitem__(self, client: int, state: State) -> None:
        self._check(client, state)
        which = 1 - self.kept[client][0] if client in self.kept else 0
        stamp = uuid.uuid4()
        for key, column in self.columns.items():
            column.write(2 * client + which, stamp.bytes, state[key])
        self.current[int(client)] = (which, stamp.hex)

    def __delitem__(self, client: int) -> None:
        del self.current[client]

    def __contains__(self, client) -> bool:
        return client in self.current

    def __iter__(self) -> Iterator[int]:
        return iter(self.current)

    def __len__(self) -> int:
        return len(self.current)

    def _check(self, client: int, state: State) -> None:
        checks.whole("client", client, at_least=0)
        if client >= self.n_clients:
            raise ValueError(f"client = {client} was given: expected a number below {self.n_clients}.")
        given = {key: (tuple(t.shape), t.dtype) for key, t in state.items()}
        wanted = {key: (column.shape, column.dtype) for key, column in self.columns.items()}
        if given != wanted:
            raise ValueError(
                f"a state with {_told(given)} was given: expected one with {_told(wanted)}, as in `blank`."
            )


@dataclass(frozen=True)
class _Column:
    """The file of one key: rows of a stamp and a tensor."""

    path: Path
    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def row_bytes(self) -> int:
        return STAMP + math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Size of the file when all rows are written."""
        return self.rows * self.row_bytes

    def create(self) -> None:
        """A file of this size that takes no room yet."""
        with self.path.open("wb") as file:
            file.truncate(self.bytes)

    def read(self, row: int) -> Tensor:
        tensor = torch.empty(self.shape, dtype=self.dtype)
        with self.path.open("rb") as file:
            file.seek(row * self.row_bytes + STAMP)
            if file.readinto(raw(tensor)) < self.row_bytes - STAMP:
                raise StorageError(f"{self.path} is shorter than it was: leave the files of a running run alone.")
        return tensor.to(self.device)

    def write(self, row: int, stamp: bytes, tensor: Tensor) -> None:
        """The stamp first: a row that is half written is no longer the one that an older snapshot means."""
        with _storing(self.path), self.path.open("r+b") as file:
            file.seek(row * self.row_bytes)
            file.write(stamp)
            file.flush()
            file.write(raw(tensor.cpu()))

    def sync(self) -> None:
        with _storing(self.path), self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def check(self, rows: dict[int, list]) -> None:
        """Refuse a file that is not the one that a snapshot was made of."""
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != self.bytes:
            found = "is missing" if size is None else f"has {size} bytes, not {self.bytes}"
            raise ValueError(
                f"{self.path} {found}: expected the client states of the checkpoint; start the run afresh."
            )
        with self.path.open("rb") as file:
            for client, (which, stamp) in rows.items():
                file.seek((2 * client + which) * self.row_bytes)
                if file.read(STAMP).hex() != stamp:
                    raise ValueError(
                        f"{self.path} holds another state of client {client} than the one of the checkpoint: expected "
                        "the file as the run left it; start the run afresh."
                    )


def needed_bytes(n_clients: int, blank: State) -> int:
    """Bytes of the states of all clients."""
    return n_clients * sum(tensor.numel() * tensor.element_size() for tensor in blank.values())


def too_large(n_clients: int, blank: State) -> bool:
    """Whether the states of all clients exceed half of the memory that they would be kept in.

    FEDBCGD_STATE_MEMORY=<bytes> sets another limit.
    """
    return needed_bytes(n_clients, blank) > _limit(blank)


def _limit(blank: State) -> float:
    """Bytes."""
    name = "FEDBCGD_STATE_MEMORY"
    if name in os.environ:
        try:
            limit = float(os.environ[name])
        except ValueError:
            limit = os.environ[name]
        checks.number(name, limit, lambda value: value >= 0, "of bytes, as in 8e9")
        return limit
    devices = {tensor.device for tensor in blank.values() if tensor.device.type == "cuda"}
    if devices:
        return min(torch.cuda.get_device_properties(device).total_memory for device in devices) / 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2 if hasattr(os, "sysconf") else math.inf


def _check_space(folder: Path, n_clients: int, needed: int) -> None:
    """Refuse before hours of work: sparse files would be made on any disk."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"{folder} has {free / 1e6:.0f} MB free: the states of {n_clients} clients, two of each, need "
            f"{needed / 1e6:.0f} MB; free some space or keep the results on a larger disk."
        )


@contextmanager
def _storing(path: Path):
    """What the system says of a write, as a sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"could not write client states to {path} ({error.strerror or error}): make the folder writable or free "
            "some space, then run again."
        ) from error


def _told(forms: dict) -> str:
    """Keys with shapes and types, in words."""
    told = [f"{key} {shape} {str(kind).removeprefix('torch.')}" for key, (shape, kind) in forms.items()]
    return ", ".join(told) or "nothing"
