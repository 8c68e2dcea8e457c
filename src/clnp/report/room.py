"""How much room is left, in a sentence that is whole whatever layers are called."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..outlook import Forecast
from .labels import all_shortened
from .values import mapping

LONGEST_GROUP = 32
"""Characters of the name of a group in the sentence."""


def room_left(forecast: Mapping[str, Any]) -> str | None:
    """The forecast as a sentence; keys that this version does not know are left out."""
    known = {f.name for f in fields(Forecast)}
    groups = list(mapping(forecast.get("free"))) or [str(forecast.get("bottleneck"))]
    short = dict(zip(groups, all_shortened(groups, LONGEST_GROUP), strict=True))
    try:
        return str(
            Forecast(**{name: _renamed(v, short) for name, v in forecast.items() if name in known})
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with other names of groups in it."""
    if isinstance(value, Mapping):
        return {names.get(key, key): each for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value
