"""What values, functions and objects are, in plain data: the same in every process."""

import functools
import hashlib
import json
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
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
