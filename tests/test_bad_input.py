"""Errors teach: what was given, what is expected, what to do - in one ValueError, before the first round."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedbcgd_lite as fb
from fedbcgd_lite import blocks, data, models, rng
from fedbcgd_lite.models import LeNet5
from fedbcgd_lite.problem import resolve_device

NAN, INF = math.nan, math.inf
X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
FOURS = [np.arange(start, start + 3) for start in range(0, 12, 3)]  # four clients with three samples each
FREE_GPUS = torch.cuda.device_count()


class Scaled(nn.Module):
    """A linear model with whatever else is registered beside it."""

    def __init__(self, buffer=None, parameter=None):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(3) if buffer is None else buffer)
        self.shift = parameter

    def forward(self, x):
        return self.linear(x) * self.scale + (0 if self.shift is None else self.shift)


class Squeezing(nn.Module):
    """output.squeeze() loses the batch axis of a batch of one."""

    def __init__(self, outputs=3):
        super().__init__()
        self.linear = nn.Linear(4, outputs)

    def forward(self, x):
        return self.linear(x).squeeze()


def normed(**options):
    """A model with BatchNorm."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, **options), nn.Linear(6, 3))


def problem(model=None, train=(X, Y), clients=FOURS, test=(X, Y), **fields):
    """Twelve samples of three classes, four clients."""
    return fb.Problem(nn.Linear(4, 3) if model is None else model, train, clients, test, **fields)


def simulate(what=None, algorithm=None, seed=0, **fields):
    """One short round, unless `fields` say otherwise."""
    fields = {"rounds": 1, "clients_per_round": 2, "local_epochs": 1, "batch_size": 3, **fields}
    return fb.simulate(what or problem(), algorithm or fb.FedAvg(), seed=seed, **fields)


def training(**fields):
    """The protocol with one field out of order."""
    return fb.Training(**{"rounds": 1, **fields})


def split(groups, shared=("fc3",)):
    """Named blocks of a small LeNet-5."""
    return blocks.partition(LeNet5((1, 28, 28), 10, 2), (groups, shared))


def partition(description):
    """Any description of blocks of a small LeNet-5."""
    return blocks.partition(LeNet5((1, 28, 28), 10, 2), description)


def one_grid(**fields):
    """A grid that would be computed with one wrong value in it."""
    return fb.run_grid(fb.grid(fb.task("smoke", width=2, rounds=1), **{"algorithm": fb.FedAvg(), **fields}), jobs=1)


def smoke(**fields):
    """A smoke task with one field out of order, and its problem."""
    return fb.task("smoke", **fields).problem(0)


REST = ("conv2", "fc1", "fc2")

PARTITIONS = {
    "rho 0": (lambda: fb.Dirichlet(0), "rho = 0|above 0"),
    "rho negative": (lambda: fb.DirichletDraws(-1), "rho = -1|above 0"),
    "rho nan": (lambda: fb.Dirichlet(NAN), "rho = nan|finite"),
    "rho inf": (lambda: fb.DirichletDraws(INF), "rho = inf|finite"),
    "rho no number": (lambda: fb.Dirichlet("0.6"), "rho = |0.6|number"),
    "more clients than samples": (lambda: fb.IID().split(Y, 13), "13 clients|12 samples|1 to 12"),
    "more clients than samples, draws": (lambda: fb.DirichletDraws(1).split(Y, 13), "13 clients|12 samples|1 to 12"),
    "more clients than samples, task": (lambda: smoke(n_clients=10_001), "10001 clients|10000 samples|1 to 10000"),
    "no client": (lambda: fb.IID().split(Y, 0), "0 clients|1 to 12"),
    "two and a half clients": (lambda: fb.task("smoke", n_clients=20.5), "n_clients = 20.5|whole number"),
    "no client, task": (lambda: fb.task("smoke", n_clients=0), "n_clients = 0|at least 1"),
    "shards 0": (lambda: fb.ByLabel(0), "shards = 0|at least 1"),
    "more shards than samples": (lambda: fb.ByLabel(7).split(Y, 2), "2 clients|7 shards|12 samples|fewer"),
    "min_size": (lambda: fb.Dirichlet(0.6, min_size=4).split(Y, 4), "rho=0.6|4 clients|hold 3 of 12|4 wanted"),
    "unknown partition": (lambda: fb.task("smoke", partition="iid"), "partition = 'iid'|Dirichlet|IID|ByLabel"),
    "partition class": (lambda: fb.task("smoke", partition=fb.IID), "partition = |IID|Dirichlet"),
}

BLOCKS = {
    "balanced:0": (lambda: partition("balanced:0"), "N = 0|1 to 628"),
    "balanced:--1": (lambda: partition("balanced:--1"), "'balanced:--1'|balanced:N"),
    "more blocks than parameters": (lambda: partition("balanced:629"), "N = 629|1 to 628"),
    "layers:-1": (lambda: partition("layers:-1"), "N = -1|1 to 4"),
    "more blocks than layers": (lambda: partition("layers:5"), "N = 5|1 to 4|layers"),
    "Blocks(())": (lambda: fb.Blocks(()), "0 blocks|at least 1"),
    "negative size": (lambda: fb.Blocks((3, -1)), "(3, -1)|>= 0"),
    "only empty blocks": (lambda: fb.Blocks((0, 0)), "(0, 0)|not all 0"),
    "empty groups": (lambda: split(()), "0 blocks|at least 1"),
    "missing parameter": (
        lambda: split((("conv1",), ("conv2", "fc1"))),
        "misses|fc2.weight, fc2.bias|exactly one block",
    ),
    "repeated parameter": (
        lambda: split((("conv1",), REST, ("conv1.bias",))),
        "repeats|conv1.bias|exactly one block",
    ),
    "misnamed parameter": (lambda: split((("conv1",), ("konv2",))), "'konv2'|no parameter|conv2.weight"),
    "names without groups": (lambda: split(("conv1", "conv2"), "fc3"), "(('conv1', 'conv2'), 'fc3')|(groups, shared)"),
    "three parts": (lambda: partition((("a",), ("b",), ("c",))), "(('a',), ('b',), ('c',))|(groups, shared)"),
    "sizes that do not add up": (lambda: partition(fb.Blocks((10,), 5)), "15 floats|698 parameters|add up"),
    "order misnames": (
        lambda: blocks.partition(nn.Linear(4, 3), fb.Blocks((15,), 0, ("weight", "bia"))),
        "('weight', 'bia')|('weight', 'bias')|every parameter once",
    ),
    "unknown word": (lambda: partition("halves"), "'halves'|'balanced:N'|'layers:N'"),
    "no count": (lambda: partition("balanced"), "'balanced'|'balanced:N'"),
    "no 'paper' partition": (lambda: blocks.partition(nn.Linear(4, 3), "paper"), "'paper'|Linear|'balanced:N'"),
    "no 'paper' partition, grid": (
        lambda: one_grid(algorithm=fb.FedBCGD(), model="logistic"),
        "'paper'|LogisticRegression|'balanced:N'",
    ),
}

PROBLEMS = {
    "BatchNorm": (lambda: problem(normed()), "1.running_mean, 1.running_var|GroupNorm|track_running_stats=False"),
    "BatchNorm without affine": (lambda: problem(normed(affine=False)), "1.running_mean|GroupNorm"),
    "label too large": (lambda: problem(train=(X, Y + 1)), "labels from 1 to 3|0 to 2"),
    "label negative": (lambda: problem(train=(X, Y - 1)), "labels from -1 to 1|0 to 2"),
    "test label too large": (lambda: problem(test=(X, Y + 1)), "labels from 1 to 3|0 to 2"),
    "test label negative": (lambda: problem(test=(X, Y - 1)), "labels from -1 to 1|0 to 2"),
    "fewer targets than inputs": (lambda: problem(train=(X, Y[:10])), "12 inputs|10 targets|one target for each"),
    "fewer test targets": (lambda: problem(test=(X, Y[:10])), "12 inputs|10 targets|one target for each"),
    "empty test set": (lambda: problem(test=(X[:0], Y[:0])), "test|0|None"),
    "three tensors": (lambda: problem(train=(X, Y, Y)), "train|3|(inputs, targets)"),
    "NumPy arrays": (lambda: problem(train=(X.numpy(), Y.numpy())), "ndarray|tensor"),
    "index too large": (lambda: problem(clients=[[0, 1], [12]]), "client 1|indices|11"),
    "index negative": (lambda: problem(clients=[[0, 1], [-1]]), "client 1|indices|11"),
    "index mask": (lambda: problem(clients=[np.arange(12) < 6, np.arange(12) >= 6]), "client 0|bool|indices"),
    "fractional index": (lambda: problem(clients=[[0.5, 1.2], [2, 3]]), "client 0|float|indices"),
    "one array for all": (lambda: problem(clients=np.arange(12)), "clients|one index array"),
    "no client": (lambda: problem(clients=[]), "0 clients|at least one"),
    "all clients empty": (lambda: problem(clients=[[], []]), "2 clients|none holds a sample|at least one"),
    "mixed types": (
        lambda: simulate(problem(Scaled(parameter=nn.Parameter(torch.zeros(3).double())))),
        "float32|float64|one",
    ),
    "complex parameters": (
        lambda: simulate(problem(nn.Linear(4, 3, dtype=torch.complex64), train=(X.cfloat(), Y), test=None)),
        "complex64|floating-point",
    ),
    "nothing to train": (
        lambda: simulate(problem(nn.Linear(4, 3).requires_grad_(False))),
        "Linear|no trainable parameter",
    ),
    "no parameter": (lambda: simulate(problem(nn.Identity())), "Identity|no trainable parameter"),
    "inputs of another shape": (lambda: problem(train=(X[:, :3], Y)), "model|(2, 3)"),
    "inputs of another type": (lambda: problem(train=(X.double(), Y)), "model|float64"),
    "batch of one, BatchNorm": (
        lambda: simulate(problem(normed(track_running_stats=False)), batch_size=2),
        "client 0|3 samples|batches of 2|batch of one|another batch_size",
    ),
    "batches of one, BatchNorm": (
        lambda: simulate(problem(normed(track_running_stats=False)), batch_size=1),
        "client 0|3 samples|batches of 1|batch of one|another batch_size",
    ),
    "batch of one, squeeze": (
        lambda: simulate(problem(Squeezing()), batch_size=2),
        "client 0|3 samples|batches of 2|batch of one|another batch_size",
    ),
    "batch of one, pooled": (
        lambda: simulate(problem(normed(track_running_stats=False)), fb.CentralisedSGD(), batch_size=11),
        "12 samples|batches of 11|batch of one|another batch_size",
    ),
}

PROTOCOL = {
    "lr 0": (lambda: training(lr=0), "lr = 0|above 0"),
    "lr negative": (lambda: training(lr=-0.1), "lr = -0.1|above 0"),
    "lr nan": (lambda: training(lr=NAN), "lr = nan|finite"),
    "lr inf": (lambda: training(lr=INF), "lr = inf|finite"),
    "lr text": (lambda: training(lr="0.1"), "lr = |0.1|number"),
    "lr None": (lambda: training(lr=None), "lr = None|number"),
    "lr_decay 0": (lambda: training(lr_decay=0), "lr_decay = 0|above 0"),
    "lr_decay negative": (lambda: training(lr_decay=-1), "lr_decay = -1|above 0"),
    "lr_decay nan": (lambda: training(lr_decay=NAN), "lr_decay = nan|finite"),
    "weight_decay negative": (lambda: training(weight_decay=-1e-3), "weight_decay = -0.001|at least 0"),
    "precision unknown": (lambda: training(precision="half"), "precision = 'half'|full, tf32, bf16"),
    "weight_decay nan": (lambda: training(weight_decay=NAN), "weight_decay = nan|finite"),
    "eval_every_d negative": (lambda: training(eval_every_d=-1), "eval_every_d = -1|at least 0"),
    "budget_d 0": (lambda: fb.Training(budget_d=0), "budget_d = 0|above 0"),
    "budget_d inf": (lambda: fb.Training(budget_d=INF), "budget_d = inf|finite"),
    "rounds 0": (lambda: fb.Training(rounds=0), "rounds = 0|at least 1"),
    "rounds fractional": (lambda: fb.Training(rounds=2.5), "rounds = 2.5|whole number"),
    "batch_size 0": (lambda: training(batch_size=0), "batch_size = 0|at least 1"),
    "batch_size fractional": (lambda: training(batch_size=1.5), "batch_size = 1.5|whole number"),
    "local_epochs 0": (lambda: training(local_epochs=0), "local_epochs = 0|at least 1"),
    "local_epochs None": (lambda: training(local_epochs=None), "local_epochs = None|whole number"),
    "local_epochs text": (lambda: training(local_epochs="5"), "local_epochs = |5|whole number"),
    "no end": (lambda: fb.Training(), "neither rounds nor budget_d|one of them"),
    "no end, simulate": (lambda: fb.simulate(problem(), fb.FedAvg()), "neither rounds nor budget_d|one of them"),
    "no end, pooled": (
        lambda: simulate(algorithm=fb.CentralisedSGD(), rounds=None, budget_d=2),
        "CentralisedSGD|budget_d = 2|give rounds",
    ),
    "clients_per_round 0": (lambda: fb.task("smoke", clients_per_round=0), "clients_per_round = 0|at least 1"),
    "clients_per_round negative": (lambda: training(clients_per_round=-1), "clients_per_round = -1|at least 1"),
    "clients_per_round fractional": (lambda: training(clients_per_round=1.5), "clients_per_round = 1.5|whole number"),
    "clients_per_round above M": (
        lambda: fb.task("smoke", clients_per_round=101),
        "clients_per_round = 101|1 to 100",
    ),
    "clients_per_round above M, simulate": (lambda: simulate(clients_per_round=5), "clients_per_round = 5|1 to 4"),
    "clients_per_round above M, axis": (
        lambda: one_grid(clients_per_round=[5, 200]),
        "clients_per_round = 200|1 to 100",
    ),
    "momentum 1": (lambda: fb.FedAvgM(1), "momentum = 1|[0, 1)"),
    "momentum negative": (lambda: fb.FedBCGD(momentum=-0.1), "momentum = -0.1|[0, 1)"),
    "momentum nan": (lambda: fb.FedBCGD(momentum=NAN), "momentum = nan|[0, 1)"),
    "momentum text": (lambda: fb.FedAvgM("a"), "momentum = |a|[0, 1)"),
    "unknown keyword": (lambda: simulate(roundz=3), "roundz|rounds, budget_d, clients_per_round"),
    "seed negative": (lambda: simulate(seed=-1), "seed = -1|at least 0"),
    "seed fractional": (lambda: simulate(seed=1.5), "seed = 1.5|whole number"),
    "seed negative, task": (lambda: fb.task("smoke").problem(-1), "seed = -1|at least 0"),
    "seed negative, split": (lambda: fb.IID().split(Y, 2, -1), "seed = -1|at least 0"),
    "seed negative, grid": (lambda: one_grid(seed=-1), "seed = -1|at least 0"),
    "seed fractional, grid": (lambda: one_grid(seed=1.5), "seed = 1.5|whole number"),
    "seed text, grid": (lambda: one_grid(seed="zero"), "seed = |zero|whole number"),
}

NAMES = {
    "profile": (lambda: fb.task("desktop"), "'desktop'|laptop, smoke"),
    "dataset": (lambda: fb.task("smoke", dataset="mnist"), "'mnist'|fmnist12k"),
    "dataset, load": (lambda: data.load("mnist"), "'mnist'|fmnist12k"),
    "model": (lambda: fb.task("smoke", model="lenet6"), "'lenet6'|lenet5"),
    "width 0": (lambda: smoke(width=0), "width = 0|at least 1"),
    "width negative": (lambda: smoke(width=-1), "width = -1|at least 1"),
    "width fractional": (lambda: smoke(width=1.5), "width = 1.5|whole number"),
    "image too small": (lambda: LeNet5((1, 12, 12)), "12 x 12|16 x 16"),
    "validation 1": (lambda: fb.task("smoke", validation=1.0), "validation = 1.0|[0, 1)"),
    "validation nan": (lambda: fb.task("smoke", validation=NAN), "validation = nan|[0, 1)"),
    "task field": (lambda: fb.task("smoke", learning_rate=1), "learning_rate|lr, lr_decay"),
    "grid axis": (lambda: fb.grid(fb.task("smoke"), algorithm=fb.FedAvg(), gamma=[1]), "gamma|algorithm, seed, rounds"),
    "grid without algorithm": (lambda: fb.grid(fb.task("smoke")), "algorithm"),
    "algorithm class": (lambda: one_grid(algorithm=[fb.FedAvg]), "FedAvg|FedAvg()"),
    "algorithm name": (lambda: one_grid(algorithm="FedAvg"), "'FedAvg'|FedAvg()"),
    "device tpu": (lambda: resolve_device("tpu"), "'tpu'|'auto', 'cpu', 'cuda'"),
    "device cuda:x": (lambda: resolve_device("cuda:x"), "'cuda:x'|'cuda:<number>'"),
    "device empty": (lambda: resolve_device(""), "''|'auto', 'cpu', 'cuda'"),
    "device tpu, problem": (lambda: problem(device="tpu"), "'tpu'|'auto', 'cpu', 'cuda'"),
    "device tpu, grid": (lambda: fb.run_grid([], device="tpu"), "'tpu'|'auto', 'cpu', 'cuda'"),
    "device that is not there": (
        lambda: resolve_device(f"cuda:{FREE_GPUS}"),
        f"'cuda:{FREE_GPUS}'|{FREE_GPUS} GPUs|'cpu'",
    ),
    "random stream": (lambda: rng.numpy_rng(0, "dice"), "'dice'|init, partition"),
}

COMPRESSED = fb.Compressed  # short for the table


def made(model, image, width=4):
    """A model for images of one shape."""
    return models.MODELS[model](image, 10, width)


METHODS = {
    "FedAdam tau 0": (lambda: fb.FedAdam(tau=0), "tau = 0|above 0"),
    "FedAdam tau negative": (lambda: fb.FedAdam(tau=-1e-3), "tau = -0.001|above 0"),
    "FedAdam server_lr 0": (lambda: fb.FedAdam(server_lr=0), "server_lr = 0|above 0"),
    "FedAdam b1": (lambda: fb.FedAdam(b1=1), "b1 = 1|[0, 1)"),
    "FedAdam b2": (lambda: fb.FedAdam(b2=-0.1), "b2 = -0.1|[0, 1)"),
    "SCAFFOLD option": (lambda: fb.Scaffold(option=3), "option = 3|1 |2 "),
    "SCAFFOLD option True": (lambda: fb.Scaffold(option=True), "option = True|1 |2 "),
    "FedDC penalty": (lambda: fb.FedDC(penalty=-0.01), "penalty = -0.01|at least 0"),
    "FedBCGD+ momentum": (lambda: fb.FedBCGDPlus(momentum=1), "momentum = 1|[0, 1)"),
    "FedBCGD+ option": (lambda: fb.FedBCGDPlus(option="II"), "option = 'II'|1 |2 "),
    "FedBCGD+ sign": (lambda: fb.FedBCGDPlus(sign=0), "sign = 0|1, or -1"),
    "FedBCGD+ factor": (lambda: fb.FedBCGDPlus(shared_factor=0), "shared_factor = 0|above 0"),
    "FedBCGD+ blocks": (lambda: simulate(algorithm=fb.FedBCGDPlus()), "'paper'|Linear|'balanced:N'"),
    "compressed class": (lambda: COMPRESSED(fb.FedAvg, fb.QSGD()), "FedAvg|Compressed(FedAvg(), QSGD())"),
    "codec class": (lambda: COMPRESSED(fb.FedAvg(), fb.QSGD), "QSGD|Compressed(FedAvg(), QSGD())"),
    "compressed twice": (
        lambda: COMPRESSED(COMPRESSED(fb.FedAvg(), fb.QSGD()), fb.TopK()),
        "Compressed|not compressed already",
    ),
    "compressed pooled": (lambda: COMPRESSED(fb.CentralisedSGD(), fb.TopK()), "CentralisedSGD|method that sends"),
    "k 0": (lambda: fb.TopK(0), "k = 0|(0, 1]|at least 1"),
    "k negative": (lambda: fb.TopK(-3), "k = -3|(0, 1]|at least 1"),
    "k fraction above 1": (lambda: fb.TopK(1.5), "k = 1.5|(0, 1]|at least 1"),
    "k nan": (lambda: fb.TopK(NAN), "k = nan|(0, 1]"),
    "k above d": (lambda: simulate(algorithm=COMPRESSED(fb.FedAvg(), fb.TopK(16))), "k = 16|15 numbers|at most 15"),
    "levels 0": (lambda: fb.QSGD(levels=0), "levels = 0|at least 1"),
    "levels 1.5": (lambda: fb.QSGD(levels=1.5), "levels = 1.5|whole number"),
    "bucket 0": (lambda: fb.QSGD(bucket=0), "bucket = 0|at least 1"),
    "clip 0": (lambda: training(clip=0), "clip = 0|above 0"),
    "clip negative": (lambda: training(clip=-1), "clip = -1|above 0"),
    "blocks of another model": (
        lambda: blocks.partition(made("vgg11", (1, 28, 28)), blocks.PAPER["LeNet5", "paper"]),
        "'fc3'|no parameter|conv1.weight",
    ),
    "sizes of another model": (
        lambda: blocks.partition(made("vgg11", (1, 28, 28)), partition("paper")),
        "698 floats|VGG11|add up",
    ),
    "more blocks than parameters, ResNet": (
        lambda: blocks.partition(made("resnet18", (1, 28, 28)), "balanced:10000000"),
        "N = 10000000|1 to ",
    ),
    "patch": (lambda: made("vit_small", (1, 30, 28), 8), "30 x 28|4 x 4"),
    "ViT-Base at another size": (lambda: made("vit_base", (3, 32, 32)), "32 x 32|224 x 224|vit_small"),
    "VGG too small": (lambda: made("vgg11", (3, 12, 12)), "12 x 12|at least 17 x 17"),
    "ResNet odd width": (lambda: made("resnet18", (3, 32, 32), 3), "width = 3|even"),
    "crop without resize": (lambda: fb.task("smoke", crop=28), "resize = None|crop = 28|both or neither"),
    "crop above resize": (lambda: fb.task("smoke", resize=28, crop=32), "crop = 32|resize = 28"),
    "profile": (lambda: fb.task("desktop"), "'desktop'|laptop, smoke, paper"),
}

TABLE = {
    f"{part}: {name}": entry
    for part, entries in {
        "partition": PARTITIONS,
        "blocks": BLOCKS,
        "problem": PROBLEMS,
        "protocol": PROTOCOL,
        "name": NAMES,
        "method": METHODS,
    }.items()
    for name, entry in entries.items()
}


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_is_refused_in_one_sentence(name, monkeypatch, tmp_path):
    """A ValueError that names the given value and what is expected."""
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    call, words = TABLE[name]
    with pytest.raises(ValueError) as error:
        call()
    message = str(error.value)
    assert [word for word in words.split("|") if word not in message] == [], message
    assert "\n" not in message and message.endswith("."), message


@pytest.mark.skipif(FREE_GPUS > 0, reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused():
    """The message says that there is no GPU and what to ask for instead."""
    with pytest.raises(ValueError, match="'cuda'.*0 GPUs.*'cpu' or 'auto'"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)),
        normed(track_running_stats=False),
        Scaled(buffer=torch.full((3,), 0.5)),
        Scaled(buffer=torch.tensor([1, 2, 3])),
        Scaled(parameter=nn.Parameter(torch.arange(3), requires_grad=False)),
        Scaled(parameter=nn.Parameter(torch.ones(3), requires_grad=False)),
        nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)),
    ],
    ids=["GroupNorm", "BatchNorm alone", "buffer", "integer buffer", "integer constant", "frozen parameter", "Dropout"],
)
def test_models_without_changing_buffers_are_accepted(model):
    """What does not change while the model trains needs no block; the run is finite."""
    t = simulate(problem(model))
    assert t.diverged is None and np.isfinite(t.rows[-1]["test_loss"])


def test_a_refused_or_accepted_model_is_left_as_it_was():
    """Checking a BatchNorm model changes neither its buffers nor its mode."""
    model = normed().eval()
    with pytest.raises(ValueError):
        problem(model)
    assert not model.training and model[1].num_batches_tracked == 0 and not model[1].running_mean.any()


@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_a_last_batch_of_one_is_trained_on_like_any_other(batch_size):
    """3 samples in batches of 2 end with a batch of one, and a client may hold one sample only."""
    t = simulate(problem(clients=[*FOURS[:3], [9, 10], [11]]), batch_size=batch_size, clients_per_round=5)
    assert t.diverged is None and t.round == 1


def test_a_model_that_fails_on_one_sample_may_train_on_batches_of_three():
    """Nothing is refused when no batch has one sample."""
    for model in (Squeezing(), normed(track_running_stats=False)):
        assert simulate(problem(model), batch_size=3).round == 1


def test_a_regression_problem_needs_no_labels():
    """Float targets of any size are no classes: losses are reported and no accuracy."""
    targets = 10 * X[:, :2] - 5
    t = simulate(problem(nn.Linear(4, 2), (X, targets), test=(X, targets), loss=F.mse_loss), lr=0.01)
    assert t.rows[-1]["accuracy"] is None and np.isfinite(t.rows[-1]["test_loss"])


def test_a_problem_may_have_no_test_set():
    """Without a test set the rows carry None and the training loss."""
    t = simulate(problem(test=None))
    assert (t.rows[-1]["accuracy"], t.rows[-1]["test_loss"]) == (None, None) and np.isfinite(t.rows[-1]["train_loss"])


def test_clients_without_samples_are_named_in_a_warning():
    """The warning names the clients and what becomes of them."""
    with pytest.warns(UserWarning, match="clients 1, 3 hold no sample.* never sampled"):
        problem(clients=[[0, 1, 2], [], [3, 4, 5], np.array([], int)])


@pytest.fixture
def half_empty():
    """Six clients, three of them without samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return problem(clients=[[], [0, 1, 2], [], [3, 4, 5], [6, 7, 8], []])


@pytest.mark.parametrize("algorithm", [fb.FedAvg(), fb.FedBCGD(blocks="balanced:2")], ids=str)
def test_clients_without_samples_are_never_sampled(algorithm, half_empty):
    """Over 60 rounds the others are, each of them."""
    t = simulate(half_empty, algorithm, rounds=60)
    assert {row[1] for row in t.ledger.rows} == {1, 3, 4}


def test_clients_without_samples_do_not_count(half_empty):
    """Three of six clients can be sampled: a fourth is refused with that number."""
    assert simulate(half_empty, clients_per_round=3).round == 1
    with pytest.raises(ValueError, match="clients_per_round = 4.*only 3 clients hold data, expected 1 to 3"):
        simulate(half_empty, clients_per_round=4)


def test_bad_input_stops_a_grid_before_anything_is_computed(monkeypatch, tmp_path):
    """One impossible run among good ones leaves no record behind."""
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path / "results"))
    good_and_bad = [fb.FedAvg(), fb.FedBCGD(blocks="balanced:0")]
    with pytest.raises(ValueError, match="N = 0"):
        one_grid(algorithm=good_and_bad)
    assert not list((tmp_path / "results").rglob("*.json"))
