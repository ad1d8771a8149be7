"""Quantities that the theorems are written in."""

import numpy as np

from .arguments import formula


@formula
def alpha(lam):
    """1/(1 - lambda), the gain of server momentum: a constant gradient moves x alpha times as far per round."""
    return 1 / (1 - lam)


@formula
def gamma(lam):
    """lambda/(1 - lambda), the weight of the last displacement in the virtual iterate z = x + gamma (x - x_prev)."""
    return lam / (1 - lam)


@formula
def clients_per_block(S, N):
    """K = S/N, the sampled clients that send one block."""
    return S / N


@formula
def eta_tilde(lam, eta, T):
    """The effective step of Theorem 1, alpha eta T/4. Theorem 2 is proved with alpha eta T, four times this."""
    return alpha(lam) * eta * T / 4


@formula
def eta_from_tilde(lam, eta_tilde, T):
    """The local step size eta of an effective step of Theorem 1."""
    return 4 * eta_tilde / (alpha(lam) * T)


@formula
def lr_sum(decay, R):
    """Sum of the factors of a step size that decays by `decay` a round: what R rounds are worth in rounds."""
    constant = decay == 1
    return np.where(constant, R, (1 - decay**R) / np.where(constant, 1, 1 - decay))
