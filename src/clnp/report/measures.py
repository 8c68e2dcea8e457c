"""Numbers of a report: means and standard deviations over the seeds of a member."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from clnp.core.layers.ledger import free_fraction
from clnp.runs.history import RunHistory, TaskHistory
from clnp.runs.metrics import Scores, average, backward_transfer, forgetting, forward_transfer
from clnp.studies.summaries import ALONE

from .collection import Collection, Member


@dataclass(frozen=True)
class Spread:
    """A mean over `num` runs and its standard deviation, with `digits` after the point as text."""

    mean: float
    deviation: float = 0.0
    num: int = 1
    digits: int = 2

    def __str__(self) -> str:
        # Rounding would leave a minus before zero: -0.00.
        mean = self.mean if round(self.mean, self.digits) else 0.0
        deviation = "" if self.num == 1 else f" ± {self.deviation:.{self.digits}f}"
        return f"{mean:.{self.digits}f}{deviation}"

    @property
    def number(self) -> float | int:
        """The mean with all digits; the count of a single run is an integer."""
        counted = self.digits == 0 and self.num == 1 and self.mean.is_integer()
        return int(self.mean) if counted else self.mean


def spread_of(values: Iterable[float | None], digits: int = 2) -> Spread | None:
    """Return mean and deviation of the finite values; None if there are none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    deviation = stdev(known) if len(known) > 1 else 0.0
    return Spread(fmean(known), deviation, len(known), digits)


def counted(values: Iterable[float | None]) -> Spread | None:
    """Return the mean of counts, with a digit after the point if there are several."""
    found = list(values)
    return spread_of(found, 0 if len(found) == 1 else 1)


def over_runs(rows: Sequence[Sequence[float | None]], digits: int = 2) -> list[Spread | None]:
    """Return the mean at each index over rows of different lengths."""
    longest = max(map(len, rows), default=0)
    return [spread_of((row[i] for row in rows if i < len(row)), digits) for i in range(longest)]


def by_task(member: Member, value: Callable[[TaskHistory], float | None]) -> list[Spread | None]:
    """Return a value of every learned task, over the runs."""
    return [spread_of(map(value, member.learned(index))) for index in range(member.num_tasks)]


def average_after(run: RunHistory) -> list[float | None]:
    """Return the mean score of all tasks so far, after each task."""
    return [average(run.scores[: index + 1]) for index in range(len(run.scores))]


def used_share(run: RunHistory, group: str) -> list[float]:
    """Return the percentage of claimed neurons in a layer, at the start and after each task."""
    size = run.sizes.get(group)
    return [100 * used / size for used in run.used(group)] if size else []


def claimed_shares(member: Member, group: str) -> list[float]:
    """Return the percentage of the layer that each task claimed, over the runs.

    A run that has not learned the task, for example because it was full, counts as zero.
    """
    rows = [row for run in member.runs if (row := used_share(run, group))]
    longest = max(map(len, rows), default=0)
    whole = [row + row[-1:] * (longest - len(row)) for row in rows]
    return [fmean(after) - fmean(before) for before, after in pairwise(zip(*whole, strict=True))]


def free_share(run: RunHistory) -> float | None:
    """Return the percentage of free neurons, averaged over the layers."""
    free = {group: size - run.used(group)[-1] for group, size in run.sizes.items()}
    return 100 * free_fraction(free, run.sizes) if free else None


def free_shares(member: Member) -> dict[str, float]:
    """Return the percentage of free neurons in each layer, over the runs."""
    return {group: 100 - sum(claimed_shares(member, group)) for group in member.sizes}


def reused_share(task: TaskHistory, group: str) -> float | None:
    """Return the percentage of reused neurons among all active neurons of the task."""
    new, reused = task.new.get(group), task.reused.get(group)
    if new is None or reused is None or new + reused == 0:
        return None
    return 100 * reused / (new + reused)


@dataclass(frozen=True)
class Column:
    """A column of the table of members, and its value for a run."""

    title: str
    digits: int
    value: Callable[[RunHistory], float | None]

    def of(self, member: Member) -> Spread | None:
        """Return the mean over the runs; None if one of them has learned a task and no value."""
        values = [(self.value(run), run.learned) for run in member.runs]
        if any(value is None and learned for value, learned in values):
            return None
        return spread_of((value for value, _ in values), self.digits)


def columns(collection: Collection) -> list[Column]:
    """Return the columns of the table of members, without those that are empty.

    The number of learned tasks is a column if runs have learned different numbers. Forward transfer
    needs runs that learned each task alone, with the same seed.
    """
    runs = collection.runs
    alone = {run.path: _alone(collection, m, run) for m in collection.members for run in m.runs}

    def metric(function: Callable[[Scores], float | None]) -> Callable[[RunHistory], float | None]:
        return lambda run: function(run.scores) if run.scores else None

    def forward(run: RunHistory) -> float | None:
        single = alone[run.path]
        if single is None or not run.scores:
            return None
        return forward_transfer(run.scores, [row[-1] for row in single.scores])

    found = [
        Column("average", 2, metric(average)),
        Column("forgetting", 2, metric(forgetting)),
        Column("backward transfer", 2, metric(backward_transfer)),
        Column("forward transfer", 2, forward),
        Column("free neurons, %", 1, free_share),
        Column("stored, MB", 2, lambda run: megabytes(run.stored_bytes)),
        Column("seconds", 0, lambda run: run.seconds),
        Column("peak memory, MB", 0, lambda run: megabytes(run.peak_bytes)),
    ]
    if len({len(run.learned) for run in runs}) > 1:
        digits = 0 if len(runs) == len(collection.members) else 1
        found.insert(0, Column("tasks learned", digits, lambda run: len(run.learned)))
    return [column for column in found if any(column.value(run) is not None for run in runs)]


def megabytes(num_bytes: float | None) -> float | None:
    """Return a number of bytes in megabytes."""
    return None if num_bytes is None else num_bytes / 1e6


def _alone(collection: Collection, member: Member, run: RunHistory) -> RunHistory | None:
    """Return the run that learned the same tasks alone, with the same seed.

    It is that of the same comparison; otherwise the only one of the report.
    """
    found = {
        (other.comparison, each.path): each
        for other in collection.members
        for each in other.runs
        if each.method == ALONE and _has_same_tasks(run, each)
    }
    near = [each for (comparison, _), each in found.items() if comparison == member.comparison]
    known = {each.path: each for each in near or found.values()}
    return next(iter(known.values())) if len(known) == 1 else None


def _has_same_tasks(run: RunHistory, other: RunHistory) -> bool:
    """Whether the other run has at least the tasks of this one, the same head and seed."""
    num = len(run.scores)
    same = len(other.scores) >= num and run.config.tasks[:num] == other.config.tasks[:num]
    return same and (run.head, run.seed) == (other.head, other.seed)
