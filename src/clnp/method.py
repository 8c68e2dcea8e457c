"""A method of continual learning, as a run carries it out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from .config import LearnerConfig
from .events import Event
from .fit import Epoch
from .loading import load_task
from .task import Task, TaskData


@dataclass(frozen=True)
class Setting:
    """What a method has to work with.

    It tells `on_event` what it does, and calls `on_progress` whenever it could be saved.
    """

    model: nn.Module
    example_input: Any
    tasks: Sequence[Task]
    config: LearnerConfig
    head: Literal["multi", "single"]
    classifier: str | None
    seed: int
    on_event: Callable[[Event], None]
    on_progress: Callable[[], None]

    def load(self, task: Task, device: torch.device) -> TaskData:
        """The task's data, with the same samples held out whatever the method."""
        return load_task(task, device, self.config, seed=self.seed)

    def tell_epoch(
        self, task: Task, epoch: Epoch, *, num_epochs: int, round: int | None = None
    ) -> None:
        """Tell of an epoch of a task that has one candidate, after which it could be saved.

        `round` is the number of a round of fine-tuning, if it is of one.
        """
        where = {"candidate": 0} if round is None else {"round": round}
        where["num_epochs"] = num_epochs
        self.on_event({"event": "epoch", "task": task.name, **where, **vars(epoch)})
        self.on_progress()


class Method(Protocol):
    """Learns one task after the other, answers for all of them, and can be saved in between."""

    @property
    def device(self) -> torch.device:
        """What it computes on."""

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if the task can be told not to fit."""

    def answers(self, task: str) -> bool:
        """Whether the task has been learnt."""

    def num_candidates(self, task: str) -> int:
        """How often the task will be trained."""

    def num_epochs(self, task: str) -> int:
        """How many epochs it will be trained each time, if it does not stop early."""

    def epochs_before(self, number: int) -> int:
        """The epochs of all tasks before that number, if none of them stops early."""

    def learn(self, task: Task) -> dict[str, Any]:
        """Learn the task, from where it broke off; what a result says about it."""

    def predict(self, inputs: Tensor, task: str) -> Any:
        """The outputs of a task that has been learnt."""

    def figures(self) -> dict[str, Any]:
        """What a result says about the network."""

    def verify(self) -> None:
        """Raise an error if something is not as the method promises."""

    def state(self) -> dict[str, Any]:
        """What has to be saved beside the network; `progress` is None between two tasks."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write the network to a file, and with it what is attached."""
