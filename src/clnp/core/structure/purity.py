"""What a forward pass does beside computing: draws random numbers, has layers run once more."""

import copy
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clnp.errors import Problem

from .declared import ROOT
from .inputs import Inputs, imitate, random_state, seed, seed_all
from .observe import Moment, in_checkpoint, observe
from .replay import Plan, close, fill, outputs_of

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


def chances(model: nn.Module, inputs: Inputs, *, layers: Collection[str]) -> list[Problem]:
    """The layers that a pass in training mode runs or leaves out by chance, in one problem."""
    model = copy.deepcopy(model)
    model.train()
    called: Counter[str] = Counter()
    for path in layers:
        note = partial(_note, called, path)
        model.get_submodule(path).register_forward_pre_hook(note, with_kwargs=True)
    found: list[Counter[str]] = []
    try:
        for number in range(_NUM_TRIES):
            seed_all(model, number)
            before = random_state(model)
            called.clear()
            outputs_of(model, inputs)
            found.append(called.copy())
            if random_state(model) == before:
                break
    except Exception:
        return []  # forward fails in training mode, which is told with its reason elsewhere
    odd = [path for path in layers if len({counts[path] for counts in found}) > 1]
    if not odd:
        return []
    told = f"{odd[0]!r} runs" if len(odd) == 1 else f"{odd[0]!r} and {len(odd) - 1} more layers run"
    return [
        Problem(
            ROOT,
            f"in training mode chance decides whether {told}: from the second task on forward runs "
            "once for what is frozen and once for what is free, and must take the same path",
            "Run them always, and multiply what they add by 0 or 1, as "
            "torchvision.ops.StochasticDepth does",
        )
    ]


def _note(called: Counter[str], path: str, *_: Any) -> None:
    called[path] += 1


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
        observe(model, imitate(inputs, torch.clone), observer=draws, opaque=opaque)
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
