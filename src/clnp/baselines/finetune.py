"""Fine-tuning: every task is learnt with all weights, and nothing is done about forgetting.

theta <- theta - eta grad L_t(theta)
"""

from dataclasses import dataclass

from ..training import Training
from .dense import DenseNet
from .strategy import Strategy


@dataclass(frozen=True)
class Finetune:
    """Every task is learnt with all weights, and nothing is done about forgetting."""

    training: Training | None = None
    """How it is trained: `learner.training`, with those keys changed that a recipe gives here."""

    def strategy(self, net: DenseNet) -> Strategy:
        """What it does with the network: nothing."""
        return Strategy()
