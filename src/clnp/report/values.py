"""Values as the files of a run hold them, read without trust: what is not there is None or empty.

A run may be older than this version, unfinished, or edited by hand. A report shows what is there.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def number(value: Any) -> float | None:
    """The value as a number; text like "nan" is one, because JSON has no other way to write it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def count(value: Any) -> int | None:
    """The value as a whole number that is not negative."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 2**53 else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object of JSON, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is an array of JSON, otherwise an empty one."""
    return value if isinstance(value, list | tuple) else ()


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects in an array of JSON."""
    return [each for each in sequence(value) if isinstance(each, Mapping)]


def counts(value: Any) -> dict[str, int]:
    """The whole numbers in an object of JSON, by name."""
    found = {str(name): count(each) for name, each in mapping(value).items()}
    return {name: each for name, each in found.items() if each is not None}


def flag(value: Any) -> bool | None:
    """The value if it is true or false."""
    return value if isinstance(value, bool) else None


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, with dotted names: {"a": {"b": 1}} == {"a.b": 1}."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value} if prefix else {}
    found: dict[str, Any] = {}
    for name, each in value.items():
        found |= flat(each, f"{prefix}.{name}" if prefix else str(name))
    return found
