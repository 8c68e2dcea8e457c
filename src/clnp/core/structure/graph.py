"""What was found out about a model: which layers share neurons, and which is the classifier."""

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

        The axes alone do not tell: in `h + fc(h)` the layer makes the very neurons that it reads.
        """
        return self.layer_kind.mixes

    @property
    def layer_kind(self) -> Kind:
        """The entry of `KINDS`."""
        return KINDS[self.kind]


@dataclass(frozen=True)
class Graph:
    """The neuron groups of a model and the layers that make, change and read them.

    `groups` maps the name of each group, the dotted path of the first layer that makes it, to its
    number of neurons. `sites` are the layers in the order in which they run, the classifier
    included. `constants` are the buffers outside of layers, which the forward pass may read, and
    `num_inputs` says how many inputs the example had.
    """

    groups: Mapping[str, int]
    sites: Mapping[str, Site]
    classifier: str
    constants: tuple[str, ...] = ()
    num_inputs: int = 1

    def group_named(self, name: str) -> str:
        """The group of that name, or the one that the layer at that path makes or acts on."""
        if name in self.groups:
            return name
        if name in self.sites:
            made = groups_of(self.sites[name].rows)
            if len(made) == 1:
                return made[0]
        raise ArgumentError(unknown_name("group", name, self.groups))

    def readers(self, group: str) -> list[Site]:
        """The mixing layers, the classifier among them, that read the group's neurons."""
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
        lines: list[tuple[str, ...]] = [("group", "neurons", "made by", "acted on by", "read by")]
        for group, num_neurons in self.groups.items():
            inside = [s for s in self.sites.values() if group in groups_of(s.rows)]
            made = [site.path for site in inside if site.mixes]
            acted = [site.path for site in inside if not site.mixes]
            read = [site.path for site in self.readers(group)]
            columns = [made, acted, read]
            for number in range(max(len(paths) for paths in columns)):
                first = (group, str(num_neurons)) if number == 0 else ("", "")
                lines.append((*first, *("".join(paths[number : number + 1]) for paths in columns)))
        widths = [max(len(line[column]) for line in lines) for column in range(5)]
        lines.insert(1, tuple("-" * width for width in widths))
        table = ["  ".join(_cells(line, widths)).rstrip() for line in lines]
        total = sum(self.groups.values())
        return "\n".join([*table, f"{total} neurons; classifier: {self.classifier}"])


def _cells(line: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.rjust(width) if column == 1 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
