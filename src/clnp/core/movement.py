"""Whether the weights of the open task have moved since it began.

An optimizer that was made for an earlier task, or a Trainer of a framework that made one, goes on
with the Parameters of that task: no error, and no effect.
"""

import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clnp.errors import TaskError

MAKE_A_NEW_ONE = (
    "Make a new optimizer after begin_task, from net.parameters(), and with Lightning or Hugging "
    "Face a new Trainer for each task"
)


class Movement:
    """A sum of the weights of the open task when it began, and the Parameters of the task before.

    Counters of versions would not do: steps in a CUDA graph, and those that write to `data`, do not
    count.
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._former: list[weakref.ref[nn.Parameter]] = []

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Note the weights of a task that begins."""
        self._sums = sums_of(list(parameters))

    def end(self, parameters: Iterable[nn.Parameter]) -> None:
        """Note the Parameters that the network no longer trains."""
        self._sums, self._former = None, [weakref.ref(parameter) for parameter in parameters]

    def check(
        self, task: str, parameters: Iterable[nn.Parameter], *, measures: bool, stacklevel: int
    ) -> None:
        """Raise a `TaskError`, or warn, if no weight of the task has moved since it began.

        It is an error if there are gradients: somebody tried to train the task. Without gradients,
        it may have been left untrained on purpose. A call that only `measures` may come before the
        first step, or after a step with a learning rate of 0, so then there is a warning.
        """
        given = list(parameters)
        if self._sums is None or not any(parameter.requires_grad for parameter in given):
            return
        sums = sums_of(given)
        if sums is None or sums.tolist() != self._sums.tolist():
            self._sums = None
            return
        what = f"no weight of task {task!r} has moved since it began"
        if any(parameter.grad is not None for parameter in given):
            message = (
                f"{what}, and its Parameters have gradients: the optimizer holds others, such as "
                "those of an earlier task, or has taken no step, as with a learning rate of 0. "
                f"{MAKE_A_NEW_ONE}"
            )
            if not measures:
                raise TaskError(message)
            warnings.warn(message, stacklevel=stacklevel + 1)
            return
        self._sums = None
        why = (
            "it got no gradients: a Trainer that has reached its last epoch takes no step, and a "
            "loop may train another model. Train net itself, with a new Trainer for each task"
        )
        if any(reference() is not None for reference in self._former):
            why = "Parameters of an earlier task are still in use, as by an old optimizer. "
            why += MAKE_A_NEW_ONE
        warnings.warn(f"{what}, and {why}", stacklevel=stacklevel + 1)

    def __getstate__(self) -> dict[str, Any]:
        # References to other objects can be neither pickled nor meant in a copy.
        return {**vars(self), "_former": []}


def sums_of(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the sum of the bits of each Parameter, exactly; None if there are none.

    It is the same on every device, whatever the memory format.
    """
    return torch.stack([_sum(each.detach()) for each in parameters]) if parameters else None


def _sum(tensor: Tensor) -> Tensor:
    raw = tensor.reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8:  # It may be a part of a flat tensor of all Parameters.
        raw = raw.clone()
    whole = len(raw) // 8 * 8
    # Eight bytes at a time: several times as fast.
    return raw[:whole].view(torch.int64).sum() + raw[whole:].sum()
