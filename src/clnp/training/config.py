"""Settings: how a fit trains, and how the learner searches, prunes and fine-tunes."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clnp.checks import (
    ABOVE_0,
    BETWEEN_0_AND_1,
    COUNT,
    COUNT_FROM_0,
    FROM_0,
    check_kind,
    number,
    one_of,
    optional,
    settle,
    several,
    strength,
    whole_number,
    within,
)
from clnp.core.layers.initialisation import Initialise, initialisation
from clnp.errors import ArgumentError, unknown_name

from .augment import augmentation

Alpha = float | Mapping[str, float]
OptimizerFactory = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
_TRAINING_KINDS = {
    "epochs": COUNT,
    "lr": ABOVE_0,
    "alpha": strength,
    "batch_size": within(
        whole_number, lambda value: 1 <= value < 2**31, "a whole number from 1 to 2147483647"
    ),
    "schedule": one_of("constant", "cosine", "milestones"),
    "milestones": several(whole_number),
    "milestone_factor": ABOVE_0,
    "patience": optional(COUNT),
    "input_dropout": within(number, lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    "clip_norm": optional(ABOVE_0),
    "precision": one_of("float32", "tf32", "bfloat16", "float16"),
}


@dataclass(frozen=True)
class Training:
    """How one candidate is trained."""

    epochs: int = 20
    """How often the training data is gone through, at most."""
    lr: float = 1e-3
    """Learning rate at the start."""
    alpha: Alpha = 1e-5
    """Strength of the L1 penalty: one for all layers, or by the path of each; 0 for the others."""
    batch_size: int = 256
    """Samples per step."""
    optimizer: str | OptimizerFactory = "Adam"
    """Name of a class in `torch.optim`; in Python also a function of parameters and rate."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """What else that class is called with, such as `{weight_decay = 1e-4}`."""
    schedule: Literal["constant", "cosine", "milestones"] = "constant"
    """How the learning rate goes on: as it is, down to zero along a cosine, or by steps."""
    milestones: tuple[int, ...] = ()
    """With the schedule "milestones": the epochs after which the learning rate changes."""
    milestone_factor: float = 0.1
    """With the schedule "milestones": what the learning rate is multiplied by."""
    patience: int | None = None
    """Keep the weights of the best epoch, and stop after so many without a better score."""
    input_dropout: float = 0.0
    """Fraction of the inputs that are set to zero in training."""
    clip_norm: float | None = None
    """Largest norm of the gradient, longer ones are shortened to it."""
    initialisation: Literal["pytorch", "glorot"] | Initialise = "pytorch"
    """Where weights begin: as PyTorch or Keras has them; in Python also a function of a layer."""
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = "float32"
    """Number format in training; the rest is float32, in which PyTorch may round convolutions."""
    channels_last: bool = False
    """Lay images out with the channels last in training, which suits tensor cores; 4-D inputs."""
    cuda_graph: bool = False
    """On a GPU, capture a step and replay it: much faster, but Python code in it runs only once."""
    augment: Literal["flip", "flip-and-crop"] | Callable[[Tensor], Tensor] | None = None
    """Changes a batch of images before each step; in Python also a function, on the device."""

    def __post_init__(self) -> None:
        settle(self, _TRAINING_KINDS, where="training")
        check_kind("optimizer_options", self.optimizer_options, Mapping, "a dictionary")
        if self.schedule == "milestones" and not self.milestones:
            message = "training: schedule is 'milestones', and there are none: give milestones too"
            raise ArgumentError(message, argument="schedule")
        initialisation(self.initialisation)
        if self.augment is not None:
            augmentation(self.augment)
        if "lr" in self.optimizer_options:
            message = "training: optimizer_options holds lr; it has a key of its own"
            raise ArgumentError(message, argument="optimizer_options")
        if isinstance(self.optimizer, str):
            _optimizer_class(self.optimizer)

    def lr_at(self, progress: float) -> float:
        """The learning rate after `progress` epochs, which need not be whole."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(progress / self.epochs, 1.0)))
        if self.schedule == "milestones":
            num_passed = sum(progress >= milestone for milestone in self.milestones)
            return self.lr * self.milestone_factor**num_passed
        return self.lr


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    base = torch.optim.Optimizer
    classes = {n: c for n, c in vars(torch.optim).items() if isinstance(c, type)}
    known = {n: c for n, c in classes.items() if issubclass(c, base) and c is not base}
    if name not in known:
        message = f"training: {unknown_name('optimizer', name, sorted(known))}"
        raise ArgumentError(message, argument="optimizer")
    return known[name]


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
_LEARNER_KINDS = {
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
        settle(self, _LEARNER_KINDS)
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
