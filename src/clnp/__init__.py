"""Continual learning by neural pruning: one network, task after task, exactly zero forgetting."""

from .activity import Activity
from .certificate import Certificate
from .checkpoint import attached
from .config import FineTuning, LearnerConfig
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
from .learner import Learner, TaskReport
from .ledger import Capacity, Ledger
from .models import MLP, NarrowCNN, WideCNN
from .net import ContinualNet
from .objective import Objective
from .openstate import OpenState
from .pruning import PruningPlan
from .task import Task
from .training import Training

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
    "FineTuning",
    "ForgettingError",
    "Graph",
    "GraphError",
    "Learner",
    "LearnerConfig",
    "Ledger",
    "MLP",
    "NarrowCNN",
    "Objective",
    "OpenState",
    "Problem",
    "PruningError",
    "PruningPlan",
    "Task",
    "TaskError",
    "TaskReport",
    "Training",
    "WideCNN",
    "attached",
    "inspect",
]
