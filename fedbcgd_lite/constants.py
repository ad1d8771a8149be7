"""The constants of the theorems, measured on a convex problem."""

from dataclasses import dataclass

import numpy as np

from .convex import ConvexTask, Objective


@dataclass(frozen=True)
class Constants:
    """What Theorems 1 and 2 need to know of a problem; `HOW` says how each is measured.

    sigma and G are suprema over all x in the assumptions, and are largest values over given points here: the bounds
    that they give hold along a run that stays near these points.
    """

    mu: float
    beta: float
    sigma: float
    G: float
    F: float
    tau: float
    d0: float

    HOW = {
        "mu": "the coefficient of the L2 term",
        "beta": "largest over clients of the top eigenvalue of A_i'A_i/n_i times the curvature of the loss, plus mu",
        "sigma": "root of the exact variance of a mini-batch gradient, the largest over clients and points",
        "G": "root of mean_i ||grad f_i(x) - grad f(x)||^2, largest over points",
        "F": "f(x_0) - f*, f* certified",
        "tau": "largest ||(grad^2 f_i(x*) - grad^2 f(x*)) v|| over clients, v by power iteration",
        "d0": "||x_0 - x*||^2",
    }


def measured(task: ConvexTask, points: list[np.ndarray] | None = None, seed: int = 0) -> Constants:
    """The constants of a task's problem; points: where sigma and G are looked for (default: x_0 = 0 and x*)."""
    f = task.objective(seed)
    best, least = f.optimum()
    start = np.zeros(f.d)
    points = [start, best] if points is None else points
    return Constants(
        mu=f.mu,
        beta=smoothness(f),
        sigma=max(_noise(f, x, task.batch_size) for x in points) ** 0.5,
        G=max(_heterogeneity(f, x) for x in points) ** 0.5,
        F=f(start) - least,
        tau=_second_order(f, best),
        d0=float(best @ best),
    )


def smoothness(f: Objective) -> float:
    """beta, the smoothness of every f_i."""
    return max(map(_top_eigenvalue, (f.samples[0][client].numpy() for client in f.holders))) * f.loss.curvature + f.mu


def _top_eigenvalue(rows: np.ndarray) -> float:
    """Of A'A/n, which has the eigenvalues of AA'/n."""
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    return float(np.linalg.eigvalsh(gram)[-1] / len(rows))


def _noise(f: Objective, x: np.ndarray, batch_size: int) -> float:
    """Largest variance over clients: (1/B) (n - B)/(n - 1) mean_n ||g_n - mean g||^2."""
    found = []
    for client in f.holders:
        n, B = len(client), min(batch_size, len(client))
        slopes = f.sample_gradients(x, client)  # (n, d), L2 term left out: it adds no noise
        spread = ((slopes - slopes.mean(0)) ** 2).sum(1).mean()
        found.append(spread * (n - B) / max(1, n - 1) / B)
    return float(max(found))


def _heterogeneity(f: Objective, x: np.ndarray) -> float:
    gradients = np.stack([f.sample_gradients(x, client).mean(0) for client in f.holders])
    return float(((gradients - gradients.mean(0)) ** 2).sum(1).mean())


def _second_order(f: Objective, x: np.ndarray, steps: int = 15) -> float:
    """max_i ||grad^2 f_i - grad^2 f|| at x."""
    found = []
    for client in f.holders:
        v = np.random.default_rng(0).standard_normal(f.d)
        for _ in range(steps):
            v = v / max(np.linalg.norm(v), 1e-300)
            v = f.hessian_product(x, v, client) - f.hessian_product(x, v)
        found.append(np.linalg.norm(v))
    return float(max(found))
