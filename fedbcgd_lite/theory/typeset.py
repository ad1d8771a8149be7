"""Formulas of this package as LaTeX, made from their code."""

import types
from collections.abc import Callable

import sympy

LETTERS = {"mu": r"\mu", "beta": r"\beta", "sigma": r"\sigma", "tau": r"\tau", "eps": r"\epsilon"}


def symbolic(formula: Callable) -> sympy.Expr:
    """A formula of `table1` with symbols in the place of numbers: its own code, run on them. alpha(lam) stays alpha."""
    function = formula.__wrapped__
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    symbols = {name: sympy.Symbol(name, positive=True) for name in names}
    world = {**function.__globals__, "np": sympy, "alpha": lambda lam: sympy.Symbol("alpha", positive=True)}
    return types.FunctionType(function.__code__, world)(**symbols)


def latex(formula: Callable) -> str:
    """A formula as LaTeX, the term that grows fastest as eps falls first."""
    letters = {sympy.Symbol(name, positive=True): text for name, text in {**LETTERS, "alpha": r"\alpha"}.items()}
    eps = sympy.Symbol("eps", positive=True)
    terms = sorted(sympy.Add.make_args(symbolic(formula)), key=lambda term: term.as_coeff_exponent(eps)[1])
    return " + ".join(sympy.latex(sympy.nsimplify(term), symbol_names=letters) for term in terms)
