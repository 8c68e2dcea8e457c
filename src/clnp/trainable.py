"""What a training loop needs of a network, and what a method adds to the steps of the loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from .openstate import OpenState


class Trainable(Protocol):
    """A network with an open task, which is what its call, parameters and state are about."""

    training: bool

    @property
    def open_task(self) -> str | None:
        """The task that is being learnt."""

    def __call__(self, inputs: Tensor, /) -> Any:
        """The outputs of the open task."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the open task may change."""

    def train(self, mode: bool = True) -> Any:
        """Put the network in training mode, or in evaluation mode."""

    def open_state(self) -> OpenState:
        """A copy of the open task."""

    def set_open_state(self, state: OpenState) -> None:
        """Put the open task back to where the copy was taken."""


@dataclass(frozen=True)
class StepRule:
    """What a method does in a step beside following the gradient of the loss.

    `set_up` gets the optimizer before the first step, and when a training is resumed. A step calls,
    in this order: `before_step`, with the part of the epoch that is over; `loss`, which is added to
    the loss; `after_backward`, which may change gradients; `after_step`. All but `before_step` are
    captured with the step, so they may only work on tensors that stay where they are. `penalty` is
    what an epoch's report adds to the loss for what is not in it.
    """

    before_step: Callable[[float], None] = lambda over: None
    loss: Callable[[], Tensor] | None = None
    after_backward: Callable[[], None] = lambda: None
    after_step: Callable[[], None] = lambda: None
    penalty: Callable[[], float] = lambda: 0.0
    set_up: Callable[[Optimizer], None] = lambda optimizer: None
