"""Trace a forward pass: every operation and every layer call of it goes through an observer.

`Recorder` is the observer that follows the neurons through a pass of the full-width model.
"""

import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
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

    def run(self) -> Any:
        """Run it, and return its result."""
        return self.func(*self.args, **self.kwargs)

    def problem(self, found: str, remedy: str) -> Problem:
        """Return a problem that is found here."""
        named = [self.name] if f"'{self.name}'" not in found and self.layer is None else []
        seen = ", ".join([*named, *([self.source] if self.source else [])])
        return Problem(self.path or ROOT, f"{found} ({seen})" if seen else found, remedy)


Observer = Callable[[Moment], Any]
"""Sees a moment, runs it, and returns a result for the model to go on with."""


class _Observation(TorchFunctionMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self.observer = observer
        self.stack: list[str] = []
        self.inside = 0
        self.num_operations = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        name = operation_name(func)
        weight = args[0] if args and isinstance(args[0], nn.Parameter) else None
        if name in METADATA and (weight is None or name not in SIZES):
            return func(*args, **kwargs)
        # Widths change how many random numbers are drawn; the path that a forward pass takes by
        # them must not change. So every operation starts from its own seed.
        self.num_operations += 1
        torch.default_generator.manual_seed(self.num_operations)
        path = self.stack[-1] if self.stack else ""
        return self.observer(Moment(name, path, _source(), func, args, kwargs))

    def wrap(self, path: str, module: nn.Module, *, opaque: bool) -> Callable[..., Any]:
        forward = module.forward

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.stack.append(path)
            sealed = opaque or self.inside > 0
            self.inside += sealed
            try:
                if self.inside != 1:
                    return forward(*args, **kwargs)
                name = type(module).__name__
                return self.observer(Moment(name, path, "", forward, args, kwargs, module))
            finally:
                self.inside -= sealed
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
        module.__dict__["forward"] = observation.wrap(path, module, opaque=path in opaque)
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
    shared between passes.
    """

    layers: Collection[str]
    refused: Collection[str]
    classifier: str
    groups: Groups
    events: list[Event] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rows: dict[str, Axis] = field(default_factory=dict)
    columns: dict[str, Axis] = field(default_factory=dict)
    num_calls: dict[str, int] = field(default_factory=dict)
    borrowed: set[str] = field(default_factory=set)
    _states: dict[int, tuple[Tensor, State]] = field(default_factory=dict)
    _owners: dict[int, str] = field(default_factory=dict)
    _inputs: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def begin(self, model: nn.Module, inputs: Any) -> None:
        """Note the tensors that exist before the pass: inputs, buffers, weights, constants."""
        for tensor in tensors_in(inputs):
            self._mark(tensor, Mark.INPUT)
            self._inputs[id(tensor)] = (tensor, tensor._version)
        for module in model.modules():
            for tensors in held_tensors(module).values():
                for tensor in tensors:
                    self._mark(tensor, Mark.CONSTANT)
        for path, module in model.named_modules():
            for buffer in module.buffers(recurse=False):
                self._mark(buffer, Mark.CONSTANT)
            for parameter in module.parameters(recurse=False):
                self._mark(parameter, Mark.UNKNOWN)
                if path in self.layers:
                    self._owners[id(parameter)] = path

    def see(self, moment: Moment) -> Any:
        """Run the moment, note where the neurons of its result lie, and return it."""
        before = tuple(
            (tensor, tuple(tensor.shape), self.state(tensor))
            for tensor in tensors_in((moment.args, moment.kwargs))
        )
        result = moment.run()
        try:
            if moment.layer is not None:
                state = self._after_layer(moment, moment.layer, before)
            else:
                state = self._after_operation(moment, before, result)
        except Refusal as refusal:
            self.problems.append(moment.problem(refusal.found, refusal.remedy))
            state = Mark.UNKNOWN
        for tensor in tensors_in(result):
            self._mark(tensor, state)
        if moment.name == "setitem":
            self._mark(moment.args[0], state)
        self._check_inputs(moment)
        device = next((tensor.device for tensor in tensors_in(result)), None)
        shapes = imitate(result, lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"))
        is_layer = moment.layer is not None
        self.events.append(Event(moment.name, moment.path, shapes, state, device, is_layer))
        return result

    def state(self, tensor: Tensor) -> State:
        """Return where the neurons of a tensor lie, or why it has none."""
        return self._states.get(id(tensor), (tensor, Mark.UNSEEN))[1]

    def forget(self) -> None:
        """Forget the tensors of the pass, which may be large."""
        self._states.clear()
        self._inputs.clear()

    def _mark(self, tensor: Tensor, state: State) -> None:
        # The tensor is kept alive with its state, because Python reuses the ids of dead objects.
        self._states[id(tensor)] = (tensor, state)

    def _check_inputs(self, moment: Moment) -> None:
        for tensor, version in list(self._inputs.values()):
            if tensor._version != version:
                self._inputs[id(tensor)] = (tensor, tensor._version)
                self.problems.append(
                    moment.problem(
                        f"'{moment.name}' writes into the network's input, which forward reads "
                        "twice in a training step",
                        "Make a new tensor: write x = x * 0.1 instead of x *= 0.1 or x.mul_(0.1), "
                        "and inplace=False",
                    )
                )

    def _after_operation(
        self, moment: Moment, before: tuple[tuple[Tensor, tuple[int, ...], State], ...], result: Any
    ) -> State:
        owners = [self._owners[id(tensor)] for tensor, _, _ in before if id(tensor) in self._owners]
        if owners and moment.name not in FORM_ONLY:
            self.borrowed.update(owners)
            raise Refusal(
                f"'{moment.name}' uses weights outside their module, {owners[0]!r}",
                "Call the module itself, once, since weights are sliced only where a layer runs",
            )
        return interpret(
            Call(moment.name, moment.func, moment.args, moment.kwargs, result, before, self.groups)
        )

    def _after_layer(
        self,
        moment: Moment,
        layer: nn.Module,
        before: tuple[tuple[Tensor, tuple[int, ...], State], ...],
    ) -> State:
        path, name = moment.path, moment.name
        self.num_calls[path] = self.num_calls.get(path, 0) + 1
        if path in self.refused:
            return Mark.UNKNOWN
        _, shape, incoming = before[0]
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
        if kind.num_spatial_dims(layer) not in (None, len(shape) - 2):
            raise Refusal(
                f"{name} is called without a batch dimension, on shape {shape}",
                "Give inputs with a batch dimension",
            )
        dim = kind.neuron_dim if kind.neuron_dim > 0 else len(shape) + kind.neuron_dim
        columns = None
        if isinstance(incoming, Neurons):
            if incoming.dim != dim:
                raise Refusal(
                    f"{name} reads neurons along dimension {incoming.dim} of {shape}, where it "
                    f"expects them along dimension {dim}",
                    "Bring the neurons to that dimension first, with permute or flatten",
                )
            columns = incoming.axis
        elif incoming is not Mark.UNKNOWN:
            columns = (Segment(None, shape[dim]),)
        if not kind.mixes:
            if columns is not None:
                if has_input(columns):
                    raise Refusal(
                        f"{name} acts on the network's input ({spell(columns)}), on neurons that "
                        "no layer makes",
                        "Let a Linear layer or a convolution come first, or normalise the data "
                        "instead",
                    )
                self.rows[path] = self.columns[path] = columns
            return incoming
        if columns is not None:
            self.columns[path] = columns
        if path == self.classifier:
            self.rows[path] = ()
            return Mark.OUTPUTS
        self.groups.add(path)
        self.rows[path] = (Segment(path, len(layer.weight)),)  # type: ignore[arg-type]
        return Neurons(dim, self.rows[path])
