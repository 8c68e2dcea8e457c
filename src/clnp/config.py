"""How tasks are learnt: the grid, the margin, and what follows pruning."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from .arguments import check_kind
from .errors import ArgumentError
from .settings import (
    ABOVE_0,
    BETWEEN_0_AND_1,
    COUNT,
    COUNT_FROM_0,
    FROM_0,
    one_of,
    optional,
    settle,
    several,
    strength,
    whole_number,
    within,
)
from .training import Alpha, Training

_ROUNDS = {
    "epochs": COUNT,
    "lr": ABOVE_0,
    "schedule": one_of("constant", "cosine"),
    "alpha": strength,
    "rounds": COUNT,
}
_OF_A_TASK = {
    "margin": optional(FROM_0),
    "alphas": several(strength),
    "lrs": several(ABOVE_0),
    "epochs": optional(COUNT),
}
_KINDS = {
    "margin": FROM_0,
    "alphas": several(strength),
    "lrs": several(ABOVE_0),
    "search_on": one_of("every", "first"),
    "candidates_at_once": COUNT,
    "importance": one_of("activity", "contribution"),
    "resolution": optional(COUNT),
    "calibration_samples": within(
        whole_number, lambda value: value == 0 or value >= 2, "a whole number, 0, or 2 or more"
    ),
    "validation_fraction": BETWEEN_0_AND_1,
    "num_workers": COUNT_FROM_0,
}


@dataclass(frozen=True)
class FineTuning:
    """Training of the survivors after pruning, and how often to prune and train again."""

    epochs: int = 20
    """How often the training data is gone through, in each round."""
    lr: float = 1e-4
    """Learning rate at the start of each round."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rate goes on in a round: as it is, or down to zero along a cosine."""
    alpha: Alpha = 0.0
    """Strength of the L1 penalty: one for all layers, or one for each by its path."""
    rounds: int = 1
    """How often to train; before every round but the first, the task is pruned once more."""

    def __post_init__(self) -> None:
        settle(self, _ROUNDS, where="fine_tuning")


@dataclass(frozen=True)
class TaskSettings:
    """What one task has of its own; what is not given is as for all tasks."""

    margin: float | None = None
    """What its validation score may give up, in the units of the score."""
    alphas: tuple[Alpha, ...] = ()
    """Strengths of the L1 penalty to try for it; one is a choice that is made."""
    lrs: tuple[float, ...] = ()
    """Learning rates to try for it."""
    epochs: int | None = None
    """How often its training data is gone through, at most."""

    def __post_init__(self) -> None:
        settle(self, _OF_A_TASK)


@dataclass(frozen=True)
class LearnerConfig:
    """How tasks are learnt; `alphas` and `lrs` span the grid, and `training` has the rest."""

    margin: float = 0.5
    """What the validation score may give up for free neurons, in the units of the score:
    percentage points, unless the objective is one of your own."""
    alphas: tuple[Alpha, ...] = ()
    """Strengths of the L1 penalty to try, which replace `training.alpha`."""
    lrs: tuple[float, ...] = ()
    """Learning rates to try, which replace `training.lr`."""
    search_on: Literal["every", "first"] = "every"
    """Search the grid for every task, or for the first one and keep its winner for the others."""
    candidates_at_once: int = 1
    """Candidates that are trained at the same time, each in a copy of the network: worth it where
    the network is small and the GPU large."""
    training: Training = field(default_factory=Training)
    """How each candidate of the grid is trained."""
    tasks: Mapping[str, TaskSettings] = field(default_factory=dict)
    """Settings of single tasks by name, or by a pattern such as "cifar100 *"; the first counts."""
    importance: Literal["activity", "contribution"] = "activity"
    """What the threshold is on: mean activity, or the share that a neuron has in the next layer."""
    per_layer: bool = False
    """After the threshold for all layers, raise that of each layer as far as the margin allows."""
    resolution: int | None = 10
    """Thresholds that are tried from the top before the search halves the last gap; "none": all."""
    recalibrate: bool = True
    """Set the BatchNorm statistics of the survivors anew after pruning."""
    calibration_samples: int = 256
    """Training samples on which that is done before anything is scored: what was trained, and every
    set of neurons that the search tries; 0: they are scored with statistics from training."""
    fine_tuning: FineTuning | None = None
    """Train the survivors after pruning."""
    validation_fraction: float = 0.1
    """Part of the training data that is held out where a task has no validation data."""
    resident: bool | None = None
    """Keep the data on the device as a whole; unless given, up to 2 GiB of it."""
    num_workers: int = 0
    """Processes that read data which is not resident."""
    check_data: bool = True
    """Read data that is not resident once before training, to find NaN and labels out of range."""

    def __post_init__(self) -> None:
        settle(self, _KINDS)
        check_kind("training", self.training, Training, "a Training, such as Training(epochs=5)")
        if self.fine_tuning is not None:
            what = "a FineTuning, such as FineTuning(epochs=5), or None"
            check_kind("fine_tuning", self.fine_tuning, FineTuning, what)
        check_kind("tasks", self.tasks, Mapping, 'such as {"a": TaskSettings(margin=1)}')
        for name, own in self.tasks.items():
            if not isinstance(name, str) or not isinstance(own, TaskSettings):
                message = f"tasks holds {name!r}: {own!r}; give the settings of a task by its name"
                example = 'such as {"a": TaskSettings(margin=1)}'
                raise ArgumentError(f"{message}, {example}", argument="tasks")

    def settings(self, task: str) -> TaskSettings:
        """What the task has of its own: by its name, or else by the first pattern that fits."""
        found = (own for name, own in self.tasks.items() if fnmatchcase(task, name))
        return self.tasks.get(task) or next(found, TaskSettings())

    def of(self, task: str) -> "LearnerConfig":
        """How the task of that name is learnt: this, with what it has of its own."""
        own, training = self.settings(task), self.training
        if own.epochs is not None:
            training = replace(training, epochs=own.epochs)
        return replace(
            self,
            margin=self.margin if own.margin is None else own.margin,
            alphas=own.alphas or self.alphas,
            lrs=own.lrs or self.lrs,
            training=training,
            tasks={},
        )

    def has_own_grid(self, task: str) -> bool:
        """Whether another grid is searched for the task than for others."""
        own = self.settings(task)
        return bool(own.alphas or own.lrs)

    def with_choices(self, choices: Mapping[str, tuple[Alpha, float]]) -> "LearnerConfig":
        """The same with an alpha and a learning rate in place of the grid, for each task named."""
        chosen = {
            task: replace(self.settings(task), alphas=(alpha,), lrs=(lr,))
            for task, (alpha, lr) in choices.items()
        }
        return replace(
            self, tasks={**chosen, **{k: v for k, v in self.tasks.items() if k not in chosen}}
        )

    def unused(self, tasks: Sequence[str]) -> list[str]:
        """The names and patterns in `tasks` that fit none of these."""
        return [
            name for name in self.tasks if not any(t == name or fnmatchcase(t, name) for t in tasks)
        ]

    def candidates(self) -> list[Training]:
        """Every combination of alpha and learning rate."""
        alphas = self.alphas or (self.training.alpha,)
        lrs = self.lrs or (self.training.lr,)
        return [replace(self.training, alpha=a, lr=r) for a, r in itertools.product(alphas, lrs)]
