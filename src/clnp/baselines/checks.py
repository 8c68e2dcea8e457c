"""Whether the settings of a baseline can be used."""

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real

from ..errors import ArgumentError

Rule = tuple[Callable[[float], bool], str]
"""Whether a number can be used, and in words which can."""

ABOVE_0: Rule = (lambda value: value > 0, "above 0")
FROM_0: Rule = (lambda value: value >= 0, "0 or more")
FROM_1: Rule = (lambda value: value >= 1, "1 or more")
COUNT_FROM_0: Rule = (lambda value: _is_whole(value) and value >= 0, "a whole number, 0 or more")
COUNT_FROM_1: Rule = (lambda value: _is_whole(value) and value >= 1, "a whole number, 1 or more")
WITHIN_0_AND_1: Rule = (lambda value: 0 < value < 1, "between 0 and 1")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral)


def check_numbers(method: str, settings: object, rules: Mapping[str, Rule]) -> None:
    """Raise an `ArgumentError` unless all of these settings are finite numbers that hold."""
    for name, (holds, expected) in rules.items():
        value = getattr(settings, name)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not holds(value):
            message = f"{method}: {name} is {value!r}; it must be {expected}"
            raise ArgumentError(message, argument=name)
