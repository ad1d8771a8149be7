"""The methods, each as frozen hyper-parameters with four pure functions; base.py says which."""

from .averaging import CentralisedSGD, FedAdam, FedAvg, FedAvgM
from .base import Algorithm, State
from .compressed import Compressed
from .corrected import FedDC, Scaffold
from .fedbcgd import FedBCGD, FedBCGDPlus, FedBCGDPlusScript

__all__ = [
    "Algorithm",
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
    "State",
]
