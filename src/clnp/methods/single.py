"""Two simple baselines: a separate network for each task, and fine-tuning of one network.

    single:    theta_t = argmin L_t(theta), one network for each task
    finetune:  theta <- theta - eta grad L_t(theta)

Single has nothing to forget and nothing to transfer; the price is a network for each task. Nothing
keeps fine-tuning from forgetting.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clnp.training.config import Training
from clnp.training.search import LEARNING_RATE, Space
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import Strategy, num_bytes


@dataclass(frozen=True)
class Single:
    """Each task in a separate network, trained from scratch.

    Args:
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.Single())
    """

    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`."""
    space: ClassVar[Space] = LEARNING_RATE

    def strategy(self, net: DenseNet) -> "SingleStrategy":
        """Return the strategy for a network."""
        return SingleStrategy(net)


class SingleStrategy(Strategy):
    """The networks of the tasks that have been learned; one of them at a time is in the net.

    Heads that are not shared stay where they are, and are not part of them.
    """

    saved = ("networks",)

    def __init__(self, net: DenseNet) -> None:
        self.net = net
        self.networks: list[dict[str, Tensor]] = []

    def begin(self, index: int, data: TaskData) -> None:
        """Initialise the network."""
        self.net.reset()
        self.net.heads.reset(index)

    def end(self, index: int, data: TaskData) -> None:
        """Store the network."""
        self.networks.append({name: t.detach().clone() for name, t in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        """Return all tensors but the heads of tasks, by name."""
        own = set(map(id, self.net.heads.own()))
        # The parameters themselves, to know those of heads.
        tensors = self.net.model.state_dict(keep_vars=True)
        return {name: tensor for name, tensor in tensors.items() if id(tensor) not in own}

    @contextlib.contextmanager
    def running(self, index: int) -> Iterator[None]:
        """Run the network of the task."""
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(self.networks[index][name])
        yield

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of all networks but one, which counts as the network."""
        return {"further networks": num_bytes(self.networks[1:])}


@dataclass(frozen=True)
class Finetune:
    """Fine-tuning: every task trains all weights, and nothing prevents forgetting.

    Args:
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.Finetune())
    """

    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`."""
    space: ClassVar[Space] = LEARNING_RATE

    def strategy(self, net: DenseNet) -> Strategy:
        """Return the strategy for a network."""
        return Strategy()
