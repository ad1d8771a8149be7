"""Client states in files: equal to a dict, and exactly as they were at the last checkpoint whenever a process ends."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedbcgd_lite import states
from fedbcgd_lite.records import StorageError, read_checkpoint, write_checkpoint
from fedbcgd_lite.states import StatesInFiles, needed_bytes, too_large

BLANK = {
    "c_i": torch.zeros(5, dtype=torch.float64),
    "e_i": torch.zeros(2, 3),
    "h/i": torch.zeros(7, dtype=torch.bfloat16),
    "seen": torch.zeros((), dtype=torch.int64),
}


def state(value: float) -> dict:
    """A state that is the same number everywhere."""
    return {key: torch.full_like(tensor, value) for key, tensor in BLANK.items()}


def same(one: dict, other: dict) -> bool:
    """Equal bit for bit, with keys in the same order, types and shapes."""
    return list(one) == list(other) and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


def check_equal(store, expected: dict) -> None:
    assert list(store) == list(expected) and len(store) == len(expected)
    for (client, kept), (wanted_client, wanted) in zip(store.items(), expected.items()):
        assert client == wanted_client and same(kept, wanted)
    for client in range(10):
        assert (client in store) == (client in expected)
        assert same(store.get(client, BLANK), expected.get(client, BLANK))


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_dict_under_any_operations_and_restores_the_last_snapshot(tmp_path, seed):
    """200 operations in random order; a crash takes both back to what they were at the last snapshot."""
    draw = random.Random(seed)
    store, plain = StatesInFiles(tmp_path / "states", 10, BLANK), {}
    snapshot, saved = store.snapshot(), {}
    for step in range(200):
        what = draw.choices(["write", "delete", "snapshot", "crash"], [12, 2, 3, 2])[0]
        client = draw.randrange(10)
        if what == "write":
            store[client] = plain[client] = state(step)
        elif what == "delete" and client in plain:
            del store[client], plain[client]
        elif what == "snapshot":
            snapshot, saved = store.snapshot(), dict(plain)
        elif what == "crash":
            store, plain = StatesInFiles.restore(tmp_path / "states", snapshot), dict(saved)
        check_equal(store, plain)


def test_what_was_read_is_a_copy_and_what_was_written_too(tmp_path):
    store, written = StatesInFiles(tmp_path, 2, BLANK), state(1)
    store[0] = written
    written["c_i"] += 1
    store[0]["c_i"].add_(1)
    assert same(store[0], state(1))


def test_views_and_tensors_with_gradients_are_stored_as_they_look(tmp_path):
    store = StatesInFiles(tmp_path, 1, {"c_i": torch.zeros(3)})
    store[0] = {"c_i": torch.arange(6.0).requires_grad_()[::2]}
    assert store[0]["c_i"].tolist() == [0, 2, 4] and not store[0]["c_i"].requires_grad


def test_a_client_without_a_state_is_none(tmp_path):
    with pytest.raises(KeyError):
        StatesInFiles(tmp_path, 2, BLANK)[1]


def test_a_snapshot_goes_through_a_checkpoint(tmp_path):
    store = StatesInFiles(tmp_path / "states", 10, BLANK)
    store[3], store[7] = state(3), state(7)
    write_checkpoint(tmp_path / "run.checkpoint", {"key": "k", "clients": store.snapshot()})
    read = read_checkpoint(tmp_path / "run.checkpoint", "k", "cpu")["clients"]
    check_equal(StatesInFiles.restore(tmp_path / "states", read), {3: state(3), 7: state(7)})


ENDLESS = """
import sys, torch
from fedbcgd_lite.records import write_checkpoint
from fedbcgd_lite.states import StatesInFiles
from pathlib import Path
folder, value = Path(sys.argv[1]), 0
store = StatesInFiles(folder / "states", 4, {"c_i": torch.zeros(100_000)})
while True:  # all states are the number of the round, which the checkpoint tells
    value += 1
    for client in range(4):
        store[client] = {"c_i": torch.full((100_000,), float(value))}
    write_checkpoint(folder / "run.checkpoint", {"key": "k", "round": value, "clients": store.snapshot()})
    print(value, flush=True)
"""


def test_a_killed_process_leaves_the_states_of_its_last_checkpoint(tmp_path):
    """Killed at any moment, again and again: states are those of the round that the checkpoint tells."""
    for rounds in (1, 4):
        with subprocess.Popen([sys.executable, "-c", ENDLESS, tmp_path], stdout=subprocess.PIPE) as process:
            for _ in range(rounds):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        read = read_checkpoint(tmp_path / "run.checkpoint", "k", "cpu")
        restored = StatesInFiles.restore(tmp_path / "states", read["clients"])
        assert read["round"] >= rounds and len(restored) == 4
        assert all((kept["c_i"] == read["round"]).all() for kept in restored.values())


def test_rows_take_no_room_before_they_are_written_and_are_not_kept_in_memory(tmp_path):
    """100 states of 4 MB: neither the file nor the process grows by what it could hold."""
    blank = {"c_i": torch.zeros(1_000_000)}
    store = StatesInFiles(tmp_path, 100, blank)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size >= 800e6 and path.stat().st_blocks * 512 < 1e6
    before = _resident()
    for client in range(100):
        store[client] = blank
    assert _resident() - before < 100e6
    store.close(delete=True)


def _resident() -> int:
    """Bytes of this process in memory."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("only Linux tells it")
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def snapshotted(folder):
    """A snapshot of one state, and a later write to the same client."""
    store = StatesInFiles(folder, 3, BLANK)
    store[1] = state(1)
    snapshot = store.snapshot()
    store[1] = state(2)
    return store, snapshot


def test_missing_truncated_and_foreign_files_are_refused_by_name(tmp_path):
    _, snapshot = snapshotted(tmp_path)
    path = tmp_path / "e_i.states"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"e_i\.states has \d+ bytes, not \d+: .* start the run afresh"):
        StatesInFiles.restore(tmp_path, snapshot)
    path.write_bytes(bytes(len(content)))
    with pytest.raises(ValueError, match=r"e_i\.states holds another state of client 1"):
        StatesInFiles.restore(tmp_path, snapshot)
    path.unlink()
    with pytest.raises(ValueError, match=r"e_i\.states is missing"):
        StatesInFiles.restore(tmp_path, snapshot)
    StatesInFiles(tmp_path, 3, BLANK)[1] = state(1)  # the same run begun anew
    with pytest.raises(ValueError, match="holds another state of client 1"):
        StatesInFiles.restore(tmp_path, snapshot)


def test_a_snapshot_that_was_overtaken_is_refused(tmp_path):
    """Its rows were free to be written to after the next snapshot: never silently another state."""
    store, first = snapshotted(tmp_path)
    store.snapshot()
    check_equal(StatesInFiles.restore(tmp_path, first), {1: state(1)})
    store[1] = state(3)
    with pytest.raises(ValueError, match="holds another state of client 1"):
        StatesInFiles.restore(tmp_path, first)


def test_close_deletes_the_files_where_asked(tmp_path):
    store = StatesInFiles(tmp_path / "states", 3, BLANK)
    store[0] = state(1)
    store.close()
    assert len(list((tmp_path / "states").iterdir())) == 4
    store.close(delete=True)
    assert not (tmp_path / "states").exists() and len(store) == 0


def test_a_disk_that_is_too_small_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10e6))
    with pytest.raises(ValueError, match="has 10 MB free: the states of 3 clients, two of each, need 24 MB"):
        StatesInFiles(tmp_path, 3, {"c_i": torch.zeros(1_000_000)})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="could not write client states to .*file"):
        StatesInFiles(tmp_path / "file" / "states", 3, BLANK)


def test_files_that_went_away_are_a_sentence(tmp_path):
    store, _ = snapshotted(tmp_path)
    os.truncate(tmp_path / "c_i.states", 100)
    with pytest.raises(StorageError, match="is shorter than it was"):
        store[1]


@pytest.mark.parametrize(
    "client, given, words",
    [
        (3, BLANK, "client = 3 was given: expected a number below 3"),
        (-1, BLANK, "client = -1 was given"),
        (0, {}, "a state with nothing was given"),
        (0, {**BLANK, "c_i": torch.zeros(5)}, r"c_i \(5,\) float32.* expected one with c_i \(5,\) float64"),
        (0, {**BLANK, "e_i": torch.zeros(3, 2)}, r"e_i \(3, 2\) float32"),
    ],
)
def test_states_of_another_form_are_refused(tmp_path, client, given, words):
    with pytest.raises(ValueError, match=words):
        StatesInFiles(tmp_path, 3, BLANK)[client] = given


def test_states_are_too_large_beyond_half_of_the_memory(monkeypatch):
    blank = {"c_i": torch.zeros(10), "e_i": torch.zeros(10, dtype=torch.float64)}
    assert needed_bytes(100, blank) == 100 * (40 + 80)
    monkeypatch.delenv("FEDBCGD_STATE_MEMORY", raising=False)
    monkeypatch.setattr(states.os, "sysconf", {"SC_PAGE_SIZE": 4000, "SC_PHYS_PAGES": 6}.get)
    assert not too_large(100, blank) and too_large(101, blank)
    monkeypatch.setenv("FEDBCGD_STATE_MEMORY", "1.2e3")
    assert not too_large(10, blank) and too_large(11, blank)
    assert not too_large(10**9, {})


@pytest.mark.parametrize("text", ["12 GB", "-1", "nan", ""])
def test_a_limit_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv("FEDBCGD_STATE_MEMORY", text)
    with pytest.raises(ValueError, match="FEDBCGD_STATE_MEMORY = .* was given: expected a finite number of bytes"):
        too_large(1, BLANK)
