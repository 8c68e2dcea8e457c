"""Each task alone, in a network of its own, from scratch; and fine-tuning, one network for all.

    single:    theta_t = argmin L_t(theta), one network for each task
    finetune:  theta <- theta - eta grad L_t(theta)

Single has nothing to forget and nothing to transfer; the price is a network for each task. Nothing
keeps fine-tuning from forgetting.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clnp.training.config import Training
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import Strategy


@dataclass(frozen=True)
class Single:
    """Each task alone, in a network of its own that starts from scratch."""

    training: Training | None = None
    """How it is trained: `learner.training`, with those keys changed that a recipe gives here."""

    def strategy(self, net: DenseNet) -> "SingleStrategy":
        """What it does with the network."""
        return SingleStrategy(net)


class SingleStrategy(Strategy):
    """The networks of the tasks that have been learnt; one of them at a time is in the net.

    The heads that tasks have to themselves stay where they are, and are no part of them.
    """

    def __init__(self, net: DenseNet) -> None:
        self.net = net
        self.networks: list[dict[str, Tensor]] = []
        self._shown: int | None = None

    def begin(self, index: int, data: TaskData) -> None:
        """Start from scratch."""
        self._shown = None
        self.net.reset()
        self.net.heads.reset(index)

    def end(self, index: int, data: TaskData) -> None:
        """Keep the network."""
        self.networks.append({name: t.detach().clone() for name, t in self._tensors().items()})
        self._shown = index

    def _tensors(self) -> dict[str, Tensor]:
        """What tasks would share in the net, by name: all but their own heads."""
        heads = self.net.heads
        own = set() if heads.shared else set(map(id, heads.parameters()))
        # The parameters themselves, to know those of heads.
        tensors = self.net.model.state_dict(keep_vars=True)
        return {name: tensor for name, tensor in tensors.items() if id(tensor) not in own}

    @contextlib.contextmanager
    def running(self, index: int) -> Iterator[None]:
        """The network of the task."""
        if self._shown != index:
            with torch.no_grad():
                for name, tensor in self._tensors().items():
                    tensor.copy_(self.networks[index][name])
            self._shown = index
        yield

    def state(self) -> dict[str, Any]:
        """All networks."""
        return {"networks": self.networks}

    def restore(self, state: dict[str, Any]) -> None:
        """Remember all networks."""
        device = self.net.device
        self.networks = [
            {name: tensor.to(device) for name, tensor in network.items()}
            for network in state["networks"]
        ]

    def stored_bytes(self) -> dict[str, int]:
        """A network for each task; one of them counts as the network."""
        sizes = [sum(t.nbytes for t in network.values()) for network in self.networks]
        return {"further networks": sum(sizes[1:])}


@dataclass(frozen=True)
class Finetune:
    """Every task is learnt with all weights, and nothing is done about forgetting."""

    training: Training | None = None
    """How it is trained: `learner.training`, with those keys changed that a recipe gives here."""

    def strategy(self, net: DenseNet) -> Strategy:
        """What it does with the network: nothing."""
        return Strategy()
