"""Numbers of a report: means and standard deviations over the seeds of a member."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from clnp.core.layers.ledger import free_fraction
from clnp.runs.history import RunHistory, TaskHistory
from clnp.runs.metrics import average, backward_transfer, forgetting, forward_transfer
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


def fullest_layer(member: Member) -> tuple[str, float] | None:
    """Return the layer with the smallest percentage of free neurons, and that percentage."""
    shares = {group: 100 - sum(claimed_shares(member, group)) for group in member.sizes}
    return min(shares.items(), key=lambda item: item[1]) if shares else None


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
    alone = _scores_alone(collection)

    def forward(run: RunHistory) -> float | None:
        scores = alone.get(run.path, [])
        enough = run.scores and len(scores) >= len(run.scores)
        return forward_transfer(run.scores, scores) if enough else None

    found = [
        Column("average", 2, lambda run: average(run.scores) if run.scores else None),
        Column("forgetting", 2, lambda run: forgetting(run.scores) if run.scores else None),
        Column(
            "backward transfer",
            2,
            lambda run: backward_transfer(run.scores) if run.scores else None,
        ),
        Column("forward transfer", 2, forward),
        Column("free neurons, %", 1, free_share),
        Column("stored, MB", 2, lambda run: _millions(run.stored_bytes)),
        Column("seconds", 0, lambda run: run.seconds),
        Column("peak memory, MB", 0, lambda run: _millions(run.peak_bytes)),
    ]
    if len({len(run.learned) for run in runs}) > 1:
        alike = all(len({len(r.learned) for r in m.runs}) == 1 for m in collection.members)
        found.insert(0, Column("tasks learned", 0 if alike else 1, lambda run: len(run.learned)))
    return [column for column in found if any(column.value(run) is not None for run in runs)]


def _millions(num_bytes: float | None) -> float | None:
    return None if num_bytes is None else num_bytes / 1e6


def _scores_alone(collection: Collection) -> dict[Path, list[float | None]]:
    """Return the scores of each run's tasks when learned alone, by the path of the run.

    They are those of the same comparison; otherwise those of the only run of the same tasks.
    """
    found = {}
    everywhere = _runs_alone(collection.members)
    for member in collection.members:
        near = [m for m in collection.members if m.comparison == member.comparison]
        beside = _runs_alone(near if member.comparison is not None else [member])
        for run in member.runs:
            own = [each for each in beside if each.seed == run.seed]
            known = own or [each for each in everywhere if _has_same_tasks(run, each)]
            if len(known) == 1:
                found[run.path] = [row[-1] for row in known[0].scores]
    return found


def _runs_alone(members: Sequence[Member]) -> list[RunHistory]:
    runs = [run for member in members for run in member.runs if run.method == ALONE]
    return list({run.path: run for run in runs}.values())


def _has_same_tasks(run: RunHistory, other: RunHistory) -> bool:
    """Whether the other run has at least the tasks of this one, the same head and seed."""
    tasks, others, num = run.config.tasks, other.config.tasks, len(run.scores)
    same = len(others) >= num and tasks[:num] == others[:num]
    return same and (run.head, run.seed) == (other.head, other.seed)
