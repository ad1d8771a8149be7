"""Pictures of who sends what: the blocks of each client, one round from server to server, the data of each client."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from .figures import STYLE, closed
from .ledger import COLUMNS
from .results import Result
from .simulate import Trajectory


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
        return closed(figure)


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
        return closed(ax.figure)


def framework(run: Trajectory, round: int = 0) -> Figure:
    """What travels in one round of FedBCGD or FedBCGD+ (Figure 1), read from the run's ledger.

    A column is a block with the clients that send it; an arrow is as wide as what one of them gets or sends. Bars are
    the model in true proportion: a client trains all of it, keeps what is pale and sends the rest.
    """
    blocks, N = run.blocks, run.blocks.n_blocks
    sent = pd.DataFrame(run.ledger.rows, columns=COLUMNS).query("round == @round")
    up, shared = sent["direction"] == "up", sent["key"].str.endswith(".shared")
    unit = 0.24 / sent[~up].groupby("client")["floats"].sum().max()  # columns a float
    palette, dark, pale = sns.color_palette("colorblind", N), "#555555", "#dddddd"
    rule = r"$v_{(j)} \leftarrow \lambda v_{(j)} + D_{(j)}$,   $x_{(j)} \leftarrow x_{(j)} + v_{(j)}$"
    rule += r",   $c_{(j)} \leftarrow c_{(j)} + \frac{1}{M} \sum dc_{(j)}$" if "c" in set(sent["key"]) else ""
    with plt.rc_context({**STYLE, "axes.grid": False}):
        ax = plt.subplots(figsize=(max(9, 2 * N), 5.2), layout="constrained")[1]
        ax.text(N / 2, 3, f"server, block by block:   {rule}", ha="center", fontsize=12)
        if blocks.shared:
            mean = f"$D_s$ = mean of {sent['client'].nunique()}"
            _box(ax, 0.03, 2.53, N - 0.06, 0.3, f"shared block: {blocks.shared:,} floats, {mean}", dark)
        for j in range(N):
            mine, x = sent["block"] == j, j + 0.03
            own, clients = sent[mine & up & ~shared], sent[mine]["client"].unique()
            mean = f"$D_{{({j + 1})}}$ = mean of {own['client'].nunique()}" if len(own) else "nothing is sent"
            _box(ax, x, 1.75, 0.73, 0.68, f"block {j + 1}\n{blocks.sizes[j]:,} floats\n{mean}", palette[j])
            _arrow(ax, sent[mine & ~up], x + 0.16, 1.7, 0.8, pale, unit)
            _arrow(ax, own, x + 0.43, 0.8, 1.7, palette[j], unit)
            _arrow(ax, sent[mine & up & shared], x + 0.79, 0.8, 2.51, dark, unit)
            colors = {"block": palette[j], "shared": dark}
            bars = [(slice(0, blocks.d), pale), *((cut, colors[part]) for part, cut in blocks.slot(0, j).cuts)]
            for y, client in zip(np.arange(0.27, -len(clients), -0.53), clients):
                _box(ax, x, y, 0.94, 0.48, f"client {client}\n", "white", palette[j])
                for cut, color in bars:
                    left, width = x + 0.05 + 0.84 * cut.start / blocks.d, 0.84 * (cut.stop - cut.start) / blocks.d
                    ax.barh(y + 0.12, width, 0.1, left=left, color=color)
        told = "A client trains its whole bar and sends the coloured and dark parts.   "
        told += "{:,.0f} floats go down, {:,.0f} up.".format(*(sent[way]["floats"].sum() for way in (~up, up)))
        bottom = 0.27 - 0.53 * sent.groupby("block")["client"].nunique().max()
        ax.text(N / 2, bottom + 0.2, told, ha="center", fontsize=11)
        ax.set(xlim=(0, N), ylim=(bottom + 0.15, 3.2))
        ax.axis("off")
        return closed(ax.figure)


def _box(ax, x: float, y: float, width: float, height: float, text: str, color, edge=None) -> None:
    ax.add_patch(plt.Rectangle((x, y), width, height, fc=color, ec=edge or color, lw=1.2))
    look = {"ha": "center", "va": "center", "fontsize": 9, "linespacing": 1.3, "color": "black" if edge else "white"}
    ax.text(x + width / 2, y + height / 2, text, **look)


def _arrow(ax, sent: pd.DataFrame, x: float, start: float, end: float, color, unit: float) -> None:
    """As wide as what one client sends, its keys and its floats beside it; none where nothing is sent."""
    if len(sent):
        floats = sent.groupby("client")["floats"].sum().max()
        keys, width = ", ".join(sent["key"].str.partition(".")[0].unique()), max(unit * floats, 0.008)
        shape = {"head_width": width + 0.06, "head_length": 0.12, "length_includes_head": True, "lw": 0}
        ax.arrow(x, start, 0, end - start, width=width, color=color, **shape)
        place = {"x": x + width / 2 + 0.02} if end > start else {"x": x, "ha": "center"}
        ax.text(y=1.25, s=f"${keys}$\n{floats:,.0f}", va="center", fontsize=8.5, **place)
