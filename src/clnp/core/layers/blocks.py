"""Weights in blocks, and the operations on them.

With neurons sorted by owner, a weight falls into blocks:

                 in: frozen      free
    out frozen   [   frozen   |   none   ]   a buffer; what is not there cannot interfere
    out free     [   reuse    |   free   ]   two Parameters, there only while a task is open

Frozen neurons depend on frozen neurons only, so a training step runs the model twice: a *frozen*
pass on the frozen neurons, without gradients, in which every layer also computes what the frozen
neurons give to its free ones (the *carry*), and a *free* pass on the free neurons, to which the
carry is added. Ended tasks, and everything that is not being trained, take one *plain* pass; all
ended tasks together take a pass each, on the *portion* that it added (see portions.py).
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from clnp.core.structure.axis import STAND_IN, Index
from clnp.errors import TaskError

from .stage import ONE_PATH, Staged, Stretches, Tensors


def real_part(x: Tensor, dim: int, stretches: Stretches) -> Tensor:
    """`x` without the entries that stand in for groups that have no neuron."""
    if stretches is None:
        return x
    parts = [x.narrow(dim, start, length) for start, length in stretches]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def with_stand_ins(y: Tensor, total: int, stretches: list[tuple[int, int]]) -> Tensor:
    """`y`, made from the real part of `total` channels, with zeros where the stand-ins go."""
    parts, end, used = [], 0, 0
    for start, length in [*stretches, (total, 0)]:
        if start > end:
            parts.append(y.new_zeros(y.shape[0], start - end, *y.shape[2:]))
        parts.append(y.narrow(1, used, length))
        used, end = used + length, start + length
    return torch.cat(parts, 1)


def dead_weight(layer: Staged, x: Tensor, *, num_rows: int, kernel: Iterable[int]) -> Tensors:
    """A weight of zeros from all that `x` holds to `num_rows` outputs: for the shape alone."""
    return {"weight": x.new_zeros(num_rows, x.shape[layer.site.layer_kind.neuron_dim], *kernel)}


def carry(layer: Staged, x: Tensor, *, stretches: Stretches, free: Tensors) -> Tensor | None:
    """What the frozen neurons `x` give to the layer's free rows; None when they give nothing."""
    if "reuse" not in free:
        return None
    tensors = {"weight": free["reuse"]}
    if "weight" not in free and "bias" in free:
        tensors["bias"] = free["bias"]  # Without free inputs nobody else adds it.
    kind = layer.site.layer_kind
    return kind.run(layer, real_part(x, kind.neuron_dim, stretches), tensors)


def complete(
    layer: Staged,
    x: Tensor,
    *,
    stretches: Stretches,
    free: Tensors,
    carried: Tensor | None,
    num_rows: int,
) -> Tensor:
    """The layer's free rows: what the free neurons `x` give to them, and what was carried."""
    kind = layer.site.layer_kind
    if "reuse" in free and carried is None:
        raise TaskError(ONE_PATH.format(layer.site.path, "did not run"))
    if "weight" not in free:
        if carried is not None:
            return carried
        # All that it read has been pruned: what is left of its rows is the bias.
        return kind.run(
            layer, x, {**free, **dead_weight(layer, x, num_rows=num_rows, kernel=layer.kernel)}
        )
    y = kind.run(layer, real_part(x, kind.neuron_dim, stretches), free)
    return y if carried is None else y.add_(carried)


def select(tensor: Tensor, dim: int, index: Index, *, fill: float = 0.0) -> Tensor:
    """The entries `index` of `tensor` along `dim`, contiguous, with `fill` for stand-ins.

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
