"""How one candidate is trained: the settings, and the optimizer that they describe."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .arguments import check_kind
from .augmentation import augmentation
from .batches import Batches
from .defaults import on_the_host
from .errors import ArgumentError, unknown_name
from .initialisation import Initialise, initialisation
from .settings import (
    ABOVE_0,
    COUNT,
    number,
    one_of,
    optional,
    settle,
    several,
    strength,
    whole_number,
    within,
)

Alpha = float | Mapping[str, float]
OptimizerFactory = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
_KINDS = {
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
        settle(self, _KINDS, where="training")
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


def can_be_captured(training: Training, data: Batches) -> bool:
    """Whether steps can be captured: the data must be resident, and nothing read by the host."""
    return (
        training.cuda_graph
        and data.device.type == "cuda"
        and data.inputs is not None
        and training.precision != "float16"  # A scaler looks whether gradients are finite.
        and isinstance(training.optimizer, str)
        and (_has_option(training.optimizer, "capturable") or _is_fused_sgd(training))
    )


def _has_option(optimizer: str, option: str) -> bool:
    return option in signature(_optimizer_class(optimizer)).parameters


def _is_fused_sgd(training: Training) -> bool:
    """Whether it is SGD in one kernel: that one reads its learning rate on the device, too."""
    options = training.optimizer_options
    return training.optimizer == "SGD" and "foreach" not in options and options.get("fused", True)


def make_optimizer(
    training: Training, parameters: list[nn.Parameter], *, captured: bool = False
) -> torch.optim.Optimizer:
    """The optimizer of these parameters; if steps are captured, its state is on their device."""
    if not isinstance(training.optimizer, str):
        return training.optimizer(parameters, training.lr)
    make: Any = _optimizer_class(training.optimizer)
    options = {"lr": training.lr, **training.optimizer_options}
    if captured:
        options["lr"] = torch.tensor(training.lr, device=parameters[0].device)
        if _has_option(training.optimizer, "capturable"):
            options["capturable"] = True
        if _has_option(training.optimizer, "fused") and "foreach" not in options:
            options.setdefault("fused", True)
    try:
        with on_the_host():
            made: torch.optim.Optimizer = make(parameters, **options)
    except Exception as error:  # Optimizers raise whatever they like.
        message = f"training: {training.optimizer}: {error}"
        raise ArgumentError(message, argument="optimizer_options") from error
    return made


def rate_shares(optimizer: torch.optim.Optimizer, training: Training) -> list[float]:
    """What each group of a new optimizer has of the learning rate.

    The function of a user may give groups rates of their own, which follow the schedule too.
    """
    groups = optimizer.param_groups
    if isinstance(training.optimizer, str):
        return [1.0] * len(groups)
    return [1.0 if g["lr"] is None else float(g["lr"]) / training.lr for g in groups]


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put the state of another optimizer of the kind into this one, which may be on other hardware.

    How its steps are carried out stays as it was made: a CPU cannot be `capturable`.
    """
    groups = []
    for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        kept = {name: own[name] for name in ("capturable", "fused", "foreach") if name in own}
        lr: Any = saved["lr"] if saved["lr"] is None else float(saved["lr"])
        if isinstance(own["lr"], Tensor):
            lr = torch.full_like(own["lr"], lr)
        groups.append({**saved, **kept, "lr": lr})
    optimizer.load_state_dict({**state, "param_groups": groups})


def check_optimizers(trainings: Iterable[Training], model: nn.Module) -> None:
    """Raise an `ArgumentError` unless optimizers that go by name can train weights like these.

    Some take matrices only.
    """
    weights = {weight.ndim: weight.device for weight in model.parameters()}
    for training in trainings:
        if weights and isinstance(training.optimizer, str):
            check_optimizer(training, next(iter(weights.values())), num_axes=weights)


def check_optimizer(
    training: Training, device: torch.device, *, num_axes: Iterable[int] = (2,)
) -> None:
    """Raise an `ArgumentError` unless the optimizer can be made, and takes a step."""
    weights = [nn.Parameter(torch.zeros([2] * num, device=device)) for num in num_axes]
    optimizer = make_optimizer(training, weights)
    torch.autograd.backward([weight.sum() for weight in weights])
    step: Any = optimizer.step
    try:
        with on_the_host():
            step()
    except Exception as error:  # Optimizers raise whatever they like.
        raise ArgumentError(
            f"training: {type(optimizer).__name__} cannot be used: {error}", argument="optimizer"
        ) from error
