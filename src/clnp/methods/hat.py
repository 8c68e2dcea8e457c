"""Hard attention to the task (Serrà et al., ICML 2018): a gate for each neuron and task.

    a_t = sigmoid(s e_t)                         the gates; neuron i is read as a_ti h_i
    s = 1/s_max + (s_max - 1/s_max) over         over: the part of the epoch that is over
    L = L_t + c sum a_t (1 - a_<t) / sum (1 - a_<t)           a_<t: the maximum of earlier gates
    g_ij <- (1 - min(a_<t,i, a_<t,j)) g_ij       the gradient of the weight from neuron j to i
    q <- s_max/s (cosh(s e) + 1) / (cosh(e) + 1) q            the gradient of e_t, |s e| <= 50
    -6 <= e_t <= 6                               after each step; at first e_t is drawn from N(0, 1)

A task is evaluated and stored with s = s_max.

The gates are applied to the input of each layer and of the head. That is after activation,
normalisation, dropout and pooling, as in the authors' code, and it is correct in residual networks
too. What belongs to a single neuron (its bias, its BatchNorm)
has the factor 1 - a_<t,i. Inputs and outputs of the network count as used by every task: a
shared head keeps its bias from the second task on. Statistics of BatchNorm, which the
authors' networks do not have, are kept for each task.

The factors protect weights from plain SGD. Adam cancels factors that are small but not zero, and
weight decay ignores them.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clnp.checks import FROM_0, FROM_1, settle
from clnp.core.structure.axis import Axis, groups_of
from clnp.core.structure.graph import Graph, Site
from clnp.errors import ArgumentError
from clnp.training.config import Training
from clnp.training.fit import StepRule
from clnp.training.search import Between, OneOf, Space
from clnp.training.task import TaskData

from .dense import DenseNet
from .method import Strategy, num_bytes

ATTENTION = "attention"
LARGEST_EMBEDDING = 6.0
LARGEST_EXPONENT = 50.0


@dataclass(frozen=True)
class HAT:
    """Hard attention to the task: learned gates, and fixed weights where gates are open.

    Serrà et al., ICML 2018 (arXiv:1801.01423).

    Args:
        s_max: The largest slope of the gates.
        strength: The strength of the penalty on gates, c in the paper.
        training: The settings of training, if they differ from those of the experiment.

    Example:
        >>> clnp.Experiment(model, x, tasks, baseline=clnp.methods.HAT(s_max=400.0))
    """

    s_max: float = 400.0
    """The largest slope of the gates in an epoch, also that of ended tasks."""
    strength: float = 0.75
    """The strength of the penalty on gates that earlier tasks left closed: c."""
    training: Training | None = None
    """The settings of training. A recipe gives keys that differ from `learner.training`. The
    authors use plain SGD; Adam cancels factors that are small but not zero, and forgets more."""

    space: ClassVar[Space] = {
        "s_max": Between(10.0, 1000.0),
        "strength": Between(0.03, 3.0),
        "training.optimizer": OneOf(("SGD",)),
        "training.lr": Between(0.01, 1.0),
    }

    def __post_init__(self) -> None:
        settle(self, {"s_max": FROM_1, "strength": FROM_0}, where="hat")

    def strategy(self, net: DenseNet) -> "HATStrategy":
        """Return the strategy for a network."""
        return HATStrategy(self, net)


class HATStrategy(Strategy):
    """The gates of ended tasks, one row for all groups."""

    saved = ("masks",)
    own_statistics = True

    def __init__(self, settings: HAT, net: DenseNet) -> None:
        if net.graph is None:
            raise ArgumentError(
                "hat: the network has no graph. Build the DenseNet with `graph=clnp.discover(...)`."
            )
        self.settings, self.net, self.graph = settings, net, net.graph
        self.scale = torch.tensor(settings.s_max, device=net.device)
        self.masks: list[Tensor] = []
        self._answering: int | None = None
        for site in self.graph.sites.values():
            if site.mixes and groups_of(site.columns):
                layer = net.model.get_submodule(site.path)
                layer.register_forward_pre_hook(self._gate_before(site))

    def _gate_before(self, site: Site) -> Callable[[nn.Module, Any], Any]:
        """Return a hook that multiplies the input of the layer by the gates."""

        def gate(layer: nn.Module, arguments: Any) -> Any:
            inputs, *others = arguments
            gates = along(site.columns, self.gates(), self.graph)
            if site.layer_kind.neuron_dim > 0:  # Channels, and space behind them.
                gates = gates.reshape(-1, *[1] * (inputs.ndim - 2))
            # Gates are float32, the network need not be.
            return ((inputs * gates).to(inputs.dtype), *others)

        return gate

    def gates(self) -> Tensor:
        """Return the gates of the current task, hard unless it is training."""
        if self._answering is not None:
            return self.masks[self._answering]
        scale = self.scale if self.net.training else self.settings.s_max
        return torch.sigmoid(scale * self.net.extra[ATTENTION])

    def used(self) -> Tensor:
        """Return the largest use of each neuron by an earlier task."""
        if self.masks:
            return torch.stack(self.masks).amax(0)
        return torch.zeros(sum(self.graph.groups.values()), device=self.net.device)

    def begin(self, index: int, data: TaskData) -> None:
        """Initialise the embedding of the task."""
        drawn = torch.randn(sum(self.graph.groups.values()), device="cpu")
        self.net.extra[ATTENTION] = nn.Parameter(drawn.to(self.net.device))

    def rule(self) -> StepRule:
        """Anneal and penalise gates, protect weights, and compensate the embedding."""
        s_max, scale = self.settings.s_max, self.scale
        embedding = self.net.extra[ATTENTION]
        factors = self._factors()
        unused = 1 - self.used()
        # If all neurons are used, there is no penalty, and the sum is 0.
        share = self.settings.strength / max(float(unused.sum()), torch.finfo(unused.dtype).tiny)

        def before_step(over: float) -> None:
            scale.fill_(annealed(over, s_max))

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            return share * (self.gates() * unused).sum()

        @torch.no_grad()
        def after_backward() -> None:
            for weight, factor in factors:
                if weight.grad is not None:
                    weight.grad.mul_(factor)
            assert embedding.grad is not None
            embedding.grad.mul_(compensation(embedding, scale, s_max))

        @torch.no_grad()
        def after_step() -> None:
            embedding.clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)

        return StepRule(before_step, loss, after_backward, after_step)

    def _factors(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Return the shared weights, and the factors of their gradients."""
        if not self.masks:
            return []
        heads, used = self.net.heads, self.used()
        found: list[tuple[nn.Parameter, Tensor]] = []
        for path, site in self.graph.sites.items():
            layer = self.net.model.get_submodule(path)
            if layer is heads:
                if not heads.shared:
                    continue
                layer = heads.layers[0]
            for weight in layer.parameters():
                rows = along(site.rows, used, self.graph) if site.rows else used.new_ones(1)
                protected = rows
                if site.mixes and weight.ndim > 1:
                    columns = along(site.columns, used, self.graph)
                    protected = torch.minimum(rows[:, None], columns)
                spatial = [1] * (weight.ndim - protected.ndim)
                found.append((weight, 1 - protected.reshape(*protected.shape, *spatial)))
        return found

    def end(self, index: int, data: TaskData) -> None:
        """Store the gates at the largest slope."""
        with torch.no_grad():
            embedding = self.net.extra.pop(ATTENTION)
            self.masks.append(torch.sigmoid(self.settings.s_max * embedding).detach())

    @contextlib.contextmanager
    def running(self, index: int) -> Iterator[None]:
        """Run the network with the gates of the task."""
        if index == len(self.masks):
            yield
            return
        self._answering = index
        try:
            yield
        finally:
            self._answering = None

    def stored_bytes(self) -> dict[str, int]:
        """Return the bytes of the gates."""
        return {"masks": num_bytes(self.masks)}


def annealed(over: float, s_max: float) -> float:
    """Return the slope of gates after that fraction of an epoch."""
    return 1 / s_max + (s_max - 1 / s_max) * over


def compensation(embedding: Tensor, scale: Tensor, s_max: float) -> Tensor:
    """Return the factor from the slope of sigmoid(s e) to that of s_max sigmoid(e)."""
    exponent = (scale * embedding).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    return s_max / scale * (exponent.cosh() + 1) / (embedding.cosh() + 1)


def along(axis: Axis, gates: Tensor, graph: Graph) -> Tensor:
    """Return the gate of each entry of an axis, from the row of all groups; 1 for inputs."""
    sizes = list(graph.groups.values())
    row = dict(zip(graph.groups, torch.split(gates, sizes), strict=True))
    parts = [
        gates.new_ones(segment.size * segment.span)
        if segment.group is None
        else row[segment.group][:, None].expand(-1, segment.span).reshape(-1)
        for segment in axis
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
