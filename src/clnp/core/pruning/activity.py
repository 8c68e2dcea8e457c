"""Mean activity and contribution of neurons.

The *activity* of a neuron is E|N|, the mean of its absolute value over a data set and, for a
channel, over space (Alg. 1, line 4). It is taken where the neuron is read, at the input of the
layers that mix it into others, so that it counts after BatchNorm and activation. A neuron with
several readers counts with the largest.

Activity has no common scale: the neurons of one layer may all be larger than those of another, and
BatchNorm may keep a neuron large that has small weights in the next layer. The *contribution* of a
neuron takes both into account: its share of what a reader receives, E|N_j| sum_i |w_ij| over the
sum of the same for all j, and then the sum of all shares in its group that are no larger than its
own. So a threshold of 0.05 cuts, in every layer, the neurons that together contribute 5 % of what
the next layer receives.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor

from clnp.core.layers.blocks import real_part
from clnp.core.layers.body import Body, Inputs, Named
from clnp.core.layers.stage import Pass, Staged
from clnp.core.structure.axis import Index
from clnp.errors import ArgumentError, DivergedError

Run = Callable[[Inputs, Named], Any]
Parts = Sequence[tuple[str, Tensor]]
"""One number for each neuron that a layer reads: its segments, with the group of each."""
ByPass = Mapping[Pass, Parts]
"""The parts of the neurons of earlier tasks, and of the free ones."""


class Activity(Mapping[str, Tensor]):
    """The importance of the neurons of a network: a mapping from groups to tensors.

    Args:
        free: The activity, contribution or Taylor score of the free neurons of each group,
            `[num_free]` in float64.
        owned: That of the neurons of earlier tasks, in the order in which they were claimed.
        inputs: The mean |activation| of all that each layer reads, by its path, of the neurons of
            earlier tasks and of the free ones. It says which of them a task reuses.

    Example:
        >>> activity = net.measure_activity(loader)
        >>> {group: int((values > 0).sum()) for group, values in activity.items()}
    """

    def __init__(
        self,
        free: Mapping[str, Tensor],
        owned: Mapping[str, Tensor],
        inputs: Mapping[str, Mapping[Pass, Tensor]] | None = None,
    ) -> None:
        self._free = dict(free)
        self.owned = dict(owned)
        self.inputs = inputs

    def __getitem__(self, group: str) -> Tensor:
        return self._free[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._free)

    def __len__(self) -> int:
        return len(self._free)

    def num_free(self) -> dict[str, int]:
        """Count the free neurons of each group."""
        return {group: len(values) for group, values in self._free.items()}

    def __repr__(self) -> str:
        parts = (f"{g}: {int((a > 0).sum())} of {len(a)} fire" for g, a in self._free.items())
        return f"Activity({', '.join(parts)})"


def measured(body: Body, batches: Iterable[Any], *, contribution: bool = False) -> Activity:
    """Measure the mean activity, or contribution, of all neurons, in evaluation mode."""
    check_batches(batches)
    meters = meters_of(body)

    def on_input(layer: Staged, x: Tensor) -> Tensor:
        if layer in meters:
            meters[layer].read(x)
        return x

    for batch in batches:
        with torch.no_grad(), listening(body, on_input):
            feed(body, batch, body.run_open)
    if contribution:
        given = {layer: received(layer, meter.means()) for layer, meter in meters.items()}
        return cumulated(body, meters, given, what="contribution")
    means = {
        layer: {
            running: [(group, part.mean(1)) for group, part in by_group(layer, running, found)]
            for running, found in meter.means().items()
        }
        for layer, meter in meters.items()
    }
    return Activity(*_largest(body, meters, means, what="activity"), inputs_read(meters))


@contextmanager
def listening(body: Body, on_input: Callable[[Staged, Tensor], Tensor]) -> Iterator[None]:
    """Let layers read what `on_input` returns for their input, in evaluation mode."""
    with body.evaluating():
        body.stage.on_input = on_input
        try:
            yield
        finally:
            body.stage.on_input = None


class Meter:
    """Sums of |x| at the input of one layer, for its frozen and its free neurons."""

    def __init__(self, layer: Staged) -> None:
        self.layer = layer
        self.sums: dict[Pass, Tensor] = {}
        self.num_values: dict[Pass, int] = {Pass.FROZEN: 0, Pass.FREE: 0}

    def read(self, x: Tensor) -> None:
        """Add up what the layer is about to read."""
        layer, running = self.layer, self.layer.stage.running
        if running is Pass.FROZEN and layer.shared:
            return  # A single head does not read the neurons of earlier tasks.
        if x.ndim < 2 + len(layer.kernel):
            raise ArgumentError(
                f"{layer.site.path} is given a single sample, of shape {list(x.shape)}. Activity "
                "is measured over batches: give x[None]"
            )
        dim = layer.layer_kind.neuron_dim % x.ndim
        sums = _sums(x, dim)
        self.sums[running] = self.sums[running] + sums if running in self.sums else sums
        self.num_values[running] += x.numel() // x.shape[dim]

    def means(self) -> dict[Pass, Tensor]:
        """Return E|x| of all entries that have a column in the block of a pass."""
        return {
            running: real_entries(self.layer, running, sums) / self.num_values[running]
            for running, sums in self.sums.items()
        }


Meters = Mapping[Staged, Meter]


def meters_of(body: Body) -> Meters:
    """Return a meter for each layer that mixes."""
    return {part: Meter(part) for part in body.parts.values() if part.layer_kind.mixes}


def inputs_read(meters: Meters) -> dict[str, dict[Pass, Tensor]]:
    """Return E|x| of all that the layers read, by path."""
    return {layer.site.path: meter.means() for layer, meter in meters.items()}


def real_entries(layer: Staged, running: Pass, values: Tensor) -> Tensor:
    """Return those of the values for the entries of an input that have a column, `[entries]`."""
    real = layer.free_real if running is Pass.FREE else layer.frozen_real
    return values[:0] if real == [] else real_part(values, 0, real)


def by_group(layer: Staged, running: Pass, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the values of each segment of neurons, `[neurons, span, ...]`, with their group."""
    stage, start = layer.stage, 0
    layout = stage.free if running is Pass.FREE else stage.frozen
    for segment in layer.site.columns if len(values) else ():
        if segment.group is not None:
            num, span = layout[segment.group], segment.span
            end = start + num * span
            yield segment.group, values[start:end].reshape(num, span, *values.shape[1:])
            start = end
        elif running is Pass.FREE:  # The network's input is read in the free pass.
            start += segment.size * segment.span


def received(layer: Staged, means: Mapping[Pass, Tensor], rows: Index | None = None) -> ByPass:
    """Return E|N_j| sum_i |w_ij| of all neurons that the layer reads, over all its free rows i."""
    found = {}
    for running, given in means.items():
        block = layer.weight_free if running is Pass.FREE else layer.weight_reuse
        if block is None:
            continue
        weight = block.detach()
        if rows is not None:
            weight = weight[torch.from_numpy(rows).to(weight.device)]
        rest = [d for d in range(weight.ndim) if d != 1]
        given = given.to(weight.device) * weight.abs().sum(rest, dtype=torch.float64)
        found[running] = [(g, part.sum(1)) for g, part in by_group(layer, running, given)]
    return found


def cumulated(body: Body, meters: Meters, given: Mapping[Staged, ByPass], *, what: str) -> Activity:
    """Return, for what each neuron gives each layer, the sum of all shares up to its own.

    `what` it is called in errors.
    """
    shares = {}
    for layer, parts in given.items():
        total = sum(float(part.sum()) for found in parts.values() for _, part in found)
        shares[layer] = {
            running: [(group, part / total if total > 0 else part) for group, part in found]
            for running, found in parts.items()
        }
    free, owned = _largest(body, meters, shares, what=what)
    for group, share in free.items():
        sums = up_to(torch.cat([share, owned[group]]))
        free[group], owned[group] = sums[: len(share)], sums[len(share) :]
    return Activity(free, owned, inputs_read(meters))


def _largest(
    body: Body, meters: Meters, found: Mapping[Staged, ByPass], *, what: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the largest value of each free neuron, and of those of earlier tasks, by group."""
    if not any(meter.num_values[Pass.FREE] for meter in meters.values()):
        raise ArgumentError("no sample was given: mean activity needs data")
    both = []
    for running, layout in ((Pass.FREE, body.stage.free), (Pass.FROZEN, body.stage.frozen)):
        values = {g: torch.zeros(n, dtype=torch.float64, device="cpu") for g, n in layout.items()}
        for layer, parts in found.items():
            if running is Pass.FREE and not layer.num_free_rows:
                continue  # A layer without free rows cannot read a free neuron.
            for group, value in parts.get(running, ()):
                values[group] = torch.maximum(values[group], value.cpu())
        for group, value in values.items():
            if not bool(value.isfinite().all()):
                raise DivergedError(
                    f"the {what} of {group} is NaN or infinite: the task has diverged, or its data "
                    "holds such values. Abandon it, and train again with a lower rate"
                )
        both.append(values)
    free, owned = both
    return free, owned


def _sums(x: Tensor, dim: int) -> Tensor:
    """Return the sum of |x| for each index along `dim`, in float64."""
    first, *inner = [d for d in range(x.ndim) if d != dim]
    # Each sample in its own precision: several times as fast on a CPU, and no copy of all of x.
    wide = torch.promote_types(x.dtype, torch.float32)
    each = torch.linalg.vector_norm(x, 1, inner, dtype=wide) if inner else x.abs()
    return each.sum(0 if first < dim else 1, dtype=torch.float64)


def up_to(shares: Tensor) -> Tensor:
    """Return, for each of the shares, the sum of all that are no larger.

    up_to(tensor([3, 0, 1, 1])) == tensor([5, 0, 2, 2])
    """
    ascending = shares.sort().values
    sums = torch.cat([ascending.new_zeros(1), ascending.cumsum(0)])
    return sums[torch.searchsorted(ascending, shares, right=True)]


def feed(body: Body, batch: Any, run: Run) -> Any:
    """Run the inputs of a batch, and return the outputs."""
    num_inputs = body.graph.num_inputs
    first = batch[0] if isinstance(batch, tuple | list) and batch else None
    if num_inputs > 1 and isinstance(first, Tensor):
        # It may hold all of them, or one and the targets: without an error, forward may use less.
        raise ArgumentError(
            f"the network has {num_inputs} inputs, and a batch begins with a tensor. Give its "
            "inputs together, ((a, b), targets), or as a dictionary, or a tensor alone if it is "
            "the only one"
        )
    positional, named = inputs_of(batch, body.device)
    if not positional:
        arguments = signature(body.model.forward)
        try:
            arguments.bind(**named)
        except TypeError as error:
            raise ArgumentError(
                f"a batch is a dictionary that does not fit forward{arguments}: {error}. Give its "
                "inputs by name, and targets beside them, (inputs, targets)"
            ) from None
    return run(positional, named)


def inputs_of(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword inputs of the network in a batch, on its device.

    A batch is a tensor, or a tuple or list whose first element is the input: a tensor, a tuple of
    positional inputs or a dictionary of keyword inputs.
    """
    if isinstance(batch, tuple | list):
        if not batch:
            raise ArgumentError("a batch is empty. Give at least the input of the network")
        batch = batch[0]
    if isinstance(batch, Mapping):
        return (), {name: on_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(on_device(value, device) for value in batch), {}
    return (on_device(batch, device),), {}


def on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, ndarray):
        raise ArgumentError("a batch holds an ndarray. Give tensors, such as torch.from_numpy(x)")
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def check_batches(batches: object) -> None:
    """Raise an `ArgumentError` if this cannot be batches."""
    if isinstance(batches, Tensor | Mapping | str) or not hasattr(batches, "__iter__"):
        raise ArgumentError(
            f"batches is of type {type(batches).__name__}. Give an iterable of batches, such as a "
            "DataLoader, or x.split(256)"
        )
