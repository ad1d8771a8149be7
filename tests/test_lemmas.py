"""The lemmas of the proofs on random numbers, their counter-examples, and Theorem 1 against runs."""

import itertools

import numpy as np
import pytest
import torch

from fedbcgd_lite import FedBCGD, FedBCGDPlus, Machine, simulate, theory
from fedbcgd_lite.constants import measured
from fedbcgd_lite.convex import ConvexTask

RNG = np.random.default_rng(0)


# --- sequences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 0.4, 0.9])
def test_virtual_iterate_moves_by_alpha_times_the_gradient(lam):
    """z = x + gamma v; for any sequence in the place of gradients, and unrolled v is a geometric sum."""
    x, v, eta, seen = np.zeros(4), np.zeros(4), 0.1, []
    for G in RNG.standard_normal((50, 4)):
        z, seen = x + theory.gamma(lam) * v, [*seen, G]
        v = lam * v - eta * G
        x = x + v
        assert x + theory.gamma(lam) * v == pytest.approx(z - theory.alpha(lam) * eta * G, abs=1e-14)
    powers = lam ** np.arange(len(seen))[::-1]
    assert v == pytest.approx(-eta * powers @ np.stack(seen), abs=1e-14)


def test_linear_sequence_lemma():
    """A sequence that meets the recursion with equality: its weighted mean is below the closed form, that below exp."""
    for mu, eta, c, d0 in RNG.uniform([0.1, 0.01, 0, 1], [1, 0.5, 3, 9], (50, 4)):
        R = int(np.ceil(1 / (2 * mu * eta))) + 5
        d, gaps = d0, []
        for _ in range(R + 1):
            gap = min((1 - mu * eta) * d / eta, RNG.uniform(0, 2) * mu * d) + c * eta
            gaps.append(gap)
            d = (1 - mu * eta) * d - eta * gap + c * eta**2
        weights = (1 - mu * eta) ** (1.0 - np.arange(R + 1))
        closed = theory.seq_linear_closed(mu, eta, R, c, d0)
        assert np.average(gaps, weights=weights) <= closed * (1 + 1e-12)
        assert closed <= theory.seq_linear_exp(mu, eta, R, c, d0) * (1 + 1e-12)
        best = theory.seq_linear_step(mu, eta, R, c, d0)
        assert 0 < best <= eta


def test_sublinear_sequence_lemma():
    """The best step up to eta_max makes d0/(eta R') + c1 eta + c2 eta^2 no larger than the lemma says."""
    for d0, eta_max, c1, c2 in RNG.uniform(0.01, 5, (50, 4)):
        steps = np.geomspace(1e-6, 1, 4000) * eta_max
        reached = (d0 / (steps * 100) + c1 * steps + c2 * steps**2).min()
        assert reached <= theory.seq_sublinear(d0, eta_max, 99, c1, c2)


# --- sampling -------------------------------------------------------------------------------------------------------


def test_sampling_second_moment_is_exact_and_the_papers_bound_is_not_one():
    """Over all ways to draw K of M; with mean 0 the bound is too small by M/(M - 1)."""
    for M, K in ((5, 2), (6, 1), (6, 6), (1, 1)):
        g = RNG.standard_normal((M, 3))
        moments = {"mean_norm_sq": g.mean(0) @ g.mean(0), "sum_norm_sq": (g**2).sum()}
        drawn = np.mean([np.sum(g[list(s)].mean(0) ** 2) for s in itertools.combinations(range(M), K)])
        assert theory.sampling_second_moment(K, M, **moments) == pytest.approx(drawn)
    centred = {"mean_norm_sq": 0.0, "sum_norm_sq": 10.0}
    exact, printed = (f(2, 5, **centred) for f in (theory.sampling_second_moment, theory.sampling_paper_rhs))
    assert (exact, printed) == pytest.approx((0.75, 0.60))


def test_block_gradient_is_unbiased():
    """Over all ways to deal 4 of 4 clients to 2 groups of 2, each block's mean is the mean over all clients."""
    g = RNG.standard_normal((4, 2))  # one number for each block
    deals = [[g[list(p[:2]), 0].mean(), g[list(p[2:]), 1].mean()] for p in itertools.permutations(range(4))]
    assert np.mean(deals, 0) == pytest.approx(g.mean(0), abs=1e-15)


# --- convexity and drift --------------------------------------------------------------------------------------------


def quadratic(mu: float, beta: float, d: int = 4) -> np.ndarray:
    """A random symmetric matrix with eigenvalues between mu and beta."""
    q, _ = np.linalg.qr(RNG.standard_normal((d, d)))
    return q @ np.diag(np.r_[mu, RNG.uniform(mu, beta, d - 2), beta]) @ q.T


def test_perturbed_strong_convexity():
    """<grad h(x), z - y> >= h(z) - h(y) + (mu/4)||y - z||^2 - beta ||z - x||^2."""
    for _ in range(200):
        A = quadratic(0.3, 4.0)
        x, y, z = RNG.standard_normal((3, 4))
        gain = (z @ A @ z - y @ A @ y) / 2 + 0.3 / 4 * (y - z) @ (y - z) - 4.0 * (z - x) @ (z - x)
        assert A @ x @ (z - y) >= gain - 1e-12


def test_sums_of_vectors_and_of_noise():
    """||sum v||^2 <= n sum ||v||^2; noise that is dependent adds n^2 sigma^2, independent noise n sigma^2."""
    v = RNG.standard_normal((200, 4, 5))
    assert ((v.sum(1) ** 2).sum(-1) <= 4 * (v**2).sum((1, 2)) * (1 + 1e-12)).all()
    signs = np.array([*itertools.product([-1, 1], repeat=4)])  # all values of four independent signs
    for mean, sigma in RNG.uniform(0, 2, (20, 2)):
        apart = ((mean + sigma * signs).sum(1) ** 2).mean()
        alike = ((mean + sigma * signs[:, :1] * np.ones(4)).sum(1) ** 2).mean()
        assert alike == pytest.approx((4 * mean) ** 2 + 16 * sigma**2)
        assert apart == pytest.approx((4 * mean) ** 2 + 4 * sigma**2) and apart <= 2 * (4 * mean) ** 2 + 8 * sigma**2


@pytest.mark.parametrize("T", [2, 10, 100])
def test_drift_bound_holds_about_x_and_not_about_z(T):
    """Local gradient steps of quadratic clients with the largest step; about a stationary z the right side is 0."""
    beta = 4.0
    eta, drift, squares = 1 / (2 * beta * T), 0.0, 0.0
    for _ in range(20):
        A, b, x = quadratic(0.3, beta), RNG.standard_normal(4), RNG.standard_normal(4)
        y = x.copy()
        squares += np.sum((A @ x - b) ** 2)
        for _ in range(T):
            y = y - eta * (A @ y - b)
            drift += np.sum((y - x) ** 2)
    assert 0 < drift <= theory.drift_bound_rhs(T, eta, 20, squares, 0)
    z, y = np.zeros(4), (1 - eta) ** np.arange(1, T + 1)  # f(y) = y^2/2, steps from x = 1
    assert np.sum(y**2) > theory.drift_bound_rhs(T, eta, 1, z @ z, 0) == 0


# --- Theorem 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_derived_bound_is_never_below_a_run(seed):
    """lambda = 0, half of the clients, mini-batches, random heterogeneity and convexity: every R of the run."""
    zeta, mu = np.random.default_rng(seed).uniform([0, 0.02], [2, 0.2])
    shape = dict(dataset=f"synthetic:{zeta:.3f}", model="ridge", n_clients=10, clients_per_round=10, batch_size=50)
    task = ConvexTask(weight_decay=mu, rounds=60, **shape)
    T, K, f = 2, 2, task.objective(seed)
    kept = [torch.zeros(f.d, dtype=torch.float64)]
    c = measured(task, [np.zeros(f.d), f.optimum()[0]], seed)
    step = 1 / (50 * c.beta)
    lr = theory.eta_from_tilde(0, step, T)
    blocks, hook = FedBCGD("balanced:5", momentum=0), {"on_round": lambda t: kept.append(t.x)}
    simulate(task.problem(seed), blocks, task, seed, lr=lr, machine=Machine(chunk=10), **hook)
    xs = torch.stack(kept).numpy()
    weights = (1 - c.mu * step) ** (1.0 - np.arange(len(xs)))
    for R in (1, 10, 60):
        mean = np.average(xs[: R + 1], axis=0, weights=weights[: R + 1])
        known = dict(D0sq=c.d0, R=R, mu=c.mu, beta=c.beta, sigma=c.sigma, G=c.G, K=K, M=10, T=T, lam=0)
        assert f(mean) - f.optimum()[1] <= theory.thm1_sc_constant_step(eta_tilde=step, **known)


def test_printed_rate_is_refuted_by_one_round():
    """sigma = G = 0, T = N = R = 1, eigenvalues 1 to 10: as lambda grows the printed bound falls below any step."""
    eigenvalues, x0 = np.arange(1, 11.0), np.ones(10)
    known = dict(D0sq=10.0, R=1, mu=1.0, beta=10.0, sigma=0, G=0, K=1, M=1, T=1, lam=0.99)
    printed = theory.thm1_sc_statement(**known)
    steps = np.linspace(0, 4 / 10, 10_001)  # alpha eta = 4 eta~ with eta~ <= 1/beta
    reached = ((eigenvalues * (x0 - steps[:, None] * eigenvalues * x0) ** 2).sum(1) / 2).min()
    assert (eigenvalues * x0**2).sum() / 2 == 27.5 and reached == pytest.approx(3.0, abs=0.05)
    assert printed == pytest.approx(4.5e-4, rel=0.02) and printed < reached


@pytest.mark.parametrize("lam, holds", [(0.0, True), (0.8, True), (0.95, True), (0.99, False), (0.999, False)])
def test_derived_bound_fails_for_momentum_near_one(lam, holds):
    """f(x) = x^2/2 without noise, eta~ = 1/50, R = 1000: local steps start at x, the proof goes on with z."""
    eta, x, v, zs = theory.eta_from_tilde(lam, 1 / 50, 1), 1.0, 0.0, [1.0]
    for _ in range(1000):
        v = lam * v - eta * x
        x = x + v
        zs.append(x + theory.gamma(lam) * v)
    gap = np.average(zs, weights=(1 - 1 / 50) ** (1.0 - np.arange(1001))) ** 2 / 2
    known = dict(D0sq=1, R=1000, eta_tilde=1 / 50, mu=1, beta=1, sigma=0, G=0, K=1, M=1, T=1, lam=lam)
    assert (gap <= theory.thm1_sc_constant_step(**known)) == holds
    if not holds:
        assert gap == pytest.approx({0.99: 6.8e-5, 0.999: 9.4}[lam], rel=0.02)


# --- FedBCGD+ -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign, factor", [(1, 0), (-1, -2)])
def test_the_optimum_is_a_fixed_point_and_literal_signs_leave_it(sign, factor):
    """At x = x*, c_i = grad f_i(x*), c = 0 a client's step is zero; by Eq. (4) as printed it is -2 eta grad f_i(x*)."""
    protocol = dict(clients_per_round=1, batch_size=100, lr=0.1)
    task = ConvexTask(dataset="synthetic:1", n_clients=10, rounds=1, **protocol)
    f, problem = task.objective(), task.problem(0)
    best = torch.from_numpy(f.optimum()[0])
    l2 = f.mu * best  # local SGD adds the L2 term by itself
    options = {"machine": Machine(), "select": lambda holders, S, blocks, seed, round: [blocks.slot(0, 0)]}
    method = FedBCGDPlus("balanced:1", momentum=0, sign=sign)
    start = simulate(problem, method, task, **options)
    start.server = {**start.server, "x": best.clone(), "v": torch.zeros_like(best), "c": -l2}
    start.clients = {0: {"c_i": torch.from_numpy(f.gradient(best.numpy(), f.clients[0])) - l2}}
    moved = simulate(problem, method, task, rounds=2, resume=start, **options).x - best
    assert moved.numpy() == pytest.approx(factor * 0.1 * f.gradient(best.numpy(), f.clients[0]), abs=1e-12)
