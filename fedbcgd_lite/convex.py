"""Convex problems in float64 whose optimum is known: logistic, softmax and ridge regression with an L2 term.

    f(x) = (1/M) sum_i f_i(x),   f_i(x) = mean_n loss(a_n'x, b_n) + (mu/2) ||x||^2

over linear models without intercept, rows a_n scaled to norm 1 (Section 5.3; the paper's second problem has no f_i).
Runs measure `gap` = f(x) - f*. f* comes from SciPy and is certified: f(x) - f* <= ||grad f(x)||^2/(2 mu).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from . import checks, data, partitioners
from .problem import Problem, Training
from .rng import numpy_rng

CERTIFIED = 1e-14  # how far f* may be from the infimum


# --- losses of one sample, and the smoothness of each as a function of its output -------------------------------------


@dataclass(frozen=True)
class Loss:
    """A convex loss of outputs (B,) or (B, C) and targets (B,), each sample on its own."""

    label: str
    of_samples: Callable[[Tensor, Tensor], Tensor]
    curvature: float  # the largest second derivative in the outputs

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.of_samples(outputs, targets).mean()


LOSSES = {
    "logistic": Loss("logistic regression", lambda z, b: F.softplus(-b * z), 1 / 4),  # b = -1, 1
    "softmax": Loss("softmax regression", lambda z, b: F.cross_entropy(z, b, reduction="none"), 1 / 2),  # b = 0..C-1
    "ridge": Loss("ridge regression", lambda z, b: (z - b) ** 2 / 2, 1.0),
}


class Linear(nn.Module):
    """a'x for each row, (B,), or for each of several classes, (B, C); starts at 0."""

    def __init__(self, n_features: int, n_outputs: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_outputs, n_features, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        outputs = rows @ self.weight.T
        return outputs.squeeze(-1) if len(self.weight) == 1 else outputs


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvexTask(Training):
    """A convex problem with the protocol that it is solved by; `weight_decay` is mu.

    dataset: "fmnist12k" or another of the package's (its classes; for "logistic" odd against even ones),
    "libsvm:<file>" (two classes, or numbers for "ridge"), or "synthetic:<zeta>", where each client has weights of its
    own, w_i = w + zeta u_i: 0 is the same for all.
    """

    profile: str = "custom"
    dataset: str = "fmnist12k"
    model: str = "logistic"  # a loss: "logistic", "softmax" or "ridge"
    n_clients: int = 100  # M
    partition: object = field(default=partitioners.Dirichlet(0.1))
    weight_decay: float = 0.01  # mu
    local_epochs: int = 1
    lr_decay: float = 1.0
    validation: ClassVar[float] = 0.0  # the objective itself is measured

    def __post_init__(self):
        super().__post_init__()
        if self.model not in LOSSES:
            raise ValueError(f"unknown model {self.model!r}: expected one of {', '.join(LOSSES)}.")
        checks.number("weight_decay", self.weight_decay, lambda mu: mu > 0, "above 0, as it is the convexity mu")
        checks.whole("n_clients", self.n_clients, at_least=1)
        if not isinstance(self.partition, partitioners.PARTITIONS):
            raise ValueError(f"partition = {self.partition!r} was given: expected one such as Dirichlet(0.1).")
        if not 1 <= self.clients_per_round <= self.n_clients:
            raise ValueError(
                f"clients_per_round = {self.clients_per_round} was given: expected 1 to {self.n_clients}, the number "
                "of clients."
            )
        _check_dataset(self.dataset)

    @property
    def names(self) -> tuple[str, str]:
        """Model and data set as tables and figures write them."""
        kind, _, rest = self.dataset.partition(":")
        own = {"libsvm": Path(rest).name, "synthetic": f"synthetic data, heterogeneity {rest}"}
        return LOSSES[self.model].label, own.get(kind) or data.label(self.dataset)

    @property
    def n_samples(self) -> int:
        """How many samples all clients hold together."""
        return len(self.objective().samples[1])

    def problem(self, seed: int, device: str = "cpu") -> Problem:
        """The problem of one seed, which measures `gap` at every evaluation."""
        objective = self.objective(seed)
        gap = Gap(objective, objective.optimum()[1])
        return replace(self._problem(objective, device), measure=gap)

    def objective(self, seed: int = 0) -> "Objective":
        """f and its derivatives; made once for each seed and data, whatever the protocol."""
        return _objective(self.dataset, self.model, self.weight_decay, self.n_clients, self.partition, seed)

    def stand_in(self, device: str = "cpu") -> Problem:
        """A problem of the same shapes, to time steps on: the problem itself is small enough."""
        return self._problem(self.objective(), device)

    @staticmethod
    def _problem(f: "Objective", device: str) -> Problem:
        return Problem(copy.deepcopy(f.module), f.samples, f.clients, loss=f.loss, device=device)  # f is shared


@dataclass(frozen=True)
class Gap:
    """f(x) - f*, what `Problem.measure` takes."""

    objective: "Objective"
    least: float  # f*

    def __call__(self, x: Tensor) -> dict[str, float]:
        return {"gap": self.objective(x.cpu().numpy()) - self.least}


# --- data -------------------------------------------------------------------------------------------------------------


def _check_dataset(dataset: str) -> None:
    kind, _, rest = str(dataset).partition(":")
    if kind == "libsvm" and rest:
        return
    if kind == "synthetic":
        try:
            if float(rest) >= 0:
                return
        except ValueError:
            pass
    if dataset in data.LABELS:
        return
    names = ", ".join(repr(name) for name in data.LABELS)
    raise ValueError(
        f"unknown dataset {dataset!r}: expected {names}, 'libsvm:<file>' or 'synthetic:<zeta>' with zeta of at least 0."
    )


def _samples(dataset: str, model: str, n_clients: int, partition, seed: int):
    """(rows (n, features), targets (n,), clients)."""
    kind, _, rest = dataset.partition(":")
    if kind == "synthetic":
        return _synthetic(float(rest), model, n_clients, seed)
    rows, labels = read_libsvm(Path(rest), model) if kind == "libsvm" else _images(dataset)
    codes = np.unique(labels, return_inverse=True)[1]
    numbers = kind == "libsvm" and model == "ridge"  # no classes that clients could differ in
    clients = partition.split(np.zeros(len(codes), int) if numbers else codes, n_clients, seed)
    if model == "logistic":
        labels = np.where(codes % 2, 1.0, -1.0)
    elif model == "softmax":
        labels = codes
    return rows, labels, clients


def _images(dataset: str) -> tuple[np.ndarray, np.ndarray]:
    loaded = data.load(dataset)
    return loaded.x_train.flatten(1).double().numpy(), loaded.y_train.numpy()


def read_libsvm(path: Path, model: str = "logistic") -> tuple[np.ndarray, np.ndarray]:
    """(rows (n, features), labels (n,)) of a LIBSVM file, by scikit-learn; two classes for "logistic"."""
    from sklearn.datasets import load_svmlight_file

    if not path.is_file():
        raise ValueError(f"there is no file {path}: expected a LIBSVM file, with lines such as '+1 3:1 11:0.5'.")
    try:
        rows, labels = load_svmlight_file(str(path), dtype=np.float64)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no LIBSVM file ({error}): expected lines such as '+1 3:1 11:0.5'.") from None
    classes = np.unique(labels)
    if model == "logistic" and len(classes) != 2:
        shown = ", ".join(f"{label:g}" for label in classes[:5]) + (", ..." if len(classes) > 5 else "")
        raise ValueError(f"{path} has the labels {shown}: expected two classes for logistic regression.")
    return rows.toarray(), labels


def _synthetic(zeta: float, model: str, n_clients: int, seed: int, n=100, n_features=40, decay=1.0):
    """n samples for each client: features with variances 1/j^decay, weights w + zeta u_i, noisy targets."""
    rng = numpy_rng(seed, "synthetic")
    w, u = rng.standard_normal(n_features), rng.standard_normal((n_clients, n_features))
    rows = rng.standard_normal((n_clients, n, n_features)) / np.arange(1, n_features + 1) ** (decay / 2)
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    outputs = np.einsum("inf,if->in", rows, w + zeta * u).ravel()
    if model == "ridge":
        targets = outputs + 0.1 * rng.standard_normal(len(outputs))
    else:
        targets = np.where(rng.random(len(outputs)) < 1 / (1 + np.exp(-4 * outputs)), 1.0, -1.0)
        targets = (targets > 0).astype(int) if model == "softmax" else targets
    return rows.reshape(-1, n_features), targets, np.split(np.arange(n_clients * n), n_clients)


# --- the objective and its optimum ------------------------------------------------------------------------------------


class Objective:
    """f, grad f and products with its Hessian, at x (d,) as a NumPy array."""

    def __init__(self, rows: np.ndarray, targets: np.ndarray, clients: list[np.ndarray], model: str, mu: float):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = torch.from_numpy(rows / np.where(norms > 0, norms, 1))
        self.samples = rows, torch.from_numpy(targets)
        self.clients, self.loss, self.mu = clients, LOSSES[model], mu
        self.module = Linear(rows.shape[1], int(targets.max()) + 1 if model == "softmax" else 1)
        self.d = self.module.weight.numel()
        weights = np.zeros(len(rows))
        for client in self.holders:
            np.add.at(weights, client, 1 / len(self.holders) / len(client))
        self.weights = torch.from_numpy(weights)  # of each sample in f

    @property
    def holders(self) -> list[np.ndarray]:
        """The samples of each client that has any."""
        return [client for client in self.clients if len(client)]

    def __call__(self, x: np.ndarray) -> float:
        with torch.no_grad():
            return float(self._value(torch.from_numpy(x), *self._part(None)))

    def gradient(self, x: np.ndarray, client: np.ndarray | None = None) -> np.ndarray:
        """grad f (d,), or grad f_i of a client's samples."""
        x = torch.from_numpy(x).requires_grad_()
        return torch.autograd.grad(self._value(x, *self._part(client)), x)[0].numpy()

    def sample_gradients(self, x: np.ndarray, client: np.ndarray) -> np.ndarray:
        """The gradient at each of a client's samples (n, d), without the L2 term."""
        rows, targets = (tensor[client] for tensor in self.samples)
        outputs = self._outputs(torch.from_numpy(x), rows).requires_grad_()
        (slopes,) = torch.autograd.grad(self.loss.of_samples(outputs, targets).sum(), outputs)  # (n,) or (n, C)
        return (slopes.reshape(len(rows), -1, 1) * rows[:, None]).flatten(1).numpy()

    def hessian_product(self, x: np.ndarray, v: np.ndarray, client: np.ndarray | None = None) -> np.ndarray:
        """(grad^2 f) v (d,), or (grad^2 f_i) v."""
        x, v = torch.from_numpy(x).requires_grad_(), torch.from_numpy(v)
        (g,) = torch.autograd.grad(self._value(x, *self._part(client)), x, create_graph=True)
        return torch.autograd.grad(g @ v, x)[0].numpy()

    def optimum(self) -> tuple[np.ndarray, float]:
        """(x* (d,), f*), certified to CERTIFIED: quasi-Newton steps, then Newton's with conjugate gradients."""
        if not hasattr(self, "_optimum"):
            self._optimum = self._solve()
        return self._optimum

    def _solve(self) -> tuple[np.ndarray, float]:
        import scipy.optimize
        import scipy.sparse.linalg

        options = {"maxiter": 10_000, "maxfun": 20_000, "gtol": 1e-12, "ftol": 0}
        x = scipy.optimize.minimize(self, np.zeros(self.d), jac=self.gradient, method="L-BFGS-B", options=options).x
        for _ in range(20):
            g = self.gradient(x)
            if g @ g / (2 * self.mu) < CERTIFIED**1.5:
                break
            hessian = scipy.sparse.linalg.LinearOperator(
                (self.d, self.d), lambda v, x=x: self.hessian_product(x, v), dtype=np.float64
            )
            x = x - scipy.sparse.linalg.cg(hessian, g, rtol=1e-10, maxiter=10 * self.d)[0]
        g = self.gradient(x)
        if not g @ g / (2 * self.mu) <= CERTIFIED:
            raise ArithmeticError(f"the optimum is only known to {g @ g / (2 * self.mu):.1g}: raise weight_decay.")
        return x, self(x)

    def _part(self, client: np.ndarray | None) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, targets, their weights) of all clients or of one."""
        if client is None:
            return *self.samples, self.weights
        weights = torch.full((len(client),), 1 / len(client), dtype=torch.float64)
        return *(tensor[client] for tensor in self.samples), weights

    def _outputs(self, x: Tensor, rows: Tensor) -> Tensor:
        return functional_call(self.module, {"weight": x.view_as(self.module.weight)}, (rows,))

    def _value(self, x: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return weights @ self.loss.of_samples(self._outputs(x, rows), targets) + self.mu / 2 * x @ x


@lru_cache(maxsize=8)
def _objective(dataset: str, model: str, mu: float, n_clients: int, partition, seed: int) -> Objective:
    return Objective(*_samples(dataset, model, n_clients, partition, seed), model, mu)
