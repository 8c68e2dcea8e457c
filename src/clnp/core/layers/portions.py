"""What one ended task added to a layer, its *portion*, and the pass that runs on it alone.

Of the prefix that task t reads, all but the last stretch is what the tasks before it read. So the
tasks run in the order in which they were learnt, each on its own neurons, and every layer that
mixes neurons keeps its inputs for the tasks to come:

            in:  task 1 | task 2 | task 3
 out task 1 [   portion |    -   |   -    ]
 out task 2 [       portion      |   -    ]   reads what was kept of task 1, and its own
 out task 3 [           portion           ]

A portion has no entry for a later task, so nothing of one is read, not even times zero; and its
shape is settled when its task ends, so that it rounds in the same way whatever is learnt later.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from clnp.core.structure.axis import Axis, Index, Layout, occupied, positions
from clnp.errors import TaskError

from .blocks import dead_weight, real_part
from .stage import Staged, Stretches

Widths = Mapping[str, int]


def own_neurons(widths: Sequence[Widths]) -> dict[str, range]:
    """The neurons that the last task added, from the widths before the first and after each."""
    before, after = widths[-2:]
    return {group: range(before[group], after[group]) for group in after}


def own_entries(axis: Axis, widths: Sequence[Widths]) -> Stretches:
    """Where they lie in an input of which the last task's pass gives a layer only those.

    The network's input lies there in every pass, and counts in the first.
    """
    counts = {group: len(neurons) for group, neurons in own_neurons(widths).items()}
    return occupied(axis, counts, counts_input=len(widths) == 2)


def in_order(axis: Axis, layout: Layout, widths: Sequence[Widths]) -> Index:
    """Where the entries of all tasks lie along an axis that stores `layout`, task after task."""
    found = [
        positions(axis, layout, own_neurons(pair), wants_input=number == 0)
        for number, pair in enumerate(pairwise(widths))
    ]
    return np.concatenate(found)


def run_portion(layer: Staged, x: Tensor) -> Tensor:
    """What the task whose turn it is added to the layer's outputs; `x` are its own neurons."""
    portion, kind = layer.portion, layer.site.layer_kind
    if not kind.mixes:
        return kind.run(layer, x, portion.tensors)
    dim = kind.neuron_dim
    parts = [] if portion.own == [] else [real_part(x, dim, portion.own)]
    inputs = _kept(layer, parts) if portion.keeps else parts[0] if parts else None
    weight = portion.tensors["weight"]
    if inputs is None or not weight.shape[1]:
        # Nothing but the bias is left; the stand-ins in `x` may hold anything.
        dead = dead_weight(layer, x, num_rows=len(weight), kernel=weight.shape[2:])
        return kind.run(layer, torch.zeros_like(x), {**portion.tensors, **dead})
    return kind.run(layer, inputs, portion.tensors)


def _kept(layer: Staged, parts: list[Tensor]) -> Tensor | None:
    """All inputs of the layer so far, those of the present task included."""
    stage, path = layer.stage, layer.site.path
    num_passes, inputs = stage.kept.get(path, (0, None))
    if num_passes != stage.turn:
        raise other_path(path)
    if parts:
        # A copy even of a single part: forward may go on to write into its own tensor.
        before = [] if inputs is None else [inputs]
        inputs = torch.cat([*before, *parts], layer.site.layer_kind.neuron_dim)
    stage.kept[path] = num_passes + 1, inputs
    return inputs


def other_path(path: str) -> TaskError:
    """What to say of a layer that did not run once in the pass of every task."""
    return TaskError(
        f"{path} did not run exactly once for every task: predict_all runs forward on the neurons "
        "of one task after the other, and it must take the same path for all. Use "
        "net(x, task=...) for each task"
    )
