"""The formulas of the theory: golden values, what contradicts what, and what may not go in."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from fedbcgd_lite import theory
from fedbcgd_lite.theory import FORMULAS, TABLE1
from fedbcgd_lite.theory.arguments import DOMAINS

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_theory.json").read_text())["cases"]
CONSTANTS = {  # one value in every domain
    **dict(mu=0.1, beta=10.0, sigma=1.0, G=2.0, F=2.5, tau=1.5, eps=0.01, M=100, S=10, N=5, K=2, T=50, R=200, lam=0.4),
    **dict(
        d0=4.0, D0sq=4.0, D2=4.0, eta=0.01, eta_tilde=0.002, eta_max=0.1, u=0.02, c=0.5, c1=0.5, c2=0.2, decay=0.998
    ),
    **dict(
        d=815332, d_s=19300, block_sizes=[3.0, 5.0, 7.0], k=81533, levels=127, bucket=512, index_bits=32, ratio=1e-6
    ),
    **dict(budget_d=40.0, u_over_d=0.2, mean_norm_sq=1.5, sum_norm_sq=700.0, sum_grad_sq=35.0),
}


def given(name: str, **changes):
    """A formula at CONSTANTS."""
    values = {**CONSTANTS, **changes}
    return FORMULAS[name](**{argument: values[argument] for argument in inspect.signature(FORMULAS[name]).parameters})


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_golden(case):
    """Computed apart from this package with 50 digits."""
    assert FORMULAS[case["function"]](**case["args"]) == pytest.approx(case["value"], rel=1e-9)


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMULAS)
def test_arrays_broadcast_and_numbers_give_floats(name):
    """Over each argument: the values at an array are the values at its elements."""
    assert isinstance(given(name), float) and FORMULAS[name].__doc__
    for argument in inspect.signature(FORMULAS[name]).parameters:
        if argument != "block_sizes":
            values = CONSTANTS[argument] * np.array([[1.0], [0.999]])
            if DOMAINS[argument][1] == "of at least 1":
                values = CONSTANTS[argument] + np.array([[0.0], [1.0]]) * (1 if argument not in "NK" else -1)
            expected = [given(name, **{argument: float(value)}) for value in values.flat]
            result = given(name, **{argument: values})
            assert result.shape == (2, 1) and result.ravel() == pytest.approx(expected, rel=1e-12)


WRONG = {"mu": [0, -1], "lam": [1, -0.1, 2], "eps": [0, -1], "S": [0, 101], "N": [0, 11], "K": [0.5, 101], "T": [0]}
WRONG |= {"sigma": [-1], "G": [-1], "beta": [0, 0.01], "decay": [0, 1.5], "ratio": [0, 2], "R": [0], "levels": [0]}


def test_partitions_are_rows():
    """One of three blocks each, or a single one."""
    assert theory.up_fedbcgd_mean([[3, 5, 7], [1, 1, 1]], 2).tolist() == [7, 3]
    assert theory.up_fedbcgd_max([3, 5, 7], [0, 2]).tolist() == [7, 9]


@pytest.mark.parametrize("argument", WRONG)
def test_what_is_outside_its_domain_is_named(argument):
    """Zero where division waits, more clients than there are, K = S/N below 1, mu above beta."""
    for value in [*WRONG[argument], float("nan"), float("inf"), "many"]:
        for name in FORMULAS:
            arguments = inspect.signature(FORMULAS[name]).parameters
            together = {(argument, value): argument in arguments}
            together |= {("S", 101): {"S", "M"} <= {*arguments}, ("K", 101): {"K", "M"} <= {*arguments}}
            together |= {("beta", 0.01): {"mu", "beta"} <= {*arguments}}
            together |= {("N", 11): {"N", "S"} <= {*arguments} and name != "com_exact_sc_over_log"}
            if argument in arguments and together[argument, value]:
                with pytest.raises(ValueError, match=rf"\b{argument} = .*expected"):
                    given(name, **{argument: value})


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"S \(3,\), T \(4,\).*expected shapes that broadcast"):
        given("fedavg_sc", S=np.full(3, 10), T=np.full(4, 50))


# --- Table 1 --------------------------------------------------------------------------------------------------------


def test_rounds_times_what_a_round_sends_is_the_table():
    """K = S/N makes Section 4 and Table 1 the same."""
    assert given("fedbcgd_rounds_sc") / 5 == pytest.approx(given("fedbcgd_sc"))
    assert given("fedbcgdplus_rounds_sc") / 5 == pytest.approx(given("fedbcgdplus_sc"))
    assert given("fedbcgdplus_rounds_nc") / 5 == pytest.approx(given("fedbcgdplus_nc"))
    assert given("fedbcgdplus_sc_table") == pytest.approx(given("fedbcgdplus_sc", N=10, S=10))  # sqrt(beta/mu) = 10


def test_the_gain_of_blocks_ends_where_noise_rules():
    """FedAvg's floats over FedBCGD's, towards 1 as eps falls: the leading term has no 1/N."""
    gain = [given("fedavg_sc", eps=eps) / given("fedbcgd_sc", eps=eps, lam=0.8) for eps in (1e-2, 1e-6, 1e-8)]
    assert gain == pytest.approx([6.75, 1.29, 1.03], abs=0.005)


def test_rows_take_what_they_need():
    row = {row.name: row for row in TABLE1}
    assert len(row) == 8
    assert row["FedBCGD+"].rounds(**CONSTANTS) == pytest.approx(given("fedbcgdplus_rounds_sc"))
    assert row["SCAFFOLD"].communication("non_convex", True, **CONSTANTS) == 2 * given("scaffold_nc")
    with pytest.raises(ValueError, match="no strongly_convex entry for CE-LSGD"):
        row["CE-LSGD"].communication(**CONSTANTS)
    with pytest.raises(ValueError, match="mu of FedLin were not given: expected mu, beta, eps"):
        row["FedLin"].communication(beta=1, eps=0.1)
    with pytest.raises(ValueError, match="expected 'strongly_convex' or 'non_convex'"):
        row["FedAvg"].communication("convex", **CONSTANTS)


# --- step limits and blocks -----------------------------------------------------------------------------------------


def test_printed_step_limits_break_the_proof():
    """The bracket at 1/8 and at 1 is far below 1/4; the corrected limits are in the range that the bracket allows."""

    def bracket(u, K, M, lam):
        a2 = theory.alpha(lam) ** 2
        return 1 - 192 * u**2 / a2 - 3072 * u**3 / a2 - 16 * u * (1 + (1 - K / M) / K)

    assert [bracket(1 / 8, 2, 100, lam) for lam in (0, 0.8)] == pytest.approx([-11.0, -2.34], abs=0.05)
    for K, lam in ((1, 0.0), (2, 0.0), (2, 0.8), (100, 0.999)):
        assert theory.thm1_bracket(0.3, K, 100, lam) == pytest.approx(bracket(0.3, K, 100, lam), rel=1e-12)
        assert bracket(theory.thm1_step_umax(K, 100, lam), K, 100, lam) == pytest.approx(0.25, abs=1e-12)
    assert 1 / theory.thm1_step_umax([1, 2, 2], 100, [0, 0, 0.8]) == pytest.approx([49.3, 40.6, 32.3], abs=0.05)
    assert 1 / theory.thm1_nc_step_umax([1, 2, 2, 2], 100, [0, 0.45, 0.8, 0.9]) == pytest.approx(
        [27.7, 17.2, 32, 59.5], abs=0.06
    )


def test_the_best_number_of_blocks_is_a_minimum():
    """Of the communication that pays for the shared block; with a free shared block there is none."""
    constants = dict(mu=0.1, beta=10.0, M=100, S=10, d=815332, d_s=19300)
    best = theory.optimal_blocks_exact(**constants)
    around = theory.com_exact_sc_over_log(N=best * np.array([0.9, 1, 1.1]), **constants)
    assert best == pytest.approx(20.3, abs=0.05) and around.argmin() == 1
    assert theory.com_exact_sc_over_log(N=[1, 5, best], **constants) == pytest.approx([110, 32.84, 21.75], abs=0.01)
    assert theory.optimal_blocks_exact(**{**constants, "d_s": 0}) == np.inf
