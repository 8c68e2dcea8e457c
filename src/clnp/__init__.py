"""Continual learning by neural pruning: one network, task after task, exactly zero forgetting.

Names are imported when they are first used: `clnp --help` need not wait for PyTorch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import errors as errors, methods as methods, trackers as trackers
    from .core.forecast import Forecast as Forecast
    from .core.layers.ledger import Capacity as Capacity
    from .core.net import ContinualNet as ContinualNet
    from .core.pruning.activity import Activity as Activity
    from .core.pruning.plan import PruningPlan as PruningPlan
    from .core.structure.discover import discover as discover
    from .core.structure.graph import Graph as Graph
    from .data import models as models
    from .exports.export import export as export
    from .learner.learner import Learner as Learner
    from .learner.progress import TaskReport as TaskReport
    from .report.write import write_report as write_report
    from .runs.experiment import Experiment as Experiment
    from .storage.checkpoint import load as load, save as save
    from .studies.verify import verify as verify
    from .training.config import (
        FineTuning as FineTuning,
        LearnerConfig as LearnerConfig,
        Training as Training,
    )
    from .training.objective import Objective as Objective
    from .training.task import Task as Task

_NAMES = {
    "core.forecast": ["Forecast"],
    "core.layers.ledger": ["Capacity"],
    "core.net": ["ContinualNet"],
    "core.pruning.activity": ["Activity"],
    "core.pruning.plan": ["PruningPlan"],
    "core.structure.discover": ["discover"],
    "core.structure.graph": ["Graph"],
    "exports.export": ["export"],
    "learner.learner": ["Learner"],
    "learner.progress": ["TaskReport"],
    "report.write": ["write_report"],
    "runs.experiment": ["Experiment"],
    "storage.checkpoint": ["load", "save"],
    "studies.verify": ["verify"],
    "training.config": ["FineTuning", "LearnerConfig", "Training"],
    "training.objective": ["Objective"],
    "training.task": ["Task"],
}
_FILES = {name: file for file, names in _NAMES.items() for name in names}
_NAMESPACES = {"errors": "errors", "methods": "methods", "models": "data.models"}
_NAMESPACES |= {"trackers": "trackers"}

_RENAMED = {
    "baselines": "clnp.methods",
    "attached": "clnp.storage.attached",
    "forecast": "net.forecast()",
    "inspect": "print(clnp.discover(model, example_input))",
    "Certificate": "clnp.core.Certificate",
    "Ledger": "clnp.core.Ledger",
    "Lines": "clnp.terminal.Lines",
    "OpenState": "clnp.core.OpenState",
    "TaskSettings": "clnp.learner.TaskSettings",
    **{name: f"clnp.models.{name}" for name in ("MLP", "NarrowCNN", "WideCNN")},
    **{
        name: f"clnp.trackers.{name}"
        for name in ("MLflow", "TensorBoard", "TrackedRun", "Tracker", "WeightsAndBiases")
    },
    **{
        f"{name}Error": f"clnp.errors.{name}Error"
        for name in (
            *("Argument", "Capacity", "Checkpoint", "Clnp", "Data", "Diverged", "Export"),
            *("Forgetting", "Graph", "Pruning", "Recipe", "Run", "Stopped", "Task"),
        )
    },
    "Problem": "clnp.errors.Problem",
}
"""The names of version 0 that are spelled in another way now."""

__all__ = sorted([*_FILES, *_NAMESPACES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        raise AttributeError(f"clnp.{name} was renamed. Use {_RENAMED[name]}")
    if name in _NAMESPACES:
        value = import_module(f".{_NAMESPACES[name]}", __name__)
    elif name in _FILES:
        value = getattr(import_module(f".{_FILES[name]}", __name__), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        value = import_module(f".{name}", __name__)  # A room, whatever was imported before.
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
