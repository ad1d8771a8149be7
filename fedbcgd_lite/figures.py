"""Results as figures, and files of both kinds."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from . import records
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
}
COLORS = {  # one colour a method in every figure
    "FedAvg": "#7f7f7f",
    "FedAvgM": "#111111",
    "FedBCGD": "#0072b2",
    "FedBCGD (no momentum)": "#d55e00",
    "FedBCGD (no shared block, no momentum)": "#e6a700",
    "FedBCGD (freezing, no momentum)": "#8e44ad",
}
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
            if any(diverged(r) for r in group):
                _single_lines(ax, group, x, y, color, method)
                continue
            xs, ys = _aligned(group, x, y)
            ax.plot(xs, ys.mean(0), color=color, ls=dashes, lw=1.8, label=method)
            ax.fill_between(xs, ys.min(0), ys.max(0), color=color, alpha=0.15, lw=0)
        if target is not None:
            ax.axhline(target, color="black", lw=0.8, ls=":")
        ylabel = AXES.get(y, y)
        ax.set(
            xlabel=AXES.get(x, x),
            ylabel=ylabel.replace("test", "validation") if results[0].run.task.validation else ylabel,
        )
        ax.legend(fontsize=8.5, loc="lower right" if y == "accuracy" else "best")
        return _closed(ax.figure)


def _looks(groups: dict[str, list[Result]], by: str | None) -> dict[str, tuple]:
    """(colour, dashes) of each group: a colour a method and dashes for `by`, or with one method a colour for `by`."""
    ramp = dict(zip(groups, sns.color_palette("viridis_r", len(groups))))
    methods = {name: group[0].run.algorithm.label for name, group in groups.items()}
    if by and len(set(methods.values())) == 1:
        return {name: (color, "-") for name, color in ramp.items()}
    values = {name: field(group[0], by) if by else None for name, group in groups.items()}
    order = list(dict.fromkeys(values.values()))
    dashes = {value: DASHES[i % len(DASHES)] for i, value in enumerate(order)}
    return {name: (COLORS.get(method, ramp[name]), dashes[values[name]]) for name, method in methods.items()}


def _single_lines(ax, group: list[Result], x: str, y: str, color, label: str) -> None:
    """Each seed by itself, thin, with a cross where it diverged: a mean over runs that ended would mean nothing."""
    for i, r in enumerate(group):
        xs, ys = zip(*((row[x], row[y]) for row in r.rows if row[y] is not None))
        ax.plot(xs, ys, color=color, lw=0.9, label=f"{label} (each seed)" if i == 0 else None)
        if diverged(r):
            ax.plot(xs[-1], ys[-1], "x", color=color, ms=9, mew=2)


def _aligned(group: list[Result], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """(points,), (seeds, points): all seeds on the points of the first one, where they overlap."""
    rows = [[(row[x], row[y]) for row in r.rows if row[y] is not None] for r in group]
    end = min(points[-1][0] for points in rows)
    xs = np.array([point[0] for point in rows[0] if point[0] <= end])
    return xs, np.array([np.interp(xs, *zip(*points)) for points in rows])


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
        return _closed(figure)


def score_map(scores: pd.DataFrame, label: str) -> Figure:
    """A table of scores as a picture with the numbers in it; a missing one is written as diverged."""
    with plt.rc_context({**STYLE, "axes.grid": False}):
        ax = plt.subplots(figsize=(7.5, 0.6 + 0.45 * len(scores)), layout="constrained")[1]
        sns.heatmap(scores, ax=ax, annot=True, fmt=".1f", cmap="crest", cbar_kws={"label": label})
        for row, column in zip(*np.nonzero(scores.isna().to_numpy())):
            ax.text(column + 0.5, row + 0.5, "diverged", ha="center", va="center", fontsize=8.5, color="#666666")
        return _closed(ax.figure)


def allocation(result: Result, rounds: int = 12) -> Figure:
    """Which client sends which block in the first rounds of a run (Figure 2), and what each block costs."""
    blocks, shown = result.record["blocks"], result.rounds[:rounds]
    palette = sns.color_palette("colorblind", len(blocks["sizes"]))
    with plt.rc_context({**STYLE, "axes.grid": False}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", width_ratios=(3, 1.3))
        for r, participants in enumerate(shown):
            for place, one in enumerate(sorted(participants, key=lambda p: (p["block"], p["client"]))):
                left.add_patch(plt.Rectangle((r + 0.54, place + 0.04), 0.92, 0.92, color=palette[one["block"]], lw=0))
                left.text(r + 1, place + 0.5, one["client"], ha="center", va="center", fontsize=8, color="white")
        most = max(map(len, shown))
        left.set(
            xlim=(0.4, len(shown) + 0.6),
            ylim=(most + 0.1, -0.1),
            xlabel="round",
            ylabel="sampled clients (their numbers)",
            xticks=range(1, len(shown) + 1),
            yticks=[],
        )
        names, own = [f"block {j + 1}" for j in range(len(blocks["sizes"]))], np.array(blocks["sizes"]) / result.d
        right.barh(names, own, color=palette)
        right.barh(names, blocks["shared"] / result.d, left=own, color="#555555", label="shared block")
        right.axvline(np.mean(own) + blocks["shared"] / result.d, color="black", lw=1, ls=":", label="mean")
        right.invert_yaxis()
        right.set(xlabel="upload of one client (units of d)")
        right.legend(fontsize=8.5, loc="lower right")
        return _closed(figure)


def partition_map(labels, clients, ax=None) -> Figure:
    """Samples of each class that each client holds, as a picture (classes x clients)."""
    labels = np.asarray(labels)
    counts = np.array([np.bincount(labels[client], minlength=labels.max() + 1) for client in clients])
    with plt.rc_context({**STYLE, "axes.grid": False}):
        ax = ax or plt.subplots(figsize=(9, 2.4), layout="constrained")[1]
        sns.heatmap(
            counts.T, ax=ax, cmap="rocket_r", vmin=0, cbar_kws={"label": "samples"}, xticklabels=10, yticklabels=2
        )
        ax.set(xlabel="client", ylabel="class")
        ax.tick_params(rotation=0)
        return _closed(ax.figure)


def _closed(figure: Figure) -> Figure:
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
