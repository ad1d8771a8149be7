"""The only loop over rounds: select clients, deal them to blocks, train, count what is sent, aggregate, evaluate."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import checks
from .algorithms import Algorithm, State
from .blocks import Blocks, Slot, partition
from .calibrate import fastest
from .data import batch_plan
from .engine import Engine, Visit
from .ledger import Ledger
from .machine import Machine, settings
from .messages import Letter, Mail
from .payloads import Dense
from .problem import Problem, Training
from .rng import numpy_rng
from .states import StatesInFiles, too_large


@dataclass
class Trajectory:
    """A run so far: everything that the next round depends on, and everything that was measured."""

    blocks: Blocks
    server: State
    round: int = 0  # rounds completed
    clients: MutableMapping[int, State] = field(default_factory=dict)  # states of the clients that have one
    ledger: Ledger = field(default_factory=Ledger)
    rows: list[dict] = field(default_factory=list)  # one dict an evaluation
    upload_floats: float = 0.0  # per participating client, since the start
    upload_bits: float = 0.0
    download_bits: float = 0.0
    last_upload_floats: float = 0.0  # of the last round
    train_loss: float | None = None  # mean mini-batch loss along the local paths of the last round
    diverged: str | None = None  # why the run stopped early

    @property
    def x(self) -> Tensor:
        """The global model (d,)."""
        return self.server["x"]


def select(holders: np.ndarray, S: int, blocks: Blocks, seed: int, round: int) -> list[Slot]:
    """S distinct clients drawn uniformly and dealt to the N groups in random order (Figure 2).

    Groups hold floor(S/N) or ceil(S/N) clients, the larger ones chosen at random each round; with N > S some are empty.
    """
    rng = numpy_rng(seed, "select", round)
    sampled = rng.permutation(holders)[:S]
    sizes = S // blocks.n_blocks + (rng.permutation(blocks.n_blocks) < S % blocks.n_blocks)
    groups = np.repeat(np.arange(blocks.n_blocks), sizes)
    return [blocks.slot(int(client), int(j)) for client, j in zip(sampled, groups)]


def plan(indices: np.ndarray, training: Training, seed: int, round: int, client: int) -> list[np.ndarray]:
    """The mini-batches of one client in one round."""
    return batch_plan(indices, training.batch_size, training.local_epochs, numpy_rng(seed, "batches", round, client))


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    training: Training | None = None,
    seed: int = 0,
    *,
    machine: Machine | None = None,
    resume: Trajectory | None = None,
    states: Path | None = None,
    on_round: Callable[[Trajectory], None] = lambda trajectory: None,
    select: Callable = select,
    plan: Callable = plan,
    **fields,
) -> Trajectory:
    """Run an algorithm on a problem: simulate(problem, FedAvg(), rounds=50, lr=0.1).

    `fields` are those of `Training`; they change `training` where it is given. on_round is called after every round;
    select and plan replace the sampling of clients and of mini-batches. machine: how clients are trained (default: the
    fastest way here, from a short measurement that is kept). states: a folder for client states that exceed half of the
    memory (default: a temporary one, removed with the trajectory). The result is a pure function of (problem,
    algorithm, training, seed), wherever it was interrupted and resumed, and up to rounding of the machine's `chunk`.
    """
    unknown = [name for name in fields if name not in Training.__dataclass_fields__]
    if unknown:
        known = ", ".join(Training.__dataclass_fields__)
        raise ValueError(f"simulate() was given {', '.join(unknown)}: expected names among {known}.")
    training = replace(training, **fields) if training else Training(**fields)
    checks.whole("seed", seed, at_least=0)
    blocks = algorithm.layout(partition(problem.model, algorithm.blocks))
    problem.check_precision(training.precision)
    if not isinstance(machine, Machine | None):
        raise ValueError(f"machine = {machine!r} was given: expected a Machine, as in Machine(workers=2).")
    machine = machine or fastest(problem, training)
    with (
        settings(training.precision, machine.deterministic),
        Engine(problem, algorithm, blocks, training, machine) as engine,
    ):
        loop = _Loop(engine, blocks, seed, select, plan)
        trajectory = loop.resumed(resume) if resume else loop.start(states)
        while not loop.finished(trajectory):
            loop.play(trajectory)
            if trajectory.diverged is None and loop.evaluation_due(trajectory):
                loop.evaluate(trajectory)
            on_round(trajectory)
    return trajectory


class _Loop:
    """The fixed parts of a run: one method for each part of a round."""

    def __init__(self, engine: Engine, blocks: Blocks, seed: int, select, plan):
        problem, algorithm, training = engine.problem, engine.algorithm, engine.training
        self.engine, self.algorithm, self.training, self.blocks, self.seed = engine, algorithm, training, blocks, seed
        self.select, self.plan = select, plan
        self.clients = [np.concatenate(problem.clients)] if algorithm.pooled else problem.clients
        problem.check_last_batches(self.clients, training.batch_size)
        self.holders = np.array([0]) if algorithm.pooled else problem.holders()
        self.S = 1 if algorithm.pooled else training.clients_per_round
        if self.S > len(self.holders):
            raise ValueError(
                f"clients_per_round = {self.S} was given: only {len(self.holders)} clients hold data, expected 1 to "
                f"{len(self.holders)}."
            )
        if algorithm.pooled and training.rounds is None:
            raise ValueError(
                f"{algorithm.label} uploads nothing, so budget_d = {training.budget_d} never ends the run: give rounds."
            )
        for slot in (blocks.slot(0, j) for j in range(blocks.n_blocks)):
            for _, cut in slot.cuts:
                algorithm.codec.floats_per_float(cut.stop - cut.start)  # refuses a k above the size of a block
        self.server, self.blank = algorithm.init(engine.x0.clone(), len(self.clients))

    def start(self, states: Path | None) -> Trajectory:
        """The state before the first round, evaluated."""
        trajectory = Trajectory(self.blocks, self.server, clients=self.client_states(states))
        self.evaluate(trajectory)
        return trajectory

    def client_states(self, folder: Path | None) -> MutableMapping[int, State]:
        """A dict, or files where the states of all clients are too large for memory."""
        if not too_large(len(self.clients), self.blank):
            return {}
        temporary = None if folder else tempfile.mkdtemp(prefix="fedbcgd-states-")
        states = StatesInFiles(folder or temporary, len(self.clients), self.blank)
        if temporary:
            weakref.finalize(states, shutil.rmtree, temporary, ignore_errors=True)
        return states

    def resumed(self, t: Trajectory) -> Trajectory:
        """A trajectory to go on with; it must have been made with the same blocks."""
        if t.blocks != self.blocks:
            raise ValueError(
                f"a run with {t.blocks} was given to resume: {self.algorithm.label} here has {self.blocks}."
            )
        return t

    def finished(self, t: Trajectory) -> bool:
        """True after R rounds, after divergence, and when another round like the last one would exceed the budget."""
        rounds, budget_d = self.training.rounds, self.training.budget_d
        out_of_rounds = rounds is not None and t.round >= rounds
        next_upload = t.upload_floats + t.last_upload_floats
        out_of_budget = budget_d is not None and t.round > 0 and next_upload > budget_d * self.blocks.d * (1 + 1e-12)
        return t.diverged is not None or out_of_rounds or out_of_budget

    def evaluation_due(self, t: Trajectory) -> bool:
        uploaded = t.upload_floats / self.blocks.d - t.rows[-1]["upload_d"]
        return uploaded >= self.training.eval_every_d - 1e-12 or self.algorithm.pooled or self.finished(t)

    def play(self, t: Trajectory) -> None:
        """One round, in place."""
        slots = self.select(self.holders, self.S, self.blocks, self.seed, t.round)
        trained = self.engine.train(t.server, [self.visit(t, slot) for slot in slots], self.seed, t.round)
        sent = Ledger()
        uploads = self.engine.upload(slots, trained, self.seed, t.round)
        letters = [self.post(t, slot, message, state, sent) for slot, (message, state) in zip(slots, uploads)]
        server = self.algorithm.aggregate(t.server, Mail(letters))
        if not _finite(server):
            broken = [letter.slot.client for letter in letters if not _finite(letter.content)]
            named = ", ".join(map(str, broken or [slot.client for slot in slots]))
            t.diverged = f"NaN or infinity in round {t.round} from clients {named}"
            return
        t.server, t.train_loss = server, torch.stack([loss for *_, loss in trained]).mean().item()
        self.settle(t, sent, len(slots))
        t.round += 1

    def visit(self, t: Trajectory, slot: Slot) -> Visit:
        """What a client finds when it is sampled."""
        samples = self.clients[slot.client]
        batches = self.plan(samples, self.training, self.seed, t.round, slot.client)
        return Visit(slot, t.clients.get(slot.client, self.blank), samples, batches)

    def post(self, t: Trajectory, slot: Slot, message: dict, state: State, sent: Ledger) -> Letter:
        """A client's upload, entered into the ledger with its download; its state is kept."""
        if state:
            t.clients[slot.client] = state
        if not self.algorithm.pooled:
            sent.post(t.round, slot, "down", {key: Dense(t.server[key]) for key in self.algorithm.broadcast})
            sent.post(t.round, slot, "up", message)
        return Letter(slot, {key: payload.decode() for key, payload in message.items()})

    def settle(self, t: Trajectory, sent: Ledger, participants: int) -> None:
        """Enter the round into the ledger."""
        t.ledger.rows += sent.rows
        t.last_upload_floats = sent.sum("floats", "up") / participants
        t.upload_floats += t.last_upload_floats
        t.upload_bits += sent.sum("bits", "up") / participants
        t.download_bits += sent.sum("bits", "down") / participants

    def evaluate(self, t: Trajectory) -> None:
        """Append one row of measurements; accuracy in percent, losses per sample, uploads per participating client."""
        accuracy, test_loss = self.engine.test(t.x)
        measured = self.engine.problem.measure(t.x) if self.engine.problem.measure else {}
        t.rows.append(
            {
                "round": t.round,
                "upload_d": t.upload_floats / self.blocks.d,
                "upload_nominal_d": t.round * self.algorithm.nominal_upload_d(self.blocks),
                "upload_bits": t.upload_bits,
                "download_bits": t.download_bits,
                "accuracy": accuracy,
                "test_loss": test_loss,
                "train_loss": t.train_loss,
                **measured,
            }
        )


def _finite(tensors: State) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
