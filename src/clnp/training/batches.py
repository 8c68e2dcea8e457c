"""A data set in batches: resident on the device if it fits, otherwise streamed by workers."""

import itertools
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any, TypeGuard

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from clnp.devices import on_the_host
from clnp.errors import ArgumentError, first_line

from .rng import derive, permutation

RESIDENT_BYTES = 2 << 30
"""Size up to which a data set is put on the device by default."""

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes that PyTorch can store, and hardly compute with."""

Data = tuple[Tensor, Tensor] | Dataset[Any] | list[tuple[Any, Any]]
Prepare = Callable[[Tensor], Tensor]
Relabel = Callable[[Tensor], Tensor]
"""Returns the outputs, [samples], that the labels in the data stand for."""


def is_pair(data: object) -> TypeGuard[tuple[Tensor, Tensor]]:
    """Whether the data is inputs and targets, rather than samples one by one."""
    return isinstance(data, tuple | list) and bool(data) and not isinstance(data[0], tuple | list)


def num_samples(data: Data) -> int:
    """Return the number of samples."""
    return len(data[0]) if is_pair(data) else len(data)  # type: ignore[arg-type]


def kinds(values: Sequence[Any]) -> str:
    """Return the types in a tuple or list, in a few words."""
    words = [
        f"{type(v).__name__} {list(v.shape)}" if isinstance(v, Tensor) else type(v).__name__
        for v in values[:3]
    ]
    return f"({', '.join(words)}{', ...' if len(values) > 3 else ''})"


def check_tensor(where: str, tensor: Tensor) -> None:
    """Raise an `ArgumentError` unless the tensor is dense and has data."""
    faults = {
        "nested": tensor.is_nested,
        "sparse": tensor.layout is not torch.strided,
        "on the meta device, without data": tensor.is_meta,
        "quantized": tensor.is_quantized,
    }
    for fault, is_so in faults.items():
        if is_so:
            raise ArgumentError(f"{where}: a tensor is {fault}. Give dense tensors with data")


def check_sample(where: str, sample: object) -> None:
    """Raise an `ArgumentError` unless a sample is a pair of an input and a target."""
    if not isinstance(sample, tuple | list):
        found = f"a {type(sample).__name__}"
    elif len(sample) == 2 and all(map(_is_number, sample)):
        for part in sample:
            if isinstance(part, Tensor):
                check_tensor(where, part)
        return
    else:
        found = kinds(sample)
    raise ArgumentError(
        f"{where}: a sample is {found}. It must be a pair of an input, a tensor, and a target, "
        "a tensor or a number"
    )


def _is_number(part: object) -> bool:
    """Whether the part of a sample is a number, or a tensor or array of numbers."""
    if isinstance(part, ndarray):
        return part.dtype.kind in "biufc"
    return isinstance(part, Tensor | Real)


@dataclass(frozen=True)
class Batches:
    """A data set on a device, in batches.

    Resident data has `inputs` and `targets`. Otherwise `dataset` is streamed by `num_workers`
    processes. `prepare` changes each batch of inputs on the device, and `relabel` each batch of
    targets; those of resident data have been changed already. `where` begins messages.
    """

    device: torch.device
    inputs: Tensor | None = None
    targets: Tensor | None = None
    dataset: Dataset[Any] | list[tuple[Any, Any]] | None = None
    num_workers: int = 0
    prepare: Prepare | None = None
    relabel: Relabel | None = None
    where: str = "the data"

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
        once = self.ready(few.clone())
        fits = once.nbytes * len(self) <= RESIDENT_BYTES * len(few)
        if not fits or not torch.equal(once, self.ready(few.clone())):
            return self
        inputs = torch.cat([inputs for inputs, _ in self.batches(1024)])
        return replace(self, inputs=inputs, prepare=None)

    def batches(self, size: int, *, seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over batches of inputs and targets on the device, shuffled if there is a seed.

        Batches are copies and may be written to. A shuffled pass leaves out a last batch of one
        sample, on which BatchNorm cannot train, unless all batches have one.
        """
        for inputs, targets in self._unprepared(size, seed):
            yield self.ready(inputs), targets

    def ready(self, stored: Tensor) -> Tensor:
        """Return a batch of inputs prepared; an `ArgumentError` if these are not as many."""
        if self.prepare is None:
            return stored
        num = len(stored)
        inputs = self.prepare(stored)
        if not isinstance(inputs, Tensor):
            raise ArgumentError(
                f"{self.where}: prepare returns a {type(inputs).__name__}. It must return the "
                "inputs of the network, a tensor",
                argument="prepare",
            )
        check_tensor(f"{self.where}, prepared", inputs)
        if not inputs.ndim or len(inputs) != num:
            raise ArgumentError(
                f"{self.where}: prepare returns a tensor of shape {list(inputs.shape)} for {num} "
                f"samples. Its first dimension must be {num}",
                argument="prepare",
            )
        return inputs

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
        return self.ready(self.inputs[indices]), self.targets[indices]

    def _streamed(self, size: int, seed: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        batches = _read(
            self.dataset,
            size,
            where=self.where,
            num_workers=self.num_workers,
            shuffle=seed is not None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(seed if seed is not None else 0),
        )
        for inputs, targets in batches:
            if len(inputs) > 1 or seed is None or 1 in (size, len(self)):
                targets = targets.to(self.device, non_blocking=True)
                yield (
                    inputs.to(self.device, non_blocking=True),
                    targets if self.relabel is None else self.relabel(targets),
                )


def _ignore_signals(worker: int) -> None:
    """Let the main process stop the workers: a terminal signals all processes of a group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _read(
    dataset: Any, size: int, *, where: str, num_workers: int, **options: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over batches without gradients; the default device is set aside for the loader."""
    num_batches = math.ceil(len(dataset) / size)
    with on_the_host():
        loader: DataLoader[Any] = DataLoader(
            dataset,
            size,
            collate_fn=partial(_collated, where=where),
            # Others would have nothing to do.
            num_workers=min(num_workers, num_batches),
            worker_init_fn=_ignore_signals,
            **options,
        )
        batches = iter(loader)
    while True:
        with on_the_host(), _samples_of(dataset, where):
            batch = next(batches, None)
        if batch is None:
            return
        inputs, targets = batch
        yield inputs.detach(), _targets(targets)


@contextmanager
def _samples_of(dataset: Any, where: str) -> Iterator[None]:
    """Raise an `ArgumentError` if the data set has fewer samples than it says."""
    try:
        yield
    except IndexError as error:
        raise ArgumentError(
            f"{where}: reading a sample raises an IndexError, {first_line(error)}. Its __len__, "
            f"{len(dataset)}, must be the number of samples"
        ) from error


def _collated(samples: list[Any], where: str) -> list[Tensor]:
    """Return a batch of samples, or raise an `ArgumentError` about the first that does not fit."""
    try:
        batch: list[Any] = default_collate(samples)
    except (RuntimeError, TypeError, ValueError) as error:
        for sample in samples:
            check_sample(where, sample)
        raise ArgumentError(
            f"{where}: samples do not fit into one batch: {first_line(error)}. Give all of them "
            "the same shapes and types"
        ) from error
    if len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        check_sample(where, samples[0])
    for part in batch:
        check_tensor(where, part)
    return batch


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
    relabel: Relabel | None = None,
    where: str = "the data",
) -> Batches:
    """Return the data on the device; by default, it is resident if it fits and is not random.

    Gradients do not reach a model that computed the data, a backbone for example.
    """
    samples: Any = data
    if is_pair(data):
        inputs, targets = data[0].detach(), _targets(data[1])
        if resident is not False:
            targets = targets.to(device)
            targets = targets if relabel is None else relabel(targets)
            return Batches(device, inputs.to(device), targets, prepare=prepare, where=where)
        samples = TensorDataset(inputs, targets)
    elif resident is None:
        resident = fits(samples, where) and _is_constant(samples, where)
    if not resident:
        return Batches(
            device,
            dataset=samples,
            num_workers=num_workers,
            prepare=prepare,
            relabel=relabel,
            where=where,
        )
    parts = _read(samples, 1024, where=where, num_workers=num_workers)
    inputs, targets = (torch.cat(part).to(device) for part in zip(*parts, strict=True))
    targets = targets if relabel is None else relabel(targets)
    return Batches(device, inputs, targets, prepare=prepare, where=where)


def fits(dataset: Any, where: str = "the data") -> bool:
    """Whether all samples of a data set fit on the device if they are as large as the first."""
    size = sum(part.nbytes for part in _sample(dataset, 0, where))
    return size * len(dataset) <= RESIDENT_BYTES


def _is_constant(dataset: Any, where: str, num_reads: int = 64) -> bool:
    """Whether samples are the same when they are read again, unlike with random transforms.

    A random flip leaves half of the pairs equal, so that a few reads would not do.
    """
    indices = (read % len(dataset) for read in range(num_reads))
    return all(
        torch.equal(a, b)
        for index in indices
        for a, b in zip(_sample(dataset, index, where), _sample(dataset, index, where), strict=True)
    )


def _sample(dataset: Any, index: int, where: str) -> list[Tensor]:
    """Return a sample of a data set in tensors."""
    with _samples_of(dataset, where):
        sample = dataset[index]
    check_sample(where, sample)
    return [torch.as_tensor(part, device="cpu") for part in sample]


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
