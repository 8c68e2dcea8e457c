"""What a training loop needs of a network, and what a method adds to the steps of the loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from .errors import ArgumentError
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
    the loss, with the inputs as the network has got them and the targets; `after_backward`, which
    may change gradients; `after_step`. All but `before_step` are captured with the step, so they
    may only work on tensors that stay where they are, and not read them on the host. `penalty` is
    what an epoch's report adds to the loss for what is not in it.
    """

    before_step: Callable[[float], None] = lambda over: None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    after_backward: Callable[[], None] = lambda: None
    after_step: Callable[[], None] = lambda: None
    penalty: Callable[[], float] = lambda: 0.0
    set_up: Callable[[Optimizer], None] = lambda optimizer: None

    def __post_init__(self) -> None:
        try:
            if self.loss is not None:
                signature(self.loss).bind(None, None)
        except TypeError as error:
            raise ArgumentError(
                "the loss of a StepRule must be a function of the inputs and the targets of the "
                f"step, loss(inputs, targets): {error}",
                argument="loss",
            ) from error
        except ValueError:
            pass  # Some functions of C have no signature.

    def added(self, loss: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a step, with what the rule adds to it."""
        if self.loss is None:
            return loss
        own: object = self.loss(inputs, targets)
        if not isinstance(own, Tensor | int | float) or (isinstance(own, Tensor) and own.ndim):
            found = f"of shape {list(own.shape)}" if isinstance(own, Tensor) else repr(own)
            raise ArgumentError(
                f"the loss of a StepRule is {found}; it must be a tensor of one number, such as "
                "the mean over the batch",
                argument="loss",
            )
        return loss + own
