"""How clients are trained is a matter of the machine: threads change no bit, training together only the rounding."""

import copy
import subprocess
import sys
import threading
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from helpers import METHODS, assert_same_run, least_squares, run, toy
from torch import nn
from torch.nn import functional as F

from fedbcgd_lite import FedAvg, FedBCGD, Machine, Problem, engine, simulate
from fedbcgd_lite.blocks import Blocks, Slots, partition
from fedbcgd_lite.data import Normalise
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.graphs import GraphedGradient
from fedbcgd_lite.machine import settings
from fedbcgd_lite.models import LeNet5, channels_innermost
from fedbcgd_lite.rng import global_rng

every_method = pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS.keys())


def uneven(dropout: float = 0.0) -> Problem:
    """The toy problem with clients of 1, 2, 5 and 9 samples, some of equal size."""
    problem = toy(dropout)
    sizes = np.cumsum([5, 5, 1, 2, 5, 9, 5])
    return Problem(problem.model, problem.train, np.split(np.arange(40), sizes), test=problem.test)


def assert_close_run(a, b, rtol: float) -> None:
    """Equal up to rounding, with the same uploads."""
    for key in a.server:
        torch.testing.assert_close(a.server[key], b.server[key], rtol=rtol, atol=rtol)
    assert a.ledger == b.ledger and len(a.rows) == len(b.rows)
    for was, now in zip(a.rows, b.rows):
        assert {name: value or 0 for name, value in was.items()} == pytest.approx(
            {name: value or 0 for name, value in now.items()}, rel=rtol
        )


# --- threads --------------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("problem", [toy, uneven])
def test_threads_change_no_bit(algorithm, problem):
    """Three workers for four clients: the same run bit for bit, ledger and client states included."""
    assert_same_run(run(problem(), algorithm, machine=Machine()), run(problem(), algorithm, machine=Machine(workers=3)))


def test_clients_are_trained_by_several_threads():
    """Two workers train at the same time: each waits until the other has come."""
    barrier, problem = threading.Barrier(2, timeout=20), least_squares(heterogeneous=True)

    class Meeting(FedAvg):
        def train(self, server, client, slot, sgd):
            barrier.wait()
            return super().train(server, client, slot, sgd)

    simulate(problem, Meeting(), rounds=2, clients_per_round=4, machine=Machine(workers=2))


def test_an_error_in_a_thread_reaches_the_caller():
    """Neither swallowed nor left hanging."""

    class Broken(FedAvg):
        def train(self, server, client, slot, sgd):
            raise ArithmeticError("of client")

    with pytest.raises(ArithmeticError, match="of client"):
        run(toy(), Broken(), machine=Machine(workers=2))


@pytest.mark.parametrize("machine", [Machine(workers=3), Machine(chunk=4)], ids=str)
def test_dropout_is_the_same_on_every_machine(machine):
    """A model that draws random numbers is trained one client at a time, since the generator is global."""
    assert_same_run(run(toy(0.5), FedAvg(), machine=Machine()), run(toy(0.5), FedAvg(), machine=machine))


def test_global_settings_come_back():
    """Threads and precisions are as before, also after an error."""
    torch.set_num_threads(2)
    before = 2, torch.backends.cudnn.conv.fp32_precision
    with pytest.raises(ArithmeticError), settings("tf32"):
        assert (torch.get_num_threads(), torch.backends.cudnn.conv.fp32_precision) == (1, "tf32")
        raise ArithmeticError
    run(toy(), FedAvg(), machine=Machine(workers=3))
    assert before == (torch.get_num_threads(), torch.backends.cudnn.conv.fp32_precision)


def test_deterministic_kernels_can_be_asked_for():
    """The switch is on inside and off outside, and the numbers on a CPU do not change."""
    with settings(deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert_same_run(run(toy(), FedAvg()), run(toy(), FedAvg(), machine=Machine(deterministic=True)))


# --- together -------------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("problem", [toy, uneven])
@pytest.mark.parametrize("machine", [Machine(chunk=4), Machine(chunk=3), Machine(chunk=2, workers=2)], ids=str)
def test_training_together_is_training_apart_up_to_rounding(algorithm, problem, machine):
    """All four clients, three and one, two threads of two; clients of unequal size stand apart."""
    assert_close_run(run(problem(), algorithm, machine=Machine()), run(problem(), algorithm, machine=machine), 1e-12)


def test_any_loss_can_be_trained_together():
    """A loss other than cross-entropy goes through vmap, with the same gradients."""
    protocol = dict(rounds=5, clients_per_round=4, local_epochs=2, batch_size=8, lr=0.05)
    apart, together = (
        simulate(least_squares(True), FedBCGD(Blocks((3, 3))), machine=machine, **protocol)
        for machine in (Machine(), Machine(chunk=4))
    )
    assert_close_run(apart, together, 1e-12)


def test_a_gradient_of_many_is_the_gradient_of_each():
    """Rows of gradient and loss are those of the clients, for cross-entropy and for a loss that vmap takes apart."""
    problem, blocks = toy(), Blocks((64,))
    x = Flat(problem.model, blocks, F.cross_entropy).x0 + 0.1 * torch.randn(3, 64, dtype=torch.float64)
    batch = problem.batch(torch.arange(12).view(3, 4))
    for loss in (F.cross_entropy, lambda output, target: F.cross_entropy(output, target)):
        flat = Flat(problem.model, blocks, loss)
        gradients, losses = flat.gradient(x, *batch)
        assert gradients.shape == (3, 64) and losses.shape == (3,)
        for i in range(3):
            gradient, one = flat.gradient(x[i], batch[0][i], batch[1][i])
            torch.testing.assert_close((gradients[i], losses[i]), (gradient, one), rtol=1e-12, atol=1e-12)


def test_clients_really_are_trained_together():
    """With chunk=4 `train` is called once a round, for four clients; with chunk=3 for three and for one."""
    seen = []

    class Counting(FedAvg):
        def train(self, server, client, slot, sgd):
            seen.append(len(slot.slots) if isinstance(slot, Slots) else 1)
            return super().train(server, client, slot, sgd)

    run(toy(), Counting(), rounds=1, machine=Machine(chunk=4))
    run(toy(), Counting(), rounds=1, machine=Machine(chunk=3))
    assert seen == [4, 3, 1]


class Remembering(FedAvg):
    """FedAvg whose clients count their visits and keep their last displacement, to see client states in and out."""

    def init(self, x, n_clients):
        return {"x": x}, {"visits": torch.zeros((), dtype=x.dtype), "last": torch.zeros_like(x)}

    def train(self, server, client, slot, sgd):
        y = sgd(server["x"], correction=lambda y, batch: 0.1 * client["last"])
        dx = y - server["x"]
        return {"dx": dx}, {"visits": client["visits"] + 1, "last": dx}


@pytest.mark.parametrize("machine", [Machine(workers=3), Machine(chunk=4), Machine(chunk=3, workers=2)], ids=str)
def test_client_states_find_their_clients(machine):
    """States are stacked for training together and handed back row by row."""
    apart, other = (run(toy(), Remembering(), machine=m, rounds=6) for m in (Machine(), machine))
    assert apart.clients.keys() == other.clients.keys() and len(apart.clients) > 4
    for client, state in apart.clients.items():
        assert state["visits"] == other.clients[client]["visits"]
        torch.testing.assert_close(state["last"], other.clients[client]["last"], rtol=1e-12, atol=1e-12)
        assert other.clients[client]["last"].untyped_storage().nbytes() == 64 * 8  # of its own, not of the chunk


def test_masks_of_many():
    """Row i of the mask of S places is the mask of place i."""
    blocks = Blocks((3, 2), 1)
    slots = blocks.slot(4, 0), blocks.slot(5, 1)
    expected = [[1, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1]]
    assert Slots(slots).mask(torch.empty(6)).tolist() == expected


# --- models and data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_are_innermost_in_memory(channels):
    """The same images, with the strides of channels_last, for one channel as well."""
    x = torch.randn(4, channels, 6, 5)
    y = channels_innermost(x)
    assert torch.equal(x, y) and y.stride() == (channels * 30, 1, channels * 5, channels)
    assert channels_innermost(y).data_ptr() == y.data_ptr()  # nothing is copied twice


def test_pooling_before_relu_is_relu_before_pooling():
    """LeNet-5 pools first, on a quarter of the work: output and gradients are those of the textbook's order."""

    class Textbook(LeNet5):
        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))

    with global_rng(0, "init"):
        ours, x, y = LeNet5((1, 28, 28), width=4), torch.randn(8, 1, 28, 28), torch.randint(10, (8,))
    textbook = Textbook((1, 28, 28), width=4)
    textbook.load_state_dict(ours.state_dict())
    outputs = [model.double()(x.double()) for model in (ours, textbook)]
    gradients = [
        torch.autograd.grad(F.cross_entropy(o, y), [*m.parameters()]) for o, m in zip(outputs, (ours, textbook))
    ]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def pictures(transform: bool) -> Problem:
    """Bytes that are normalised in the batch, or the same numbers normalised beforehand."""
    rng, normalise = np.random.default_rng(0), Normalise(torch.tensor([[[0.02]]]), torch.tensor([[[-1.5]]]))
    x = torch.from_numpy(rng.integers(0, 256, (40, 1, 16, 16), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 3, 40))
    with global_rng(0, "init"):
        model = LeNet5((1, 16, 16), n_classes=3, width=2)
    clients = np.split(np.arange(40), 8)
    if transform:
        return Problem(model, (x, y), clients, (x, y), transform=normalise)
    return Problem(model, (normalise(x), y), clients, (normalise(x), y))


@pytest.mark.parametrize("machine", [Machine(), Machine(workers=2), Machine(chunk=4)], ids=str)
def test_bytes_in_the_batch_are_numbers_beforehand(machine):
    """The same run bit for bit, evaluation included."""
    in_batch, beforehand = (run(pictures(kind), FedAvg(), machine=machine) for kind in (True, False))
    assert_same_run(in_batch, beforehand)


@pytest.mark.parametrize("machine", [Machine(), Machine(workers=3)], ids=str)
def test_evaluation_in_batches_is_evaluation_at_once(machine, monkeypatch):
    """40 test samples in six batches, the last one smaller: the same accuracy, and the loss up to rounding."""
    at_once = run(toy(), FedAvg())
    monkeypatch.setattr(engine, "EVALUATION_BATCH", 7)
    in_batches = run(toy(), FedAvg(), machine=machine)
    assert [row["accuracy"] for row in in_batches.rows] == [row["accuracy"] for row in at_once.rows]
    assert_close_run(at_once, in_batches, 1e-12)


def test_bf16_trains_nearly_the_same():
    """Rounded products move the model a little, not much; the evaluation is in full precision."""
    full, bf16 = (run(pictures(True), FedAvg(), precision=precision) for precision in ("full", "bf16"))
    assert full.x.dtype == bf16.x.dtype == torch.float32
    assert full.rows[0] == bf16.rows[0]
    moved, apart = (full.x - start_of(pictures(True))).norm(), (full.x - bf16.x).norm()
    assert 0 < apart < 0.2 * moved


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_reduced_precision_of_float64_is_refused(precision):
    """PyTorch would ignore it silently."""
    with pytest.raises(ValueError, match=f"{precision}.*torch.float64: expected a model of torch.float32"):
        run(toy(), FedAvg(), precision=precision)


def test_a_wrong_machine_is_refused():
    with pytest.raises(ValueError, match=r"machine = 2 was given: expected a Machine, as in Machine\(workers=2\)"):
        run(toy(), FedAvg(), machine=2)


def start_of(problem: Problem) -> torch.Tensor:
    return Flat(problem.model, partition(problem.model, "whole"), problem.loss).x0


@pytest.mark.parametrize("problem", [toy, lambda: pictures(True)], ids=["dense", "convolutions"])
def test_compiled_gradients_agree(problem):
    """torch.compile is an option of the machine: the same run up to rounding."""
    pytest.importorskip("torch._inductor.cpp_builder").get_cpp_compiler()
    once = dict(rounds=2, local_epochs=1, batch_size=5)
    plain, compiled = (run(problem(), FedAvg(), machine=Machine(compile=c), **once) for c in (False, True))
    assert_close_run(plain, compiled, 1e-5)


# --- graphs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    """torch.cuda without a GPU: streams do nothing, a capture records operations, a replay repeats them in place."""

    class Stream:
        def wait_stream(self, other): ...

    class Graph:
        def replay(self):
            for operation in self.operations:
                operation()

    @contextmanager
    def capture(graph, **_):
        recorded.clear()
        yield
        graph.operations = [*recorded]

    recorded = []
    for name, fake in {"Stream": Stream, "CUDAGraph": Graph, "current_stream": Stream, "graph": capture}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return recorded


def on_the_device(function, recorded: list):
    """A function as kernels would do it: what it returns while a graph records is written anew by each replay."""

    def launched(*tensors):
        outputs = function(*tensors)

        def again():
            for output, new in zip(outputs, function(*tensors)):
                output.copy_(new)

        recorded.append(again)
        return outputs

    return launched


def test_graphed_gradients_are_the_gradients(graphs):
    """New input goes into the memory of the capture, results are copied out of it, each shape is captured once."""
    problem = toy()
    flat = Flat(problem.model, Blocks((64,)), F.cross_entropy)
    graphed = GraphedGradient(on_the_device(flat.gradient, graphs))
    batches = [problem.batch(torch.arange(n, n + size)) for n, size in ((0, 4), (4, 4), (8, 3), (11, 4))]
    points = [flat.x0, flat.x0 + 0.1, flat.x0 - 0.1, flat.x0 * 0.5]
    results = [graphed(x, *batch) for x, batch in zip(points, batches)]
    assert len(graphed.captured) == 2
    for x, batch, result in zip(points, batches, results):
        assert all(torch.equal(a, b) for a, b in zip(result, flat.gradient(x, *batch)))


def test_what_cannot_be_captured_is_called_as_it_is(graphs):
    """A RuntimeError while capturing means: no graph for this shape, and it is not tried again."""
    calls = []

    def stubborn(x):
        calls.append(x)
        if len(calls) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (x + 1,)

    graphed = GraphedGradient(stubborn)
    assert graphed(torch.zeros(2))[0].tolist() == [1, 1] and graphed(torch.ones(2))[0].tolist() == [2, 2]
    assert len(calls) == 3


# --- memory and time ------------------------------------------------------------------------------------------------

FIFTY_ROUNDS = """
import numpy as np, torch, fedbcgd_lite as fb
from fedbcgd_lite.models import LeNet5
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6
x = torch.randint(0, 256, (400, 1, 20, 20), dtype=torch.uint8)
problem = fb.Problem(LeNet5((1, 20, 20), width=16), (x, torch.arange(400) % 10), np.split(np.arange(400), 20),
                     transform=lambda images: images.float() / 255)
seen = []
fb.simulate(problem, fb.FedBCGD(), rounds=50, local_epochs=2, batch_size=10, machine=fb.Machine(workers={workers}),
            on_round=lambda t: seen.append(resident()))
print(seen[9], max(seen[10:]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_is_flat_over_fifty_rounds(workers):
    """After ten rounds nothing grows any more but the ledger: under 5 MB in forty rounds of LeNet-5."""
    run = subprocess.run(
        [sys.executable, "-c", FIFTY_ROUNDS.replace("{workers}", str(workers))],
        capture_output=True,
        text=True,
        check=True,
    )
    after_ten, most = map(float, run.stdout.split())
    assert most - after_ten < 5, (after_ten, most)


def test_the_import_is_light():
    """Under 0.3 s beyond torch, and nothing of torch's compiler comes along with a first round."""
    code = (
        "import time, torch; t = time.perf_counter(); import fedbcgd_lite as fb; print(time.perf_counter() - t);"
        "import sys, numpy as np; y = torch.arange(40) % 2; x = torch.randn(40, 3);"
        "p = fb.Problem(torch.nn.Linear(3, 2), (x, y), np.split(np.arange(40), 10));"
        "[fb.simulate(p, fb.FedAvg(), rounds=1, machine=fb.Machine(chunk=c)) for c in (1, 10)];"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, heavy = run.stdout.splitlines()
    assert float(seconds) < 0.3 and heavy == "[]"


def test_the_readers_module_may_be_trained_by_many():
    """Workers have copies of their own: the module that was passed in is not touched by any of them."""
    problem = toy()
    before = copy.deepcopy(problem.model.state_dict())
    run(problem, FedAvg(), machine=Machine(workers=3))
    assert all(torch.equal(before[name], value) for name, value in problem.model.state_dict().items())


def test_modules_with_submodules_that_share_parameters():
    """Tied weights are one slice of the vector, for one client and for many."""
    with global_rng(0, "init"):
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        model = nn.Sequential(first, nn.Tanh(), second).double()
        x = torch.randn(12, 4, dtype=torch.float64)
    problem = Problem(model, (x, torch.arange(12) % 4), np.split(np.arange(12), 4))
    apart, together = (run(problem, FedAvg(), machine=machine) for machine in (Machine(), Machine(chunk=4)))
    assert apart.blocks.d == 16 + 4 + 4
    assert_close_run(apart, together, 1e-12)
