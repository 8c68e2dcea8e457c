"""Set the statistics of BatchNorm to their means over batches, for the neurons that a task keeps.

Other threads wait for no more than one batch: they may help to make the next.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from clnp.core.layers.body import Body
from clnp.core.layers.layer import PrefixLayer
from clnp.core.layers.stage import Averaging
from clnp.errors import ArgumentError, DivergedError

from .activity import Run, check_batches, feed


def recalibrate(body: Body, batches: Iterable[Any]) -> None:
    """Average the statistics of the free channels of BatchNorm, all else in evaluation mode."""
    norms = norms_of(body)
    before = [{name: block.clone() for name, block in norm.free().items()} for norm in norms]
    averages = {norm: Averaging() for norm in norms if norm.num_free_rows}
    try:
        average(averages, body, batches, body.run_open)
    except BaseException:
        with torch.no_grad():
            for norm, blocks in zip(norms, before, strict=True):
                for name, block in norm.free().items():
                    block.copy_(blocks[name])
        raise


def average(
    averages: Mapping[PrefixLayer, Averaging], body: Body, batches: Iterable[Any], run: Run
) -> None:
    """Average the statistics of these layers over the batches, of which each takes one `run`."""
    check_batches(batches)
    num_batches = 0
    for batch in batches:
        num_batches += 1
        with torch.no_grad(), body.evaluating():
            try:
                for norm, averaging in averages.items():
                    norm.averaging = averaging
                feed(body, batch, run)
            finally:
                for norm in averages:
                    norm.averaging = None
    if num_batches == 0:
        raise ArgumentError("no batch was given: recalibration needs data")
    if not all(averaging.num_values for averaging in averages.values()):
        raise ArgumentError("recalibration needs batches of more than one sample")
    for norm, averaging in averages.items():
        if not all(bool(tensor.isfinite().all()) for tensor in averaging.statistics):
            raise DivergedError(
                f"{norm.site.path}: over these batches, its statistics are NaN or infinite"
            )


def norms_of(body: Body) -> list[PrefixLayer]:
    """Return the BatchNorm layers."""
    return [layer for layer in body.layers.values() if layer.layer_kind.keeps_statistics]
