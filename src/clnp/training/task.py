"""A task: its name, data, number of outputs and objective; and its data on a device, checked."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import IterableDataset

from clnp.checks import listed
from clnp.core.net import checked_outputs
from clnp.errors import ArgumentError

from .batches import Batches, Data, Prepare, batches_of, fits, is_pair, num_samples, split_off
from .config import LearnerConfig
from .objective import CLASSIFICATION, MULTI_LABEL, REGRESSION, Objective, objective_named
from .rng import derive, isolated, seed_all


@dataclass(frozen=True)
class Task:
    """A task to learn: its name, its data, and its objective.

        clnp.Task("flowers", train=(x, y), test=(x_test, y_test))
        clnp.Task("birds", train=TrainSet(), prepare=lambda x: x.float() / 255)

    Args:
        name: Name of the task, unique in a network.
        train: Training data: a pair of tensors, inputs [samples, ...] and targets [samples, ...],
            or a map-style `Dataset` of (input, target) pairs, which may be a list. Targets of
            "classification" are labels from 0, [samples]; of "multi-label", 0 or 1,
            [samples, labels]; of "regression", numbers, [samples, values].
        validation: Validation data, in the same form. By default, `Learner` holds out a part of
            the training data.
        test: Test data, in the same form, if there is any.
        num_outputs: Number of outputs. By default, it is found from the targets; an objective of
            your own needs it.
        objective: "classification", "multi-label", "regression" or an `Objective`.
        prepare: Function of a batch of inputs on the device that returns the inputs of the network,
            for example normalised numbers for bytes.
        classes: Names of the outputs, in their order, which an export contains.
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
    """Return the tasks; an `ArgumentError` if there are none, or two of the same name."""
    found = listed("tasks", tasks, lambda task: isinstance(task, Task), what="tasks")
    if not found:
        message = "an experiment needs at least one task. Give a list of tasks"
        raise ArgumentError(message, argument="tasks")
    check_names(found)
    return tuple(found)


def check_names(tasks: Iterable[Task]) -> None:
    """Raise an `ArgumentError` if two tasks have the same name."""
    name, times = Counter(task.name for task in tasks).most_common(1)[0]
    if times > 1:
        raise ArgumentError(f"two tasks are called {name!r}. The names of tasks must be unique")


@dataclass(frozen=True)
class TaskData:
    """The data of a task on a device, checked; `test` is None where the task has none."""

    task: Task
    objective: Objective
    num_outputs: int
    train: Batches
    validation: Batches
    test: Batches | None


def load(
    task: Task, device: torch.device, config: LearnerConfig | None = None, *, seed: int = 0
) -> TaskData:
    """Load the data of a task on the device, and hold out validation data if it has none.

    The same samples are held out for every method. All generators are seeded.

    Raises an `ArgumentError` for data that cannot be learned: empty parts, inputs that are NaN or
    infinite, labels out of range. That takes one pass over the data; without `config.check_data`,
    streamed data is not checked.
    """
    config = config or LearnerConfig()
    seed_all(derive(seed, "load", task.name))
    objective = objective_named(task.objective)
    check_parts(task)
    train, validation, resident = task.train, task.validation, config.resident
    for part, data in _parts(task).items():
        _check_first(_where(task, part), data)
    if validation is None:
        validation_seed = derive(seed, "validation", task.name)
        try:
            fraction = config.validation_fraction
            train, validation = split_off(train, fraction, seed=validation_seed)
        except ArgumentError as error:
            raise ArgumentError(f"task {task.name!r}: {error}") from error
    place = partial(batches_of, device=device, num_workers=config.num_workers, prepare=task.prepare)
    loaded = {"training": place(train, resident=resident)}
    with isolated(device):
        # All scores use the same samples, also of random data: they are drawn once if they fit, and
        # the same ones when a run resumes.
        seed_all(derive(seed, "validation samples", task.name))
        keep = True if resident is None and (is_pair(validation) or fits(validation)) else resident
        loaded["validation"] = place(validation, resident=keep)
    if task.test is not None:
        loaded["test"] = place(task.test, resident=resident)
    num_outputs = task.num_outputs
    if num_outputs is None:
        # A rare label may be in the part that was held out.
        given = ("training", "validation") if task.validation is None else ("training",)
        num_outputs = _num_outputs(task, objective, [loaded[part] for part in given])
    num_outputs = checked_outputs(num_outputs, own=1, single=False)
    for part, batches in loaded.items():
        if config.check_data or batches.inputs is not None:
            _check_values(_where(task, part), batches, objective, num_outputs)
    validation_batches = loaded["validation"].prepared()
    return TaskData(
        task, objective, num_outputs, loaded["training"], validation_batches, loaded.get("test")
    )


def load_test(task: Task, device: torch.device, config: LearnerConfig) -> Batches | None:
    """Load the test data of a task on the device; None if it has none."""
    if task.test is None:
        return None
    return batches_of(
        task.test,
        device,
        resident=config.resident,
        num_workers=config.num_workers,
        prepare=task.prepare,
    )


def check_parts(task: Task) -> None:
    """Raise an `ArgumentError` unless each part of the data has a known form; none is read."""
    if task.train is None:
        raise ArgumentError(
            f"task {task.name!r} has no training data. Give {_FORMS}", argument="train"
        )
    if task.prepare is not None and not callable(task.prepare):
        found = type(task.prepare).__name__
        message = (
            f"task {task.name!r}: prepare is of type {found}. It must be a function of the inputs"
        )
        raise ArgumentError(message, argument="prepare")
    for part, data in _parts(task).items():
        _check_shape(_where(task, part), data)


_FORMS = "a pair of tensors or a map-style Dataset"


def _where(task: Task, part: str) -> str:
    return f"task {task.name!r}, {part} data"


def _parts(task: Task) -> dict[str, Data]:
    parts = {"training": task.train, "validation": task.validation, "test": task.test}
    return {part: data for part, data in parts.items() if data is not None}


def _check_shape(where: str, data: Any) -> None:
    if is_pair(data):
        are_tensors = len(data) == 2 and all(isinstance(t, Tensor) and t.ndim for t in data)
        if not are_tensors or len(data[0]) != len(data[1]):
            raise ArgumentError(
                f"{where} is {_kinds(data)}. Give a pair of tensors, inputs and targets, with one "
                "target for each input"
            )
    elif isinstance(data, IterableDataset | Mapping | Tensor | ndarray | str) or not (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        raise ArgumentError(f"{where} is of type {type(data).__name__}. Give {_FORMS}")
    if num_samples(data) == 0:
        raise ArgumentError(f"{where} is empty. Give at least one sample")


def _kinds(values: Any) -> str:
    """Return the types in a tuple or list, in a few words."""
    kinds = [
        f"{type(v).__name__} {list(v.shape)}" if isinstance(v, Tensor) else type(v).__name__
        for v in values[:3]
    ]
    return f"({', '.join(kinds)}{', ...' if len(values) > 3 else ''})"


def _check_first(where: str, data: Any) -> None:
    """Raise an `ArgumentError` unless the first sample of a data set is a pair."""
    if is_pair(data):
        return
    sample = data[0]
    is_sequence = isinstance(sample, tuple | list)
    known = Tensor | ndarray | Number
    if not is_sequence or len(sample) != 2 or not all(isinstance(part, known) for part in sample):
        found = _kinds(sample) if is_sequence else f"a {type(sample).__name__}"
        raise ArgumentError(
            f"{where}: a sample is {found}. It must be a pair of an input, a tensor, and a target, "
            "a tensor or a number"
        )


def _num_outputs(task: Task, objective: Objective, given: Iterable[Batches]) -> int:
    if objective is CLASSIFICATION:
        highest = 0
        for batches in given:
            for _, targets in batches.batches(4096):
                _check_labels(_where(task, "training"), targets)
                highest = max(highest, int(targets.max()))
        return 1 + highest
    if objective in (MULTI_LABEL, REGRESSION):
        _, targets = next(next(iter(given)).batches(1))
        return int(targets.shape[1]) if targets.ndim > 1 else 1
    raise ArgumentError(
        f"task {task.name!r} has a custom objective and no num_outputs. Set num_outputs"
    )


def _check_labels(where: str, targets: Tensor) -> None:
    if targets.is_floating_point() or targets.ndim != 1:
        raise ArgumentError(
            f"{where}: the targets are {targets.dtype} of shape {tuple(targets.shape)}. "
            "Classification needs one whole number for each sample"
        )


def _check_values(where: str, batches: Batches, objective: Objective, num_outputs: int) -> None:
    for inputs, targets in batches.batches(4096):
        if not isinstance(inputs, Tensor):
            raise ArgumentError(
                f"{where}: prepare returns a {type(inputs).__name__}. It must return the inputs of "
                "the network, a tensor",
                argument="prepare",
            )
        for what, values in (("an input", inputs), ("a target", targets)):
            if values.is_floating_point() and not bool(values.isfinite().all()):
                raise ArgumentError(f"{where}: {what} is NaN or infinite. Remove or replace it")
        if objective is CLASSIFICATION:
            _check_labels(where, targets)
            low, high = int(targets.min()), int(targets.max())
            if low < 0 or high >= num_outputs:
                raise ArgumentError(
                    f"{where}: labels go from {low} to {high}. A task with {num_outputs} outputs "
                    f"has labels from 0 to {num_outputs - 1}"
                )
            continue
        if objective in (MULTI_LABEL, REGRESSION) and targets[0].numel() != num_outputs:
            raise ArgumentError(
                f"{where}: the targets have shape {tuple(targets.shape)}. With {num_outputs} "
                f"outputs, {objective.name} needs {num_outputs} for each sample"
            )
        if objective is MULTI_LABEL and not bool(((targets == 0) | (targets == 1)).all()):
            raise ArgumentError(
                f"{where}: a target is neither 0 nor 1. Multi-label needs 0 or 1 for each label"
            )
