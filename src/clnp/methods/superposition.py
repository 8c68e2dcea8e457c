"""Superposition of many models into one (Cheung et al., NeurIPS 2019), with binary contexts.

    y = W (c_k . x) + b             Linear, c_k one sign for each input
    y = (w . c_k) * x + b           convolution, c_k one sign for each position of its kernel

c_k are random signs, +1 or -1, drawn for each layer and task k. They are used in training and
inference of the task. To other tasks, its part of W looks like noise of mean 0. Nothing else
prevents forgetting.

Every layer has a context, the shared classifier too, as in the authors' network for permuted MNIST;
their ResNet leaves the first convolution without. A separate head has none: it would only
change the signs of its weights. All tasks share biases, depthwise convolutions and
BatchNorm but for its statistics, which are kept for each task; the authors' networks add no biases,
and normalise by the batch alone. Their code trains the contexts of Linear layers along with the
weights: here they stay signs, which take one bit each.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clnp.core.structure.kinds import is_mixing, known_kind
from clnp.training.config import Training
from clnp.training.rng import derive
from clnp.training.search import LEARNING_RATE, Space
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import State, Strategy


@dataclass(frozen=True)
class Superposition:
    """Superposition of many models into one: each task has random signs for the weights.

    Cheung et al., NeurIPS 2019 (arXiv:1902.05522).

    Args:
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.Superposition())
    """

    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`."""
    space: ClassVar[Space] = LEARNING_RATE

    def strategy(self, net: DenseNet) -> "SuperpositionStrategy":
        """Return the strategy for a network."""
        return SuperpositionStrategy(net)


class SuperpositionStrategy(Strategy):
    """A seed for the contexts of each task, and the present context of each layer.

    A context is always the same tensor, into which that of another task is copied.
    """

    saved = ("seeds",)
    own_statistics = True

    def __init__(self, net: DenseNet) -> None:
        self.net = net
        self.seeds: list[int] = []
        self.current: dict[str, Tensor] = {}
        self._shown = 0

    def begin(self, index: int, data: TaskData) -> None:
        """Draw a seed for the contexts of the task."""
        self.seeds.append(derive(torch.initial_seed(), "context", index))
        self._show(index)

    @contextmanager
    def running(self, index: int) -> Iterator[None]:
        """Run the network with the contexts of the task."""
        shown = self._shown
        self._show(index)
        try:
            yield
        finally:
            self._show(shown)

    def _show(self, index: int) -> None:
        """Set the contexts of the task in all layers."""
        if not self.current:
            self._enter()
        elif index == self._shown:
            return
        for name, context in self.current.items():
            context.copy_(draw_context(self.seeds[index], name, context.shape))
        self._shown = index

    def _enter(self) -> None:
        """Multiply the inputs of layers by their contexts; a shared head exists by now."""
        heads = self.net.heads
        own = set() if heads.shared else set(map(id, heads.layers))
        for name, layer in self.net.model.named_modules():
            if is_mixing(layer) and id(layer) not in own:
                self.current[name] = multiplied(layer)

    def restore(self, state: State) -> None:
        """Restore the seeds, and set the contexts of the last task."""
        super().restore(state)
        self._show(len(self.seeds) - 1)

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of the contexts at one bit a sign, although seeds suffice."""
        num_signs = len(self.seeds) * sum(context.numel() for context in self.current.values())
        return {"contexts": (num_signs + 7) // 8}


def draw_context(seed: int, layer: str, shape: torch.Size) -> Tensor:
    """Return signs, +1 or -1, that depend on the seed and the layer only."""
    generator = torch.Generator().manual_seed(derive(seed, layer))
    return 2.0 * torch.randint(0, 2, shape, generator=generator, device="cpu") - 1.0


def multiplied(layer: nn.Module) -> Tensor:
    """Add a context of ones to the layer, and return it to be written to."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    context = torch.ones_like(weight[0], requires_grad=False)
    made: Any = layer
    if known_kind(layer).neuron_dim < 0:
        # Signs on the inputs of a matrix are signs on its columns.
        def times_context(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (inputs[0] * context.to(inputs[0].dtype), *inputs[1:])

        made.register_forward_pre_hook(times_context)
        return context
    convolve = made._conv_forward
    made._conv_forward = lambda x, kernel, bias: convolve(x, kernel * context, bias)
    return context
