"""The theory of FedBCGD and FedBCGD+ as functions: Table 1, Theorems 1 and 2, their lemmas, and what a round costs.

Arguments are named by the paper's letters: M clients, S sampled, N blocks, K = S/N, T local steps, R rounds, step size
eta, momentum lam, smoothness beta, strong convexity mu, noise sigma, heterogeneity G, F = f(x_0) - f*, accuracy eps.
They may be arrays that broadcast; a value outside its domain is a ValueError that names it. Nothing here knows the rest
of the package: numbers in, numbers out.
"""

from . import costs, lemmas, symbols, table1, theorem1, theorem2
from .costs import *
from .lemmas import *
from .symbols import *
from .table1 import *
from .theorem1 import *
from .theorem2 import *

FORMULAS = {  # by name
    name: function
    for module in (symbols, table1, theorem1, theorem2, lemmas, costs)
    for name, function in vars(module).items()
    if hasattr(function, "__wrapped__") and function.__module__ == module.__name__
}
