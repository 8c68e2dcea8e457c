"""The objective of a task: the loss for training and the score for judging."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clnp.errors import ArgumentError, unknown_name


@dataclass(frozen=True)
class Objective:
    """A loss to train with, and a score to prune and compare by.

        def error(outputs, targets):
            return (outputs - targets).abs().mean()

        own = clnp.Objective("own", loss=error, score=lambda o, t: -error(o, t).item())
        clnp.Task("a", (x, y), objective=own, num_outputs=1)

    Args:
        name: Name in messages and reports.
        loss: Function of the outputs of the network for a batch and of its targets, [batch, ...].
            Returns a tensor with a single number and a gradient.
        score: Function of the outputs and targets of a whole data set, [samples, ...]. Returns a
            number, higher is better. Margins are in its units.
        highest: Upper bound of the score, if the score of a data set is the mean of the scores of
            its samples; otherwise None. It allows an evaluation to stop early once the needed
            score is out of reach. `verify` also takes the tolerance for rounding on another
            machine from it. Without it, scores from -1 to 1 count as fractions, and larger ones as
            percentages.
    """

    name: str
    loss: Callable[[Any, Tensor], Tensor]
    score: Callable[[Any, Tensor], float]
    highest: float | None = None

    def check_loss(self, loss: object, *, gradient: bool = False) -> None:
        """Raise an `ArgumentError` unless the loss is one number, and has a gradient if asked."""
        what = f"the loss of the objective {self.name!r}"
        number = check_loss(what, loss)
        if gradient and not number.requires_grad:
            raise ArgumentError(
                f"{what} has no gradient. Compute it from the outputs with PyTorch, without "
                "detach, item or argmax"
            )

    def number(self, outputs: Any, targets: Tensor) -> float:
        """Return the score as a float, for outputs and targets of [samples, ...]."""
        score: object = self.score(outputs, targets)
        try:
            return float(score)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ArgumentError(
                f"the score of the objective {self.name!r} is {score!r}. It must be a number"
            ) from None


def check_loss(what: str, loss: object) -> Tensor:
    """Return the loss; an `ArgumentError` unless it is a tensor with a single number."""
    if isinstance(loss, Tensor) and not loss.ndim:
        return loss
    found = f"of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise ArgumentError(
        f"{what} is {found}. It must be a tensor with a single number, such as the mean over the "
        "batch"
    )


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the percentage of outputs, [samples, classes], that are largest at their target."""
    return 100 * (outputs.argmax(1) == targets).double().mean().item()


def label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the percentage of outputs, [samples, labels], with the right sign."""
    return 100 * ((outputs > 0) == (_like(targets, outputs) > 0.5)).double().mean().item()


def explained_variance(outputs: Tensor, targets: Tensor) -> float:
    """Return R squared in percent: 100 is perfect, 0 as good as predicting the mean."""
    outputs = outputs.double()
    targets = _like(targets, outputs)
    residual = (targets - outputs).square().sum()
    # Rounding of the mean would leave equal targets a little variance.
    if bool((targets == targets[0]).all()):
        return 100.0 * (residual == 0).item()
    total = (targets - targets.mean(0)).square().sum()
    return 100 * (1 - (residual / total).item())


def _like(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets of [samples] in the shape [samples, 1] of a single output."""
    return targets.to(_at_least_float32(outputs)).reshape(outputs.shape)


def _at_least_float32(outputs: Tensor) -> torch.dtype:
    """Return the dtype for comparing outputs and targets: half precision would round targets."""
    return torch.promote_types(outputs.dtype, torch.float32)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    # In one dtype: without autocast, PyTorch has no gradient for two.
    return F.mse_loss(outputs.to(_at_least_float32(outputs)), _like(targets, outputs))


def _label_error(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs = outputs.to(_at_least_float32(outputs))
    return F.binary_cross_entropy_with_logits(outputs, _like(targets, outputs))


CLASSIFICATION = Objective(
    "classification",
    lambda outputs, targets: F.cross_entropy(outputs, targets.long()),
    accuracy,
    highest=100.0,
)
MULTI_LABEL = Objective("multi-label", _label_error, label_accuracy, highest=100.0)
REGRESSION = Objective("regression", _squared_error, explained_variance)
OBJECTIVES = {o.name: o for o in (CLASSIFICATION, MULTI_LABEL, REGRESSION)}


def is_built_in(objective: Objective) -> bool:
    """Whether the objective is one of this package, whose scores are in percent."""
    return any(objective is known for known in OBJECTIVES.values())


def has_fallen(values: Sequence[float]) -> bool:
    """Whether the last of the values is lower than the first by a quarter of that, or more."""
    return values[-1] <= values[0] - abs(values[0]) / 4 and values[-1] < values[0]


def falls_with_the_loss(losses: Sequence[float], scores: Sequence[float]) -> bool:
    """Whether the score fell as the loss did, from nearly every epoch to nearly every later one."""
    pairs = list(itertools.combinations(zip(losses, scores, strict=True), 2))
    falling = sum(after < before and low < high for (before, high), (after, low) in pairs)
    return falling >= 0.9 * len(pairs)


def objective_named(objective: str | Objective) -> Objective:
    """Return the objective of that name; an `Objective` is returned as it is."""
    if isinstance(objective, Objective):
        return objective
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise ArgumentError(unknown_name("objective", objective, OBJECTIVES))
    return OBJECTIVES[objective]


def guessing(objective: Objective, targets: Tensor | None) -> float | None:
    """Return the score of always predicting the most frequent class, if that is defined.

    It is None for other objectives than classification, and for targets of one class only.
    """
    if objective is not CLASSIFICATION or targets is None:
        return None
    most = int(targets.long().bincount().max())
    # In the order in which accuracy is computed, so that the last bit agrees.
    return 100 * (most / len(targets)) if most < len(targets) else None
