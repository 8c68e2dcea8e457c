"""The result of discovery: which layers share neurons, and which is the classifier."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from clnp.errors import ArgumentError, unknown_name

from .axis import Axis, groups_of
from .kinds import KINDS, Kind


@dataclass(frozen=True)
class Site:
    """One layer with weights: the neurons that it makes (`rows`) and that it reads (`columns`).

    Layers that act on each channel by itself (BatchNorm, depthwise convolution, PReLU) read what
    they make: both are the same axis. The classifier makes no neurons: its `rows` are empty.
    `kind` is the name of an entry of `KINDS`.
    """

    path: str
    kind: str
    rows: Axis
    columns: Axis

    @property
    def mixes(self) -> bool:
        """Whether the layer has a weight from every column to every row.

        The axes do not show it: in `h + fc(h)` the layer makes the very neurons that it reads.
        """
        return self.layer_kind.mixes

    @property
    def layer_kind(self) -> Kind:
        """Return the entry of `KINDS`."""
        try:
            return KINDS[self.kind]
        except KeyError:
            raise ArgumentError(
                f"{self.path}: {unknown_name('kind of layer', self.kind, KINDS)}. Call "
                "clnp.core.structure.kinds.register with it first"
            ) from None


@dataclass(frozen=True)
class Graph:
    """The neuron groups of a model and the layers that make, change and read them.

    `clnp.discover` returns it, and printing it shows a table of the groups.

    Attributes:
        groups: The number of neurons of each group, by its name: the dotted path of the first
            layer that makes it.
        sites: The layers with weights by path, in the order in which they run, the classifier
            included.
        classifier: The path of the layer that makes the outputs.
        constants: The buffers outside of layers, which `forward` may read.
        num_inputs: The number of inputs of the example.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> graph = clnp.discover(model, torch.zeros(2, 4))
        >>> graph.groups, graph.classifier
        ({'0': 8}, '2')
    """

    groups: Mapping[str, int]
    sites: Mapping[str, Site]
    classifier: str
    constants: tuple[str, ...] = ()
    num_inputs: int = 1

    def group_named(self, name: str) -> str:
        """Return the group of that name, or the one that the layer at that path makes or acts on.

        Args:
            name: A group, or the path of a layer.

        Returns:
            The name of the group: `graph.group_named("bn1") == "conv1"`.

        Raises:
            ArgumentError: There is no such group or layer, or the layer acts on several groups.
        """
        if name in self.groups:
            return name
        if name in self.sites:
            made = groups_of(self.sites[name].rows)
            if len(made) == 1:
                return made[0]
        raise ArgumentError(unknown_name("group", name, self.groups))

    def readers(self, group: str) -> list[Site]:
        """Return the mixing layers that read the group's neurons, the classifier included.

        Args:
            group: The name of a group.

        Returns:
            Their sites, in the order in which they run.
        """
        return [
            site for site in self.sites.values() if site.mixes and group in groups_of(site.columns)
        ]

    def __repr__(self) -> str:
        num_neurons = sum(self.groups.values())
        return (
            f"Graph({len(self.groups)} groups, {num_neurons} neurons, "
            f"classifier={self.classifier!r})"
        )

    def __str__(self) -> str:
        """Tabulate the groups: their neurons, and the layers that make, act on and read them."""
        rows: list[tuple[str, ...]] = [("group", "neurons", "made by", "acted on by", "read by")]
        for group, num_neurons in self.groups.items():
            inside = [site for site in self.sites.values() if group in groups_of(site.rows)]
            made = [site.path for site in inside if site.mixes]
            acted = [site.path for site in inside if not site.mixes]
            read = [site.path for site in self.readers(group)]
            for number, paths in enumerate(itertools.zip_longest(made, acted, read, fillvalue="")):
                rows.append((*((group, str(num_neurons)) if number == 0 else ("", "")), *paths))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, tuple("-" * width for width in widths))
        lines = []
        for group, num, *readers in rows:
            cells = [group.ljust(widths[0]), num.rjust(widths[1])]
            cells += [path.ljust(width) for path, width in zip(readers, widths[2:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        total = sum(self.groups.values())
        return "\n".join([*lines, f"{total} neurons; classifier: {self.classifier}"])
