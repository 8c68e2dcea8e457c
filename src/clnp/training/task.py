"""A task: its name, data, number of outputs and objective; and its data on a device, checked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import IterableDataset

from clnp.checks import listed
from clnp.core.net import check_name, checked_outputs
from clnp.errors import ArgumentError

from .batches import (
    Batches,
    Data,
    Prepare,
    batches_of,
    check_sample,
    check_tensor,
    fits,
    is_pair,
    kinds,
    num_samples,
    split_off,
)
from .config import LearnerConfig
from .objective import CLASSIFICATION, MULTI_LABEL, REGRESSION, Objective, objective_named
from .rng import derive, isolated, seed_all


@dataclass(frozen=True)
class Task:
    """A task to learn: its name, its data, and its objective.

        clnp.Task("flowers", train=(x, y), test=(x_test, y_test))
        clnp.Task("birds", train=TrainSet(), prepare=lambda x: x.float() / 255)
        clnp.Task("trees", train=(x, y), classes=(4, 5, 6, 7))

    Args:
        name: Name of the task, unique in a network.
        train: Training data: a pair of tensors, inputs [samples, ...] and targets [samples, ...],
            or a map-style `Dataset` of (input, target) pairs, which may be a list. Targets of
            "classification" are labels, [samples], which count from 0 unless `classes` says
            otherwise; of "multi-label", 0 or 1,
            [samples, labels]; of "regression", numbers, [samples, values].
        validation: Validation data, in the same form. By default, `Learner` holds out a part of
            the training data.
        test: Test data, in the same form, if there is any.
        num_outputs: Number of outputs. By default, it is found from `classes` or the targets; an
            objective of your own needs it.
        objective: "classification", "multi-label", "regression" or an `Objective`.
        prepare: Function of a batch of inputs on the device that returns the inputs of the network,
            for example normalised numbers for bytes.
        classes: The classes in the order of the outputs, which an export contains: texts, or the
            labels in the data. With `classes=(4, 5, 6, 7)`, a classification learns label 4 as
            output 0, and so on; any other label is an error.
    """

    name: str
    train: Data
    validation: Data | None = None
    test: Data | None = None
    num_outputs: int | None = None
    objective: str | Objective = "classification"
    prepare: Prepare | None = None
    classes: Sequence[int | str] | None = None


def checked_tasks(tasks: object) -> tuple[Task, ...]:
    """Return the tasks; an `ArgumentError` if there are none, or two of the same name."""
    found = listed("tasks", tasks, lambda task: isinstance(task, Task), what="tasks")
    if not found:
        message = "an experiment needs at least one task. Give a list of tasks"
        raise ArgumentError(message, argument="tasks")
    check_names(found)
    return tuple(found)


def check_names(tasks: Sequence[Task]) -> None:
    """Raise an `ArgumentError` if two tasks have the same name, or if a name is invalid."""
    for task in tasks:
        check_name(task.name)
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
        if not is_pair(data):
            check_sample(_where(task, part), data[0])
    if validation is None:
        validation_seed = derive(seed, "validation", task.name)
        try:
            fraction = config.validation_fraction
            train, validation = split_off(train, fraction, seed=validation_seed)
        except ArgumentError as error:
            raise ArgumentError(f"task {task.name!r}: {error}") from error

    def place(part: str, data: Data, resident: bool | None) -> Batches:
        return batches_of(
            data,
            device,
            resident=resident,
            num_workers=config.num_workers,
            prepare=task.prepare,
            relabel=relabelling(task, part),
            where=_where(task, part),
        )

    loaded = {"training": place("training", train, resident)}
    with isolated(device):
        # All scores use the same samples, also of random data: they are drawn once if they fit, and
        # the same ones when a run resumes.
        seed_all(derive(seed, "validation samples", task.name))
        where = _where(task, "validation")
        keep = (
            True
            if resident is None and (is_pair(validation) or fits(validation, where))
            else resident
        )
        loaded["validation"] = place("validation", validation, keep)
    if task.test is not None:
        loaded["test"] = place("test", task.test, resident)
    num_outputs = task.num_outputs
    if num_outputs is None and task.classes is not None and objective is CLASSIFICATION:
        num_outputs = len(task.classes)
    if num_outputs is None:
        # A rare label may be in the part that was held out.
        given = ("training", "validation") if task.validation is None else ("training",)
        num_outputs = _num_outputs(task, objective, [loaded[part] for part in given])
    num_outputs = checked_outputs(num_outputs, own=1, single=False)
    if task.classes is not None and len(task.classes) != num_outputs:
        raise ArgumentError(
            f"task {task.name!r} has {num_outputs} outputs and {len(task.classes)} classes. Give "
            "one class for each output",
            argument="classes",
        )
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
        relabel=relabelling(task, "test"),
        where=_where(task, "test"),
    )


@dataclass(frozen=True)
class Relabelling:
    """Turns the labels in a part of the data, [samples], into outputs: their index in `classes`."""

    classes: tuple[int, ...]
    where: str

    def __call__(self, labels: Tensor) -> Tensor:
        _check_labels(self.where, labels)
        known, order = torch.tensor(self.classes, device=labels.device).sort()
        # Also labels whose dtype is too narrow for the classes.
        labels = labels.long()
        index = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
        unknown = labels[known[index] != labels]
        if len(unknown):
            raise ArgumentError(
                f"{self.where}: the label {int(unknown[0])} is not in classes, "
                f"{_enumerated(self.classes)}. Add it there, or leave its samples out",
                argument="classes",
            )
        return order[index]


def relabelling(task: Task, part: str) -> Relabelling | None:
    """Return the function from the labels in a part of the data to outputs; None if they agree."""
    classes = task.classes
    if classes is None or objective_named(task.objective) is not CLASSIFICATION:
        return None
    labels = tuple(int(each) for each in classes if not isinstance(each, str))
    return Relabelling(labels, _where(task, part)) if labels != tuple(range(len(labels))) else None


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
    _check_classes(task)
    for part, data in _parts(task).items():
        _check_shape(_where(task, part), data)


def _check_classes(task: Task) -> None:
    """Raise an `ArgumentError` unless the classes are distinct labels, or distinct texts."""
    classes = task.classes
    if classes is None:
        return
    is_list = isinstance(classes, Sequence) and not isinstance(classes, str)
    kinds = (_is_label, lambda each: isinstance(each, str))
    if not is_list or not classes or not any(all(map(kind, classes)) for kind in kinds):
        raise ArgumentError(
            f"task {task.name!r}: classes is {classes!r}. It must be a list of labels, whole "
            "numbers of 64 bits, or of texts",
            argument="classes",
        )
    label, times = Counter(classes).most_common(1)[0]
    if times > 1:
        raise ArgumentError(
            f"task {task.name!r}: classes contains {label!r} twice. Give each class once",
            argument="classes",
        )


def _is_label(value: object) -> bool:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return is_whole and -(2**63) <= value < 2**63  # type: ignore[operator]


def _enumerated(values: Iterable[object], most: int = 10) -> str:
    """Return the values as `1, 2 and 5`; only the first if there are many."""
    words = list(map(str, values))
    if len(words) > most:
        return f"{', '.join(words[:most])}, ... ({len(words)})"
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


_FORMS = "a pair of tensors or a map-style Dataset"


def _where(task: Task, part: str) -> str:
    return f"task {task.name!r}, {part} data"


def _parts(task: Task) -> dict[str, Data]:
    parts = {"training": task.train, "validation": task.validation, "test": task.test}
    return {part: data for part, data in parts.items() if data is not None}


def _check_shape(where: str, data: Any) -> None:
    if is_pair(data):
        for tensor in data:
            if isinstance(tensor, Tensor):
                check_tensor(where, tensor)
        are_tensors = len(data) == 2 and all(isinstance(t, Tensor) and t.ndim for t in data)
        if not are_tensors or len(data[0]) != len(data[1]):
            raise ArgumentError(
                f"{where} is {kinds(data)}. Give a pair of tensors, inputs and targets, with one "
                "target for each input"
            )
    elif isinstance(data, IterableDataset | Mapping | Tensor | ndarray | str) or not (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        raise ArgumentError(f"{where} is of type {type(data).__name__}. Give {_FORMS}")
    try:
        count = num_samples(data)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(
            f"{where} has no length: {error}. Its __len__ must return the number of samples"
        ) from error
    if count == 0:
        raise ArgumentError(f"{where} is empty. Give at least one sample")


def _num_outputs(task: Task, objective: Objective, given: Iterable[Batches]) -> int:
    if objective is CLASSIFICATION:
        found: set[int] = set()
        where = _where(task, "training")
        for batches in given:
            for _, targets in batches.batches(4096):
                _check_labels(where, targets)
                found.update(torch.unique(targets).tolist())
        labels = sorted(map(int, found))
        if labels != list(range(len(labels))):
            raise ArgumentError(
                f"{where}: the labels are {_enumerated(labels)}. Labels count from 0, and each "
                "has an output. Give the task the classes in the order of the outputs, such as "
                f"classes={_shown(labels)}, or num_outputs if some labels have no samples",
                argument="classes",
            )
        return len(labels)
    if objective in (MULTI_LABEL, REGRESSION):
        _, targets = next(next(iter(given)).batches(1))
        return int(targets.shape[1]) if targets.ndim > 1 else 1
    raise ArgumentError(
        f"task {task.name!r} has a custom objective and no num_outputs. Set num_outputs"
    )


def _shown(labels: Sequence[int], most: int = 4) -> str:
    """Return the labels as a Python tuple; only the first if there are many."""
    more = ", ..." if len(labels) > most else "," if len(labels) == 1 else ""
    return f"({', '.join(map(str, labels[:most]))}{more})"


def _check_labels(where: str, targets: Tensor) -> None:
    if targets.is_floating_point() or targets.is_complex() or targets.ndim != 1:
        raise ArgumentError(
            f"{where}: the targets are {targets.dtype} of shape {tuple(targets.shape)}. "
            "Classification needs one whole number for each sample"
        )


def _check_values(where: str, batches: Batches, objective: Objective, num_outputs: int) -> None:
    for inputs, targets in batches.batches(4096):
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
        if objective in (MULTI_LABEL, REGRESSION) and targets.is_complex():
            raise ArgumentError(
                f"{where}: the targets are {targets.dtype}. {objective.name} needs real numbers"
            )
        if objective in (MULTI_LABEL, REGRESSION) and targets[0].numel() != num_outputs:
            raise ArgumentError(
                f"{where}: the targets have shape {tuple(targets.shape)}. With {num_outputs} "
                f"outputs, {objective.name} needs {num_outputs} for each sample"
            )
        if objective is MULTI_LABEL and not bool(((targets == 0) | (targets == 1)).all()):
            raise ArgumentError(
                f"{where}: a target is neither 0 nor 1. Multi-label needs 0 or 1 for each label"
            )
