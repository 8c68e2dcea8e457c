"""Whether an experiment is the one that a run was begun with."""

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from .certificate import digest_of
from .errors import RunError
from .objective import objective_named
from .runs import to_json
from .task import Task

LIBRARIES = ("clnp.", "torch.", "torchvision.")
"""Whose functions go by their names alone."""


def fingerprint(task: Task) -> dict[str, Any]:
    """What a task is, in a few words: enough to tell another one of the same name."""
    return {
        "name": task.name,
        "num_outputs": task.num_outputs,
        "objective": objective_named(task.objective).name,
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
    places = torch.linspace(0, max(len(inputs) - 1, 0), min(len(inputs), 64)).long()
    digest = digest_of(torch.cat([_bytes(inputs[places]), _bytes(targets)]))
    return f"{len(inputs)} samples, {digest[:16]}"


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def check_alike(now: Mapping[str, Any], before: Mapping[str, Any], path: Path) -> None:
    """Raise a `RunError` that names the first difference between two experiments."""
    difference = _difference(json.loads(to_json(now)), before, "")
    if difference is not None:
        key, here, there = difference
        raise RunError(f"{path} holds another experiment: its {key} is {there!r}, not {here!r}")


def _difference(now: Any, before: Any, key: str) -> tuple[str, Any, Any] | None:
    """Where two nested values differ first, and both values there; more in `before` is fine."""
    if isinstance(now, dict) and isinstance(before, dict):
        pairs = [(f"{key}.{name}".lstrip("."), now[name], before.get(name)) for name in now]
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = [(f"{key}.{i}", a, b) for i, (a, b) in enumerate(zip(now, before, strict=True))]
    else:
        return None if now == before else (key, now, before)
    found = (_difference(here, there, name) for name, here, there in pairs)
    return next((each for each in found if each is not None), None)


def plain(value: Any) -> Any:
    """Data as it comes back from JSON; functions go by their names, and by what they do."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, functools.partial):
        return plain({"partial": value.func, "args": value.args, "keywords": value.keywords})
    name = getattr(value, "__qualname__", type(value).__qualname__)
    named = f"{getattr(value, '__module__', type(value).__module__)}.{name}"
    if not isinstance(value, FunctionType) or named.startswith(LIBRARIES):
        return named
    inside = inspect.getclosurevars(value).nonlocals
    given = [value.__defaults__ or (), value.__kwdefaults__ or {}, inside]
    text = f"{_code(value.__code__)} {json.dumps(plain(given))}"
    return f"{named} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


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
