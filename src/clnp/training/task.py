"""A task: a name, its data, its number of outputs and its objective."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import IterableDataset

from clnp.checks import listed
from clnp.core.net import checked_outputs
from clnp.errors import ArgumentError

from .batches import Batches, Data, Prepare, batches_of, fits, is_pair, split_off
from .config import LearnerConfig
from .objective import CLASSIFICATION, MULTI_LABEL, REGRESSION, Objective, objective_named
from .rng import derive, isolated, seed_all


@dataclass(frozen=True)
class Task:
    """Training, validation and test data of one task, and how it is judged.

    Each part is a pair of tensors (inputs, targets), or a map-style Dataset of such pairs, such as
    a list of samples. Without validation data, `Learner` splits a part of the training data off.
    `objective` is
    "classification", "multi-label", "regression" or an `Objective` of your own, for which
    `num_outputs` must be given; else it is found from the targets. `prepare` changes each batch of
    inputs on the device, before the network sees it: bytes into normalised numbers, say. `classes`
    are what the outputs stand for, in their order; an export notes them.
    """

    name: str
    train: Data
    validation: Data | None = None
    test: Data | None = None
    num_outputs: int | None = None
    objective: str | Objective = "classification"
    prepare: Prepare | None = None
    classes: tuple[int | str, ...] | None = None


def checked_tasks(tasks: object) -> tuple[Task, ...]:
    """The tasks, of which there is at least one, and each has a name of its own."""
    found = listed("tasks", tasks, lambda task: isinstance(task, Task), what="tasks")
    if not found:
        raise ArgumentError("an experiment needs at least one task", argument="tasks")
    name, times = Counter(task.name for task in found).most_common(1)[0]
    if times > 1:
        raise ArgumentError(f"two tasks are called {name!r}", argument="tasks")
    return tuple(found)


@dataclass(frozen=True)
class TaskData:
    """A task's data on a device, checked; `test` is empty where the task has none."""

    task: Task
    objective: Objective
    num_outputs: int
    train: Batches
    validation: Batches
    test: Batches | None


def load(
    task: Task,
    device: torch.device,
    *,
    seed: int = 0,
    validation_fraction: float = 0.1,
    resident: bool | None = None,
    num_workers: int = 0,
    check: bool = True,
) -> TaskData:
    """The task's data on the device, its validation part split off when it has none.

    Everything that would make training fail or mean nothing is refused here: empty parts, inputs
    that are NaN or infinite, labels that are out of range. That takes one pass over the data, which
    `check=False` saves where it is streamed.
    """
    objective = objective_named(task.objective)
    check_parts(task)
    train, validation = task.train, task.validation
    for part, data in _parts(task).items():
        _check_first(task.name, part, data)
    if validation is None:
        validation_seed = derive(seed, "validation", task.name)
        try:
            train, validation = split_off(train, validation_fraction, seed=validation_seed)
        except ArgumentError as error:
            raise ArgumentError(f"task {task.name!r}: {error}") from error
    options: Any = {"num_workers": num_workers, "prepare": _preparing(task)}
    loaded = {"training": batches_of(train, device, resident=resident, **options)}
    with isolated(device):
        # All that is compared is compared on the same samples, also where they are random: they are
        # drawn once, if there is room, and the same after a crash.
        seed_all(derive(seed, "validation samples", task.name))
        keep = True if resident is None and (is_pair(validation) or fits(validation)) else resident
        loaded["validation"] = batches_of(validation, device, resident=keep, **options)
    if task.test is not None:
        loaded["test"] = batches_of(task.test, device, resident=resident, **options)
    num_outputs = task.num_outputs
    if num_outputs is None:
        # A rare label may have gone to the part that was split off.
        given = ("training", "validation") if task.validation is None else ("training",)
        num_outputs = _num_outputs(task, objective, [loaded[part] for part in given])
    num_outputs = checked_outputs(num_outputs, own=1, single=False)
    for part, batches in loaded.items():
        if check or batches.inputs is not None:
            _check_values(f"task {task.name!r}, {part} data", batches, objective, num_outputs)
    test = loaded.get("test")
    judged = loaded["validation"].prepared()
    return TaskData(task, objective, num_outputs, loaded["training"], judged, test)


def load_test(
    task: Task, device: torch.device, *, resident: bool | None = None, num_workers: int = 0
) -> Batches | None:
    """The task's test data on the device, if it has any."""
    if task.test is None:
        return None
    _check_shape(task.name, "test", task.test)
    _check_first(task.name, "test", task.test)
    return batches_of(
        task.test, device, resident=resident, num_workers=num_workers, prepare=_preparing(task)
    )


def _preparing(task: Task) -> Prepare | None:
    """What prepares the task's inputs, held to giving a tensor."""
    given = task.prepare
    if given is None:
        return None

    def prepare(inputs: Tensor) -> Tensor:
        found: object = given(inputs)
        if not isinstance(found, Tensor):
            raise ArgumentError(
                f"task {task.name!r}: prepare returns a {type(found).__name__}; it must return the "
                "inputs as the network is to see them, a tensor",
                argument="prepare",
            )
        return found

    return prepare


def check_parts(task: Task) -> None:
    """Raise an `ArgumentError` unless every part of the data is of a known kind; none is read."""
    if task.train is None:
        raise ArgumentError(
            f"task {task.name!r} has no training data; give a pair of tensors or a map-style "
            "Dataset",
            argument="train",
        )
    if task.prepare is not None and not callable(task.prepare):
        found = type(task.prepare).__name__
        message = f"task {task.name!r}: prepare is a {found}; it must be a function of the inputs"
        raise ArgumentError(message, argument="prepare")
    for part, data in _parts(task).items():
        _check_shape(task.name, part, data)


def _parts(task: Task) -> dict[str, Data]:
    """The data of the task by what it is for."""
    parts = {"training": task.train, "validation": task.validation, "test": task.test}
    return {part: data for part, data in parts.items() if data is not None}


def _check_shape(task: str, part: str, data: Any) -> None:
    where = f"task {task!r}, {part} data"
    if is_pair(data):
        if len(data) != 2 or not all(isinstance(t, Tensor) and t.ndim for t in data):
            raise ArgumentError(
                f"{where}: expected a pair of tensors, inputs and targets, not {_kinds(data)}"
            )
        if len(data[0]) != len(data[1]):
            raise ArgumentError(f"{where}: {len(data[0])} inputs and {len(data[1])} targets")
        size = len(data[0])
    elif _is_map_style(data):
        size = len(data)
    else:
        raise ArgumentError(
            f"{where} is a {type(data).__name__}; expected a pair of tensors or a map-style Dataset"
        )
    if size == 0:
        raise ArgumentError(f"{where} is empty")


def _kinds(data: Any) -> str:
    """What a tuple or list holds, in a few words."""
    kinds = [
        "a tensor without an axis"
        if isinstance(each, Tensor) and not each.ndim
        else type(each).__name__
        for each in data[:3]
    ]
    return f"({', '.join(kinds)}{', ...' if len(data) > 3 else ''})"


def _check_first(task: str, part: str, data: Any) -> None:
    """Read the first sample, if the data is no tensors, and refuse what is no sample."""
    if not is_pair(data):
        _check_sample(f"task {task!r}, {part} data", data[0])


def _is_map_style(data: Any) -> bool:
    if isinstance(data, IterableDataset | Mapping | Tensor | ndarray | str):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _check_sample(where: str, sample: Any) -> None:
    kinds = [type(part).__name__ for part in sample] if isinstance(sample, tuple | list) else []
    if len(kinds) != 2 or not all(isinstance(part, Tensor | ndarray | Number) for part in sample):
        found = f"({', '.join(kinds)})" if kinds else f"a {type(sample).__name__}"
        raise ArgumentError(
            f"{where}: a sample is {found}; expected a pair, a tensor and its target, "
            "a tensor or a number"
        )


def _num_outputs(task: Task, objective: Objective, given: Iterable[Batches]) -> int:
    if objective is CLASSIFICATION:
        highest = 0
        for batches in given:
            for _, targets in batches.batches(4096):
                _check_labels(f"task {task.name!r}, training data", targets)
                highest = max(highest, int(targets.max()))
        return 1 + highest
    if objective in (MULTI_LABEL, REGRESSION):
        _, targets = next(next(iter(given)).batches(1))
        return int(targets.shape[1]) if targets.ndim > 1 else 1
    raise ArgumentError(
        f"task {task.name!r}: give num_outputs, which only you know for an objective of your own"
    )


def _check_labels(where: str, targets: Tensor) -> None:
    if targets.is_floating_point() or targets.ndim != 1:
        raise ArgumentError(
            f"{where}: the targets are {targets.dtype} of shape {tuple(targets.shape)}; "
            "classification needs one whole number for each sample"
        )


def _check_values(where: str, batches: Batches, objective: Objective, num_outputs: int) -> None:
    for inputs, targets in batches.batches(4096):
        if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
            raise ArgumentError(f"{where}: an input is NaN or infinite")
        if objective is CLASSIFICATION:
            _check_labels(where, targets)
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= num_outputs:
                raise ArgumentError(
                    f"{where}: labels go from {low} to {high}; a task with {num_outputs} outputs "
                    f"has labels from 0 to {num_outputs - 1}"
                )
            continue
        if objective in (MULTI_LABEL, REGRESSION) and targets[0].numel() != num_outputs:
            raise ArgumentError(
                f"{where}: the targets have shape {tuple(targets.shape)}; {objective.name} with "
                f"{num_outputs} outputs needs {num_outputs} for each sample"
            )
        if objective is MULTI_LABEL and not bool(((targets == 0) | (targets == 1)).all()):
            raise ArgumentError(f"{where}: multi-label targets must be 0 or 1")
        if targets.is_floating_point() and not bool(targets.isfinite().all()):
            raise ArgumentError(f"{where}: a target is NaN or infinite")


def load_task(task: Task, device: torch.device, config: LearnerConfig, *, seed: int) -> TaskData:
    """The task's data on the device, with the same samples held out whatever the method."""
    seed_all(derive(seed, "load", task.name))
    return load(
        task,
        device,
        seed=seed,
        validation_fraction=config.validation_fraction,
        resident=config.resident,
        num_workers=config.num_workers,
        check=config.check_data,
    )
