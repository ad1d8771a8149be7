"""Small problems on which a round takes milliseconds, and the comparisons that several test files make."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedbcgd_lite import (
    QSGD,
    CentralisedSGD,
    Compressed,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBCGD,
    FedBCGDPlus,
    FedBCGDPlusScript,
    FedDC,
    Problem,
    Scaffold,
    TopK,
    Training,
    simulate,
)
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.local import LocalSGD
from fedbcgd_lite.rng import global_rng

METHODS = {
    "FedAvg": FedAvg(),
    "CentralisedSGD": CentralisedSGD(),
    "FedAvgM": FedAvgM(),
    "FedBCGD": FedBCGD("balanced:2"),
    "FedBCGD N=3": FedBCGD("balanced:3"),  # does not divide S = 4
    "FedBCGD N=6": FedBCGD("balanced:6"),  # exceeds S = 4
    "FedBCGD freezing": FedBCGD("balanced:2", freeze=True, momentum=0),
    "FedBCGD no shared": FedBCGD("layers:2", shared=False),
    "FedAdam": FedAdam(),
    "FedAdam corrected": FedAdam(bias_correction=True),
    "SCAFFOLD option 1": Scaffold(option=1),
    "SCAFFOLD option 2": Scaffold(option=2),
    "FedDC": FedDC(),
    "FedBCGD+": FedBCGDPlus("balanced:2"),
    "FedBCGD+ N=3": FedBCGDPlus("balanced:3"),
    "FedBCGD+ N=6": FedBCGDPlus("balanced:6", option=2),
    "FedBCGD+ no SVRG": FedBCGDPlus("balanced:2", svrg=False),
    "FedBCGD+ option 2, no SVRG": FedBCGDPlus("balanced:2", option=2, svrg=False),
    "FedBCGD+ as printed": FedBCGDPlus("balanced:2", sign=-1, shared_factor=0.5, block_factor=2, full=True),
    "FedBCGD+ script": FedBCGDPlusScript("balanced:2"),
    "top-k": Compressed(FedAvg(), TopK(0.3)),
    "top-k without feedback": Compressed(FedAvg(), TopK(5, error_feedback=False)),
    "top-k FedBCGD": Compressed(FedBCGD("balanced:2"), TopK(0.3)),
    "FedPAQ": Compressed(FedAvg(), QSGD()),
    "QSGD+FedBCGD": Compressed(FedBCGD("balanced:2"), QSGD(7, 16)),
    "QSGD+FedBCGD+": Compressed(FedBCGDPlus("balanced:2"), QSGD(7, 16)),
    "QSGD+SCAFFOLD": Compressed(Scaffold(), QSGD(7, 16)),
    "top-k FedDC": Compressed(FedDC(), TopK(0.3)),
}


def toy(dropout: float = 0.0, dtype=torch.float64) -> Problem:
    """A three-layer network of d = 25 + 24 + 15 = 64 parameters; 8 clients with 5 samples of 3 classes each."""
    with global_rng(0, "init"):
        layers = OrderedDict(
            first=nn.Linear(4, 5),
            tanh=nn.Tanh(),
            dropout=nn.Dropout(dropout),
            second=nn.Linear(5, 4),
            last=nn.Linear(4, 3),
        )
        x, y = torch.randn(40, 4, dtype=dtype), torch.randint(3, (40,))
    return Problem(nn.Sequential(layers).to(dtype), (x, y), np.split(np.arange(40), 8), test=(x, y))


TOY = dict(rounds=4, clients_per_round=4, local_epochs=2, batch_size=2, lr=0.1, lr_decay=0.9, weight_decay=0.01)


def run(problem: Problem, algorithm, seed: int = 0, **changes):
    """simulate() with the protocol TOY, changed as given: T = 6 local steps, the third and the sixth on one sample."""
    hooks = {name: changes.pop(name) for name in ("resume", "on_round", "select", "plan", "machine") if name in changes}
    return simulate(problem, algorithm, Training(**{**TOY, **changes}), seed, **hooks)


def local_sgd(problem: Problem, flat: Flat, samples, batches, **settings) -> LocalSGD:
    """What `train` of an algorithm is given by the engine: one client with these samples and mini-batches."""
    rows = [torch.from_numpy(batch) for batch in batches]
    return LocalSGD(problem, flat.gradient, rows, torch.from_numpy(samples), **settings)


def least_squares(heterogeneous: bool) -> Problem:
    """4 clients, f_i(w) = mean (A_i w - b_i)^2 over 16 samples, w (6,); homogeneous clients share their minimiser."""
    with global_rng(0, "init"):
        model = nn.Linear(6, 1, bias=False).double()
        scale = torch.tensor([0.6, 0.9, 1.2, 1.5], dtype=torch.float64).repeat_interleave(16)[:, None]
        A, truth = scale * torch.randn(64, 6, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
        own = torch.randn(4, 6, 1, dtype=torch.float64).repeat_interleave(16, 0) if heterogeneous else 0
    b = (A[:, None] @ (truth + own)).squeeze(-1)  # (64, 1)
    return Problem(model, (A, b), np.split(np.arange(64), 4), loss=F.mse_loss)


def parameters(problem: Problem, trajectory) -> dict[str, torch.Tensor]:
    """The global model by parameter name, whatever the order of the flat vector."""
    return Flat(problem.model, trajectory.blocks, problem.loss).unflatten(trajectory.x)


def assert_same_tensors(a: dict, b: dict) -> None:
    """Equal bit for bit."""
    assert a.keys() == b.keys()
    assert [key for key in a if not torch.equal(a[key], b[key])] == []


def assert_same_run(a, b) -> None:
    """Equal bit for bit: server, client states, measurements and ledger."""
    assert_same_tensors(a.server, b.server)
    assert a.clients.keys() == b.clients.keys()
    for client in a.clients:
        assert_same_tensors(a.clients[client], b.clients[client])
    measured_a, measured_b = (dict(vars(t), server=None, clients=None) for t in (a, b))
    assert measured_a == measured_b
