"""What tables and figures run: the protocols, how methods are set, the search behind it, and the plan before a run."""

import csv
import dataclasses

import numpy as np
import pandas as pd
import pytest
from test_report import result

import fedbcgd_lite as fb
from fedbcgd_lite import __main__, claims, estimate, protocols, search, tables
from fedbcgd_lite.data import SHAPES, load, shape
from fedbcgd_lite.tables import PAPER

ITEMS = [item for item, entry in protocols._read().items() if not entry.get("convex")]
TABLES = [item for item in ITEMS if item.startswith("table")]
PROFILES = ["laptop", "smoke", "paper"]


# --- protocols ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("item", ITEMS)
def test_every_item_has_its_runs_at_every_profile(item, profile):
    """Columns are tasks of that profile, and each method has settings there."""
    for column in fb.columns(item, profile):
        assert column.task.profile == profile and 0 < column.target < 100
        runs = column.runs(range(2))
        assert len(set(runs)) == 2 * len(column.methods)
        assert [run.algorithm.paper_name for run in runs[::2]] == list(column.methods)


@pytest.mark.parametrize("item", TABLES)
def test_paper_targets_budgets_and_methods_are_the_printed_ones(item):
    """At the paper profile a column has the target, the budget and the methods that the paper's table has."""
    with (PAPER / "tables.csv").open(newline="") as file:
        printed = [*csv.DictReader(file)]
    for column in fb.columns(item, "paper"):
        model = column.paper_model or column.task.names[0]
        rows = [
            row
            for row in printed
            if int(row["table"]) == column.paper_table
            and (row["dataset"], row["model"]) == (column.paper_dataset, model)
        ]
        assert [row["method"] for row in rows] == list(column.methods)
        assert {float(row["target_acc"]) for row in rows} == {column.target}
        assert {float(row["budget_d"]) for row in rows} == {column.task.budget_d}
        assert {float(row["rho"]) for row in rows} == {column.task.partition.rho}


@pytest.mark.parametrize("item", ITEMS)
def test_paper_protocol_is_that_of_section_5(item):
    """100 clients, 10 a round, batch 50 and 5 epochs (ViT: 16 and 1), decay 0.998, weight decay 0.001, full widths."""
    for column in fb.columns(item, "paper"):
        t, vit = column.task, column.task.model.startswith("vit")
        assert (t.n_clients, t.clients_per_round, t.width, t.lr_decay, t.weight_decay) == (100, 10, 64, 0.998, 1e-3)
        assert (t.batch_size, t.local_epochs) == ((16, 1) if vit else (50, 5))
        assert (t.resize, t.crop) == ((256, 224) if vit else (None, None)) and t.augment


def test_tables_2_and_3_share_their_laptop_protocol_but_for_the_data():
    """And but for the budget of ResNet-18, which is halved where it stays at chance."""
    for one, other in zip(fb.columns("table02_cifar100", "laptop"), fb.columns("table03_cifar10", "laptop")):
        assert (one.task.model, one.task.width) == (other.task.model, other.task.width)
        assert one.task.budget_d * (2 if one.task.model == "resnet18" else 1) == other.task.budget_d


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: fb.columns("table99", "laptop"), "no protocol is known for 'table99': expected one of table02"),
        (
            lambda: fb.columns("table02_cifar100", "desktop"),
            "no profile 'desktop': expected one of laptop, smoke, paper",
        ),
        (lambda: fb.tuned("FedProx", fb.task()), "unknown method 'FedProx': expected one of Centralised SGD, FedAvg"),
        (lambda: search.search_runs("desktop"), "nothing is searched at profile 'desktop'"),
        (lambda: fb.task(resize=32), "resize = 32 and crop = None were given: expected both or neither"),
        (lambda: fb.task(resize=28, crop=32), "crop = 32 was given: expected at most resize = 28"),
        (lambda: fb.task(clip=0.0), "clip = 0.0 was given: expected a finite number above 0"),
    ],
)
def test_bad_choices_are_answered_in_one_sentence(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_of_a_task_come_before_those_of_its_model_and_of_all(monkeypatch):
    rows = [
        {"profile": "laptop", "dataset": "*", "model": "*", "method": "FedAvg", "lr": "0.1"},
        {"profile": "laptop", "dataset": "*", "model": "vgg11", "method": "FedAvg", "lr": "0.2"},
        {"profile": "laptop", "dataset": "glyphs100", "model": "vgg11", "method": "FedAvg", "lr": "0.3"},
        {"profile": "smoke", "dataset": "*", "model": "lenet5", "method": "FedAvg", "lr": "0.4"},
    ]
    monkeypatch.setattr(protocols, "_settings", lambda: rows)

    def found(profile, **fields):
        known = profile if profile in PROFILES else "laptop"
        return fb.tuned("FedAvg", dataclasses.replace(fb.task(known, **fields), profile=profile))

    assert found("laptop") == {"lr": 0.1} and found("laptop", model="vgg11") == {"lr": 0.2}
    assert found("laptop", model="vgg11", dataset="glyphs100") == {"lr": 0.3}
    assert found("smoke") == {"lr": 0.4} and found("custom", model="vgg11") == {"lr": 0.2}
    assert fb.tuned("FedPAQ", fb.task()) == {"lr": 0.1}
    for profile, place in (("paper", "lenet5 on cifar10"), ("smoke", "vgg11 on fmnist12k")):
        with pytest.raises(ValueError, match=f"nothing was tuned for FedAvg with {place} at {profile}"):
            found(profile, **({"model": "vgg11"} if profile == "smoke" else {}))


def test_contenders_put_each_setting_where_it_belongs():
    """lr, clip and rounds are of the task, all else of the algorithm."""
    (run,) = fb.contenders(fb.task(), ["FedBCGD+"])
    own = fb.tuned("FedBCGD+", fb.task())
    assert (run.task.lr, run.task.clip) == (own["lr"], own["clip"])
    assert (run.algorithm.momentum, run.algorithm.option) == (own["momentum"], own["option"])


# --- the search -----------------------------------------------------------------------------------------------------


def test_the_search_never_sees_the_test_set():
    """Every run of every profile holds out a part of the training set."""
    assert all(run.task.validation == search.HELD_OUT for profile in PROFILES for run in search.search_runs(profile))


def test_grids_of_the_search_are_those_of_the_paper():
    """Step sizes and momenta are among the paper's (Section 5.1, Appendix F; no momentum at all beside them)."""
    for run in (run for profile in PROFILES for run in search.search_runs(profile)):
        assert run.task.lr in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3)
        assert getattr(run.algorithm, "momentum", 0) in (0, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def searched(accuracy: dict) -> pd.DataFrame:
    """Scores of FedAvg on two seeds: {(lr, seed): accuracy}; None diverged."""
    results = [
        result(fb.FedAvg(), seed, (0, value or 0), status="finished" if value is not None else "diverged", lr=lr)
        for (lr, seed), value in accuracy.items()
    ]
    return search.scores(results)


def test_the_best_mean_over_seeds_is_chosen_and_a_combination_that_diverged_never_is():
    found = searched({(0.1, 0): 50, (0.1, 1): 60, (0.2, 0): 90, (0.2, 1): None, (0.3, 0): 54, (0.3, 1): 55})
    assert found["seeds"].tolist() == [2, 2, 2] and np.isnan(found["accuracy"].iloc[1])
    assert search.best(found)[["lr", "accuracy"]].values.tolist() == [[0.1, 55.0]]


def test_clipping_is_chosen_only_where_it_gains_a_point():
    plain = result(fb.FedAvg(), 0, (0, 50))
    for gain, chosen in ((0.9, None), (1.1, 10.0)):
        clipped = result(fb.FedAvg(), 0, (0, 50 + gain), clip=10.0)
        (row,) = search.best(search.scores([plain, clipped])).to_dict("records")
        assert (None if np.isnan(row["clip"]) else row["clip"]) == chosen


def test_a_choice_that_is_not_in_tuned_csv_is_noticed():
    own = fb.tuned("FedAvg", fb.task())["lr"]
    (row,) = search.best(searched({(own, 0): 50, (own, 1): 60})).to_dict("records")
    assert search.is_tuned(row, "laptop")
    assert not search.is_tuned({**row, "lr": own + 0.05}, "laptop") and not search.is_tuned(
        {**row, "clip": 10.0}, "laptop"
    )


# --- tables and claims of columns -----------------------------------------------------------------------------------


def column_results(target=40.0):
    """One column of Table 3 with two methods and two seeds."""
    task = fb.task("laptop")
    column = protocols.Column(task, ("Centralised SGD", "FedAvg", "FedBCGD"), target, 3, "CIFAR10")
    mine = [
        *(result(fb.CentralisedSGD(), seed, (0, 80 + seed)) for seed in (0, 1)),
        *(result(fb.FedAvg(), seed, (10, 50, 60 - 30 * seed)) for seed in (0, 1)),
        *(result(fb.FedBCGD(momentum=0.6), seed, (10, 20, 30)) for seed in (0, 1)),
    ]
    return [column], [mine]


def test_the_papers_layout_has_ours_beside_the_papers():
    table = tables.paper_layout(*column_results())
    assert table.index.tolist() == ["Centralised SGD", "FedAvg", "FedBCGD"]
    here, paper = table.columns
    assert here == ("LeNet-5", "here: Fashion-MNIST-12k, width 16, 40 d (40 %)")
    assert paper == ("LeNet-5", "paper: CIFAR10, 1000 d (78 %)")
    assert table[here].tolist()[0] == "80.5 ± 0.7" and "(∞)" in table[here].tolist()[2]
    assert table[paper].tolist() == ["83.1 ± 0.2", "79.6 ± 0.3 (498d)", "84.7 ± 0.7 (249d)"]


def test_a_target_that_only_some_seeds_reach_says_how_many():
    columns, results = column_results(target=55.0)
    assert tables.paper_layout(columns, results).iloc[1, 0].endswith("(∞, 1 of 2)")


def test_floats_are_drawn_over_fedavgs_or_over_the_budget_that_it_used_up():
    """Table 6 of the paper: FedAvg never reaches 40 % within 200 d, top-k does after 112 d; here 1 d against 0.5 d."""
    column = protocols.Column(fb.task(), ("FedAvg", "TOP-k"), 40.0, 6, "CIFAR100")
    topk = fb.Compressed(fb.FedAvg(), fb.TopK())
    rows = fb.column_tables([column], [[result(fb.FedAvg(), 0, (0, 50)), result(topk, 0, (0, 50), upload=0.5)]])
    drawn = {line.get_label(): list(line.get_xdata()) for line in fb.floats_chart(rows).axes[0].lines}
    assert drawn["here"] == [1, 0.5] and np.isnan(drawn["paper"][0]) and drawn["paper"][1] == 112 / 200


def test_a_claim_is_judged_in_every_column_with_its_target_and_the_papers_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    entry = {"id": "faster", "item": "i", "statement": "S.", "quantity": "to_target_d", "profiles": ["laptop"]}
    entry |= {"of": {"method": "FedBCGD"}, "relation": "<", "than": {"method": "FedAvg"}}
    monkeypatch.setattr(claims, "ENTRIES", [entry])
    columns, results = column_results()
    (verdict,) = claims.claim("i", results, columns)
    assert verdict.claim == "faster: LeNet-5, Fashion-MNIST-12k" and verdict.paper == "249 d against 498 d"
    assert verdict.verdict == "not reproduced" and verdict.ours.startswith("never against")


def test_a_target_that_neither_side_reaches_is_not_judged():
    entry = {"id": "c", "item": "i", "statement": "S.", "quantity": "to_target_d", "target": 99, "profiles": ["laptop"]}
    entry |= {"of": {"method": "FedBCGD"}, "relation": "<", "than": {"method": "FedAvg"}}
    assert claims.judge(entry, column_results()[1][0]).verdict == "not judged"


@pytest.mark.parametrize("target, verdict", [(29, "not reproduced"), (61, "not judged")])
def test_accuracies_below_the_target_on_both_sides_are_not_judged(target, verdict):
    """FedBCGD ends at 30 %, FedAvg at 60 % and 30 %: beyond that target neither has learned what was asked for."""
    entry = {"id": "c", "item": "i", "statement": "S.", "quantity": "final_accuracy", "profiles": ["laptop"]}
    entry |= {"target": target, "of": {"method": "FedBCGD"}, "relation": ">", "than": {"method": "FedAvg"}}
    assert claims.judge(entry, column_results()[1][0]).verdict == verdict


def test_work_counts_rounds_and_gradients():
    """100 samples a client, 5 epochs: 500 gradients a round."""
    table = tables.work_table(*column_results())
    assert table.loc["FedAvg"].tolist() == [2, 1.0]


# --- before a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fmnist12k", "glyphs100"])
def test_shapes_are_those_of_the_data(name):
    loaded = load(name)
    assert shape(name) == (tuple(loaded.x_train.shape[1:]), loaded.n_classes, len(loaded.y_train)) == SHAPES[name]


@pytest.mark.parametrize(
    "algorithm, passes",
    [
        (fb.FedAvg(), 5),
        (fb.FedBCGD(), 5),
        (fb.Scaffold(1), 6),
        (fb.Scaffold(2), 5),
        (fb.FedBCGDPlus(), 11),
        (fb.FedBCGDPlus(option=2), 11),
        (fb.FedBCGDPlus(svrg=False), 6),
        (fb.FedBCGDPlus(svrg=False, option=2), 5),
        (fb.Compressed(fb.FedBCGDPlus(), fb.QSGD()), 11),
    ],
    ids=str,
)
def test_passes_over_the_data_are_those_that_a_run_makes(algorithm, passes, monkeypatch):
    """(2 E + 1) / E times FedBCGD's gradients with SVRG (the paper, Section 3.2); counted in a real round."""
    from helpers import run, toy

    from fedbcgd_lite.flat import Flat

    assert algorithm.passes(5) == passes
    samples, counted = 4 * 5, []
    plain = Flat.gradient
    monkeypatch.setattr(Flat, "gradient", lambda self, x, *b: counted.append(len(b[1])) or plain(self, x, *b))
    whole = toy()
    run(whole, dataclasses.replace(algorithm, **_small(algorithm)), rounds=1, local_epochs=5)
    assert sum(counted) == samples * passes


def _small(algorithm) -> dict:
    """Blocks that the toy network has."""
    if hasattr(algorithm, "algorithm"):
        return {"algorithm": dataclasses.replace(algorithm.algorithm, blocks="balanced:2")}
    return {"blocks": "balanced:2"} if algorithm.blocks == "paper" else {}


def test_the_plan_counts_what_a_run_does():
    """Rounds, steps and uploads of the forecast are those of the run, for every method of a table."""
    column = fb.columns("table02_cifar100", "smoke")[0]
    runs = [run for run in column.runs([0]) if not run.algorithm.pooled]
    for run, row in zip(runs, estimate.forecast(runs), strict=True):
        t = fb.simulate(run.task.problem(0), run.algorithm, run.task, 0)
        assert row["method"] == run.algorithm.label and row["rounds"] == t.round
        assert row["upload (d)"] == pytest.approx(t.upload_floats / t.blocks.d, abs=0.06)


def test_a_dry_run_prints_the_plan_and_computes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    words = ["figures", "--profile", "smoke", "--only", "table06_compression", "--seeds", "2", "--dry"]
    assert __main__.main(words) == 0
    printed = capsys.readouterr().out
    assert "table06_compression: 28 runs" in printed and "QSGD+FedBCGD" in printed and "time on cpu" in printed
    assert list(tmp_path.iterdir()) == []
