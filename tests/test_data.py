"""Partitions, mini-batches, the embedded data set, and a task's problem."""

import gzip
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fedbcgd_lite as fb
from fedbcgd_lite import data
from fedbcgd_lite.datasets import draw_fmnist12k
from fedbcgd_lite.partitioners import Dirichlet, DirichletDraws
from fedbcgd_lite.rng import numpy_rng

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")
EQUAL = [fb.IID(), Dirichlet(0.6), Dirichlet(0.1), Dirichlet(1e-8)]
TRUE = [*EQUAL, fb.ByLabel(), fb.ByLabel(1), Dirichlet(0.6, equal=False), Dirichlet(0.1, equal=False)]
ALL = [*TRUE, DirichletDraws(0.6), DirichletDraws(0.1)]
UNEVEN = np.repeat([3, 5, 8, 9], [5, 40, 60, 98])  # labels with gaps, classes of very different sizes; 203 samples


@pytest.fixture(scope="module")
def fmnist():
    """The embedded data set, loaded once."""
    return data.load("fmnist12k")


@pytest.fixture(scope="module")
def labels(fmnist):
    """Its 10,000 training labels."""
    return fmnist.y_train.numpy()


def same(a, b):
    """Whether two partitions are equal, in order as well."""
    return len(a) == len(b) and all(np.array_equal(mine, yours) for mine, yours in zip(a, b))


def effective_classes(clients, labels):
    """The mean over the clients of exp(entropy of the client's label frequencies)."""
    counts = np.array([np.bincount(labels[client], minlength=10) for client in clients])
    p = counts / counts.sum(1, keepdims=True)
    return np.exp(-np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1)).mean()


# --- partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", TRUE, ids=str)
@pytest.mark.parametrize("n_clients", [1, 7, 20])
def test_a_true_partition_is_disjoint_and_complete(scheme, n_clients):
    """Every sample belongs to exactly one client, and every client holds one."""
    if scheme in (Dirichlet(0.1, equal=False),) and n_clients == 20:
        scheme = Dirichlet(0.1, equal=False, min_size=0)
    clients = scheme.split(UNEVEN, n_clients)
    assert len(clients) == n_clients
    assert sorted(np.concatenate(clients)) == list(range(len(UNEVEN)))


@pytest.mark.parametrize("scheme", EQUAL, ids=str)
@pytest.mark.parametrize("n_clients", [1, 7, 29, 100, 203])
def test_equal_sizes_differ_by_one_at_most(scheme, n_clients):
    """Sizes are floor(n/M) or ceil(n/M), also where M does not divide n."""
    sizes = [len(client) for client in scheme.split(UNEVEN, n_clients)]
    assert sum(sizes) == len(UNEVEN)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_a_partition_is_a_function_of_its_seed(scheme, labels):
    """The same seed gives the same clients, another seed gives others; NumPy's global generator has no say."""
    first = scheme.split(labels, 50, seed=3)
    np.random.seed(1)
    assert same(first, scheme.split(labels, 50, seed=3))
    assert not same(first, scheme.split(labels, 50, seed=4))


@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_100_clients_on_the_embedded_labels_within_5_seconds(scheme, labels):
    """The paper's setting, rho = 0.6 and 0.1 among it: every client holds a sample, in bounded time."""
    started = time.monotonic()
    clients = scheme.split(labels, 100)
    assert time.monotonic() - started < 5
    assert len(clients) == 100 and min(map(len, clients)) >= 1
    assert all(client.dtype.kind == "i" and 0 <= client.min() and client.max() < len(labels) for client in clients)


@pytest.mark.parametrize("kind", [Dirichlet, lambda rho: Dirichlet(rho, equal=False, min_size=0), DirichletDraws])
def test_small_rho_means_few_classes_a_client(kind, labels):
    """Label skew falls with rho: at 0.1 a few effective classes of 10 a client, at 100 nearly all."""
    skewed, mild, even = (effective_classes(kind(rho).split(labels, 50), labels) for rho in (0.1, 1, 100))
    assert skewed < 4 < mild < 9 < even


def test_by_label_gives_a_client_as_many_classes_as_shards(labels):
    """Shards of 50 samples lie inside one class of 1000, so 2 shards are at most 2 classes."""
    assert max(len(set(labels[client])) for client in fb.ByLabel(2).split(labels, 100)) == 2


def test_iid_gives_every_client_all_classes(labels):
    """1000 samples drawn without regard to the label hold about 100 of each class."""
    counts = [np.bincount(labels[client], minlength=10) for client in fb.IID().split(labels, 10)]
    assert 60 < np.min(counts) and np.max(counts) < 140


@pytest.mark.parametrize("rho", [0.1, 0.6, 100])
@pytest.mark.parametrize("n_clients", [7, 100])
def test_draws_are_exactly_n_over_m_a_client(rho, n_clients, labels):
    """The authors' scheme draws floor(n/M) samples for each client, whatever rho."""
    assert {len(client) for client in DirichletDraws(rho).split(labels, n_clients)} == {len(labels) // n_clients}


@pytest.mark.parametrize("rho", [0.1, 0.6])
def test_draws_hold_some_samples_twice_and_others_never(rho, labels):
    """The authors' scheme is no partition: used-up classes are used again, of others some samples are never drawn."""
    times = np.bincount(np.concatenate(DirichletDraws(rho).split(labels, 100)), minlength=len(labels))
    assert times.sum() == len(labels)
    assert times.max() >= 2 and times.min() == 0


@pytest.mark.parametrize("rho", [0.1, 0.6, 1e-8])
@pytest.mark.parametrize("seed", range(3))
def test_draws_use_a_class_up_before_they_use_it_again(rho, seed):
    """Within a class the numbers of draws differ by one at most, also in a class of five that is used many times."""
    times = np.bincount(np.concatenate(DirichletDraws(rho).split(UNEVEN, 20, seed)), minlength=len(UNEVEN))
    assert all(np.ptp(times[label == UNEVEN]) <= 1 for label in np.unique(UNEVEN))


@pytest.mark.parametrize("rho", [5e-324, 1e-300, 1e-8, 1e6, 1e308])
@pytest.mark.parametrize("kind", [Dirichlet, lambda rho: Dirichlet(rho, equal=False, min_size=0)])
def test_extreme_rho_still_gives_a_partition(kind, rho, labels):
    """No overflow, no NaN, no warning: the limits of the Dirichlet distribution are exact."""
    clients = kind(rho).split(labels, 100)
    assert sorted(np.concatenate(clients)) == list(range(len(labels)))


@pytest.mark.parametrize("rho, classes", [(1e-300, 1), (1e-8, 1), (1e6, 10), (1e308, 10)])
def test_extreme_rho_gives_one_class_or_all(rho, classes, labels):
    """In the limits a client of the authors' scheme has a single class, or all ten."""
    assert {len(set(labels[client])) for client in DirichletDraws(rho).split(labels, 10)} == {classes}


def test_huge_rho_divides_every_class_evenly(labels):
    """Dir(rho) for rho to infinity is equal shares: 1000 samples of a class are 10 for each of 100 clients."""
    clients = Dirichlet(1e308, equal=False).split(labels, 100)
    assert {tuple(np.bincount(labels[client])) for client in clients} == {(10,) * 10}


@pytest.mark.parametrize(
    "scheme, words",
    [
        (
            Dirichlet(0.01, equal=False, min_size=90),
            ("rho=0.01", "100 clients", "1000 draws", "90 wanted", "raise rho"),
        ),
        (Dirichlet(1e-300, equal=False), ("rho=1e-300", "100 clients", "held 0 of 1000", "1 wanted")),
        (Dirichlet(5.0, equal=False, min_size=11, tries=3), ("rho=5.0", "100 clients", "3 draws", "11 wanted")),
        (Dirichlet(0.6, min_size=11), ("rho=0.6", "100 clients", "would hold 10 of 1000", "11 wanted")),
    ],
    ids=str,
)
def test_an_impossible_request_ends_with_its_numbers(scheme, words, labels):
    """A minimum size that is never reached ends in bounded time, with rho, the clients and the smallest size."""
    started = time.monotonic()
    with pytest.raises(ValueError) as error:
        scheme.split(labels[:1000], 100)
    assert time.monotonic() - started < 20
    assert [word for word in words if word not in str(error.value)] == []


def test_min_size_is_kept(labels):
    """Sizes below min_size are drawn again, with the same result for the same seed."""
    wanted = Dirichlet(0.6, equal=False, min_size=40)
    clients = wanted.split(labels, 100, seed=1)
    assert min(map(len, clients)) >= 40 > min(map(len, Dirichlet(0.6, equal=False).split(labels, 100, seed=1)))
    assert same(clients, wanted.split(labels, 100, seed=1))


# --- mini-batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n, batch_size, epochs", [(12, 4, 1), (13, 4, 3), (3, 50, 2), (1, 1, 5), (100, 50, 5), (101, 50, 1)]
)
def test_a_pass_visits_every_sample_once(n, batch_size, epochs):
    """T = E ceil(n/B) batches; each ceil(n/B) of them hold every sample once, and all but the last are full."""
    indices, steps = np.arange(n) * 7 + 3, -(-n // batch_size)
    plan = data.batch_plan(indices, batch_size, epochs, numpy_rng(0, "batches"))
    assert len(plan) == epochs * steps
    for start in range(0, len(plan), steps):
        one_pass = plan[start : start + steps]
        assert sorted(np.concatenate(one_pass)) == list(indices)
        assert [len(batch) for batch in one_pass] == [batch_size] * (steps - 1) + [n - (steps - 1) * batch_size]


def test_passes_come_in_fresh_order():
    """Two passes of one round, and the passes of two generators, differ in order."""
    first, second = data.batch_plan(np.arange(100), 100, 2, numpy_rng(0, "batches"))
    (other,) = data.batch_plan(np.arange(100), 100, 1, numpy_rng(1, "batches"))
    assert not np.array_equal(first, second) and not np.array_equal(first, other)


def test_a_plan_leaves_its_indices_as_they_were():
    """The client's own array is not shuffled in place."""
    indices = np.arange(10)
    data.batch_plan(indices, 3, 2, numpy_rng(0, "batches"))
    assert np.array_equal(indices, np.arange(10))


# --- the embedded data set ------------------------------------------------------------------------------------------


def test_embedded_shapes_and_types(fmnist):
    """10,000 training and 2,000 test images of 1 x 28 x 28 bytes, int64 labels, 10 classes."""
    assert fmnist.x_train.shape == (10_000, 1, 28, 28) and fmnist.x_test.shape == (2_000, 1, 28, 28)
    assert fmnist.y_train.shape == (10_000,) and fmnist.y_test.shape == (2_000,)
    assert {fmnist.x_train.dtype, fmnist.x_test.dtype} == {torch.uint8}
    assert {fmnist.y_train.dtype, fmnist.y_test.dtype} == {torch.int64}
    assert fmnist.n_classes == 10


def test_embedded_classes_are_balanced(fmnist):
    """1000 training and 200 test images of each class, in no order of classes."""
    assert torch.bincount(fmnist.y_train).tolist() == [1000] * 10
    assert torch.bincount(fmnist.y_test).tolist() == [200] * 10
    assert len(fmnist.y_train[:50].unique()) == 10


def test_training_pixels_have_mean_0_and_std_1(fmnist):
    """Normalisation by the training set's own mean and standard deviation over all pixels."""
    pixels = fmnist.normalise(fmnist.x_train).double()
    assert abs(pixels.mean()) < 1e-6
    assert abs(pixels.std(correction=0) - 1) < 1e-6


def test_each_channel_is_normalised_by_itself():
    """Channels of different brightness and contrast end with mean 0 and standard deviation 1 each."""
    rng = np.random.default_rng(0)
    images = np.stack([rng.integers(0, 50, (20, 4, 4)), rng.integers(100, 255, (20, 4, 4))], 1).astype(np.uint8)
    pixels = data.normalisation(images)(torch.from_numpy(images)).double()
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-6
    assert (pixels.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_a_channel_of_one_colour_stays_finite():
    """Nothing is divided by a standard deviation of 0."""
    black = np.zeros((2, 1, 3, 3), np.uint8)
    assert torch.equal(data.normalisation(black)(torch.from_numpy(black)), torch.zeros(2, 1, 3, 3))


def test_no_image_is_in_both_sets(fmnist):
    """The test images are not among the training images."""
    train = {image.numpy().tobytes() for image in fmnist.x_train}
    assert not any(image.numpy().tobytes() in train for image in fmnist.x_test)


def test_the_licence_lies_beside_the_data():
    """The images are MIT licensed, and the licence travels with them."""
    text = (data.FOLDER / "LICENSE-fmnist12k.txt").read_text()
    assert "MIT" in text and "Zalando" in text and "Permission is hereby granted" in text


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="the original Fashion-MNIST files are not installed")
def test_redrawing_from_the_originals_gives_the_committed_file():
    """The committed file is what its script draws, byte for byte."""
    drawn = draw_fmnist12k.draw(ORIGINALS)
    with np.load(data.FOLDER / "fmnist12k.npz") as committed:
        assert set(committed.files) == set(drawn)
        assert all(np.array_equal(committed[name], drawn[name]) and drawn[name].dtype == np.uint8 for name in drawn)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 4)])
def test_read_idx(shape, tmp_path):
    """The idx format: magic with type and number of axes, big-endian sizes, bytes."""
    content = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
    (tmp_path / "tiny.gz").write_bytes(gzip.compress(header + content.tobytes()))
    read = draw_fmnist12k.read_idx(tmp_path / "tiny.gz")
    assert read.dtype == np.uint8 and np.array_equal(read, content)


# --- validation sets and a reader's own data --------------------------------------------------------------------------


@pytest.fixture
def numbered():
    """Ten samples that carry their number, and a test set that can be told from them."""
    x, y = torch.arange(10.0)[:, None], torch.arange(10) % 2
    return data.Data(x, y, x[:4] + 100, y[:4], n_classes=2, normalise=data.Normalise(torch.ones(1), torch.zeros(1)))


@pytest.mark.parametrize("fraction, held", [(0.1, 1), (0.25, 2), (0.5, 5)])
def test_hold_out_splits_the_training_set_only(numbered, fraction, held):
    """Held-out and kept samples are the training set, each sample once with its own label; the test set is gone."""
    split = data.hold_out(numbered, fraction, seed=0)
    assert (len(split.y_test), len(split.y_train)) == (held, 10 - held) == (len(split.x_test), len(split.x_train))
    numbers = torch.cat([split.x_train, split.x_test]).flatten()
    assert sorted(numbers.tolist()) == list(range(10))
    assert torch.equal(torch.cat([split.y_train, split.y_test]), numbers.long() % 2)


def test_hold_out_is_a_function_of_its_seed(numbered):
    """The same seed holds the same samples out, another seed others."""
    chosen = [data.hold_out(numbered, 0.5, seed).x_test.flatten().tolist() for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize(
    "dataset",
    [
        torch.utils.data.TensorDataset(torch.arange(6.0).view(3, 2), torch.tensor([2, 0, 1])),
        [(np.array([0, 1], np.float32), 2), (np.array([2, 3], np.float32), 0), (np.array([4, 5], np.float32), 1)],
        [
            (torch.tensor([0.0, 1.0]), np.int64(2)),
            (torch.tensor([2.0, 3.0]), np.int64(0)),
            (torch.tensor([4.0, 5.0]), 1),
        ],
    ],
    ids=["TensorDataset", "list of arrays", "list of tensors"],
)
def test_tensors_of_any_map_style_data_set(dataset):
    """A torch data set, or a list of pairs, becomes the pair of tensors that a Problem takes."""
    x, y = data.tensors(dataset)
    assert torch.equal(x, torch.arange(6.0).view(3, 2)) and x.dtype == torch.float32
    assert torch.equal(y, torch.tensor([2, 0, 1])) and y.dtype == torch.int64


# --- a task's problem -----------------------------------------------------------------------------------------------


def initial(problem):
    """The initial model as one vector."""
    return torch.nn.utils.parameters_to_vector(problem.model.parameters()).detach()


@pytest.mark.parametrize("model", ["lenet5", "logistic"])
def test_a_seed_decides_partition_and_initial_model(model):
    """The same seed gives the same problem, another seed another partition and another initial model."""
    first, again, other = (fb.task("smoke", width=2, model=model).problem(seed) for seed in (0, 0, 1))
    assert same(first.clients, again.clients) and torch.equal(initial(first), initial(again))
    assert not same(first.clients, other.clients)
    assert not torch.equal(initial(first), initial(other))


def test_building_a_problem_leaves_the_global_generator_alone():
    """The initial model is drawn from a stream of its own; torch's generator goes on where it was."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fb.task("smoke", width=2).problem(1)
    assert torch.equal(torch.rand(3), expected)


def test_without_validation_a_task_evaluates_on_the_test_set(fmnist):
    """All 10,000 training images are trained on, and the 2,000 test images are evaluated on."""
    problem = fb.task("smoke", width=2).problem(0)
    assert torch.equal(problem.train[0], fmnist.x_train) and torch.equal(problem.test[0], fmnist.x_test)


def test_validation_evaluates_on_held_out_training_images(fmnist):
    """With validation=0.1 a tenth of the training images takes the place of the test images, which are never seen."""
    problem = fb.task("smoke", width=2, validation=0.1).problem(0)
    images = torch.cat([problem.train[0], problem.test[0]])
    assert len(problem.test[1]) == 1000
    assert sorted(image.numpy().tobytes() for image in images) == sorted(
        image.numpy().tobytes() for image in fmnist.x_train
    )
    assert sorted(np.concatenate(problem.clients)) == list(range(9000))
