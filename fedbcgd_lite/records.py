"""Files that are never half-written and never silently wrong: records of finished runs, checkpoints of others."""

import contextlib
import hashlib
import io
import json
import os
import tempfile
import warnings
from pathlib import Path

import torch

MAGIC = b"fedbcgd-lite checkpoint 1\n"


class StorageError(OSError):
    """A file could not be written; what was there before is untouched."""


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside and rename: a reader sees the old file or the new one, whatever happens on the way."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        kept = "the file that was there is untouched" if path.exists() else "nothing was written"
        raise StorageError(
            f"could not write {path} ({error.strerror}): {kept}; make the folder writable or free some space, then "
            "run again."
        ) from error


def check_writable(folder: Path) -> None:
    """Refuse before hours of work, not after: results that cannot be kept are not computed."""
    probe = folder / f".writable-{os.getpid()}"
    write_atomic(probe, bytes(100_000))
    probe.unlink()


def canonical(value) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(value) -> str:
    """sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()


def write_record(path: Path, record: dict) -> None:
    """A record, sealed with the digest of its content; one line a field, so that a diff can be read."""
    sealed = {**record, "digest": digest(record)}
    lines = [f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in sealed.items()]
    write_atomic(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_record(path: Path, key: str | None = None) -> dict | None:
    """The record (of the run `key`, if given), or None; a truncated, edited or misplaced file is set aside by name."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_bytes())
        seal, found = record.pop("digest"), digest(record)
    except (ValueError, KeyError, AttributeError, TypeError):
        return _set_aside(path, "is truncated or no record")
    if found != seal:
        return _set_aside(path, "does not match its digest (edited by hand?)")
    if key not in (None, record["key"]):
        return _set_aside(path, "belongs to another run")
    return record


def write_checkpoint(path: Path, state: dict) -> None:
    """Tensors and plain values, with a digest in front."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    write_atomic(path, MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read_checkpoint(path: Path, key: str, device: str) -> dict | None:
    """The state of the unfinished run `key`, or None; a file that is damaged is set aside by name."""
    if not path.exists():
        return None
    raw = path.read_bytes()
    seal, body = raw[len(MAGIC) : len(MAGIC) + 64], raw[len(MAGIC) + 65 :]
    if not raw.startswith(MAGIC) or hashlib.sha256(body).hexdigest().encode() != seal:
        return _set_aside(path, "is truncated or was changed")
    state = torch.load(io.BytesIO(body), map_location=device, weights_only=True)
    if state.get("key") != key:
        return _set_aside(path, "belongs to another run")
    return state


def _set_aside(path: Path, why: str) -> None:
    """Keep a file that cannot be trusted under another name, and say so."""
    aside = next(p for p in (path.with_name(f"{path.name}.corrupt{i or ''}") for i in range(10**6)) if not p.exists())
    with contextlib.suppress(OSError):
        path.rename(aside)
    where = f"set aside as {aside.name}" if aside.exists() else "left where it is and not used"
    warnings.warn(f"{path} {why}: {where}; the run is computed again.", stacklevel=3)
