"""How many threads a run uses on a CPU."""

import copy
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clnp.core.structure.inputs import batch_size, inputs_of, own_random_numbers

SMALL = 100_000_000
"""A batch that takes fewer multiplications is small: one thread needs about 10 ms for its step.
Several would save little of that, and wait for one another many times in it: beside another busy
process, such a step takes ten to a hundred times as long."""


def fitting(model: nn.Module, example_input: Any, num_samples: int) -> int | None:
    """Return 1 if batches of this size are small, or None for PyTorch's own number of threads."""
    args, kwargs = inputs = inputs_of(example_input)
    own = copy.deepcopy(model).eval()
    counted: Any = FlopCounterMode(display=False)
    with own_random_numbers(own), torch.no_grad(), counted:
        own(*args, **kwargs)
    # There is an addition for each multiplication.
    multiplications = counted.get_total_flops() / 2 * num_samples / batch_size(inputs)
    return 1 if multiplications < SMALL else None
