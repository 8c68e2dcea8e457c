"""Streams: sequences of tasks made from data sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clnp.checks import COUNT, optional, settle
from clnp.errors import ArgumentError
from clnp.training.rng import derive, permutation
from clnp.training.task import Task, check_names

from .labelled import LabelledData, Prepare

Find = Callable[[str], LabelledData]
"""Returns a data set by its name."""


@dataclass(frozen=True)
class Permuted:
    """Tasks that are the whole data set, each with another permutation of the inputs."""

    kind: Literal["permuted"]
    """Each task is the whole data set with another permutation of the inputs."""
    dataset: str
    """Name of a data set: digits, mnist, fashion-mnist, cifar10, cifar100, or of an npz file."""
    num_tasks: int = 10
    """Number of tasks."""
    normalise: bool = False
    """Normalise the inputs with the mean and standard deviation of the data set."""
    num_train: int | None = None
    """Number of training samples, drawn at random. By default, all of them."""

    def __post_init__(self) -> None:
        settle(self, {"num_tasks": COUNT, "num_train": optional(COUNT)})


@dataclass(frozen=True)
class Split:
    """Tasks that are some classes of the data set each, in the order of their outputs."""

    kind: Literal["split"]
    """Each task is some of the classes of a data set."""
    dataset: str
    """Name of a data set: digits, mnist, fashion-mnist, cifar10, cifar100, or of an npz file."""
    classes_per_task: int
    """Number of classes of each task."""
    num_tasks: int | None = None
    """Number of tasks. By default, as many as use all classes."""
    order: Literal["given", "shuffled"] | tuple[int, ...] = "given"
    """Order of the classes: by number, random, or the one that is listed."""
    normalise: bool = False
    """Normalise the inputs with the mean and standard deviation of the data set."""
    num_train: int | None = None
    """Number of training samples of each task, drawn at random. By default, all of them."""

    def __post_init__(self) -> None:
        counts = {"num_tasks": optional(COUNT), "num_train": optional(COUNT)}
        settle(self, {"classes_per_task": COUNT, **counts})


@dataclass(frozen=True)
class Chain:
    """Tasks of several streams, one stream after the other."""

    kind: Literal["chain"]
    """The tasks are those of several streams, one stream after the other."""
    parts: "tuple[Permuted | Split | Chain, ...]"
    """The streams."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise ArgumentError("parts is empty. Give at least one stream", argument="parts")


Stream = Permuted | Split | Chain


def tasks_of(stream: Stream, find: Find, *, seed: int = 0) -> list[Task]:
    """Return the tasks of a stream.

    Args:
        stream: The stream.
        find: Returns a data set by its name, for example `datasets.find`.
        seed: Seed of permutations, orders of classes and samples.

    Returns:
        The tasks, with distinct names.

    Example:
        >>> tasks = tasks_of(Permuted("permuted", "digits", num_tasks=3), datasets.find)
    """
    tasks = _tasks(stream, find, seed)
    check_names(tasks)
    return tasks


def _tasks(stream: Stream, find: Find, seed: int) -> list[Task]:
    if isinstance(stream, Chain):
        return [task for part in stream.parts for task in _tasks(part, find, seed)]
    data = find(stream.dataset)
    return (
        permuted(data, stream, seed) if isinstance(stream, Permuted) else split(data, stream, seed)
    )


def permuted(data: LabelledData, stream: Permuted, seed: int) -> list[Task]:
    """Return the tasks of a `Permuted` stream, which share the tensors of the data set."""
    size = data.train[0][0].numel()
    mean, deviation = _mean_and_deviation(data, stream)
    train = _some(data.train, stream.num_train, derive(seed, "samples", data.name))
    tasks = []
    for number in range(1, stream.num_tasks + 1):
        order = permutation(size, derive(seed, "permutation", data.name, number))
        tasks.append(
            Task(
                f"{data.name} permuted {number}",
                train,
                test=data.test,
                num_outputs=data.num_classes,
                prepare=Prepare(data.largest, order, mean=mean, deviation=deviation),
                classes=tuple(range(data.num_classes)),
            )
        )
    return tasks


def split(data: LabelledData, stream: Split, seed: int) -> list[Task]:
    """Return the tasks of a `Split` stream."""
    size = stream.classes_per_task
    most, left = divmod(data.num_classes, size)
    num_tasks = max(most, 1) if stream.num_tasks is None else stream.num_tasks
    if num_tasks > most:
        raise ArgumentError(
            f"{num_tasks} x {size} classes are more than the {data.num_classes} of {data.name}. "
            "Use fewer tasks, or fewer classes per task",
            argument="classes_per_task" if stream.num_tasks is None else "num_tasks",
        )
    if left and stream.num_tasks is None:
        raise ArgumentError(
            f"the {data.num_classes} classes of {data.name} do not divide into tasks of {size}. "
            f"Set num_tasks = {most} to leave {left} of them out",
            argument="classes_per_task",
        )
    classes = list(range(data.num_classes))
    if stream.order == "shuffled":
        classes = permutation(data.num_classes, derive(seed, "classes", data.name)).tolist()
    elif not isinstance(stream.order, str):
        classes = list(stream.order)
        if sorted(classes) != list(range(data.num_classes)):
            raise ArgumentError(
                f"order is {classes}. Give each of the {data.num_classes} classes of {data.name} "
                "once",
                argument="order",
            )
    mean, deviation = _mean_and_deviation(data, stream)
    tasks = []
    for number in range(num_tasks):
        chosen = classes[number * size : (number + 1) * size]
        name = _name(data, chosen, number + 1)
        train = _of_classes(data, "train", chosen)
        tasks.append(
            Task(
                name,
                _some(train, stream.num_train, derive(seed, "samples", name)),
                test=_of_classes(data, "test", chosen),
                num_outputs=size,
                prepare=Prepare(data.largest, mean=mean, deviation=deviation),
                classes=tuple(chosen),
            )
        )
    return tasks


def _mean_and_deviation(
    data: LabelledData, stream: Permuted | Split
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation to normalise with; empty without `normalise`."""
    if not stream.normalise:
        return (), ()
    if not data.mean:
        raise ArgumentError(
            f"the mean and deviation of {data.name} are not known. Remove normalise",
            argument="normalise",
        )
    return data.mean, data.deviation


def _some(samples: tuple[Tensor, Tensor], count: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return this many of the samples, drawn at random, in their order."""
    if count is None or count >= len(samples[0]):
        return samples
    chosen = permutation(len(samples[0]), seed)[:count].sort().values
    return samples[0][chosen], samples[1][chosen]


def _name(data: LabelledData, classes: Sequence[int], number: int) -> str:
    if len(classes) == data.num_classes:
        return data.name
    if len(classes) > 1 and list(classes) == list(range(classes[0], classes[-1] + 1)):
        return f"{data.name} {classes[0]}-{classes[-1]}"
    if len(classes) <= 4:
        return f"{data.name} {','.join(map(str, classes))}"
    return f"{data.name} part {number}"


def _of_classes(data: LabelledData, part: str, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
    inputs, labels = data.train if part == "train" else data.test
    chosen = torch.isin(labels, torch.tensor(classes, device=labels.device))
    if not bool(chosen.any()):
        raise ArgumentError(
            f"the {part} data of {data.name} has no sample of class "
            f"{', '.join(map(str, classes))}. Leave such classes out"
        )
    return inputs[chosen], labels[chosen]
