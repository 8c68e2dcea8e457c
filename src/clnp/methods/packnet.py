"""PackNet (Mallya and Lazebnik, CVPR 2018): every weight belongs to one task, or to none yet.

    train    w_i of nobody move, those of earlier tasks are read but fixed
    prune    in each layer, of the n weights that nobody owned: those whose |w_i| is at most the
             round(prune n)-th smallest are set to zero and stay without an owner
    retrain  the others alone, at a tenth of the learning rate; from then on they are the task's
    answer   task k with w_i if owner_i in {1, ..., k}, and zero otherwise

The weights are those of linear layers and convolutions. Biases and BatchNorm, its statistics too,
are fixed when the first task has been retrained. A head of a task's own is not packed; one that
all tasks share is a layer like any other. A later task finds the weights that it may train at
zero, where pruning left them, as in the authors' code.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clnp.checks import ABOVE_0, BETWEEN_0_AND_1, COUNT_FROM_0, settle
from clnp.core.structure.kinds import keeps_statistics, kind_of
from clnp.errors import CapacityError
from clnp.training.config import Training
from clnp.training.fit import StepRule
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import Retraining, Strategy

MOST_TASKS = 255
"""An owner is one byte, and zero is nobody."""


@dataclass(frozen=True)
class PackNet:
    """Every weight belongs to one task: prune the small ones, fix the rest, go on with the free."""

    prune: float = 0.75
    """Fraction of the weights that a task has trained, in each layer, that it gives back."""
    retrain_epochs: int = 10
    """How often the training data is gone through after pruning."""
    retrain_lr_factor: float = 0.1
    """What the learning rate is multiplied by for that."""
    training: Training | None = None
    """How it is trained: `learner.training`, with those keys changed that a recipe gives here."""

    def __post_init__(self) -> None:
        kinds = {
            "prune": BETWEEN_0_AND_1,
            "retrain_epochs": COUNT_FROM_0,
            "retrain_lr_factor": ABOVE_0,
        }
        settle(self, kinds, where="packnet")

    def strategy(self, net: DenseNet) -> "PackNetStrategy":
        """What it does with the network."""
        return PackNetStrategy(self, net)


class PackNetStrategy(Strategy):
    """The owner of every weight that is packed, by name: 0 is nobody, k the k-th task."""

    def __init__(self, settings: PackNet, net: DenseNet) -> None:
        self.settings, self.net = settings, net
        self.owners: dict[str, Tensor] = {}

    def begin(self, index: int, data: TaskData) -> None:
        """Before the first task, nobody owns anything."""
        if index >= MOST_TASKS:
            raise CapacityError(f"packnet: {MOST_TASKS} tasks are learnt; there can be no more")
        if index == 0:
            self.owners = {
                name: torch.zeros_like(weight, dtype=torch.uint8)
                for name, weight in packed(self.net).items()
            }

    def rule(self) -> StepRule:
        """What nobody owns moves."""
        return self._rule(0)

    def _rule(self, owner: int) -> StepRule:
        """The weights of that owner move; biases and BatchNorm do in the first task."""
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
        """Prune, and write down whose the survivors are."""
        owner = index + 1
        weights = self.net.trunk()
        with torch.no_grad():
            for name, owners in self.owners.items():
                free = owners == 0
                kept = survivors(weights[name], free, self.settings.prune)
                owners.masked_fill_(kept, owner)
                weights[name].masked_fill_(free & ~kept, 0.0)

    def retraining(self) -> Retraining | None:
        """The survivors, as in the training, shorter and slower; milestones are of the longer."""
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
        """The network with the weights of the task and of earlier ones alone.

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

    def state(self) -> dict[str, Any]:
        """The owners."""
        return {"owners": self.owners}

    def restore(self, state: dict[str, Any]) -> None:
        """Remember the owners."""
        device = self.net.device
        self.owners = {name: owners.to(device) for name, owners in state["owners"].items()}

    def stored_bytes(self) -> dict[str, int]:
        """The owners, each in as few bits as tell the tasks and nobody apart."""
        num_weights = sum(owners.numel() for owners in self.owners.values())
        # ceil(log2(number of tasks + 1))
        bits = len(self.net.tasks).bit_length()
        return {"masks": -(-num_weights * bits // 8)}


def packed(net: DenseNet) -> dict[str, nn.Parameter]:
    """The weights that tasks divide among them, by name: of linear layers and convolutions."""
    kinds = ((module, kind_of(module)) for module in net.model.modules())
    weights = {id(layer.weight) for layer, kind in kinds if kind and kind.penalised}
    return {name: weight for name, weight in net.trunk().items() if id(weight) in weights}


def survivors(weight: Tensor, free: Tensor, prune: float) -> Tensor:
    """Which of the free weights of a layer are kept: all that are larger than the cut.

    survivors([5, -4, 3, 2, -1], [no, yes, yes, yes, yes], 0.5) == [no, yes, yes, no, no]
    """
    magnitudes = weight[free].abs()
    rank = round(prune * magnitudes.numel())
    if rank == 0:
        return free.clone()
    cut = magnitudes.sort().values[rank - 1]
    return free & (weight.abs() > cut)
