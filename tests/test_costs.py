"""What the ledger of a real run holds, against the costs that follow from the paper's partitions."""

import functools
from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from helpers import METHODS, run, toy
from test_models import COUNTS

from fedbcgd_lite import Blocks, CentralisedSGD, Compressed, FedAvg, FedAvgM, FedBCGD, Problem, simulate
from fedbcgd_lite.blocks import partition
from fedbcgd_lite.models import LeNet5
from fedbcgd_lite.rng import global_rng

S, N = 10, 5


LENETS = [case for case in COUNTS if case.model == "lenet5" and case.name in ("paper", "authors")]
every_lenet = pytest.mark.parametrize("case", LENETS, ids=lambda case: f"{case.name}, {case.n_classes} classes")


@functools.cache
def lenet_round(algorithm, n_classes: int):
    """One round of LeNet-5 on CIFAR's shape: S = 10 clients, one random sample each."""
    with global_rng(0, "init"):
        model, x = LeNet5((3, 32, 32), n_classes), torch.randn(S, 3, 32, 32)
    problem = Problem(model, (x, torch.arange(S)), np.split(np.arange(S), S))
    return simulate(problem, algorithm, rounds=1, clients_per_round=S, local_epochs=1)


def uploads(trajectory, round: int = 0) -> dict[int, int]:
    """Floats that each client of a round sent."""
    clients = {row[1] for row in trajectory.ledger.rows if row[0] == round}
    return {client: trajectory.ledger.sum("floats", "up", round=round, client=client) for client in clients}


# --- LeNet-5 --------------------------------------------------------------------------------------------------------


@every_lenet
def test_lenet_block_sizes_are_those_of_the_paper(case):
    """The paper's Table 7 with its biases, and the list of the authors' script, give these numbers of floats."""
    blocks = partition(LeNet5((3, 32, 32), case.n_classes), case.name)
    assert (blocks.sizes, blocks.shared, blocks.d) == (case.sizes, case.shared, case.d)


@every_lenet
def test_each_lenet_client_sends_its_block_and_the_shared_one(case):
    """A client of group j uploads d_j + d_s floats, with the ledger's own block numbers (the paper, Section 3.1)."""
    rows = lenet_round(FedBCGD(case.name), case.n_classes).ledger.rows
    sent = uploads(lenet_round(FedBCGD(case.name), case.n_classes))
    assert len(sent) == S
    assert sent == {client: case.sizes[block] + case.shared for _, client, block, *_ in rows}


@every_lenet
def test_lenet_mean_upload_is_exactly_the_one_of_the_formula(case):
    """All uploads of a round add up to S ubar, where ubar = (d - d_s)/N + d_s (the paper, Table 7)."""
    trajectory = lenet_round(FedBCGD(case.name), case.n_classes)
    ubar = Fraction(case.d - case.shared, N) + case.shared
    assert trajectory.ledger.sum("floats", "up") == S * ubar
    assert f"{trajectory.rows[-1]['upload_d']:.6f}" == f"{trajectory.blocks.mean_upload_d:.6f}" == case.mean_d
    assert trajectory.rows[-1]["upload_d"] == pytest.approx(float(ubar / case.d), rel=1e-14)


@every_lenet
def test_lenet_largest_upload_is_exactly_the_one_of_the_formula(case):
    """The client that a synchronous round waits for sends max_j d_j + d_s floats: 0.77 d and more, not d/N."""
    trajectory = lenet_round(FedBCGD(case.name), case.n_classes)
    assert max(uploads(trajectory).values()) == max(case.sizes) + case.shared
    assert trajectory.blocks.max_upload_d == (max(case.sizes) + case.shared) / case.d
    assert f"{trajectory.blocks.max_upload_d:.4f}" == case.max_d


@pytest.mark.parametrize("name", ["paper", "authors"])
def test_lenet_without_a_shared_block_uploads_d_over_n_on_average(name):
    """Without a shared block the nominal d/N of the paper's Table 1 is exact: S clients send S d/N floats together."""
    trajectory = lenet_round(FedBCGD(name, shared=False), 10)
    assert N * trajectory.ledger.sum("floats", "up") == S * 797962
    assert trajectory.blocks.mean_upload_d == pytest.approx(1 / N, rel=1e-14)


@pytest.mark.parametrize("algorithm, n_classes, d", [(FedAvg(), 10, 797962), (FedAvgM(), 100, 815332)], ids=repr)
def test_lenet_clients_of_fedavg_send_d_floats(algorithm, n_classes, d):
    """FedAvg and FedAvgM upload the whole model, once a round (the paper, Table 1)."""
    trajectory = lenet_round(algorithm, n_classes)
    assert uploads(trajectory) == dict.fromkeys(range(S), d)
    assert trajectory.rows[-1]["upload_d"] == 1


# --- any model ------------------------------------------------------------------------------------------------------

federated = {name: algorithm for name, algorithm in METHODS.items() if not algorithm.pooled}
every_federated = pytest.mark.parametrize("algorithm", federated.values(), ids=federated.keys())


@every_federated
def test_each_client_downloads_x_and_what_the_method_broadcasts(algorithm):
    """The server sends x, and c or g where clients are corrected, whole and to every client of a round."""
    ledger = run(toy(), algorithm, rounds=1).ledger
    down = [row for row in ledger.rows if row[3] == "down"]
    assert [(key, floats) for *_, key, floats, _ in down] == [(key, 64) for key in algorithm.broadcast] * 4


@every_federated
@pytest.mark.parametrize("dtype, bits", [(torch.float32, 32), (torch.float64, 64)], ids=str)
def test_bits_are_those_of_the_type_that_is_sent(algorithm, dtype, bits):
    """A float costs 32 bits in single and 64 in double precision, both ways; packed bits are counted by 32."""
    ledger = run(toy(dtype=dtype), algorithm, rounds=1).ledger
    for *_, direction, _, floats, sent in ledger.rows:
        packed = direction == "up" and isinstance(algorithm, Compressed)
        assert sent == floats * (32 if packed else bits)


@every_federated
def test_rows_hold_the_ledgers_sums_per_participant(algorithm):
    """Uploads and downloads in a run's rows are the ledger's sums divided by the S participants of a round."""
    trajectory = run(toy(), algorithm)
    last, ledger = trajectory.rows[-1], trajectory.ledger
    assert last["upload_d"] == pytest.approx(ledger.sum("floats", "up") / 4 / 64, rel=1e-14)
    assert last["upload_bits"] == ledger.sum("bits", "up") / 4
    assert last["download_bits"] == ledger.sum("bits", "down") / 4
    assert sum(bits for _, bits in ledger.totals().values()) == 4 * (last["upload_bits"] + last["download_bits"])


@pytest.mark.parametrize("algorithm, nominal_d", [(FedAvg(), 1), (FedBCGD("balanced:5"), 1 / 5)], ids=repr)
def test_nominal_upload_has_its_own_column(algorithm, nominal_d):
    """The nominal d or d/N a round (the paper, Table 1) is reported beside what was sent, which it leaves alone."""
    last = run(toy(), algorithm, rounds=3, clients_per_round=5).rows[-1]
    assert last["upload_nominal_d"] == pytest.approx(3 * nominal_d, rel=1e-14)
    assert (last["upload_d"] == last["upload_nominal_d"]) == (nominal_d == 1)


def test_centralised_sgd_sends_nothing():
    """SGD on pooled data communicates nothing in either direction, and says so in its rows."""
    trajectory = run(toy(), CentralisedSGD())
    assert trajectory.ledger.rows == []
    for column in ("upload_d", "upload_nominal_d", "upload_bits", "download_bits"):
        assert trajectory.rows[-1][column] == 0


# --- budgets --------------------------------------------------------------------------------------------------------

BUDGETED = [  # method, S, exact mean upload u/d
    (FedAvg(), 4, Fraction(1)),
    (FedBCGD("balanced:2"), 4, (Fraction(49, 2) + 15) / 64),
    (FedBCGD("balanced:5", shared=False), 5, Fraction(1, 5)),
    (FedBCGD(Blocks((40, 4, 4, 1), 15)), 8, (Fraction(49, 4) + 15) / 64),
]


@pytest.mark.parametrize("algorithm, clients_per_round, upload_d", BUDGETED, ids=str)
@pytest.mark.parametrize("budget_d", [1, 2.5, 3])
def test_a_budget_of_x_d_lasts_floor_x_d_over_u_rounds(algorithm, clients_per_round, upload_d, budget_d):
    """R = floor(X d / u), where the last round may use the budget up to the last float but not exceed it."""
    protocol = dict(rounds=None, budget_d=budget_d, local_epochs=1, batch_size=5, clients_per_round=clients_per_round)
    trajectory = run(toy(), algorithm, **protocol)
    assert trajectory.round == floor(Fraction(budget_d) / upload_d)
    assert trajectory.rows[-1]["round"] == trajectory.round
    assert trajectory.rows[-1]["upload_d"] <= budget_d * (1 + 1e-12)


def test_of_rounds_and_budget_the_smaller_ends_the_run():
    """With both limits given, whichever is met first ends the run."""
    assert run(toy(), FedAvg(), rounds=2, budget_d=3).round == 2
    assert run(toy(), FedAvg(), rounds=3, budget_d=2).round == 2
