"""How tasks are learnt: the grid, the margin, and what follows pruning."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Literal

from .errors import ArgumentError
from .training import Alpha, Training


@dataclass(frozen=True)
class FineTuning:
    """Training of the survivors after pruning, and how often to prune and train again."""

    epochs: int = 20
    lr: float = 1e-4
    alpha: Alpha = 0.0
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.rounds < 1 or not self.lr > 0:
            raise ArgumentError(f"fine-tuning: epochs, rounds and lr must be above 0: {self}")


@dataclass(frozen=True)
class LearnerConfig:
    """How tasks are learnt; `alphas` and `lrs` span the grid, and `training` has the rest.

    `margin` is what the validation score may give up, in its own units. `search_on` says for which
    tasks the grid is searched; with "first" its winner is kept for the others.
    """

    margin: float = 0.5
    training: Training = field(default_factory=Training)
    alphas: tuple[Alpha, ...] = ()
    lrs: tuple[float, ...] = ()
    search_on: Literal["every", "first"] = "every"
    per_layer: bool = False
    resolution: int | None = 100
    recalibrate: bool = True
    fine_tuning: FineTuning | None = None
    validation_fraction: float = 0.1
    resident: bool | None = None
    num_workers: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.margin >= 0:
            raise ArgumentError(f"margin is {self.margin}; it must be 0 or more")
        if self.search_on not in ("every", "first"):
            raise ArgumentError(f"search_on is {self.search_on!r}; it must be 'every' or 'first'")
        if not 0 < self.validation_fraction < 1:
            raise ArgumentError(
                f"validation_fraction is {self.validation_fraction}; it must be between 0 and 1"
            )
        self.candidates()

    def candidates(self) -> list[Training]:
        """Every combination of alpha and learning rate."""
        alphas = self.alphas or (self.training.alpha,)
        lrs = self.lrs or (self.training.lr,)
        return [replace(self.training, alpha=a, lr=r) for a, r in itertools.product(alphas, lrs)]
