"""How many more tasks fit, what fills up first, and what widening it would buy.

The next tasks are taken to be like the last ones: each claims of every group what those did on
average. A group that was full before the last task began sets no limit, because that task was
learnt without new neurons of it. Only where nothing at all is free does widening go by the tasks
that found free neurons last: those after them had no choice. The ledger does not know sizes of the
past: once a group has been widened, tasks that had found it full count as tasks that needed nothing
of it, until newer ones tell otherwise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from clnp.core.layers.ledger import Capacity, aligned
from clnp.errors import ArgumentError

RECENT = 3
"""Tasks that the next ones are taken to be like."""
MOST_NAMED = 3
"""Groups that a sentence names; more of them are counted."""


@dataclass(frozen=True)
class Forecast:
    """How many more tasks like the last ones fit, and the group that is full first.

    `num_tasks` is None where the last tasks claimed nothing, so that nothing sets a limit. `like`
    are the tasks that the next ones are taken to be like. Of each group g, `free[g]` neurons are
    free, a task needs `need[g]` on average, and that is room for `room[g]` tasks, None where it
    needs none. `one_more` has the neurons to append to each group for one more task, and `to_next`
    those for `next_num_tasks`, where `next_bottleneck`, which has not been widened, fills up.
    `head_groups` are those of which a single head needs new neurons.
    """

    num_tasks: int | None
    bottleneck: str | None
    head: str | None = None
    head_groups: Sequence[str] = ()
    like: Sequence[str] = ()
    free: Mapping[str, int] = field(default_factory=dict)
    need: Mapping[str, float] = field(default_factory=dict)
    room: Mapping[str, float | None] = field(default_factory=dict)
    one_more: Mapping[str, int] = field(default_factory=dict)
    next_num_tasks: int | None = None
    next_bottleneck: str | None = None
    to_next: Mapping[str, int] = field(default_factory=dict)

    def widening(self, num_tasks: int) -> dict[str, int]:
        """How many neurons each group lacks for so many more tasks, in the form of `net.widen`.

        Groups that have room for them are left out.
        """
        if isinstance(num_tasks, bool) or not isinstance(num_tasks, int) or num_tasks < 0:
            raise ArgumentError(
                f"num_tasks is {num_tasks!r}; it must be a whole number, 0 or more",
                argument="num_tasks",
            )
        if not self.like:
            raise ArgumentError(
                "what a task needs is not known before one has ended; ask for a forecast then"
            )
        lacking = {
            group: math.ceil(num_tasks * _exact(need)) - self.free[group]
            for group, need in self.need.items()
        }
        return {group: count for group, count in lacking.items() if count > 0}

    @property
    def full(self) -> list[str]:
        """The groups that have no free neuron left."""
        return [group for group, count in self.free.items() if count == 0]

    @property
    def headline(self) -> str:
        """How many more tasks fit, and what fills up first."""
        if not self.like:
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
        """What widening would buy, and what comes after the last task that fits."""
        found = []
        if self.num_tasks is not None and self.one_more:
            found.append(self._widening_told(self.num_tasks))
        full = [group for group in self.full if self.room.get(group) is None]
        if full and self.num_tasks is not None:
            found.append(f"{_are_full(full)}, and the last tasks did without")
        if self.num_tasks == 0 and self.head == "multi":
            found.append(f"tasks still {_ALONE} and on what is left")
        if self.num_tasks == 0 and self.head == "single":
            found.append(
                "a single head needs new neurons there"
                if self.bottleneck in self.head_groups
                else f"tasks can be learnt as long as {_names(self.head_groups)} has free neurons"
            )
        return found

    def _widening_told(self, num_tasks: int) -> str:
        one = f"{_neurons(self.one_more)} would make room for {num_tasks + 1}"
        if self.next_num_tasks is None:
            each = {group: math.ceil(self.need[group]) for group in self.one_more}
            if each == self.one_more:
                return f"{one}, and as many again for each task after that"
            extra = str(*each.values()) if len(each) == 1 else _neurons(each, more=False)
            return f"{one}, and {extra} for each task after that"
        end = f"where {_named(self.next_bottleneck)} fills up"
        if self.next_num_tasks == num_tasks + 1:
            return f"{one}, {end}"
        extra = _neurons(self.to_next, more=False)
        if len(self.to_next) == 1 and self.to_next.keys() == self.one_more.keys():
            extra = str(*self.to_next.values())
        return f"{one}, and {extra} for {self.next_num_tasks}, {end}"

    def __str__(self) -> str:
        return "; ".join([self.headline, *self.advice])

    def table(self) -> str:
        """For each group what is free, what a task needs, and for how many tasks that is room."""
        rows = [["group", "free", "a task needs", "room, in tasks"]]
        for group, free in self.free.items():
            room = self.room[group]
            limit = "no limit" if room is None else f"{room:.1f}"
            rows.append([group, str(free), f"{self.need[group]:.1f}", limit])
        return aligned(rows)


_ALONE = "learn a head on what the others have learnt"


def forecast(
    capacity: Capacity, *, head: str | None = None, head_groups: Sequence[str] = ()
) -> Forecast:
    """How many more tasks fit if each claims what the last three did, on average.

    The first task, which finds nothing to reuse, counts only while there is no other. `head` is
    that of the network, and `head_groups` are the groups of which a single head needs new neurons:
    `net.forecast()` knows both.
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
    known = Forecast(
        None,
        None,
        head=head,
        head_groups=tuple(needed),
        like=tuple(like),
        free=free,
        need={g: count / len(like) if like else 0.0 for g, count in claimed.items()},
        room={g: float(rooms[g]) if g in rooms else None for g in claimed},
    )
    if not rooms:
        if not like or any(free.values()):
            return known
        need = _before_it_was_full(capacity, tasks)
        return replace(known, need=need, room={g: 0.0 if need[g] else None for g in need})
    first = min(rooms, key=lambda group: rooms[group])
    num_tasks = int(rooms[first])
    later = {group: room for group, room in rooms.items() if int(room) > num_tasks}
    found = replace(
        known,
        num_tasks=num_tasks,
        bottleneck=first,
        one_more=known.widening(num_tasks + 1),
    )
    if not later:
        return found
    second = min(later, key=lambda group: later[group])
    return replace(
        found,
        next_num_tasks=int(later[second]),
        next_bottleneck=second,
        to_next=known.widening(int(later[second])),
    )


def _before_it_was_full(capacity: Capacity, tasks: Sequence[str]) -> dict[str, float]:
    """What tasks claimed of each group on average, the last of those that found it not full."""
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
    """The mean of at most so many whole numbers that was rounded to this."""
    return Fraction(need).limit_denominator(RECENT)


def full_told(groups: Sequence[str]) -> str:
    """The groups that are full, to be put behind a sentence; nothing if none is."""
    return f"; {_are_full(groups)}" if groups else ""


def _are_full(groups: Sequence[str]) -> str:
    return f"{_names(groups)} {'is' if len(groups) == 1 else 'are'} full"


def _named(group: str | None) -> str:
    """A group in a sentence: those of an `nn.Sequential` are called by numbers."""
    return f"layer {group}" if group and group.replace(".", "").isdigit() else str(group)


def _names(groups: Sequence[str]) -> str:
    """a, b and c; only so many of them."""
    groups = [_named(group) for group in groups]
    if len(groups) > MOST_NAMED:
        return f"{', '.join(groups[: MOST_NAMED - 1])} and {len(groups) - MOST_NAMED + 1} others"
    *front, last = groups
    return f"{', '.join(front)} and {last}" if front else last


def _neurons(extra: Mapping[str, int], *, more: bool = True) -> str:
    """3 more neurons in fc1 and 6 in fc2; of many groups, those that take the most.

    In the order of the network, so that two lists in a sentence can be read side by side.
    """
    most = sorted(extra, key=lambda group: -extra[group])[:MOST_NAMED]
    order = [group for group in extra if group in most]
    rest = [group for group in extra if group not in most]
    parts = [f"{extra[group]} in {_named(group)}" for group in order]
    if rest:
        total, groups = sum(extra[group] for group in rest), "group" if rest[1:] == [] else "groups"
        parts.append(f"{total} in {len(rest)} other {groups}")
    if more:
        unit = "neuron" if extra[order[0]] == 1 else "neurons"
        parts[0] = f"{extra[order[0]]} more {unit} in {_named(order[0])}"
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]
