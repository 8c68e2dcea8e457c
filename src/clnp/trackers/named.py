"""The trackers by the names of their command-line options."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from clnp.runs.trackers import Tracker

from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WeightsAndBiases


def trackers_named(names: Sequence[str], *, quiet: bool = False) -> list[Tracker]:
    """Return the trackers with these names, each of which is also a package and its extra."""
    if "mlflow" in names:
        # By default it retries an unreachable server for minutes, while the run waits.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    made: dict[str, Callable[[], Tracker]] = {
        "tensorboard": TensorBoard,
        "mlflow": MLflow,
        "wandb": partial(WeightsAndBiases, quiet=quiet),
    }
    return [made[name]() for name in names]
