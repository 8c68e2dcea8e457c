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

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor

from clnp.core.layers.body import Body, Inputs, Named
from clnp.core.layers.stage import Pass, Staged
from clnp.errors import ArgumentError, DivergedError

Run = Callable[[Inputs, Named], Any]


class Activity(Mapping[str, Tensor]):
    """The activity, or contribution, of the neurons of a network: a mapping from groups to tensors.

    Args:
        free: That of the free neurons of each group, `[num_free]` in float64.
        owned: That of the neurons of earlier tasks, in the order in which they were claimed. It
            says how many of them a task reuses.

    Example:
        >>> activity = net.measure_activity(loader)
        >>> {group: int((values > 0).sum()) for group, values in activity.items()}
    """

    def __init__(self, free: Mapping[str, Tensor], owned: Mapping[str, Tensor]) -> None:
        self._free = dict(free)
        self.owned = dict(owned)

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
    readers: list[Staged] = [part for part in body.parts.values() if part.layer_kind.mixes]
    meters = {reader.site.path: _Meter(reader) for reader in readers}

    def on_input(layer: Staged, x: Tensor) -> None:
        if layer.site.path in meters:
            meters[layer.site.path].read(x)

    for batch in batches:
        with torch.no_grad(), body.evaluating():
            body.stage.on_input = on_input
            try:
                feed(body, batch, body.run_open)
            finally:
                body.stage.on_input = None
    if not any(meter.num_entries[Pass.FREE] for meter in meters.values()):
        raise ArgumentError("no sample was given: mean activity needs data")
    found: dict[Pass, dict[str, Tensor]] = {}
    for running, layout in ((Pass.FREE, body.stage.free), (Pass.FROZEN, body.stage.frozen)):
        values = {g: torch.zeros(n, dtype=torch.float64, device="cpu") for g, n in layout.items()}
        found[running] = values
        for meter in meters.values():
            if running is Pass.FREE and not meter.layer.num_free_rows:
                continue  # A layer without free rows cannot read a free neuron.
            for group, value in (meter.shares if contribution else meter.means)(running):
                values[group] = torch.maximum(values[group], value.cpu())
        for group, value in values.items():
            if not bool(value.isfinite().all()):
                raise DivergedError(
                    f"the activity of {group} is NaN or infinite: the task has diverged, or its "
                    "data holds such values. Abandon it, and train again with a lower rate"
                )
    free, owned = found[Pass.FREE], found[Pass.FROZEN]
    if contribution:
        for group, share in free.items():
            sums = up_to(torch.cat([share, owned[group]]))
            free[group], owned[group] = sums[: len(share)], sums[len(share) :]
    return Activity(free, owned)


class _Meter:
    """Sums of |x| at the input of one layer, for its frozen and its free neurons."""

    def __init__(self, layer: Staged) -> None:
        self.layer, self.stage = layer, layer.stage
        self.sums: dict[tuple[Pass, int], Tensor] = {}
        self.num_entries: dict[Pass, int] = {Pass.FROZEN: 0, Pass.FREE: 0}

    def read(self, x: Tensor) -> None:
        """Add up what the layer is about to read."""
        layer, running = self.layer, self.stage.running
        if running is Pass.FROZEN and layer.shared:
            return  # A single head does not read the neurons of earlier tasks.
        if x.ndim < 2 + len(layer.kernel):
            raise ArgumentError(
                f"{layer.site.path} is given a single sample, of shape {list(x.shape)}; activity "
                "is measured over batches: give x[None]"
            )
        dim = layer.layer_kind.neuron_dim % x.ndim
        layout = self.stage.frozen if running is Pass.FROZEN else self.stage.free
        sums = _sums(x, dim)
        self.num_entries[running] += x.numel() // x.shape[dim]
        start = 0
        for index, segment in enumerate(layer.site.columns):
            if segment.group is None:
                start += segment.size * segment.span
                continue
            count = layout[segment.group]
            part = sums.narrow(0, start, count * segment.span).view(count, segment.span)
            key = (running, index)
            self.sums[key] = self.sums[key] + part if key in self.sums else part
            start += max(count, 1) * segment.span

    def means(self, running: Pass) -> Iterator[tuple[str, Tensor]]:
        """Yield the mean of |x| for each group that the layer reads."""
        for index, segment in enumerate(self.layer.site.columns):
            if segment.group is not None and (running, index) in self.sums:
                yield segment.group, self._mean(running, index).mean(1)

    def shares(self, running: Pass) -> Iterator[tuple[str, Tensor]]:
        """Yield the share of each neuron in all that the layer's free rows receive from neurons."""
        received = {
            (each, group, index): given.sum(1)
            for each in (Pass.FREE, Pass.FROZEN)
            for group, index, given in self._given(each)
        }
        total = sum(float(given.sum()) for given in received.values())
        for (each, group, _), given in received.items():
            if each is running:
                yield group, given / total if total > 0 else given

    def _given(self, running: Pass) -> Iterator[tuple[str, int, Tensor]]:
        """Yield E|x_j| sum_i |w_ij| for each entry of each neuron that is read: [neurons, span]."""
        is_free = running is Pass.FREE
        block = self.layer.weight_free if is_free else self.layer.weight_reuse
        if block is None:
            return
        rest = [d for d in range(block.ndim) if d != 1]
        strengths = block.detach().abs().sum(rest, dtype=torch.float64)
        layout, start = self.stage.free if is_free else self.stage.frozen, 0
        for index, segment in enumerate(self.layer.site.columns):
            if segment.group is None:
                start += segment.size * segment.span if is_free else 0
                continue
            shape = (layout[segment.group], segment.span)
            strength = strengths.narrow(0, start, shape[0] * shape[1]).view(shape)
            start += strength.numel()
            if (running, index) in self.sums:
                yield segment.group, index, self._mean(running, index) * strength

    def _mean(self, running: Pass, index: int) -> Tensor:
        return self.sums[running, index] / self.num_entries[running]


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


def feed(body: Body, batch: Any, run: Run) -> None:
    """Run the inputs of a batch."""
    num_inputs = body.graph.num_inputs
    first = batch[0] if isinstance(batch, tuple | list) and batch else None
    if num_inputs > 1 and isinstance(first, Tensor):
        # It may hold all of them, or one and the targets: without an error, forward may use less.
        raise ArgumentError(
            f"the network has {num_inputs} inputs, and a batch begins with a tensor; give its "
            "inputs together, ((a, b), targets), or as a dictionary, or a tensor alone if it is "
            "the only one"
        )
    run(*inputs_of(batch, body.device))


def inputs_of(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword inputs of the network in a batch, on its device.

    A batch is a tensor, or a tuple or list whose first element is the input: a tensor, a tuple of
    positional inputs or a dictionary of keyword inputs.
    """
    if isinstance(batch, tuple | list):
        if not batch:
            raise ArgumentError("a batch is empty; it needs at least the input of the network")
        batch = batch[0]
    if isinstance(batch, Mapping):
        return (), {name: _on(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_on(value, device) for value in batch), {}
    return (_on(batch, device),), {}


def _on(value: Any, device: torch.device) -> Any:
    if isinstance(value, ndarray):
        raise ArgumentError("a batch holds an ndarray; give tensors, such as torch.from_numpy(x)")
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


def check_batches(batches: object) -> None:
    """Raise an `ArgumentError` if this cannot be batches."""
    if isinstance(batches, Tensor | Mapping | str) or not hasattr(batches, "__iter__"):
        raise ArgumentError(
            f"a {type(batches).__name__} is not batches; give an iterable of them, such as a "
            "DataLoader, or x.split(256)"
        )
