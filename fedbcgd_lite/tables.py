"""Results as tables, in long format and in the paper's layout, beside the paper's numbers."""

from pathlib import Path

import numpy as np
import pandas as pd

from .protocols import Column, tuned
from .results import Result

PAPER = Path(__file__).parent / "paper"


def frame(results: list[Result], by: str | None = None) -> pd.DataFrame:
    """All measurements in long format, one row an evaluation.

    Columns: method, model, dataset, seed, round, upload_d, upload_nominal_d, upload_bits, download_bits, accuracy
    (percent), test_loss, train_loss. Uploads and downloads are per participating client since the start.
    by: a field of the algorithm or of the task that is added to the method's name.
    """
    return pd.DataFrame([{**identity(r, by), **row} for r in results for row in r.rows])


def identity(r: Result, by: str | None = None) -> dict:
    method = r.run.algorithm.label if by is None else f"{r.run.algorithm.label}, {by} = {field(r, by)}"
    model, dataset = r.run.task.names
    return {"method": method, "model": model, "dataset": dataset, "seed": r.run.seed}


def field(r: Result, name: str):
    holder = next((h for h in (r.run.algorithm, r.run.task, r.run) if hasattr(h, name)), None)
    if holder is None:
        raise ValueError(
            f"{r.run.algorithm.label} has no field {name!r}: expected a field of the algorithm or of the task."
        )
    return getattr(holder, name)


def final_accuracy(result: Result) -> float:
    """Mean accuracy (percent) of the last 10 % of the evaluations, at least one; NaN for a run that diverged."""
    if diverged(result):
        return float("nan")
    accuracy = [row["accuracy"] for row in result.rows]
    return float(np.mean(accuracy[-max(1, len(accuracy) // 10) :]))


def final_gap(result: Result, share: float = 0.1) -> float:
    """Mean f - f* of the last evaluations, a share of all and at least one; infinity for a run that diverged."""
    if diverged(result):
        return float("inf")
    gaps = [row["gap"] for row in result.rows]
    return float(np.mean(gaps[-max(1, int(len(gaps) * share)) :]))


def to_target_d(result: Result, target: float) -> float:
    """Uploaded floats (units of d) at the first evaluation that is at the target; infinity without one.

    target: the least accuracy in percent; where gaps are measured, the largest f - f*.
    """
    return next((row["upload_d"] for row in result.rows if _reaches(row, target)), float("inf"))


def _reaches(row: dict, target: float) -> bool:
    return row["gap"] <= target if row.get("gap") is not None else (row["accuracy"] or 0) >= target


def floats_to(results: list[Result], target: float, by: str | None = None) -> pd.DataFrame:
    """Uploaded floats (units of d) until `target` percent, one row a method and one column a seed."""
    rows = [{**identity(r, by), "to_target_d": to_target_d(r, target)} for r in results]
    return pd.DataFrame(rows).pivot_table(index="method", columns="seed", values="to_target_d", sort=False)


def table(
    results: list[Result],
    target: float,
    by: str | None = None,
    paper_table: int | None = None,
    paper_dataset: str | None = None,
    paper_model: str | None = None,
) -> pd.DataFrame:
    """One row a method, over its seeds.

    Columns: method, model, dataset, target (percent), budget_d, mean and std of the final accuracy (percent),
    to_target_d (mean; empty unless every seed reached the target), reached and seeds (how many), and the paper's mean,
    std, to_target_d and budget_d (Tables 2-6) where there is a paper_table. paper_dataset, paper_model: whose place the
    data and the model take, "CIFAR10" or "CIFAR100" and "ResNet-18" (default: the model itself).
    """
    paper = paper_values(paper_table, paper_dataset)
    rows = []
    for group in groups(results, by).values():
        run, final = group[0].run, np.array([final_accuracy(r) for r in group])
        uploads = np.array([to_target_d(r, target) for r in group])
        reached = int(np.isfinite(uploads).sum())
        row = identity(group[0], by) | {
            "target": target,
            "budget_d": None if run.algorithm.pooled else run.task.budget_d,
        }
        row |= {"mean": final.mean(), "std": final.std(ddof=1) if len(group) > 1 else np.nan}
        row |= {"to_target_d": uploads.mean() if reached == len(group) else np.nan, "reached": reached}
        name = run.algorithm.paper_name, paper_model or row["model"]
        rows.append(row | {"seeds": len(group)} | paper.get(name, dict.fromkeys(PAPER_COLUMNS.values(), np.nan)))
    return pd.DataFrame(rows)


PAPER_COLUMNS = {  # of its tables, and here
    **{"mean": "paper_mean", "std": "paper_std"},
    **{"floats_to_target_d": "paper_to_target_d", "budget_d": "paper_budget_d"},
}


def paper_values(paper_table: int | None, paper_dataset: str | None) -> dict[tuple[str, str], dict]:
    """{(method, model): the paper's numbers} of one column of one of its Tables 2-6."""
    if paper_table is None:
        return {}
    rows = paper_frame(paper_table, paper_dataset).rename(columns=PAPER_COLUMNS).to_dict("records")
    return {(row["method"], row["model"]): {name: row[name] for name in PAPER_COLUMNS.values()} for row in rows}


def paper_frame(paper_table: int, paper_dataset: str) -> pd.DataFrame:
    """One column of one of the paper's Tables 2-6, all its models, as printed."""
    paper = pd.read_csv(PAPER / "tables.csv")
    paper = paper[(paper["table"] == paper_table) & (paper["dataset"] == paper_dataset)]
    if paper.empty:
        raise ValueError(
            f"the paper's Table {paper_table} has no column {paper_dataset!r}: expected a table from 2 to 6 and "
            "CIFAR10, CIFAR100 or TinyImageNet."
        )
    return paper


def column_tables(columns: list[Column], results: list[list[Result]]) -> pd.DataFrame:
    """`table` of each column of a paper's table, one below the other."""
    return pd.concat([_column_table(c, r) for c, r in zip(columns, results)], ignore_index=True)


def _column_table(column: Column, results: list[Result]) -> pd.DataFrame:
    return table(results, column.target, None, column.paper_table, column.paper_dataset, column.paper_model)


def paper_layout(columns: list[Column], results: list[list[Result]]) -> pd.DataFrame:
    """The paper's layout: a row a method, for each column mean +- std (floats to target), ours and the paper's."""
    cells = {}
    for column, mine in zip(columns, results):
        rows = _column_table(column, mine).to_dict("records")
        by_method = {r.run.algorithm.label: r.run.algorithm.paper_name for r in mine}
        ours, paper = {}, {}
        for row in rows:
            method = by_method[row["method"]]
            ours[method] = _cell(row["mean"], row["std"], row["to_target_d"], row["reached"], row["seeds"])
            paper[method] = _cell(row["paper_mean"], row["paper_std"], row["paper_to_target_d"])
            if row["budget_d"] is None or np.isnan(row["budget_d"]):  # nothing is sent
                ours[method], paper[method] = (text.partition(" (")[0] for text in (ours[method], paper[method]))
        for side, content in zip(_heads(column), (ours, paper)):
            cells[column.task.names[0], side] = content
    return pd.DataFrame(cells).loc[list(dict.fromkeys(m for c in columns for m in c.methods))].fillna("")


def _heads(column: Column) -> tuple[str, str]:
    """What stands above the two halves of a column: data, width, budget (units of d) and target (percent)."""
    task = column.task
    here = f"here: {task.names[1]}, width {task.width}, {task.budget_d:g} d ({column.target:g} %)"
    values = paper_frame(column.paper_table, column.paper_dataset)
    values = values[values["model"] == (column.paper_model or task.names[0])].iloc[0]
    where = f"{column.paper_model}, {column.paper_dataset}" if column.paper_model else column.paper_dataset
    return here, f"paper: {where}, {values['budget_d']:g} d ({values['target_acc']:g} %)"


def _cell(mean: float, std: float, to_target_d: float, reached: int = 0, seeds: int = 0) -> str:
    """79.3 +- 0.4 (14.0d), with ∞ for a target that was not reached."""
    if np.isnan(mean):
        return "diverged" if seeds else ""
    floats = f"{to_target_d:.1f}d" if seeds else f"{to_target_d:g}d"
    if not np.isfinite(to_target_d):
        floats = f"∞, {reached} of {seeds}" if reached else "∞"
    spread = "" if np.isnan(std) else f" ± {std:.1f}"
    return f"{mean:.1f}{spread} ({floats})"


def settings(columns: list[Column]) -> pd.DataFrame:
    """What is run, a row a column of the table."""
    rows = []
    for column in columns:
        task, partition = column.task, column.task.partition
        rows.append(
            {
                "data": task.names[1],
                "model": task.names[0],
                "width": task.width,
                "clients": f"{task.clients_per_round} of {task.n_clients}",
                "rho": getattr(partition, "rho", None),
                "local epochs": task.local_epochs,
                "batch": task.batch_size,
                "budget (d)": task.budget_d,
                "target (%)": column.target,
            }
        )
    return pd.DataFrame(rows)


def convex_settings(columns: list[Column]) -> pd.DataFrame:
    """What is run on convex problems, a row a column."""
    rows = []
    for column in columns:
        task = column.task
        row = dict(zip(("problem", "data"), task.names)) | {"samples": task.n_samples, "d": task.objective().d}
        row |= {"mu": task.weight_decay, "clients": f"{task.clients_per_round} of {task.n_clients}"}
        row |= {"local epochs": task.local_epochs, "batch": task.batch_size, "lr decay": task.lr_decay}
        rows.append(row | {"budget (d)": task.budget_d, "target (f - f*)": column.target})
    return pd.DataFrame(rows)


def gap_table(results: list[Result], target: float) -> pd.DataFrame:
    """How far each method comes on a convex problem, over its seeds.

    Columns: lr; to_target_d and rounds (means, empty unless every seed came to f - f* <= target); lowest and last, the
    smallest and the final gap (means, `final_gap`); rate, the mean fall of log(f - f*) a round until it is lowest.
    """
    rows = {}
    for name, group in groups(results).items():
        gaps = [np.array([row["gap"] for row in r.rows], dtype=float) for r in group]  # NaN where a run diverged
        low = [int(np.nanargmin(g)) for g in gaps]
        falls = [np.log(g[0] / max(g[n], 1e-16)) / max(1, r.rows[n]["round"]) for r, g, n in zip(group, gaps, low)]
        at = [next((row for row in r.rows if _reaches(row, target)), None) for r in group]
        reached = {key: np.mean([row[key] for row in at]) if all(at) else np.nan for key in ("upload_d", "round")}
        row = {"lr": group[0].run.task.lr, "to_target_d": reached["upload_d"], "rounds": reached["round"]}
        row |= {"lowest": np.mean([g[n] for g, n in zip(gaps, low)]), "last": np.mean([final_gap(r) for r in group])}
        rows[name] = row | {"rate": np.mean(falls)}
    return pd.DataFrame.from_dict(rows, orient="index")


def chosen_settings(columns: list[Column]) -> pd.DataFrame:
    """How each method is set in each column: step size and its own constants."""
    rows = {}
    for column in columns:
        for method in column.methods:
            told = ", ".join(f"{name} {value}" for name, value in tuned(method, column.task).items())
            rows.setdefault(method, {})[column.task.names] = told
    return pd.DataFrame.from_dict(rows, orient="index")


def groups(results: list[Result], by: str | None = None) -> dict[str, list[Result]]:
    """Results by method, in the order of appearance."""
    groups: dict[str, list[Result]] = {}
    for r in results:
        groups.setdefault(identity(r, by)["method"], []).append(r)
    return groups


def diverged(result: Result) -> bool:
    return result.record["status"] == "diverged"


def work_table(columns: list[Column], results: list[list[Result]]) -> pd.DataFrame:
    """Rounds and gradients of a sample for each participant (thousands) of one run, by method and column."""
    rows: dict[str, dict] = {}
    for column, mine in zip(columns, results):
        name = column.task.names
        for group in groups(mine).values():
            run, rounds = group[0].run, group[0].rows[-1]["round"]
            n = run.task.n_samples
            samples = n if run.algorithm.pooled else n / run.task.n_clients
            formed = rounds * run.algorithm.passes(run.task.local_epochs) * samples
            rows.setdefault(run.algorithm.paper_name, {})[*name, "rounds"] = rounds
            rows[run.algorithm.paper_name][*name, "gradients (1000)"] = round(formed / 1000, 1)
    return pd.DataFrame.from_dict(rows, orient="index")


def allocation_frame(result: Result) -> pd.DataFrame:
    """A row a participant and round: method, model, dataset, seed, round, client, block, upload_floats, upload_d.

    Rounds and blocks are counted from 1, as in the paper.
    """
    rounds = enumerate(result.rounds, start=1)
    participants = [{"round": r, **one, "block": one["block"] + 1} for r, of_round in rounds for one in of_round]
    return pd.DataFrame([{**identity(result), **p, "upload_d": p["upload_floats"] / result.d} for p in participants])
