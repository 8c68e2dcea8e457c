"""Numbers of a report: means and standard deviations over the seeds of a member."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from clnp.core.layers.ledger import free_fraction
from clnp.runs.history import RunHistory, TaskHistory
from clnp.runs.metrics import average
from clnp.studies.summaries import ALONE, COLUMNS, measured, table_of
from clnp.studies.tables import Mean, Table

from .collection import Collection, Member


def spread_of(values: Iterable[float | None], digits: int = 2) -> Mean | None:
    """Return mean and deviation of the finite values; None if there are none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    deviation = stdev(known) if len(known) > 1 else 0.0
    return Mean(fmean(known), deviation, len(known), digits)


def counted(values: Iterable[float | None]) -> Mean | None:
    """Return the mean of counts, with a digit after the point if there are several."""
    found = list(values)
    return spread_of(found, 0 if len(found) == 1 else 1)


def over_runs(rows: Sequence[Sequence[float | None]], digits: int = 2) -> list[Mean | None]:
    """Return the mean at each index over rows of different lengths."""
    longest = max(map(len, rows), default=0)
    return [spread_of((row[i] for row in rows if i < len(row)), digits) for i in range(longest)]


def by_task(member: Member, value: Callable[[TaskHistory], float | None]) -> list[Mean | None]:
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


def members_table(collection: Collection) -> Table:
    """Return a row for each member, in the columns of a comparison: mean and deviation."""
    alone = {run.path: _alone(collection, m, run) for m in collection.members for run in m.runs}
    most = max(len(run.learned) for run in collection.runs)
    same = all(len(run.learned) == most for run in collection.runs)

    def measures(run: RunHistory) -> dict[str, float | None]:
        single, free = alone[run.path], free_share(run)
        found = measured(
            run.scores,
            alone=None if single is None else [row[-1] for row in single.scores],
            free=None if free is None else free / 100,
            num_bytes=run.stored_bytes,
            seconds=run.seconds,
            peak_bytes=run.peak_bytes,
        )
        return {**found, "tasks": None if same else len(run.learned)}

    rows = []
    for member in collection.members:
        found = [(measures(run), bool(run.learned)) for run in member.runs]
        means = {c.key: _mean([(v[c.key], known) for v, known in found], c.digits) for c in COLUMNS}
        rows.append((member.label, means, member.runs))
    sources = [m.settings.note if m.settings else None for m in collection.members]
    return table_of("run", rows, sources=sources)


def _mean(values: Sequence[tuple[float | None, bool]], digits: int) -> Mean | None:
    """Return the mean over the runs; None if one of them has learned a task and no value."""
    if any(value is None and learned for value, learned in values):
        return None
    return spread_of((value for value, _ in values), digits)


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
