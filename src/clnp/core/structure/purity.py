"""Check that `forward` only computes: it draws no random numbers and remembers nothing."""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from clnp.errors import Problem, first_line

from .declared import ROOT
from .inputs import Inputs, copied, generators_of, random_state, seed_all, tensors_in
from .kinds import known_kind
from .replay import Narrowing, close, fill, in_double, outputs_of
from .trace import Moment, observe

_NUM_TRIES = 9
_NUM_PASSES = 2
_DRAW_NOTHING = "Pass training=self.training to F.dropout and the like: draw in training mode only"


def chances(model: nn.Module, inputs: Inputs, *, layers: Collection[str]) -> list[Problem]:
    """Report the layers that a pass in training mode runs or omits by chance, in one problem.

    The model is changed; a sketch is enough.
    """
    model.train()
    called: Counter[str] = Counter()
    for path in layers:
        note = partial(_note, called, path)
        model.get_submodule(path).register_forward_pre_hook(note)
    found: list[Counter[str]] = []
    try:
        for _ in _tries(model, inputs):
            found.append(called.copy())
            called.clear()
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


def _tries(model: nn.Module, inputs: Inputs) -> Iterator[list[Tensor]]:
    """Yield the outputs of passes with other seeds: of one, or more if random numbers are drawn.

    A branch that is taken by chance is often taken the same way twice.
    """
    generators = generators_of(model)
    for number in range(_NUM_TRIES):
        seed_all(model, number)
        before = random_state(generators)
        yield outputs_of(model, inputs)
        if random_state(generators) == before:
            break


def impurities(
    model: nn.Module, inputs: Inputs, *, narrowing: Narrowing | None, opaque: Collection[str]
) -> list[Problem]:
    """Report layers that compute something else than their kinds, and outputs that change.

    The layers are filled with random weights, because zeros would hide differences. Without a
    `narrowing`, the model is a sketch, whose layers compute nothing. The model is changed.
    """
    model.eval()
    filled = frozenset(narrowing.paths if narrowing else ())
    if narrowing is not None:
        fill(model, narrowing)
    generators = generators_of(model)
    differing: list[Problem] = []
    draws: list[Problem] = []

    def see(moment: Moment) -> Any:
        if moment.layer is not None:
            result = moment.run()
            found = _difference(moment, moment.layer, result) if moment.path in filled else ""
            if found:
                differing.append(moment.problem(found, "Let run compute the same"))
            return result
        before = random_state(generators)
        result = moment.run()
        if random_state(generators) != before:
            found = (
                f"'{moment.name}' draws random numbers in evaluation mode, so the outputs of an "
                "ended task would not be reproducible"
            )
            draws.append(moment.problem(found, _DRAW_NOTHING))
        return result

    try:
        first = in_double(observe(model, copied(inputs), observer=see, opaque=opaque))
        if not all(_same(first, outputs) for outputs in _tries(model, inputs)):
            found = (
                "the same input has other outputs the second time: forward draws random numbers "
                "in evaluation mode or remembers something, so the outputs of an ended task would "
                "not be reproducible"
            )
            return differing + (draws or [Problem(ROOT, found, _DRAW_NOTHING)])
        if not _same(first, _after_training(model, inputs)):
            found = (
                "after a pass in training mode the same input has other outputs in evaluation "
                "mode: forward remembers something outside of buffers, so an ended task would "
                "change while another is learned"
            )
            remedy = "Do not read in evaluation mode what forward remembers in training mode"
            differing.append(Problem(ROOT, found, remedy))
    except Exception:
        pass  # forward fails with other weights, which `agrees` will find as well
    return differing


def _difference(moment: Moment, layer: nn.Module, result: Any) -> str:
    """Say how the entry of a layer in the table differs from its `forward`, if it does."""
    kind, x = known_kind(layer), tensors_in((moment.args, moment.kwargs))[0]
    tensors = {slot.name: getattr(layer, slot.name) for slot in kind.slots_of(layer)}
    found = f"{moment.name} computes something else than run of the kind {kind.name!r}"
    try:
        computed = kind.run(layer, x, tensors)
    except Exception as error:
        return f"{found}, which fails ({first_line(error)})"
    return "" if close(tensors_in(result), [computed], 1e-4) else found


def _after_training(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Return the outputs in evaluation mode after passes in training mode.

    Buffers are put back: layers keep those apart for each task, and others must not change.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    for _ in range(_NUM_PASSES):
        outputs_of(model, inputs)
    model.eval()
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return outputs_of(model, inputs)


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    # On the CPU nothing but forward itself can make a difference.
    on_cpu = all(tensor.device.type == "cpu" for tensor in one)
    return close(one, other, 0.0 if on_cpu else 1e-4)
