"""Trace a forward pass: every operation and every layer call of it goes through an observer.

`Recorder` is the observer that follows the neurons through a pass of the full-width model.
"""

import itertools
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clnp.errors import Problem

from .axis import Axis, Segment, has_input
from .declared import ROOT, held_tensors
from .inputs import Inputs, imitate, tensors_in
from .kinds import known_kind
from .rules import (
    FORM_ONLY,
    METADATA,
    SIZES,
    Call,
    Groups,
    Mark,
    Neurons,
    Operand,
    Refusal,
    State,
    interpret,
    operation_name,
    spell,
)

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")


@dataclass(frozen=True)
class Moment:
    """One operation that is about to run, or one call of `layer`: its name, module and code."""

    name: str
    path: str
    source: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    layer: nn.Module | None = None

    @property
    def is_layer(self) -> bool:
        """Whether it is a call of a layer."""
        return self.layer is not None

    def run(self) -> Any:
        """Run it, and return its result."""
        return self.func(*self.args, **self.kwargs)

    def problem(self, found: str, remedy: str) -> Problem:
        """Return a problem that is found here."""
        is_named = self.is_layer or f"'{self.name}'" in found
        seen = ", ".join(filter(None, ["" if is_named else self.name, self.source]))
        return Problem(self.path or ROOT, f"{found} ({seen})" if seen else found, remedy)


Observer = Callable[[Moment], Any]
"""Sees a moment, runs it, and returns a result for the model to continue with."""


class _Observation(TorchFunctionMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.stack = [""]
        self.in_layer = False
        self.num_operations = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.in_layer:
            return func(*args, **kwargs)
        name = operation_name(func)
        weight = args[0] if args and isinstance(args[0], nn.Parameter) else None
        if name in METADATA and (weight is None or name not in SIZES):
            return func(*args, **kwargs)
        # Widths change how many random numbers are drawn; the path that a forward pass takes by
        # them must not change. So every operation starts from its own seed.
        self.num_operations += 1
        torch.default_generator.manual_seed(self.num_operations)
        return self.observer(Moment(name, self.stack[-1], _source(), func, args, kwargs))

    def wrap(self, path: str, module: nn.Module, *, is_layer: bool) -> Callable[..., Any]:
        forward = module.forward

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.in_layer:
                return forward(*args, **kwargs)
            self.stack.append(path)
            self.in_layer = is_layer
            try:
                if not is_layer:
                    return forward(*args, **kwargs)
                name = type(module).__name__
                return self.observer(Moment(name, path, "", forward, args, kwargs, module))
            finally:
                self.in_layer = False
                self.stack.pop()

        return wrapped


def observe(
    model: nn.Module,
    inputs: Inputs,
    *,
    observer: Observer,
    opaque: Collection[str],
    with_grad: bool = False,
) -> Any:
    """Return the model's outputs; layers at the paths `opaque` are observed from outside only.

    `forward` itself is wrapped, since a direct call of it would bypass hooks.
    """
    observation = _Observation(observer)
    wrapped = []
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = module.__dict__.get("forward")
        wrapped.append((module, own))
        module.__dict__["forward"] = observation.wrap(path, module, is_layer=path in opaque)
    args, kwargs = inputs
    try:
        with torch.set_grad_enabled(with_grad), observation:
            return model(*args, **kwargs)
    finally:
        for module, own in wrapped:
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def in_checkpoint() -> bool:
    """Whether torch.utils.checkpoint called the code that now runs in the observed pass."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not observe.__code__:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def failure_of(error: Exception) -> str:
    """Say which error it is, and in which line of the model's code."""
    first = (str(error).splitlines() or ["no message"])[0]
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH, "<", str(Path(__file__).parents[2])))
    ]
    at = f" ({frames[-1]})" if frames else ""
    return f"{type(error).__name__}: {first}{at}"


def _source() -> str:
    """Return file and line of the model's running code, or nothing inside PyTorch's modules."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name == __file__:
            return ""
        if not name.startswith((_TORCH, "<")):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@dataclass(frozen=True)
class Event:
    """One recorded moment: its result with meta tensors, and where its neurons lie."""

    name: str
    path: str
    result: Any
    state: State
    device: torch.device | None
    is_layer: bool

    def recurs(self, moment: Moment) -> bool:
        """Whether the same happens again; a layer may have become one of a plainer class."""
        return self.path == moment.path and (self.is_layer or self.name == moment.name)


@dataclass
class Recorder:
    """Follows the neurons through one forward pass of the full-width model.

    `rows` and `columns` are the axes of every layer that was followed, in the order in which the
    layers ran; `borrowed` are the layers whose weights are used outside them. `groups` may be
    shared between passes: call `finish` after the last one.
    """

    layers: Collection[str]
    refused: Collection[str]
    classifier: str
    groups: Groups
    events: list[Event] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rows: dict[str, Axis] = field(default_factory=dict)
    columns: dict[str, Axis] = field(default_factory=dict)
    num_calls: Counter[str] = field(default_factory=Counter)
    borrowed: set[str] = field(default_factory=set)
    _states: dict[int, tuple[Tensor, State]] = field(default_factory=dict)
    _owners: dict[int, str] = field(default_factory=dict)
    _inputs: list[tuple[Tensor, int]] = field(default_factory=list)

    def begin(self, model: nn.Module, inputs: Any) -> None:
        """Note the tensors that exist before the pass: inputs, buffers, weights, constants."""
        self._inputs = [(tensor, tensor._version) for tensor in tensors_in(inputs)]
        for tensor, _ in self._inputs:
            self._mark(tensor, Mark.INPUT)
        held = (tensors for m in model.modules() for tensors in held_tensors(m).values())
        for tensor in itertools.chain(*held, model.buffers()):
            self._mark(tensor, Mark.CONSTANT)
        for path, module in model.named_modules():
            for parameter in module.parameters(recurse=False):
                if path in self.layers:
                    self._owners[id(parameter)] = path
                else:
                    self._mark(parameter, Mark.UNKNOWN)

    def see(self, moment: Moment) -> Any:
        """Run the moment, note where the neurons of its result lie, and return it."""
        operands = tuple(
            Operand(tensor, tuple(tensor.shape), self.state(tensor))
            for tensor in tensors_in((moment.args, moment.kwargs))
        )
        result = moment.run()
        try:
            if moment.layer is not None:
                state = self._after_layer(moment, moment.layer, operands[0])
            else:
                state = self._after_operation(moment, operands, result)
        except Refusal as refusal:
            self.problems.append(moment.problem(refusal.found, refusal.remedy))
            state = Mark.UNKNOWN
        made = tensors_in(result)
        for tensor in [*made, moment.args[0]] if moment.name == "setitem" else made:
            self._mark(tensor, state)
        self._check_inputs(moment)
        shapes = imitate(result, lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"))
        device = made[0].device if made else None
        event = Event(moment.name, moment.path, shapes, state, device, moment.is_layer)
        self.events.append(event)
        return result

    def state(self, tensor: Tensor) -> State:
        """Return where the neurons of a tensor lie, or why it has none."""
        return self._states.get(id(tensor), (tensor, Mark.UNSEEN))[1]

    def finish(self) -> None:
        """Give all axes the final names of their groups, and forget the tensors of the pass."""
        self._states.clear()
        self._inputs.clear()
        resolve = self.groups.resolve
        self.rows = {path: resolve(axis) for path, axis in self.rows.items()}
        self.columns = {path: resolve(axis) for path, axis in self.columns.items()}
        for index, event in enumerate(self.events):
            if isinstance(event.state, Neurons):
                state = replace(event.state, axis=resolve(event.state.axis))
                self.events[index] = replace(event, state=state)

    def _mark(self, tensor: Tensor, state: State) -> None:
        # The tensor is kept alive with its state, because Python reuses the ids of dead objects.
        self._states[id(tensor)] = (tensor, state)

    def _check_inputs(self, moment: Moment) -> None:
        for index, (tensor, version) in enumerate(self._inputs):
            if tensor._version != version:
                self._inputs[index] = (tensor, tensor._version)
                self.problems.append(
                    moment.problem(
                        f"'{moment.name}' writes into the network's input, which forward reads "
                        "twice in a training step",
                        "Make a new tensor: write x = x * 0.1 instead of x *= 0.1 or x.mul_(0.1), "
                        "and inplace=False",
                    )
                )

    def _after_operation(self, moment: Moment, operands: tuple[Operand, ...], result: Any) -> State:
        tensors = operands[:1] if moment.name in FORM_ONLY else operands
        owners = [self._owners.get(id(tensor)) for tensor, _, _ in tensors]
        borrowed = list(filter(None, owners))
        if borrowed:
            self.borrowed.update(borrowed)
            raise Refusal(
                f"'{moment.name}' uses weights outside their module, {borrowed[0]!r}",
                "Call the module itself, once, since weights are sliced only where a layer runs",
            )
        name, func, args, kwargs = moment.name, moment.func, moment.args, moment.kwargs
        return interpret(Call(name, func, args, kwargs, result, operands, self.groups))

    def _after_layer(self, moment: Moment, layer: nn.Module, operand: Operand) -> State:
        path, name = moment.path, moment.name
        self.num_calls[path] += 1
        if path in self.refused:
            return Mark.UNKNOWN
        _, shape, incoming = operand
        if incoming is Mark.UNSEEN:
            raise Refusal(
                f"{name} reads a tensor of unknown origin",
                "Compute it with PyTorch operations in forward, or register a constant as a buffer",
            )
        if incoming is Mark.OUTPUTS:
            raise Refusal(
                f"{name} lies behind the classifier {self.classifier!r}",
                "Name the last layer with weights as classifier=, or remove what follows it",
            )
        kind = known_kind(layer)
        dim = kind.neuron_dim % len(shape)
        if isinstance(incoming, Neurons) and incoming.dim != dim:
            raise Refusal(
                f"{name} reads neurons along dimension {incoming.dim} of {shape}, where it "
                f"expects them along dimension {dim}",
                "Bring the neurons to that dimension first, with permute or flatten",
            )
        if incoming is not Mark.UNKNOWN:
            fixed = (Segment(None, shape[dim]),)
            columns = incoming.axis if isinstance(incoming, Neurons) else fixed
            if not kind.mixes and has_input(columns):
                raise Refusal(
                    f"{name} acts on the network's input ({spell(columns)}), on neurons that no "
                    "layer makes",
                    "Let a Linear layer or a convolution come first, or normalise the data instead",
                )
            self.columns[path] = columns
        if not kind.mixes:
            if path in self.columns:
                self.rows[path] = self.columns[path]
            return incoming
        if path == self.classifier:
            self.rows[path] = ()
            return Mark.OUTPUTS
        self.groups.add(path)
        self.rows[path] = (Segment(path, len(layer.weight)),)  # type: ignore[arg-type]
        return Neurons(dim, self.rows[path])
