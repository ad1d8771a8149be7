"""FedBCGD in a few small modules, with the paper's tables and figures as notebooks.

J. Liu, F. Shang, Y. Liu, H. Liu, Y. Li, Y. Gong: FedBCGD: Communication-Efficient Accelerated Block Coordinate Gradient
Descent for Federated Learning, ACM Multimedia 2024, doi 10.1145/3664647.3681094.
"""

from importlib import import_module

from . import theory
from .algorithms import (
    CentralisedSGD,
    Compressed,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBCGD,
    FedBCGDPlus,
    FedBCGDPlusScript,
    FedDC,
    Scaffold,
)
from .blocks import Blocks
from .codecs import QSGD, Identity, TopK
from .convex import ConvexTask
from .experiments import run_columns, run_grid, run_grids
from .machine import Machine
from .partitioners import IID, ByLabel, Dirichlet, DirichletDraws
from .problem import Problem, Training
from .protocols import Column, columns, contenders, tuned
from .runs import Run, Task, convex_task, grid, task
from .simulate import simulate

__version__ = "0.4.0"
_LAZY = {  # what needs pandas and matplotlib is loaded when it is first asked for
    "tables": (
        "allocation_frame",
        "chosen_settings",
        "column_tables",
        "convex_settings",
        "final_accuracy",
        "floats_to",
        "frame",
        "gap_table",
        "paper_layout",
        "settings",
        "table",
        "work_table",
    ),
    "figures": (
        "curves",
        "floats_chart",
        "panels",
        "rates_chart",
        "save",
        "score_map",
        "sweep",
    ),
    "diagrams": ("allocation", "framework", "partition_map"),
    "claims": ("claim", "claim_numbers", "judge"),
    "search": ("best", "is_tuned", "lowest", "scores", "search_runs"),
}


def __getattr__(name: str):
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CentralisedSGD",
    "Compressed",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBCGD",
    "FedBCGDPlus",
    "FedBCGDPlusScript",
    "FedDC",
    "Scaffold",
    "Blocks",
    "Identity",
    "QSGD",
    "TopK",
    "IID",
    "ByLabel",
    "Dirichlet",
    "DirichletDraws",
    "ConvexTask",
    "Run",
    "Task",
    "convex_task",
    "grid",
    "run_columns",
    "run_grid",
    "run_grids",
    "task",
    "Column",
    "columns",
    "contenders",
    "tuned",
    "Machine",
    "Problem",
    "Training",
    "simulate",
    "theory",
    *_LAZY["tables"],
    *_LAZY["figures"],
    *_LAZY["diagrams"],
    *_LAZY["claims"],
    *_LAZY["search"],
]
