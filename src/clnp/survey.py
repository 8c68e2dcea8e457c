"""Batches through the open task: its neurons are measured, its BatchNorm is recalibrated.

Other threads wait for no more than one batch: they may help to make the next.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .activity import Activity, OnInput, inputs_of, measure
from .body import Body, Inputs, Named
from .errors import ArgumentError, DivergedError
from .layers import Averaging, PrefixLayer
from .surgery import NORMS

Run = Callable[[Inputs, Named], Any]


def measured(body: Body, batches: Iterable[Any], *, contribution: bool = False) -> Activity:
    """The mean activity, or contribution, of all neurons over the batches, in evaluation mode."""
    check_batches(batches)
    readers = [layer for layer in body.layers.values() if layer.site.mixes]

    def run(batch: Any, on_input: OnInput) -> None:
        with torch.no_grad(), body.evaluating():
            body.stage.on_input = on_input
            try:
                _feed(body, batch, body.run_open)
            finally:
                body.stage.on_input = None

    return measure(
        [*readers, body.head], body.stage, run=run, batches=batches, contribution=contribution
    )


def recalibrate(body: Body, batches: Iterable[Any]) -> None:
    """Average the statistics of the free channels of BatchNorm anew, all else in evaluation."""
    norms = norms_of(body)
    before = [{name: block.clone() for name, block in norm.free().items()} for norm in norms]
    try:
        average(
            {norm: Averaging() for norm in norms if norm.num_free_rows},
            body,
            batches,
            body.run_open,
        )
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
                _feed(body, batch, run)
            finally:
                for norm in averages:
                    norm.averaging = None
    if num_batches == 0:
        raise ArgumentError("no batch was given: recalibration needs data")
    if not all(averaging.num_values for averaging in averages.values()):
        raise ArgumentError("recalibration needs batches of more than one sample")
    for norm, averaging in averages.items():
        if not all(bool(torch.isfinite(tensor).all()) for tensor in averaging.statistics):
            raise DivergedError(
                f"{norm.site.path}: over these batches, its statistics are NaN or infinite"
            )


def norms_of(body: Body) -> list[PrefixLayer]:
    """The BatchNorm layers."""
    return [layer for layer in body.layers.values() if isinstance(layer, NORMS)]


def _feed(body: Body, batch: Any, run: Run) -> None:
    num_inputs = body.graph.num_inputs
    first = batch[0] if isinstance(batch, tuple | list) and batch else None
    if num_inputs > 1 and isinstance(first, Tensor):
        # It may hold all of them, or one and the targets: what forward leaves out, nobody notices.
        raise ArgumentError(
            f"the network has {num_inputs} inputs, and a batch begins with a tensor; give its "
            "inputs together, ((a, b), targets), or as a dictionary, or a tensor alone if it is "
            "the only one"
        )
    args, kwargs = inputs_of(batch, body.head.like.device)
    run(args, kwargs)


def check_batches(batches: object) -> None:
    """Raise an `ArgumentError` if this cannot be batches."""
    if isinstance(batches, Tensor | Mapping | str) or not hasattr(batches, "__iter__"):
        raise ArgumentError(
            f"a {type(batches).__name__} is not batches; give an iterable of them, such as a "
            "DataLoader, or x.split(256)"
        )
