"""The same model with fewer neurons: what was found out about a model, put to the test.

`Replay` runs the narrow model along what the full one did and finds widths that are built into
the code. `agrees` compares what both compute.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clnp.errors import Problem, first_line

from .axis import Axis, num_entries, positions
from .declared import ROOT
from .inputs import Inputs, imitate, seed, tensors_in
from .kinds import known_kind, plain_layer
from .layouts import Mark, Neurons
from .observe import Moment
from .surgery import with_layers
from .trace import Event

_OTHER_PATH = "the forward pass takes another path with fewer neurons"
_STAY = "Let the path depend on the input alone, not on the number of neurons"


@dataclass(frozen=True)
class Plan:
    """Which neurons a narrow model keeps, the first `kept[g]` of `full[g]`, and where they lie.

    `rows` and `columns` are the axes of the layers that get narrower.
    """

    full: Mapping[str, int]
    kept: Mapping[str, int]
    rows: Mapping[str, Axis]
    columns: Mapping[str, Axis]

    @property
    def paths(self) -> list[str]:
        """The layers that get narrower: those of which both axes are known."""
        return [path for path in self.rows if path in self.columns]

    def entries(self, axis: Axis) -> torch.Tensor:
        """Where the kept neurons lie along the full axis."""
        view = {group: range(num) for group, num in self.kept.items()}
        return torch.from_numpy(positions(axis, self.full, view))

    def dropped(self, axis: Axis) -> torch.Tensor:
        """Where the other neurons lie along the full axis."""
        gone = torch.ones(num_entries(axis, self.full), dtype=torch.bool, device="cpu")
        gone[self.entries(axis)] = False
        return gone.nonzero()[:, 0]


def halved(groups: Mapping[str, int]) -> dict[str, int]:
    """Half of the neurons of each group, at least one."""
    return {group: max(1, num // 2) for group, num in groups.items()}


def single(groups: Mapping[str, int]) -> dict[str, int]:
    """One neuron of each group."""
    return dict.fromkeys(groups, 1)


def narrow(model: nn.Module, plan: Plan, *, own_sizes: bool = False) -> nn.Module:
    """A copy of the model that has the kept neurons only, with their weights.

    Its layers still give the full sizes as `in_features` and the like, as the layers of a network
    do whatever a task has of them; with `own_sizes` their own, as those of a subnetwork do.
    """
    layers = {}
    for path in plan.paths:
        layer = model.get_submodule(path)
        made, read = plan.entries(plan.rows[path]), plan.entries(plan.columns[path])
        kind = known_kind(layer)
        if kind.mixes and not plan.rows[path]:
            made = torch.arange(len(layer.weight), device="cpu")  # type: ignore[arg-type]
        smaller = plain_layer(layer, num_outputs=len(made), num_inputs=len(read))
        for slot in kind.slots_of(layer):
            source: torch.Tensor = getattr(layer, slot.name)
            part = source[made.to(source.device)]
            if slot.has_columns:
                part = part[:, read.to(source.device)]
            getattr(smaller, slot.name).data.copy_(part)
        if kind.keeps_statistics and layer.num_batches_tracked is not None:
            smaller.num_batches_tracked.copy_(layer.num_batches_tracked)  # type: ignore[operator,arg-type]
        # Forward may ask a layer for its class and for attributes that a user gave it.
        smaller.__class__ = type(layer)
        own = {k for k in vars(smaller) if own_sizes or k not in kind.sizes}
        smaller.__dict__.update({k: v for k, v in vars(layer).items() if k not in own})
        layers[path] = smaller
    return with_layers(model, layers)


def _spell(what: Event | Moment, *, beside: Event | Moment | None = None) -> str:
    """The layer with its path, the operation with its module if the one beside it has another."""
    if what.is_layer:
        return f"{what.name} {what.path or ROOT!r}"
    elsewhere = beside is not None and beside.path != what.path
    return f"'{what.name}' in {what.path or ROOT!r}" if elsewhere else f"'{what.name}'"


@dataclass
class Replay:
    """Runs the narrow model along the events of the full one, and notes where shapes differ.

    What comes out wrong is replaced by zeros of the right shape, so that every place is found.
    Layers outside `followed` kept their width, because of a problem that is already reported.
    """

    events: list[Event]
    kept: Mapping[str, int]
    followed: Collection[str]
    problems: list[Problem] = field(default_factory=list)
    _number: int = 0
    _lost: bool = False

    def on_operation(self, moment: Moment) -> Any:
        """The result of the operation, in the shape that was expected."""
        return self._replay(moment, known=True)

    def on_layer(self, moment: Moment, layer: nn.Module) -> Any:
        """The result of the layer, in the shape that was expected."""
        return self._replay(moment, known=moment.path in self.followed)

    def _replay(self, moment: Moment, *, known: bool) -> Any:
        if self._lost:
            return moment.run()
        event = self.events[self._number] if self._number < len(self.events) else None
        self._number += 1
        if event is None or not event.recurs(moment):
            self._lost = True
            then = "nothing" if event is None else _spell(event, beside=moment)
            now = _spell(moment, beside=event)
            self.problems.append(
                moment.problem(f"{_OTHER_PATH}: {now} runs where {then} ran", _STAY)
            )
            return moment.run()
        if event.state is Mark.UNKNOWN or not known:
            return self._expected(event)
        try:
            result = moment.run()
        except Exception as error:
            first = first_line(error)
            self._refuse(moment, f"fails ({first})")
            return self._expected(event)
        if isinstance(event.state, Neurons):
            wanted = [tuple(tensor.shape) for tensor in tensors_in(self._expected(event))]
            got = [tuple(tensor.shape) for tensor in tensors_in(result)]
            if wanted != got:
                self._refuse(moment, f"gives the shape {got[0]} instead of {wanted[0]}")
                return self._expected(event)
        return result

    def finish(self) -> None:
        """Note what the full model did after the narrow one was at its end."""
        if not self._lost and self._number < len(self.events):
            event = self.events[self._number]
            found = f"{_OTHER_PATH}: it ends where {_spell(event)} ran"
            self.problems.append(Problem(event.path or ROOT, found, _STAY))

    def _refuse(self, moment: Moment, outcome: str) -> None:
        self.problems.append(
            moment.problem(
                f"'{moment.name}' has a number of neurons built in: with fewer it {outcome}",
                "Take sizes from the tensor, as flatten(1) and x.shape[1] do, not from numbers or "
                "from layers (in_features)",
            )
        )

    def _expected(self, event: Event) -> Any:
        def zeros(like: torch.Tensor) -> torch.Tensor:
            shape = list(like.shape)
            if isinstance(event.state, Neurons):
                shape[event.state.dim] = num_entries(event.state.axis, self.kept)
            return torch.zeros(shape, dtype=like.dtype, device=event.device)

        return imitate(event.result, zeros)


def agrees(model: nn.Module, inputs: Inputs, *, plan: Plan) -> bool:
    """Whether the narrow model computes what the full one does that reads no dropped neuron.

    The dropped neurons are given large values: if anything but a weight lets them through, it
    shows. Both models run in evaluation mode, in double precision where they can; forward must not
    draw random numbers there.
    """
    for dtype, tolerance in ((torch.float64, 1e-6), (None, 1e-2)):
        full = copy.deepcopy(model)
        full.eval()
        given = inputs
        if dtype is not None:
            full = full.to(dtype)
            given = imitate(inputs, lambda t: t.to(torch.float64) if t.is_floating_point() else t)
        fill(full, plan)
        small = narrow(full, plan, own_sizes=True)
        try:
            outputs, narrowed = outputs_of(full, given), outputs_of(small, given)
        except Exception:
            continue  # something in forward insists on its own precision
        return close(outputs, narrowed, tolerance)
    return False


def fill(model: nn.Module, plan: Plan) -> None:
    """Random weights throughout, large ones into dropped neurons and none out of them."""
    seed(model, 0)
    for path in plan.paths:
        layer = model.get_submodule(path)
        gone = plan.dropped(plan.rows[path])
        unread = plan.dropped(plan.columns[path])
        for slot in known_kind(layer).slots_of(layer):
            tensor: torch.Tensor = getattr(layer, slot.name)
            spread = slot.spread or (6 / tensor[0].numel()) ** 0.5
            with torch.no_grad():
                tensor.uniform_(slot.middle - spread, slot.middle + spread)
                tensor[gone.to(tensor.device)] *= 10
                if slot.has_columns:
                    tensor.index_fill_(1, unread.to(tensor.device), 0)


def outputs_of(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """The tensors that the model returns, in double precision."""
    args, kwargs = imitate(inputs, torch.clone)
    with torch.no_grad():
        return [tensor.double() for tensor in tensors_in(model(*args, **kwargs))]


def close(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float) -> bool:
    """Whether the tensors are the same, up to a tolerance relative to the largest value."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return False
        scale = float(a.nan_to_num(0, 0, 0).abs().max()) if a.numel() else 0.0
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            return False
    return True
