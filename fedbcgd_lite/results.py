"""A run with what was measured: the record that is kept of it."""

import hashlib
import platform
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from .ledger import COLUMNS, Ledger
from .runs import Run, to_plain
from .simulate import Trajectory


@dataclass(frozen=True)
class Result:
    """A run with its record: `rows` of measurements, `rounds` (who sent which block, and how much), `ledger` totals."""

    run: Run
    record: dict

    @property
    def rows(self) -> list[dict]:
        columns = self.record["rows"]
        return [dict(zip(columns, values)) for values in zip(*columns.values())]

    @property
    def rounds(self) -> list[list[dict]]:
        """One list a round with a dict(client, block, upload_floats) for each participant."""
        names = ("client", "block", "upload_floats")
        return [[dict(zip(names, entry)) for entry in zip(*columns)] for columns in self.record["rounds"]]

    @property
    def d(self) -> int:
        return self.record["d"]


def to_record(run: Run, t: Trajectory, seconds: float, device: str) -> dict:
    """What is kept of a finished run, as JSON values; rows by column, NaN and infinity as null."""
    return {
        "key": run.key,
        "label": run.algorithm.label,
        "status": "diverged" if t.diverged else "finished",
        "reason": t.diverged,
        "run": to_plain(run),
        "d": t.blocks.d,
        "blocks": {"sizes": list(t.blocks.sizes), "shared": t.blocks.shared},
        "rows": {name: [_json_number(row[name]) for row in t.rows] for name in t.rows[0]},
        "rounds": rounds_of(t.ledger, t.round),
        "ledger": [[*name, *amount] for name, amount in t.ledger.totals().items()],
        "x_sha256": hashlib.sha256(t.x.cpu().numpy().tobytes()).hexdigest(),
        "made_by": _made_by(seconds, device),
    }


def _json_number(value):
    return value if value is None or np.isfinite(value) else None


def rounds_of(ledger: Ledger, n_rounds: int) -> list[list[list[int]]]:
    """[clients, blocks, uploaded floats] of each round, in the order in which the clients were drawn."""
    rounds = [{} for _ in range(n_rounds)]
    for row in ledger.rows:
        entry = dict(zip(COLUMNS, row))
        if entry["direction"] == "up":
            mine = rounds[entry["round"]].setdefault(entry["client"], [entry["block"], 0])
            mine[1] += entry["floats"]
    return [[list(r), [block for block, _ in r.values()], [floats for _, floats in r.values()]] for r in rounds]


def _made_by(seconds: float, device: str) -> dict:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {**versions, "commit": _commit(), "device": f"{device} ({name})", "seconds": round(seconds, 1)}


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """The commit of the checkout that this module lies in, "+" when its code was changed; None outside a checkout."""
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", ".")
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    folder = Path(__file__).parent
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
