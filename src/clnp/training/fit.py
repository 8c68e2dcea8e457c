"""One fit: the training of a network on one task with one set of hyper-parameters."""

import contextlib
import inspect
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from clnp.checks import shown
from clnp.core.net import ContinualNet
from clnp.core.record import OpenState
from clnp.devices import on_the_host
from clnp.errors import ArgumentError, DivergedError

from .augment import augmentation
from .batches import Batches
from .config import Alpha, Training
from .cuda_graph import CapturedStep
from .objective import Objective, check_loss, falls_with_the_loss, has_fallen, is_built_in
from .optimizer import can_be_captured, load_optimizer, make_optimizer, rate_shares
from .rng import derive, seed_all
from .task import TaskData

EVALUATION_BATCH = 1024


class Trainable(Protocol):
    """A network with an open task: its outputs, Parameters and state are those of this task."""

    training: bool

    @property
    def open_task(self) -> str | None: ...
    def __call__(self, inputs: Tensor, /) -> Any: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def train(self, mode: bool = True) -> Any: ...
    def open_state(self) -> OpenState: ...
    def set_open_state(self, state: OpenState) -> None: ...


@dataclass(frozen=True)
class StepRule:
    """The additions of a method to each training step.

        StepRule(loss=lambda inputs, targets: strength * drift())
        StepRule(after_backward=mask_gradients, after_step=restore_weights)

    All but `before_step` are part of a captured step: they must work in place on tensors that stay
    where they are, and not read them on the host.

    Args:
        before_step: Called first, with the fraction of the epoch that is over.
        loss: Function of the inputs as the network got them, [batch, ...], and of the targets,
            [batch, ...]. Returns a number or a tensor with a single one, which is added to the
            loss.
        after_backward: Called after the backward pass. It may change gradients.
        after_step: Called after the optimizer step.
        penalty: Returns the part of the objective that is not in the loss, for the report of an
            epoch.
        set_up: Called with the optimizer before the first step, and when a fit resumes.
    """

    before_step: Callable[[float], None] = lambda over: None
    loss: Callable[[Tensor, Tensor], Tensor | float] | None = None
    after_backward: Callable[[], None] = lambda: None
    after_step: Callable[[], None] = lambda: None
    penalty: Callable[[], float] = lambda: 0.0
    set_up: Callable[[Optimizer], None] = lambda optimizer: None

    def __post_init__(self) -> None:
        """Raise an `ArgumentError` unless each field is a function of what it is called with."""
        for name, arguments in _ARGUMENTS.items():
            function = getattr(self, name)
            of = f" of {' and '.join(arguments)}" if arguments else " without arguments"
            if function is None and name == "loss":
                continue
            if not callable(function):
                raise ArgumentError(
                    f"{name} of a StepRule is {shown(function)}. It must be a function{of}",
                    argument=name,
                )
            try:
                inspect.signature(function).bind(*arguments)
            except TypeError as error:
                raise ArgumentError(
                    f"{name} of a StepRule cannot be called: {error}. It must be a function{of}",
                    argument=name,
                ) from error
            except ValueError:
                continue  # Functions that are written in C may have no signature.

    def added(self, loss: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a step with that of the rule."""
        if self.loss is None:
            return loss
        own = self.loss(inputs, targets)
        if not isinstance(own, int | float):
            check_loss("the loss of a StepRule", own)
        return loss + own


_ARGUMENTS = {
    "before_step": ("the fraction of the epoch",),
    "loss": ("inputs", "targets"),
    "after_backward": (),
    "after_step": (),
    "penalty": (),
    "set_up": ("the optimizer",),
}
"""What the functions of a `StepRule` are called with."""


def l1_rule(net: ContinualNet, alpha: Alpha) -> StepRule:
    """Return the rule for the L1 penalty on the open task (Alg. 1, line 3)."""

    def penalty() -> float:
        with torch.no_grad():
            return float(net.l1_penalty(alpha))

    return StepRule(after_backward=lambda: net.add_l1_gradient(alpha), penalty=penalty)


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch; `penalised_loss` includes the penalty at its end."""

    number: int
    loss: float
    penalised_loss: float
    score: float
    seconds: float


class FitState(TypedDict):
    """All that a fit resumes from, beside the weights of the open task."""

    epochs: list[dict[str, Any]]
    best_epoch: int
    best: dict[str, Any] | None
    optimizer: dict[str, Any]
    scaler: dict[str, Any]


class Fit:
    """The training of a candidate in the open task of `net`.

        fit = Fit(net, load(task, device), Training(epochs=5), seed=0, rule=l1_rule(net, 1e-4))
        score = fit.run(lambda epoch: print(epoch.score))

    After each epoch, it can be stopped and later resumed from `state()`. The epochs that follow are
    the same, because each draws its random numbers from its own seed.
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
        self._doubts_score = not is_built_in(data.objective)
        self.best_epoch = 0
        self.best: OpenState | None = None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the patience is exhausted."""
        num_epochs, patience = len(self.epochs), self.training.patience
        waited = num_epochs - 1 - self.best_epoch
        return num_epochs >= self.training.epochs or (patience is not None and waited >= patience)

    def run(self, on_epoch: Callable[[Epoch], None] = lambda epoch: None) -> float:
        """Train to the end, and return the validation score of the final weights."""
        while not self.finished:
            self.begin_epoch()
            on_epoch(self.end_epoch())
        return self.settle()

    def begin_epoch(self) -> None:
        """Take all steps of the next epoch; on a GPU, queue them without waiting."""
        number, training = len(self.epochs), self.training
        self._began = time.monotonic()
        seed_all(derive(self.seed, "noise", number))
        self._loss_sum.zero_()
        self._num_samples = 0
        train, size = self.data.train, training.batch_size
        num_steps = math.ceil(len(train) / size)
        self.net.train()
        order = derive(self.seed, "order", number)
        with _matmul_in_tf32(training.precision == "tf32" and self.device.type == "cuda"):
            if self._captured is not None:
                for step, indices in enumerate(train.indices(size, seed=order)):
                    self._before_step(number, step / num_steps)
                    self._captured(indices)
                    self._num_samples += len(indices)
            else:
                for step, (inputs, targets) in enumerate(train.batches(size, seed=order)):
                    self._before_step(number, step / num_steps)
                    self._step(inputs, targets)
                    self._num_samples += len(inputs)

    def end_epoch(self) -> Epoch:
        """Wait for the steps of the epoch, evaluate the network, and return the result."""
        number, net = len(self.epochs), self.net
        loss = float(self._loss_sum) / max(self._num_samples, 1)
        penalised = loss + self.rule.penalty()
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss of task {net.open_task!r} is {loss} in epoch {number + 1}. "
                "Use a lower learning rate"
            )
        if not math.isfinite(penalised):
            raise DivergedError(
                f"the loss of task {net.open_task!r} with its penalty is {penalised} in epoch "
                f"{number + 1}. Use a lower alpha or learning rate"
            )
        score = evaluate(net, self.data.validation, self.data.objective)
        if not math.isfinite(score):
            raise DivergedError(
                f"the validation score of task {net.open_task!r} is {score} in epoch {number + 1}. "
                "Use a lower learning rate"
            )
        epoch = Epoch(number, loss, penalised, score, time.monotonic() - self._began)
        self.epochs.append(epoch)
        self._judge_score()
        if number == 0 or score > self.epochs[self.best_epoch].score:
            self.best_epoch = number
            if self.training.patience is not None:
                self.best = net.open_state()
        return epoch

    def _judge_score(self) -> None:
        """Warn if the score looks like a loss when both have fallen for the first time.

        Neither noise nor overfitting makes an honest score fall that far from the first epoch on.
        """
        losses = [epoch.loss for epoch in self.epochs]
        scores = [epoch.score for epoch in self.epochs]
        have_fallen = len(losses) >= 3 and has_fallen(losses) and has_fallen(scores)
        if not (self._doubts_score and have_fallen):
            return
        self._doubts_score = False
        if falls_with_the_loss(losses, scores):
            warnings.warn(
                f"the score of the objective {self.data.objective.name!r} falls as the training "
                "loss does, and higher is better. If it is a loss, return its negative",
                stacklevel=2,
            )

    def settle(self) -> float:
        """Restore the weights of the best epoch, with patience, and return the network's score."""
        self._captured = None  # A graph keeps all memory of a step allocated.
        if self.best is not None:
            self.net.set_open_state(self.best)
            return self.epochs[self.best_epoch].score
        return self.epochs[-1].score

    def _before_step(self, number: int, over: float) -> None:
        """Do what is not captured: the rule's part, and the learning rate."""
        self.rule.before_step(over)
        lr = self.training.lr_at(number + over)
        for group, share in zip(self.optimizer.param_groups, self._shares, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * share)
            else:
                group["lr"] = lr * share

    def _step_at(self, indices: Tensor) -> None:
        self._step(*self.data.train.at(indices))

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
        # The optimizer of a user may rely on the default device that the user has set.
        by_name = isinstance(training.optimizer, str)
        with on_the_host() if by_name else contextlib.nullcontext():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.rule.after_step()
        # Summed on the device: reading a value would wait for it.
        self._loss_sum.add_(loss.detach(), alpha=num_samples)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.training.precision in ("float32", "tf32"):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.training.precision))

    def state(self) -> FitState:
        """Return all that `restore` needs beside the weights of the open task."""
        return {
            "epochs": [vars(epoch) for epoch in self.epochs],
            "best_epoch": self.best_epoch,
            "best": None if self.best is None else self.best.to_state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: FitState) -> None:
        """Resume from `state()`; the network already has the weights of that moment."""
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self.best_epoch = state["best_epoch"]
        self.best = None if state["best"] is None else OpenState.from_state(state["best"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])


@contextlib.contextmanager
def _matmul_in_tf32(wanted: bool) -> Iterator[None]:
    """Let the matrix units of a GPU round inputs to ten bits, if wanted."""
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
    """Return the score of `predict` on the data, in evaluation mode.

    As soon as `at_least` is out of reach, it returns the score so far, which is lower.
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
            # Rounding errors are far smaller than a sample.
            if within_reach < num_samples * at_least - 1e-6:
                return total / num_seen
    return objective.number(*joined(pairs))


def _pieces(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over all samples: on a CPU small batches first, on a GPU batches of one size.

    A GPU is as fast with a large batch as with a small one, and needs preparation for each shape.
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
    """Return all outputs and targets, [samples, ...], in evaluation mode."""
    with torch.no_grad(), evaluating(predict):
        return joined([(predict(x), y) for x, y in batches.batches(EVALUATION_BATCH)])


def joined(pairs: Sequence[tuple[Any, Tensor]]) -> tuple[Any, Tensor]:
    """Concatenate the outputs and the targets of all batches."""
    outputs, targets = zip(*pairs, strict=True)
    return _together(outputs), torch.cat(targets)


def _together(parts: Sequence[Any]) -> Any:
    """Concatenate the outputs for several batches, which may be nested."""
    first = parts[0]
    if isinstance(first, Tensor):
        if not first.ndim:
            raise ArgumentError(
                "the network returns a tensor without an axis, such as a loss. In evaluation mode, "
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
    """Put a network in evaluation mode for the block."""
    if not isinstance(predict, nn.Module):
        yield
        return
    mode = predict.training
    predict.eval()
    try:
        yield
    finally:
        predict.train(mode)
