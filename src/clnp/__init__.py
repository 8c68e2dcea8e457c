"""Continual learning by neural pruning: one network, task after task, exactly zero forgetting.

Names are imported when they are first used: `clnp --help` need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import baselines as baselines
    from .activity import Activity as Activity
    from .certificate import Certificate as Certificate
    from .checkpoint import attached as attached
    from .config import (
        FineTuning as FineTuning,
        LearnerConfig as LearnerConfig,
        TaskSettings as TaskSettings,
    )
    from .console import Lines as Lines
    from .discovery import inspect as inspect
    from .errors import (
        ArgumentError as ArgumentError,
        CapacityError as CapacityError,
        CheckpointError as CheckpointError,
        ClnpError as ClnpError,
        DataError as DataError,
        DivergedError as DivergedError,
        ExportError as ExportError,
        ForgettingError as ForgettingError,
        GraphError as GraphError,
        Problem as Problem,
        PruningError as PruningError,
        RecipeError as RecipeError,
        RunError as RunError,
        StoppedError as StoppedError,
        TaskError as TaskError,
    )
    from .experiment import Experiment as Experiment
    from .graph import Graph as Graph
    from .learner import Learner as Learner
    from .ledger import Capacity as Capacity, Ledger as Ledger
    from .models import MLP as MLP, NarrowCNN as NarrowCNN, WideCNN as WideCNN
    from .net import ContinualNet as ContinualNet
    from .objective import Objective as Objective
    from .openstate import OpenState as OpenState
    from .outlook import Forecast as Forecast, forecast as forecast
    from .progress import TaskReport as TaskReport
    from .pruning import PruningPlan as PruningPlan
    from .report.write import write_report as write_report
    from .task import Task as Task
    from .trackers.mlflow import MLflow as MLflow
    from .trackers.tensorboard import TensorBoard as TensorBoard
    from .trackers.tracker import TrackedRun as TrackedRun, Tracker as Tracker
    from .trackers.wandb import WeightsAndBiases as WeightsAndBiases
    from .training import Training as Training
    from .trial import export as export
    from .verification import verify as verify
    from .version import __version__ as __version__

_FILES = {
    "activity": ["Activity"],
    "certificate": ["Certificate"],
    "checkpoint": ["attached"],
    "config": ["FineTuning", "LearnerConfig", "TaskSettings"],
    "console": ["Lines"],
    "discovery": ["inspect"],
    "experiment": ["Experiment"],
    "errors": [
        "ArgumentError",
        "CapacityError",
        "CheckpointError",
        "ClnpError",
        "DivergedError",
        "ExportError",
        "ForgettingError",
        "GraphError",
        "Problem",
        "PruningError",
        "TaskError",
        "DataError",
        "RecipeError",
        "RunError",
        "StoppedError",
    ],
    "graph": ["Graph"],
    "learner": ["Learner"],
    "ledger": ["Capacity", "Ledger"],
    "models": ["MLP", "NarrowCNN", "WideCNN"],
    "net": ["ContinualNet"],
    "objective": ["Objective"],
    "openstate": ["OpenState"],
    "outlook": ["Forecast", "forecast"],
    "progress": ["TaskReport"],
    "pruning": ["PruningPlan"],
    "report.write": ["write_report"],
    "task": ["Task"],
    "trackers.mlflow": ["MLflow"],
    "trackers.tensorboard": ["TensorBoard"],
    "trackers.tracker": ["TrackedRun", "Tracker"],
    "trackers.wandb": ["WeightsAndBiases"],
    "trial": ["export"],
    "training": ["Training"],
    "verification": ["verify"],
    "version": ["__version__"],
}
_HOMES = {name: file for file, names in _FILES.items() for name in names}

__all__ = sorted([*_HOMES, "baselines"])


def __getattr__(name: str) -> Any:
    if name == "baselines":
        import_module(".baselines.methods", __name__)  # Which imports every one of them.
        return import_module(".baselines", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
