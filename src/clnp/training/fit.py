"""One fit: a network trained on one task with one set of hyper-parameters, resumable by epoch."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from clnp.core.net import ContinualNet
from clnp.core.record import OpenState
from clnp.devices import on_the_host
from clnp.errors import ArgumentError, DivergedError

from .augment import augmentation
from .batches import Batches
from .config import Alpha, Training
from .cuda_graph import CapturedStep
from .objective import Objective
from .optimizer import can_be_captured, load_optimizer, make_optimizer, rate_shares
from .rng import derive, seed_all
from .task import TaskData


class Trainable(Protocol):
    """A network with an open task, which is what its call, parameters and state are about."""

    training: bool

    @property
    def open_task(self) -> str | None:
        """The task that is being learnt."""

    def __call__(self, inputs: Tensor, /) -> Any:
        """The outputs of the open task."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the open task may change."""

    def train(self, mode: bool = True) -> Any:
        """Put the network in training mode, or in evaluation mode."""

    def open_state(self) -> OpenState:
        """A copy of the open task."""

    def set_open_state(self, state: OpenState) -> None:
        """Put the open task back to where the copy was taken."""


@dataclass(frozen=True)
class StepRule:
    """What a method does in a step beside following the gradient of the loss.

    `set_up` gets the optimizer before the first step, and when a training is resumed. A step calls,
    in this order: `before_step`, with the part of the epoch that is over; `loss`, which is added to
    the loss, with the inputs as the network has got them and the targets; `after_backward`, which
    may change gradients; `after_step`. All but `before_step` are captured with the step, so they
    may only work on tensors that stay where they are, and not read them on the host. `penalty` is
    what an epoch's report adds to the loss for what is not in it.
    """

    before_step: Callable[[float], None] = lambda over: None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    after_backward: Callable[[], None] = lambda: None
    after_step: Callable[[], None] = lambda: None
    penalty: Callable[[], float] = lambda: 0.0
    set_up: Callable[[Optimizer], None] = lambda optimizer: None

    def __post_init__(self) -> None:
        try:
            if self.loss is not None:
                signature(self.loss).bind(None, None)
        except TypeError as error:
            raise ArgumentError(
                "the loss of a StepRule must be a function of the inputs and the targets of the "
                f"step, loss(inputs, targets): {error}",
                argument="loss",
            ) from error
        except ValueError:
            pass  # Some functions of C have no signature.

    def added(self, loss: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a step, with what the rule adds to it."""
        if self.loss is None:
            return loss
        own: object = self.loss(inputs, targets)
        if not isinstance(own, Tensor | int | float) or (isinstance(own, Tensor) and own.ndim):
            found = f"of shape {list(own.shape)}" if isinstance(own, Tensor) else repr(own)
            raise ArgumentError(
                f"the loss of a StepRule is {found}; it must be a tensor of one number, such as "
                "the mean over the batch",
                argument="loss",
            )
        return loss + own


EVALUATION_BATCH = 1024


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to: its mean loss, also with the L1 term at its end, and the score."""

    number: int
    loss: float
    penalised_loss: float
    score: float
    seconds: float


def l1_rule(net: ContinualNet, alpha: Alpha) -> StepRule:
    """The L1 penalty on what the open task trains (Alg. 1, line 3)."""

    def penalty() -> float:
        with torch.no_grad():
            return float(net.l1_penalty(alpha))

    return StepRule(after_backward=lambda: net.add_l1_gradient(alpha), penalty=penalty)


class Fit:
    """A candidate that is being trained in the open task of `net`, by the loss and a rule.

    It can be stopped after any epoch and taken up again from `state()`; the epochs that follow
    are the same, because each draws its random numbers from a seed of its own.
    """

    def __init__(
        self, net: Trainable, data: TaskData, training: Training, *, seed: int, rule: StepRule
    ) -> None:
        self.net, self.data, self.training, self.seed = net, data, training, seed
        self.rule = rule
        self.device = data.train.device
        captured = can_be_captured(training, data.train)
        self.optimizer = make_optimizer(training, list(net.parameters()), captured=captured)
        self._shares = rate_shares(self.optimizer, training)
        rule.set_up(self.optimizer)
        size = training.batch_size
        self._captured = CapturedStep(self._step_at, size, self.device) if captured else None
        self._loss_sum = torch.zeros((), device=self.device)
        self._num_samples, self._began = 0, 0.0
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
            self.begin_epoch()
            on_epoch(self.end_epoch())
        return self.settle()

    def begin_epoch(self) -> None:
        """Take all steps of the next epoch; on a GPU, they are queued and not waited for."""
        number, training = len(self.epochs), self.training
        self._began = time.monotonic()
        seed_all(derive(self.seed, "noise", number))
        self._loss_sum.zero_()
        self._num_samples = 0
        train, size = self.data.train, training.batch_size
        total_steps = math.ceil(len(train) / size)
        self.net.train()
        order = derive(self.seed, "order", number)
        with _matmul_in_tf32(training.precision == "tf32" and self.device.type == "cuda"):
            if self._captured is not None:
                for step, places in enumerate(train.places(size, seed=order)):
                    self._before_step(number, step / total_steps)
                    self._captured(places)
                    self._num_samples += len(places)
            else:
                for step, (inputs, targets) in enumerate(train.batches(size, seed=order)):
                    self._before_step(number, step / total_steps)
                    self._step(inputs, targets)
                    self._num_samples += len(inputs)

    def end_epoch(self) -> Epoch:
        """What the epoch that was begun came to."""
        number, net = len(self.epochs), self.net
        loss = float(self._loss_sum) / max(self._num_samples, 1)
        penalised = loss + self.rule.penalty()
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
        epoch = Epoch(number, loss, penalised, score, time.monotonic() - self._began)
        self.epochs.append(epoch)
        if number == 0 or score > self.epochs[self.best_epoch].score:
            self.best_epoch = number
            if self.training.patience is not None:
                self.best = net.open_state()
        return epoch

    def settle(self) -> float:
        """The score of the network: with patience, that of the best epoch, which it gets back."""
        self._captured = None  # A graph holds on to all memory of a step.
        if self.best is not None:
            self.net.set_open_state(self.best)
            return self.epochs[self.best_epoch].score
        return self.epochs[-1].score

    def _before_step(self, number: int, over: float) -> None:
        """Do what is not captured: set the learning rate, and what the rule sets."""
        self.rule.before_step(over)
        lr = self.training.lr_at(number + over)
        for group, share in zip(self.optimizer.param_groups, self._shares, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * share)
            else:
                group["lr"] = lr * share

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
            self.data.objective.check_loss(loss, gradient=True)
            loss = self.rule.added(loss, inputs, targets)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        self.rule.after_backward()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(list(self.net.parameters()), training.clip_norm)
        with self._optimizing():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.rule.after_step()
        # Summed on the device: reading a value here would wait for it.
        self._loss_sum.add_(loss.detach(), alpha=num_samples)

    def _optimizing(self) -> contextlib.AbstractContextManager[Any]:
        """An optimizer of a user's own may count on the default device that the user has set."""
        by_name = isinstance(self.training.optimizer, str)
        return on_the_host() if by_name else contextlib.nullcontext()

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
        load_optimizer(self.optimizer, state["optimizer"])
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


def evaluate(
    predict: Callable[[Tensor], Any],
    batches: Batches,
    objective: Objective,
    *,
    at_least: float | None = None,
) -> float:
    """The objective's score of `predict` over the data; a network is put in evaluation mode.

    As soon as `at_least` is out of reach, it is the score over the data so far, which is below.
    """
    if at_least is None or objective.highest is None:
        return objective.number(*outputs_of(predict, batches))
    total, num_seen, num_samples = 0.0, 0, len(batches)
    pairs = []
    with torch.no_grad(), evaluating(predict):
        for inputs, targets in _pieces(batches):
            pairs.append((predict(inputs), targets))
            total += len(targets) * objective.number(*pairs[-1])
            num_seen += len(targets)
            within_reach = total + (num_samples - num_seen) * objective.highest
            # What rounding may have taken away is far less than a sample.
            if within_reach < num_samples * at_least - 1e-6:
                return total / num_seen
    return objective.number(*joined(pairs))


def _pieces(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples: on a CPU a small piece first, on a GPU batches of one size.

    A GPU takes as long for a small piece as for a large one, and prepares itself for every shape.
    """
    if batches.device.type != "cpu":
        num_batches = math.ceil(len(batches) / EVALUATION_BATCH)
        yield from batches.batches(math.ceil(len(batches) / num_batches))
        return
    for number, (inputs, targets) in enumerate(batches.batches(EVALUATION_BATCH)):
        size = len(targets)
        # An eighth of the first batch, a quarter, and the rest of it.
        ends = (size // 8, size // 8 + size // 4) if number == 0 else ()
        for start, end in itertools.pairwise((0, *ends, size)):
            if start < end:
                yield inputs[start:end], targets[start:end]


def outputs_of(predict: Callable[[Tensor], Any], batches: Batches) -> tuple[Any, Tensor]:
    """All outputs and targets; a network is put in evaluation mode for it."""
    with torch.no_grad(), evaluating(predict):
        return joined([(predict(x), y) for x, y in batches.batches(EVALUATION_BATCH)])


def joined(pairs: Sequence[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    """The outputs of all pairs, and the targets of all of them."""
    outputs, targets = zip(*pairs, strict=True)
    return _together(outputs), torch.cat(targets)


def _together(parts: Sequence[Any]) -> Any:
    """What a network gave for several batches, as if it had been one; it may be nested."""
    first = parts[0]
    if isinstance(first, Tensor):
        if not first.ndim:
            raise ArgumentError(
                "the network returns a tensor without an axis, such as a loss; in evaluation mode "
                "it must return one entry for each sample"
            )
        return torch.cat(list(parts))
    if is_dataclass(first) and not isinstance(first, type):
        names = [each.name for each in fields(first)]
        return replace(first, **{n: _together([getattr(p, n) for p in parts]) for n in names})
    if isinstance(first, Mapping):
        return {name: _together([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        made = [_together(each) for each in zip(*parts, strict=True)]
        return type(first)(*made) if hasattr(first, "_fields") else type(first)(made)
    return first


@contextlib.contextmanager
def evaluating(predict: object) -> Iterator[None]:
    """With a network in evaluation mode."""
    if not isinstance(predict, nn.Module):
        yield
        return
    mode = predict.training
    predict.eval()
    try:
        yield
    finally:
        predict.train(mode)
