"""What a round uploads, how many rounds a budget lasts, and how many blocks are best.

Uploads are floats of one participating client in one round; bits are divided by 32. The package itself counts the bytes
that it packs; these are the formulas that the counts must agree with.
"""

import numpy as np

from .arguments import formula


@formula
def up_fedbcgd_nominal(d, N):
    """FedBCGD as the paper counts: d/N."""
    return d / N


@formula
def up_fedbcgdplus_nominal(d, N):
    """FedBCGD+ as the paper counts: 2 d/N."""
    return 2 * d / N


@formula
def up_fedbcgd_mean(block_sizes, d_s):
    """FedBCGD, mean over blocks with equally many clients each: mean_j d_j + d_s. block_sizes: (..., N)."""
    return block_sizes.mean(-1) + d_s


@formula
def up_fedbcgd_max(block_sizes, d_s):
    """FedBCGD, the client that a synchronous round waits for: max_j d_j + d_s. block_sizes: (..., N)."""
    return block_sizes.max(-1) + d_s


@formula
def up_topk(k, d, index_bits=32):
    """Top-k: k values of 32 bits and k indices."""
    return k * (32 + index_bits) / 32


@formula
def qsgd_bits(d, levels):
    """QSGD with one norm: sign and level of each coordinate, d (1 + ceil(log2(s + 1))) + 32 bits."""
    return qsgd_bits_bucketed(d, levels, d)


@formula
def qsgd_bits_bucketed(d, levels, bucket):
    """QSGD with a norm for each bucket: d (1 + ceil(log2(s + 1))) + 32 ceil(d/b) bits."""
    return d * (1 + np.ceil(np.log2(levels + 1))) + 32 * np.ceil(d / bucket)


@formula
def up_qsgd(d, levels):
    """QSGD with one norm, in floats."""
    return qsgd_bits(d, levels) / 32


@formula
def qsgd_elias_bits(d, levels):
    """Expected bits of QSGD with Elias codes (Alistarh et al., 2017, Theorem 3.2, without its o(1)), in few levels."""
    dense = levels * (levels + np.sqrt(d))
    return (3 + 1.5 * np.log2(2 * (levels**2 + d) / dense)) * dense + 32


@formula
def qsgd_var_factor(d, levels):
    """Bound of E||Q(u) - u||^2/||u||^2: min(d/s^2, sqrt(d)/s)."""
    return np.minimum(d / levels**2, np.sqrt(d) / levels)


@formula
def rounds_for_budget(budget_d, u_over_d):
    """Whole rounds that a budget of uploads lasts, both in units of d."""
    return np.floor(budget_d / u_over_d * (1 + 1e-12))  # 0.3/0.1 is 3


@formula
def optimal_blocks_paper(mu, beta):
    """sqrt(beta/mu), where the paper evaluates FedBCGD+; no optimum: with free shared blocks more are always better."""
    return np.sqrt(beta / mu)


@formula
def optimal_blocks_exact(mu, beta, M, S, d, d_s):
    """The number of blocks with the least communication when the shared block is paid for.

    sqrt(beta S (d - d_s)/(mu M d_s)); infinite for d_s = 0.
    """
    with np.errstate(divide="ignore"):
        return np.sqrt(beta * S * (d - d_s) / (mu * M * d_s))


@formula(unsent_blocks=True)
def com_exact_sc_over_log(mu, beta, M, S, N, d, d_s):
    """Communication of FedBCGD+ over log(1/eps), in units of d, the shared block included.

    (M N/S + beta/mu) ((d - d_s)/N + d_s)/d.
    """
    return (M * N / S + beta / mu) * ((d - d_s) / N + d_s) / d
