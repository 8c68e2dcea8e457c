"""What this method is called, beside those that it is compared with."""

from collections.abc import Mapping
from typing import Any

OURS = "clnp"


def method_of(record: Mapping[str, Any]) -> str:
    """The method that the config or the result of a run names; ours, if it names none."""
    return str(record.get("method", OURS))


def is_ours(record: Mapping[str, Any]) -> bool:
    """Whether the config or the result is that of a run by neural pruning."""
    return method_of(record) == OURS
