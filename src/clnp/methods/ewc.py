"""Elastic weight consolidation (Kirkpatrick et al., PNAS 2017).

    L(theta) = L_t(theta) + sum over earlier tasks k of lambda/2 sum_i F_ki (theta_i - theta*_ki)^2

theta*_k are the weights after task k, and F_k is the diagonal of the Fisher information there: the
mean square of d log p(y | x) / d theta, for inputs x of the task and labels y drawn from what the
network itself predicts. Only sums over tasks are stored: the gradient of the penalty is
lambda (A theta - B) with A = sum F_k and B = sum F_k theta*_k.

The penalty does not cover BatchNorm statistics, which the authors' networks do not have: they are
those of the last task. Older ones would fit the present weights less well (docs/baselines.md).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from clnp.checks import ABOVE_0, COUNT, settle
from clnp.errors import ArgumentError
from clnp.training.config import Training
from clnp.training.fit import StepRule
from clnp.training.objective import CLASSIFICATION, objective_named
from clnp.training.rng import derive, seed_all
from clnp.training.search import LEARNING_RATE, Between, Space
from clnp.training.task import Task, TaskData

from .dense import DenseNet
from .method import Strategy, num_bytes


@dataclass(frozen=True)
class EWC:
    """Elastic weight consolidation: a quadratic penalty on changes of important weights.

    Kirkpatrick et al., PNAS 2017 (arXiv:1612.00796).

    Args:
        strength: The strength of the penalty, lambda in the paper.
        num_samples: The number of training samples for the Fisher information.
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.EWC(strength=1000.0))
    """

    strength: float = 100.0
    """The strength of the penalty: lambda."""
    num_samples: int = 1024
    """Training samples for the estimate of the Fisher information."""
    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`."""

    space: ClassVar[Space] = {"strength": Between(1e1, 1e7), **LEARNING_RATE}

    def __post_init__(self) -> None:
        settle(self, {"strength": ABOVE_0, "num_samples": COUNT}, where="ewc")

    def strategy(self, net: DenseNet) -> "EWCStrategy":
        """Return the strategy for a network."""
        return EWCStrategy(self, net)


class EWCStrategy(Strategy):
    """The penalty: importance summed over tasks, A, and importance times weight, B."""

    saved = ("stiffness", "pull")

    def __init__(self, settings: EWC, net: DenseNet) -> None:
        self.settings, self.net = settings, net
        self.stiffness: dict[str, Tensor] = {}
        self.pull: dict[str, Tensor] = {}

    def check(self, task: Task) -> None:
        """Raise an `ArgumentError` unless the task is a classification."""
        objective = objective_named(task.objective)
        if objective is not CLASSIFICATION:
            raise ArgumentError(
                f"ewc: task {task.name!r} is {objective.name}, but the Fisher information "
                "is that of a classifier. Use the objective 'classification'."
            )

    def rule(self) -> StepRule:
        """Add lambda (A theta - B) to the gradient."""
        if not self.stiffness:
            return StepRule()
        trunk = self.net.trunk()
        weights: list[Tensor] = list(trunk.values())
        stiffness = [self.stiffness[name] for name in trunk]
        pull = [self.pull[name] for name in trunk]

        @torch.no_grad()
        def after_backward() -> None:
            force = torch._foreach_mul(weights, stiffness)
            torch._foreach_sub_(force, pull)
            gradients = [weight.grad for weight in weights]
            torch._foreach_add_(gradients, force, alpha=self.settings.strength)  # type: ignore[arg-type]

        return StepRule(after_backward=after_backward)

    def end(self, index: int, data: TaskData) -> None:
        """Add the importance of the task."""
        # The caller has seeded the generator for this task, so a repeated `end` draws the same.
        seed = int(torch.randint(2**62, (), device="cpu"))
        fisher = fisher_diagonal(self.net, data, num_samples=self.settings.num_samples, seed=seed)
        for name, weight in self.net.trunk().items():
            place = fisher[name] * weight.detach()
            if name in self.stiffness:
                self.stiffness[name] += fisher[name]
                self.pull[name] += place
            else:
                self.stiffness[name], self.pull[name] = fisher[name], place

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of A and B, two numbers for each shared weight."""
        return {"importance": num_bytes(self.stiffness) + num_bytes(self.pull)}


def fisher_diagonal(
    net: DenseNet, data: TaskData, *, num_samples: int, seed: int, chunk: int = 16
) -> dict[str, Tensor]:
    """Return the mean squared gradient of log p(y | x), with y drawn from the network.

    In evaluation mode, for the weights of the trunk, by name.
    """
    weights = {name: weight.detach() for name, weight in net.trunk().items()}
    others = {
        name: tensor.detach()
        for name, tensor in net.model.state_dict().items()
        if name not in weights
    }
    seed_all(derive(seed, "fisher"))

    def surprise(shared: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = torch.func.functional_call(net.model, {**others, **shared}, (x[None],))
        return F.cross_entropy(outputs, y[None])

    gradient: Any = torch.func.vmap(torch.func.grad(surprise), in_dims=(None, 0, 0))
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    was_training, num_seen = net.training, 0
    net.eval()
    try:
        for inputs, _ in data.train.batches(chunk, seed=derive(seed, "fisher", "order")):
            inputs = inputs[: num_samples - num_seen]
            with torch.no_grad():
                labels = torch.multinomial(net(inputs).float().softmax(1), 1)[:, 0]
            for name, each in gradient(weights, inputs, labels).items():
                sums[name] += each.square().sum(0)
            num_seen += len(inputs)
            if num_seen >= num_samples:
                break
    finally:
        net.train(was_training)
    return {name: total / num_seen for name, total in sums.items()}
