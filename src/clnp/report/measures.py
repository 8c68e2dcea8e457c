"""What the runs of a member come to: means and standard deviations over its seeds."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from clnp.core.layers.ledger import free_fraction
from clnp.runs.metrics import average
from clnp.runs.records import RunHistory, TaskHistory, sequence
from clnp.studies.comparison import ALONE, COLUMNS, LEARNT, figures
from clnp.studies.series import plus_minus, spread

from .collection import Collection, Member


@dataclass(frozen=True)
class Spread:
    """A mean over `num` runs and its standard deviation, which is 0 for one."""

    mean: float
    deviation: float
    num: int

    def text(self, digits: int = 2) -> str:
        """`98.46 ± 0.03`, or without a deviation where there is one run."""
        value = {"mean": self.mean, "deviation": self.deviation}
        return plus_minus(value, digits, sign=None if self.num == 1 else "±")


@dataclass(frozen=True)
class Rounded:
    """A spread in a table: text with so many digits in the page, all digits in a file."""

    spread: Spread
    digits: int = 2

    def __str__(self) -> str:
        return self.spread.text(self.digits)

    @property
    def number(self) -> float | int:
        """The mean; what one run has counted is a whole number."""
        counted = self.digits == 0 and self.spread.num == 1 and self.spread.mean.is_integer()
        return int(self.spread.mean) if counted else self.spread.mean


def rounded(spread: Spread | None, digits: int = 2) -> Rounded | None:
    """The spread as it stands in a table; None where there is none."""
    return None if spread is None else Rounded(spread, digits)


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
    """The percentage of the group that each task claimed, over the runs.

    A run that has not learnt the task, because it was full perhaps, has claimed nothing for it.
    """
    rows = [[float(u or 0.0) for u in used_share(run, group)] for run in member.runs]
    longest = max(map(len, rows), default=0)
    whole = [row + row[-1:] * (longest - len(row)) for row in rows if row]
    return [fmean(b) - fmean(a) for a, b in pairwise(zip(*whole, strict=True))]


def free_share(run: RunHistory) -> float | None:
    """The percentage of free neurons, averaged over the groups."""
    free = {group: size - run.used(group)[-1] for group, size in run.sizes.items()}
    return 100 * free_fraction(free, run.sizes) if free else None


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
    """A column of the table of members: its title, its digits, and what a run has in it.

    What `counts` something is a whole number in each run.
    """

    title: str
    digits: int
    value: Callable[[RunHistory], float | None]
    counts: bool = False

    def text(self, member: Member) -> str | None:
        """The mean over the runs; None where one of them has learnt a task and has no value."""
        values = [(self.value(run), run.learnt) for run in member.runs]
        if any(value is None and learnt for value, learnt in values):
            return None
        found = spread_of(value for value, _ in values)
        if found is None:
            return None
        if self.counts and found.deviation == 0:
            return f"{found.mean:.0f}"
        return found.text(self.digits)


def columns(collection: Collection) -> list[Column]:
    """The columns of the table of members; one that nobody has anything in is left out.

    How many tasks were learnt is there if not all runs have learnt as many. Forward transfer is
    known where each task has also been learnt alone, with the same seed.
    """
    runs = collection.runs
    alone = _alone(collection)

    def compared(key: str) -> Callable[[RunHistory], float | None]:
        return lambda run: figures(
            run.scores,
            alone.get(run.path),
            num_tasks=len(run.learnt),
            stored_bytes=run.stored_bytes,
            seconds=run.seconds,
            peak_bytes=run.peak_bytes,
        )[key]

    alike = len({len(run.learnt) for run in runs}) == 1
    found = [
        Column(each.title, each.digits, compared(each.key), counts=each is LEARNT)
        for each in COLUMNS
        if each is not LEARNT or not alike
    ]
    place = [column.title for column in found].index("stored, MB")
    found.insert(place, Column("free neurons, %", 1, free_share))
    return [c for c in found if any(c.value(run) is not None for run in runs)]


def _alone(collection: Collection) -> dict[Path, list[float | None]]:
    """The scores of each run's tasks learnt alone, by its path; a run that has none is left out.

    They are of the same comparison. Where that has none, they are of the only run of the same tasks
    that there is.
    """
    found = {}
    for member in collection.members:
        near = [m for m in collection.members if m.comparison == member.comparison]
        beside = near if member.comparison is not None else [member]
        for run in member.runs:
            own = [each for each in _singles(beside) if each.seed == run.seed]
            others = [each for each in _singles(collection.members) if _same_tasks(run, each)]
            known = own or others
            if len(known) == 1:
                found[run.path] = [row[-1] for row in known[0].scores]
    return found


def _singles(members: Sequence[Member]) -> list[RunHistory]:
    """The runs that learnt each task alone, each of them once."""
    runs = [run for member in members for run in member.runs if run.method == ALONE]
    return list({run.path: run for run in runs}.values())


def _same_tasks(run: RunHistory, other: RunHistory) -> bool:
    """Whether the other run has at least the tasks of this one, the same head and seed."""
    tasks, others = (sequence(each.config.get("tasks")) for each in (run, other))
    num = len(run.scores)
    same = len(others) >= num and list(tasks[:num]) == list(others[:num])
    return same and (run.head, run.seed) == (other.head, other.seed)
