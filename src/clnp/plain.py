"""Frozen dataclasses as plain data for JSON, and back from files that may be old or damaged."""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union

Tree = Mapping[str, object]
"""Nested settings as JSON has them."""
T = TypeVar("T")

_LARGEST_SEED = 2**64
"""No integer that a run writes is larger: no count comes near it."""
_LARGEST = 2**53
"""Above it, JSON readers disagree about integers."""


class UnreadableError(ValueError):
    """Raised if data does not hold what a record needs."""


def omitted(default: Any = None) -> Any:
    """Return a dataclass field that is not written while it has its default."""
    return dataclasses.field(default=default, metadata={"omitted": True})


def json_reason(error: Exception) -> str:
    """Return why JSON or TOML could not be parsed, without advice for programmers of Python."""
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    return "a number has thousands of digits" if "digits" in str(error) else str(error)


def to_plain(value: Any) -> Any:
    """Return the value with dataclasses and mappings as dicts, and tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not (field.metadata.get("omitted") and getattr(value, field.name) == field.default)
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return the value as JSON that every reader accepts: numbers that are not finite are text."""

    def finite(part: Any) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            return str(part)
        if isinstance(part, dict):
            return {key: finite(item) for key, item in part.items()}
        return [finite(item) for item in part] if isinstance(part, list) else part

    return json.dumps(finite(to_plain(value)), indent=indent, allow_nan=False)


def flat(value: object, prefix: str = "") -> dict[str, object]:
    """Return nested mappings as one, with dotted names: `{"a": {"b": 1}} -> {"a.b": 1}`."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value} if prefix else {}
    found: dict[str, object] = {}
    for name, each in value.items():
        found |= flat(each, f"{prefix}.{name}" if prefix else str(name))
    return found


def read(kind: type[T], data: object) -> T:
    """Return a record of this dataclass from plain data.

    Reading is lenient: unknown keys are ignored, and a field whose value is missing or damaged has
    its default. In a list or mapping, damaged items are left out.

    Raises:
        UnreadableError: If the data is not a mapping, or a field without a default is missing or
            damaged.
    """
    found: T = _read(kind, data)
    return found


@functools.cache
def alternatives(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the types that a value may have, and whether it may be None."""
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    return tuple(kind for kind in kinds if kind is not types.NoneType), types.NoneType in kinds


def is_required(field: "dataclasses.Field[Any]") -> bool:
    """Whether a field of a dataclass has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.cache
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Return the type of each field, and whether it is required."""
    hints = typing.get_type_hints(kind)
    return {each.name: (hints[each.name], is_required(each)) for each in dataclasses.fields(kind)}


def _read(hint: Any, value: Any) -> Any:
    """Return the value as the first type that it can be read as."""
    kinds, optional = alternatives(hint)
    if value is None and optional:
        return None
    for kind in kinds:
        try:
            return _read_as(kind, value)
        except UnreadableError:
            if kind is kinds[-1] and not optional:
                raise
    return None


def _read_as(kind: Any, value: Any) -> Any:
    if kind is Any or kind is object:
        return value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (tuple, Sequence):
        _expect(isinstance(value, list | tuple), value, "a list")
        return tuple(item for _, item in _readable(args[0], enumerate(value)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _expect(isinstance(value, Mapping), value, "a mapping")
        return {str(key): item for key, item in _readable(args[1], value.items())}
    if dataclasses.is_dataclass(kind):
        _expect(isinstance(value, Mapping), value, "a mapping")
        return _read_record(kind, value)
    if kind is bool or kind is str:
        _expect(isinstance(value, kind), value, f"a {kind.__name__}")
        return value
    if kind is int and type(value) is int:
        _expect(abs(value) < _LARGEST_SEED, value, "an integer of 64 bits")
        return value
    return _read_number(kind, value)


def _readable(hint: Any, items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    for key, item in items:
        try:
            yield key, _read(hint, item)
        except UnreadableError:
            continue


def _read_record(kind: Any, data: Mapping[str, Any]) -> Any:
    values = {}
    for name, (hint, required) in _fields(kind).items():
        if name not in data and not required:
            continue
        try:
            values[name] = _read(hint, data.get(name))
        except UnreadableError as error:
            if required:
                raise UnreadableError(f"{name}: {error}") from error
    return kind(**values)


def _read_number(kind: Any, value: Any) -> float:
    # JSON has no other way to write nan and inf than as text.
    is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
    _expect(is_number, value, "a number")
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise UnreadableError(f"{value!r} is not a number") from error
    if kind is float:
        return number
    _expect(math.isfinite(number) and abs(number) < _LARGEST, value, "an integer")
    return int(number)


def _expect(holds: bool, value: object, what: str) -> None:
    """Raise an `UnreadableError` unless the value is what was expected."""
    if not holds:
        raise UnreadableError(f"{value!r} is not {what}")
