"""Golden iterates on a tiny quadratic, computed apart from this package, against the real loop."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import local_sgd
from torch import nn

from fedbcgd_lite import Blocks, FedAvg, FedAvgM, FedBCGD, FedBCGDPlus, Problem, Scaffold, simulate
from fedbcgd_lite.flat import Flat

FILE = json.loads((Path(__file__).parent / "data" / "golden_algorithms.json").read_text())
META, RESULTS = FILE["meta"], FILE["results"]
BLOCKS = Blocks((2, 2), shared=2)
CASES = {
    "fedavg": FedAvg(),
    "fedavgm": FedAvgM(0.6),
    "fedbcgd": FedBCGD(BLOCKS, 0.6),
    "fedbcgd_no_momentum": FedBCGD(BLOCKS, 0),
    "fedbcgd_freezing": FedBCGD(BLOCKS, 0, freeze=True),
    "fedbcgd_freezing_momentum": FedBCGD(BLOCKS, 0.6, freeze=True),
    "fedbcgd_no_shared_no_momentum": FedBCGD(BLOCKS, 0, shared=False),
    "scaffold_option1": Scaffold(option=1),
    "fedbcgd_plus": FedBCGDPlus(BLOCKS, 0.6),
    "fedbcgd_plus_lam0": FedBCGDPlus(BLOCKS, 0),
    "fedbcgd_plus_no_svrg": FedBCGDPlus(BLOCKS, 0.6, svrg=False),
    "fedbcgd_plus_literal_eq4_sign": FedBCGDPlus(BLOCKS, 0.6, sign=-1),
    "fedbcgd_plus_appendix_KM": FedBCGDPlus(BLOCKS, 0.6, block_factor=2),  # K = 2
}


class Quadratic(nn.Module):
    """x'A x/2 - b'x for each sample [A | b] of a batch."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(0.1 * torch.arange(6, dtype=torch.float64))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        A, b = samples[..., :6], samples[..., 6]  # (B, 6, 6), (B, 6)
        return torch.einsum("k,bkl,l->b", self.x, A, self.x) / 2 - b @ self.x


def sample(i: int, nu: int) -> np.ndarray:
    """[A | b] of sample nu of client i, as the file's "problem" defines them."""
    ell, sign = np.arange(6), (-1) ** nu
    A = (1 + 0.2 * sign) * (np.diag(0.5 + ((3 * i + 2 * ell) % 7) / 4) + 0.05 * np.ones((6, 6)))
    return np.column_stack([A, np.sin(1 + i + 0.5 * ell) + 0.1 * sign * np.cos(ell)])


def quadratic() -> Problem:
    """6 clients with 2 samples each; the test loss is the global objective f."""
    samples = torch.from_numpy(np.stack([sample(i, nu) for i in range(6) for nu in range(2)]))  # (12, 6, 7)
    data = (samples, torch.zeros(12, dtype=torch.float64))
    return Problem(Quadratic(), data, np.split(np.arange(12), 6), test=data, loss=lambda output, _: output.mean())


def schedule(holders, S, blocks, seed, round):
    """The file's "schedule": group j, slot k is client (round + 2j + k) mod 6; without groups the same four."""
    return [blocks.slot((round + place) % 6, place * blocks.n_blocks // S) for place in range(S)]


def sample_order(indices, training, seed, round, client):
    """The file's "sample": local step t uses sample (client + round + t) mod 2."""
    return [indices[[(client + round + t) % 2]] for t in range(META["T"])]


@functools.cache
def golden_run(name: str, rounds: int):
    protocol = dict(rounds=rounds, clients_per_round=4, lr=META["eta"], lr_decay=1.0, weight_decay=0.0)
    return simulate(quadratic(), CASES[name], select=schedule, plan=sample_order, **protocol)


def test_every_case_of_the_file_is_covered():
    assert {name for name in RESULTS if name not in ("xstar", "f_star")} == CASES.keys()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("key, rounds", [("x1", 1), ("xR", META["R"])])
def test_iterates_are_the_golden_ones(name, key, rounds):
    """The global model after one round and after R rounds is the one of golden_algorithms.json."""
    x = golden_run(name, rounds).x.numpy()
    np.testing.assert_allclose(x, RESULTS[name][key], rtol=META["rtol"], atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_final_objective_is_the_golden_one(name):
    """The test loss that the loop records is f(x_R) of the golden file."""
    assert golden_run(name, META["R"]).rows[-1]["test_loss"] == pytest.approx(RESULTS[name]["f_R"], rel=META["rtol"])


def test_the_golden_minimiser_minimises_our_quadratic():
    """At the file's x* our problem has gradient zero and the value f*, so that both speak of the same problem."""
    problem, x = quadratic(), torch.tensor(RESULTS["xstar"], dtype=torch.float64)
    flat = Flat(problem.model, Blocks((6,)), problem.loss)
    sgd = local_sgd(problem, flat, np.arange(12), [np.arange(12)], lr=0.0)
    assert sgd.full_gradient(x).abs().max() < 1e-11
    sgd(x)
    assert sgd.loss.item() == pytest.approx(RESULTS["f_star"], rel=META["rtol"])
