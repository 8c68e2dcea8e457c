"""Check arguments and settings: their kinds, their bounds, and lists of them."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from clnp.errors import ArgumentError

Kind = Callable[[str, object], Any]
"""`kind(name, value)` returns the setting that a value stands for, or raises an `ArgumentError`."""
LARGEST = 3e38
"""Larger numbers are no float32."""


def number(argument: str, value: object) -> float:
    """Return the value as a Python float: seeds and JSON tell 1 from 1.0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refused(argument, value, "a number")
    return float(value)


def whole_number(argument: str, value: object) -> int:
    """Return the value as a Python int."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _refused(argument, value, "a whole number")
    return int(value)


def strength(argument: str, value: object) -> float | dict[str, float]:
    """Return an alpha in Python floats: one for all layers, or one for each."""
    if isinstance(value, Mapping):
        return {name: number(f"{argument} of {name}", each) for name, each in value.items()}
    return number(argument, value)


def within(kind: Kind, holds: Callable[[Any], bool], expected: str) -> Kind:
    """Return the kind within bounds; `expected` describes it in errors."""

    def bounded(argument: str, value: object) -> Any:
        try:
            settled = kind(argument, value)
        except ArgumentError as error:
            raise _refused(argument, value, expected) from error
        if not holds(settled):
            raise _refused(argument, value, expected)
        return settled

    return bounded


def one_of(*names: str) -> Kind:
    """Return the kind of values that are one of these texts."""
    expected = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"

    def named(argument: str, value: object) -> object:
        if not isinstance(value, str) or value not in names:
            raise _refused(argument, value, expected)
        return value

    return named


def optional(kind: Kind) -> Kind:
    """Return the kind of values that may also be None."""
    return lambda argument, value: None if value is None else kind(argument, value)


def several(kind: Kind) -> Kind:
    """Return the kind of lists of values, as tuples; None stays."""

    def listed(argument: str, values: object) -> tuple[Any, ...] | None:
        given: Any = values.tolist() if hasattr(values, "tolist") else values  # Of a tensor, say.
        if given is None:
            return None
        if isinstance(given, Real | Mapping | str) or not isinstance(given, Iterable):
            message = f"{argument} is {given!r}. Give a list, {argument}=[...]"
            raise ArgumentError(message, argument=argument)
        return tuple(kind(f"one of {argument}", value) for value in given)

    return listed


ABOVE_0 = within(number, lambda value: 0 < value < LARGEST, "a finite number above 0")
FROM_0 = within(number, lambda value: 0 <= value < math.inf, "a finite number, 0 or more")
FROM_1 = within(number, lambda value: 1 <= value < math.inf, "a finite number, 1 or more")
BETWEEN_0_AND_1 = within(number, lambda value: 0 < value < 1, "a number between 0 and 1")
COUNT = within(whole_number, lambda value: value >= 1, "a whole number, 1 or more")
THREADS = within(whole_number, lambda value: 1 <= value <= 1024, "a whole number, 1 to 1024")
COUNT_FROM_0 = within(whole_number, lambda value: value >= 0, "a whole number, 0 or more")


def settle(settings: object, kinds: Mapping[str, Kind], *, where: str = "") -> None:
    """Replace fields of a frozen dataclass by what their kinds make of them.

    An `ArgumentError` has `where` before its message, and those of the other fields as `further`.
    """
    errors = []
    for name, kind in kinds.items():
        try:
            object.__setattr__(settings, name, kind(name, getattr(settings, name)))
        except ArgumentError as error:
            message = f"{where}: {error}" if where else str(error)
            errors.append(ArgumentError(message, argument=name))
    if errors:
        errors[0].further = tuple(errors[1:])
        raise errors[0]


def _refused(argument: str, value: object, expected: str) -> ArgumentError:
    return ArgumentError(f"{argument} is {value!r}. It must be {expected}", argument=argument)


def check_kind(argument: str, value: object, kind: type, what: str) -> None:
    """Raise an `ArgumentError` unless the value is of that kind."""
    if not isinstance(value, kind):
        message = f"{argument} is of type {type(value).__name__}. It must be {what}"
        raise ArgumentError(message, argument=argument)


def listed(
    argument: str, values: object, fits: Callable[[object], bool], *, what: str
) -> list[Any]:
    """Return the values in a list. Raise an `ArgumentError` if one does not fit, or is no list."""
    if fits(values) or isinstance(values, str) or not isinstance(values, Iterable):
        message = f"{argument} is of type {type(values).__name__}. Give a list of {what}"
        raise ArgumentError(message, argument=argument)
    found = list(values)
    for value in found:
        if not fits(value):
            message = (
                f"{argument} holds a value of type {type(value).__name__}. Give a list of {what}"
            )
            raise ArgumentError(message, argument=argument)
    return found


number_of_seconds = within(number, lambda value: value >= 0, "a number of seconds, 0 or more")
