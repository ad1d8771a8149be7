"""FedBCGD in a few small modules, with the paper's tables and figures as notebooks.

J. Liu, F. Shang, Y. Liu, H. Liu, Y. Li, Y. Gong: FedBCGD: Communication-Efficient Accelerated Block Coordinate Gradient
Descent for Federated Learning, ACM Multimedia 2024, doi 10.1145/3664647.3681094.
"""

from .algorithms import CentralisedSGD, FedAvg, FedAvgM, FedBCGD
from .blocks import Blocks
from .data import IID, ByLabel, Dirichlet, DirichletDraws
from .experiments import Run, Task, grid, run_grid, task
from .problem import Problem, Training
from .simulate import simulate

__version__ = "0.1.0"
_REPORT = ("allocation", "claim", "claims", "compare", "curves", "floats_to", "frame", "partition_map", "save", "table")


def __getattr__(name: str):
    """The report functions, which need pandas and matplotlib, are loaded when they are first asked for."""
    if name in _REPORT:
        from . import report

        return getattr(report, name)
    raise AttributeError(f"module 'fedbcgd_lite' has no attribute {name!r}")


__all__ = [
    *("CentralisedSGD", "FedAvg", "FedAvgM", "FedBCGD", "Blocks", "IID", "ByLabel", "Dirichlet", "DirichletDraws"),
    *("Run", "Task", "grid", "run_grid", "task", "Problem", "Training", "simulate", *_REPORT),
]
