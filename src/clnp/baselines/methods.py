"""The baselines by name, and their settings in a recipe."""

from dataclasses import dataclass, field, fields
from typing import Any

from .ewc import EWC
from .finetune import Finetune


@dataclass(frozen=True)
class Methods:
    """The settings of every baseline, for a comparison on the same tasks and network."""

    finetune: Finetune = field(default_factory=Finetune)
    """Every task with all weights, nothing done about forgetting."""
    ewc: EWC = field(default_factory=EWC)
    """Elastic weight consolidation."""


OURS = "clnp"
NAMES = (OURS, *(each.name for each in fields(Methods)))


def settings_of(methods: Methods, name: str) -> Any:
    """The settings of the baseline of that name."""
    return getattr(methods, name)
