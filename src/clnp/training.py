"""One task, one set of hyper-parameters: a candidate, trained, resumable at every epoch."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .augmentation import augmentation
from .batches import Batches
from .capture import CapturedStep
from .errors import ArgumentError, DivergedError, unknown_name
from .generators import seed_all
from .net import ContinualNet
from .objective import Objective
from .openstate import OpenState
from .seeds import derive
from .task import TaskData

Alpha = float | Mapping[str, float]
OptimizerFactory = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
EVALUATION_BATCH = 1024
LARGEST = 3e38
"""Beyond this, a number is no float32."""


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
    """Stop, and go back to the best weights, after so many epochs without a better score."""
    input_dropout: float = 0.0
    """Fraction of the inputs that are set to zero in training."""
    clip_norm: float | None = None
    """Largest norm of the gradient, longer ones are shortened to it."""
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = "float32"
    """Number format in training, on a GPU for tf32; weights, and all evaluation, are float32."""
    channels_last: bool = False
    """Lay images out with the channels last in training, which suits tensor cores; 4-D inputs."""
    cuda_graph: bool = False
    """On a GPU, capture a step and replay it: much faster, but Python code in it runs only once."""
    augment: Literal["flip", "flip-and-crop"] | Callable[[Tensor], Tensor] | None = None
    """Changes a batch of images before each step; in Python also a function, on the device."""

    def __post_init__(self) -> None:
        checks = {
            "epochs": self.epochs >= 1,
            "lr": 0 < self.lr < LARGEST,
            "batch_size": 1 <= self.batch_size < 2**31,
            "patience": self.patience is None or self.patience >= 1,
            "input_dropout": 0 <= self.input_dropout < 1,
            "clip_norm": self.clip_norm is None or self.clip_norm > 0,
            "milestone_factor": self.milestone_factor > 0,
        }
        for name, holds in checks.items():
            if not holds:
                message = f"training: {name} cannot be {getattr(self, name)!r}"
                raise ArgumentError(message, argument=name)
        choices = {
            "schedule": ("constant", "cosine", "milestones"),
            "precision": ("float32", "tf32", "bfloat16", "float16"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                message = f"training: {unknown_name(name, getattr(self, name), known)}"
                raise ArgumentError(message, argument=name)
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
    known = {n: c for n, c in vars(torch.optim).items() if isinstance(c, type)}
    if name not in known or not issubclass(known[name], torch.optim.Optimizer):
        names = [n for n, c in known.items() if issubclass(c, torch.optim.Optimizer)]
        message = f"training: {unknown_name('optimizer', name, sorted(names))}"
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
        and "capturable" in signature(_optimizer_class(training.optimizer)).parameters
    )


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
        options["capturable"] = True
        if "fused" in signature(make).parameters and "foreach" not in options:
            options.setdefault("fused", True)
    try:
        made: torch.optim.Optimizer = make(parameters, **options)
    except Exception as error:  # Optimizers raise whatever they like.
        message = f"training: {training.optimizer}: {error}"
        raise ArgumentError(message, argument="optimizer_options") from error
    return made


def check_optimizer(training: Training, device: torch.device) -> None:
    """Raise an `ArgumentError` unless the optimizer can be made, and takes a step."""
    weight = nn.Parameter(torch.zeros(2, 2, device=device))
    optimizer = make_optimizer(training, [weight])
    torch.autograd.backward(weight.sum())
    step: Any = optimizer.step
    try:
        step()
    except Exception as error:  # Optimizers raise whatever they like.
        raise ArgumentError(
            f"training: {type(optimizer).__name__} cannot be used: {error}", argument="optimizer"
        ) from error


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to: its mean loss, also with the L1 term at its end, and the score."""

    number: int
    loss: float
    penalised_loss: float
    score: float
    seconds: float


class Fit:
    """A candidate that is being trained in the open task of `net`.

    It can be stopped after any epoch and taken up again from `state()`; the epochs that follow
    are the same, because each draws its random numbers from a seed of its own.
    """

    def __init__(self, net: ContinualNet, data: TaskData, training: Training, *, seed: int) -> None:
        self.net, self.data, self.training, self.seed = net, data, training, seed
        self.device = data.train.device
        captured = can_be_captured(training, data.train)
        self.optimizer = make_optimizer(training, list(net.parameters()), captured=captured)
        size = training.batch_size
        self._captured = CapturedStep(self._step_at, size, self.device) if captured else None
        self._loss_sum = torch.zeros((), device=self.device)
        enabled = training.precision == "float16"
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=enabled)
        self.epochs: list[Epoch] = []
        self.best_epoch = 0
        self.best: OpenState | None = None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or none of late has been better than an earlier one."""
        num_epochs, patience = len(self.epochs), self.training.patience
        waited = num_epochs - 1 - self.best_epoch
        return num_epochs >= self.training.epochs or (patience is not None and waited >= patience)

    def run(self, on_epoch: Callable[[Epoch], None] = lambda epoch: None) -> float:
        """Train to the end; the validation score of the weights that are then in the network."""
        while not self.finished:
            epoch = self._epoch(len(self.epochs))
            self.epochs.append(epoch)
            if epoch.number == 0 or epoch.score > self.epochs[self.best_epoch].score:
                self.best_epoch = epoch.number
                if self.training.patience is not None:
                    self.best = self.net.open_state()
            on_epoch(epoch)
        if self.best is not None:
            self.net.set_open_state(self.best)
            return self.epochs[self.best_epoch].score
        return self.epochs[-1].score

    def _epoch(self, number: int) -> Epoch:
        start = time.monotonic()
        training, net = self.training, self.net
        seed_all(derive(self.seed, "noise", number))
        self._loss_sum.zero_()
        num_samples = 0
        train, size = self.data.train, training.batch_size
        total_steps = math.ceil(len(train) / size)
        net.train()
        order = derive(self.seed, "order", number)
        with _matmul_in_tf32(training.precision == "tf32" and self.device.type == "cuda"):
            if self._captured is not None:
                for step, places in enumerate(train.places(size, seed=order)):
                    self._set_lr(training.lr_at(number + step / total_steps))
                    self._captured(places)
                    num_samples += len(places)
            else:
                for step, (inputs, targets) in enumerate(train.batches(size, seed=order)):
                    self._set_lr(training.lr_at(number + step / total_steps))
                    self._step(inputs, targets)
                    num_samples += len(inputs)
        loss = float(self._loss_sum) / max(num_samples, 1)
        with torch.no_grad():
            penalised = loss + float(net.l1_penalty(training.alpha))
        if not math.isfinite(penalised):
            raise DivergedError(
                f"the loss of task {net.open_task!r} is {loss} in epoch {number + 1}; "
                "use a lower learning rate"
            )
        score = evaluate(net, self.data.validation, self.data.objective)
        if not math.isfinite(score):
            raise DivergedError(
                f"the validation score of task {net.open_task!r} is {score} in epoch {number + 1}"
            )
        return Epoch(number, loss, penalised, score, time.monotonic() - start)

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def _step_at(self, places: Tensor) -> None:
        self._step(*self.data.train.at(places))

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        training, num_samples = self.training, len(inputs)
        if training.augment is not None:
            inputs = augmentation(training.augment)(inputs)
        if training.input_dropout:
            inputs = F.dropout(inputs, training.input_dropout)
        if training.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with self._autocast():
            loss = self.data.objective.loss(self.net(inputs), targets)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        self.net.add_l1_gradient(training.alpha)
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(list(self.net.parameters()), training.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # Summed on the device: reading a value here would wait for it.
        self._loss_sum.add_(loss.detach(), alpha=num_samples)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.training.precision in ("float32", "tf32"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.training.precision))

    def state(self) -> dict[str, Any]:
        """All that `restore` needs beside the open task's weights."""
        return {
            "epochs": [vars(epoch) for epoch in self.epochs],
            "best_epoch": self.best_epoch,
            "best": None if self.best is None else self.best.to_state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state()` was taken; the network holds the weights of that moment."""
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.best_epoch = state["best_epoch"]
        self.best = None if state["best"] is None else OpenState.from_state(state["best"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"] = group["lr"].to(self.device, copy=True)
        self.scaler.load_state_dict(state["scaler"])


@contextlib.contextmanager
def _matmul_in_tf32(wanted: bool) -> Iterator[None]:
    """Let the matrix units of a GPU round inputs to ten bits, if that is wanted."""
    before = torch.get_float32_matmul_precision()
    if wanted:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if wanted:
            torch.set_float32_matmul_precision(before)


def evaluate(predict: Callable[[Tensor], Any], batches: Batches, objective: Objective) -> float:
    """The objective's score of `predict` over the data; a network is put in evaluation mode."""
    return float(objective.score(*outputs_of(predict, batches)))


def outputs_of(predict: Callable[[Tensor], Any], batches: Batches) -> tuple[Tensor, Tensor]:
    """All outputs and targets; a network is put in evaluation mode for it."""
    mode = predict.training if isinstance(predict, nn.Module) else None
    if isinstance(predict, nn.Module):
        predict.eval()
    try:
        with torch.no_grad():
            pairs = [(predict(x), y) for x, y in batches.batches(EVALUATION_BATCH)]
            outputs, targets = zip(*pairs, strict=True)
            return torch.cat(outputs), torch.cat(targets)
    finally:
        if mode is not None:
            predict.train(mode)  # type: ignore[attr-defined]
