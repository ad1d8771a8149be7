"""Blocks partition the parameters, clients are dealt to them as in Figure 2, the server follows what was sent."""

from itertools import accumulate, combinations

import numpy as np
import pytest
import torch
from helpers import run, toy
from torch import nn

from fedbcgd_lite import Blocks, FedAvg, FedBCGD
from fedbcgd_lite.blocks import partition
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.models import MODELS, VGG19, LeNet5, LogisticRegression, ResNet18, VGG11Table8, ViTSmall
from fedbcgd_lite.paper_blocks import PAPER
from fedbcgd_lite.simulate import select


class Odd(nn.Module):
    """A parameter of the module itself, a frozen layer, a normalisation layer and a nested one."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5, bias=False))
        self.head = nn.Linear(5, 2)


def tower(sizes) -> nn.Module:
    """A row of linear layers with these numbers of parameters, weight and bias."""
    return nn.Sequential(*(nn.Linear(size - 1, 1) for size in sizes))


LENET = LeNet5((1, 28, 28), 10, width=4)
PARTITIONS = {
    "LeNet, Table 7": (LENET, "paper"),
    "LeNet, the authors' script": (LENET, "authors"),
    "LeNet, nearly equal": (LENET, "balanced5"),
    "LeNet, whole": (LENET, "whole"),
    "LeNet, balanced": (LENET, "balanced:7"),
    "LeNet, layers": (LENET, "layers:3"),
    "LeNet, groups": (LENET, ((("fc2", "conv1.bias"), ("conv2", "fc1"), ("fc3",)), ("conv1.weight",))),
    "LeNet, nothing shared": (LENET, ((("fc2", "conv1"), ("conv2", "fc1"), ("fc3",)), ())),
    "LeNet, slices": (
        LENET,
        ((("fc2", "fc1[1/4]"), ("fc1[2/4]", "fc1[3/4]"), ("fc1[4/4]", "conv2")), ("fc3", "conv1")),
    ),
    "VGG-11, Table 8": (VGG11Table8((1, 28, 28), 10, width=2), "paper"),
    "VGG-19, Table 10": (VGG19((1, 28, 28), 10, width=2), "paper"),
    "ResNet-18, Table 9": (ResNet18((1, 28, 28), 10, width=2), "paper"),
    "ViT, by layers": (ViTSmall((1, 28, 28), 10, width=4), "paper"),
    "odd, balanced": (Odd(), "balanced:4"),
    "odd, layers": (Odd(), "layers:3"),
    "odd, whole": (Odd(), "whole"),
    "odd, groups": (Odd(), ((("body",), ("scale",), ()), ("head",))),
    "odd, sizes": (Odd(), Blocks((50, 0, 25), 12)),
    "logistic, balanced": (LogisticRegression((1, 2, 2), 3), "balanced:4"),
    "tower, layers": (tower([8, 12, 66, 14, 15, 9, 8]), "layers:5"),
}
every_partition = pytest.mark.parametrize("module, description", PARTITIONS.values(), ids=PARTITIONS.keys())


def trainable(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


# --- partitions -----------------------------------------------------------------------------------------------------


@every_partition
def test_blocks_are_disjoint_and_complete(module, description):
    """x = [x_(1); ...; x_(N); x_s] (the paper, Eq. (2)): each coordinate is in one block, the shared one common."""
    blocks = partition(module, description)
    slots = [blocks.slot(0, j) for j in range(blocks.n_blocks)]
    shared = {(cut.start, cut.stop) for slot in slots for part, cut in slot.cuts if part == "shared"}
    exclusive = [(cut.start, cut.stop) for slot in slots for part, cut in slot.cuts if part == "block"]
    held = [i for start, stop in (*exclusive, *shared) for i in range(start, stop)]
    assert sorted(held) == list(range(blocks.d))
    assert blocks.d == sum(p.numel() for p in trainable(module).values())


@every_partition
def test_a_mask_is_one_on_the_cuts_alone(module, description):
    """Freezing trains exactly what is uploaded: d_j + d_s coordinates (the paper, Figure 5)."""
    blocks = partition(module, description)
    for j, size in enumerate(blocks.sizes):
        slot = blocks.slot(0, j)
        mask = slot.mask(torch.rand(blocks.d))
        assert mask.sum() == size + blocks.shared
        assert all((mask[cut] == 1).all() for _, cut in slot.cuts)


@every_partition
def test_the_flat_vector_names_every_trainable_parameter_once(module, description):
    """Laid out as the blocks say and taken apart again, parameters are the module's own, frozen ones left out."""
    flat = Flat(module, partition(module, description), nn.functional.cross_entropy)
    assert sorted(flat.names) == sorted(trainable(module))
    assert all(torch.equal(value, trainable(module)[name]) for name, value in flat.unflatten(flat.x0).items())
    rebuilt = flat.to_module(flat.x0).state_dict()
    assert all(torch.equal(value, rebuilt[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("name, layers", [("paper", "conv1 conv2 fc1 fc2"), ("authors", "conv1 conv2 fc1")])
def test_a_printed_partition_puts_each_layer_where_the_paper_does(name, layers):
    """Block j is the j-th layer, weight and bias, and the shared block holds the rest (the paper, Table 7)."""
    blocks = partition(LENET, name)
    x = Flat(LENET, blocks, nn.functional.cross_entropy).x0
    for j, layer in enumerate(layers.split()):
        (part, cut), _ = blocks.slot(0, j).cuts
        values = LENET.get_submodule(layer)
        assert part == "block" and torch.equal(x[cut], torch.cat([values.weight.flatten(), values.bias]))


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 7, 50, 75])
def test_balanced_blocks_differ_by_one_float_at_most(n_blocks):
    """The description "balanced:N" cuts all but the last linear layer into N equal slices, through layers too."""
    blocks = partition(Odd(), f"balanced:{n_blocks}")
    assert blocks.n_blocks == n_blocks and blocks.shared == 12
    assert max(blocks.sizes) - min(blocks.sizes) <= 1 and min(blocks.sizes) > 0


@pytest.mark.parametrize("model", [name for name in MODELS if name != "vit_base_pretrained"])
def test_every_model_can_be_cut_in_one_to_twenty_equal_blocks(model):
    """The paper's Figure 4 varies N from 1 to 20: the largest upload is then the mean one, up to one float."""
    with torch.device("meta"):
        module = MODELS[model]((3, 224, 224) if model == "vit_base" else (3, 32, 32), 100, 64)
    d = sum(p.numel() for p in module.parameters())
    for n_blocks in range(1, 21):
        blocks = partition(module, f"balanced:{n_blocks}")
        assert (blocks.n_blocks, blocks.d) == (n_blocks, d) and max(blocks.sizes) - min(blocks.sizes) <= 1
        assert blocks.max_upload_d == pytest.approx(blocks.mean_upload_d, abs=1 / d)


def test_slices_cut_a_layer_row_after_row():
    """fc1[1/3] holds the first third of the rows of fc1 (its biases stand behind all rows, in the last slice)."""
    layers = "conv1 conv2 fc2".split()
    blocks = partition(LENET, (([*layers, "fc1[1/3]"], ["fc1[2/3]"], ["fc1[3/3]"]), ["fc3"]))
    x = Flat(LENET, blocks, nn.functional.cross_entropy).x0
    layer = torch.cat([LENET.fc1.weight.flatten(), LENET.fc1.bias])  # (1560,)
    before = sum(p.numel() for name in layers for p in LENET.get_submodule(name).parameters())
    assert blocks.sizes == (before + 520, 520, 520)
    assert torch.equal(x[before : before + 520], layer[:520])
    assert torch.equal(x[blocks.slot(0, 1).cuts[0][1]], layer[520:1040])
    assert torch.equal(x[blocks.slot(0, 2).cuts[0][1]], layer[1040:])


@pytest.mark.parametrize("n", [1, 7, 1560])
def test_slices_differ_by_one_float_at_most(n):
    """A layer is cut in n equal parts, or in parts of k and k + 1 floats."""
    slices = [(f"fc1[{i}/{n}]",) for i in range(1, n + 1)]
    blocks = partition(LENET, ((("conv1", "conv2", "fc2"), *slices), ("fc3",)))
    assert sum(blocks.sizes[1:]) == 1560 and max(blocks.sizes[1:]) - min(blocks.sizes[1:]) <= 1


SLICES = {
    "in the wrong order": ["fc1[2/3]", "fc1[1/3]", "fc1[3/3]"],
    "one missing": ["fc1[1/3]", "fc1[3/3]"],
    "the last one missing": ["fc1[1/3]", "fc1[2/3]"],
    "the first one missing": ["fc1[2/3]", "fc1[3/3]"],
    "one twice": ["fc1[1/2]", "fc1[1/2]", "fc1[2/2]"],
    "counted from 0": ["fc1[0/2]", "fc1[1/2]"],
    "one too many": ["fc1[1/1]", "fc1[2/1]"],
    "of two kinds": ["fc1[1/3]", "fc1[2/2]", "fc1[3/3]"],
}


@pytest.mark.parametrize("entries", SLICES.values(), ids=SLICES.keys())
def test_slices_that_do_not_make_up_the_layer_are_refused(entries):
    """All slices of a layer, in order, with nothing between them; the sentence shows what was meant."""
    with pytest.raises(ValueError, match=r"names 'fc1\[\d/\d\]': expected all slices of fc1 in order, from fc1\[1/"):
        partition(LENET, ((("conv1",), *((entry,) for entry in entries), ("conv2", "fc2")), ("fc3",)))


def test_slices_beside_the_whole_layer_are_refused():
    """Each parameter belongs to exactly one block, cut or not."""
    with pytest.raises(ValueError, match="repeats fc1.bias, fc1.weight"):
        partition(LENET, ((("conv1", "fc1[1/2]"), ("fc1[2/2]", "conv2"), ("fc1", "fc2")), ("fc3",)))
    with pytest.raises(ValueError, match=r"names 'fc1\[1/0\]', which is no parameter"):
        partition(LENET, ((("conv1", "fc1[1/0]"),), ("fc3",)))


def test_a_partition_of_another_model_is_refused():
    """By its names, by its number of floats, or because nothing is known under that word."""
    vgg = VGG11Table8((1, 28, 28), 10, width=2)
    with pytest.raises(ValueError, match="names 'fc1', which is no parameter of the model"):
        partition(LogisticRegression((1, 2, 2), 3), ((("fc1",),), ("fc2",)))
    with pytest.raises(ValueError, match="misses conv3.weight"):
        partition(vgg, PAPER["LeNet5", "paper"])
    with pytest.raises(ValueError, match="but VGG11Table8 has"):
        partition(vgg, partition(LENET, "paper"))
    with pytest.raises(ValueError, match="no 'balanced5' partition is known for VGG11Table8"):
        partition(vgg, "balanced5")


TOWERS = np.random.default_rng(0).integers(2, 30, (20, 7)).tolist()  # sizes of six layers and the last one
every_count = pytest.mark.parametrize("n_blocks", range(1, 7))


@every_count
def test_runs_of_layers_have_the_smallest_possible_largest_block(n_blocks):
    """The description "layers:N" is as good as the best of all ways to cut a row of layers in N (brute force)."""
    for *body, last in TOWERS:
        ways = [(0, *inner, len(body)) for inner in combinations(range(1, len(body)), n_blocks - 1)]
        best = min(max(sum(body[a:b]) for a, b in zip(way, way[1:])) for way in ways)
        blocks = partition(tower([*body, last]), f"layers:{n_blocks}")
        assert (max(blocks.sizes), blocks.shared) == (best, last)


@every_count
def test_runs_of_layers_never_cut_a_layer_and_are_never_empty(n_blocks):
    """Each of the N blocks of "layers:N" holds a layer at least and ends where a layer ends."""
    for sizes in TOWERS:
        blocks = partition(tower(sizes), f"layers:{n_blocks}")
        assert len(blocks.sizes) == n_blocks and min(blocks.sizes) > 0
        assert set(accumulate(blocks.sizes)) <= set(accumulate(sizes))


@every_partition
def test_without_shared_appends_the_shared_block_to_block_n(module, description):
    """The ablation of the paper's Figure 5 keeps the layout and gives the last group the shared block."""
    blocks = partition(module, description)
    alone = blocks.without_shared()
    assert (alone.d, alone.shared, alone.order) == (blocks.d, 0, blocks.order)
    assert alone.sizes == (*blocks.sizes[:-1], blocks.sizes[-1] + blocks.shared)


# --- sampling and dealing -------------------------------------------------------------------------------------------

ROUNDS = 1500


def dealt(S: int, N: int, rounds: int, M: int = 12):
    """The slots of many rounds: client and block of each, two arrays (rounds, S)."""
    drawn = [select(np.arange(M), S, Blocks((1,) * N), 0, r) for r in range(rounds)]
    return (np.array([[getattr(slot, name) for slot in slots] for slots in drawn]) for name in ("client", "block"))


@pytest.mark.parametrize("S, N", [(10, 5), (10, 6), (10, 20), (4, 3), (7, 7), (1, 1), (1, 4), (12, 5)])
def test_groups_hold_floor_or_ceil_of_s_over_n_clients(S, N):
    """With floor(S/N) or ceil(S/N) clients a group is as even as it can be; with N > S some are empty that round."""
    _, blocks = dealt(S, N, rounds=30)
    sizes = np.stack([np.bincount(row, minlength=N) for row in blocks])  # (rounds, N)
    assert sizes.shape[1] == N and (sizes.sum(1) == S).all()
    assert sizes.min() == S // N and sizes.max() == -(-S // N)


@pytest.mark.parametrize("S, N", [(10, 6), (4, 3), (2, 5)])
def test_the_larger_groups_are_chosen_anew_each_round(S, N):
    """Over many rounds no group is the larger one more often than another (within 5 standard deviations)."""
    _, blocks = dealt(S, N, ROUNDS)
    larger = (np.stack([np.bincount(row, minlength=N) for row in blocks]) > S // N).sum(0)
    p = (S % N) / N
    assert (np.abs(larger - ROUNDS * p) < 5 * np.sqrt(ROUNDS * p * (1 - p))).all()


def test_the_clients_of_a_round_are_distinct_and_hold_data():
    """Sampling is without replacement, among the holders only (the paper, Section 3.1)."""
    holders = np.array([1, 2, 5, 7, 8, 11])
    for r in range(100):
        clients = [slot.client for slot in select(holders, 4, Blocks((1, 1)), 0, r)]
        assert len(set(clients)) == 4 and set(clients) <= set(holders)


@pytest.mark.parametrize("S, N", [(4, 2), (4, 3), (3, 5)])
def test_each_client_meets_each_block_equally_often(S, N):
    """A client is in group j with probability S/(M N) in every round (within 5 standard deviations)."""
    clients, blocks = dealt(S, N, ROUNDS)
    meetings = np.zeros((12, N))
    np.add.at(meetings, (clients.ravel(), blocks.ravel()), 1)
    p = S / (12 * N)
    assert (np.abs(meetings - ROUNDS * p) < 5 * np.sqrt(ROUNDS * p * (1 - p))).all()


# --- the server follows what was sent -------------------------------------------------------------------------------


def deal(block_of):
    """A selection of clients 0..3 that puts client i of a round into block_of(i, round)."""
    return lambda holders, S, blocks, seed, round: [blocks.slot(i, block_of(i, round)) for i in range(4)]


def displacement(client: int) -> torch.Tensor:
    """dx (64,) of one client in the first round: what a round of FedAvg does in which it is alone."""
    alone = run(toy(), FedAvg(), rounds=1, select=lambda holders, S, blocks, seed, round: [blocks.slot(client, 0)])
    return alone.x - x0()


def x0() -> torch.Tensor:
    return nn.utils.parameters_to_vector(toy().model.parameters()).detach()


def test_a_block_is_averaged_over_the_clients_that_sent_it():
    """Groups of 1 and 3: D_(1) is the mean over 1 client, D_(2) over 3, D_s over all 4 (the paper, Section 3.1)."""
    after = run(toy(), FedBCGD("balanced:2"), rounds=1, select=deal(lambda i, round: min(i, 1)))
    dx = torch.stack([displacement(i) for i in range(4)])  # (4, 64)
    expected = torch.cat([dx[0, :24], dx[1:, 24:49].mean(0), dx[:, 49:].mean(0)])
    torch.testing.assert_close(after.x - x0(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("momentum", [0, 0.6])
def test_a_block_that_nobody_sent_keeps_its_value_and_its_momentum(momentum):
    """With an empty group x_(j) and v_(j) stay as they are that round, and the other coordinates go on."""
    servers, sent = [], [*range(24), *range(49, 64)]  # the second block is sent in the first round only
    both_then_first = deal(lambda i, round: i % 2 if round == 0 else 0)
    algorithm = FedBCGD("balanced:2", momentum)
    run(toy(), algorithm, select=both_then_first, on_round=lambda t: servers.append(dict(t.server)))
    for before, after in zip(servers, servers[1:]):
        for key in ("x", "v"):
            assert torch.equal(before[key][24:49], after[key][24:49]) and before["v"][24:49].abs().min() > 0
            assert (before[key] != after[key])[sent].all()
