"""Operations on tensors whose neurons are sorted by owner."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clnp.core.structure.axis import STAND_IN, Axis, Index, Layout, occupied, positions

Tensors = dict[str, Tensor]
Stretches = list[tuple[int, int]] | None
"""Starts and lengths of real entries; None if all are real."""
Widths = Mapping[str, int]


def real_part(x: Tensor, dim: int, stretches: Stretches) -> Tensor:
    """Return `x` without the entries that stand in for groups without neurons."""
    if stretches is None:
        return x
    parts = [x.narrow(dim, start, length) for start, length in stretches]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def with_stand_ins(y: Tensor, total: int, stretches: list[tuple[int, int]]) -> Tensor:
    """Return `y`, made from the real part of `total` channels, with zeros for the stand-ins."""
    parts, end, used = [], 0, 0
    for start, length in [*stretches, (total, 0)]:
        if start > end:
            parts.append(y.new_zeros(y.shape[0], start - end, *y.shape[2:]))
        parts.append(y.narrow(1, used, length))
        used, end = used + length, start + length
    return torch.cat(parts, 1)


def select(tensor: Tensor, dim: int, index: Index, *, fill: float = 0.0) -> Tensor:
    """Return the entries `index` along `dim`, contiguous, with `fill` for stand-ins.

    The tensor itself, not a copy, where the index is all of it.
    """
    size = tensor.shape[dim]
    if len(index) == size and np.array_equal(index, np.arange(size)):
        return tensor
    missing = index == STAND_IN
    if missing.all():
        shape = list(tensor.shape)
        shape[dim] = len(index)
        return tensor.new_full(shape, fill)
    chosen = tensor.index_select(dim, _on(tensor, np.where(missing, index.max(), index)))
    if missing.any():
        chosen = chosen.index_fill(dim, _on(tensor, np.flatnonzero(missing)), fill)
    return chosen


def place(target: Tensor, rows: Index, columns: Index, block: Tensor) -> None:
    """Write `block` into the given rows and columns of `target`."""
    if not block.numel():
        return
    if _is_stretch(rows) and _is_stretch(columns):
        corner = target[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        corner.copy_(block)
    else:
        target[_on(target, rows)[:, None], _on(target, columns)] = block


def _is_stretch(index: Index) -> bool:
    """Whether the index is one number after the other."""
    return np.array_equal(index, np.arange(index[0], index[-1] + 1))


def _on(tensor: Tensor, index: Index) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(index)).to(tensor.device)


def old_and_new(
    frozen: Widths, free: Widths
) -> tuple[dict[str, int], dict[str, range], dict[str, range]]:
    """Return the layout once free neurons follow the frozen ones, and a view of either."""
    after = {group: frozen[group] + free[group] for group in frozen}
    old = {group: range(num) for group, num in frozen.items()}
    return after, old, {group: range(frozen[group], after[group]) for group in after}


def own_neurons(widths: Sequence[Widths]) -> dict[str, range]:
    """Return the neurons that the last task added, from the widths before and after each task."""
    before, after = widths[-2:]
    return {group: range(before[group], after[group]) for group in after}


def own_entries(axis: Axis, widths: Sequence[Widths]) -> Stretches:
    """Return the stretches of own neurons in the input of a portion's pass.

    The network's input lies there in every pass, and counts in the first.
    """
    counts = {group: len(neurons) for group, neurons in own_neurons(widths).items()}
    return occupied(axis, counts, counts_input=len(widths) == 2)


def in_order(axis: Axis, layout: Layout, widths: Sequence[Widths]) -> Index:
    """Return where the entries of all tasks lie along an axis, task after task."""
    found = [
        positions(axis, layout, own_neurons(pair), wants_input=index == 0)
        for index, pair in enumerate(pairwise(widths))
    ]
    return np.concatenate(found)


def with_plain_strides(tensor: Tensor) -> Tensor:
    """Return the tensor in the memory format of its shape, in which ended tasks round alike.

    `contiguous` leaves the strides of a dimension of size 1 as they are, by which PyTorch tells
    formats.
    """
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride():
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def same(given: Any, own: Tensor) -> bool:
    """Whether `given` would leave the tensor `own` as it is."""
    if not isinstance(given, Tensor) or given.shape != own.shape:
        return False
    return torch.equal(given.detach().to(own.device, own.dtype), own)
