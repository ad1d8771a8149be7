"""How samples are spread over clients.

A partition is a list with one integer array per client: the indices of the training samples that the client holds.
"""

from dataclasses import dataclass

import numpy as np

from . import checks
from .rng import numpy_rng


@dataclass(frozen=True)
class IID:
    """Every client holds n / n_clients samples drawn without replacement (sizes differ by one at most)."""

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels = _check_labels(labels, n_clients)
        return np.array_split(numpy_rng(seed, "partition").permutation(len(labels)), n_clients)


@dataclass(frozen=True)
class ByLabel:
    """Samples sorted by label and cut into shards, `shards` random ones a client (McMahan et al., 2017)."""

    shards: int = 2

    def __post_init__(self):
        checks.whole("shards", self.shards, at_least=1)

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels = _check_labels(labels, n_clients)
        if n_clients * self.shards > len(labels):
            raise ValueError(
                f"{n_clients} clients x {self.shards} shards exceed {len(labels)} samples: use fewer of either."
            )
        rng = numpy_rng(seed, "partition")
        shuffled = rng.permutation(len(labels))
        pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], n_clients * self.shards)
        return [
            np.concatenate([pieces[i] for i in mine]) for mine in rng.permutation(len(pieces)).reshape(n_clients, -1)
        ]


@dataclass(frozen=True)
class Dirichlet:
    """A true partition (disjoint and complete) with label skew rho: small rho, few classes a client.

    equal=True: all clients hold n / n_clients samples (sizes differ by one at most). Client i draws label ratios
    p_i ~ Dir(rho, ..., rho); the clients take one sample each in turn, its class drawn from p_i among the classes that
    are not used up.
    equal=False: each class is divided over the clients by ratios ~ Dir(rho, ..., rho), so that sizes differ as well
    (Hsu et al., 2019; Li et al., 2022). The division is drawn again, `tries` times at most, until every client holds
    `min_size` samples; min_size=0 accepts clients without any.
    """

    rho: float
    equal: bool = True
    min_size: int = 1
    tries: int = 1000

    def __post_init__(self):
        _check_rho(self.rho)

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels, rng = _check_labels(labels, n_clients), numpy_rng(seed, "partition")
        if self.equal:
            return self._equal(labels, n_clients, rng)
        best = -1
        for _ in range(self.tries):
            clients = self._unequal(labels, n_clients, rng)
            best = max(best, min(map(len, clients)))
            if best >= self.min_size:
                return clients
        raise ValueError(
            f"Dirichlet(rho={self.rho}) over {n_clients} clients: after {self.tries} draws the smallest client held "
            f"{best} of {len(labels)} samples at best, {self.min_size} wanted; raise rho, or lower n_clients or "
            "min_size."
        )

    def _unequal(self, labels, n_clients, rng) -> list[np.ndarray]:
        parts = [[] for _ in range(n_clients)]
        for label in np.unique(labels):
            pool = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(_dirichlet(rng, self.rho, n_clients))[:-1] * len(pool)
            for part, piece in zip(parts, np.split(pool, np.round(cuts).astype(int))):
                part.append(piece)
        return [np.concatenate(part) for part in parts]

    def _equal(self, labels, n_clients, rng) -> list[np.ndarray]:
        smallest = len(labels) // n_clients
        if smallest < self.min_size:
            raise ValueError(
                f"Dirichlet(rho={self.rho}) over {n_clients} clients: the smallest client would hold {smallest} of "
                f"{len(labels)} samples, {self.min_size} wanted; lower n_clients or min_size."
            )
        pools = [list(rng.permutation(np.flatnonzero(labels == label))) for label in np.unique(labels)]
        left = np.array([len(pool) for pool in pools])
        ratios = [_dirichlet(rng, self.rho, len(pools)) for _ in range(n_clients)]
        clients = [[] for _ in range(n_clients)]
        for start in range(0, len(labels), n_clients):
            for i in rng.permutation(n_clients)[: len(labels) - start]:
                label = _draw(rng, ratios[i] * (left > 0), left)
                left[label] -= 1
                clients[i].append(pools[label].pop())
        return [np.array(client) for client in clients]


@dataclass(frozen=True)
class DirichletDraws:
    """The scheme of the authors' script: n / n_clients draws a client, each from the client's own Dir(rho, ..., rho).

    A class that is used up is reshuffled and used again, so this is no partition: some samples are held twice, others
    by nobody.
    """

    rho: float

    def __post_init__(self):
        _check_rho(self.rho)

    def split(self, labels, n_clients: int, seed: int = 0) -> list[np.ndarray]:
        labels, rng = _check_labels(labels, n_clients), numpy_rng(seed, "partition")
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        pools = [[] for _ in classes]
        clients = []
        for _ in range(n_clients):
            drawn = rng.choice(len(classes), len(labels) // n_clients, p=_dirichlet(rng, self.rho, len(classes)))
            for label in set(drawn):
                while len(pools[label]) < np.sum(drawn == label):
                    pools[label] = list(rng.permutation(classes[label])) + pools[label]
            clients.append(np.array([pools[label].pop() for label in drawn]))
        return clients


PARTITIONS = (Dirichlet, DirichletDraws, IID, ByLabel)


def _check_rho(rho: float) -> None:
    checks.number("rho", rho, lambda value: value > 0, "above 0")


def _check_labels(labels, n_clients: int) -> np.ndarray:
    labels = np.asarray(labels)
    if not 1 <= n_clients <= len(labels):
        raise ValueError(
            f"{n_clients} clients were asked for with {len(labels)} samples: expected 1 to {len(labels)} clients."
        )
    return labels


def _dirichlet(rng, rho: float, n: int) -> np.ndarray:
    """One draw of Dir(rho, ..., rho), exact in its limits: equal shares for huge rho, all on one for tiny rho."""
    with np.errstate(all="ignore"):
        shares = rng.dirichlet(np.full(n, rho))
    if np.isfinite(shares).all() and np.isclose(shares.sum(), 1):
        return shares
    return np.full(n, 1 / n) if rho > 1 else np.eye(n)[rng.integers(n)]


def _draw(rng, weights: np.ndarray, fallback: np.ndarray) -> int:
    """An index drawn in proportion to `weights`, or to `fallback` where the weights are all 0."""
    cumulative = np.cumsum(weights if weights.sum() > 0 else fallback)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
