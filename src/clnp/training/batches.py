"""A data set in batches: resident on the device if it fits, otherwise streamed by workers."""

import itertools
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from clnp.devices import on_the_host
from clnp.errors import ArgumentError

from .rng import derive, permutation

RESIDENT_BYTES = 2 << 30
"""Size up to which a data set is put on the device by default."""

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes that PyTorch can store, and hardly compute with."""

Data = tuple[Tensor, Tensor] | Dataset[Any] | list[tuple[Any, Any]]
Prepare = Callable[[Tensor], Tensor]


def is_pair(data: object) -> TypeGuard[tuple[Tensor, Tensor]]:
    """Whether the data is inputs and targets, rather than samples one by one."""
    return isinstance(data, tuple | list) and bool(data) and not isinstance(data[0], tuple | list)


def num_samples(data: Data) -> int:
    """Return the number of samples."""
    return len(data[0]) if is_pair(data) else len(data)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Batches:
    """A data set on a device, in batches.

    Resident data has `inputs` and `targets`. Otherwise `dataset` is streamed by `num_workers`
    processes. `prepare` changes each batch of inputs on the device.
    """

    device: torch.device
    inputs: Tensor | None = None
    targets: Tensor | None = None
    dataset: Dataset[Any] | list[tuple[Any, Any]] | None = None
    num_workers: int = 0
    prepare: Prepare | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset if self.inputs is None else self.inputs)  # type: ignore[arg-type]

    def prepared(self) -> "Batches":
        """Return the data with its inputs prepared now, if they fit and `prepare` is not random.

        For data that is read many times: a search scores all thresholds on it.
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
        """Iterate over batches of inputs and targets on the device, shuffled if there is a seed.

        Batches are copies and may be written to. A shuffled pass leaves out a last batch of one
        sample, on which BatchNorm cannot train, unless all batches have one.
        """
        for inputs, targets in self._unprepared(size, seed):
            yield inputs if self.prepare is None else self.prepare(inputs), targets

    def some(self, num: int, *, most: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over about `num` random samples in batches of one size, at most `most`."""
        num_batches = math.ceil(num / most)
        batches = self.batches(math.ceil(num / num_batches), seed=seed)
        return itertools.islice(batches, num_batches)

    def _unprepared(self, size: int, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        if self.inputs is None:
            yield from self._streamed(size, seed)
            return
        assert self.targets is not None
        if seed is None:
            for start in range(0, len(self), size):
                here = slice(start, start + size)
                yield self.inputs[here].clone(), self.targets[here].clone()
            return
        for indices in self.indices(size, seed=seed):
            yield self.inputs[indices], self.targets[indices]

    def indices(self, size: int, *, seed: int) -> Iterator[Tensor]:
        """Iterate over the indices of the samples in each batch of a shuffled pass, [size]."""
        for batch in torch.split(permutation(len(self), seed).to(self.device), size):
            if len(batch) > 1 or 1 in (size, len(self)):
                yield batch

    def at(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples of resident data."""
        assert self.inputs is not None
        assert self.targets is not None
        inputs = self.inputs[indices]
        return inputs if self.prepare is None else self.prepare(inputs), self.targets[indices]

    def _streamed(self, size: int, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        batches = _read(
            self.dataset,
            size,
            num_workers=self.num_workers,
            shuffle=seed is not None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(seed if seed is not None else 0),
        )
        for inputs, targets in batches:
            if len(inputs) > 1 or seed is None or 1 in (size, len(self)):
                yield (
                    inputs.to(self.device, non_blocking=True),
                    targets.to(self.device, non_blocking=True),
                )


def _ignore_signals(worker: int) -> None:
    """Let the main process stop the workers: a terminal signals all processes of a group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _read(dataset: Any, size: int, **options: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over batches without gradients; the default device is set aside for the loader."""
    with on_the_host():
        loader: DataLoader[Any] = DataLoader(
            dataset, size, worker_init_fn=_ignore_signals, **options
        )
        batches = iter(loader)
    while True:
        with on_the_host():
            batch = next(batches, None)
        if batch is None:
            return
        inputs, targets = batch
        yield inputs.detach(), _targets(targets)


def _targets(targets: Tensor) -> Tensor:
    """Return targets without gradients, in a dtype to compute with."""
    return targets.detach().long() if targets.dtype in _UNSIGNED else targets.detach()


def batches_of(
    data: Data,
    device: torch.device,
    *,
    resident: bool | None = None,
    num_workers: int = 0,
    prepare: Prepare | None = None,
) -> Batches:
    """Return the data on the device; by default, it is resident if it fits and is not random.

    Gradients do not reach a model that computed the data, a backbone for example.
    """
    samples: Any = data
    if is_pair(data):
        inputs, targets = data[0].detach(), _targets(data[1])
        if resident is not False:
            return Batches(device, inputs.to(device), targets.to(device), prepare=prepare)
        samples = TensorDataset(inputs, targets)
    elif resident is None:
        resident = fits(samples) and _is_constant(samples)
    if not resident:
        return Batches(device, dataset=samples, num_workers=num_workers, prepare=prepare)
    parts = list(_read(samples, 1024, num_workers=num_workers))
    inputs, targets = (torch.cat(part).to(device) for part in zip(*parts, strict=True))
    return Batches(device, inputs, targets, prepare=prepare)


def fits(dataset: Any) -> bool:
    """Whether all samples of a data set fit on the device if they are as large as the first."""
    size = sum(torch.as_tensor(part, device="cpu").nbytes for part in dataset[0])
    return size * len(dataset) <= RESIDENT_BYTES


def _is_constant(dataset: Any, num_reads: int = 64) -> bool:
    """Whether samples are the same when they are read again, unlike with random transforms.

    A random flip leaves half of the pairs equal, so that a few reads would not do.
    """
    indices = (read % len(dataset) for read in range(num_reads))
    return all(
        torch.equal(torch.as_tensor(a, device="cpu"), torch.as_tensor(b, device="cpu"))
        for index in indices
        for a, b in zip(dataset[index], dataset[index], strict=True)
    )


def split_off(data: Data, fraction: float, *, seed: int) -> tuple[Data, Data]:
    """Split the data at random into the rest and this fraction of it."""
    count = num_samples(data)
    num_apart = round(count * fraction)
    if not 0 < num_apart < count:
        raise ArgumentError(
            f"holding out {fraction:g} of {count} training samples leaves an empty part. Give "
            "validation data, or another fraction"
        )
    order = permutation(count, derive(seed, "split"))
    apart, rest = order[:num_apart].sort().values, order[num_apart:].sort().values
    if is_pair(data):
        inputs, targets = data[0], _targets(data[1])
        return (inputs[rest], targets[rest]), (inputs[apart], targets[apart])
    subset: Any = Subset
    return subset(data, rest.tolist()), subset(data, apart.tolist())
