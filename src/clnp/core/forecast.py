"""Forecast how many more tasks fit, which group fills up first, and what widening it would buy.

The next tasks are assumed to be like the last ones: each claims of every group what those did on
average. A group that was full before the last task began sets no limit, because that task was
learned without new neurons of it. Only if no neuron at all is free, widening goes by the last tasks
that found free neurons: those after them had no choice. The ledger does not know sizes of the past:
once a group has been widened, tasks that found it full count as tasks that needed none of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from clnp.checks import COUNT_FROM_0
from clnp.core.layers.ledger import Capacity, aligned
from clnp.errors import ArgumentError

RECENT = 3
"""The number of tasks that the next ones are assumed to be like."""
MOST_ADVISED = 10
"""Advice on widening is given only while this many tasks, or fewer, still fit."""
MOST_NAMED = 3
"""The number of groups that a sentence names; more are counted."""


@dataclass(frozen=True)
class Forecast:
    """The number of further tasks that fit; `print` shows a summary, and `table()` the groups.

    Attributes:
        num_tasks: How many more tasks like the last ones fit. None if those claimed no neuron, so
            that there is no limit.
        bottleneck: The group that fills up first.
        head: The head of the network.
        head_groups: The groups of which a single head needs new neurons.
        like: The tasks that the next ones are assumed to be like.
        free: The free neurons of each group.
        need: The neurons that a task needs of each group, on average.

    Example:
        >>> print(net.forecast())
        about 4 more tasks like the last would fit; fc2 fills up first; widening by 5 in fc2 would
        make room for 5
    """

    num_tasks: int | None
    bottleneck: str | None
    head: str | None = None
    head_groups: Sequence[str] = ()
    like: Sequence[str] = ()
    free: Mapping[str, int] = field(default_factory=dict)
    need: Mapping[str, float] = field(default_factory=dict)

    @property
    def room(self) -> dict[str, float | None]:
        """The tasks that each group has room for; None for groups that they do not need."""
        needs = {group: _exact(self.need.get(group, 0.0)) for group in self.free}
        return {g: float(self.free[g] / need) if need else None for g, need in needs.items()}

    def widening(self, num_tasks: int) -> dict[str, int]:
        """Return how many neurons each group lacks for more tasks.

        Args:
            num_tasks: The number of further tasks.

        Returns:
            The neurons to append, by group, for `net.widen`. Groups with enough room are left out.

        Example:
            >>> net.widen(net.forecast().widening(3))
        """
        num_tasks = COUNT_FROM_0("num_tasks", num_tasks)
        if not self.like:
            raise ArgumentError(
                "what a task needs is not known before one has ended. Ask for a forecast then"
            )
        lacking = {
            group: math.ceil(num_tasks * _exact(self.need.get(group, 0.0))) - free
            for group, free in self.free.items()
        }
        return {group: count for group, count in lacking.items() if count > 0}

    @property
    def full(self) -> list[str]:
        """The groups without free neurons."""
        return [group for group, count in self.free.items() if count == 0]

    @property
    def headline(self) -> str:
        """The number of tasks that fit and the group that fills up first, in a sentence."""
        if not self.like and self.num_tasks is None:
            return "nothing is known of what a task needs before the first has ended"
        if self.num_tasks is None:
            if self.free and len(self.full) == len(self.free):
                which = "further tasks" if self.head == "multi" else "tasks of a multi-head network"
                return f"no neuron is free; {which} {_ALONE}"
            return "no limit in sight: the last tasks claimed no new neuron"
        if self.num_tasks == 0:
            state = "full" if self.bottleneck in self.full else "all but full"
            return f"no further task like the last would fit; {_named(self.bottleneck)} is {state}"
        tasks = "1 more task" if self.num_tasks == 1 else f"{self.num_tasks} more tasks"
        return f"about {tasks} like the last would fit; {_named(self.bottleneck)} fills up first"

    @property
    def advice(self) -> list[str]:
        """Sentences on widening, and on what follows the last task that fits."""
        found = []
        # Results of old runs have no needs.
        known = self.num_tasks is not None and self.num_tasks <= MOST_ADVISED and self.like
        more = (self.num_tasks or 0) + 1 if known else 0
        extra = self.widening(more) if more else {}
        if extra:
            found.append(f"widening by {_neurons(extra)} would make room for {more}")
        full = [group for group in self.full if self.room.get(group) is None]
        if full and self.num_tasks is not None:
            found.append(f"{_are_full(full)}, and the last tasks did without")
        if self.num_tasks == 0 and self.head == "multi":
            found.append(f"tasks still {_ALONE} and on what is left")
        if self.num_tasks == 0 and self.head == "single":
            found.append(
                "a single head needs new neurons there"
                if self.bottleneck in self.head_groups
                else f"tasks can be learned as long as {_names(self.head_groups)} has free neurons"
            )
        return found

    def __str__(self) -> str:
        return "; ".join([self.headline, *self.advice])

    def table(self) -> str:
        """Return a table of the free neurons, the need and the room of each group."""
        rows = [["group", "free", "a task needs", "room, in tasks"]]
        for group, free in self.free.items():
            room = self.room[group]
            limit = "no limit" if room is None else f"{room:.1f}"
            rows.append([group, str(free), f"{self.need[group]:.1f}", limit])
        return aligned(rows)


_ALONE = "learn a head on what the others have learned"


def forecast(
    capacity: Capacity, *, head: str | None = None, head_groups: Sequence[str] = ()
) -> Forecast:
    """Forecast how many more tasks fit if each claims what the last three did, on average.

    The first task, which finds nothing to reuse, counts only while there is no other.

    Args:
        capacity: The capacity of the network.
        head: The head of the network.
        head_groups: The groups of which a single head needs new neurons.

    Returns:
        The forecast. `net.forecast()` makes it with all arguments.
    """
    tasks = list(dict.fromkeys(usage.task for usage in capacity.usages))
    like = (tasks[1:] or tasks)[-RECENT:]
    free = capacity.free
    new = {(usage.task, usage.group): usage.new for usage in capacity.usages}
    claimed = {group: sum(new[task, group] for task in like) for group in capacity.sizes}
    for group in capacity.sizes:
        if tasks and free[group] == 0 and new[tasks[-1], group] == 0:
            claimed[group] = 0
    needed = list(head_groups)
    if like and needed and not any(free[g] or claimed[g] for g in needed):
        # It takes one neuron at least, even if the last tasks got along without any.
        claimed[needed[0]] = len(like)
    rooms = {g: Fraction(free[g] * len(like), count) for g, count in claimed.items() if count}
    found = Forecast(
        None,
        None,
        head=head,
        head_groups=tuple(needed),
        like=tuple(like),
        free=free,
        need={g: count / len(like) if like else 0.0 for g, count in claimed.items()},
    )
    if rooms:
        first = min(rooms, key=lambda group: rooms[group])
        return replace(found, num_tasks=int(rooms[first]), bottleneck=first)
    if like and not any(free.values()):
        return replace(found, need=_before_it_was_full(capacity, tasks))
    return found


def _before_it_was_full(capacity: Capacity, tasks: Sequence[str]) -> dict[str, float]:
    """Return what the last tasks that found a group not full claimed of it, on average."""
    new = {(usage.task, usage.group): usage.new for usage in capacity.usages}
    needs = {}
    for group, size in capacity.sizes.items():
        claimed, used = [], 0
        for task in tasks:
            if used < size:
                claimed.append(new[task, group])
            used += new[task, group]
        recent = (claimed[1:] or claimed)[-RECENT:]
        needs[group] = sum(recent) / len(recent) if recent else 0.0
    return needs


def _exact(need: float) -> Fraction:
    """Return the mean of at most so many whole numbers that was rounded to this."""
    return Fraction(need).limit_denominator(RECENT)


def full_note(groups: Sequence[str]) -> str:
    """Return the full groups, to be appended to a sentence; nothing if none is full."""
    return f"; {_are_full(groups)}" if groups else ""


def _are_full(groups: Sequence[str]) -> str:
    return f"{_names(groups)} {'is' if len(groups) == 1 else 'are'} full"


def _named(group: str | None) -> str:
    """Name a group in a sentence. Those of an `nn.Sequential` have numbers for names."""
    return f"layer {group}" if group and group.replace(".", "").isdigit() else str(group)


def _names(groups: Sequence[str]) -> str:
    """Return "a, b and c", or "a, b and 3 others"."""
    shown = groups if len(groups) <= MOST_NAMED else groups[: MOST_NAMED - 1]
    others = [f"{len(groups) - len(shown)} others"] if len(shown) < len(groups) else []
    return _joined([*map(_named, shown), *others])


def _neurons(extra: Mapping[str, int]) -> str:
    """Return "3 in fc1 and 6 in fc2"; of many groups, those that take the most.

    In the order of the network, so that two lists in a sentence can be compared.
    """
    num_named = MOST_NAMED if len(extra) <= MOST_NAMED else MOST_NAMED - 1
    most = sorted(extra, key=lambda group: -extra[group])[:num_named]
    parts = [f"{count} in {_named(group)}" for group, count in extra.items() if group in most]
    rest = [count for group, count in extra.items() if group not in most]
    return _joined([*parts, f"{sum(rest)} in {len(rest)} others"] if rest else parts)


def _joined(parts: Sequence[str]) -> str:
    *front, last = parts
    return f"{', '.join(front)} and {last}" if front else last
