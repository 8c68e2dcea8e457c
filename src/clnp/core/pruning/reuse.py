"""How many neurons of earlier tasks a task reuses.

A layer receives E|N_j| sum_i |w_ij| from neuron j, summed over the neurons i that the task keeps,
or over the outputs of its head (see `activity`). The task *reuses* a neuron of an earlier task if
it is among the fewest neurons that together give a layer 99 % of all that it receives from neurons.
It depends on no threshold, and neither on the criterion that the task is pruned by.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from clnp.core.layers.body import Body
from clnp.core.layers.stage import Pass
from clnp.core.structure.axis import as_index, positions

from .activity import received, up_to
from .plan import Keep

NEGLIGIBLE = 0.01
"""The part of what a layer receives that the neurons which are not reused make up together."""


def num_reused(
    body: Body, inputs: Mapping[str, Mapping[Pass, Tensor]] | None, keep: Keep
) -> dict[str, int | None]:
    """Count the neurons of earlier tasks in each group that the open task reuses.

    `inputs` is the mean activity of what each layer reads. Without it, the numbers are unknown.
    """
    stage = body.stage
    if inputs is None:
        return dict.fromkeys(stage.frozen)
    reused = {
        group: torch.zeros(num, dtype=torch.bool, device="cpu")
        for group, num in stage.frozen.items()
    }
    for path, means in inputs.items():
        layer = body.parts[path]
        if layer.weight_reuse is None:
            continue
        rows = None if layer.makes_outputs else positions(layer.site.rows, stage.free, keep)
        given = received(layer, means, rows)
        owned = [(group, part.cpu()) for group, part in given.get(Pass.FROZEN, ())]
        new = [part.cpu()[as_index(keep[g])] for g, part in given.get(Pass.FREE, ())]
        smaller = up_to(torch.cat([*(part for _, part in owned), *new]))
        matters = smaller > NEGLIGIBLE * smaller.max() if len(smaller) else smaller.bool()
        start = 0
        for group, part in owned:
            reused[group] |= matters[start : start + len(part)]
            start += len(part)
    return {group: int(found.sum()) for group, found in reused.items()}
