"""Whether an experiment is the one that a run was started with."""

import functools
import hashlib
import json
import re
import warnings
import zlib
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path, PurePath
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from numpy import generic, ndarray
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, default_collate

from clnp.core.certificate import digest_of
from clnp.core.record import kind_of
from clnp.devices import on_the_host
from clnp.errors import RunError
from clnp.plain import to_json
from clnp.training.batches import is_pair, num_samples
from clnp.training.objective import OBJECTIVES, objective_named
from clnp.training.task import Task, check_parts

LIBRARIES = ("clnp.", "torch.", "torchvision.")
"""Whose functions go by their names alone."""
VALUES = (bytes, complex, generic, torch.dtype, torch.device, Enum, PurePath)
"""What goes by how Python writes it."""
HOLDING = re.compile(r", holding [0-9a-f]{8}")
"""What follows the name of an object that holds something."""


def plain(value: Any) -> Any:
    """Data as it comes back from JSON.

    Functions and callable objects go by their names, and by what they do and hold.
    """
    return _plain(value, {})


def _plain(value: Any, known: dict[int, str]) -> Any:
    """The value as plain data; `known` has what objects are, by their ids, and three dots for one
    that is being looked at: a function may refer to itself.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = "..."
    found = _looked_at(value, lambda part: _plain(part, known))
    if isinstance(found, str):
        known[id(value)] = found
    else:
        del known[id(value)]
    return found


def _looked_at(value: Any, plain: Callable[[Any], Any]) -> Any:
    """The value as plain data, its parts as `plain` gives them."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(plain(item)) for item in value)
    if isinstance(value, Namespace | SimpleNamespace):
        return plain(vars(value))
    if isinstance(value, VALUES):
        return repr(value)
    if isinstance(value, functools.partial):
        parts = {"partial": value.func, "args": value.args, "keywords": value.keywords}
        return {name: plain(part) for name, part in parts.items()}
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {digest_of(value)[:16]}"
    if isinstance(value, ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {_short(f'{value.dtype} {value.tobytes().hex()}')}"
    if is_dataclass(value) and not isinstance(value, type) and not callable(value):
        return plain(_attributes(value))
    name = getattr(value, "__qualname__", type(value).__qualname__)
    named = f"{getattr(value, '__module__', type(value).__module__)}.{name}"
    if isinstance(value, type) or not callable(value):
        return named
    if isinstance(value, FunctionType):
        return _function(value, named, plain)
    return _callable(value, named, plain)


def _callable(value: Any, named: str, plain: Callable[[Any], Any]) -> Any:
    """What a method or an object does when it is called, and what it holds."""
    if isinstance(value, MethodType | BuiltinMethodType | MethodWrapperType):
        owner = value.__self__
        if owner is None or isinstance(owner, type | ModuleType):
            return named if not isinstance(value, MethodType) else plain(value.__func__)
        own = plain(value.__func__) if isinstance(value, MethodType) else named
        return _holding(own, [plain(owner), plain(_attributes(owner))])
    if type(value).__module__ == "builtins":
        return named
    does = [plain(getattr(type(value), each, None)) for each in ("__call__", "forward")]
    held = plain(_attributes(value))
    if is_dataclass(value):  # Made to be compared by what they hold.
        return f"{named} {_short(json.dumps([does, held]))}"
    return _holding(f"{named} {_short(json.dumps(does))}", held)


def _function(value: FunctionType, named: str, plain: Callable[[Any], Any]) -> str:
    """What a function does, with what it was given and what it refers to."""
    if named.startswith(LIBRARIES):
        return named
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    inside = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    given = [value.__defaults__ or (), value.__kwdefaults__ or {}, inside]
    text = json.dumps(plain(given))
    code = f"{_code(value.__code__)} {HOLDING.sub('', text)}"
    what, held = f"{named} {_short(code)}", HOLDING.findall(text)
    return _holding(what, held) if held else what


def _is_filled(cell: CellType) -> bool:
    """Whether what a function refers to has been set."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _holding(named: str, held: Any) -> str:
    """What something is called, and what it holds in short."""
    return f"{HOLDING.sub('', named)}, holding {_short(json.dumps(held))}"


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds, but for what does not count when dataclasses are compared."""
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
    slots = [name for cls in type(value).__mro__ for name in _slots(cls)]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    if isinstance(value, nn.Module):
        held.pop("training", None)
    return held


def _slots(cls: type) -> list[str]:
    """The names of the class's slots, as they are found in its objects."""
    slots = getattr(cls, "__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    private = [name.startswith("__") and not name.endswith("__") for name in names]
    prefix = f"_{cls.__name__.lstrip('_')}"
    return [f"{prefix}{n}" if p else n for n, p in zip(names, private, strict=True)]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _code(code: CodeType) -> str:
    """What the code of a function does, whatever its lines and comments are."""
    return f"{code.co_code.hex()} {code.co_names} {_constant(code.co_consts)}"


def _constant(value: Any) -> str:
    """A constant in the code of a function, the same in every process: sets have no order."""
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, tuple | frozenset):
        parts = [_constant(each) for each in value]
        return f"{type(value).__name__} {parts if isinstance(value, tuple) else sorted(parts)}"
    return repr(value)


CHUNK_BYTES = 16 << 20
"""As much of a tensor is read at a time."""
Known = dict[int, tuple[Tensor, str]]
"""Tensors that have been read, by their ids, and their checksums."""


def fingerprints(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """The fingerprint of each task; tensors that tasks share are read once."""
    known: Known = {}
    return [fingerprint(task, known) for task in tasks]


def fingerprint(task: Task, known: Known | None = None) -> dict[str, Any]:
    """What a task is, in a few words: enough to tell another one of the same name.

    Of tensors all numbers count, as they are stored, before `prepare` makes others of them.
    """
    check_parts(task)
    objective = objective_named(task.objective)
    own = objective not in OBJECTIVES.values()
    known = {} if known is None else known
    return {
        "name": task.name,
        "num_outputs": task.num_outputs,
        "objective": objective.name,
        "loss": plain(objective.loss) if own else None,
        "score": plain(objective.score) if own else None,
        "prepare": plain(task.prepare),
        "train": _fingerprint(task.train, known),
        "validation": _fingerprint(task.validation, known),
        "test": _fingerprint(task.test, known),
    }


def _fingerprint(data: Any, known: Known) -> str | None:
    """How many samples there are and, where they are tensors, a checksum of all of them."""
    if data is None:
        return None
    size = f"{num_samples(data)} samples"
    tensors = _tensors(data)
    if tensors is None:
        return size
    for tensor in tensors:
        if id(tensor) not in known:
            known[id(tensor)] = (tensor, _checksum(tensor))
    text = " ".join(known[id(tensor)][1] for tensor in tensors)
    return f"{size}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _tensors(data: Any) -> list[Tensor] | None:
    """The tensors that the data is made of; None if its samples may be others every time."""
    if is_pair(data):
        return list(data)
    if isinstance(data, TensorDataset):
        return list(data.tensors)
    if isinstance(data, Subset):
        within = _tensors(data.dataset)
        return None if within is None else [*within, torch.tensor(list(data.indices), device="cpu")]
    if not isinstance(data, list | tuple):
        return None
    try:
        with on_the_host():
            found = list(default_collate(list(data)))
    except (TypeError, ValueError, RuntimeError):
        return None  # No samples, or of different shapes: training will tell.
    return found if all(isinstance(each, Tensor) for each in found) else None


def _checksum(tensor: Tensor) -> str:
    """CRC-32 of dtype, shape and bytes, a part of them at a time: other devices have more room."""
    found = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if not tensor.numel():
        return f"{found:08x}"
    num_rows = max(1, CHUNK_BYTES * len(tensor) // tensor.nbytes)
    for rows in torch.split(tensor.detach(), num_rows):
        part = rows.cpu().contiguous()
        # A column of one sample counts as contiguous, whatever its stride is.
        flat = part.as_strided((part.numel(),), (1,)).view(torch.uint8)
        raw: Any = flat.numpy()
        found = zlib.crc32(raw, found)
    return f"{found:08x}"


def describe_model(model: nn.Module) -> list[str]:
    """Path, class and settings of each module, and its own tensors where these do not tell them.

    The values of weights do not count. All else does, rates of dropout and dtypes among it, because
    a run that goes on has to come to the same; `Description` asks for less.
    """
    lines = []
    for path, module in model.named_modules():
        kind = f"{path} {kind_of(module)}".lstrip()
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        known = type(module).__module__.startswith("torch.nn.")
        told = [
            f"{name} {list(tensor.shape)} {tensor.dtype}".removesuffix(" torch.float32")
            for name, tensor in own
            if not known or (tensor.is_floating_point() and tensor.dtype != torch.float32)
        ]
        lines.append(", ".join([kind, *told]))
    return lines


def check_alike(
    now: Mapping[str, Any],
    before: Mapping[str, Any],
    path: Path,
    *,
    at_least: int | None = None,
    data: bool = True,
) -> int:
    """How many of an experiment's first tasks are those of a run.

    A `RunError` names the first difference if that is fewer than `at_least`, or than the run has,
    or if anything but tasks and their settings is another. A run may say more than an experiment
    does: what its recipe is called, where its data is. Without `data`, the samples of tasks do not
    count.
    """
    here = json.loads(to_json(now))
    there = {name: before[name] for name in here if name in before} if before else before
    if not data:
        here, there = _without_samples(here), _without_samples(there)
    given, known = _tasks(here), _tasks(there)
    least = len(known) if at_least is None else at_least
    most = min(len(given), len(known))
    found = _difference_of_first(min(least, most), here, there)
    if found is not None:
        raise RunError(f"{path} holds another experiment: its {_told(*found, known)}")
    if len(given) < least:
        raise RunError(f"{path} has a task that is not given: {_name(known[len(given)])!r}")
    alike = (n for n in range(least, most) if _difference_of_first(n + 1, here, there))
    return next(alike, most)


def _difference_of_first(num: int, now: Any, before: Any) -> tuple[str, Any, Any] | None:
    """Where two experiments differ first, if they had that many tasks."""
    names = [_name(task) for task in _tasks(before)[:num]]

    def part(experiment: Any) -> Any:
        if not isinstance(experiment, Mapping) or "tasks" not in experiment:
            return experiment
        tasks = _tasks(experiment)[:num]
        learner = _settings_of(experiment.get("learner"), names)
        return {**experiment, "tasks": tasks, **({"learner": learner} if learner else {})}

    return _difference(part(now), part(before), "")


def _without_samples(experiment: Any) -> dict[str, Any]:
    """The same, its tasks without what says which samples they have."""
    own = {"train", "validation", "test"}
    tasks = [{k: v for k, v in task.items() if k not in own} for task in _tasks(experiment)]
    return {**experiment, "tasks": tasks}


def _tasks(experiment: Any) -> list[Any]:
    tasks = experiment.get("tasks") if isinstance(experiment, Mapping) else None
    return tasks if isinstance(tasks, list) else []


def _settings_of(learner: Any, names: list[Any]) -> Any:
    """What the learner is told of these tasks: of patterns, the first that fits counts."""
    if not isinstance(learner, dict) or not isinstance(learner.get("tasks"), dict):
        return learner
    own = learner["tasks"]

    def settings(task: Any) -> Any:
        fitting = (own[name] for name in own if fnmatchcase(str(task), name))
        return own.get(task) or next(fitting, None)

    return {**learner, "tasks": {name: settings(name) for name in names}}


def _name(task: Any) -> Any:
    return task.get("name") if isinstance(task, Mapping) else task


def _told(key: str, now: Any, before: Any, tasks: list[Any]) -> str:
    """What differs, in words; that of a task with its number and name."""
    if re.fullmatch(r"model(\.\d+)?", key):
        return _told_of_model(now, before)
    found = re.fullmatch(r"tasks\.(\d+)(?:\.(.*))?", key)
    if found is None:
        return f"{key} is {before!r}, not {now!r}"
    number = int(found[1])
    if found[2] == "name":
        return f"task {number + 1} is {before!r}, not {now!r}"
    return f"task {number + 1}, {_name(tasks[number])!r}, has {found[2]} {before!r}, not {now!r}"


def _told_of_model(now: Any, before: Any) -> str:
    """The first modules that differ, of two or of two lists of them."""
    lists = [each if isinstance(each, list) else [each] for each in (before, now)]
    pairs = zip_longest(*lists, fillvalue="nothing more")
    there, here = next(pair for pair in pairs if pair[0] != pair[1])
    return f"model has {there}, not {here}"


def _difference(now: Any, before: Any, key: str) -> tuple[str, Any, Any] | None:
    """Where two nested values differ first, and both values there; what is missing is None."""
    if isinstance(now, dict) and isinstance(before, dict):
        names = list(dict.fromkeys([*now, *before]))
        pairs = [(f"{key}.{name}".lstrip("."), now.get(name), before.get(name)) for name in names]
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = [(f"{key}.{i}", a, b) for i, (a, b) in enumerate(zip(now, before, strict=True))]
    else:
        return None if _same(now, before) else (key, now, before)
    found = (_difference(here, there, name) for name, here, there in pairs)
    return next((each for each in found if each is not None), None)


def _same(now: Any, before: Any) -> bool:
    """Whether both are equal; what objects hold may be another thing, changed by being used."""
    if not (isinstance(now, str) and isinstance(before, str)):
        return bool(now == before)
    here, there = HOLDING.sub("", now), HOLDING.sub("", before)
    if here == there and now != before and HOLDING.search(before):
        name = here.split()[0]
        warnings.warn(
            f"{name} holds something else than when the run was begun; the run goes on with it",
            stacklevel=2,
        )
    return here == there
