"""Check that `forward` only computes: no random numbers, no memory, no layer that runs again."""

import copy
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any

from torch import Tensor, nn

from clnp.errors import Problem

from .declared import ROOT
from .inputs import Inputs, copied, random_state, seed, seed_all
from .replay import Plan, close, fill, outputs_of
from .trace import Moment, in_checkpoint, observe

_NUM_TRIES = 8
_NUM_PASSES = 2
_DRAW_NOTHING = "Pass training=self.training to F.dropout and the like: draw in training mode only"


def run_noting_checkpointed(moment: Moment, *, paths: list[str]) -> Any:
    """Run a moment, and note a layer that gradient checkpointing will run again."""
    if moment.layer is not None and in_checkpoint():
        paths.append(moment.path)
    return moment.run()


def checkpointing(paths: list[str]) -> list[Problem]:
    """Report the layers that gradient checkpointing runs, in one problem."""
    if not paths:
        return []
    more = f" and {len(paths) - 1} more layers" if len(paths) > 1 else ""
    return [
        Problem(
            ROOT,
            f"gradient checkpointing (torch.utils.checkpoint) runs {paths[0]!r}{more} again in the "
            "backward pass, when a task's layers are no longer set up for it",
            "Call the layers directly: switch off memory_efficient, use_checkpoint or the like",
        )
    ]


def chances(model: nn.Module, inputs: Inputs, *, layers: Collection[str]) -> list[Problem]:
    """Report the layers that a pass in training mode runs or omits by chance, in one problem."""
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
        return []  # forward fails in training mode, which is reported with its reason elsewhere
    odd = [path for path in layers if len({counts[path] for counts in found}) > 1]
    if not odd:
        return []
    run = f"{odd[0]!r} runs" if len(odd) == 1 else f"{odd[0]!r} and {len(odd) - 1} more layers run"
    return [
        Problem(
            ROOT,
            f"in training mode chance decides whether {run}: from the second task on forward runs "
            "once for frozen and once for free neurons, and must take the same path",
            "Run them always, and multiply what they add by 0 or 1, as "
            "torchvision.ops.StochasticDepth does",
        )
    ]


def _note(called: Counter[str], path: str, *_: Any) -> None:
    called[path] += 1


def differences(
    model: nn.Module, inputs: Inputs, *, plan: Plan, opaque: Collection[str]
) -> list[Problem]:
    """Report why the same input has other outputs the second time in evaluation mode, if it has.

    The layers of the plan are filled with random weights, because zeros would hide differences.
    """
    model = copy.deepcopy(model)
    model.eval()
    fill(model, plan)
    draws: list[Problem] = []

    def see(moment: Moment) -> Any:
        before = random_state(model)
        result = moment.run()
        if moment.layer is None and random_state(model) != before:
            found = (
                f"'{moment.name}' draws random numbers in evaluation mode, so the outputs of an "
                "ended task would not be reproducible"
            )
            draws.append(moment.problem(found, _DRAW_NOTHING))
        return result

    try:
        if _repeats(model, inputs):
            if _outlasts_training(model, inputs):
                return []
            return [
                Problem(
                    ROOT,
                    "after a pass in training mode the same input has other outputs in evaluation "
                    "mode: forward remembers something outside of buffers, so an ended task would "
                    "change while another is learned",
                    "Do not read in evaluation mode what forward remembers in training mode",
                )
            ]
        observe(model, copied(inputs), observer=see, opaque=opaque)
    except Exception:
        return []  # forward fails with other weights, which `agrees` will find as well
    return draws or [
        Problem(
            ROOT,
            "the same input has other outputs the second time: forward draws random numbers in "
            "evaluation mode or remembers something, so the outputs of an ended task would not "
            "be reproducible",
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


def _repeats(model: nn.Module, inputs: Inputs) -> bool:
    """Whether outputs in evaluation mode are the same whatever the seed."""
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


def _tolerance(outputs: list[Tensor]) -> float:
    # On the CPU nothing but forward itself can make a difference.
    return 0.0 if all(tensor.device.type == "cpu" for tensor in outputs) else 1e-4
