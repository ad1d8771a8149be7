"""Errors teach: what was given, and what was expected."""

import math
from collections.abc import Callable
from numbers import Integral, Real


def whole(name: str, value, at_least: int) -> None:
    """Refuse what is not a whole number of at least `at_least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} = {value!r} was given: expected a whole number of at least {at_least}.")


def number(name: str, value, accept: Callable[[float], bool], expected: str) -> None:
    """Refuse what is not a finite number, or not one that `accept` accepts; `expected` says which those are."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value) or not accept(value):
        raise ValueError(f"{name} = {value!r} was given: expected a finite number {expected}.")
