"""The networks to measure, and networks in which an ended task owns a part."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

import clnp


@dataclass(frozen=True)
class Subject:
    """A network to measure: its title, constructor, input shape and head."""

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    head: str


MLP = Subject("MLP 784-2000-2000-10, single head", clnp.models.MLP, (784,), "single")
NARROW_CNN = Subject("narrow CNN, multi-head", clnp.models.NarrowCNN, (3, 32, 32), "multi")
WIDE_CNN = Subject("wide CNN, single head", clnp.models.WideCNN, (3, 32, 32), "single")


def with_fraction_frozen(
    make: Callable[[], nn.Module], x: Tensor, *, head: str, fraction: float
) -> clnp.ContinualNet:
    """Return a network in which an ended task owns a fraction of each group, and another is open.

    With a fraction of 0, the open task is the first one.
    """
    net = clnp.ContinualNet(make().to(x.device), x[:2], head=head)
    if fraction:
        net.begin_task("first")
        sizes = net.graph.groups.items()
        net.end_task({group: range(int(size * fraction)) for group, size in sizes})
    net.begin_task("open")
    return net
