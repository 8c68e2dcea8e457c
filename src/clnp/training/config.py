"""Settings of a training, and of the learner: its grid, pruning and fine-tuning.

Each field is also a key of a recipe; its docstring is the explanation in the reference of the keys.
"""

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
    LARGEST,
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
from .criterion import Criterion, importance

Alpha = float | Mapping[str, float]
OptimizerFactory = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
_TRAINING = {
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
_FINE_TUNING = {
    "epochs": COUNT,
    "lr": ABOVE_0,
    "schedule": one_of("constant", "cosine"),
    "alpha": strength,
    "rounds": COUNT,
}
_TASK = {
    "margin": optional(FROM_0),
    "alphas": several(strength),
    "lrs": several(ABOVE_0),
    "epochs": optional(COUNT),
}
_LEARNER = {
    "margin": FROM_0,
    "alphas": several(strength),
    "lrs": several(ABOVE_0),
    "search_on": one_of("every", "first"),
    "candidates_at_once": COUNT,
    "importance": importance,
    "resolution": optional(COUNT),
    "calibration_samples": within(
        whole_number, lambda value: value == 0 or value >= 2, "a whole number, 0, or 2 or more"
    ),
    "validation_fraction": BETWEEN_0_AND_1,
    "num_workers": COUNT_FROM_0,
}


@dataclass(frozen=True)
class Training:
    """The settings for training one candidate.

        clnp.Training(epochs=10, lr=3e-3, optimizer="SGD", optimizer_options={"momentum": 0.9})
        clnp.Training(optimizer=lambda parameters, lr: MyOptimizer(parameters, lr))

    All fields are keyword arguments, explained one by one in the class.

    Args:
        optimizer: Name of a class in `torch.optim`, or a function of the list of Parameters and
            the learning rate that returns an optimizer.
        initialisation: Name, or a function of a new layer that changes its values in place.
        augment: Name, or a function of the inputs of a batch, [batch, ...], that returns such
            inputs.
    """

    epochs: int = 20
    """Largest number of passes over the training data."""
    lr: float = 1e-3
    """Learning rate at the start."""
    alpha: Alpha = 1e-5
    """Strength of the L1 penalty: one for all layers, or one per layer path; 0 for the others."""
    batch_size: int = 256
    """Samples per step."""
    optimizer: str | OptimizerFactory = "Adam"
    """Name of a class in `torch.optim`; in Python also a function of parameters and rate."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of that class, such as `{weight_decay = 1e-4}`."""
    schedule: Literal["constant", "cosine", "milestones"] = "constant"
    """Schedule of the learning rate: constant, down to zero along a cosine, or in steps."""
    milestones: tuple[int, ...] = ()
    """With the schedule "milestones": the epochs after which the learning rate changes."""
    milestone_factor: float = 0.1
    """With the schedule "milestones": the factor of each change of the learning rate."""
    patience: int | None = None
    """Keep the weights of the best epoch, and stop after this many without a better score."""
    input_dropout: float = 0.0
    """Fraction of the inputs that are set to zero in training."""
    clip_norm: float | None = None
    """Largest norm of the gradient; longer gradients are scaled down to it."""
    initialisation: Literal["pytorch", "glorot"] | Initialise = "pytorch"
    """Initial weights: those of PyTorch, or of Keras; in Python also a function of a layer."""
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = "float32"
    """Number format in training; elsewhere float32, in which PyTorch may round convolutions."""
    channels_last: bool = False
    """Use the channels-last memory format for 4-D inputs in training, which suits tensor cores."""
    cuda_graph: bool = False
    """On a GPU, capture a step and replay it: much faster, but Python code in it runs only once."""
    augment: Literal["flip", "flip-and-crop"] | Callable[[Tensor], Tensor] | None = None
    """Random changes to each batch of images, on the device; in Python also a function."""

    def __post_init__(self) -> None:
        settle(self, _TRAINING, where="training")
        check_kind("optimizer_options", self.optimizer_options, Mapping, "a dictionary")
        if self.schedule == "milestones" and not self.milestones:
            message = "training: schedule is 'milestones', but there are no milestones. Set them"
            raise ArgumentError(f"{message}, or choose another schedule", argument="milestones")
        if self.schedule == "milestones":
            self._check_milestones()
        initialisation(self.initialisation)
        if self.augment is not None:
            augmentation(self.augment)
        if "lr" in self.optimizer_options:
            message = "training: optimizer_options contains lr. Set training.lr instead"
            raise ArgumentError(message, argument="optimizer_options")
        if isinstance(self.optimizer, str):
            optimizer_class(self.optimizer)

    def _check_milestones(self) -> None:
        lr = self.lr
        for num_passed in range(1, len(self.milestones) + 1):
            lr *= self.milestone_factor
            if lr >= LARGEST:
                raise ArgumentError(
                    f"training: milestone_factor is {self.milestone_factor:g}. After {num_passed} "
                    f"milestones, the learning rate would be {lr:g}. Use a smaller factor",
                    argument="milestone_factor",
                )

    def lr_at(self, progress: float) -> float:
        """Return the learning rate after `progress` epochs, which may be a fraction."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(progress / self.epochs, 1.0)))
        if self.schedule == "milestones":
            num_passed = sum(progress >= milestone for milestone in self.milestones)
            return self.lr * self.milestone_factor**num_passed
        return self.lr


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of that name in `torch.optim`, or raise an `ArgumentError`."""
    base = torch.optim.Optimizer
    classes = {n: c for n, c in vars(torch.optim).items() if isinstance(c, type)}
    known = {n: c for n, c in classes.items() if issubclass(c, base) and c is not base}
    if name not in known:
        message = f"training: {unknown_name('optimizer', name, sorted(known))}"
        raise ArgumentError(message, argument="optimizer")
    return known[name]


@dataclass(frozen=True)
class FineTuning:
    """The settings for training the remaining neurons after pruning.

        clnp.LearnerConfig(fine_tuning=clnp.FineTuning(epochs=5, lr=1e-4, rounds=2))

    All fields are keyword arguments, explained one by one in the class. Other settings are those
    of `LearnerConfig.training`.
    """

    epochs: int = 20
    """Passes over the training data in each round."""
    lr: float = 1e-4
    """Learning rate at the start of each round."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rate in a round: constant, or down to zero along a cosine."""
    alpha: Alpha = 0.0
    """Strength of the L1 penalty: one for all layers, or one per layer path."""
    rounds: int = 1
    """Largest number of rounds; before each but the first, the task is pruned again."""

    def __post_init__(self) -> None:
        settle(self, _FINE_TUNING, where="fine_tuning")


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a single task, which replace those for all tasks."""

    margin: float | None = None
    """Validation score that it may give up, in the units of the score."""
    alphas: tuple[Alpha, ...] = ()
    """Strengths of the L1 penalty to try; a single one is used without a search."""
    lrs: tuple[float, ...] = ()
    """Learning rates to try."""
    epochs: int | None = None
    """Largest number of passes over its training data."""

    def __post_init__(self) -> None:
        settle(self, _TASK)


@dataclass(frozen=True)
class LearnerConfig:
    """The settings for learning tasks; `alphas` and `lrs` span the grid of candidates.

        clnp.LearnerConfig(margin=1.0, alphas=(1e-4, 1e-3), training=clnp.Training(epochs=10))

    All fields are keyword arguments, explained one by one in the class.

    Args:
        importance: Name, or a function of the network, whose open task has been trained, and of
            the batches of its training data. It returns a number for each free neuron of each
            group, 0 or more, by group.
    """

    margin: float = 0.5
    """Validation score that a task may give up for free neurons, in the units of the score:
    percentage points, unless the objective is your own."""
    alphas: tuple[Alpha, ...] = ()
    """Strengths of the L1 penalty to try, which replace `training.alpha`."""
    lrs: tuple[float, ...] = ()
    """Learning rates to try, which replace `training.lr`."""
    search_on: Literal["every", "first"] = "every"
    """Search the grid for every task, or for the first one and keep its winner for the others."""
    candidates_at_once: int = 1
    """Candidates that are trained at the same time, each in a copy of the network. It pays off
    where the network is small and the GPU large."""
    training: Training = field(default_factory=Training)
    """Training of each candidate of the grid."""
    tasks: Mapping[str, TaskSettings] = field(default_factory=dict)
    """Settings of single tasks by name, or by pattern such as "cifar100 *"; the first match
    counts."""
    importance: Literal["activity", "contribution", "taylor"] | str | Criterion = "activity"
    """Criterion that thresholds cut by: mean activity, the neuron's share in what the next layer
    receives, its share in the loss (a Taylor score); or the import path of a function,
    "package.module:function", in Python also the function itself."""
    per_layer: bool = False
    """After the threshold for all layers, raise that of each layer as far as the margin allows."""
    resolution: int | None = 10
    """Thresholds to try from the top before the search halves the last gap; "none": all."""
    recalibrate: bool = True
    """Recalibrate the BatchNorm statistics of the remaining neurons after pruning."""
    calibration_samples: int = 256
    """Training samples for recalibrating BatchNorm before each score: of a candidate, and of every
    set of neurons that the search tries. With 0, scores use the statistics from training."""
    fine_tuning: FineTuning | None = None
    """Train the remaining neurons after pruning."""
    validation_fraction: float = 0.1
    """Fraction of the training data that is held out where a task has no validation data."""
    resident: bool | None = None
    """Keep all data on the device; by default, data sets of up to 2 GiB that are not random."""
    num_workers: int = 0
    """Processes that read data which is not resident."""
    check_data: bool = True
    """Read data that is not resident once before training, to find NaN and labels out of range."""

    def __post_init__(self) -> None:
        settle(self, _LEARNER)
        check_kind("training", self.training, Training, "a Training, such as Training(epochs=5)")
        if self.fine_tuning is not None:
            expected = "a FineTuning, such as FineTuning(epochs=5), or None"
            check_kind("fine_tuning", self.fine_tuning, FineTuning, expected)
        example = 'such as {"a": TaskSettings(margin=1)}'
        check_kind("tasks", self.tasks, Mapping, example)
        for name, own in self.tasks.items():
            if not isinstance(name, str) or not isinstance(own, TaskSettings):
                message = f"tasks contains {name!r}: {own!r}. Give the settings of a task by its"
                raise ArgumentError(f"{message} name, {example}", argument="tasks")

    def settings(self, task: str) -> TaskSettings:
        """Return the settings of the task alone: those under its name, or the first match."""
        found = (own for name, own in self.tasks.items() if fnmatchcase(task, name))
        return self.tasks.get(task) or next(found, TaskSettings())

    def of(self, task: str) -> "LearnerConfig":
        """Return the config for the task of that name, its own settings included."""
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
        """Whether the task has another grid than the others."""
        own = self.settings(task)
        return bool(own.alphas or own.lrs)

    def with_choices(self, choices: Mapping[str, tuple[Alpha, float]]) -> "LearnerConfig":
        """Return the config with an alpha and a learning rate for each given task, not a grid."""
        chosen = {
            task: replace(self.settings(task), alphas=(alpha,), lrs=(lr,))
            for task, (alpha, lr) in choices.items()
        }
        others = {name: own for name, own in self.tasks.items() if name not in chosen}
        return replace(self, tasks={**chosen, **others})

    def unused(self, tasks: Sequence[str]) -> list[str]:
        """Return the names and patterns in `self.tasks` that match none of these tasks."""
        return [
            name for name in self.tasks if not any(t == name or fnmatchcase(t, name) for t in tasks)
        ]

    def candidates(self) -> list[Training]:
        """Return a training for every combination of alpha and learning rate."""
        alphas = self.alphas or (self.training.alpha,)
        lrs = self.lrs or (self.training.lr,)
        return [replace(self.training, alpha=a, lr=r) for a, r in itertools.product(alphas, lrs)]
