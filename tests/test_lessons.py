"""What the theory notebooks compute and draw with."""

import inspect
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sympy

from fedbcgd_lite import lessons, theory
from fedbcgd_lite.theory import TABLE1
from fedbcgd_lite.theory.typeset import latex, symbolic

CONSTANTS = {"mu": 0.1, "beta": 10.0, "sigma": 1.0, "G": 2.0, "F": 2.5, "tau": 1.5, "M": 100, "S": 10, "N": 5, "T": 50}
CONSTANTS |= {"lam": 0.6, "eps": 0.01}


def test_momentum_path_is_the_one_that_the_notebook_tells():
    """z moves by -alpha eta times the gradient at x; without momentum both are gradient descent."""
    path = lessons.momentum_path(0.8, 30, 0.05)
    steps = np.diff(path["z"]) + theory.alpha(0.8) * 0.05 * path["x"].to_numpy()[:-1]
    assert np.abs(steps).max() < 1e-15
    assert lessons.momentum_path(0.0, 10, 0.1)["x"].iloc[-1] == pytest.approx(0.9**10)


def test_two_clients_drift_and_control_variates_stop_it():
    """With one local step averaging is exact; with ten it is not, and with c - c_i it is."""
    optimum = -0.5
    assert lessons.drift_path(1.0, 1, 300, corrected=False)[-1] == pytest.approx(optimum)
    assert abs(lessons.drift_path(1.0, 10, 300, corrected=False)[-1] - optimum) > 0.1
    assert lessons.drift_path(1.0, 10, 300, corrected=True)[-1] == pytest.approx(optimum)


def test_winner_is_the_row_with_the_least():
    rows = [row for row in TABLE1 if row.strongly_convex and row.client_sampling]
    eps = np.logspace(-5, -1, 7)
    best = lessons.winners(rows, "communication", **{**CONSTANTS, "eps": eps, "sigma": np.array([[0.0], [1.0]])})
    assert best.shape == (2, 7)
    for i, sigma in enumerate((0.0, 1.0)):
        for j, e in enumerate(eps):
            needed = [row.communication(**{**CONSTANTS, "eps": e, "sigma": sigma}) for row in rows]
            assert needed[best[i, j]] == min(needed)


@pytest.mark.parametrize("row", TABLE1, ids=lambda row: row.name)
@pytest.mark.parametrize("setting", ["strongly_convex", "non_convex"])
def test_typeset_formula_is_the_evaluated_one(row, setting):
    """The expression that is typeset has the value of the function."""
    entry = getattr(row, setting)
    if entry is None:
        return
    expression = symbolic(entry)
    given = {str(s): {**CONSTANTS, "alpha": theory.alpha(CONSTANTS["lam"])}[str(s)] for s in expression.free_symbols}
    value = float(expression.subs({sympy.Symbol(name, positive=True): number for name, number in given.items()}))
    names = inspect.signature(entry).parameters
    assert value == pytest.approx(entry(**{name: CONSTANTS[name] for name in names}), rel=1e-12)
    assert r"\frac" in latex(entry) or r"\log" in latex(entry)


def test_terms_are_typeset_from_the_fastest_growing_to_the_slowest():
    powers = [
        latex(TABLE1[0].non_convex).index(power)
        for power in (r"\epsilon^{2}", r"\epsilon^{\frac{3}{2}}", r"{\epsilon}")
    ]
    assert powers == sorted(powers)
    assert latex(TABLE1[1].strongly_convex).startswith(r"\frac{G^{2} + \sigma^{2}}{S T \epsilon \mu}")


def test_figures_are_drawn_and_closed():
    """Each kind once, with its axes named."""
    import matplotlib.pyplot as plt

    rows = [row for row in TABLE1 if row.strongly_convex and row.client_sampling]
    numbers = np.arange(1, 11)
    figures = [
        lessons.momentum_figure([0.0, 0.8]),
        lessons.drift_figure(1.0, 10),
        lessons.winners_map(rows, np.logspace(-4, -1, 5), {"sigma": np.logspace(-2, 0, 5)}, **CONSTANTS),
        lessons.blocks_figure(numbers, {"floats (d)": {"a": 1 / numbers, "b": 2 / numbers}}, {"N = S": 10}),
        lessons.bound_figure(numbers, np.ones((10, 2)), 2 / numbers, {"start": 1 / numbers}),
        lessons.ratio_chart(pd.Series({("2", "a"): 0.5, ("3", "b"): 2.0}), "ratio"),
    ]
    assert not plt.get_fignums()
    for figure in figures:
        assert figure.axes and all(ax.get_xlabel() or figure.get_supxlabel() for ax in figure.axes)
        assert all(ax.lines or ax.collections for ax in figure.axes)


def test_a_knob_draws_the_figure_again():
    """Without an output area, in which a notebook executed without a browser may wait for ever."""
    import ipywidgets

    drawn = []
    box = lessons.knobs(
        lambda lam: drawn.append(lam) or lessons.momentum_figure([lam]), lam=ipywidgets.FloatSlider(0.5)
    )
    slider, picture = box.children
    before = picture.value
    slider.value = 0.8
    assert drawn == [0.5, 0.8] and picture.value != before and slider.description == "lam"
    assert not any(isinstance(widget, ipywidgets.Output) for widget in box.children)


def test_no_notebook_has_an_output_area():
    """ipywidgets.interact and Output block nbclient now and then."""
    texts = [path.read_text() for path in (Path(__file__).parent.parent / "notebooks").glob("*.ipynb")]
    assert texts and not any("interact(" in text or "Output(" in text for text in texts)
