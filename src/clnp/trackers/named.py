"""The trackers by the names of their command-line options."""

import os
from collections.abc import Sequence

from clnp.runs.trackers import Tracker, require

from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WeightsAndBiases

NAMES = ("tensorboard", "mlflow", "wandb")
"""Each is the name of an option, a package, and the extra that installs it."""


def check_installed(names: Sequence[str]) -> None:
    """Raise a `RunError` if the package of a tracker is not installed."""
    for name in names:
        require(name, name)


def trackers_named(names: Sequence[str], *, quiet: bool = False) -> list[Tracker]:
    """Return the trackers with these names."""
    if "mlflow" in names:
        # By default it retries an unreachable server for minutes, while the run waits.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    made: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
    return [WeightsAndBiases(quiet=quiet) if name == "wandb" else made[name]() for name in names]
