"""Theorem 1: how far FedBCGD is from the optimum after R rounds.

Every bound is one in the initial distance and the constants c_1, c_2, c_3 (and c_4) of a recursion in the effective
step eta~. Three readings differ: the theorem's statement, the last line of its proof, and what the proof's recursion
gives when it is carried through (`corrected`, `rederived`); the last is what to use. q = 1 - K/M is the share of
clients that a block does not hear; D0sq = d0 = ||x_0 - x*||^2, F = f(x_0) - f*.

The bounds are of averages of the virtual iterate z. For lambda > 0 the proof has a gap, as local steps start at x and
not at z: take them as proved at lambda = 0 only.
"""

import numpy as np

from .arguments import formula
from .lemmas import seq_linear_closed, sublinear
from .symbols import alpha, gamma

SAFE_STEP = 1 / 50  # beta eta~ below which the bracket of the proof is at least 1/4 for every K, M and lambda


@formula
def thm1_c1(beta, sigma, G, K, M, T, lam):
    """Factor of eta~ in the recursion: 32 q G^2/K + 64 sigma^2/(K T)."""
    return _sampling(32, 64, sigma, G, K, M, T)


@formula
def thm1_c2(beta, sigma, G, K, M, T, lam):
    """Factor of eta~^2, from the drift of local steps: (384 beta G^2 + 192 beta sigma^2/T)/alpha^2."""
    return beta * (384 * G**2 + 192 * sigma**2 / T) / alpha(lam) ** 2


@formula
def thm1_c3(beta, sigma, G, K, M, T, lam):
    """Factor of eta~^3: (6144 beta^2 G^2 + 3072 beta^2 sigma^2/T)/alpha^2."""
    return beta**2 * (6144 * G**2 + 3072 * sigma**2 / T) / alpha(lam) ** 2


def _sampling(for_G, for_sigma, sigma, G, K, M, T):
    return for_G * (1 - K / M) * G**2 / K + for_sigma * sigma**2 / (K * T)


# --- strongly convex ------------------------------------------------------------------------------------------------


@formula
def thm1_sc_statement(D0sq, R, mu, beta, sigma, G, K, M, T, lam):
    """As stated: the rate exp(-alpha mu R/beta), which no step can reach, and 128 G^2 with 32 sigma^2."""
    c1 = _sampling(128, 32, sigma, G, K, M, T)
    return _strongly_convex(alpha(lam) * mu * R / beta, c1, D0sq, R, mu, beta, sigma, G, K, M, T, lam)


@formula
def thm1_sc_proof(D0sq, R, mu, beta, sigma, G, K, M, T, lam):
    """The last line of the proof: the rate of the statement, with 32 G^2 and 64 sigma^2."""
    c1 = thm1_c1(beta, sigma, G, K, M, T, lam)
    return _strongly_convex(alpha(lam) * mu * R / beta, c1, D0sq, R, mu, beta, sigma, G, K, M, T, lam)


@formula
def thm1_sc_corrected_rate(D0sq, R, mu, beta, sigma, G, K, M, T, lam):
    """With the rate that the largest admissible step gives, exp(-mu R/(50 beta)), and the constants of the proof."""
    c1 = thm1_c1(beta, sigma, G, K, M, T, lam)
    return _strongly_convex(SAFE_STEP * mu * R / beta, c1, D0sq, R, mu, beta, sigma, G, K, M, T, lam)


def _strongly_convex(exponent, c1, D0sq, R, mu, *others):
    c2, c3 = thm1_c2(*others), thm1_c3(*others)
    return mu * D0sq * np.exp(-exponent) + c1 / (mu * R) + c2 / (mu * R) ** 2 + c3 / (mu * R) ** 3


@formula
def thm1_sc_constant_step(D0sq, R, eta_tilde, mu, beta, sigma, G, K, M, T, lam):
    """For one constant step, eta~ <= 1/(50 beta): the recursion summed exactly, before any step is chosen.

    mu d0 p/(1 - p) + c1 eta~ + c2 eta~^2 + c3 eta~^3 with p = (1 - mu eta~)^(R+1).
    """
    c1, c2, c3 = (c(beta, sigma, G, K, M, T, lam) for c in (thm1_c1, thm1_c2, thm1_c3))
    return seq_linear_closed(mu, eta_tilde, R, c1 + c2 * eta_tilde + c3 * eta_tilde**2, D0sq)


# --- general convex -------------------------------------------------------------------------------------------------


@formula
def thm1_gc_statement(d0, R, beta, sigma, G, K, M, T, lam):
    """As stated; its units do not agree, and factors of the sequence lemma are missing."""
    return _general_convex(32, 2 / 3, d0, R, beta, sigma, G, K, M, T, lam)


@formula
def thm1_gc_proof(d0, R, beta, sigma, G, K, M, T, lam):
    """The last line of the proof: 64 sigma^2, and alpha^(-2/3) a second time."""
    return _general_convex(64, 4 / 3, d0, R, beta, sigma, G, K, M, T, lam)


def _general_convex(for_sigma, power, d0, R, beta, sigma, G, K, M, T, lam):
    a = alpha(lam)
    c2, c3 = (c(beta, sigma, G, K, M, T, 0) for c in (thm1_c2, thm1_c3))  # without their alpha
    first = beta**1.5 * d0 / (a * R) + c3 / (a**2 * R)
    second = np.sqrt(_sampling(32, for_sigma, sigma, G, K, M, T) * d0 / R)
    return first + second + c2 ** (1 / 3) * (d0 / R) ** (2 / 3) / a**power


@formula
def thm1_gc_rederived(d0, R, beta, sigma, G, K, M, T, lam):
    """What the sequence lemma gives: d0/(eta_max R') + 2 sum_k c_k^(1/(k+1)) (d0/R')^(k/(k+1)), R' = R + 1."""
    cs = [c(beta, sigma, G, K, M, T, lam) for c in (thm1_c1, thm1_c2, thm1_c3)]
    return sublinear(d0, SAFE_STEP / beta, R + 1, *cs)


# --- non-convex -----------------------------------------------------------------------------------------------------


@formula
def thm1_nc_proof(R, F, beta, sigma, G, K, M, T, lam):
    """The mean of ||grad f||^2, as the proof ends: spurious 1/(T K alpha) and 1/sqrt(T M), and 92 for 96."""
    c1, *others = _non_convex_constants(92, beta, sigma, G, K, M, T, lam)
    first = 16 * beta * F / (T * K * alpha(lam) * R) + 2 * np.sqrt(c1 * F / (R * T * M))
    return first + sum(2 * c ** (1 / (k + 1)) * (F / R) ** (k / (k + 1)) for k, c in enumerate(others, 2))


@formula
def thm1_nc_rederived(R, F, beta, sigma, G, K, M, T, lam):
    """The mean of ||grad f||^2 with the first two terms of the lemma, 96, and the printed step limit 1/(16 beta)."""
    return sublinear(F, 1 / (16 * beta), R, *_non_convex_constants(96, beta, sigma, G, K, M, T, lam))


@formula
def thm1_nc_corrected_step(R, F, beta, sigma, G, K, M, T, lam):
    """The same with the step that both conditions of the proof allow (`thm1_nc_step_umax`)."""
    cs = _non_convex_constants(96, beta, sigma, G, K, M, T, lam)
    return sublinear(F, thm1_nc_step_umax(K, M, lam) / beta, R, *cs)


def _non_convex_constants(for_sigma, beta, sigma, G, K, M, T, lam):
    q, noise, a2, g2 = 1 - K / M, sigma**2 / T, alpha(lam) ** 2, gamma(lam) ** 2
    sampled = q * G**2 / K + q * noise / K + noise / M
    c2 = beta**2 * ((384 * G**2 + for_sigma * noise) / a2 + 16 * g2 * sampled)
    c3 = beta**3 * (4608 * G**2 + 1152 * noise) * q / (K * a2)
    c4 = beta**4 * (9216 * G**2 + 2304 * noise) * g2 * q / (K * a2)
    return 8 * beta * sampled, c2, c3, c4


# --- step limits ----------------------------------------------------------------------------------------------------


@formula
def thm1_bracket(u, K, M, lam):
    """What the convex proof needs to be at least 1/4: 1 - 16 u (1 + q/K) - 192 u^2/alpha^2 - 3072 u^3/alpha^2.

    u = beta eta~. At the printed step limits, u = 1 and u = 1/8, it is negative.
    """
    return 1 - sum(c * u ** (k + 1) for k, c in enumerate(_bracket(K, M, lam)))


@formula
def thm1_step_umax(K, M, lam):
    """The largest beta eta~ of the convex proof, where `thm1_bracket` is 1/4: between 1/49.3 and 1/30.4."""
    return _root(0.75, *_bracket(K, M, lam))


def _bracket(K, M, lam):
    a2 = alpha(lam) ** 2
    return 16 * (1 + (1 - K / M) / K), 192 / a2, 3072 / a2


@formula
def thm1_nc_step_umax(K, M, lam):
    """The largest beta eta~ that both conditions of the non-convex proof allow; the printed 1/16 violates one of them.

    1 >= w q/K + (192 u^2/alpha^2) (2 + 3 w q/K) and w <= 1/2 with w = 16 gamma^2 u^2 + 8 u.
    """
    a2, g2, share = alpha(lam) ** 2, gamma(lam) ** 2, (1 - K / M) / K
    gradients = _root(1, 8 * share, 16 * g2 * share + 384 / a2, 4608 * share / a2, 9216 * g2 * share / a2)
    return np.minimum(gradients, _root(0.5, 8, 16 * g2))


def _root(budget, *coefficients):
    """The u > 0 with sum_k coefficients[k] u^(k+1) = budget, by Newton's method from above (the sum is convex)."""
    first = coefficients[0]
    u = 1.0 + sum(np.zeros_like(c) for c in coefficients)
    for _ in range(200):
        value = sum(c * u ** (k + 1) for k, c in enumerate(coefficients)) - budget
        slope = first + sum((k + 2) * c * u ** (k + 1) for k, c in enumerate(coefficients[1:]))
        u = u - value / slope
    return u
