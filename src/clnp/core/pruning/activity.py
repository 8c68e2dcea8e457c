"""Mean activity and contribution: how strongly each neuron speaks, and how far it is heard.

The *activity* of a neuron is E|N|, the mean of its absolute value over a data set and, for a
channel, over space (Alg. 1, line 4). It is taken where the neuron is read, at the input of the
layers that mix it into others, so that it counts after BatchNorm and activation; a neuron with
several readers counts with the largest.

Activity has no common scale: one layer's neurons may all be louder than another's, and a neuron
that BatchNorm keeps loud may be one that nobody listens to. The *contribution* of a neuron has
both: its share of what a reader receives, E|N_j| sum_i |w_ij| over the sum of the same for all j,
and then the sum of all shares in its group that are no larger than its own. So a threshold of 0.05
cuts, in every layer, the neurons that together give 5 % of what the next layer receives.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor, nn

from clnp.core.layers.body import Body, Inputs, Named
from clnp.core.layers.stage import Pass, Stage
from clnp.core.structure.axis import Layout
from clnp.core.structure.graph import Site
from clnp.errors import ArgumentError, DivergedError

OnInput = Callable[[Any, Tensor], None]
"""Is shown a layer and what it is about to read."""


class Activity(Mapping[str, Tensor]):
    """`activity[group]`: mean |activation| of each of the group's free neurons, in float64.

    Or their contribution, which prunes the same way.

    `owned[group]` is that of the neurons of earlier tasks, in the order in which they were
    claimed; from it follows how many of them a task reuses.
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
        """How many free neurons each group has."""
        return {group: len(values) for group, values in self._free.items()}

    def __repr__(self) -> str:
        parts = (f"{g}: {int((a > 0).sum())} of {len(a)} fire" for g, a in self._free.items())
        return f"Activity({', '.join(parts)})"


def inputs_of(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs of the network in a batch, on its device.

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


def _sums(x: Tensor, dim: int) -> Tensor:
    """The sum of |x| for each place along `dim`, in float64: [places]."""
    first, *inner = [d for d in range(x.ndim) if d != dim]
    # Each sample in its own precision: several times as fast on a CPU, and no copy of all of x.
    wide = torch.promote_types(x.dtype, torch.float32)
    each = torch.linalg.vector_norm(x, 1, inner, dtype=wide) if inner else x.abs()
    return each.sum(0 if first < dim else 1, dtype=torch.float64)


class _Meter:
    """Sums of |x| at the input of one layer, for its frozen and its free neurons."""

    def __init__(self, site: Site, layer: nn.Module, stage: Stage) -> None:
        self.site, self.stage = site, stage
        self.layer: Any = layer
        self.sums: dict[tuple[Pass, int], Tensor] = {}
        self.num_places: dict[Pass, int] = {Pass.FROZEN: 0, Pass.FREE: 0}

    def read(self, x: Tensor) -> None:
        """Add up what the layer is about to read."""
        layer, stage = self.layer, self.stage
        if stage.running is Pass.FROZEN and getattr(layer, "shared", False):
            return  # A single head does not read the neurons of earlier tasks.
        if x.ndim < 2 + len(self.layer.kernel):
            raise ArgumentError(
                f"{self.site.path} is given a single sample, of shape {list(x.shape)}; activity is "
                "measured over batches: give x[None]"
            )
        dim = self.site.layer_kind.neuron_dim % x.ndim
        layout: Layout = stage.frozen if stage.running is Pass.FROZEN else stage.free
        sums = _sums(x, dim)
        self.num_places[stage.running] += x.numel() // x.shape[dim]
        start = 0
        for place, segment in enumerate(self.site.columns):
            if segment.group is None:
                start += segment.size * segment.span
                continue
            count = layout[segment.group]
            part = sums.narrow(0, start, count * segment.span).view(count, segment.span)
            key = (stage.running, place)
            self.sums[key] = self.sums[key] + part if key in self.sums else part
            start += max(count, 1) * segment.span

    def means(self, running: Pass) -> Iterator[tuple[str, Tensor]]:
        """The mean of |x| for each group that the layer reads."""
        for place, segment in enumerate(self.site.columns):
            if segment.group is not None and (running, place) in self.sums:
                yield segment.group, self._mean(running, place).mean(1)

    def shares(self, running: Pass) -> Iterator[tuple[str, Tensor]]:
        """Of all that the layer's free rows receive from neurons, what each gives to them."""
        received = {
            (each, group, place): given.sum(1)
            for each in (Pass.FREE, Pass.FROZEN)
            for group, place, given in self._given(each)
        }
        total = sum(float(given.sum()) for given in received.values())
        for (each, group, _), given in received.items():
            if each is running:
                yield group, given / total if total > 0 else given

    def _given(self, running: Pass) -> Iterator[tuple[str, int, Tensor]]:
        """E|x_j| sum_i |w_ij| for each entry of each neuron that is read: [neurons, span]."""
        block = self.layer.weight_free if running is Pass.FREE else self.layer.weight_reuse
        if block is None:
            return
        rest = [d for d in range(block.ndim) if d != 1]
        strengths = block.detach().abs().sum(rest, dtype=torch.float64)
        layout, start = self.stage.free if running is Pass.FREE else self.stage.frozen, 0
        for place, segment in enumerate(self.site.columns):
            if segment.group is None:
                start += segment.size * segment.span if running is Pass.FREE else 0
                continue
            shape = (layout[segment.group], segment.span)
            strength = strengths.narrow(0, start, shape[0] * shape[1]).view(shape)
            start += strength.numel()
            if (running, place) in self.sums:
                yield segment.group, place, self._mean(running, place) * strength

    def _mean(self, running: Pass, place: int) -> Tensor:
        return self.sums[running, place] / self.num_places[running]


def measure(
    readers: Iterable[Any],
    stage: Stage,
    *,
    run: Callable[[Any, OnInput], object],
    batches: Iterable[Any],
    contribution: bool = False,
) -> Activity:
    """The mean activity of the neurons that `readers` read, or, if asked for, their contribution.

    `run` runs a batch and shows what each layer reads.
    """
    meters = [_Meter(layer.site, layer, stage) for layer in readers]
    meter_at = {meter.site.path: meter for meter in meters}

    def on_input(layer: Any, x: Tensor) -> None:
        if layer.site.path in meter_at:
            meter_at[layer.site.path].read(x)

    for batch in batches:
        run(batch, on_input)
    if not any(meter.num_places[Pass.FREE] for meter in meters):
        raise ArgumentError("no sample was given: mean activity needs data")
    found: dict[Pass, dict[str, Tensor]] = {}
    for running, layout in ((Pass.FREE, stage.free), (Pass.FROZEN, stage.frozen)):
        zeros = {g: torch.zeros(n, dtype=torch.float64, device="cpu") for g, n in layout.items()}
        found[running] = zeros
        for meter in meters:
            if running is Pass.FREE and not getattr(meter.layer, "num_free_rows", True):
                continue  # A layer without free rows cannot read a free neuron.
            for group, mean in (meter.shares if contribution else meter.means)(running):
                found[running][group] = torch.maximum(found[running][group], mean.cpu())
        for group, mean in found[running].items():
            if not bool(torch.isfinite(mean).all()):
                raise DivergedError(
                    f"the activity of {group} is NaN or infinite: the task has diverged, or its "
                    "data holds such values. Abandon it, and train again with a lower rate"
                )
    if contribution:
        for group, share in found[Pass.FREE].items():
            sums = up_to(torch.cat([share, found[Pass.FROZEN][group]]))
            found[Pass.FREE][group] = sums[: len(share)]
            found[Pass.FROZEN][group] = sums[len(share) :]
    return Activity(found[Pass.FREE], found[Pass.FROZEN])


def up_to(shares: Tensor) -> Tensor:
    """For each of the shares, the sum of all that are no larger.

    up_to(tensor([3, 0, 1, 1])) == tensor([5, 0, 2, 2])
    """
    ascending = shares.sort().values
    sums = torch.cat([ascending.new_zeros(1), ascending.cumsum(0)])
    return sums[torch.searchsorted(ascending, shares, right=True)]


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
