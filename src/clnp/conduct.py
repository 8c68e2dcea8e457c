"""What a forward pass does beside computing: draws random numbers, has layers run once more."""

import copy
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .errors import Problem
from .example import Inputs, random_state, seed
from .narrowing import Plan, close, fill, outputs_of
from .operations import imitate
from .validation import ROOT
from .watching import Moment, in_checkpoint, watch

_NUM_TRIES = 8
_NUM_PASSES = 2
_DRAW_NOTHING = "Pass training=self.training to F.dropout and the like: draw in training mode only"


_REMEMBERED = Problem(
    ROOT,
    "after a pass in training mode the same input has other outputs in evaluation mode: forward "
    "remembers something outside of buffers, so an ended task would change while another is learnt",
    "Let what forward remembers in training mode have no part in evaluation mode",
)


@dataclass
class Checkpointed:
    """Notes the layers that gradient checkpointing will run again in the backward pass."""

    paths: list[str] = field(default_factory=list)

    def on_operation(self, moment: Moment) -> Any:
        """The result of the operation."""
        return moment.run()

    def on_layer(self, moment: Moment, layer: nn.Module) -> Any:
        """The result of the layer."""
        if in_checkpoint():
            self.paths.append(moment.path)
        return moment.run()

    def problems(self) -> list[Problem]:
        """One problem for all layers together."""
        if not self.paths:
            return []
        more = f" and {len(self.paths) - 1} more layers" if len(self.paths) > 1 else ""
        return [
            Problem(
                ROOT,
                f"gradient checkpointing (torch.utils.checkpoint) runs {self.paths[0]!r}{more} "
                "once more in the backward pass, when a task's layers are no longer set up for it",
                "Call the layers directly: switch off memory_efficient, use_checkpoint or the like",
            )
        ]


@dataclass
class _Draws:
    """Notes the operations that draw random numbers."""

    model: nn.Module
    problems: list[Problem] = field(default_factory=list)

    def on_operation(self, moment: Moment) -> Any:
        before = random_state(self.model)
        result = moment.run()
        if random_state(self.model) != before:
            self.problems.append(
                moment.problem(
                    f"'{moment.name}' draws random numbers in evaluation mode, so an ended task "
                    "would not answer the same twice",
                    _DRAW_NOTHING,
                )
            )
        return result

    def on_layer(self, moment: Moment, layer: nn.Module) -> Any:
        return moment.run()


def differences(
    model: nn.Module, inputs: Inputs, *, plan: Plan, opaque: Collection[str]
) -> list[Problem]:
    """Why the same input has other outputs the second time in evaluation mode; empty if it has not.

    The layers of the plan are filled with random weights: zeros would hide what differs.
    """
    model = copy.deepcopy(model)
    model.eval()
    fill(model, plan)
    draws = _Draws(model)
    try:
        if _repeats(model, inputs):
            return [] if _outlasts_training(model, inputs) else [_REMEMBERED]
        watch(model, imitate(inputs, torch.clone), observer=draws, opaque=opaque)
    except Exception:
        return []  # forward does not bear other weights, which `agrees` will find as well
    return draws.problems or [
        Problem(
            ROOT,
            "the same input has other outputs the second time: forward draws random numbers in "
            "evaluation mode or remembers something, so an ended task would not answer the same "
            "twice",
            _DRAW_NOTHING,
        )
    ]


def _outlasts_training(model: nn.Module, inputs: Inputs) -> bool:
    """Whether outputs in evaluation mode are the same after passes in training mode.

    Buffers are put back: layers keep those apart for each task, and others must not change.
    """
    first = outputs_of(model, inputs)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    for _ in range(_NUM_PASSES):
        outputs_of(model, inputs)
    model.eval()
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return close(first, outputs_of(model, inputs), _tolerance(first))


def _tolerance(outputs: list[Tensor]) -> float:
    # On the CPU nothing but forward itself can make a difference.
    return 0.0 if all(tensor.device.type == "cpu" for tensor in outputs) else 1e-4


def _repeats(model: nn.Module, inputs: Inputs) -> bool:
    seed(model, 0)
    before = random_state(model)
    first = outputs_of(model, inputs)
    # A branch that is taken by chance is often taken the same way twice.
    num_tries = _NUM_TRIES if random_state(model) != before else 1
    for number in range(num_tries):
        seed(model, number + 1)
        if not close(first, outputs_of(model, inputs), _tolerance(first)):
            return False
    return True
