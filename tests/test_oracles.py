"""Least squares, where optima and fixed points are known from linear algebra."""

import numpy as np
import pytest
import torch
from helpers import least_squares
from torch import nn
from torch.nn import functional as F

from fedbcgd_lite import (
    FedAvg,
    FedAvgM,
    FedBCGD,
    FedBCGDPlus,
    FedBCGDPlusScript,
    FedDC,
    Machine,
    Problem,
    Scaffold,
    simulate,
)
from fedbcgd_lite.rng import global_rng

LR = 0.1
BLOCKS = "balanced:2"


def hessians_and_minimisers(problem):
    """H_i (4, 6, 6) and w_i (4, 6) of f_i(w) = mean (A_i w - b_i)^2."""
    A, b = (t.numpy()[np.stack(problem.clients)] for t in problem.train)  # (4, 16, 6), (4, 16, 1)
    H = 2 * A.transpose(0, 2, 1) @ A / 16
    return H, np.linalg.solve(H, 2 * A.transpose(0, 2, 1) @ b / 16)[..., 0]


def optimum(problem) -> np.ndarray:
    """The minimiser (6,) of (1/M) sum f_i: clients are of one size, so it is the pooled least-squares solution."""
    return np.linalg.lstsq(*(t.numpy() for t in problem.train), rcond=None)[0][:, 0]


def fixed_point(problem, steps: int, rows_sent) -> np.ndarray:
    """Where rounds stand still: row l of sum_i (I - (I - lr H_i)^T)(w - w_i) = 0, summed over those who send row l."""
    H, w = hessians_and_minimisers(problem)
    pull = np.stack([np.eye(6) - np.linalg.matrix_power(np.eye(6) - LR * h, steps) for h in H])  # (4, 6, 6)
    sends = np.stack([rows_sent(i) for i in range(4)]).astype(float)[..., None]  # (4, 6, 1)
    return np.linalg.solve((sends * pull).sum(0), (sends * (pull @ w[..., None])).sum(0))[:, 0]


def final(problem, algorithm, steps: int, rounds: int, **hooks) -> np.ndarray:
    """The model after `rounds` rounds with all 4 clients and `steps` full-batch local steps."""
    size = dict(rounds=rounds, clients_per_round=4, local_epochs=steps, batch_size=16)
    return simulate(problem, algorithm, lr=LR, lr_decay=1.0, weight_decay=0.0, **size, **hooks).x.numpy()


def halves(holders, S, blocks, seed, round):
    """Clients 0, 1 always in the first block, 2, 3 always in the second."""
    return [blocks.slot(i, i // 2) for i in range(4)]


def test_fedavg_with_one_full_batch_step_is_gradient_descent():
    """With T = 1, full batches and all clients, a round of FedAvg is one step along the gradient of Eq. (1)."""
    problem = least_squares(heterogeneous=True)
    A, b = (t.numpy() for t in problem.train)
    w = problem.model.weight.detach().numpy()[0].copy()
    for _ in range(5):
        w -= LR * 2 * A.T @ (A @ w - b[:, 0]) / len(A)
    np.testing.assert_allclose(final(problem, FedAvg(), steps=1, rounds=5), w, rtol=1e-12)


def test_fedavg_with_one_full_batch_step_reaches_the_optimum():
    """Gradient descent on a strongly convex quadratic converges to the least-squares solution."""
    problem = least_squares(heterogeneous=True)
    np.testing.assert_allclose(final(problem, FedAvg(), steps=1, rounds=150), optimum(problem), rtol=0, atol=1e-7)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAvgM(0.6)], ids=repr)
def test_client_drift_takes_fedavg_to_its_biased_fixed_point(algorithm):
    """With T = 5 on heterogeneous clients it stands still away from the optimum, exactly where linear algebra says."""
    problem = least_squares(heterogeneous=True)
    biased = fixed_point(problem, steps=5, rows_sent=lambda i: np.ones(6))
    np.testing.assert_allclose(final(problem, algorithm, steps=5, rounds=100), biased, rtol=0, atol=1e-7)
    assert np.linalg.norm(biased - optimum(problem)) > 0.3


@pytest.mark.parametrize("momentum", [0, 0.6])
def test_client_drift_takes_fedbcgd_with_fixed_groups_to_its_biased_fixed_point(momentum):
    """A block stands still where the pulls of those who send it cancel, not at the optimum (the paper, Section 3.1)."""
    problem = least_squares(heterogeneous=True)
    biased = fixed_point(problem, steps=5, rows_sent=lambda i: np.arange(6) // 3 == i // 2)
    x = final(problem, FedBCGD(BLOCKS, momentum), steps=5, rounds=100, select=halves)
    np.testing.assert_allclose(x, biased, rtol=0, atol=1e-7)
    assert np.linalg.norm(biased - optimum(problem)) > 0.3


def test_fedbcgd_with_random_groups_does_not_reach_a_heterogeneous_optimum():
    """Groups drawn anew keep moving FedBCGD around: it corrects no drift (the paper, Section 3.2; FedBCGD+ does)."""
    problem, distances = least_squares(heterogeneous=True), []
    target = optimum(problem)
    final(problem, FedBCGD(BLOCKS), 5, 40, on_round=lambda t: distances.append(np.linalg.norm(t.x.numpy() - target)))
    assert min(distances[20:]) > 0.3


UNDRIFTED = (FedAvg(), FedAvgM(0.6), FedBCGD(BLOCKS, 0), FedBCGD(BLOCKS, 0, freeze=True))


@pytest.mark.parametrize("algorithm", UNDRIFTED, ids=repr)
def test_homogeneous_clients_reach_the_optimum(algorithm):
    """Clients that share their minimiser do not drift: every method reaches it, with many local steps too."""
    problem = least_squares(heterogeneous=False)
    np.testing.assert_allclose(final(problem, algorithm, steps=5, rounds=80), optimum(problem), rtol=0, atol=1e-7)


# --- methods that correct the drift ---------------------------------------------------------------------------------

M, D = 20, 10  # clients and coordinates of the strongly convex quadratic


def quadratic() -> Problem:
    """f_i(w) = mean (A_i w - b_i)^2 over 8 samples, 20 clients of their own curvature and minimiser."""
    with global_rng(1, "init"):
        model = nn.Linear(D, 1, bias=False).double()
        scale = torch.linspace(0.6, 1.4, M, dtype=torch.float64).repeat_interleave(8)[:, None]
        A, own = scale * torch.randn(8 * M, D, dtype=torch.float64), torch.randn(M, D, 1, dtype=torch.float64)
    b = (A[:, None] @ own.repeat_interleave(8, 0)).squeeze(-1)
    return Problem(model, (A, b), np.split(np.arange(8 * M), M), loss=F.mse_loss)


def distances(algorithm, rounds: int, noisy: bool) -> np.ndarray:
    """|x - x*| / |x*| after each round of 10 of 20 clients: 4 local steps on 2 samples each, or on all 8."""
    problem, found = quadratic(), []
    target = optimum(problem)
    size = dict(batch_size=2, local_epochs=1) if noisy else dict(batch_size=8, local_epochs=4)
    protocol = dict(rounds=rounds, clients_per_round=10, lr=0.03, lr_decay=1.0, weight_decay=0.0, eval_every_d=1e9)
    hooks = dict(machine=Machine(chunk=10), on_round=lambda t: found.append(np.linalg.norm(t.x.numpy() - target)))
    simulate(problem, algorithm, **size, **protocol, **hooks)
    return np.array(found) / np.linalg.norm(target)


EXACT = {
    "SCAFFOLD, option 1": (Scaffold(1), False, 200),
    "SCAFFOLD, option 2": (Scaffold(2), False, 200),
    "FedDC": (FedDC(), False, 400),
    "FedBCGD+": (FedBCGDPlus("balanced:5", 0), True, 700),
    "FedBCGD+, momentum": (FedBCGDPlus("balanced:5", 0.45), True, 1200),
    "FedBCGD+, option 2": (FedBCGDPlus("balanced:5", 0.45, option=2), True, 1000),
    "FedBCGD+ without noise": (FedBCGDPlus("balanced:5", 0.45, svrg=False), False, 1000),
}


@pytest.mark.parametrize("algorithm, noisy, rounds", EXACT.values(), ids=EXACT.keys())
def test_corrected_methods_reach_a_heterogeneous_optimum(algorithm, noisy, rounds):
    """Partial participation and, where there is SVRG, mini-batch noise do not keep them from it (Theorem 2)."""
    assert distances(algorithm, rounds, noisy)[-1] < 1e-10


STUCK = {
    "FedAvg": FedAvg(),
    "FedAvgM": FedAvgM(0.45),
    "FedBCGD": FedBCGD("balanced:5", 0.45),
    "SCAFFOLD with noise": Scaffold(2),
    "FedBCGD+ without SVRG": FedBCGDPlus("balanced:5", 0.45, svrg=False),
    "literal Eq. (4)": FedBCGDPlus("balanced:5", 0.45, sign=-1),
    "full c_i": FedBCGDPlus("balanced:5", 0.45, full=True),
    "the authors' script": FedBCGDPlusScript("balanced:5", 0.45),
}


@pytest.mark.parametrize("algorithm", STUCK.values(), ids=STUCK.keys())
def test_what_lacks_a_correction_or_has_a_wrong_one_stays_away(algorithm):
    """However long they run they come no nearer than some percent of |x*|, or they leave it altogether."""
    late = distances(algorithm, 400, True)[200:]
    assert not (late < 0.05).any()
