"""Continual learning by neural pruning: one network, task after task, exactly zero forgetting."""

from .activity import Activity
from .certificate import Certificate
from .discovery import inspect
from .errors import (
    ArgumentError,
    CapacityError,
    CheckpointError,
    ClnpError,
    DivergedError,
    ForgettingError,
    GraphError,
    Problem,
    PruningError,
    TaskError,
)
from .graph import Graph
from .ledger import Capacity, Ledger
from .models import MLP, NarrowCNN, WideCNN
from .net import ContinualNet
from .pruning import PruningPlan

__all__ = [
    "Activity",
    "ArgumentError",
    "Capacity",
    "CapacityError",
    "Certificate",
    "CheckpointError",
    "ClnpError",
    "ContinualNet",
    "DivergedError",
    "ForgettingError",
    "Graph",
    "GraphError",
    "Ledger",
    "MLP",
    "NarrowCNN",
    "Problem",
    "PruningError",
    "PruningPlan",
    "TaskError",
    "WideCNN",
    "inspect",
]
