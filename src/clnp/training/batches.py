"""Batches of one data set: resident on the device where it fits, streamed by workers where not."""

import itertools
import math
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from clnp.devices import on_the_host
from clnp.errors import ArgumentError

from .rng import derive

RESIDENT_BYTES = 2 << 30
"""A data set up to this size is put on the device as a whole, unless told otherwise."""

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Whole numbers with which PyTorch can do little more than keep them."""

Data = tuple[Tensor, Tensor] | Dataset[Any] | list[tuple[Any, Any]]
Prepare = Callable[[Tensor], Tensor]


def is_pair(data: object) -> TypeGuard[tuple[Tensor, Tensor]]:
    """Whether it is inputs and targets, rather than samples one by one."""
    return isinstance(data, tuple | list) and bool(data) and not isinstance(data[0], tuple | list)


def num_samples(data: Data) -> int:
    """How many samples there are."""
    return len(data[0]) if is_pair(data) else len(data)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Batches:
    """A data set on a device, in batches.

    `inputs` and `targets` are there when the data is resident; otherwise `dataset` is streamed by
    `num_workers` processes. `prepare` changes each batch of inputs on the device.
    """

    device: torch.device
    inputs: Tensor | None = None
    targets: Tensor | None = None
    dataset: Dataset[Any] | list[tuple[Any, Any]] | None = None
    num_workers: int = 0
    prepare: Prepare | None = None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.dataset if self.inputs is None else self.inputs)  # type: ignore[arg-type]

    def prepared(self) -> "Batches":
        """The same with its inputs prepared once for all, if that fits and gives no other inputs.

        For data that is gone through many times: all thresholds of a search are tried on it.
        """
        if self.inputs is None or self.prepare is None:
            return self
        few = self.inputs[:64]
        once = self.prepare(few.clone())
        fits = once.nbytes * len(self) <= RESIDENT_BYTES * len(few)
        if not fits or not torch.equal(once, self.prepare(few.clone())):
            return self
        inputs = torch.cat([inputs for inputs, _ in self.batches(1024)])
        return replace(self, inputs=inputs, prepare=None)

    def batches(self, size: int, *, seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets on the device, `size` at a time; shuffled when a seed is given.

        They are copies, into which whoever gets them may write. A shuffled pass leaves out a last
        batch of one sample, on which BatchNorm cannot train, unless all batches are of one.
        """
        for inputs, targets in self._raw(size, seed):
            yield inputs if self.prepare is None else self.prepare(inputs), targets

    def some(self, num: int, *, most: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """About so many samples, drawn at random, in batches that are alike: at most `most`."""
        num_batches = math.ceil(num / most)
        batches = self.batches(math.ceil(num / num_batches), seed=seed)
        return itertools.islice(batches, num_batches)

    def _raw(self, size: int, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        if self.inputs is None:
            yield from self._streamed(size, seed)
            return
        assert self.targets is not None
        if seed is None:
            for start in range(0, len(self), size):
                here = slice(start, start + size)
                yield self.inputs[here].clone(), self.targets[here].clone()
            return
        for places in self.places(size, seed=seed):
            yield self.inputs[places], self.targets[places]

    def places(self, size: int, *, seed: int) -> Iterator[Tensor]:
        """The samples of each batch of a shuffled pass, by number, on the device."""
        # Drawn on the CPU, so that the order does not depend on the device.
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator, device="cpu")
        for batch in torch.split(order.to(self.device), size):
            if len(batch) > 1 or 1 in (size, len(self)):
                yield batch

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples; the data is resident."""
        assert self.inputs is not None
        assert self.targets is not None
        inputs = self.inputs[places]
        return inputs if self.prepare is None else self.prepare(inputs), self.targets[places]

    def _streamed(self, size: int, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.dataset is not None
        loader: DataLoader[Any] = DataLoader(
            self.dataset,  # type: ignore[arg-type]
            batch_size=size,
            shuffle=seed is not None,
            num_workers=self.num_workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_leave_signals,
            generator=torch.Generator().manual_seed(seed if seed is not None else 0),
        )
        for inputs, targets in _read(loader):
            if len(inputs) > 1 or seed is None or 1 in (size, len(self)):
                yield (
                    inputs.detach().to(self.device, non_blocking=True),
                    _targets(targets).to(self.device, non_blocking=True),
                )


def _read(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """What the loader gives; whoever gets it has their own default device again."""
    with on_the_host():
        batches = iter(loader)
    while True:
        with on_the_host():
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _targets(targets: Tensor) -> Tensor:
    """Targets that can be computed with, and are not trained."""
    return targets.detach().long() if targets.dtype in _UNSIGNED else targets.detach()


def _leave_signals(worker: int) -> None:
    """Leave it to the main process to stop: a signal often goes to all processes of a group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Kept:
    """What is drawn when it is first asked for, and the same ever after.

    A data set may give other samples every time, and what is compared must have been given the
    same ones.
    """

    def __init__(self, draw: Callable[[], Iterable[Any]]) -> None:
        self._draw = draw
        self._drawn: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._drawn is None:
            self._drawn = list(self._draw())
        return iter(self._drawn)


def batches_of(
    data: Data,
    device: torch.device,
    *,
    resident: bool | None = None,
    num_workers: int = 0,
    prepare: Prepare | None = None,
) -> Batches:
    """The data on the device: resident if it is asked for, or fits and is the same every time.

    What made it, a backbone for example, is not trained with it.
    """
    if is_pair(data):
        inputs, targets = (tensor.detach() for tensor in data)
        if resident is False:
            dataset = torch.utils.data.TensorDataset(inputs, targets)
            return Batches(device, dataset=dataset, num_workers=num_workers, prepare=prepare)
        return Batches(device, inputs.to(device), _targets(targets).to(device), prepare=prepare)
    samples: Any = data
    if resident is None:
        resident = fits(samples) and _is_constant(samples)
    if not resident:
        return Batches(device, dataset=samples, num_workers=num_workers, prepare=prepare)
    loader: DataLoader[Any] = DataLoader(
        samples, batch_size=1024, num_workers=num_workers, worker_init_fn=_leave_signals
    )
    parts = [(inputs.detach(), _targets(targets)) for inputs, targets in _read(loader)]
    inputs = torch.cat([part[0] for part in parts]).to(device)
    targets = torch.cat([part[1] for part in parts]).to(device)
    return Batches(device, inputs, targets, prepare=prepare)


def fits(dataset: Any) -> bool:
    """Whether there is room for all samples of a data set, if they are as large as the first."""
    size = sum(torch.as_tensor(part, device="cpu").nbytes for part in dataset[0])
    return size * len(dataset) <= RESIDENT_BYTES


def _is_constant(dataset: Dataset[Any] | list[tuple[Any, Any]], num_reads: int = 64) -> bool:
    """Whether samples are the same when they are read again: random transforms are not.

    A random flip leaves half of the pairs alike, so that a few would not do.
    """
    places = (read % len(dataset) for read in range(num_reads))  # type: ignore[arg-type]
    return all(
        torch.equal(torch.as_tensor(a, device="cpu"), torch.as_tensor(b, device="cpu"))
        for place in places
        for a, b in zip(dataset[place], dataset[place], strict=True)
    )


def split_off(data: Data, fraction: float, *, seed: int) -> tuple[Data, Data]:
    """The data without a random part of it, and that part."""
    count = num_samples(data)
    num_apart = round(count * fraction)
    if not 0 < num_apart < count:
        raise ArgumentError(
            f"{fraction:g} of {count} training samples leaves an empty part; "
            "give validation data, or another fraction"
        )
    generator = torch.Generator().manual_seed(derive(seed, "split"))
    order = torch.randperm(count, generator=generator, device="cpu")
    apart, rest = order[:num_apart].sort().values, order[num_apart:].sort().values
    if is_pair(data):
        return (data[0][rest], data[1][rest]), (data[0][apart], data[1][apart])
    subset: Any = torch.utils.data.Subset
    return subset(data, rest.tolist()), subset(data, apart.tolist())
