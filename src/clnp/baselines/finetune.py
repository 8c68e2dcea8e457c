"""Fine-tuning: every task is learnt with all weights, and nothing is done about forgetting.

theta <- theta - eta grad L_t(theta)
"""

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ..task import TaskData
from ..trainable import StepRule
from ..training import Training
from .dense import DenseNet


@dataclass(frozen=True)
class Finetune:
    """Every task is learnt with all weights, and nothing is done about forgetting."""

    training: Training | None = None
    """How it is trained: `learner.training`, with those keys changed that a recipe gives here."""

    def strategy(self, net: DenseNet) -> "FinetuneStrategy":
        """What it does with the network."""
        return FinetuneStrategy()


class FinetuneStrategy:
    """Does nothing at all."""

    def begin(self, index: int) -> None:
        """Nothing."""

    def rule(self) -> StepRule:
        """Nothing beside the gradient."""
        return StepRule()

    def end(self, index: int, data: TaskData) -> None:
        """Nothing is remembered."""

    def running(self, index: int) -> AbstractContextManager[None]:
        """The network as it is."""
        return contextlib.nullcontext()

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def stored_bytes(self) -> dict[str, int]:
        """Nothing."""
        return {}
