"""The data of a task as the settings of the learner have it loaded."""

import torch

from .config import LearnerConfig
from .generators import seed_all
from .seeds import derive
from .task import Task, TaskData, load


def load_task(task: Task, device: torch.device, config: LearnerConfig, *, seed: int) -> TaskData:
    """The task's data on the device, with the same samples held out whatever the method."""
    seed_all(derive(seed, "load", task.name))
    return load(
        task,
        device,
        seed=seed,
        validation_fraction=config.validation_fraction,
        resident=config.resident,
        num_workers=config.num_workers,
        check=config.check_data,
    )
