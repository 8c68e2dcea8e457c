"""The neurons along an axis of a tensor.

The channel axis of an activation, the rows of a weight and its columns are all described by an
`Axis`: segments one after the other, each of them the neurons of one group, or a fixed stretch
that belongs to the network's input. Flattening a 4x4 map makes every neuron 16 entries wide (its
`span`); concatenation puts several segments in a row.

A *layout* is the number of neurons of each group that a tensor stores, and a *view* is the neurons
that are wanted. `positions` finds one in the other, which is all the index arithmetic there is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Segment:
    """`size` neurons of `group`, each `span` entries wide; `group=None` is network input."""

    group: str | None
    size: int
    span: int = 1


Axis = tuple[Segment, ...]
Layout = Mapping[str, int]
Index = npt.NDArray[np.int64]
View = Mapping[str, Sequence[int] | Index]

STAND_IN = -1
"""Marks entries of a dead neuron in an index: of the stand-in for an empty group, for example."""


def groups_of(axis: Axis) -> list[str]:
    """List the groups along the axis, each once, in order."""
    return list(dict.fromkeys(segment.group for segment in axis if segment.group is not None))


def has_input(axis: Axis) -> bool:
    """Whether network input lies along the axis."""
    return any(segment.group is None for segment in axis)


def num_entries(axis: Axis, layout: Layout) -> int:
    """Count the entries, network input included, if group g stores `layout[g]` neurons."""
    return sum(_stored(segment, layout, True) * segment.span for segment in axis)


def positions(
    axis: Axis,
    layout: Layout,
    view: View,
    *,
    stores_input: bool = True,
    wants_input: bool = True,
    stand_in: bool = False,
) -> Index:
    """Return where the neurons of `view` lie along an axis that stores `layout`.

    With `stand_in`, a group of which no neuron is wanted gives one dead neuron, `span` times
    `STAND_IN`. So does a negative number in the view.

    positions((Segment("a", 4, 2), Segment("b", 4)), {"a": 2, "b": 3}, {"a": [1], "b": [0, 2]})
    == [2, 3, 4, 6]
    """
    found = [np.empty(0, np.int64)]
    start = 0
    for segment in axis:
        size, span = segment.size, segment.span
        if segment.group is not None:
            wanted = as_index(view[segment.group])
        else:
            wanted = np.arange(size if wants_input else 0)
        if wanted.size:
            entries = start + wanted[:, None] * span + np.arange(span)
            found.append(np.where(wanted[:, None] < 0, STAND_IN, entries).ravel())
        elif stand_in and segment.group is not None:
            found.append(np.full(span, STAND_IN))
        start += _stored(segment, layout, stores_input) * span
    return np.concatenate(found)


def as_index(neurons: Sequence[int] | Index) -> Index:
    """Return the neurons as an array; a range is converted without a loop over it."""
    if isinstance(neurons, range):
        return np.arange(neurons.start, neurons.stop, neurons.step, dtype=np.int64)
    return np.asarray(neurons, np.int64)


def occupied(
    axis: Axis, layout: Layout, *, counts_input: bool = True
) -> list[tuple[int, int]] | None:
    """Return the stretches (start, length) of real entries, if empty groups have stand-ins.

    None means that every entry is real.
    """
    stretches: list[tuple[int, int]] = []
    start = 0
    missing = False
    for segment in axis:
        stored = _stored(segment, layout, True)
        length = max(stored, 1) * segment.span
        if stored == 0 or (segment.group is None and not counts_input):
            missing = True
        elif stretches and sum(stretches[-1]) == start:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + length)
        else:
            stretches.append((start, length))
        start += length
    return stretches if missing else None


def _stored(segment: Segment, layout: Layout, stores_input: bool) -> int:
    if segment.group is None:
        return segment.size if stores_input else 0
    return layout[segment.group]
