"""Who owns which neuron: the width of every group after every task. Pure Python.

Neurons are kept sorted by owner, so the neurons that task t reads are a prefix of each group and
one number for each group and task says everything:

    group   size    after "a"   after "b"
    fc1     2000    120         180          a owns 0..119, b owns 120..179, 1820 are free
    fc2     2000     60         125
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from clnp.errors import ArgumentError, TaskError, unknown_name


@dataclass(frozen=True)
class Row:
    """One ended task: cumulative width and number of reused neurons of each group.

    `reused[g]` is None where it was not measured; `clnp.core.pruning.reuse` defines it.
    """

    task: str
    widths: Mapping[str, int]
    reused: Mapping[str, int | None]


@dataclass(frozen=True)
class OpenTask:
    """The task that is being learned; `reused` is known once it has been pruned by a plan."""

    name: str
    num_outputs: int
    reused: Mapping[str, int | None] | None = None


@dataclass(frozen=True)
class Ledger:
    """The size of each group and a row for each ended task; every change gives a new ledger."""

    sizes: Mapping[str, int]
    rows: tuple[Row, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ended tasks, in order."""
        return tuple(row.task for row in self.rows)

    def row(self, task: str) -> Row:
        """Return the row of an ended task."""
        return self.rows[self.index(task)]

    def index(self, task: str) -> int:
        """Return the index of an ended task."""
        if task not in self.tasks:
            raise TaskError(unknown_name("task", task, self.tasks))
        return self.tasks.index(task)

    def claimed(self) -> dict[str, int]:
        """Count the frozen neurons of each group."""
        return dict(self.rows[-1].widths) if self.rows else dict.fromkeys(self.sizes, 0)

    def free(self) -> dict[str, int]:
        """Count the free neurons of each group."""
        claimed = self.claimed()
        return {group: size - claimed[group] for group, size in self.sizes.items()}

    def widths(self, task: str) -> tuple[dict[str, int], dict[str, int]]:
        """Count the frozen neurons of each group before and after the task."""
        index = self.index(task)
        return replace(self, rows=self.rows[:index]).claimed(), dict(self.rows[index].widths)

    def claim(
        self, task: str, counts: Mapping[str, int], reused: Mapping[str, int | None] | None = None
    ) -> "Ledger":
        """Return the ledger after `task` has claimed `counts[g]` free neurons of each group."""
        owned = self.claimed()
        widths = {group: width + counts.get(group, 0) for group, width in owned.items()}
        # Where nothing was frozen before, nothing can be reused.
        known = {g: (reused or {}).get(g) if owned[g] else 0 for g in self.sizes}
        return replace(self, rows=(*self.rows, Row(task, widths, known)))

    def widen(self, extra: Mapping[str, int]) -> "Ledger":
        """Return the ledger with `extra[g]` more free neurons in each group g."""
        return replace(self, sizes={g: size + extra.get(g, 0) for g, size in self.sizes.items()})

    def capacity(self) -> "Capacity":
        """Count new, reused and free neurons for each group and task."""
        usages = []
        for row in self.rows:
            before, after = self.widths(row.task)
            for group, size in self.sizes.items():
                new, free = after[group] - before[group], size - after[group]
                usages.append(Usage(row.task, group, new, row.reused[group], free))
        return Capacity(dict(self.sizes), tuple(usages))


@dataclass(frozen=True)
class Usage:
    """The neurons of one group that a task claimed, reused, and left free.

    Those reused are among the fewest that give a layer of the task 99 % of what it receives.
    """

    task: str
    group: str
    new: int
    reused: int | None
    free: int


@dataclass(frozen=True)
class Capacity:
    """The size of each group, and the tasks that own its neurons; `print` shows a table.

    Attributes:
        sizes: The neurons of each group.
        usages: An entry for each task and group, in order.

    Example:
        >>> print(net.capacity())
        group  neurons  flowers       free
        fc1       2000  120 + 0  1880 (94 %)
        (each task: new + reused neurons)
    """

    sizes: Mapping[str, int]
    usages: tuple[Usage, ...] = ()

    def of(self, task: str, group: str) -> Usage:
        """Return the entry for one task and group.

        Args:
            task: The name of an ended task.
            group: The name of a group.

        Returns:
            Its `new`, `reused` and `free` neurons.

        Example:
            >>> net.capacity().of("flowers", "fc1").new
            120
        """
        for usage in self.usages:
            if (usage.task, usage.group) == (task, group):
                return usage
        raise ArgumentError(f"nothing is known about task {task!r} in group {group!r}")

    @property
    def free(self) -> dict[str, int]:
        """The free neurons of each group."""
        left = dict(self.sizes)
        for usage in self.usages:
            left[usage.group] -= usage.new
        return left

    @property
    def free_fraction(self) -> float:
        """The fraction of free neurons, averaged over the groups."""
        return free_fraction(self.free, self.sizes)

    def __str__(self) -> str:
        tasks = list(dict.fromkeys(usage.task for usage in self.usages))
        cell = {
            (u.task, u.group): f"{u.new} + {'?' if u.reused is None else u.reused}"
            for u in self.usages
        }
        rows = [["group", "neurons", *tasks, "free"]]
        for group, size in self.sizes.items():
            left = self.free[group]
            share = f"{left} ({100 * left / size:.0f} %)"
            rows.append([group, str(size), *(cell[task, group] for task in tasks), share])
        legend = "each task: new + reused neurons" if tasks else "no task has ended yet"
        return f"{aligned(rows)}\n({legend})"


def free_fraction(free: Mapping[str, int], sizes: Mapping[str, int]) -> float:
    """Return the fraction of free neurons, averaged over the groups.

    A small group counts as much as a large one, because the narrow layers are those that fill up.
    """
    return sum(free[group] / size for group, size in sizes.items()) / len(sizes)


def aligned(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of cells as text, the first column to the left and the others to the right."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )
