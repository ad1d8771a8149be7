"""Other simulators on the works of make bench, each through its own public calls; only those that are installed.

Tried with fedjax 0.0.17 (it needs jax<0.6), pfl 0.6.0 and fedlab 1.3.0.
"""

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial

import torch
from plain_loop import PlainLeNet5
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from works import Work

FOREVER = 10**9  # rounds


class Network(nn.Sequential):
    """The network of the plain loop, with the two methods that pfl-research asks for."""

    def __init__(self, work: Work):
        super().__init__(*([nn.Flatten(), nn.Linear(784, 10)] if work.name == "W1" else [PlainLeNet5(work.image)]))

    def loss(self, images, labels):
        """To be minimised."""
        return F.cross_entropy(self(images), labels)

    def metrics(self, images, labels) -> dict:
        """Nothing is evaluated; pfl-research would do so in the first round."""
        return {}


def clients_of(work: Work) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images, normalised beforehand, and labels of each client."""
    images, labels = work.images()
    images = images.float().sub_(127.5).div_(73.9)
    return list(zip(images.split(work.samples), labels.split(work.samples)))


def first_round(started: float) -> dict:
    """What is told after a round."""
    return {"first_round_s": time.perf_counter() - started}


def play_fedjax(work: Work, turn) -> None:
    """Its FedAvg with a network in Haiku and images in NHWC; XLA shares each operation among the cores."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import fedjax
    import haiku as hk
    import jax

    def network(batch):
        """784-10, or the layers of PlainLeNet5."""
        conv, pool = partial(hk.Conv2D, 64, 5, padding="VALID"), partial(hk.MaxPool, 2, 2, "VALID")
        layers = [hk.Flatten()]
        if work.name != "W1":
            layers = [conv(), jax.nn.relu, pool(), conv(), jax.nn.relu, pool(), *layers]
            layers += [hk.Linear(384), jax.nn.relu, hk.Linear(192), jax.nn.relu]
        return hk.Sequential([*layers, hk.Linear(10)])(batch["x"])

    clients = {
        f"{i:02}": {"x": images.permute(0, 2, 3, 1).contiguous().numpy(), "y": labels.numpy()}
        for i, (images, labels) in enumerate(clients_of(work))
    }
    started = time.perf_counter()
    model = fedjax.create_model_from_haiku(
        hk.transform(network),
        sample_batch={name: values[:1] for name, values in clients["00"].items()},
        train_loss=lambda batch, output: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], output),
    )
    decay = fedjax.regularizers.l2_regularizer(work.weight_decay / 2) if work.weight_decay else None
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model, decay),
        client_optimizer=fedjax.optimizers.sgd(0.01),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=50, num_epochs=work.epochs),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(fedjax.InMemoryFederatedData(clients), 10, seed=0)
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    while True:
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        turn(lambda: first_round(started))


def play_pfl(work: Work, turn) -> None:
    """Its FedAvg in one process, with all threads of PyTorch."""
    os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")
    multiprocessing.current_process().name = "MainProcess"  # under another name it takes itself for a data loader
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Turn(TrainingProcessCallback):
        """Told of the end of each round."""

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            """Never asks for a stop."""
            turn(lambda: first_round(started))
            return False, Metrics()

    # Batches are cut once: pfl-research does not shuffle them between epochs.
    clients = [PyTorchTensorDataset(tensors) for tensors in clients_of(work)]
    network = Network(work)
    started = time.perf_counter()
    # Its uniform sampler draws with replacement.
    users = FederatedDataset(clients.__getitem__, get_user_sampler("random", range(len(clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=FOREVER, evaluation_frequency=FOREVER, train_cohort_size=10, val_cohort_size=None
        ),
        SimulatedBackend(training_data=users, val_data=None),
        PyTorchModel(
            network,
            local_optimizer_create=partial(torch.optim.SGD, weight_decay=work.weight_decay),
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(local_batch_size=50, local_num_epochs=work.epochs, local_learning_rate=0.01),
        callbacks=[Turn()],
        send_metrics_to_platform=False,
    )


def play_fedlab(work: Work, turn) -> None:
    """Its FedAvg with all clients in one process, with all threads of PyTorch."""
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline

    class Clients(FedDataset):
        """Images in memory."""

        def get_dataloader(self, id, batch_size, type="train"):
            """As PyTorch has it."""
            return DataLoader(clients[id], batch_size, shuffle=True)

    class Pipeline(StandalonePipeline):
        """Told of the end of each round."""

        def evaluate(self):
            """Nothing is evaluated."""
            turn(lambda: first_round(started))

    clients = [TensorDataset(*tensors) for tensors in clients_of(work)]
    network = Network(work)
    started = time.perf_counter()
    trainer = FedAvgSerialClientTrainer(network, num_clients=len(clients))
    trainer.setup_dataset(Clients())
    trainer.setup_optim(work.epochs, batch_size=50, lr=0.01)
    # `setup_optim` knows no weight decay.
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.01, weight_decay=work.weight_decay)
    Pipeline(FedAvgServerHandler(network, global_round=FOREVER, sample_ratio=0.1), trainer).main()


PEERS: dict[str, tuple[str, Callable]] = {
    "FedJAX": ("fedjax", play_fedjax),
    "pfl-research": ("pfl", play_pfl),
    "FedLab": ("fedlab", play_fedlab),
}


def importable() -> dict[str, Callable]:
    """Those that are installed."""
    return {name: play for name, (module, play) in PEERS.items() if importlib.util.find_spec(module)}
