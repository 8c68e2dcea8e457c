"""What the runs of a member come to: means and standard deviations over its seeds."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..metrics import average, backward_transfer, forgetting, forward_transfer
from ..series import spread
from .collection import Collection, Member
from .history import RunHistory, TaskHistory

ALONE = "single"
"""The method that forward transfer is measured against."""


@dataclass(frozen=True)
class Spread:
    """A mean over `num` runs and its standard deviation, which is 0 for one."""

    mean: float
    deviation: float
    num: int

    def text(self, digits: int = 2) -> str:
        """`98.46 ± 0.03`, or without a deviation where there is one run."""
        # Rounding would leave a sign before nothing: -0.00.
        mean = self.mean if round(self.mean, digits) else 0.0
        if self.num == 1 or (digits == 0 and self.deviation == 0):
            return f"{mean:.{digits}f}"
        return f"{mean:.{digits}f} ± {self.deviation:.{digits}f}"


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Mean and deviation of the values that are finite; None if there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    found = spread(known)
    return Spread(found["mean"], found["deviation"], len(known))


def by_task(member: Member, value: Callable[[TaskHistory], float | None]) -> list[Spread | None]:
    """The value of every task that has been learnt, over the runs."""
    return [
        spread_of(value(task) for task in member.task(place) if task.learnt)
        for place in range(member.num_tasks)
    ]


def average_after(run: RunHistory) -> list[float | None]:
    """The mean score of all tasks learnt so far, after each task."""
    return [average(run.scores[: place + 1]) for place in range(len(run.scores))]


def over_runs(rows: Sequence[Sequence[float | None]]) -> list[Spread | None]:
    """The mean of each place over rows that may be of different lengths."""
    longest = max(map(len, rows), default=0)
    return [spread_of(row[place] for row in rows if place < len(row)) for place in range(longest)]


def used_share(run: RunHistory, group: str) -> list[float | None]:
    """The percentage of the group's neurons that are claimed, at the start and after each task."""
    size = run.sizes.get(group)
    return [100 * used / size for used in run.used(group)] if size else []


def claimed_shares(member: Member, group: str) -> list[float]:
    """The percentage of the group that each task claimed, over the runs."""
    used = [s.mean if s else 0.0 for s in over_runs([used_share(r, group) for r in member.runs])]
    return [max(b - a, 0.0) for a, b in pairwise(used)]


def free_share(run: RunHistory) -> float | None:
    """The percentage of free neurons, averaged over the groups."""
    shares = [100 - (used_share(run, group)[-1] or 0) for group in run.sizes]
    return sum(shares) / len(shares) if shares else None


def tightest(member: Member) -> tuple[str, float] | None:
    """The group with the smallest percentage of free neurons, and that."""
    shares = {group: 100 - sum(claimed_shares(member, group)) for group in member.groups}
    return min(shares.items(), key=lambda item: item[1]) if shares else None


def reused_share(task: TaskHistory, group: str) -> float | None:
    """The percentage of the task's active neurons that were there before it."""
    new, reused = task.new.get(group), task.reused.get(group)
    if new is None or reused is None or new + reused == 0:
        return None
    return 100 * reused / (new + reused)


@dataclass(frozen=True)
class Column:
    """A column of the table of members: its title, its digits, and what a run has in it."""

    title: str
    digits: int
    value: Callable[[RunHistory], float | None]


def columns(collection: Collection) -> list[Column]:
    """The columns of the table of members; one that nobody has anything in is left out.

    Forward transfer is known where each task has also been learnt alone, with the same seed.
    """
    alone = {run.seed: [row[-1] for row in run.scores] for run in collection.runs if _alone(run)}

    def gain(run: RunHistory) -> float | None:
        against = alone.get(run.seed)
        if against is None or len(against) < len(run.scores) or not run.scores:
            return None
        return forward_transfer(run.scores, against)

    def megabytes(value: float | None) -> float | None:
        return None if value is None else value / 1e6

    found = [
        Column("tasks learnt", 0, lambda run: float(len(run.learnt))),
        Column("average", 2, lambda run: average(run.scores) if run.scores else None),
        Column("forgetting", 2, lambda run: forgetting(run.scores) if run.scores else None),
        Column("backward transfer", 2, lambda r: backward_transfer(r.scores) if r.scores else None),
        Column("forward transfer", 2, gain),
        Column("free neurons, %", 1, free_share),
        Column("stored, MB", 2, lambda run: megabytes(run.stored_bytes)),
        Column("seconds", 0, lambda run: run.seconds),
        Column("peak memory, MB", 0, lambda run: megabytes(run.peak_bytes)),
    ]
    return [c for c in found if any(c.value(run) is not None for run in collection.runs)]


def _alone(run: RunHistory) -> bool:
    return run.method == ALONE
