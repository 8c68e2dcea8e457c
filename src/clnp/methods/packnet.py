"""PackNet (Mallya and Lazebnik, CVPR 2018): every weight belongs to one task or is free.

    train    free w_i move; those of earlier tasks are read but fixed
    prune    in each layer, of the n free weights, those whose |w_i| is at most the
             round(prune n)-th smallest are set to zero and stay free
    retrain  only the others, at a tenth of the learning rate; they belong to the task
    predict  task k with w_i if owner_i in {1, ..., k}, and zero otherwise

The weights are those of linear layers and convolutions. Biases and BatchNorm, its statistics too,
are fixed when the first task has been retrained. A separate head is not packed; a shared head is a
layer like any other. The free weights of a later task start at zero, where pruning left them, as in
the authors' code.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from clnp.checks import ABOVE_0, BETWEEN_0_AND_1, COUNT_FROM_0, settle
from clnp.core.structure.kinds import keeps_statistics, kind_of
from clnp.errors import CapacityError
from clnp.training.config import Training
from clnp.training.fit import StepRule
from clnp.training.search import LEARNING_RATE, Between, Space
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import Retraining, Strategy

MOST_TASKS = 255
"""An owner is one byte; zero means free."""


@dataclass(frozen=True)
class PackNet:
    """PackNet: prune small weights, fix the others, and train the next task in the free ones.

    Mallya and Lazebnik, CVPR 2018 (arXiv:1711.05769).

    Args:
        prune: The fraction of its weights that a task frees again, in each layer.
        retrain_epochs: The number of epochs after pruning.
        retrain_lr_factor: The factor of the learning rate after pruning.
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.PackNet(prune=0.75))
    """

    prune: float = 0.75
    """Fraction of its weights that a task frees again, in each layer."""
    retrain_epochs: int = 10
    """Epochs of training after pruning."""
    retrain_lr_factor: float = 0.1
    """Factor of the learning rate after pruning."""
    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`."""

    space: ClassVar[Space] = {
        "prune": Between(0.3, 0.95, log=False),
        "retrain_lr_factor": Between(0.03, 1.0),
        **LEARNING_RATE,
    }

    def __post_init__(self) -> None:
        kinds = {
            "prune": BETWEEN_0_AND_1,
            "retrain_epochs": COUNT_FROM_0,
            "retrain_lr_factor": ABOVE_0,
        }
        settle(self, kinds, where="packnet")

    def strategy(self, net: DenseNet) -> "PackNetStrategy":
        """Return the strategy for a network."""
        return PackNetStrategy(self, net)


class PackNetStrategy(Strategy):
    """The owner of every packed weight, by name: 0 means free, k the k-th task."""

    saved = ("owners",)

    def __init__(self, settings: PackNet, net: DenseNet) -> None:
        self.settings, self.net = settings, net
        self.owners: dict[str, Tensor] = {}

    def begin(self, index: int, data: TaskData) -> None:
        """Mark all weights as free before the first task."""
        if index >= MOST_TASKS:
            raise CapacityError(f"packnet: {MOST_TASKS} tasks have ended, the most it can hold.")
        if index == 0:
            self.owners = {
                name: torch.zeros_like(weight, dtype=torch.uint8)
                for name, weight in packed(self.net).items()
            }

    def rule(self) -> StepRule:
        """Train the free weights."""
        return self._rule(0)

    def _rule(self, owner: int) -> StepRule:
        """Train the weights of that owner; biases and BatchNorm only in the first task."""
        first = not self.net.tasks
        held: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        for name, weight in self.net.trunk().items():
            if name in self.owners:
                is_held = self.owners[name] != owner
            else:
                is_held = torch.full_like(weight, not first, dtype=torch.bool)
            if is_held.any():
                held.append((weight, is_held, weight.detach().clone()))
        norms = [m for m in self.net.model.modules() if keeps_statistics(m) and not first]

        def before_step(over: float) -> None:
            for norm in norms:
                norm.eval()

        @torch.no_grad()
        def after_backward() -> None:
            for weight, is_held, _ in held:
                if weight.grad is not None:
                    weight.grad.masked_fill_(is_held, 0.0)

        @torch.no_grad()
        def after_step() -> None:
            # Momentum and weight decay move weights that have no gradient.
            for weight, is_held, place in held:
                weight.copy_(torch.where(is_held, place, weight))

        return StepRule(before_step, after_backward=after_backward, after_step=after_step)

    def end(self, index: int, data: TaskData) -> None:
        """Prune, and assign the survivors to the task."""
        owner = index + 1
        weights = self.net.trunk()
        with torch.no_grad():
            for name, owners in self.owners.items():
                free = owners == 0
                kept = survivors(weights[name], free, self.settings.prune)
                owners.masked_fill_(kept, owner)
                weights[name].masked_fill_(free & ~kept, 0.0)

    def retraining(self) -> Retraining | None:
        """Return a shorter training of the survivors, with a lower learning rate."""
        settings, training = self.settings, self.settings.training or Training()
        if not settings.retrain_epochs:
            return None
        training = replace(
            training,
            epochs=settings.retrain_epochs,
            lr=training.lr * settings.retrain_lr_factor,
            schedule="cosine" if training.schedule == "cosine" else "constant",
        )
        return Retraining(training, self._rule(len(self.net.tasks) + 1))

    @contextlib.contextmanager
    def running(self, index: int) -> Iterator[None]:
        """Run the network with the weights of the task and of earlier ones only.

        The open task runs in the network as it is.
        """
        is_open, trunk = index == len(self.net.tasks), self.net.trunk()
        weights = {} if is_open else {name: trunk[name] for name in self.owners}
        whole = {name: weight.data for name, weight in weights.items()}
        try:
            for name, weight in weights.items():
                owners = self.owners[name]
                used = (owners > 0) & (owners <= index + 1)
                weight.data = torch.where(used, whole[name], 0.0)
            yield
        finally:
            for name, weight in weights.items():
                weight.data = whole[name]

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of the owners, in as few bits as the number of tasks needs."""
        num_weights = sum(owners.numel() for owners in self.owners.values())
        # ceil(log2(number of tasks + 1))
        bits = len(self.net.tasks).bit_length()
        return {"masks": -(-num_weights * bits // 8)}


def packed(net: DenseNet) -> dict[str, nn.Parameter]:
    """Return the packed weights, by name: those of linear layers and convolutions."""
    kinds = ((module, kind_of(module)) for module in net.model.modules())
    weights = {id(layer.weight) for layer, kind in kinds if kind and kind.penalised}
    return {name: weight for name, weight in net.trunk().items() if id(weight) in weights}


def survivors(weight: Tensor, free: Tensor, prune: float) -> Tensor:
    """Return which of the free weights of a layer to keep: those above the cut.

    survivors([5, -4, 3, 2, -1], [no, yes, yes, yes, yes], 0.5) == [no, yes, yes, no, no]
    """
    magnitudes = weight[free].abs()
    rank = round(prune * magnitudes.numel())
    if rank == 0:
        return free.clone()
    cut = magnitudes.sort().values[rank - 1]
    return free & (weight.abs() > cut)
