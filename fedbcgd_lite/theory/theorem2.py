"""Theorem 2: how far FedBCGD+ is from the optimum after R rounds, up to constants.

D2 = ||x_0 - x*||^2 + 9 eta~^2 (M/K) C_0, the initial value of the proof's Lyapunov function, with C_0 the mean squared
distance of the control variates from the gradients at the optimum. Here eta~ = alpha eta T (Theorem 1 divides by 4).
Neither noise nor heterogeneity enters: that is what SVRG and the control variates are for.
"""

import numpy as np

from .arguments import formula


@formula
def thm2_rate(mu, beta, K, M):
    """The exponent per round, strongly convex: min(K/(30 M), mu/(162 beta)), as proved."""
    return np.minimum(K / (30 * M), mu / (162 * beta))


@formula
def thm2_rate_literal(mu, beta, K, M):
    """The exponent as stated, min(M/(30 K), mu/(162 beta)): it would make rare participation no hindrance."""
    return np.minimum(M / (30 * K), mu / (162 * beta))


@formula
def thm2_eta_max(mu, beta, K, M):
    """The largest eta~, min(1/(81 beta), K/(15 mu M))."""
    return np.minimum(1 / (81 * beta), K / (15 * mu * M))


@formula
def thm2_eta_max_literal(mu, beta, S, N):
    """The largest eta~ as printed, min(1/(81 beta), S/(15 mu N)): SCAFFOLD's N is the number of clients."""
    return np.minimum(1 / (81 * beta), S / (15 * mu * N))


@formula
def thm2_contraction(mu, eta_tilde):
    """What is left of the Lyapunov function after one round: 1 - mu eta~/2."""
    return 1 - mu * eta_tilde / 2


@formula
def thm2_lyap_rounds(ratio, mu, beta, K, M):
    """Rounds until the Lyapunov function is `ratio` of what it was, at the largest step."""
    return np.log(ratio) / np.log1p(-mu * thm2_eta_max(mu, beta, K, M) / 2)


@formula
def thm2_sc_shape(D2, R, mu, beta, K, M):
    """Strongly convex: (M mu/K) D2 exp(-rate R)."""
    return M * mu / K * D2 * np.exp(-thm2_rate(mu, beta, K, M) * R)


@formula
def thm2_gc_shape(D2, R, beta, K, M):
    """General convex: sqrt(M/K) beta D2/R."""
    return np.sqrt(M / K) * beta * D2 / R


@formula
def thm2_nc_shape(R, F, beta, K, M):
    """Non-convex, the mean of ||grad f||^2: (beta F/R) (M/K)^(2/3)."""
    return beta * F / R * (M / K) ** (2 / 3)


@formula
def thm2_nc_rounds_explicit(F, beta, K, M, eps):
    """Rounds until the mean of ||grad f||^2 is eps, with the constant of the step (K/M)^(2/3)/(24 beta): 336."""
    return 336 * beta * F / eps * (M / K) ** (2 / 3)
