"""Tables and verdicts on results whose answers can be read off by eye."""

import numpy as np
import pytest

from fedbcgd_lite import CentralisedSGD, FedAvg, FedAvgM, FedBCGD, claims, diagrams, figures, tables
from fedbcgd_lite.results import Result
from fedbcgd_lite.runs import Run, task


def result(algorithm, seed=0, accuracy=(10.0, 50.0, 80.0), upload=1.0, status="finished", profile="laptop", **fields):
    """A result with one evaluation a round and `upload` d a round; block j = client number."""
    n = len(accuracy)
    rows = {
        "round": [*range(n)],
        "upload_d": [upload * i for i in range(n)],
        "upload_nominal_d": [0.2 * i for i in range(n)],
    }
    rows |= {"upload_bits": [0] * n, "download_bits": [0] * n, "accuracy": [*accuracy], "test_loss": [1.0] * n}
    rounds = [[[0, 1], [0, 1], [30, 10]]] * (n - 1)
    record = {"status": status, "d": 100, "blocks": {"sizes": [60, 20], "shared": 20}, "rounds": rounds}
    return Result(
        Run(task(profile, **fields), algorithm, seed),
        {**record, "rows": {**rows, "train_loss": [None] + [1.0] * (n - 1)}},
    )


def entry(**changes):
    return {
        **{"id": "x", "item": "i", "statement": "s", "profiles": ["laptop"], "relation": "<", "target": 70},
        **{"quantity": "to_target_d", "of": {"label": "FedBCGD"}, "than": {"label": "FedAvg"}},
        **changes,
    }


def test_floats_to_target_are_those_of_the_first_evaluation_that_reaches_it():
    assert tables.to_target_d(result(FedAvg(), accuracy=(10, 70, 60, 90), upload=2), 70) == 2
    assert tables.to_target_d(result(FedAvg(), accuracy=(10, 69.9)), 70) == np.inf


def test_final_accuracy_is_the_mean_of_the_last_tenth_of_the_evaluations():
    assert tables.final_accuracy(result(FedAvg(), accuracy=[0.0] * 18 + [60.0, 80.0])) == 70
    assert tables.final_accuracy(result(FedAvg(), accuracy=(10, 50))) == 50
    assert np.isnan(tables.final_accuracy(result(FedAvg(), status="diverged")))


def test_table_has_one_row_a_method_with_mean_and_sample_standard_deviation():
    results = [result(FedAvg(), s, accuracy=(0, 70 + s)) for s in range(3)] + [result(FedBCGD(), 0, accuracy=(0, 60))]
    table = tables.table(results, target=70, paper_table=2, paper_dataset="CIFAR100").set_index("method")
    assert (table.loc["FedAvg", "mean"], table.loc["FedAvg", "std"], table.loc["FedAvg", "seeds"]) == (71, 1, 3)
    assert table.loc["FedAvg", "to_target_d"] == 1
    assert np.isnan(table.loc["FedBCGD", "to_target_d"]) and np.isnan(table.loc["FedBCGD", "std"])
    assert table.loc["FedBCGD", "paper_mean"] == 55.7 and table.loc["FedAvg", "paper_to_target_d"] == 558


def test_target_counts_as_reached_only_when_every_seed_reaches_it():
    table = tables.table([result(FedAvg(), 0), result(FedAvg(), 1, accuracy=(0, 60))], target=70)
    assert np.isnan(table.loc[0, "to_target_d"])


def test_a_table_that_the_paper_does_not_have_is_refused():
    with pytest.raises(ValueError, match="Table 9.*CIFAR10"):
        tables.table([result(FedAvg())], target=70, paper_table=9, paper_dataset="CIFAR10")


def test_frame_has_the_documented_columns_and_one_row_an_evaluation():
    frame = tables.frame([result(FedAvg()), result(FedBCGD())])
    columns = "method model dataset seed round upload_d upload_nominal_d upload_bits download_bits accuracy test_loss"
    assert [*frame.columns] == [*columns.split(), "train_loss"] and len(frame) == 6
    assert frame.iloc[0][["method", "model", "dataset"]].tolist() == ["FedAvg", "LeNet-5", "Fashion-MNIST-12k"]


def test_by_names_the_method_after_a_field():
    frame = tables.frame([result(FedBCGD(momentum=m)) for m in (0.4, 0.8)], by="momentum")
    assert frame["method"].unique().tolist() == ["FedBCGD, momentum = 0.4", "FedBCGD, momentum = 0.8"]
    with pytest.raises(ValueError, match="no field 'colour'"):
        tables.frame([result(FedAvg())], by="colour")


def test_curves_of_several_methods_keep_their_colours_and_dash_the_values():
    """by= with two methods: a colour a method, dashes a value; with one method: a colour a value, no dashes."""
    two = [result(method(momentum=m)) for method in (FedAvgM, FedBCGD) for m in (0.4, 0.8)]
    lines = figures.curves(two, by="momentum").axes[0].lines
    assert [line.get_color() for line in lines] == [
        figures.COLORS[m] for m in ("FedAvgM", "FedAvgM", "FedBCGD", "FedBCGD")
    ]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-", "--"]
    lines = figures.curves(two[2:], by="momentum").axes[0].lines
    assert len({line.get_color() for line in lines}) == 2 and {line.get_linestyle() for line in lines} == {"-"}


def test_curves_draw_the_mean_and_the_range_over_seeds():
    figure = figures.curves([result(FedAvg(), 0, (0, 20)), result(FedAvg(), 1, (0, 40))], target=70)
    axes = figure.axes[0]
    assert axes.lines[0].get_ydata().tolist() == [0, 30]
    assert axes.collections[0].get_paths()[0].vertices[:, 1].max() == 40
    assert axes.get_xlabel().startswith("uploaded floats") and "units of d" in axes.get_xlabel()


def test_allocation_draws_every_participant_of_a_round():
    figure = diagrams.allocation(result(FedBCGD()), rounds=2)
    assert len(figure.axes[0].texts) == 4
    assert tables.allocation_frame(result(FedBCGD())).iloc[0][["round", "client", "upload_d"]].tolist() == [1, 0, 0.3]


def test_partition_map_counts_samples_of_each_class():
    figure = diagrams.partition_map([0, 0, 1, 2], [np.array([0, 1]), np.array([2, 3])])
    assert figure.axes[0].collections[0].get_array().reshape(3, 2).tolist() == [[2, 0], [0, 1], [0, 1]]


def test_saving_twice_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    results = [result(FedAvg())]
    contents = []
    for _ in range(2):
        figures.save("item", figures.curves(results), tables.frame(results), "laptop")
        contents.append({path.name: path.read_bytes() for path in (tmp_path / "laptop").iterdir()})
    assert contents[0] == contents[1] and sorted(contents[0]) == ["item.csv", "item.pdf", "item.png"]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "reproduced"),  # 1 d against 3 d
        ({"factor": 0.5}, "reproduced"),
        ({"factor": 0.3}, "not reproduced"),
        ({"relation": ">"}, "not reproduced"),
        ({"target": 95}, "not judged"),  # neither gets there
        ({"target": 85}, "reproduced"),  # FedAvg never does
        ({"quantity": "final_accuracy", "relation": ">"}, "reproduced"),  # 90 against 80
        ({"quantity": "final_accuracy", "relation": ">", "tolerance": 10}, "not reproduced"),
        ({"quantity": "accuracy_at_d", "at_d": 1, "relation": ">"}, "reproduced"),
        ({"quantity": "accuracy_at_d", "at_d": 1, "relation": "<"}, "not reproduced"),
        ({"quantity": "mean_upload_d", "relation": "within", "value": 0.2, "tolerance": 0}, "reproduced"),
        ({"quantity": "mean_upload_d", "relation": "within", "value": 0.25, "tolerance": 0.04}, "not reproduced"),
        ({"quantity": "clients_a_block", "relation": "within", "value": 0}, "reproduced"),
        ({"profiles": ["paper"]}, "not judged"),
    ],
)
def test_verdicts(changes, verdict):
    """Each relation and quantity, on both sides of its limit."""
    results = [result(FedBCGD(), accuracy=(0, 75, 90)), result(FedAvg(), accuracy=(0, 10, 20, 80))]
    assert claims.judge(entry(**changes), results).verdict == verdict


def test_a_diverged_run_ends_below_every_other():
    results = [result(FedBCGD()), result(FedAvg(), status="diverged", accuracy=(0, 95))]
    assert claims.judge(entry(quantity="final_accuracy", relation=">"), results).verdict == "reproduced"


def test_best_is_the_value_with_the_highest_mean_over_seeds():
    of = {0.4: (60, 90), 0.8: (80, 80), 0.9: (10, 10)}
    results = [result(FedBCGD(momentum=m), s, (0, a)) for m, pair in of.items() for s, a in enumerate(pair)]
    best = entry(quantity="best", field="momentum", relation="within", value=0.8, tolerance=0.1)
    assert claims.judge(best, results).verdict == "reproduced"
    assert claims.judge({**best, "value": 0.5, "tolerance": 0.05}, results).verdict == "not reproduced"


def test_spread_is_the_standard_deviation_of_the_paired_differences():
    results = [
        result(m, s, (0, a)) for m, pair in ((FedBCGD(), (80, 90)), (FedAvg(), (70, 78))) for s, a in enumerate(pair)
    ]
    verdict = claims.judge(entry(quantity="final_accuracy", relation=">"), results)
    assert verdict.spread == "1.4" and verdict.ours == "85.00 % against 74.00 %"


def test_a_claim_about_runs_that_are_not_there_is_refused():
    with pytest.raises(ValueError, match="no run has .*FedBCGD"):
        claims.judge(entry(), [result(FedAvg())])


def test_claims_of_one_item_replace_their_old_rows_and_leave_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    results = [result(FedBCGD(momentum=m), accuracy=(0, 80, 90)) for m in (0.4, 0.8, 0.9)]
    for _ in range(2):
        claims.claim("fig02_allocation", [result(FedBCGD())])
        claims.claim("fig07_momentum", results)
    lines = (tmp_path / "laptop" / "claims.csv").read_text().splitlines()
    assert lines[0] == "claim,item,statement,paper,ours,spread,verdict"
    assert [line.split(",")[1] for line in lines[1:]] == ["fig02_allocation"] * 2 + ["fig07_momentum"] * 4
    assert "reproduced" in capsys.readouterr().out


def test_targets_and_levels_are_accuracies():
    """SGD on pooled data and the target are lines among accuracies, and no part of a picture of losses."""
    both = [result(CentralisedSGD(), accuracy=(0, 80)), result(FedAvg(), accuracy=(0, 50, 60))]
    flat = {
        y: [line for line in figures.curves(both, y=y, target=70).axes[0].lines if len(set(line.get_ydata())) == 1]
        for y in ("accuracy", "train_loss")
    }
    assert sorted(line.get_ydata()[0] for line in flat["accuracy"]) == [70, 80]
    assert [line.get_ydata()[0] for line in flat["train_loss"]] == [1.0]  # FedAvg's own
