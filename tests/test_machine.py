"""The choice of a machine: measured once, kept, overruled by a word, and never in the way."""

import json
import os
import stat

import numpy as np
import pytest
import torch
from helpers import toy
from torch import nn

from fedbcgd_lite import FedAvg, Machine, Problem, Training, calibrate, simulate
from fedbcgd_lite.models import LeNet5

TRAINING = Training(rounds=1, clients_per_round=4, batch_size=5)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of one's own, no word from the environment, two cores."""
    monkeypatch.delenv("FEDBCGD_MACHINE")
    monkeypatch.setenv("FEDBCGD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate.joblib, "cpu_count", lambda: 2)
    calibrate._kept.cache_clear()
    yield tmp_path / "cache" / "machine.json"
    calibrate._kept.cache_clear()


@pytest.fixture
def took(monkeypatch):
    """Times by (workers, chunk) in the place of a measurement, and the list of what was measured."""
    times, asked = {}, []

    def seconds(problem, training, clients, machine):
        asked.append((machine.workers, machine.chunk))
        return times.get(asked[-1], 1.0)

    monkeypatch.setattr(calibrate, "step_seconds", seconds)
    return times, asked


def convolutional() -> Problem:
    x, y = torch.zeros(8, 1, 16, 16), torch.arange(8) % 2
    return Problem(LeNet5((1, 16, 16), n_classes=2, width=2), (x, y), np.split(np.arange(8), 4))


def test_a_measurement_is_made_and_kept(cache):
    """The second call, and the next process, read what the first one found."""
    first = calibrate.fastest(toy(), TRAINING)
    assert isinstance(first, Machine) and len(json.loads(cache.read_text())) == 1
    calibrate._kept.cache_clear()
    assert calibrate.fastest(toy(), TRAINING) == first


def test_nothing_is_measured_twice(took, cache):
    times, asked = took
    times[1, 4] = 0.1
    assert calibrate.fastest(toy(), TRAINING) == Machine(chunk=4)
    n = len(asked)
    calibrate._kept.cache_clear()
    assert calibrate.fastest(toy(), TRAINING) == Machine(chunk=4) and len(asked) == n


def test_another_problem_is_measured_anew(took):
    """Batch size, clients, cores and precision each make another entry."""
    times, asked = took
    changes = [{}, {"batch_size": 4}, {"clients_per_round": 5}, {"precision": "bf16"}]
    for change in changes:
        before = len(asked)
        calibrate.fastest(toy(), Training(**{"rounds": 1, "clients_per_round": 4, "batch_size": 5, **change}))
        assert len(asked) > before
    before = len(asked)
    calibrate.fastest(toy(), TRAINING, cores=1)
    assert len(asked) > before


def test_the_simpler_machine_wins_unless_another_is_a_tenth_faster(took):
    times, _ = took
    times.update({(1, 1): 1.0, (2, 1): 0.95, (1, 4): 0.92, (2, 2): 0.91})
    assert calibrate.fastest(toy(), TRAINING) == Machine()
    times[3, 1] = 0.85
    assert calibrate.fastest(toy(), TRAINING, cores=3) == Machine(workers=3)


def test_convolutions_are_never_trained_together_on_a_cpu(took):
    """So that the bits of a run with convolutions do not depend on a measurement."""
    _, asked = took
    calibrate.fastest(convolutional(), TRAINING)
    assert {chunk for _, chunk in asked} == {1}


def test_large_models_are_not_trained_together(took, monkeypatch):
    """S copies of a large model would not fit, and gain nothing."""
    _, asked = took
    monkeypatch.setattr(calibrate, "TOGETHER", 4 * 64 - 1)
    calibrate.fastest(toy(), TRAINING)
    assert {chunk for _, chunk in asked} == {1}


def test_a_model_that_cannot_be_trained_together_is_trained_apart():
    """A forward pass that looks at its numbers is nothing for vmap: one candidate less, no error."""

    class Looking(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else -super().forward(x)

    problem = Problem(Looking(4, 3), (torch.randn(20, 4), torch.arange(20) % 3), np.split(np.arange(20), 4))
    assert calibrate.fastest(problem, TRAINING).chunk == 1
    simulate(problem, FedAvg(), TRAINING)


def test_dropout_is_not_measured(took):
    """Its clients are trained one after another whatever the machine."""
    assert calibrate.fastest(toy(0.5), TRAINING) == Machine() and took[1] == []


def test_one_word_says_it(monkeypatch, took):
    """FEDBCGD_MACHINE overrules the measurement."""
    monkeypatch.setenv("FEDBCGD_MACHINE", "workers=3,chunk=2")
    assert calibrate.fastest(toy(), TRAINING) == Machine(workers=3, chunk=2) and took[1] == []


@pytest.mark.parametrize("word", ["", "fast", "workers", "workers=two", "cores=2", "workers=0", "workers=1.5"])
def test_a_wrong_word_is_refused(monkeypatch, word):
    monkeypatch.setenv("FEDBCGD_MACHINE", word)
    with pytest.raises(ValueError, match="FEDBCGD_MACHINE = .*expected 'workers=2,chunk=1'"):
        calibrate.fastest(toy(), TRAINING)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"workers": 1.5}, {"chunk": 0}, {"chunk": True}], ids=str)
def test_a_machine_has_at_least_one_worker_and_one_client(settings):
    with pytest.raises(ValueError, match="expected a whole number of at least 1"):
        Machine(**settings)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1'])
def test_a_damaged_cache_is_measured_again(cache, content):
    cache.parent.mkdir()
    cache.write_text(content)
    assert isinstance(calibrate.fastest(toy(), TRAINING), Machine)
    assert len(json.loads(cache.read_text())) == 1


def test_an_entry_of_another_version_is_measured_again(cache, took):
    """A kept machine with unknown settings is no error."""
    calibrate.fastest(toy(), TRAINING)
    kept = {key: {"wheels": 4} for key in json.loads(cache.read_text())}
    cache.write_text(json.dumps(kept))
    calibrate._kept.cache_clear()
    assert calibrate.fastest(toy(), TRAINING) == Machine()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_done_without(cache):
    cache.parent.mkdir()
    cache.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert isinstance(calibrate.fastest(toy(), TRAINING), Machine)


def test_a_cache_below_a_file_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDBCGD_CACHE", str(tmp_path / "file" / "cache"))
    assert isinstance(calibrate.fastest(toy(), TRAINING), Machine)


def test_a_gpu_tries_graphs_streams_and_chunks():
    """The candidates of a GPU, without one."""
    problem = toy()
    problem.device = "cuda"
    candidates = calibrate._candidates(problem, S=4, cores=2)
    assert candidates[0] == Machine() and Machine(workers=4, graphs=True) in candidates
    assert Machine(chunk=4, graphs=True) in candidates
