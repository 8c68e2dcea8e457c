"""Whether an experiment is the one that a run was begun with."""

import functools
import hashlib
import json
import re
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
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

from .certificate import digest_of
from .errors import RunError
from .objective import OBJECTIVES, objective_named
from .runs import to_json
from .task import Task

LIBRARIES = ("clnp.", "torch.", "torchvision.")
"""Whose functions go by their names alone."""
VALUES = (bytes, complex, generic, torch.dtype, torch.device, Enum, PurePath)
"""What goes by how Python writes it."""
HOLDING = re.compile(r", holding [0-9a-f]{8}")
"""What follows the name of an object that holds something."""


def fingerprint(task: Task) -> dict[str, Any]:
    """What a task is, in a few words: enough to tell another one of the same name."""
    objective = objective_named(task.objective)
    own = objective not in OBJECTIVES.values()
    return {
        "name": task.name,
        "num_outputs": task.num_outputs,
        "objective": objective.name,
        "loss": plain(objective.loss) if own else None,
        "score": plain(objective.score) if own else None,
        "prepare": plain(task.prepare),
        "train": _fingerprint(task.train),
        "validation": _fingerprint(task.validation),
        "test": _fingerprint(task.test),
    }


def _fingerprint(data: Any) -> str | None:
    """Size and, of tensors, the SHA-256 of some samples; the samples of others may be random."""
    if data is None:
        return None
    if not isinstance(data, tuple | list):
        return f"{len(data)} samples"
    inputs, targets = data
    digest = digest_of(torch.cat([_bytes(inputs[_places(len(inputs))]), _bytes(targets)]))
    return f"{len(inputs)} samples, {digest[:16]}"


def _places(num_samples: int) -> Tensor:
    """At most 64 places from the first to the last of so many samples."""
    places = torch.linspace(0, max(num_samples - 1, 0), min(num_samples, 64)).long()
    # The numbers are of 32 bits, which may round the last one up.
    return places.clamp(max=max(num_samples - 1, 0))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def check_alike(now: Mapping[str, Any], before: Mapping[str, Any], path: Path) -> int:
    """How many tasks an experiment adds to those of a run, which come first.

    A `RunError` names the first difference if there is any other. A run may say more than an
    experiment does: what its recipe is called, where its data is.
    """
    here = json.loads(to_json(now))
    there = {name: before[name] for name in here if name in before} if before else before
    given, known = _tasks(here), _tasks(there)
    num = min(len(given), len(known))
    if len(given) != len(known):
        # Which task is another says more than that there are more or fewer.
        here, there = {**here, "tasks": given[:num]}, {**there, "tasks": known[:num]}
        names = [_name(task) for task in known]
        here = {**here, "learner": _settings_of(here.get("learner"), names)}
    found = _difference(here, there, "")
    if found is not None:
        raise RunError(f"{path} holds another experiment: its {_told(*found, known)}")
    if len(given) < len(known):
        raise RunError(f"{path} has a task that is not given: {_name(known[num])!r}")
    return len(given) - len(known)


def _tasks(experiment: Any) -> list[Any]:
    tasks = experiment.get("tasks") if isinstance(experiment, Mapping) else None
    return tasks if isinstance(tasks, list) else []


def _settings_of(learner: Any, names: list[Any]) -> Any:
    """What the learner is told, without the settings of other tasks than these."""
    if not isinstance(learner, dict) or not isinstance(learner.get("tasks"), dict):
        return learner
    used = [n for n in learner["tasks"] if any(t == n or fnmatchcase(str(t), n) for t in names)]
    return {**learner, "tasks": {name: learner["tasks"][name] for name in used}}


def _name(task: Any) -> Any:
    return task.get("name") if isinstance(task, Mapping) else task


def _told(key: str, now: Any, before: Any, tasks: list[Any]) -> str:
    """What differs, in words; that of a task with its number and name."""
    found = re.fullmatch(r"tasks\.(\d+)(?:\.(.*))?", key)
    if found is None:
        return f"{key} is {before!r}, not {now!r}"
    number = int(found[1])
    if found[2] == "name":
        return f"task {number + 1} is {before!r}, not {now!r}"
    return f"task {number + 1}, {_name(tasks[number])!r}, has {found[2]} {before!r}, not {now!r}"


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
    if isinstance(value, MethodType | BuiltinMethodType | MethodWrapperType):
        owner = value.__self__
        if owner is None or isinstance(owner, type | ModuleType):
            return named if not isinstance(value, MethodType) else plain(value.__func__)
        own = plain(value.__func__) if isinstance(value, MethodType) else named
        return _holding(own, [plain(owner), plain(_attributes(owner))])
    if type(value).__module__ == "builtins" and not isinstance(value, FunctionType):
        return named
    if not isinstance(value, FunctionType):
        does = [plain(getattr(type(value), each, None)) for each in ("__call__", "forward")]
        held = plain(_attributes(value))
        if is_dataclass(value):  # Made to be compared by what they hold.
            return f"{named} {_short(json.dumps([does, held]))}"
        return _holding(f"{named} {_short(json.dumps(does))}", held)
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
