"""One task, one set of hyper-parameters: a candidate, trained, resumable at every epoch."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batches import Batches
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
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the forward pass; the weights are in float32 always."""
    augment: Callable[[Tensor], Tensor] | None = None
    """Changes a batch of inputs, on the device, before each step."""

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
            "precision": ("float32", "bfloat16", "float16"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                message = f"training: {unknown_name(name, getattr(self, name), known)}"
                raise ArgumentError(message, argument=name)
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


def make_optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of these parameters."""
    if not isinstance(training.optimizer, str):
        return training.optimizer(parameters, training.lr)
    make: Any = _optimizer_class(training.optimizer)
    try:
        made: torch.optim.Optimizer = make(parameters, lr=training.lr, **training.optimizer_options)
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
    """What one epoch came to: mean loss without and with the L1 term, and the validation score."""

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
        self.optimizer = make_optimizer(training, list(net.parameters()))
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
        parameters = list(net.parameters())
        sums = torch.zeros(2, device=self.device)
        num_samples = 0
        total_steps = math.ceil(len(self.data.train) / training.batch_size)
        net.train()
        order = derive(self.seed, "order", number)
        batches = self.data.train.batches(training.batch_size, seed=order)
        for step, (inputs, targets) in enumerate(batches):
            lr = training.lr_at(number + step / total_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            loss, penalty = self._step(inputs, targets, parameters)
            # Summed on the device: reading a value here would wait for it.
            sums += torch.stack([loss.detach(), penalty.detach()]).float() * len(inputs)
            num_samples += len(inputs)
        loss_sum, penalty_sum = (sums / max(num_samples, 1)).tolist()
        if not math.isfinite(loss_sum + penalty_sum):
            raise DivergedError(
                f"the loss of task {net.open_task!r} is {loss_sum} in epoch {number + 1}; "
                "use a lower learning rate"
            )
        score = evaluate(net, self.data.validation, self.data.objective)
        if not math.isfinite(score):
            raise DivergedError(
                f"the validation score of task {net.open_task!r} is {score} in epoch {number + 1}"
            )
        return Epoch(number, loss_sum, loss_sum + penalty_sum, score, time.monotonic() - start)

    def _step(
        self, inputs: Tensor, targets: Tensor, parameters: list[nn.Parameter]
    ) -> tuple[Tensor, Tensor]:
        training = self.training
        if training.augment is not None:
            inputs = training.augment(inputs)
        if training.input_dropout:
            inputs = F.dropout(inputs, training.input_dropout)
        with self._autocast():
            loss = self.data.objective.loss(self.net(inputs), targets)
        penalty = self.net.l1_penalty(training.alpha)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(loss + penalty))
        if training.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss, penalty

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.training.precision == "float32":
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
        self.scaler.load_state_dict(state["scaler"])


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
