"""Synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017).

    L(theta) = L_t(theta) + c sum_k Omega_k (theta~_k - theta_k)^2
    omega_k  = sum over the steps of a task of -g_k (change of theta_k in the step)
    Omega_k <- max(0, Omega_k + omega_k / ((theta_k(end) - theta_k(start))^2 + xi))

g is the gradient of the loss of the task, without the surrogate term and before clipping; the
change is the actual one of the optimizer. theta~ are the weights after the last task, which
are those at the start of this one; omega starts each task at 0. It is c, not c/2: the surrogate
term adds 2 c Omega (theta - theta~) to the gradient.

The max is not in the paper's formula but in its authors' code, which has it around the whole sum:
below 0, an importance would push its weight away without end. Each task has a new
optimizer, as theirs for CIFAR; with `keep_optimizer` its state is kept, as theirs for permuted
MNIST.

With `training.patience`, omega covers all steps, also those after the weights that are kept.
Statistics of BatchNorm, which the authors' networks do not have, are those of the last task.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from clnp.checks import ABOVE_0, settle
from clnp.training.config import Training
from clnp.training.fit import StepRule
from clnp.training.search import LEARNING_RATE, Between, OneOf, Space
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import State, Strategy, num_bytes


@dataclass(frozen=True)
class SI:
    """Synaptic intelligence: a penalty on changes of weights whose path lowered the loss.

    Zenke, Poole and Ganguli, ICML 2017 (arXiv:1703.04200).

    Args:
        strength: The strength of the penalty, c in the paper.
        damping: The damping for weights that hardly moved, xi in the paper.
        keep_optimizer: Keep the state of the optimizer between tasks.
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.SI(strength=0.1))
    """

    strength: float = 0.1
    """The strength of the penalty: c. The authors use 0.1 for permuted MNIST, 0.01 for CIFAR."""
    damping: float = 0.1
    """Damping for weights that hardly moved: xi. The authors use 0.1 and 0.001."""
    keep_optimizer: bool = False
    """Keep the state of the optimizer between tasks, as the authors do on permuted MNIST."""
    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`."""

    space: ClassVar[Space] = {
        "strength": Between(1e-2, 1e3),
        "damping": Between(1e-3, 1.0),
        "keep_optimizer": OneOf((False, True)),
        **LEARNING_RATE,
    }

    def __post_init__(self) -> None:
        settle(self, {"strength": ABOVE_0, "damping": ABOVE_0}, where="si")

    def strategy(self, net: DenseNet) -> "SIStrategy":
        """Return the strategy for a network."""
        return SIStrategy(self, net)


class SIStrategy(Strategy):
    """Omega, theta~ and omega of each shared weight, in tensors that stay in place.

    And the state of the optimizer for it at the end of the last task, if that is kept.
    """

    saved = ("importance", "anchor", "path", "averages")

    def __init__(self, settings: SI, net: DenseNet) -> None:
        self.settings, self.net = settings, net
        self.importance: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        self.path: dict[str, Tensor] = {}
        self.averages: dict[str, dict[str, Any]] = {}
        self._optimizer: Optimizer | None = None

    def begin(self, index: int, data: TaskData) -> None:
        """Start from the present weights, which are both theta~ and theta(start)."""
        for name, weight in self.net.trunk().items():
            self.anchor[name] = weight.detach().clone()
            self.path[name] = torch.zeros_like(weight)
            if name not in self.importance:
                self.importance[name] = torch.zeros_like(weight)

    def rule(self) -> StepRule:
        """Follow the path of the weights, and penalise changes from the second task on."""
        trunk = self.net.trunk()
        weights: list[Tensor] = list(trunk.values())
        importance = [self.importance[name] for name in trunk]
        anchor = [self.anchor[name] for name in trunk]
        path = [self.path[name] for name in trunk]
        gradient = [torch.zeros_like(weight) for weight in weights]
        before = [torch.zeros_like(weight) for weight in weights]
        strength, holding = self.settings.strength, bool(self.net.tasks)

        @torch.no_grad()
        def after_backward() -> None:
            own: list[Tensor] = [weight.grad for weight in weights]  # type: ignore[misc]
            for kept, grad in zip(gradient, own, strict=True):
                # Where float16 overflows the step is left out: a change of 0, times infinity.
                torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0, out=kept)
            torch._foreach_copy_(before, weights)
            if holding:
                pull = torch._foreach_sub(weights, anchor)
                torch._foreach_mul_(pull, importance)
                torch._foreach_add_(own, pull, alpha=2 * strength)

        @torch.no_grad()
        def after_step() -> None:
            change = torch._foreach_sub(weights, before)
            torch._foreach_addcmul_(path, gradient, change, value=-1.0)

        @torch.no_grad()
        def penalty() -> float:
            parts = zip(importance, weights, anchor, strict=True)
            return strength * sum(float((o * (w - a).square_()).sum()) for o, w, a in parts)

        return StepRule(
            after_backward=after_backward,
            after_step=after_step,
            penalty=penalty,
            set_up=self._set_up,
        )

    def _set_up(self, optimizer: Optimizer) -> None:
        """Restore the state of the optimizer after the previous task, if it is kept."""
        if not self.settings.keep_optimizer:
            return
        self._optimizer = optimizer
        if self.averages:
            trained = [weight for group in optimizer.param_groups for weight in group["params"]]
            numbers = {id(weight): number for number, weight in enumerate(trained)}
            trunk = self.net.trunk()
            kept = {numbers[id(trunk[name])]: known for name, known in self.averages.items()}
            kept = copy.deepcopy(kept)  # It would write into them otherwise.
            optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})

    @torch.no_grad()
    def end(self, index: int, data: TaskData) -> None:
        """Add the importance of the weights for the task."""
        for name, weight in self.net.trunk().items():
            distance = (weight - self.anchor[name]).square_()
            self.importance[name] += self.path[name] / (distance + self.settings.damping)
            self.importance[name].clamp_(min=0.0)
        if self._optimizer is not None:
            known = self._optimizer.state
            trunk = self.net.trunk().items()
            self.averages = {name: dict(known[weight]) for name, weight in trunk if known[weight]}
            self._optimizer = None

    def restore(self, state: State) -> None:
        """Restore a state within a task or after one."""
        super().restore(state)
        # The optimizer itself knows which of these tensors belong on the device.
        self.averages = state["averages"]

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of Omega; theta~ and omega start again with each task."""
        stored = {"importance": num_bytes(self.importance)}
        if self.averages:
            stored["optimizer"] = num_bytes(self.averages)
        return stored
