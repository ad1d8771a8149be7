"""Table 1: the communication until a target accuracy, in units of d, for eight methods.

Every entry is an order: constants are left out, as in the paper. `sc` is strongly convex, where eps bounds f - f*; `nc`
is non-convex, where eps bounds ||grad f||^2. M clients, S of them sampled, N blocks, K = S/N clients a block, T local
steps, smoothness beta, strong convexity mu, gradient noise sigma, heterogeneity G, F = f(x_0) - f*.

The paper's entries leave out how many vectors a method sends (2 for control variates); `communication` can count them.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .arguments import formula
from .symbols import alpha, gamma


@formula
def fedavg_sc(sigma, G, mu, beta, S, T, eps):
    """FedAvg, strongly convex: (sigma^2 + G^2)/(mu S T eps) + (sigma + G)/(mu sqrt(eps)) + (beta/mu) log(1/eps)."""
    return (sigma**2 + G**2) / (mu * S * T * eps) + (sigma + G) / (mu * np.sqrt(eps)) + beta / mu * np.log(1 / eps)


@formula
def fedavg_nc(sigma, G, beta, F, S, T, eps):
    """FedAvg, non-convex: beta sigma^2/(T S eps^2) + (sqrt(beta) G + sqrt(beta/T) sigma)/eps^1.5 + F beta/eps."""
    middle = (np.sqrt(beta) * G + np.sqrt(beta / T) * sigma) / eps**1.5
    return beta * sigma**2 / (T * S * eps**2) + middle + F * beta / eps


@formula
def fedbcgd_sc(sigma, G, mu, beta, S, N, T, lam, eps):
    """FedBCGD, strongly convex: FedAvg's first term, and 1/(alpha N) and 1/N of its second and third."""
    first = (sigma**2 + G**2) / (mu * S * T * eps)
    return first + (sigma + G) / (alpha(lam) * mu * N * np.sqrt(eps)) + beta / (mu * N) * np.log(1 / eps)


@formula
def fedbcgd_nc(sigma, G, beta, F, S, N, T, eps):
    """FedBCGD, non-convex: FedAvg's first term, and 1/N of its second and third."""
    middle = (np.sqrt(beta) * G + np.sqrt(beta / T) * sigma) / (N * eps**1.5)
    return beta * sigma**2 / (T * S * eps**2) + middle + F * beta / (N * eps)


@formula
def fedbcgd_rounds_sc(sigma, G, mu, beta, K, T, lam, eps):
    """Rounds of FedBCGD, strongly convex, as Section 4 prints them; times 1/N it is the row of Table 1."""
    first = (sigma**2 + G**2) / (mu * K * T * eps)
    return first + (sigma + G) / (alpha(lam) * mu * np.sqrt(eps)) + beta / mu * np.log(1 / eps)


@formula
def fedbcgd_rounds_sc_from_theorem(sigma, G, mu, beta, K, M, T, lam, eps):
    """Rounds of FedBCGD as they follow from Theorem 1 (constants left out).

    Against the printed row: G^2 is not divided by T and vanishes when everybody takes part, and the second term has
    sqrt(beta) and sigma/sqrt(T).
    """
    first = ((1 - K / M) * G**2 + sigma**2 / T) / (mu * K * eps)
    second = np.sqrt(beta) * (G + sigma / np.sqrt(T)) / (alpha(lam) * mu * np.sqrt(eps))
    return first + second + beta / mu * np.log(1 / eps)


@formula
def fedbcgd_rounds_nc_from_theorem(sigma, G, beta, F, K, M, T, lam, eps):
    """Rounds of FedBCGD, non-convex, as they follow from the proof (constants left out): F in every term."""
    q, noise = 1 - K / M, sigma**2 / T
    sampled = (q * G**2 + q * noise) / K + noise / M
    second = np.sqrt((G**2 + noise) / alpha(lam) ** 2 + gamma(lam) ** 2 * sampled)
    return beta * F * (sampled / eps**2 + second / eps**1.5 + 1 / eps)


@formula
def scaffold_sc(sigma, mu, beta, M, S, T, eps):
    """SCAFFOLD, strongly convex: sigma^2/(mu S T eps) + sigma/(mu sqrt(eps)) + (M/S + beta/mu) log(1/eps)."""
    return sigma**2 / (mu * S * T * eps) + sigma / (mu * np.sqrt(eps)) + (M / S + beta / mu) * np.log(1 / eps)


@formula
def scaffold_nc(sigma, beta, F, M, S, T, eps):
    """SCAFFOLD, non-convex: beta sigma^2/(T S eps^2) + sqrt(beta/T) sigma/eps^1.5 + (beta F/eps) (M/S)^(2/3)."""
    noise = beta * sigma**2 / (T * S * eps**2) + np.sqrt(beta / T) * sigma / eps**1.5
    return noise + beta * F / eps * (M / S) ** (2 / 3)


@formula
def fedlin_sc(mu, beta, eps):
    """FedLin, strongly convex, everybody takes part with full gradients: (beta/mu) log(1/eps)."""
    return beta / mu * np.log(1 / eps)


@formula
def slocalgd_sc(mu, beta, eps):
    """S-Local-GD, strongly convex, everybody takes part with full gradients: (beta/mu) log(1/eps)."""
    return beta / mu * np.log(1 / eps)


@formula
def celsgd_nc(G, F, tau, M, eps):
    """CE-LSGD, non-convex: G F tau/(M eps^1.5), tau the second-order heterogeneity. Section 4.2 has beta F/eps."""
    return G * F * tau / (M * eps**1.5)


@formula
def bvrlsgd_nc(sigma, F, tau, beta, M, T, eps):
    """BVR-L-SGD, non-convex: F tau/eps + F beta/(sqrt(T) eps) + sigma^2/(M T eps) + (sigma F beta/(M T eps))^1.5."""
    noise = sigma**2 / (M * T * eps) + (sigma * F * beta / (M * T * eps)) ** 1.5
    return F * tau / eps + F * beta / (np.sqrt(T) * eps) + noise


@formula
def fedbcgdplus_rounds_sc(mu, beta, M, K, eps):
    """Rounds of FedBCGD+, strongly convex: (M/K + beta/mu) log(1/eps)."""
    return (M / K + beta / mu) * np.log(1 / eps)


@formula
def fedbcgdplus_sc(mu, beta, M, S, N, eps):
    """FedBCGD+, strongly convex, for any N: (M/S + beta/(mu N)) log(1/eps)."""
    return (M / S + beta / (mu * N)) * np.log(1 / eps)


@formula
def fedbcgdplus_sc_table(mu, beta, M, S, eps):
    """FedBCGD+ as Table 1 has it, (M/S + sqrt(beta/mu)) log(1/eps): the row at N = sqrt(beta/mu) only."""
    return (M / S + np.sqrt(beta / mu)) * np.log(1 / eps)


@formula
def fedbcgdplus_rounds_nc(beta, F, M, K, eps):
    """Rounds of FedBCGD+, non-convex: (beta F/eps) (M/K)^(2/3)."""
    return beta * F / eps * (M / K) ** (2 / 3)


@formula
def fedbcgdplus_nc(beta, F, M, S, N, eps):
    """FedBCGD+, non-convex: (beta F/eps) (M/S)^(2/3) N^(-1/3)."""
    return beta * F / eps * (M / S) ** (2 / 3) * N ** (-1 / 3)


@dataclass(frozen=True)
class Row:
    """A row of Table 1."""

    name: str
    strongly_convex: Callable | None = None  # formulas of this module, None where the table has no entry
    non_convex: Callable | None = None
    vectors: int = 1  # that a client sends in a round
    by_blocks: bool = False  # vectors of d/N floats instead of d
    client_sampling: bool = True
    stochastic_gradients: bool = True

    def communication(self, setting: str = "strongly_convex", count_factor: bool = False, **constants):
        """Uploaded floats of a participating client until eps, in units of d; constants by their letters.

        More constants than the row needs may be given. count_factor: times the vectors that are sent.
        """
        entry = self._entry(setting)
        names = list(inspect.signature(entry).parameters)
        missing = [name for name in names if name not in constants]
        if missing:
            raise ValueError(f"{', '.join(missing)} of {self.name} were not given: expected {', '.join(names)}.")
        return entry(**{name: constants[name] for name in names}) * (self.vectors if count_factor else 1)

    def rounds(self, setting: str = "strongly_convex", **constants):
        """Rounds until eps: a block method moves d/N floats in each."""
        return self.communication(setting, **constants) * (constants["N"] if self.by_blocks else 1)

    def _entry(self, setting: str) -> Callable:
        if setting not in ("strongly_convex", "non_convex"):
            raise ValueError(f"setting = {setting!r} was given: expected 'strongly_convex' or 'non_convex'.")
        entry = getattr(self, setting)
        if entry is None:
            raise ValueError(f"Table 1 has no {setting} entry for {self.name}.")
        return entry


TABLE1 = [
    Row("FedAvg", fedavg_sc, fedavg_nc),
    Row("FedBCGD", fedbcgd_sc, fedbcgd_nc, by_blocks=True),
    Row("SCAFFOLD", scaffold_sc, scaffold_nc, vectors=2),
    Row("FedLin", fedlin_sc, vectors=2, client_sampling=False, stochastic_gradients=False),
    Row("S-Local-GD", slocalgd_sc, vectors=2, client_sampling=False, stochastic_gradients=False),
    Row("CE-LSGD", non_convex=celsgd_nc, vectors=3),
    Row("BVR-L-SGD", non_convex=bvrlsgd_nc, vectors=3),
    Row("FedBCGD+", fedbcgdplus_sc, fedbcgdplus_nc, vectors=2, by_blocks=True),
]
