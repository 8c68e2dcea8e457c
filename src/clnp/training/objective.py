"""What a task wants: the loss that it is trained with and the score that it is judged by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clnp.errors import ArgumentError, unknown_name


@dataclass(frozen=True)
class Objective:
    """A loss on a batch, and a score over a whole data set, of which higher is better.

    Both take outputs and targets; `score` gets those of all samples at once. A margin is in the
    units of the score: percentage points, for those that are built in. Where the score of many
    samples is the mean of theirs, `highest` is what one can have at most: it tells when a score is
    out of reach, and the rest need not be looked at. It also tells `verify` by how much rounding on
    another machine may move a score; without it, one from -1 to 1 is taken for a share of 1, and a
    larger one for percent.
    """

    name: str
    loss: Callable[[Any, Tensor], Tensor]
    score: Callable[[Any, Tensor], float]
    highest: float | None = None

    def check_loss(self, loss: object, *, gradient: bool = False) -> None:
        """Raise an `ArgumentError` unless it is a tensor of one number, with its gradient if asked.

        A loss that is only looked at needs none.
        """
        if not isinstance(loss, Tensor) or loss.ndim:
            shape = f"of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
            raise ArgumentError(
                f"the loss of the objective {self.name!r} is {shape}; it must be a tensor of one "
                "number, such as the mean over the batch"
            )
        if gradient and not loss.requires_grad:
            raise ArgumentError(
                f"the loss of the objective {self.name!r} has no gradient, so nothing can be "
                "learnt from it; compute it with PyTorch from the outputs, without detach, item "
                "or argmax"
            )

    def number(self, outputs: Any, targets: Tensor) -> float:
        """The score, as a number."""
        score: object = self.score(outputs, targets)
        try:
            return float(score)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ArgumentError(
                f"the score of the objective {self.name!r} is {score!r}; it must be a number"
            ) from None


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Percent of samples whose largest output is the target's."""
    return 100 * (outputs.argmax(1) == targets).double().mean().item()


def label_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Percent of labels whose output is on the right side of zero."""
    return 100 * ((outputs > 0) == (_like(targets, outputs) > 0.5)).double().mean().item()


def explained_variance(outputs: Tensor, targets: Tensor) -> float:
    """R squared in percent: 100 is perfect, 0 is as good as always guessing the mean."""
    outputs = outputs.double()
    targets = _like(targets, outputs)
    residual = (targets - outputs).square().sum()
    # Not by the variance: rounding in the mean leaves a little of it in equal targets.
    if bool((targets == targets[0]).all()):
        return 100.0 * (residual == 0).item()
    total = (targets - targets.mean(0)).square().sum()
    return 100 * (1 - (residual / total).item())


def _like(targets: Tensor, outputs: Tensor) -> Tensor:
    """The targets in the shape [N, 1] that a single output has, where they are [N]."""
    return targets.to(_at_least_float32(outputs)).reshape(outputs.shape)


def _at_least_float32(outputs: Tensor) -> torch.dtype:
    """What outputs and targets are compared in: half precision would round the targets."""
    return torch.promote_types(outputs.dtype, torch.float32)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    # Both in the same numbers: without autocast, PyTorch has no gradient for two kinds.
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
MULTI_LABEL = Objective(
    "multi-label",
    _label_error,
    label_accuracy,
    highest=100.0,
)
REGRESSION = Objective(
    "regression",
    _squared_error,
    explained_variance,
)
OBJECTIVES = {o.name: o for o in (CLASSIFICATION, MULTI_LABEL, REGRESSION)}


def objective_named(objective: str | Objective) -> Objective:
    """The objective of that name, or the one that is given."""
    if isinstance(objective, Objective):
        return objective
    if objective not in OBJECTIVES:
        raise ArgumentError(unknown_name("objective", objective, OBJECTIVES))
    return OBJECTIVES[objective]


def guessing(objective: Objective, targets: Tensor | None) -> float | None:
    """What always naming the most frequent class scores; None where there is no such thing.

    Of one class alone, which is always right to name, nothing can be told.
    """
    if objective is not CLASSIFICATION or targets is None:
        return None
    most = int(targets.long().bincount().max())
    # In the order in which a score is computed, or it may be larger by the last bit.
    return 100 * (most / len(targets)) if most < len(targets) else None
