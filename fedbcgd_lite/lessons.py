"""Small computations and pictures with knobs, for the theory notebooks."""

import io
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, ScalarFormatter

from .figures import COLORS, STYLE, closed
from .theory import Row, gamma

NAMES = {"eps": "target accuracy eps", "sigma": "gradient noise sigma", "G": "heterogeneity G"}
TICKS = (1, 2, 5, 10, 20, 50, 100)  # of numbers of blocks


def knobs(draw: Callable[..., Figure], **sliders):
    """Sliders above the figure that `draw` makes of their values, an ipywidgets.VBox.

    The figure is an image widget: the output area of ipywidgets.interact sometimes blocks a notebook that is executed
    without a browser (https://github.com/jupyter/nbclient/issues/312).
    """
    import ipywidgets

    picture = ipywidgets.Image(format="png")

    def refresh(_change=None) -> None:
        buffer = io.BytesIO()
        draw(**{name: slider.value for name, slider in sliders.items()}).savefig(buffer, format="png", dpi=100)
        picture.value = buffer.getvalue()

    for name, slider in sliders.items():
        slider.description = name
        slider.observe(refresh, "value")
    refresh()
    return ipywidgets.VBox([*sliders.values(), picture])


def momentum_path(lam: float, rounds: int, step: float, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """Server momentum on f(x) = x^2/2 from x = 1: columns round, x, z (the virtual iterate), f_x, f_z.

    One full-gradient step a round, v <- lam v - step (x + noise u) with u standard normal, x <- x + v.
    """
    draws = noise * np.random.default_rng(seed).standard_normal(rounds)
    x, v, rows = 1.0, 0.0, [(0, 1.0, 1.0)]
    for r in range(rounds):
        v = lam * v - step * (x + draws[r])
        x = x + v
        rows.append((r + 1, x, x + gamma(lam) * v))
    path = pd.DataFrame(rows, columns=["round", "x", "z"])
    return path.assign(f_x=path["x"] ** 2 / 2, f_z=path["z"] ** 2 / 2)


def momentum_figure(lams: list[float], rounds: int = 60, effective: float = 0.2, noise: float = 0.0) -> Figure:
    """x and z for several momenta with the same effective step alpha eta, a panel each."""
    with plt.rc_context(STYLE):
        size = 2.9 * len(lams) + 0.8, 2.8
        figure, axes = plt.subplots(1, len(lams), figsize=size, layout="constrained", sharey=True, squeeze=False)
        for ax, lam in zip(axes.flat, lams):
            path = momentum_path(lam, rounds, effective * (1 - lam), noise)
            ax.plot(path["round"], path["z"], color="#d55e00", lw=1.6, label="z, virtual")
            ax.plot(path["round"], path["x"], color="#0072b2", lw=1.6, ls="--", label="x, the model")
            ax.axhline(0, color="black", lw=0.8, ls=":")
            ax.set_title(f"momentum {lam:g}", fontsize=10)
        axes.flat[0].legend(fontsize=8.5)
        axes.flat[0].set_ylabel("distance from the optimum")
        figure.supxlabel("rounds", fontsize=10)
        return closed(figure)


def drift_path(apart: float, steps: int, rounds: int, corrected: bool, step: float = 0.1) -> np.ndarray:
    """x (rounds + 1,) of two clients, f_i(x) = a_i (x - b_i)^2/2 with a = (1, 3) and b = (apart, -apart), from x = 1.

    Each round both make `steps` local steps from x and x becomes the mean; corrected: with c - c_i added to gradients.
    """
    a, b = np.array([1.0, 3.0]), np.array([apart, -apart])
    x = [1.0]
    for _ in range(rounds):
        y, c_i = np.full(2, x[-1]), a * (x[-1] - b)
        for _ in range(steps):
            y = y - step * (a * (y - b) + (c_i.mean() - c_i if corrected else 0))
        x.append(y.mean())
    return np.array(x)


def drift_figure(apart: float, steps: int, rounds: int = 15) -> Figure:
    """Where two clients come to by averaging, with and without control variates."""
    with plt.rc_context(STYLE):
        ax = plt.subplots(figsize=(6, 3), layout="constrained")[1]
        ax.plot(drift_path(apart, steps, rounds, corrected=False), "o-", ms=3, color="#7f7f7f", label="averaging")
        ax.plot(drift_path(apart, steps, rounds, corrected=True), "o-", ms=3, color="#cc1f5a", label="with c - c_i")
        ax.axhline(-apart / 2, color="black", lw=0.8, ls=":", label="optimum")
        ax.set(xlabel="rounds", ylabel="x")
        ax.legend(fontsize=8.5)
        return closed(ax.figure)


def winners(rows: list[Row], what: str, **constants) -> np.ndarray:
    """Which of the rows of Table 1 needs the least `what`, "communication" or "rounds"; constants broadcast."""
    return np.stack(np.broadcast_arrays(*(getattr(row, what)(**constants) for row in rows))).argmin(0)


def winners_map(rows: list[Row], targets: np.ndarray, knobs: dict[str, np.ndarray], **constants) -> Figure:
    """Colours for the row with the fewest floats (left) and the fewest rounds (right).

    Target accuracies go to the right; up goes each knob, a line of panels for each, while the others are 0.
    """
    colors = [COLORS[row.name] for row in rows]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(len(knobs), 2, figsize=(9, 2.9 * len(knobs)), layout="constrained", squeeze=False)
        for line, (knob, values) in zip(axes, knobs.items()):
            world = {**constants, **dict.fromkeys(knobs, 0.0), knob: values[:, None], "eps": targets}
            for ax, what in zip(line, ("communication", "rounds")):
                best = winners(rows, what, **world)
                ax.pcolormesh(targets, values, best, cmap=ListedColormap(colors), vmin=-0.5, vmax=len(rows) - 0.5)
                ax.set(xscale="log", yscale="log", xlabel=NAMES["eps"], ylabel=NAMES[knob])
                ax.grid(False)
        axes[0, 0].set_title("fewest floats")
        axes[0, 1].set_title("fewest rounds")
        handles = [Patch(color=COLORS[row.name], label=row.name) for row in rows]
        figure.legend(handles=handles, loc="outside right upper", fontsize=8.5)
        return closed(figure)


def blocks_figure(numbers, panels: dict[str, dict[str, np.ndarray]], marks: dict[str, float] | None = None) -> Figure:
    """Quantities over the number of blocks: a panel for each, a line for each name in it."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 3.2), layout="constrained")
        for ax, (title, lines) in zip(np.atleast_1d(axes), panels.items()):
            for name, values in lines.items():
                ax.plot(numbers, values, lw=1.8, color=COLORS.get(name), label=name)
            for name, at in (marks or {}).items():
                ax.axvline(at, color="black", lw=0.8, ls=":")
                ax.annotate(name, (at, 0.97), xycoords=("data", "axes fraction"), fontsize=8, rotation=90, va="top")
            ax.set(xscale="log", yscale="log", xlabel="number of blocks N", title=title)
            ax.set_xticks(ticks := [n for n in TICKS if n <= max(numbers)], list(map(str, ticks)))
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(ScalarFormatter())
            ax.minorticks_off()
            if len(lines) > 1:
                ax.legend(fontsize=8)
        return closed(figure)


def bound_figure(rounds: np.ndarray, gaps: np.ndarray, bound: np.ndarray, terms: dict) -> Figure:
    """A bound over the gaps of a run (R, 2), those of the model and of its weighted mean; beside it, its terms."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained", sharey=True)
        left.plot(rounds, bound, color="#d55e00", lw=1.8, label="bound")
        left.plot(rounds, gaps[:, 1], color="#0072b2", lw=1.8, label="weighted mean of the models")
        left.plot(rounds, gaps[:, 0], color="#56b4e9", lw=1, label="model")
        for (name, values), color in zip(terms.items(), ("#009e73", "#d55e00", "#cc79a7", "#999999")):
            right.plot(rounds, values + 0 * rounds, color=color, lw=1.6, label=name)
        left.set(yscale="log", ylabel="f - f*", title="promise and run")
        right.set(title="terms of the promise")
        for ax in (left, right):
            ax.set_xlabel("rounds")
            ax.legend(fontsize=8.5)
        return closed(figure)


def ratio_chart(ratios: pd.Series, label: str) -> Figure:
    """A dot for each entry on a logarithmic axis with 1 in the middle; the index names the rows."""
    names = [", ".join(map(str, index)) for index in ratios.index]
    with plt.rc_context(STYLE):
        ax = plt.subplots(figsize=(7, 0.8 + 0.25 * len(ratios)), layout="constrained")[1]
        ax.scatter(ratios, names, c=np.where(ratios < 1, COLORS["FedBCGD+"], COLORS["FedBCGD"]), zorder=3)
        ax.axvline(1, color="black", lw=0.8, ls=":")
        ax.set(xscale="log", xlabel=label)
        ax.set_xticks(ticks := [0.5, 1, 2, 4], list(map(str, ticks)))
        ax.minorticks_off()
        ax.invert_yaxis()
        return closed(ax.figure)
