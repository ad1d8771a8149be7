"""Least squares, where optima and fixed points are known from linear algebra."""

import numpy as np
import pytest
from helpers import least_squares

from fedbcgd_lite import FedAvg, FedAvgM, FedBCGD, simulate

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
