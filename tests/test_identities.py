"""Methods that must coincide, and runs that must be the same run."""

import copy

import numpy as np
import pytest
import torch
from helpers import METHODS, TOY, assert_same_run, assert_same_tensors, local_sgd, parameters, run, toy
from torch import nn
from torch.nn import functional as F

from fedbcgd_lite import Blocks, CentralisedSGD, FedAvg, FedAvgM, FedBCGD, Problem, Training
from fedbcgd_lite.blocks import partition
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.simulate import Trajectory, plan, select

every_method = pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS.keys())

# --- methods that coincide ------------------------------------------------------------------------------------------

SAME_TO_THE_BIT = {
    "FedBCGD with one block is FedAvgM": (FedBCGD("whole"), FedAvgM()),
    "FedBCGD with one block, lambda = 0 is FedAvg": (FedBCGD("whole", momentum=0), FedAvg()),
    "FedAvgM with lambda = 0 is FedAvg": (FedAvgM(momentum=0), FedAvg()),
}


@pytest.mark.parametrize("left, right", SAME_TO_THE_BIT.values(), ids=SAME_TO_THE_BIT.keys())
def test_methods_coincide_bit_for_bit(left, right):
    """N = 1 without shared block, and lambda = 0, take a method back to the simpler one (the paper, Section 3.1)."""
    left, right = run(toy(), left), run(toy(), right)
    assert torch.equal(left.x, right.x)
    assert left.rows == right.rows


@pytest.mark.parametrize("empty_blocks", [1, 3, 6])
def test_fedbcgd_with_everything_shared_is_fedavgm(empty_blocks):
    """With all parameters in the shared block each client sends all, and means are over S (the paper, Eq. (2))."""
    shared = run(toy(), FedBCGD(Blocks((0,) * empty_blocks, shared=64)))
    fedavgm = run(toy(), FedAvgM())
    torch.testing.assert_close(shared.server, fedavgm.server, rtol=1e-13, atol=1e-15)
    assert shared.upload_floats == fedavgm.upload_floats


def test_momentum_starts_in_the_second_round():
    """v starts at zero: FedAvgM's first round is FedAvg's for every lambda, its second is not (Hsu et al., 2019)."""
    assert torch.equal(run(toy(), FedAvgM(0.6), rounds=1).x, run(toy(), FedAvg(), rounds=1).x)
    assert not torch.allclose(run(toy(), FedAvgM(0.6), rounds=2).x, run(toy(), FedAvg(), rounds=2).x)


@pytest.mark.parametrize("rounds", [1, 4])
def test_freezing_changes_nothing_with_one_local_step(rounds):
    """With T = 1 the sent coordinates never see the frozen ones move, weight decay included (the paper, Figure 5)."""
    one_step = dict(rounds=rounds, local_epochs=1, batch_size=5)
    free, frozen = (run(toy(), FedBCGD("balanced:2", freeze=freeze), **one_step) for freeze in (False, True))
    assert_same_tensors(free.server, frozen.server)


def test_freezing_matters_with_two_local_steps():
    """With T = 2 the frozen coordinates are seen by the second gradient: the ablation is not vacuous."""
    two_steps = dict(rounds=1, local_epochs=2, batch_size=5)
    free, frozen = (run(toy(), FedBCGD("balanced:2", freeze=freeze), **two_steps) for freeze in (False, True))
    assert not torch.allclose(free.x, frozen.x)


def test_freezing_leaves_the_other_blocks_untouched():
    """A client that freezes ends its T steps with the other blocks at x, weight decay or not (the paper, Figure 5)."""
    problem, algorithm = toy(), FedBCGD("balanced:2", freeze=True)
    blocks = partition(problem.model, algorithm.blocks)
    flat, batches = Flat(problem.model, blocks, problem.loss), plan(np.arange(5), Training(**TOY), 0, 0, 0)
    sgd = local_sgd(problem, flat, np.arange(40), batches, lr=0.1, weight_decay=0.3)
    for slot in (blocks.slot(0, 0), blocks.slot(0, 1)):
        out, _ = algorithm.train({"x": flat.x0}, {}, slot, sgd)
        assert torch.equal(out["dx"] != 0, slot.mask(flat.x0) == 1)


# --- names and order of blocks mean nothing -------------------------------------------------------------------------


def relabelled(numbers):
    """The package's own selection with block j called numbers[j]."""

    def renamed_select(holders, S, blocks, seed, round):
        return [blocks.slot(slot.client, numbers[slot.block]) for slot in select(holders, S, blocks, seed, round)]

    return renamed_select


@pytest.mark.parametrize("freeze", [False, True])
def test_renaming_blocks_changes_nothing(freeze):
    """Blocks 1, 2 called 2, 1, with clients following their blocks, give the same model (the paper, Eq. (2))."""
    straight = FedBCGD(((("first",), ("second",)), ("last",)), freeze=freeze)
    renamed = FedBCGD(((("second",), ("first",)), ("last",)), freeze=freeze)
    before = run(toy(), straight)
    after = run(toy(), renamed, select=relabelled([1, 0]))
    assert_same_tensors(parameters(toy(), before), parameters(toy(), after))
    assert before.rows == after.rows
    assert before.blocks.order != after.blocks.order


def test_order_inside_a_block_changes_nothing():
    """Where a parameter lies within its block is a matter of layout only (the paper, Eq. (2))."""
    straight = FedBCGD(((("first.weight", "first.bias"), ("second",)), ("last",)))
    turned = FedBCGD(((("first.bias", "first.weight"), ("second",)), ("last",)))
    before, after = (parameters(toy(), run(toy(), algorithm)) for algorithm in (straight, turned))
    assert_same_tensors(before, after)


# --- a run is a function of its arguments ---------------------------------------------------------------------------


@every_method
def test_a_run_repeats_bit_for_bit(algorithm):
    """The same arguments give the same run, whatever torch's and NumPy's global generators did in between."""
    first = run(toy(), algorithm)
    torch.rand(3)
    np.random.rand(3)
    assert_same_run(first, run(toy(), algorithm))


@every_method
def test_another_seed_is_another_run(algorithm):
    """The seed reaches the batches of every method, so that equality of two runs says something."""
    assert not torch.allclose(run(toy(), algorithm, seed=0).x, run(toy(), algorithm, seed=1).x)


@every_method
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_resumed_run_is_the_uninterrupted_one(algorithm, dropout):
    """Going on from a copy of any round ends bit for bit as the uninterrupted run did, rows and ledger included."""
    copies = []
    whole = run(toy(dropout), algorithm, on_round=lambda trajectory: copies.append(copy.deepcopy(trajectory)))
    assert [trajectory.round for trajectory in copies] == [1, 2, 3, 4]
    for trajectory in copies:
        assert_same_run(run(toy(dropout), algorithm, resume=trajectory), whole)


def test_a_resumed_run_keeps_its_budget():
    """What a run has uploaded travels with it, so that an interruption does not buy more rounds."""
    algorithm, limits = FedBCGD("balanced:2"), dict(rounds=None, budget_d=2.5)
    whole = run(toy(), algorithm, **limits)
    resumed = run(toy(), algorithm, resume=run(toy(), algorithm, rounds=2), **limits)
    assert_same_run(whole, resumed)


def test_resuming_depends_on_the_momentum():
    """A run that goes on without its v ends elsewhere: resuming is not vacuous."""
    copies = []
    whole = run(toy(), FedAvgM(), on_round=lambda trajectory: copies.append(copy.deepcopy(trajectory)))
    copies[1].server["v"].zero_()
    assert not torch.allclose(run(toy(), FedAvgM(), resume=copies[1]).x, whole.x)


def test_dropout_is_at_work_and_repeats():
    """A reader's nn.Dropout draws in training, from a stream of the seed; evaluation does not draw."""
    first, again, without = (run(toy(dropout), FedBCGD("balanced:2")) for dropout in (0.5, 0.5, 0.0))
    assert_same_run(first, again)
    assert not torch.allclose(first.x, without.x)
    assert first.rows[0]["test_loss"] == without.rows[0]["test_loss"]


another_place = pytest.mark.parametrize("round, client", [(1, 0), (0, 1)], ids=["another round", "another client"])


def one_step(dropout: float, round: int, client: int) -> torch.Tensor:
    """x after one full-batch step of one client, from x0 in any round; all clients hold the same samples."""
    problem = Problem(toy(dropout).model, toy().train, [np.arange(5)] * 8)
    start = Trajectory(Blocks((64,)), {"x": Flat(problem.model, Blocks((64,)), problem.loss).x0}, round)
    start.rows.append({"upload_d": 0.0})
    hooks = dict(
        select=lambda holders, S, blocks, seed, round: [blocks.slot(client, 0)],
        plan=lambda indices, training, seed, round, client: [indices],
    )
    return run(problem, FedAvg(), resume=start, rounds=round + 1, lr_decay=1.0, **hooks).x


@another_place
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_each_round_and_client_draws_its_own_dropout(dropout, round, client):
    """The same step in another round or by another client differs by the units it drops, and by nothing else."""
    assert torch.equal(one_step(dropout, 0, 0), one_step(dropout, round, client)) == (dropout == 0)


@another_place
def test_each_round_and_client_draws_its_own_batches(round, client):
    """The order of a client's samples is drawn anew in each round, and not the same for all clients."""
    first, other = (
        np.concatenate(plan(np.arange(20), Training(**TOY), 0, *place)) for place in ((0, 0), (round, client))
    )
    assert (first != other).any() and sorted(first) == sorted(other)


# --- against plain PyTorch ------------------------------------------------------------------------------------------


def test_centralised_sgd_is_a_plain_torch_loop():
    """CentralisedSGD is SGD with weight decay on the pooled samples: the loop that anyone would write."""
    problem, training = toy(), Training(**TOY)
    model = copy.deepcopy(problem.model)
    for r in range(training.rounds):
        for batch in plan(np.concatenate(problem.clients), training, 0, r, 0):
            model.zero_grad()
            F.cross_entropy(model(problem.train[0][batch]), problem.train[1][batch]).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= training.lr * training.lr_decay**r * (p.grad + training.weight_decay * p)
    x = run(problem, CentralisedSGD()).x
    torch.testing.assert_close(x, nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("frozen", [[], ["second"], ["first", "last"]], ids=str)
def test_local_sgd_is_torch_sgd(frozen):
    """T local steps of one client are those of torch.optim.SGD with weight decay; a mask is requires_grad_(False)."""
    problem, batches = toy(), plan(np.arange(5, 10), Training(**TOY), 0, 0, 1)
    model = copy.deepcopy(problem.model)
    for layer in frozen:
        model.get_submodule(layer).requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, weight_decay=0.3)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(problem.train[0][batch]), problem.train[1][batch]).backward()
        optimizer.step()
    flat = Flat(problem.model, Blocks((64,)), problem.loss)
    mask = torch.cat([torch.full_like(p, p.requires_grad).flatten() for p in model.parameters()]).detach()
    y = local_sgd(problem, flat, np.arange(40), batches, lr=0.1, weight_decay=0.3)(flat.x0, mask)
    torch.testing.assert_close(y, nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=1e-12, atol=1e-12)


@every_method
def test_the_readers_module_is_left_alone(algorithm):
    """A run works on a copy: the module that was passed in keeps its values and its mode."""
    problem = toy()
    before = copy.deepcopy(problem.model.state_dict())
    run(problem, algorithm, rounds=1)
    assert_same_tensors(before, problem.model.state_dict())
    assert problem.model.training


def test_the_trained_module_predicts_what_the_run_measured():
    """problem.trained(run) is the model at run.x, whatever the order of the blocks; the reader's own is left alone."""
    problem = toy()
    t = run(problem, FedBCGD(((("second",), ("first",)), ("last",))))
    inputs, targets = problem.test
    accuracy = 100 * (problem.trained(t).eval()(inputs).argmax(1) == targets).double().mean().item()
    assert accuracy == pytest.approx(t.rows[-1]["accuracy"])
    assert not torch.equal(problem.trained(t).first.weight, problem.model.first.weight)
