"""The sampled clients of a round, trained one by one, in threads or together, as the machine likes it best."""

import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .algorithms import Algorithm, State
from .blocks import Blocks, Slot, Slots
from .codecs import Identity
from .flat import Flat
from .graphs import GraphedGradient
from .local import Draws, LocalSGD
from .machine import Machine
from .problem import Problem, Training
from .rng import global_rng, numpy_rng

EVALUATION_BATCH = 1000  # samples


@dataclass(frozen=True)
class Visit:
    """One sampled client: its place in the round, its state, and the rows of its samples and of its mini-batches."""

    slot: Slot
    state: State
    samples: np.ndarray  # (n,)
    batches: list[np.ndarray]  # T arrays (B,)

    @property
    def shape(self) -> tuple:
        """What clients that are trained together have in common."""
        return len(self.samples), *map(len, self.batches), *sorted(self.state)


class Engine:
    """Trains and evaluates; a context manager, which holds the threads."""

    def __init__(self, problem: Problem, algorithm: Algorithm, blocks: Blocks, training: Training, machine: Machine):
        self.problem, self.algorithm, self.training = problem, algorithm, training
        # Dropout reads the global generator: such clients are trained one after another.
        self.machine = Machine(compile=machine.compile) if problem.draws else machine
        bf16 = training.precision == "bf16"
        self.idle: queue.SimpleQueue = queue.SimpleQueue()  # a Flat and a stream belong to one worker at a time
        for _ in range(self.machine.workers):
            flat = Flat(problem.model, blocks, problem.loss, problem.device, bf16, machine.compile)
            self.idle.put(self._tools(flat))
        self.x0 = flat.x0
        self.threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Engine":
        if self.machine.workers > 1:
            self.threads = ThreadPoolExecutor(self.machine.workers, "client", torch.set_num_threads, (1,))
        return self

    def __exit__(self, *_) -> None:
        if self.threads:
            self.threads.shutdown(cancel_futures=True)
            self.threads = None

    def train(self, server: State, visits: list[Visit], seed: int, round: int) -> list[tuple[State, State, Tensor]]:
        """(out, client state, mean mini-batch loss ()) of each visit, in their order."""
        down = {key: server[key] for key in self.algorithm.broadcast}
        chunks = self._chunks(visits)
        results = self._map(lambda chunk: self._train(down, [visits[i] for i in chunk], seed, round), chunks)
        found = {i: result for chunk, together in zip(chunks, results) for i, result in zip(chunk, together)}
        return [found[i] for i in range(len(visits))]

    def upload(self, slots: list[Slot], trained: list, seed: int, round: int) -> list[tuple[dict, State]]:
        """(message, client state) of each client; what a codec draws is a function of (seed, round, client)."""
        codec = self.algorithm.codec
        if isinstance(codec, Identity):
            return [
                self.algorithm.upload(out, state, slot, codec.encode) for slot, (out, state, _) in zip(slots, trained)
            ]

        def one(slot: Slot, out: State, state: State) -> tuple[dict, State]:
            encode = partial(codec.encode, rng=numpy_rng(seed, "compress", round, slot.client))
            return self.algorithm.upload(out, state, slot, encode)

        return self._map(lambda task: one(task[0], *task[1][:2]), zip(slots, trained))

    @torch.no_grad()
    def test(self, x: Tensor) -> tuple[float | None, float | None]:
        """(accuracy in percent, mean loss) on the test set; None where there is none."""
        if self.problem.test is None:
            return None, None
        pieces = zip(*(tensor.split(EVALUATION_BATCH) for tensor in self.problem.test))
        correct, loss = (sum(parts) for parts in zip(*self._map(lambda piece: self._test(x, *piece), pieces)))
        n = len(self.problem.test[1])
        return (100 * correct / n if self.problem.classifies else None), loss / n

    def _chunks(self, visits: list[Visit]) -> list[list[int]]:
        """The numbers of the visits that are trained together: equal shapes, at most `chunk` of them."""
        alike: dict[tuple, list[int]] = {}
        for i, visit in enumerate(visits):
            alike.setdefault(visit.shape, []).append(i)
        size = self.machine.chunk
        return [group[k : k + size] for group in alike.values() for k in range(0, len(group), size)]

    def _map(self, function: Callable, items: Iterable) -> list:
        return [*(self.threads.map if self.threads else map)(function, items)]

    def _train(self, down: State, visits: list[Visit], seed: int, round: int) -> list[tuple[State, State, Tensor]]:
        """Several clients together, or one without a leading axis."""
        one, training = len(visits) == 1, self.training
        plans = np.stack([np.concatenate([visit.samples, *visit.batches]) for visit in visits])
        plans = torch.from_numpy(plans[0] if one else plans).to(self.problem.device)
        all_rows, *rows = plans.split([len(visits[0].samples), *map(len, visits[0].batches)], -1)
        state = visits[0].state if one else _stacked([visit.state for visit in visits])
        slot = visits[0].slot if one else Slots(tuple(visit.slot for visit in visits))
        lr = training.lr * training.lr_decay**round
        with self._worker() as (flat, gradient), self._noise(seed, round, visits[0].slot.client):
            if not flat.module.training:
                flat.module.train()
            options = {"lr": lr, "weight_decay": training.weight_decay, "clip": training.clip}
            sgd = LocalSGD(self.problem, gradient, [*rows], all_rows, **options, draws=self._draws(visits, seed, round))
            out, state = self.algorithm.train(down, state, slot, sgd)
        if one:
            return [(out, state, sgd.loss)]
        return [
            ({k: v[i] for k, v in out.items()}, {k: v[i].clone() for k, v in state.items()}, sgd.loss[i])
            for i in range(len(visits))
        ]

    def _draws(self, visits: list[Visit], seed: int, round: int) -> Draws | None:
        """What augmentation draws for these clients, a function of (seed, round, client)."""
        if self.problem.augment is None:
            return None
        sizes = [len(visits[0].samples), *map(len, visits[0].batches)]
        shape = sum(sizes), self.problem.augment.DRAWS
        found = [numpy_rng(seed, "augment", round, v.slot.client).random(shape, np.float32) for v in visits]
        draws = torch.from_numpy(found[0] if len(visits) == 1 else np.stack(found)).to(self.problem.device)
        samples, *steps = draws.split(sizes, -2)
        return Draws(samples, steps)

    @torch.no_grad()
    def _test(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[int, float]:
        """(correct, summed loss) over one batch."""
        with self._worker() as (flat, _):
            flat.module.eval()
            output = flat.predict(x, self.problem.transform(inputs))
            loss = flat.loss_function(output, targets).item() * len(targets)
            return ((output.argmax(1) == targets).sum().item() if self.problem.classifies else 0), loss

    def _tools(self, flat: Flat) -> tuple:
        """A worker's Flat, the way in which it forms gradients, and its stream."""
        on_gpu = self.problem.device.startswith("cuda")
        graphed = on_gpu and self.machine.graphs and not self.problem.draws
        stream = torch.cuda.Stream() if on_gpu and self.machine.workers > 1 else None
        return flat, (GraphedGradient(flat.gradient) if graphed else flat.gradient), stream

    @contextmanager
    def _worker(self):
        """(Flat, gradient) that nobody else uses, with their stream, which is done with its work at the end."""
        tools = self.idle.get()
        flat, gradient, stream = tools
        try:
            if stream is None:
                yield flat, gradient
            else:
                stream.wait_stream(torch.cuda.default_stream())
                with torch.cuda.stream(stream):
                    yield flat, gradient
                stream.synchronize()
        finally:
            self.idle.put(tools)

    def _noise(self, seed: int, round: int, client: int):
        device = self.problem.device
        return global_rng(seed, "noise", round, client, device) if self.problem.draws else nullcontext()


def _stacked(states: list[State]) -> State:
    return {key: torch.stack([state[key] for state in states]) for key in states[0]}
