"""Convex problems: their optimum, what runs come to, and what may not go in."""

import dataclasses

import numpy as np
import pytest

from fedbcgd_lite import (
    FedAvg,
    FedBCGD,
    FedBCGDPlus,
    Machine,
    Run,
    claim_numbers,
    claims,
    columns,
    convex,
    convex_settings,
    convex_task,
    curves,
    gap_table,
    grid,
    judge,
    lowest,
    run_grid,
    simulate,
)
from fedbcgd_lite.constants import Constants, measured
from fedbcgd_lite.convex import ConvexTask
from fedbcgd_lite.estimate import forecast
from fedbcgd_lite.partitioners import Dirichlet
from fedbcgd_lite.results import Result
from fedbcgd_lite.runs import from_plain, to_plain

LOSSES = ("logistic", "softmax", "ridge")


def task(**changes) -> ConvexTask:
    """Twenty clients of 100 samples with weights of their own."""
    return ConvexTask(**{"dataset": "synthetic:1", "n_clients": 20, "rounds": 10, **changes})


@pytest.fixture
def libsvm(tmp_path):
    """A file of 200 rows with three features, labelled -1 and +1."""
    rng = np.random.default_rng(0)
    rows = rng.random((200, 3))
    lines = [f"{1 if a[0] > a[1] else -1:+d} " + " ".join(f"{j + 1}:{v:.3f}" for j, v in enumerate(a)) for a in rows]
    (tmp_path / "small.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "small.txt"


# --- objective and optimum ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", LOSSES)
def test_derivatives_are_those_of_the_value(model):
    """By differences, at a random point; f is the mean over clients, and grad f that of their gradients."""
    f = task(model=model).objective()
    rng = np.random.default_rng(1)
    x, v = rng.standard_normal((2, f.d))
    assert f.gradient(x) @ v == pytest.approx((f(x + 1e-6 * v) - f(x - 1e-6 * v)) / 2e-6, rel=1e-7)
    difference = (f.gradient(x + 1e-6 * v) - f.gradient(x - 1e-6 * v)) / 2e-6
    assert f.hessian_product(x, v) == pytest.approx(difference, rel=1e-5, abs=1e-8)
    assert np.mean([f.gradient(x, client) for client in f.clients], 0) == pytest.approx(f.gradient(x), abs=1e-12)
    slopes = f.sample_gradients(x, f.clients[3])
    assert slopes.mean(0) + f.mu * x == pytest.approx(f.gradient(x, f.clients[3]), abs=1e-12)


@pytest.mark.parametrize("model", LOSSES)
def test_optimum_is_certified(model):
    """Strong convexity bounds f(x) - f* by the gradient; no point nearby is lower; ridge agrees with linear algebra."""
    f = task(model=model).objective()
    x, least = f.optimum()
    assert f.gradient(x) @ f.gradient(x) / (2 * f.mu) <= convex.CERTIFIED
    assert all(f(x + 1e-3 * v) > least for v in np.random.default_rng(2).standard_normal((10, f.d)))
    if model == "ridge":
        rows, targets = (tensor.numpy() for tensor in f.samples)
        exact = np.linalg.solve(rows.T @ rows / len(rows) + f.mu * np.eye(f.d), rows.T @ targets / len(rows))
        assert x == pytest.approx(exact, abs=1e-10)


def test_clients_weigh_the_same_whatever_they_hold(libsvm):
    """Clients of different sizes: f is the mean of the f_i, not of the samples."""
    uneven = task(dataset=f"libsvm:{libsvm}", partition=Dirichlet(0.5, equal=False), n_clients=5, clients_per_round=2)
    f = uneven.objective()
    assert len({len(client) for client in f.clients}) > 1
    x = np.array([0.3, -0.2, 0.1])
    assert np.mean([f.gradient(x, client) for client in f.clients], 0) == pytest.approx(f.gradient(x), abs=1e-12)


def test_heterogeneity_is_a_knob():
    """zeta moves the optima of the clients apart: the spread of their gradients at x* grows with it."""

    def spread(zeta):
        f = task(dataset=f"synthetic:{zeta}", model="ridge").objective()
        gradients = [f.gradient(f.optimum()[0], client) for client in f.clients]
        return np.mean([g @ g for g in gradients])

    assert spread(0) < 0.2 * spread(0.5) < 0.2 * spread(2)


def test_clients_differ_in_their_classes_and_share_no_module():
    """A hundred classes are classes like ten; who changes the model of one problem changes no other."""
    many = task(dataset="glyphs100", model="softmax", partition=Dirichlet(0.1))
    held = [len(np.unique(many.objective().samples[1][client])) for client in many.objective().clients]
    assert np.mean(held) < 70
    problem, other = (task().stand_in() for _ in range(2))
    problem.model.weight.data += 1
    assert other.model.weight.abs().max() == 0 == task().stand_in().model.weight.abs().max()


# --- runs -----------------------------------------------------------------------------------------------------------


def test_fedbcgd_plus_reaches_the_optimum_where_the_others_stall():
    """A constant step, half of the clients a round, mini-batches: 1e-12 against a floor."""
    protocol = dict(rounds=400, clients_per_round=10, lr=1.0, eval_every_d=10.0)
    gaps = {}
    for method in (FedAvg(), FedBCGD("balanced:5", 0.4), FedBCGDPlus("balanced:5", 0.4)):
        t = task(**protocol)
        run = simulate(t.problem(0), method, t, machine=Machine(chunk=10))
        gaps[method.label] = run.rows[-1]["gap"]
        assert run.rows[0]["gap"] > 0.01 and run.rows[0]["accuracy"] is None
    assert gaps["FedAvg"] > 1e-6 and gaps["FedBCGD"] > 1e-6
    assert abs(gaps["FedBCGD+"]) < 1e-12


def test_runs_are_kept_with_their_gap(tmp_path, monkeypatch):
    """A record of a convex run is read again as what it was, and another seed is another problem."""
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    runs = grid(task(profile="smoke"), algorithm=[FedAvg()], seed=range(2), lr=[0.5])
    first = run_grid(runs, "cpu", jobs=1)
    assert [r.rows for r in run_grid(runs, "cpu", jobs=1)] == [r.rows for r in first]
    assert all(from_plain(to_plain(run)) == run for run in runs)
    assert first[0].rows[-1]["gap"] < first[0].rows[0]["gap"] != first[1].rows[0]["gap"]


# --- tables, figures and verdicts -----------------------------------------------------------------------------------


def made_up(method, gaps, lr=0.5, seed=0, status="finished") -> Result:
    """A result with an evaluation each 2 rounds and 1 d."""
    run = Run(task(profile="laptop", rounds=2 * len(gaps), lr=lr), method, seed)
    n = len(gaps)
    columns = {
        "round": range(0, 2 * n, 2),
        "upload_d": [float(i) for i in range(n)],
        "accuracy": [None] * n,
        "gap": gaps,
    }
    return Result(run, {"status": status, "rows": columns})


def test_the_step_that_ends_lowest_is_chosen_by_its_last_quarter():
    """A lucky last evaluation does not count as much as four good ones; a run that diverged is never chosen."""
    lucky = made_up(FedAvg(), [1.0] * 4 + [0.5, 0.5, 0.5, 0.01], lr=0.1)
    good = made_up(FedAvg(), [1.0] * 6 + [0.1, 0.1], lr=0.3)
    lost = made_up(FedAvg(), [1.0] * 7 + [None], lr=3.0, status="diverged")
    other = made_up(FedBCGD("balanced:5"), [1.0] * 8)
    assert lowest([lucky, good, lost, other]) == [good.run, other.run]


def test_gap_table_has_floats_rounds_floors_and_rates():
    seeds = [made_up(FedAvg(), [1.0, 0.1, 0.01, 0.02], seed=0), made_up(FedAvg(), [1.0, 0.01, 0.001, 0.002], seed=1)]
    row = gap_table(seeds, 0.01).loc["FedAvg"]
    assert (row["to_target_d"], row["rounds"], row["lr"]) == (1.5, 3, 0.5)
    assert (row["lowest"], row["last"]) == pytest.approx((0.0055, 0.011))
    assert row["rate"] == pytest.approx((np.log(100) + np.log(1000)) / 2 / 4)
    assert np.isnan(gap_table(seeds, 0.005).loc["FedAvg", "to_target_d"])
    lost = gap_table([made_up(FedAvg(), [1.0, 0.5, None], status="diverged")], 0.01).loc["FedAvg"]
    assert lost["lowest"] == 0.5 and lost["last"] == np.inf and np.isnan(lost["rounds"])


def test_gaps_are_drawn_on_a_logarithmic_axis_down_to_rounding():
    results = [made_up(FedAvg(), [1.0, 1e-8, -1e-17]), made_up(FedAvg(), [1.0, 1e-9, 0.0], seed=1)]
    ax = curves(results, x="round", y="gap", target=1e-3).axes[0]
    assert ax.get_yscale() == "log" and ax.get_ylabel() == "f(x) - f*"
    assert ax.lines[0].get_ydata()[-1] == 1e-16 and len(ax.lines) == 2


def test_claims_about_gaps_and_about_computed_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    entry = {"id": "a", "item": "trial", "statement": "It comes close.", "relation": "<", "profiles": ["laptop"]}
    runs = [made_up(FedAvg(), [1.0, 1e-7, 1e-3]), made_up(FedBCGD("balanced:5"), [1.0, 0.1, 0.1])]
    near = {**entry, "quantity": "lowest_gap", "of": {"method": "FedAvg"}, "value": 1e-6}
    assert judge(near, runs).verdict == "reproduced" and judge(near, runs).ours == "1.0e-07"
    assert judge({**near, "quantity": "final_gap"}, runs).verdict == "not reproduced"
    first = {**entry, "quantity": "to_target_d", "target": 1e-3, "of": near["of"], "than": {"method": "FedBCGD"}}
    assert judge(first, runs).ours == "1.00 d against never"
    computed = [
        {**entry, "quantity": "computed", "than": "the other"},
        {**entry, "id": "b", "quantity": "computed", "value": 2},
    ]
    monkeypatch.setattr(claims, "ENTRIES", computed)
    found = claim_numbers("trial", {"a": (1.0, 0.5), "b": 1.0}, "laptop")
    assert [v.verdict for v in found] == ["not reproduced", "reproduced"] and found[0].ours == "1 against 0.5"
    assert [v.verdict for v in claim_numbers("trial", {"a": (1.0, 0.5), "b": 1.0}, "smoke")] == ["not judged"] * 2
    with pytest.raises(ValueError, match="numbers were given for a: expected a, b"):
        claim_numbers("trial", {"a": 1.0}, "laptop")


def test_protocol_of_figure_8():
    """Two convex problems at every profile, any data in their place, and the plan of their runs without computing."""
    for profile in ("laptop", "smoke", "paper"):
        assert [type(column.task) for column in columns("fig08_convex", profile)] == [ConvexTask, ConvexTask]
    for column in columns("fig08_convex", "paper"):
        t = column.task
        assert (t.n_clients, t.clients_per_round, t.lr_decay, t.weight_decay) == (100, 10, 0.998, 1e-3)
        assert (t.dataset, t.batch_size, t.local_epochs) == ("emnist-balanced", 50, 1)
    other = columns("fig08_convex", "smoke", dataset="synthetic:0")
    assert {column.task.dataset for column in other} == {"synthetic:0"}
    settings = convex_settings(other)
    assert list(settings["d"]) == [40, 80] and list(settings["samples"]) == [10_000] * 2
    (row,) = forecast(grid(other[0].task, algorithm=FedBCGD("balanced:5")))
    assert row["rounds"] == 40 and row["gradient steps"] == 40 * 10 * 2
    with pytest.raises(ValueError, match=r"convex_task\(\) was given width: expected names among"):
        columns("fig08_convex", "smoke", width=4)
    with pytest.raises(ValueError, match="unknown profile 'desktop'"):
        convex_task("desktop")


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"weight_decay": 0.0},
            "weight_decay = 0.0 was given: expected a finite number above 0, as it is the convexity",
        ),
        ({"model": "lenet5"}, "unknown model 'lenet5': expected one of logistic, softmax, ridge"),
        ({"dataset": "synthetic:-1"}, "unknown dataset 'synthetic:-1'.*zeta of at least 0"),
        ({"dataset": "libsvm:"}, "unknown dataset 'libsvm:'.*'libsvm:<file>'"),
        ({"dataset": "mnist"}, "unknown dataset 'mnist'"),
        ({"n_clients": 5}, "clients_per_round = 10 was given: expected 1 to 5"),
        ({"partition": 0.1}, "partition = 0.1 was given"),
    ],
)
def test_tasks_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        task(**changes)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "there is no file .*expected a LIBSVM file"),
        ("+1 one:1\n", "is no LIBSVM file .*expected lines such as"),
        ("+1 3:1 2:1\n-1 1:1\n", "is no LIBSVM file"),
        ("1 1:1\n2 1:1\n3 1:1\n", "has the labels 1, 2, 3: expected two classes"),
        ("1 1:1\n1 1:2\n", "has the labels 1: expected two classes"),
    ],
)
def test_files_that_are_no_libsvm_file(text, message, tmp_path):
    path = tmp_path / "bad.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        task(dataset=f"libsvm:{path}", n_clients=2, clients_per_round=1).objective()


# --- measured constants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", LOSSES)
def test_constants_hold_where_they_are_used(model):
    """Smoothness and convexity between random points; noise and heterogeneity against sampling them."""
    t = task(model=model, batch_size=20)
    f, c = t.objective(), measured(t)
    rng = np.random.default_rng(3)
    for client in f.clients[:5]:
        x, y = 3 * rng.standard_normal((2, f.d))
        slope = (f.gradient(x, client) - f.gradient(y, client)) @ (x - y) / ((x - y) @ (x - y))
        assert c.mu <= slope <= c.beta
    x, client = f.optimum()[0], f.clients[7]
    each = f.sample_gradients(x, client)
    batches = np.stack([each[rng.permutation(len(client))[:20]].mean(0) for _ in range(2000)])
    assert ((batches - each.mean(0)) ** 2).sum(1).mean() <= 1.05 * c.sigma**2
    apart = np.stack([f.gradient(x, client) for client in f.clients])
    assert ((apart - apart.mean(0)) ** 2).sum(1).mean() <= c.G**2 * (1 + 1e-9)
    assert set(Constants.HOW) == {field.name for field in dataclasses.fields(c)}


def test_full_batches_make_no_noise_and_equal_clients_no_heterogeneity():
    one = task(n_clients=1, clients_per_round=1, batch_size=100)
    assert measured(one).sigma == 0 and measured(one).G < 1e-12 and measured(one).tau < 1e-12
