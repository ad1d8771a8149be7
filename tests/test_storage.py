"""Records and checkpoints: read, resumed, recomputed - and never half-written, never silently wrong."""

import dataclasses
import gc
import hashlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import fedbcgd_lite as fb
from fedbcgd_lite import data, experiments, records, states
from fedbcgd_lite.estimate import Estimate, estimate
from fedbcgd_lite.machine import Machine
from fedbcgd_lite.runs import from_plain, to_plain
from fedbcgd_lite.simulate import simulate

TINY = {"model": "logistic", "rounds": 4, "budget_d": None, "clients_per_round": 4, "eval_every_d": 0.3}


METHODS = [fb.FedAvg(), fb.FedBCGD("balanced:3")]


def tiny(**changes):
    """Four rounds of logistic regression with four clients of 100 images each."""
    return fb.task("smoke", **{"partition": fb.IID(), **TINY, **changes})


def told(runs, device, cores, seconds: float) -> list[Estimate]:
    """An estimate that is not measured."""
    return [Estimate(seconds, Machine()) for _ in runs]


def runs(algorithm=METHODS, **fields):
    """A grid of two runs, unless `fields` say otherwise."""
    return fb.grid(tiny(), algorithm=algorithm, **fields)


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Every test keeps its records in a folder of its own, without a progress bar and an estimate."""
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    monkeypatch.setenv("PROGRESS", "0")
    monkeypatch.setattr(experiments, "estimate", partial(told, seconds=0.0))  # it plays rounds of its own
    for name in ("FEDBCGD_FRESH", "FEDBCGD_JOBS", "FEDBCGD_CHECKPOINT_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "smoke" / "records"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The records of runs() as they come out when nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBCGD_RESULTS", str(tmp_path_factory.mktemp("uninterrupted")))
        patch.setenv("PROGRESS", "0")
        return [stripped(result.record) for result in fb.run_grid(runs(), jobs=1)]


def stripped(record):
    """A record without versions, device and seconds."""
    return {name: value for name, value in record.items() if name != "made_by"}


def compute(wanted, jobs=1):
    """The records of a grid, comparable between calls."""
    return [stripped(result.record) for result in fb.run_grid(wanted, jobs=jobs)]


@pytest.fixture
def nothing_is_computed(monkeypatch):
    """From here on simulate() must not be called."""

    def refuse(*_, **__):
        raise AssertionError("a run was computed")

    return lambda: monkeypatch.setattr(experiments, "simulate", refuse)


@pytest.fixture
def computed(monkeypatch):
    """The (label, seed, rounds played before) of each run that is computed from here on."""
    calls = []

    def counting(problem, algorithm, training, seed, resume=None, **hooks):
        calls.append((algorithm.label, seed, resume.round if resume else 0))
        return simulate(problem, algorithm, training, seed, resume=resume, **hooks)

    monkeypatch.setattr(experiments, "simulate", counting)
    return calls


# --- cache ----------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_asked_and_are_computed_once(computed):
    """Duplicates are computed once and returned as often as they were asked for."""
    a, b = runs()
    found = fb.run_grid([b, a, b], jobs=1)
    assert [result.run for result in found] == [b, a, b]
    assert found[0].record == found[2].record != found[1].record
    assert sorted(computed) == [("FedAvg", 0, 0), ("FedBCGD", 0, 0)]


def test_a_second_call_reads_records(nothing_is_computed, uninterrupted):
    """What was computed is read, and a record that was read equals the one that was computed."""
    first = fb.run_grid(runs(), jobs=1)
    nothing_is_computed()
    second = fb.run_grid(runs(), jobs=1)
    assert [result.record for result in second] == [result.record for result in first]
    assert [stripped(result.record) for result in second] == uninterrupted


def test_only_missing_runs_are_computed(computed):
    """A grid that grows by one seed computes that seed."""
    fb.run_grid(runs([fb.FedAvg()]), jobs=1)
    fb.run_grid(runs([fb.FedAvg()], seed=[0, 1]), jobs=1)
    assert computed == [("FedAvg", 0, 0), ("FedAvg", 1, 0)]


def test_two_jobs_give_the_records_of_one(uninterrupted):
    """Parallel processes change nothing but `made_by`."""
    assert compute(runs(), jobs=2) == uninterrupted


def test_nothing_but_records_is_left_behind(results):
    """No checkpoint, no temporary file."""
    wanted = runs()
    fb.run_grid(wanted, jobs=1)
    assert sorted(results.iterdir()) == sorted(run.path for run in wanted)


def test_a_grid_of_no_runs_is_no_result():
    """An empty grid is answered at once."""
    assert fb.run_grid([]) == []


def test_fresh_recomputes_older_records_and_keeps_newer_ones(computed, monkeypatch):
    """FEDBCGD_FRESH=<unix time>: a record counts if it was written at that time or later."""
    old, new = runs()
    fb.run_grid([old, new], jobs=1)
    os.utime(old.path, (1000, 1000))
    monkeypatch.setenv("FEDBCGD_FRESH", str(time.time() - 600))
    del computed[:]
    fb.run_grid([old, new], jobs=1)
    assert computed == [(old.algorithm.label, 0, 0)]
    fb.run_grid([old, new], jobs=1)
    assert len(computed) == 1 and old.path.stat().st_mtime > 1000


@pytest.mark.parametrize("named, played", [("0", 0), ("1", 1)])
def test_fresh_leaves_the_search_alone_unless_it_is_named(named, played, computed, monkeypatch):
    """Runs on a validation split chose the settings of the others; they are computed again where somebody says so."""
    run = fb.Run(tiny(validation=0.1), fb.FedAvg())
    fb.run_grid([run], jobs=1)
    os.utime(run.path, (1000, 1000))
    monkeypatch.setenv("FEDBCGD_FRESH", str(time.time() - 600))
    monkeypatch.setenv("FEDBCGD_FRESH_SEARCH", named)
    del computed[:]
    fb.run_grid([run], jobs=1)
    assert len(computed) == played


def test_fresh_does_not_resume_an_older_checkpoint(computed, monkeypatch):
    """A checkpoint from before FEDBCGD_FRESH is no part of a fresh result."""
    (run,) = runs([fb.FedAvg()])
    interrupt_after(2, run, monkeypatch)
    os.utime(checkpoint(run), (1000, 1000))
    monkeypatch.setenv("FEDBCGD_FRESH", str(time.time() - 600))
    del computed[:]
    fb.run_grid([run], jobs=1)
    assert computed == [("FedAvg", 0, 0)]


def test_a_long_grid_says_beforehand_how_long(monkeypatch, capsys):
    """Above LONG seconds the number of runs and the estimated time are printed; a grid that is read says nothing."""
    monkeypatch.setattr(experiments, "estimate", partial(told, seconds=600.0))
    fb.run_grid(runs(), jobs=1)
    assert re.fullmatch(r"2 runs .* 20 min, 1 at a time.*\n", "".join(capsys.readouterr()))
    fb.run_grid(runs(), jobs=1)
    assert "".join(capsys.readouterr()) == ""


# --- keys -----------------------------------------------------------------------------------------------------------

OTHER = {
    **{"rounds": 5, "budget_d": 3.0, "clients_per_round": 6, "local_epochs": 2, "batch_size": 49, "lr": 0.2},
    **{"lr_decay": 0.9, "weight_decay": 0.0, "eval_every_d": 0.4, "profile": "custom", "model": "lenet5", "width": 3},
    **{"n_clients": 50, "partition": fb.Dirichlet(0.1), "validation": 0.1, "dataset": "imagefolder:another"},
    **{"precision": "bf16", "clip": 1.0, "augment": True, "resize": 32, "crop": 28},
}
TOGETHER = {"resize": {"crop": 28}, "crop": {"resize": 32}}  # fields that make sense only with another one


def test_the_table_of_other_values_names_every_field():
    """A field that is added to Task must be added here."""
    assert set(OTHER) == {field.name for field in dataclasses.fields(fb.Task)}


@pytest.mark.parametrize("field", OTHER)
def test_every_field_of_a_task_is_in_the_key(field):
    """Another value of any field is another record."""
    run = fb.Run(tiny(), fb.FedAvg())
    other = fb.Run(dataclasses.replace(run.task, **{field: OTHER[field]}, **TOGETHER.get(field, {})), fb.FedAvg())
    assert run.key != other.key and run.path != other.path


ALGORITHMS = [
    *(fb.FedAvg(), fb.CentralisedSGD(), fb.FedAvgM(), fb.FedAvgM(0.7)),
    *(fb.FedBCGD(), fb.FedBCGD(momentum=0.5), fb.FedBCGD(momentum=0.0), fb.FedBCGD(shared=False)),
    *(fb.FedBCGD(freeze=True), fb.FedBCGD("balanced:3"), fb.FedBCGD("layers:2"), fb.FedBCGD("authors")),
    *(fb.FedBCGD(fb.Blocks((10, 20), 5)), fb.FedBCGD(fb.Blocks((10, 25))), fb.FedBCGD(fb.Blocks((35,), 0, ("b", "a")))),
    fb.FedBCGD(((("conv1", "conv2"), ("fc1", "fc2")), ("fc3",))),
    fb.FedBCGD(((("conv1", "conv2"), ("fc1", "fc2"), ()), ("fc3",))),
    *(fb.FedAdam(), fb.FedAdam(bias_correction=True), fb.FedAdam(tau=0.1), fb.FedDC(), fb.FedDC(0.1)),
    *(fb.Scaffold(), fb.Scaffold(1), fb.FedBCGDPlus(), fb.FedBCGDPlus(option=2), fb.FedBCGDPlus(svrg=False)),
    *(fb.FedBCGDPlus(sign=-1), fb.FedBCGDPlus(full=True), fb.FedBCGDPlus(shared_factor=0.2), fb.FedBCGDPlusScript()),
    *(fb.Compressed(fb.FedAvg(), codec) for codec in (fb.Identity(), fb.TopK(1), fb.TopK(1.0), fb.QSGD(), fb.QSGD(1))),
    *(fb.Compressed(method, fb.TopK(0.1, "log2", False)) for method in (fb.FedBCGD(), fb.FedBCGDPlus())),
]
SCHEMES = [
    *(fb.IID(), fb.ByLabel(), fb.ByLabel(1), fb.Dirichlet(0.6), fb.Dirichlet(0.1), fb.DirichletDraws(0.6)),
    *(fb.Dirichlet(0.6, equal=False), fb.Dirichlet(0.6, min_size=2), fb.Dirichlet(0.6, tries=2)),
]
VARIED = [
    *(fb.Run(tiny(), algorithm) for algorithm in ALGORITHMS),
    *(fb.Run(tiny(partition=scheme), fb.FedAvg(), seed=1) for scheme in SCHEMES),
]


def test_a_field_that_came_later_leaves_older_keys_alone():
    """At its default it is no part of the key, so that records from before it are found; this one is of version 0.2."""
    run = fb.Run(fb.task("laptop", lr=0.2), fb.FedAvg())
    assert run.key.startswith("e5463cab405d")


def test_every_algorithm_partition_and_seed_has_its_own_key():
    """No two of the varied runs share a key."""
    assert len({run.key for run in VARIED}) == len(VARIED) == len(set(VARIED))


@pytest.mark.parametrize("run", VARIED, ids=lambda run: f"{run.algorithm}-{run.task.partition}")
def test_a_run_survives_json(run):
    """from_plain inverts to_plain, through the text of a record; the key is the same afterwards."""
    back = from_plain(json.loads(records.canonical(to_plain(run))))
    assert back == run and back.key == run.key and hash(back) == hash(run)


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda: tiny(lr=1), lambda: tiny(lr=1.0)),
        (lambda: tiny(budget_d=2), lambda: tiny(budget_d=2.0)),
        (lambda: tiny(weight_decay=0), lambda: tiny(weight_decay=0.0)),
        (lambda: tiny(lr=np.float64(0.1)), lambda: tiny(lr=0.1)),
        (lambda: tiny(partition=fb.Dirichlet(1)), lambda: tiny(partition=fb.Dirichlet(1.0))),
        (lambda: fb.FedBCGD(momentum=0), lambda: fb.FedBCGD(momentum=0.0)),
        (lambda: fb.FedBCGD([[["conv1"], ["fc1"]], ["fc3"]]), lambda: fb.FedBCGD(((("conv1",), ("fc1",)), ("fc3",)))),
        (lambda: fb.FedBCGD(fb.Blocks([10, 20])), lambda: fb.FedBCGD(fb.Blocks((10, 20)))),
    ],
    ids=["lr", "budget_d", "weight_decay", "NumPy lr", "rho", "momentum", "groups in lists", "sizes in a list"],
)
def test_equal_runs_have_equal_keys(one, other):
    """1 and 1.0, a list and a tuple, are one run with one record."""
    one, other = (
        fb.Run(what, fb.FedAvg()) if isinstance(what, fb.Task) else fb.Run(tiny(), what) for what in (one(), other())
    )
    assert one == other and hash(one) == hash(other)
    assert one.key == other.key


@pytest.mark.parametrize(
    "fields",
    [{"seed": np.arange(2)}, {"lr": np.array([0.05, 0.1])}, {"lr": [np.float32(0.1)]}, {"rounds": [np.int64(3)]}],
    ids=str,
)
def test_axes_may_be_numpy_arrays(fields):
    """grid(seed=np.arange(2)) is grid(seed=range(2)): its runs have keys and can be computed."""
    (name, values), *_ = fields.items()
    made = fb.grid(tiny(), algorithm=fb.FedAvg(), **fields)
    plain = fb.grid(tiny(), algorithm=fb.FedAvg(), **{name: [value.item() for value in values]})
    assert [run.key for run in made] == [run.key for run in plain]


# --- killed and resumed ---------------------------------------------------------------------------------------------

# A process that computes a grid given as JSON, with a checkpoint after every round.
CHILD = """
import json, os, sys, time
from functools import partial
from fedbcgd_lite import experiments
from fedbcgd_lite.estimate import Estimate
from fedbcgd_lite.machine import Machine
from fedbcgd_lite.runs import from_plain
from fedbcgd_lite.simulate import plan, simulate
experiments.estimate = lambda runs, device, cores: [Estimate(0.0, Machine()) for _ in runs]
runs, jobs = [*map(from_plain, json.loads(sys.argv[1]))], int(sys.argv[2])
"""
# It says which rounds it plays, and stops at a given moment until it is killed.
PAUSING = (
    CHILD
    + """
moment, at = sys.argv[3], int(sys.argv[4])
seen = []

def pause():
    print("pause", flush=True)
    time.sleep(600)

def announced(indices, training, seed, round, client):
    seen.append(round)
    print("round", round, flush=True)
    if moment == "in round" and seen.count(at) == 3:
        pause()
    return plan(indices, training, seed, round, client)

def slow_replace(source, target, replace=os.replace):
    if moment == "while writing checkpoint" and str(target).endswith(".checkpoint") and seen[-1] == at:
        pause()
    replace(source, target)

os.replace = slow_replace
experiments.simulate = partial(simulate, plan=announced)
experiments.run_grid(runs, jobs=jobs)
"""
)
POLITE = (
    CHILD
    + """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit it ignored
try:
    experiments.run_grid(runs, jobs=jobs)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
)


def child(script, wanted, *words, **options):
    """A process of its own that computes `wanted`."""
    environment = {**os.environ, "FEDBCGD_CHECKPOINT_SECONDS": "0"}
    grid = json.dumps([to_plain(run) for run in wanted])
    command = [sys.executable, "-c", script, grid, *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def checkpoint(run):
    """Where the state of an unfinished run is kept."""
    return run.path.with_suffix(".checkpoint")


@pytest.mark.parametrize(
    "moment, at, goes_on_in",
    [("in round", 0, 0), ("in round", 3, 3), ("while writing checkpoint", 1, 1)],
)
def test_a_killed_run_goes_on_where_it_was(moment, at, goes_on_in, uninterrupted):
    """SIGKILL at any moment loses at most the rounds since the last checkpoint, and changes no number."""
    run = runs()[1]
    victim = child(PAUSING, [run], 1, moment, at)
    assert "pause\n" in iter(victim.stdout.readline, "")
    victim.kill()
    victim.communicate()
    assert not run.path.exists() and checkpoint(run).exists() == (goes_on_in > 0)

    second = child(PAUSING, [run], 1, "never", -1)
    played = second.communicate(timeout=120)[0].split("\n")
    assert second.returncode == 0
    assert list(dict.fromkeys(played))[:-1] == [f"round {r}" for r in range(goes_on_in, 4)]
    assert stripped(records.read_record(run.path, run.key)) == uninterrupted[1]
    assert not checkpoint(run).exists()


def test_ctrl_c_ends_a_parallel_grid_with_one_sentence(tmp_path, monkeypatch):
    """SIGINT to the process group: one sentence, no traceback, no process left; the next call finishes the results."""
    wanted = runs(rounds=100, eval_every_d=20.0)
    victim = child(POLITE, wanted, 2, start_new_session=True)
    wait_for(lambda: all(checkpoint(run).exists() or run.path.exists() for run in wanted), victim)
    assert_ends_politely(victim)
    resumed = compute(wanted)
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path / "again"))
    assert resumed == compute(wanted)


def test_ctrl_c_while_the_workers_start_is_as_quiet():
    """Workers that are still importing do not answer Ctrl-C with tracebacks of their own."""
    victim = child(POLITE, runs(rounds=100), 2, start_new_session=True)
    wait_for(lambda: any("popen_loky" in command for command in commands(victim.pid)), victim)
    assert_ends_politely(victim)


def assert_ends_politely(victim):
    """Ctrl-C to the whole process group is answered once, soon and for good."""
    os.killpg(victim.pid, signal.SIGINT)
    out, err = victim.communicate(timeout=20)
    assert "Traceback" not in err, err
    assert victim.returncode == 130 and (out + err).count("Interrupted: 0 of 2 runs are finished") == 1, out + err
    wait_for(lambda: not commands(victim.pid))


def wait_for(condition, process=None, seconds=60):
    """Until the condition holds; a process that ends meanwhile, or a minute, is a failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def commands(group):
    """The command lines of the living processes of a process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, its_group, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(its_group) == group and state != "Z":
                found.append((folder / "cmdline").read_text())
    return found


def interrupt_after(n_checkpoints, run, monkeypatch):
    """Compute a run with a checkpoint after every round, and stop it as Ctrl-C would after the n-th."""
    written = []

    def write_then_stop(path, state, write=records.write_checkpoint):
        write(path, state)
        written.append(path)
        if len(written) == n_checkpoints:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setenv("FEDBCGD_CHECKPOINT_SECONDS", "0")
        patch.setattr(records, "write_checkpoint", write_then_stop)
        with pytest.raises(KeyboardInterrupt):
            fb.run_grid([run], jobs=1)


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_run_resumes_in_the_same_process(after, computed, uninterrupted, monkeypatch, capsys):
    """Ctrl-C in a notebook and the same cell again: the run goes on after the rounds that it has."""
    run = runs()[1]
    interrupt_after(after, run, monkeypatch)
    assert "".join(capsys.readouterr()).count("Interrupted: 0 of 1 runs") == 1
    assert compute([run]) == uninterrupted[1:]
    assert computed == [("FedBCGD", 0, 0), ("FedBCGD", 0, after)]


def test_seconds_add_up_over_interruptions(monkeypatch):
    """made_by tells the seconds of all attempts."""
    run = runs()[1]
    interrupt_after(2, run, monkeypatch)
    state = records.read_checkpoint(checkpoint(run), run.key, "cpu")
    records.write_checkpoint(checkpoint(run), {**state, "seconds": 1000.0})
    assert fb.run_grid([run], jobs=1)[0].record["made_by"]["seconds"] >= 1000


# --- damaged files --------------------------------------------------------------------------------------------------


def edited(raw):
    """A record with another accuracy in its last row."""
    record = json.loads(raw)
    record["rows"]["accuracy"][-1] = 99.9
    return json.dumps(record).encode()


DAMAGE = {
    "truncated": lambda raw, _: raw[: len(raw) // 2],
    "accuracy edited": lambda raw, _: edited(raw),
    "accuracy edited to NaN": lambda raw, _: edited(raw).replace(b"99.9", b"NaN"),
    "another run's": lambda _, other: other,
    "empty": lambda raw, _: b"",
    "no record": lambda raw, _: b"[1, 2]\n",
    "no text": lambda raw, _: bytes(range(256)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_named_set_aside_and_recomputed(damage, uninterrupted):
    """The file is kept as *.corrupt, the warning names it, and the result is the one that it was."""
    run, other = runs()
    fb.run_grid([run, other], jobs=1)
    damaged = DAMAGE[damage](run.path.read_bytes(), other.path.read_bytes())
    run.path.write_bytes(damaged)
    with pytest.warns(UserWarning, match=re.escape(str(run.path)) + ".*set aside as .*json.corrupt.*computed again"):
        assert compute([run, other]) == uninterrupted
    assert run.path.with_name(f"{run.path.name}.corrupt").read_bytes() == damaged


CHECKPOINT_DAMAGE = {
    "truncated": lambda raw, _: raw[: len(raw) // 2],
    "one byte changed": lambda raw, _: raw[:-1000] + bytes([raw[-1000] ^ 1]) + raw[-999:],
    "empty": lambda raw, _: b"",
    "no checkpoint": lambda raw, _: b"checkpoint",
    "another run's": lambda _, other: other,
}


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGE)
def test_a_damaged_checkpoint_is_named_set_aside_and_not_used(damage, computed, uninterrupted, monkeypatch):
    """The run starts anew and comes to the same result."""
    other, run = runs()
    for each in (other, run):
        interrupt_after(2, each, monkeypatch)
    damaged = CHECKPOINT_DAMAGE[damage](checkpoint(run).read_bytes(), checkpoint(other).read_bytes())
    checkpoint(run).write_bytes(damaged)
    del computed[:]
    with pytest.warns(UserWarning, match=re.escape(str(checkpoint(run))) + ".*set aside as .*checkpoint.corrupt"):
        assert compute([run]) == uninterrupted[1:]
    assert computed == [("FedBCGD", 0, 0)]
    assert checkpoint(run).with_name(f"{checkpoint(run).name}.corrupt").read_bytes() == damaged


def test_a_second_damaged_file_does_not_replace_the_first(results):
    """Files that were set aside are never overwritten."""
    results.mkdir(parents=True)
    for content in (b"first", b"second"):
        (results / "a.json").write_bytes(content)
        with pytest.warns(UserWarning, match="set aside"):
            assert records.read_record(results / "a.json", "key") is None
    assert sorted(path.read_bytes() for path in results.iterdir()) == [b"first", b"second"]


# --- full disks and unwritable folders --------------------------------------------------------------------------------


@contextmanager
def full_disk(size):
    """Files can grow to `size` bytes and no further, as on a full disk; writing beyond is an OSError."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("size", [2_000, 200_000])
def test_the_old_file_survives_a_full_disk(size, tmp_path):
    """A write that fails leaves the old content and no temporary file, and says so in one sentence."""
    path = tmp_path / "kept"
    records.write_atomic(path, b"old")
    with (
        full_disk(1000),
        pytest.raises(records.StorageError, match=f"could not write {path} .*untouched.*free some space"),
    ):
        records.write_atomic(path, b"x" * size)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_record_that_does_not_fit_is_not_half_there(results, uninterrupted):
    """A full disk is noticed before anything is computed; with space again the same call gives the result."""
    wanted = runs()
    with (
        full_disk(100),
        pytest.raises(records.StorageError, match=f"could not write {wanted[0].path.parent}/.*nothing was written"),
    ):
        fb.run_grid(wanted, jobs=1)
    assert list(results.iterdir()) == []
    assert compute(wanted) == uninterrupted


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_unwritable_folder_is_refused_before_anything_is_computed(jobs, nothing_is_computed, tmp_path, monkeypatch):
    """Results that cannot be kept are not computed; the sentence names the folder."""
    (tmp_path / "file").write_text("a file, no folder")
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path / "file"))
    nothing_is_computed()
    with pytest.raises(
        records.StorageError, match="could not write .*/file/smoke/records.*nothing was written.*writable"
    ):
        fb.run_grid(runs(), jobs=jobs)


def test_reading_records_needs_no_writing(nothing_is_computed, results, monkeypatch, uninterrupted):
    """A read-only checkout shows its records: nothing is written, and no file or folder changes."""
    fb.run_grid(runs(), jobs=1)
    before = {path: path.stat().st_mtime_ns for path in [results, *results.iterdir()]}
    nothing_is_computed()
    monkeypatch.setattr(records, "write_atomic", partial(pytest.fail, "something was written"))
    results.chmod(0o555)
    try:
        assert compute(runs()) == uninterrupted
    finally:
        results.chmod(0o755)
    assert {path: path.stat().st_mtime_ns for path in [results, *results.iterdir()]} == before


# --- divergence -----------------------------------------------------------------------------------------------------


def no_constant(name):
    """NaN and Infinity are no JSON."""
    raise AssertionError(f"the record holds {name}")


def test_a_diverged_run_is_kept_and_the_others_go_on(nothing_is_computed, capsys):
    """lr = 1e30 is a result: status, round and clients are in the record, and the second call reads it."""
    wanted = runs(lr=[1e30, 0.1])
    first = fb.run_grid(wanted, jobs=1)
    assert [result.record["status"] for result in first] == ["diverged", "finished"] * 2
    assert re.match(r"NaN or infinity in round 0 from clients \d+(, \d+){3}$", first[0].record["reason"])
    assert "seed 0: diverged (NaN or infinity in round 0 from clients" in "".join(capsys.readouterr())
    nothing_is_computed()
    assert [result.record for result in fb.run_grid(wanted, jobs=1)] == [result.record for result in first]


def test_a_diverged_record_is_valid_json():
    """No NaN and no Infinity in the text; the rows up to the divergence are there."""
    (result,) = fb.run_grid(runs([fb.FedAvg()], lr=1e30), jobs=1)
    record = json.loads(result.run.path.read_text(), parse_constant=no_constant)
    assert record["rows"]["round"] == [0] and record["rounds"] == []
    assert math.isfinite(result.rows[0]["test_loss"])


def test_infinite_losses_are_empty_in_a_record(monkeypatch):
    """A finite model may have an infinite test loss: the record holds null, not Infinity."""
    x, one = torch.full((10, 1, 16, 16), 1.0), torch.ones(1)
    broken = data.Data(x, torch.arange(10), x * float("inf"), torch.arange(10), 10, data.Normalise(one, 0 * one))
    monkeypatch.setattr(data, "load", lambda name: broken)
    (result,) = fb.run_grid([fb.Run(tiny(n_clients=5, partition=fb.IID()), fb.FedAvg())], jobs=1)
    record = json.loads(result.run.path.read_text(), parse_constant=no_constant)
    assert record["status"] == "finished" and record["rows"]["test_loss"][0] is None


def test_a_row_of_nan_names_its_client():
    """One bad sample: the run stops in the round in which its client takes part, and that client alone is named."""
    x, y = torch.ones(12, 4), torch.arange(12) % 3
    x[7] = float("nan")
    problem = fb.Problem(torch.nn.Linear(4, 3), (x, y), np.split(np.arange(12), 4), (x[:3], y[:3]))
    t = fb.simulate(problem, fb.FedAvg(), rounds=50, clients_per_round=2, local_epochs=1, batch_size=3)
    assert t.diverged == f"NaN or infinity in round {t.round} from clients 2"
    assert 0 <= t.round < 50 and torch.isfinite(t.x).all()
    assert 2 not in {row[1] for row in t.ledger.rows}


# --- how long it will take ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", [*METHODS, fb.FedAvgM(), fb.FedBCGD("balanced:3", freeze=True), fb.CentralisedSGD()], ids=str
)
@pytest.mark.parametrize("changes", [{}, {"rounds": None, "budget_d": 2.0}, {"eval_every_d": 0.0}], ids=str)
def test_the_estimate_is_a_positive_number(algorithm, changes):
    """For every method, by rounds and by budget."""
    if algorithm.pooled and changes.get("budget_d"):
        pytest.skip("it uploads nothing, so it has no budget")
    (one,) = estimate([fb.Run(tiny(**changes), algorithm)])
    assert 0 < one.seconds < 1e4


@pytest.mark.parametrize("algorithm", [*METHODS, fb.CentralisedSGD()], ids=str)
def test_the_estimate_is_about_right(algorithm):
    """Within a factor of 4 of the measured time, generous because machines are noisy."""
    wanted = [fb.Run(tiny(rounds=4 if algorithm.pooled else 100), algorithm)]
    predicted = estimate(wanted)[0].seconds
    started = time.monotonic()
    fb.run_grid(wanted, jobs=1)
    measured = time.monotonic() - started
    assert 1 / 4 < predicted / measured < 4, (predicted, measured)


# --- client states that exceed memory -------------------------------------------------------------------------------

STATEFUL = [
    fb.Scaffold(),
    fb.FedBCGDPlus("balanced:3", option=2),
    fb.Compressed(fb.FedAvg(), fb.TopK(0.1)),
]


@pytest.fixture
def no_memory(monkeypatch):
    """Every client state is too large for memory."""
    monkeypatch.setenv("FEDBCGD_STATE_MEMORY", "1")


@pytest.mark.parametrize("algorithm", STATEFUL, ids=str)
def test_states_in_files_change_nothing(algorithm, monkeypatch):
    """A run whose client states lie in files is the run whose states are in memory, bit for bit."""
    run = fb.Run(tiny(rounds=5), algorithm)
    in_memory = simulate(run.task.problem(0), algorithm, run.task)
    monkeypatch.setenv("FEDBCGD_STATE_MEMORY", "1")
    in_files = simulate(run.task.problem(0), algorithm, run.task)
    assert torch.equal(in_memory.x, in_files.x) and in_memory.rows == in_files.rows
    assert isinstance(in_files.clients, states.StatesInFiles) and set(in_files.clients) == set(in_memory.clients)
    for client, state in in_memory.clients.items():
        assert all(torch.equal(state[key], in_files.clients[client][key]) for key in state)


def test_files_of_states_go_with_the_trajectory(no_memory):
    """Without a folder of their own they lie in a temporary one."""
    t = simulate(tiny().problem(0), fb.Scaffold(), tiny(rounds=2))
    folder = t.clients.folder
    assert folder.exists()
    del t
    gc.collect()
    assert not folder.exists()


def test_an_interrupted_run_finds_its_states_again(no_memory, computed, monkeypatch):
    """The checkpoint names the rows, the files hold them; afterwards nothing of them is left."""
    run = fb.Run(tiny(rounds=5), fb.Scaffold())
    whole = simulate(run.task.problem(0), run.algorithm, run.task)
    interrupt_after(2, run, monkeypatch)
    assert run.path.with_suffix(".states").is_dir()
    del computed[:]
    (result,) = fb.run_grid([run], jobs=1)
    assert computed == [("SCAFFOLD", 0, 2)]
    assert result.record["x_sha256"] == hashlib.sha256(whole.x.numpy().tobytes()).hexdigest()
    assert {path.suffix for path in run.path.parent.iterdir()} == {".json"}


def test_a_run_whose_states_are_gone_is_computed_again_and_says_so(no_memory, computed, monkeypatch):
    run = fb.Run(tiny(rounds=5), fb.Scaffold())
    interrupt_after(2, run, monkeypatch)
    shutil.rmtree(run.path.with_suffix(".states"))
    del computed[:]
    with pytest.warns(UserWarning, match="c_i.states is missing.*computed again"):
        (result,) = fb.run_grid([run], jobs=1)
    assert computed == [("SCAFFOLD", 0, 0)] and result.rows[-1]["round"] == 5
