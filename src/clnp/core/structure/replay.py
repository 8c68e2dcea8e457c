"""Test the result of discovery: run the same model with fewer neurons.

`Replay` runs the narrow model along the events of the full one and finds widths that are built
into the code. `agrees` compares the outputs of both.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clnp.errors import Problem, first_line

from .axis import Axis, num_entries, positions
from .declared import ROOT
from .inputs import Inputs, copied, imitate, seed_all, tensors_in
from .kinds import known_kind, plain_layer
from .rules import Mark, Neurons
from .surgery import with_layers
from .trace import Event, Moment

_OTHER_PATH = "the forward pass takes another path with fewer neurons"
_STAY = "Let the path depend on the input alone, not on the number of neurons"


@dataclass(frozen=True)
class Narrowing:
    """The neurons that a narrow model keeps, the first `kept[g]` of `full[g]`, and their axes.

    `rows` and `columns` are the axes of the layers that get narrower.
    """

    full: Mapping[str, int]
    kept: Mapping[str, int]
    rows: Mapping[str, Axis]
    columns: Mapping[str, Axis]

    @property
    def paths(self) -> list[str]:
        """List the layers that get narrower: those of which both axes are known."""
        return [path for path in self.rows if path in self.columns]

    def entries(self, axis: Axis) -> Tensor:
        """Return where the kept neurons lie along the full axis."""
        view = {group: range(num) for group, num in self.kept.items()}
        return torch.from_numpy(positions(axis, self.full, view))

    def dropped(self, axis: Axis) -> Tensor:
        """Return where the other neurons lie along the full axis."""
        gone = torch.ones(num_entries(axis, self.full), dtype=torch.bool, device="cpu")
        gone[self.entries(axis)] = False
        return gone.nonzero()[:, 0]


def narrow(model: nn.Module, narrowing: Narrowing, *, own_sizes: bool = False) -> nn.Module:
    """Return a copy of the model that has the kept neurons only, with their weights.

    Its layers are those of `narrow_layers`.
    """
    layers = narrow_layers(model, narrowing, own_sizes=own_sizes)
    for path, smaller in layers.items():
        layer = model.get_submodule(path)
        made, read = _entries(layer, narrowing, path)
        kind = known_kind(layer)
        for slot in kind.slots_of(layer):
            source: Tensor = getattr(layer, slot.name)
            part = source[made.to(source.device)]
            if slot.has_columns:
                part = part[:, read.to(source.device)]
            getattr(smaller, slot.name).data.copy_(part)
        if kind.keeps_statistics and layer.num_batches_tracked is not None:
            smaller.num_batches_tracked.copy_(layer.num_batches_tracked)  # type: ignore[operator,arg-type]
    return with_layers(model, layers)


def narrow_layers(
    model: nn.Module, narrowing: Narrowing, *, own_sizes: bool = False
) -> dict[str, nn.Module]:
    """Return uninitialised layers that have the kept neurons only, by path.

    They have the full sizes in `in_features` and the like, as the layers of a network always do;
    with `own_sizes` they have their own, as those of a subnetwork.
    """
    layers = {}
    for path in narrowing.paths:
        layer = model.get_submodule(path)
        made, read = _entries(layer, narrowing, path)
        smaller = plain_layer(layer, num_outputs=len(made), num_inputs=len(read))
        # Forward may ask a layer for its class and for attributes that a user set.
        smaller.__class__ = type(layer)
        its_own = set(vars(smaller)) - set(() if own_sizes else known_kind(layer).sizes)
        users = {name: value for name, value in vars(layer).items() if name not in its_own}
        vars(smaller).update(users)
        layers[path] = smaller
    return layers


def _entries(layer: nn.Module, narrowing: Narrowing, path: str) -> tuple[Tensor, Tensor]:
    """Return which rows and columns of a layer are kept: all rows of the classifier."""
    rows, columns = narrowing.rows[path], narrowing.columns[path]
    if known_kind(layer).mixes and not rows:
        made = torch.arange(len(layer.weight), device="cpu")  # type: ignore[arg-type]
    else:
        made = narrowing.entries(rows)
    return made, narrowing.entries(columns)


@dataclass
class Replay:
    """Runs the narrow model along the events of the full one, and notes where shapes differ.

    Wrong results are replaced by zeros of the right shape, so that every place is found.
    Layers outside `followed` kept their width, because of a problem that is already reported.
    """

    events: list[Event]
    kept: Mapping[str, int]
    followed: Collection[str]
    problems: list[Problem] = field(default_factory=list)
    _number: int = 0
    _lost: bool = False

    def see(self, moment: Moment) -> Any:
        """Run the moment, and return its result in the expected shape."""
        if self._lost:
            return moment.run()
        event = self.events[self._number] if self._number < len(self.events) else None
        self._number += 1
        if event is None or not event.recurs(moment):
            self._lost = True
            then = _spell(event, moment.path) if event else "nothing"
            now = _spell(moment, event.path if event else moment.path)
            found = f"{_OTHER_PATH}: {now} runs where {then} ran"
            self.problems.append(moment.problem(found, _STAY))
            return moment.run()
        is_known = not moment.is_layer or moment.path in self.followed
        if event.state is Mark.UNKNOWN or not is_known:
            return self._expected(event)
        try:
            result = moment.run()
        except Exception as error:
            return self._refuse(moment, event, f"fails ({first_line(error)})")
        if isinstance(event.state, Neurons):
            wanted = [tuple(tensor.shape) for tensor in tensors_in(self._expected(event))]
            got = [tuple(tensor.shape) for tensor in tensors_in(result)]
            if wanted != got:
                outcome = f"gives the shape {got[0]} instead of {wanted[0]}"
                return self._refuse(moment, event, outcome)
        return result

    def finish(self) -> None:
        """Note an end before that of the full model."""
        if not self._lost and self._number < len(self.events):
            event = self.events[self._number]
            found = f"{_OTHER_PATH}: it ends where {_spell(event, event.path)} ran"
            self.problems.append(Problem(event.path or ROOT, found, _STAY))

    def _refuse(self, moment: Moment, event: Event, outcome: str) -> Any:
        self.problems.append(
            moment.problem(
                f"'{moment.name}' has a number of neurons built in: with fewer it {outcome}",
                "Take sizes from the tensor, as flatten(1) and x.shape[1] do, not from numbers or "
                "from layers (in_features)",
            )
        )
        return self._expected(event)

    def _expected(self, event: Event) -> Any:
        def zeros(like: Tensor) -> Tensor:
            shape = list(like.shape)
            if isinstance(event.state, Neurons):
                shape[event.state.dim] = num_entries(event.state.axis, self.kept)
            return torch.zeros(shape, dtype=like.dtype, device=event.device)

        return imitate(event.result, zeros)


def _spell(step: Event | Moment, other_path: str) -> str:
    """Name a layer with its path, an operation with its module if the other one is elsewhere."""
    path = repr(step.path or ROOT)
    if step.is_layer:
        return f"{step.name} {path}"
    return f"'{step.name}' in {path}" if step.path != other_path else f"'{step.name}'"


def agrees(model: nn.Module, inputs: Inputs, *, narrowing: Narrowing) -> bool:
    """Whether the narrow model has the outputs of the full one that reads no dropped neuron.

    Dropped neurons have large values, which show if anything but a weight lets them through. Both
    models run in evaluation mode, in double precision where they can.
    """
    for dtype, tolerance in ((torch.float64, 1e-6), (None, 1e-2)):
        full = copy.deepcopy(model)
        full.eval()
        given = inputs
        if dtype is not None:
            full = full.to(dtype)
            given = imitate(inputs, lambda t: t.to(torch.float64) if t.is_floating_point() else t)
        fill(full, narrowing)
        small = narrow(full, narrowing, own_sizes=True)
        try:
            outputs, narrowed = outputs_of(full, given), outputs_of(small, given)
        except Exception:
            continue  # something in forward insists on its own precision
        return close(outputs, narrowed, tolerance)
    return False


def fill(model: nn.Module, narrowing: Narrowing) -> None:
    """Fill layers with random weights, large ones into dropped neurons and none out of them."""
    seed_all(model, 0)
    for path in narrowing.paths:
        layer = model.get_submodule(path)
        gone = narrowing.dropped(narrowing.rows[path])
        unread = narrowing.dropped(narrowing.columns[path])
        for slot in known_kind(layer).slots_of(layer):
            tensor: Tensor = getattr(layer, slot.name)
            spread = slot.spread or (6 / tensor[0].numel()) ** 0.5
            with torch.no_grad():
                tensor.uniform_(slot.middle - spread, slot.middle + spread)
                tensor[gone.to(tensor.device)] *= 10
                if slot.has_columns:
                    tensor.index_fill_(1, unread.to(tensor.device), 0)


def outputs_of(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Return the tensors among the model's outputs, in double precision."""
    args, kwargs = copied(inputs)
    with torch.no_grad():
        return in_double(model(*args, **kwargs))


def in_double(outputs: Any) -> list[Tensor]:
    """Return the tensors among a model's outputs, in double precision."""
    return [tensor.double() for tensor in tensors_in(outputs)]


def close(one: list[Tensor], other: list[Tensor], tolerance: float) -> bool:
    """Whether the tensors are the same, up to a tolerance relative to the largest value."""
    if [tensor.shape for tensor in one] != [tensor.shape for tensor in other]:
        return False
    for mine, theirs in zip(one, other, strict=True):
        largest = float(mine.nan_to_num(0, 0, 0).abs().max()) if mine.numel() else 0.0
        near = {"rtol": tolerance, "atol": tolerance * largest}
        if not torch.allclose(mine, theirs, **near, equal_nan=True):
            return False
    return True
