"""The interface of a method to a run, and the interface of a baseline to training."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from clnp.core.structure.inputs import imitate, tensors_in
from clnp.records import Event, NetworkRecord, TaskRecord
from clnp.training.config import LearnerConfig, Training
from clnp.training.fit import StepRule
from clnp.training.task import Task, TaskData, load

from .dense import DenseNet

State = Mapping[str, Any]
"""What a run resumes from: plain data and tensors by name, in lists and dictionaries."""


@dataclass(frozen=True)
class Setting:
    """The experiment of a run, for its method.

    A method calls `on_event` with every event, and `on_progress` whenever it can be saved.
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
        """Return the data of a task, with the same samples held out for every method."""
        return load(task, device, self.config, seed=self.seed)


class Method(Protocol):
    """Learns one task after another, predicts for all of them, and can be saved at any epoch."""

    @property
    def device(self) -> torch.device:
        """The device of the network."""

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if it is already clear that the task does not fit."""

    def answers(self, task: str) -> bool:
        """Whether the task has ended."""

    def num_candidates(self, task: str) -> int:
        """Return how many candidates of the task will be trained."""

    def num_epochs(self, task: str) -> int:
        """Return the epochs of each candidate, if it does not stop early."""

    def epochs_before(self, number: int) -> int:
        """Return the epochs of the first `number` tasks, if none of them stops early."""

    def learn(self, task: Task) -> TaskRecord:
        """Learn the task, or resume it, and return its record."""

    def predict(self, inputs: Tensor, task: str) -> Any:
        """Return the outputs of an ended task."""

    def figures(self) -> NetworkRecord:
        """Return the figures of the network."""

    def verify(self) -> None:
        """Raise an error if a guarantee of the method does not hold."""

    def state(self) -> State:
        """Return the state to save beside the network; `progress` is None between two tasks."""

    def save(self, path: str | PathLike[str], *, attached: Any) -> None:
        """Write the network to a file, together with attached data."""


def num_bytes(value: object) -> int:
    """Return the bytes of all tensors in nested lists and dictionaries."""
    return sum(tensor.nbytes for tensor in tensors_in(value))


@dataclass(frozen=True)
class Retraining:
    """A second training of a task, after the first one has ended.

    Args:
        training: The settings of the second training.
        rule: The rule for its steps.
    """

    training: Training
    rule: StepRule


class Strategy:
    """The base class of baselines: plain training in a `DenseNet`, with nothing stored.

    A custom baseline is a subclass, and a frozen dataclass of settings with `training` and a method
    `strategy(net)` that returns the strategy. The calls are, in order:

    - `check` for all tasks, before the first one;
    - for each task: `begin`, `rule`, the training, `end`, `retraining`;
    - `running` around every prediction.

    A run that resumes within a task calls `restore` with the last `state`, then `rule` (and not
    `begin`). A run that resumes within the second training calls `retraining` again. So everything
    that `begin` and `end` compute must be `saved`.

    Example:
        >>> class Anchored(clnp.methods.Strategy):
        ...     saved = ("anchor",)
        ...     def begin(self, index, data):
        ...         self.anchor = {n: w.detach().clone() for n, w in self.net.trunk().items()}
        ...     def rule(self):
        ...         pairs = [(w, self.anchor[n]) for n, w in self.net.trunk().items()]
        ...         return clnp.methods.StepRule(
        ...             loss=lambda x, y: 0.01 * sum((w - a).square().sum() for w, a in pairs)
        ...         )
        >>> @dataclass(frozen=True)
        ... class L2:
        ...     training: clnp.Training | None = None
        ...     def strategy(self, net):
        ...         return Anchored()
        >>> clnp.Experiment(model, x, tasks, baseline=L2())
    """

    net: DenseNet
    """The network. A run sets it, unless the strategy already has."""
    saved: Sequence[str] = ()
    """Names of the attributes to save for resuming: plain data and tensors, in lists and dicts."""
    own_statistics = False
    """Whether each task is evaluated with the BatchNorm statistics of its own training."""

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` if the method cannot learn the task.

        Args:
            task: A task of the run.
        """

    def begin(self, index: int, data: TaskData) -> None:
        """Prepare for a new task, which is already open in the network.

        Args:
            index: The index of the task, from 0.
            data: Its training, validation and test data on the device.
        """

    def rule(self) -> StepRule:
        """Return the rule for the training steps of the open task.

        Returns:
            What to add to a step: a penalty, changes of the gradient or of the weights.
        """
        return StepRule()

    def end(self, index: int, data: TaskData) -> None:
        """Store what later tasks need of the task, which is still open.

        Args:
            index: The index of the task, from 0.
            data: Its training, validation and test data on the device.
        """

    def retraining(self) -> Retraining | None:
        """Return a second training of the open task, or None.

        It is logged as a round of fine-tuning. If the settings have a field `retrain_epochs`, the
        time left includes it.
        """
        return None

    def running(self, index: int) -> AbstractContextManager[None]:
        """Return a context in which the network predicts for a task, open or ended.

        Args:
            index: The index of the task, from 0.
        """
        return contextlib.nullcontext()

    def state(self) -> State:
        """Return everything to save for resuming: by default, the attributes in `saved`."""
        return {name: getattr(self, name) for name in self.saved}

    def restore(self, state: State) -> None:
        """Restore the attributes in `saved`, with copies of tensors on the device of `net`.

        Args:
            state: What `state` returned, with lists in place of tuples.
        """
        for name in self.saved:
            copy = imitate(state[name], lambda tensor: tensor.to(self.net.device, copy=True))
            setattr(self, name, copy)

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes to store beside the network, by kind."""
        return {}
