"""Continual learning by neural pruning: one network, task after task, exactly zero forgetting.

Names are imported when they are first used: `clnp --help` need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import methods as methods
    from .core.forecast import Forecast as Forecast, forecast as forecast
    from .core.layers.ledger import Capacity as Capacity, Ledger as Ledger
    from .core.net import ContinualNet as ContinualNet
    from .core.pruning.activity import Activity as Activity
    from .core.pruning.thresholds import PruningPlan as PruningPlan
    from .core.record import Certificate as Certificate, OpenState as OpenState
    from .core.structure.discover import inspect as inspect
    from .core.structure.graph import Graph as Graph
    from .data.models import MLP as MLP, NarrowCNN as NarrowCNN, WideCNN as WideCNN
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
    from .exports.export import export as export
    from .learner.learner import Learner as Learner
    from .learner.progress import TaskReport as TaskReport
    from .report.write import write_report as write_report
    from .runs.experiment import Experiment as Experiment
    from .runs.trackers import TrackedRun as TrackedRun, Tracker as Tracker
    from .storage.checkpoint import attached as attached
    from .studies.verify import verify as verify
    from .terminal.progress import Lines as Lines
    from .trackers.mlflow import MLflow as MLflow
    from .trackers.tensorboard import TensorBoard as TensorBoard
    from .trackers.wandb import WeightsAndBiases as WeightsAndBiases
    from .training.config import (
        FineTuning as FineTuning,
        LearnerConfig as LearnerConfig,
        TaskSettings as TaskSettings,
        Training as Training,
    )
    from .training.objective import Objective as Objective
    from .training.task import Task as Task
    from .version import __version__ as __version__

_FILES = {
    "core.forecast": ["Forecast", "forecast"],
    "core.layers.ledger": ["Capacity", "Ledger"],
    "core.net": ["ContinualNet"],
    "core.pruning.activity": ["Activity"],
    "core.pruning.thresholds": ["PruningPlan"],
    "core.record": ["Certificate", "OpenState"],
    "core.structure.discover": ["inspect"],
    "core.structure.graph": ["Graph"],
    "data.models": ["MLP", "NarrowCNN", "WideCNN"],
    "errors": [
        "ArgumentError",
        "CapacityError",
        "CheckpointError",
        "ClnpError",
        "DataError",
        "DivergedError",
        "ExportError",
        "ForgettingError",
        "GraphError",
        "Problem",
        "PruningError",
        "RecipeError",
        "RunError",
        "StoppedError",
        "TaskError",
    ],
    "exports.export": ["export"],
    "learner.learner": ["Learner"],
    "learner.progress": ["TaskReport"],
    "report.write": ["write_report"],
    "runs.experiment": ["Experiment"],
    "runs.trackers": ["TrackedRun", "Tracker"],
    "storage.checkpoint": ["attached"],
    "studies.verify": ["verify"],
    "terminal.progress": ["Lines"],
    "trackers.mlflow": ["MLflow"],
    "trackers.tensorboard": ["TensorBoard"],
    "trackers.wandb": ["WeightsAndBiases"],
    "training.config": ["FineTuning", "LearnerConfig", "TaskSettings", "Training"],
    "training.objective": ["Objective"],
    "training.task": ["Task"],
    "version": ["__version__"],
}
_HOMES = {name: file for file, names in _FILES.items() for name in names}

__all__ = sorted([*_HOMES, "methods"])


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module(".methods", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
