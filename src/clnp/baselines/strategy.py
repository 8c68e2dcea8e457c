"""What a baseline does about forgetting: in a step, when a task ends, and when one is asked for."""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ..task import Task, TaskData
from ..trainable import StepRule as StepRule
from ..training import Training


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
