"""Trackers by the names of their options on the command line."""

import os
from collections.abc import Sequence

from clnp.runs.trackers import Tracker, require

from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WeightsAndBiases

NAMES = ("tensorboard", "mlflow", "wandb")
"""Each is the name of an option, of a package, and of the extra that installs it."""


def check_installed(names: Sequence[str]) -> None:
    """Raise a `RunError` that says what to install, if the package of a tracker is missing."""
    for name in names:
        require(name, name)


def trackers_named(names: Sequence[str], *, quiet: bool = False) -> list[Tracker]:
    """The trackers with these names."""
    if "mlflow" in names:
        # By itself it asks a server that is gone for several minutes, while the run waits.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    made: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
    return [WeightsAndBiases(quiet=quiet) if name == "wandb" else made[name]() for name in names]
