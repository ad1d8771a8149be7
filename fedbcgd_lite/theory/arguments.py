"""What all formulas of this package share: named arguments whose domains are checked, and NumPy broadcasting."""

import functools
import inspect
from collections.abc import Callable

import numpy as np

ABOVE_0 = (lambda value: value > 0, "above 0")
AT_LEAST_0 = (lambda value: value >= 0, "of at least 0")
AT_LEAST_1 = (lambda value: value >= 1, "of at least 1")
DOMAINS = {  # argument: (whether a value may be, in words); the letters are the paper's
    **dict.fromkeys(("mu", "beta", "eps", "eta", "eta_tilde", "eta_max", "u", "budget_d", "u_over_d"), ABOVE_0),
    **dict.fromkeys(("sigma", "G", "F", "tau", "d0", "D0sq", "D2", "c", "c1", "c2", "d_s", "block_sizes"), AT_LEAST_0),
    **dict.fromkeys(("mean_norm_sq", "sum_norm_sq", "sum_grad_sq", "index_bits"), AT_LEAST_0),
    **dict.fromkeys(("M", "S", "N", "K", "T", "R", "d", "k", "levels", "bucket"), AT_LEAST_1),
    "lam": (lambda value: (value >= 0) & (value < 1), "in [0, 1)"),
    "decay": (lambda value: (value > 0) & (value <= 1), "in (0, 1]"),
    "ratio": (lambda value: (value > 0) & (value <= 1), "in (0, 1]"),
}
ORDERED = [  # (smaller, larger, why)
    ("S", "M", "no more clients can be sampled than there are"),
    ("K", "M", "a block cannot have more clients than there are"),
    ("mu", "beta", "a function is at most as convex as it is smooth"),
    ("N", "S", "each block needs a client, K = S/N >= 1"),
    ("k", "d", "no more coordinates can be sent than there are"),
]


def formula(function: Callable | None = None, *, unsent_blocks: bool = False) -> Callable:
    """Check the arguments of a formula by their names, and broadcast over them.

    A value outside its domain, or two that contradict each other, is a ValueError that names them. Numbers give a
    float, arrays an array. unsent_blocks: N > S has a meaning there, a block is then sent in S of N rounds.
    """
    if function is None:
        return functools.partial(formula, unsent_blocks=unsent_blocks)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = {name: _inside(name, value) for name, value in bound.arguments.items()}
        shape = _together(values, unsent_blocks)
        with np.errstate(over="ignore", under="ignore"):
            result = np.asarray(function(**values), dtype=float)
        result = np.broadcast_to(result, np.broadcast_shapes(shape, result.shape)).copy()
        return result if result.ndim else result.item()

    return checked


def _inside(name: str, value) -> np.ndarray:
    holds, words = DOMAINS[name]
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {value!r} was given: expected a number {words}, or an array of them.") from None
    wrong = array[~(holds(array) & np.isfinite(array))]
    if wrong.size:
        raise ValueError(f"{name} = {wrong.flat[0]:g} was given: expected a number {words}.")
    return array


def _together(values: dict[str, np.ndarray], unsent_blocks: bool) -> tuple[int, ...]:
    """The shape that all arguments have together."""
    shapes = {name: value.shape for name, value in values.items() if name != "block_sizes" and value.ndim}
    try:
        shape = np.broadcast_shapes(*shapes.values())
    except ValueError:
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"arrays of the shapes {given} were given: expected shapes that broadcast.") from None
    for smaller, larger, why in ORDERED:
        if smaller in values and larger in values and not (unsent_blocks and smaller == "N"):
            low, high = np.broadcast_arrays(values[smaller], values[larger])
            if (wrong := low > high).any():
                pair = f"{smaller} = {low[wrong].flat[0]:g} and {larger} = {high[wrong].flat[0]:g}"
                raise ValueError(f"{pair} were given: expected {smaller} <= {larger}, as {why}.")
    return shape
