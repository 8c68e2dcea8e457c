"""Where the neurons lie, followed through one forward pass of the full-width model."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clnp.errors import Problem

from .axis import Axis, Segment, has_input
from .declared import held_tensors
from .inputs import imitate, tensors_in
from .kinds import known_kind
from .layouts import Groups, Mark, Neurons, Refusal, State, spell
from .observe import Moment
from .rules import FORM_ONLY, Call, interpret


@dataclass(frozen=True)
class Event:
    """What happened at one moment: its result with meta tensors, and where its neurons lie."""

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

    `rows` and `columns` hold the axes of every layer that was followed, in the order in which the
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
    _states: dict[int, tuple[torch.Tensor, State]] = field(default_factory=dict)
    _owners: dict[int, str] = field(default_factory=dict)
    _inputs: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)

    def begin(self, model: nn.Module, inputs: Any) -> None:
        """Learn which tensors there are before the pass: input, buffers, weights, constants."""
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
            for _, parameter in module.named_parameters(recurse=False):
                self._mark(parameter, Mark.UNKNOWN)
                if path in self.layers:
                    self._owners[id(parameter)] = path

    def on_operation(self, moment: Moment) -> Any:
        """The result of the operation; the neurons of what it returns are noted."""
        before = tuple(
            (tensor, tuple(tensor.shape), self.state(tensor))
            for tensor in tensors_in((moment.args, moment.kwargs))
        )
        result = moment.run()
        state: State
        try:
            self._check_weights(moment, before)
            call = Call(
                moment.name, moment.func, moment.args, moment.kwargs, result, before, self.groups
            )
            state = interpret(call)
        except Refusal as refusal:
            self.problems.append(moment.problem(refusal.found, refusal.remedy))
            state = Mark.UNKNOWN
        self._note(moment, result, state=state)
        return result

    def on_layer(self, moment: Moment, layer: nn.Module) -> Any:
        """The result of the layer; the axes of its rows and columns are noted."""
        path = moment.path
        self.num_calls[path] = self.num_calls.get(path, 0) + 1
        given = tensors_in((moment.args, moment.kwargs))
        states = [(tuple(tensor.shape), self.state(tensor)) for tensor in given]
        result = moment.run()
        state: State = Mark.UNKNOWN
        if path not in self.refused:
            try:
                shape, incoming = states[0]
                state = self._layer_state(path, layer, shape=shape, incoming=incoming)
            except Refusal as refusal:
                self.problems.append(moment.problem(refusal.found, refusal.remedy))
        self._note(moment, result, state=state)
        return result

    def state(self, tensor: torch.Tensor) -> State:
        """Where the neurons of a tensor lie, or why it has none."""
        return self._states.get(id(tensor), (tensor, Mark.UNSEEN))[1]

    def forget(self) -> None:
        """Forget the tensors of the pass, which may be large."""
        self._states.clear()
        self._inputs.clear()

    def _mark(self, tensor: torch.Tensor, state: State) -> None:
        # The tensor is kept alive with its state: Python reuses the ids of the dead.
        self._states[id(tensor)] = (tensor, state)

    def _note(self, moment: Moment, result: Any, *, state: State) -> None:
        for tensor in tensors_in(result):
            self._mark(tensor, state)
        if moment.name == "setitem":
            self._mark(moment.args[0], state)
        self._check_inputs(moment)
        device = next((tensor.device for tensor in tensors_in(result)), None)
        template = imitate(result, _to_meta)
        self.events.append(
            Event(moment.name, moment.path, template, state, device, is_layer=moment.is_layer)
        )

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

    def _check_weights(self, moment: Moment, before: tuple[Any, ...]) -> None:
        owners = [self._owners[id(tensor)] for tensor, _, _ in before if id(tensor) in self._owners]
        if owners and moment.name not in FORM_ONLY:
            self.borrowed.update(owners)
            raise Refusal(
                f"'{moment.name}' uses weights outside their module, {owners[0]!r}",
                "Call the module itself, once; weights that are read elsewhere would not be sliced",
            )

    def _layer_state(
        self, path: str, layer: nn.Module, *, shape: tuple[int, ...], incoming: State
    ) -> State:
        kind = type(layer).__name__
        if incoming is Mark.UNSEEN:
            raise Refusal(
                f"{kind} reads a tensor of unknown origin",
                "Compute it with PyTorch operations in forward, from the input; a constant belongs "
                "into a buffer",
            )
        if incoming is Mark.OUTPUTS:
            raise Refusal(
                f"{kind} lies behind the classifier {self.classifier!r}",
                "Name the last layer with weights as classifier=, or remove what follows it",
            )
        expected = _neuron_dim(layer, shape)
        columns = None
        if isinstance(incoming, Neurons):
            if incoming.dim != expected:
                raise Refusal(
                    f"{kind} reads neurons along dimension {incoming.dim} of {shape}, where it "
                    f"expects them along dimension {expected}",
                    "Bring the neurons to that dimension first, with permute or flatten",
                )
            columns = incoming.axis
        elif incoming is not Mark.UNKNOWN:
            columns = (Segment(None, shape[expected]),)
        if not known_kind(layer).mixes:
            if columns is not None:
                if has_input(columns):
                    raise Refusal(
                        f"{kind} acts on the network's input ({spell(columns)}), on neurons that "
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
        return Neurons(expected, self.rows[path])


def _neuron_dim(layer: nn.Module, shape: tuple[int, ...]) -> int:
    """The dimension in which a layer expects its neurons."""
    kind = known_kind(layer)
    if kind.num_spatial_dims(layer) not in (None, len(shape) - 2):
        raise Refusal(
            f"{type(layer).__name__} is called without a batch dimension, on shape {shape}",
            "Give inputs with a batch dimension",
        )
    return kind.neuron_dim if kind.neuron_dim > 0 else len(shape) + kind.neuron_dim


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
