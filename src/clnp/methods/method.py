"""What a method of continual learning is, to a run; and what a baseline adds to training."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from clnp.records import OURS, EpochEnded, Event, NetworkRecord, RunConfig, RunResult, TaskRecord
from clnp.training.config import LearnerConfig, Training
from clnp.training.fit import Epoch, StepRule
from clnp.training.task import Task, TaskData, load_task


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

    def log_epoch(
        self, task: Task, epoch: Epoch, *, num_epochs: int, round: int | None = None
    ) -> None:
        """Tell of an epoch of a task that has one candidate, after which it could be saved.

        `round` is the number of a round of fine-tuning, if it is of one.
        """
        candidate = 0 if round is None else None
        self.on_event(
            EpochEnded(
                task=task.name,
                candidate=candidate,
                round=round,
                num_epochs=num_epochs,
                **vars(epoch),
            )
        )
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

    def learn(self, task: Task) -> TaskRecord:
        """Learn the task, or resume it, and return its record."""

    def predict(self, inputs: Tensor, task: str) -> Any:
        """The outputs of a task that has been learnt."""

    def figures(self) -> NetworkRecord:
        """Return the figures of the network."""

    def verify(self) -> None:
        """Raise an error if something is not as the method promises."""

    def state(self) -> dict[str, Any]:
        """What has to be saved beside the network; `progress` is None between two tasks."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write the network to a file, and with it what is attached."""


def is_ours(record: RunConfig | RunResult) -> bool:
    """Whether the config or the result is that of a run of neural pruning."""
    return record.method == OURS


@dataclass(frozen=True)
class Retraining:
    """That a task is trained once more when its training has ended: how, and what a step adds."""

    training: Training
    rule: StepRule


class Strategy:
    """One method's way to learn in a `DenseNet`, with all that it remembers: here, nothing.

    Before the first task, `check` for all of them. The calls for task number `index`, from 0:
    `begin`, `rule` (again after a crash, when `restore` has put back what `state` gave; `begin`
    is not called again), the training, `end`, `retraining` (again after a crash in what it asks
    for); and `running` around every prediction.
    """

    own_statistics = False
    """Whether each task is answered with the statistics of BatchNorm that it was learnt with."""

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if the method cannot learn the task."""

    def begin(self, index: int, data: TaskData) -> None:
        """Prepare the network and what is remembered for a new task, which is open already."""

    def rule(self) -> StepRule:
        """What it does in each step of the open task, beside following the gradient."""
        return StepRule()

    def end(self, index: int, data: TaskData) -> None:
        """Remember what has to be remembered of the task, which is still open."""

    def retraining(self) -> Retraining | None:
        """What `end` asks for beside: the open task trained once more, told as fine-tuning is.

        It is counted beforehand where the settings say `retrain_epochs`.
        """
        return None

    def running(self, index: int) -> AbstractContextManager[None]:
        """The network as it answers for a task that has been learnt, or that is being learnt."""
        return contextlib.nullcontext()

    def state(self) -> dict[str, Any]:
        """All that it remembers, in plain data and tensors."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Remember again what `state` gave."""

    def stored_bytes(self) -> dict[str, int]:
        """What has to be kept beside the network to learn and answer, by what it is."""
        return {}
