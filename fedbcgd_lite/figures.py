"""Results as figures, and files of both kinds."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from . import data, models, records
from .protocols import Column
from .results import Result
from .runs import results_folder
from .tables import diverged, field, final_accuracy, groups

AXES = {
    "upload_d": "uploaded floats per participating client (units of d)",
    "upload_nominal_d": "uploaded floats, the paper's nominal count (units of d)",
    "round": "rounds",
    "accuracy": "test accuracy (%)",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "gap": "f(x) - f*",
}
ROUNDING = 1e-16  # a gap below this is drawn there, as float64 cannot tell it from 0
COLORS = {  # one colour a method in every figure
    "Centralised SGD": "#999999",
    "FedAvg": "#7f7f7f",
    "FedAvgM": "#111111",
    "FedAdam": "#a6611a",
    "SCAFFOLD": "#1b9e77",
    "FedDC": "#66a61e",
    "FedBCGD": "#0072b2",
    "FedBCGD+": "#cc1f5a",
    "TOP-k": "#a6611a",
    "FedPAQ": "#1b9e77",
    "QSGD+FedBCGD": "#56b4e9",
    "QSGD+FedBCGD+": "#f08fb0",
    "FedBCGD (no momentum)": "#d55e00",
    "FedBCGD (no shared block, no momentum)": "#e6a700",
    "FedBCGD (freezing, no momentum)": "#8e44ad",
    "FedBCGD+ (no SVRG)": "#e6a700",
    "FedBCGD+ (full c_i)": "#8e44ad",
    "FedBCGD+ (Eq. (4))": "#d55e00",
    "FedBCGD+ (the authors' script)": "#7f7f7f",
}
RATIOS = [0.1, 0.2, 0.5, 1, 2]  # ticks of floats_chart
DASHES = ["-", "--", ":", "-."]
STYLE = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,
}


def curves(
    results: list[Result],
    x: str = "upload_d",
    y: str = "accuracy",
    by: str | None = None,
    target: float | None = None,
    ax=None,
) -> Figure:
    """Mean over seeds and a band from the lowest to the highest, one colour a method; x, y: columns of `frame`.

    by: a field of the algorithm or of the task, told apart by colour, or by dashes when there are several methods.
    Where a seed diverged, each seed has a line of its own and a cross marks the end.
    """
    with plt.rc_context(STYLE):
        ax = ax or plt.subplots(figsize=(7.5, 4.2), layout="constrained")[1]
        by_method = groups(results, by)
        looks = _looks(by_method, by)
        for method, group in by_method.items():
            color, dashes = looks[method]
            if group[0].run.algorithm.pooled:  # sends nothing: a level to compare accuracies with
                if y != "accuracy":
                    continue
                level = np.mean([final_accuracy(r) for r in group])
                ax.axhline(level, color=color, lw=1.2, ls="--", label=group[0].run.algorithm.paper_name)
                continue
            if any(diverged(r) for r in group):
                _single_lines(ax, group, x, y, color, method)
                continue
            xs, ys = _aligned(group, x, y)
            ax.plot(xs, ys.mean(0), color=color, ls=dashes, lw=1.8, label=method)
            ax.fill_between(xs, ys.min(0), ys.max(0), color=color, alpha=0.15, lw=0)
        if target is not None and y in ("accuracy", "gap"):
            ax.axhline(target, color="black", lw=0.8, ls=":")
        if y == "gap":
            ax.set_yscale("log")
        ylabel = AXES.get(y, y)
        ax.set(
            xlabel=AXES.get(x, x),
            ylabel=ylabel.replace("test", "validation") if results[0].run.task.validation else ylabel,
        )
        ax.legend(fontsize=8.5, loc="lower right" if y == "accuracy" else "best")
        return closed(ax.figure)


def _looks(groups: dict[str, list[Result]], by: str | None) -> dict[str, tuple]:
    """(colour, dashes) of each group: a colour a method and dashes for `by`, or with one method a colour for `by`."""
    ramp = dict(zip(groups, sns.color_palette("viridis_r", len(groups))))
    methods = {name: group[0].run.algorithm.label for name, group in groups.items()}
    if by and len(set(methods.values())) == 1:
        return {name: (color, "-") for name, color in ramp.items()}
    values = {name: field(group[0], by) if by else None for name, group in groups.items()}
    order = list(dict.fromkeys(values.values()))
    dashes = {value: DASHES[i % len(DASHES)] for i, value in enumerate(order)}
    papers = {name: group[0].run.algorithm.paper_name for name, group in groups.items()}
    shared = {name for name, paper in papers.items() if len({methods[n] for n in papers if papers[n] == paper}) > 1}
    names = {name: methods[name] if name in shared else papers[name] for name in groups}
    return {name: (COLORS.get(names[name], ramp[name]), dashes[values[name]]) for name in groups}


def _single_lines(ax, group: list[Result], x: str, y: str, color, label: str) -> None:
    """Each seed by itself, thin, with a cross where it diverged: a mean over runs that ended would mean nothing."""
    for i, r in enumerate(group):
        xs, ys = zip(*_points(r, x, y))
        ax.plot(xs, ys, color=color, lw=0.9, label=f"{label} (each seed)" if i == 0 else None)
        if diverged(r):
            ax.plot(xs[-1], ys[-1], "x", color=color, ms=9, mew=2)


def _aligned(group: list[Result], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """(points,), (seeds, points): all seeds on the points of the first one, where they overlap."""
    rows = [_points(r, x, y) for r in group]
    end = min(points[-1][0] for points in rows)
    xs = np.array([point[0] for point in rows[0] if point[0] <= end])
    return xs, np.array([np.interp(xs, *zip(*points)) for points in rows])


def _points(r: Result, x: str, y: str) -> list[tuple[float, float]]:
    least = ROUNDING if y == "gap" else -np.inf
    return [(row[x], max(row[y], least)) for row in r.rows if row[y] is not None]


def panels(columns: list[Column], results: list[list[Result]], x: str = "upload_d", y: str = "accuracy") -> Figure:
    """`curves` of each column of a table, with one legend for all."""
    across = 2 if len(columns) in (2, 4) else min(4, len(columns))
    down = -(-len(columns) // across)
    with plt.rc_context(STYLE):
        size = 4.6 * across, 3.1 * down + 0.8
        figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        for ax, column, mine in zip(axes.flat, columns, results):
            curves(mine, x, y, target=column.target, ax=ax)
            ax.set_title(", ".join(column.task.names), fontsize=10)
            ax.get_legend().remove()
            ax.set(xlabel="", ylabel="")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        labels = [name.partition(" (option")[0] for name in labels]
        figure.legend(handles, labels, loc="outside upper center", ncols=4 if across < 3 else 8, fontsize=8.5)
        figure.supxlabel(AXES.get(x, x), fontsize=10)
        figure.supylabel(AXES.get(y, y), fontsize=10)
        return closed(figure)


def floats_chart(rows: pd.DataFrame) -> Figure:
    """Uploaded floats to the target, FedAvg = 1, here and in the paper: a panel for each column of `column_tables`.

    Left of 1: fewer than FedAvg, whose whole budget takes the place of its floats where it does not reach the target.
    An arrow at the right edge: not every seed reached the target.
    """
    rows = rows[rows["budget_d"].notna()]
    places = list(dict.fromkeys(zip(rows["model"], rows["dataset"])))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(places), figsize=(3.1 * len(places) + 1.4, 3.4), layout="constrained", sharey=True, squeeze=False
        )
        for ax, (model, dataset) in zip(axes.flat, places):
            mine = rows[(rows["model"] == model) & (rows["dataset"] == dataset)].reset_index(drop=True)
            _ratios(ax, mine, "to_target_d", mine["budget_d"].iloc[0], "o", "#0072b2", "here")
            _ratios(ax, mine, "paper_to_target_d", mine["paper_budget_d"].iloc[0], "D", "#d55e00", "paper")
            ax.axvline(1, color="black", lw=0.8, ls=":")
            ax.set(xscale="log", xlim=(0.06, 4), yticks=range(len(mine)))
            ax.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS], minor=False)
            ax.minorticks_off()
            ax.set_yticklabels([name.partition(" (")[0] for name in mine["method"]])
            ax.set_title(f"{model}, {dataset}", fontsize=10)
        axes.flat[0].invert_yaxis()
        named = {name: handle for ax in axes.flat for handle, name in zip(*ax.get_legend_handles_labels())}
        figure.legend(named.values(), named, loc="outside upper right", ncols=2, fontsize=8.5)
        figure.supxlabel("uploaded floats to the target, FedAvg = 1", fontsize=10)
        return closed(figure)


def _ratios(ax, rows: pd.DataFrame, column: str, budget: float, marker: str, color: str, label: str) -> None:
    values = rows[column].replace(np.inf, np.nan)
    if values.isna().all():
        ax.text(
            0.97,
            0.03,
            f"{label}: nobody reaches the target",
            color=color,
            fontsize=8,
            ha="right",
            transform=ax.transAxes,
        )
        return
    first = values.iloc[0]
    ratios = values / (first if np.isfinite(first) else budget)
    shift = -0.13 if marker == "o" else 0.13
    y = np.arange(len(rows)) + shift
    ax.plot(ratios, y, marker, color=color, ms=6, mfc=color if marker == "o" else "white", label=label)
    never = ratios.isna().to_numpy()
    ax.plot(np.full(never.sum(), 0.97), y[never], ">", color=color, ms=5, transform=ax.get_yaxis_transform())


def sweep(results: list[Result], by: str, target: float | None = None) -> Figure:
    """Left: `curves` for each value of the field `by`. Right: final accuracy over its values, a dot a seed."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2), layout="constrained", width_ratios=(1.8, 1))
        curves(results, by=by, target=target, ax=left)
        finals = pd.DataFrame({by: [field(r, by) for r in results], "final": [final_accuracy(r) for r in results]})
        right.plot(finals[by], finals["final"], "o", color="#0072b2", alpha=0.5, label="a seed")
        means = finals.groupby(by)["final"].agg(lambda final: final.mean(skipna=False)).dropna()
        right.plot(means.index, means, color="#0072b2", label="mean")
        failed, bottom = finals[by][finals["final"].isna()], right.get_ylim()[0]
        if len(failed):
            cross = {"color": "#d55e00", "ms": 9, "mew": 2, "clip_on": False, "label": "a seed diverged"}
            right.plot(failed, np.full(len(failed), bottom), "x", **cross)
        right.set(xlabel=by, ylabel="final test accuracy (%)", xticks=sorted(finals[by].unique()))
        right.legend(fontsize=8.5)
        return closed(figure)


def rates_chart(found: pd.DataFrame) -> Figure:
    """Validation accuracy over the step size, the best of the other constants at each: a panel a task, a line a method.

    found: `search.scores`. A line ends where every combination diverged with some seed.
    """
    tasks = list(dict.fromkeys(zip(found["model"], found["dataset"])))
    across = min(3, len(tasks))
    down = -(-len(tasks) // across)
    with plt.rc_context(STYLE):
        size = 3.4 * across + 0.6, 2.7 * down + 0.7
        figure, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        for ax, (model, dataset) in zip(axes.flat, tasks):
            mine = found[(found["model"] == model) & (found["dataset"] == dataset)]
            for method, rows in mine.groupby("method", sort=False):
                line = rows.groupby("lr")["accuracy"].max()
                ax.plot(line.index, line, "o-", ms=4, color=COLORS.get(method), label=method)
            ax.set_title(f"{models.LABELS[model]}, {data.label(dataset)}", fontsize=10)
            ax.set(xscale="log", xticks=sorted(mine["lr"].unique()), xticklabels=sorted(mine["lr"].unique()))
            ax.minorticks_off()
        for ax in axes.flat[len(tasks) :]:
            ax.set_axis_off()
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=7, fontsize=8.5)
        figure.supxlabel("step size at the start", fontsize=10)
        figure.supylabel("validation accuracy (%)", fontsize=10)
        return closed(figure)


def score_map(scores: pd.DataFrame, label: str) -> Figure:
    """A table of scores as a picture with the numbers in it; a missing one is written as diverged."""
    with plt.rc_context({**STYLE, "axes.grid": False}):
        ax = plt.subplots(figsize=(7.5, 0.6 + 0.45 * len(scores)), layout="constrained")[1]
        sns.heatmap(scores, ax=ax, annot=True, fmt=".1f", cmap="crest", cbar_kws={"label": label})
        for row, column in zip(*np.nonzero(scores.isna().to_numpy())):
            ax.text(column + 0.5, row + 0.5, "diverged", ha="center", va="center", fontsize=8.5, color="#666666")
        return closed(ax.figure)


def closed(figure: Figure) -> Figure:
    """The figure, taken out of pyplot's list so that a notebook shows it once: where it is the value of a cell."""
    plt.close(figure)
    return figure


def save(item: str, figure: Figure, content: pd.DataFrame, profile: str) -> None:
    """figures/<profile>/<item>.png, .pdf and .csv: the same bytes whenever the same results are drawn."""
    folder = results_folder(profile)
    for kind, metadata in (
        ("png", {"Software": None}),
        ("pdf", {"CreationDate": None, "Producer": None, "Creator": None}),
    ):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
        records.write_atomic(folder / f"{item}.{kind}", buffer.getvalue())
    records.write_atomic(folder / f"{item}.csv", content.to_csv(index=False, float_format="%.10g").encode())
