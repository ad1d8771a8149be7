"""The lemmas behind the theorems: sequences, the drift of local steps, and sampling without replacement."""

import numpy as np

from .arguments import formula


@formula
def seq_linear_closed(mu, eta, R, c, d0):
    """sum_r w_r (gap_r)/sum_r w_r for gap_r <= ((1 - mu eta) d_r - d_{r+1})/eta + c eta and w_r = (1 - mu eta)^(1-r).

    At most mu d0 p/(1 - p) + c eta with p = (1 - mu eta)^(R+1), for any eta < 1/mu.
    """
    p = (1 - mu * eta) ** (R + 1)
    return mu * d0 * p / (1 - p) + c * eta


@formula
def seq_linear_exp(mu, eta, R, c, d0):
    """The same for R >= 1/(2 mu eta), simpler and larger: 3 mu d0 exp(-mu eta R) + c eta."""
    return 3 * mu * d0 * np.exp(-mu * eta * R) + c * eta


@formula
def seq_linear_step(mu, eta_max, R, c, d0):
    """The step that balances both terms: min(eta_max, log(max(1, mu^2 R d0/c))/(mu R)); eta_max where c = 0."""
    ratio = mu**2 * R * d0 / np.where(c > 0, c, 1)
    best = np.log(np.maximum(1, ratio)) / (mu * R)
    return np.where((c > 0) & (best > 0), np.minimum(eta_max, best), eta_max)


@formula
def seq_sublinear(d0, eta_max, R, c1, c2):
    """Without strong convexity: d0/(eta_max R') + 2 sqrt(c1 d0/R') + 2 c2^(1/3) (d0/R')^(2/3), R' = R + 1."""
    return sublinear(d0, eta_max, R + 1, c1, c2)


def sublinear(d0, eta_max, rounds, *cs):
    """d0/(eta_max rounds) + 2 sum_k c_k^(1/(k+1)) (d0/rounds)^(k/(k+1)), for any number of constants."""
    rest = sum(2 * c ** (1 / (k + 1)) * (d0 / rounds) ** (k / (k + 1)) for k, c in enumerate(cs, 1))
    return d0 / (eta_max * rounds) + rest


@formula
def drift_bound_rhs(T, eta, M, sum_grad_sq, sigma):
    """Bound of sum_i sum_t E||y_i^t - x||^2 for eta <= 1/(2 beta T): 6 T^3 eta^2 sum + 3 M T^2 eta^2 sigma^2.

    sum_grad_sq: sum_i ||grad f_i(x)||^2 at the model that was sent, x; it does not hold about z.
    """
    return 6 * T**3 * eta**2 * sum_grad_sq + 3 * M * T**2 * eta**2 * sigma**2


@formula
def sampling_second_moment(K, M, mean_norm_sq, sum_norm_sq):
    """E||(1/K) sum_{i in S} g_i||^2 for K of M vectors drawn without replacement, exactly.

    ||gbar||^2 + (M - K)/(K M (M - 1)) sum_i ||g_i - gbar||^2, from mean_norm_sq = ||gbar||^2 and sum_norm_sq =
    sum_i ||g_i||^2.
    """
    spread = sum_norm_sq - M * mean_norm_sq
    return mean_norm_sq + (M - K) / (K * M * np.maximum(M - 1, 1)) * spread


@formula
def sampling_paper_rhs(K, M, mean_norm_sq, sum_norm_sq):
    """The paper's bound of the same, ||gbar||^2 + (1 - K/M)/(K M) sum_i ||g_i||^2: too small where gbar is small."""
    return mean_norm_sq + (1 - K / M) / (K * M) * sum_norm_sq
