"""TensorBoard, MLflow and Weights & Biases."""

from clnp.runs.trackers import TrackedRun, Tracker

from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WeightsAndBiases

__all__ = ["MLflow", "TensorBoard", "TrackedRun", "Tracker", "WeightsAndBiases"]
