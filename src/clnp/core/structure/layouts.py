"""Where the neurons of a tensor lie, and how shapes and meetings of tensors move them.

While a model is observed, every tensor has a state: its `Neurons` (which dimension is the neuron
axis, and whose neurons lie along it), or a `Mark` that says why it has none. All sizes here are
those of the full-width model.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .axis import Axis, Segment


class Mark(enum.Enum):
    """Why a tensor carries no neurons."""

    INPUT = "a tensor computed from the network's input"
    CONSTANT = "a constant tensor"
    UNSEEN = "a tensor of unknown origin"
    OUTPUTS = "outputs of the classifier"
    UNKNOWN = "behind a problem that was reported"


@dataclass(frozen=True)
class Neurons:
    """Neurons along dimension `dim`, arranged as `axis`."""

    dim: int
    axis: Axis


State = Neurons | Mark


class Refusal(Exception):
    """An operation cannot be sliced by neuron: what was found, and what to do about it."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.found = found
        self.remedy = remedy


class Groups:
    """Which mixing layers make the same neurons; the first one that ran gives the name."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}

    def add(self, path: str) -> None:
        """The layer at `path` makes neurons: its own, until they meet others."""
        self._leader.setdefault(path, path)

    def find(self, path: str) -> str:
        """The name of the group that the layer at `path` makes."""
        while self._leader[path] != path:
            path = self._leader[path]
        return path

    def join(self, one: str, other: str) -> None:
        """Both layers make the same neurons from now on."""
        order = list(self._leader)
        first, second = sorted((self.find(one), self.find(other)), key=order.index)
        self._leader[second] = first

    def resolve(self, axis: Axis) -> Axis:
        """The axis with every group under its present name."""
        return tuple(
            segment if segment.group is None else replace(segment, group=self.find(segment.group))
            for segment in axis
        )

    def names(self) -> list[str]:
        """The groups, in the order in which they are made."""
        return list(dict.fromkeys(self.find(path) for path in self._leader))


def spell(axis: Axis) -> str:
    """The axis in words: "64 of 'conv1' + 3 input channels"."""
    parts = []
    for segment in axis:
        wide = f" x {segment.span}" if segment.span > 1 else ""
        owner = "of the input" if segment.group is None else f"of {segment.group!r}"
        parts.append(f"{segment.size}{wide} {owner}")
    return " + ".join(parts)


def full_size(axis: Axis) -> int:
    """Entries of the axis in the full-width model."""
    return sum(segment.size * segment.span for segment in axis)


def merge_axes(groups: Groups, one: Axis, other: Axis) -> Axis:
    """The axis that both become when tensors meet element by element; their groups are joined."""
    one, other = groups.resolve(one), groups.resolve(other)
    if one == other:
        return one
    both = f"{spell(one)} against {spell(other)}"
    if 1 in (full_size(one), full_size(other)) and full_size(one) != full_size(other):
        raise Refusal(
            f"one neuron is broadcast over many ({both})",
            "Give both sides the same number of neurons: a gate of one channel cannot be pruned "
            "together with the channels that it multiplies",
        )
    same_shape = len(one) == len(other) and all(
        (a.size, a.span) == (b.size, b.span) for a, b in zip(one, other, strict=True)
    )
    if not same_shape:
        raise Refusal(
            f"neurons meet whose boundaries differ ({both})",
            "Bring both sides to the same groups first, for example with a 1x1 convolution or a "
            "Linear layer on one of them",
        )
    for a, b in zip(one, other, strict=True):
        if (a.group is None) != (b.group is None):
            raise Refusal(
                f"hidden neurons meet the network's input ({both})",
                "Put a convolution or a Linear layer between the input and the sum, so that every "
                "summand is made of neurons",
            )
        if a.group is not None and b.group is not None:
            groups.join(a.group, b.group)
    return groups.resolve(one)


def meet(
    groups: Groups, tensors: Sequence[tuple[Sequence[int], State]], *, num_dims: int
) -> Neurons:
    """The neurons of the result, of `num_dims` dimensions, when tensors are broadcast together."""
    found: Neurons | None = None
    for shape, state in tensors:
        if isinstance(state, Neurons):
            placed = Neurons(state.dim + num_dims - len(shape), state.axis)
            if found is None:
                found = placed
            elif found.dim != placed.dim:
                raise Refusal(
                    f"neurons lie along dimension {found.dim} of one tensor and {placed.dim} of "
                    "another",
                    "Bring the neurons of both tensors to the same dimension first",
                )
            else:
                found = Neurons(found.dim, merge_axes(groups, found.axis, placed.axis))
    if found is None:
        raise LookupError("no neurons among the tensors")
    for shape, state in tensors:
        dim = found.dim - num_dims + len(shape)
        if isinstance(state, Neurons) or dim < 0 or shape[dim] == 1:
            continue
        refuse_fixed(found, state, tuple(shape))
    return found


def refuse_fixed(neurons: Neurons, state: Mark, shape: tuple[int, ...]) -> None:
    """Refuse a tensor without neurons that has one entry for each neuron."""
    found = f"{spell(neurons.axis)} meet {state.value} of shape {shape}, which has entries for them"
    if state is Mark.INPUT:
        raise Refusal(
            f"hidden neurons meet the network's input: {found}",
            "Put a convolution or a Linear layer between the input and this operation",
        )
    raise Refusal(
        found,
        "Only a constant of size 1 along the neurons can be sliced; a learned one belongs into a "
        "layer, and noise or zeros come from torch.zeros_like and the like",
    )


def concatenate(
    tensors: Sequence[tuple[Sequence[int], State]], *, dim: int, neuron_dim: int
) -> Neurons:
    """The neurons of tensors put one after the other along their neuron axis."""
    axis: list[Segment] = []
    for shape, state in tensors:
        if isinstance(state, Neurons):
            if state.dim != neuron_dim:
                raise Refusal(
                    f"neurons lie along dimension {neuron_dim} of one tensor and {state.dim} of "
                    "another",
                    "Bring the neurons of both tensors to the same dimension first",
                )
            axis.extend(state.axis)
        elif len(shape) == 1 and shape[0] == 0:
            continue  # torch.cat skips empty tensors of one dimension, whatever the others are
        else:
            axis.append(Segment(None, shape[dim]))
    return Neurons(dim, tuple(axis))


def reshape(neurons: Neurons, before: Sequence[int], after: Sequence[int]) -> Neurons:
    """The neurons after a row-major reshape: dimensions behind them may merge into their span.

    reshape([N, C, H, W] -> [N, C * H * W]) makes each neuron H * W entries wide, and the other way
    round. Nothing before the neuron axis may merge into it, and no neuron may be cut.
    """
    ahead = math.prod(before[: neurons.dim])
    size = before[neurons.dim]
    for dim, entries in enumerate(after):
        if math.prod(after[:dim]) != ahead:
            continue
        spans = [segment.span * entries for segment in neurons.axis]
        if entries and all(span % size == 0 for span in spans):
            axis = tuple(
                replace(segment, span=span // size)
                for segment, span in zip(neurons.axis, spans, strict=True)
            )
            return Neurons(dim, axis)
    raise Refusal(
        f"the shape {tuple(before)} becomes {tuple(after)}, which splits the neuron axis "
        f"(dimension {neurons.dim}: {spell(neurons.axis)}) or merges it with what lies before it",
        "Only dimensions behind the neurons may be merged into them, as flatten(1) does; channels "
        "cannot be shuffled or regrouped",
    )
