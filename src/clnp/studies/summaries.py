"""Means over seeds: the summary of a series, and the table of a comparison in every format.

Nothing here imports PyTorch.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clnp.core.layers.ledger import aligned, free_fraction
from clnp.errors import RunError
from clnp.records import (
    ComparisonRow,
    RunResult,
    SeriesSummary,
    SettingsSource,
    Spread,
    TaskSummary,
)
from clnp.runs.metrics import Scores, metrics_of

from .tables import Mean, Table, best_of, to_text

ALONE = "single"
"""The method that forward transfer is measured against."""


def spread(values: Sequence[float]) -> Spread:
    """Return the mean, and the standard deviation of a sample; that of one value is 0."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation)


def plus_minus(value: Spread | TaskSummary, digits: int = 2, *, sign: str | None = "±") -> str:
    """Return the mean and its deviation, 98.46 ± 0.03; without a sign, the mean alone."""
    # Rounding would leave a minus before zero: -0.00.
    mean = value.mean if round(value.mean, digits) else 0.0
    if sign is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} {sign} {value.deviation:.{digits}f}"


def aggregate(results: Sequence[RunResult]) -> SeriesSummary:
    """Return means and standard deviations over several results of one recipe."""
    if not results:
        raise RunError("No run of the series is finished. Resume the series first.")
    if not all(result.tasks and result.scores for result in results):
        raise RunError("A run of the series ended no task. Give its network larger widths.")
    counts = tuple(len(result.tasks) for result in results)
    num_tasks, in_all = min(counts), max(result.num_tasks for result in results)
    last = [[_number(score) for score in result.scores[-1]] for result in results]
    tasks = [spread([row[index] for row in last]) for index in range(num_tasks)]
    first = results[0]
    return SeriesSummary(
        seeds=tuple(result.seed for result in results if result.seed is not None),
        num_tasks=counts,
        num_tasks_in_all=in_all if num_tasks < in_all else None,
        average=spread([statistics.fmean(row) for row in last]),
        tasks=tuple(
            TaskSummary(record.task, each.mean, each.deviation)
            for record, each in zip(first.tasks[:num_tasks], tasks, strict=True)
        ),
        forgetting=max(
            _number(record.test_score) - now
            for result, row in zip(results, last, strict=True)
            for record, now in zip(result.tasks, row, strict=True)
        ),
        unchanged=all(record.unchanged for result in results for record in result.tasks),
        used={
            group: spread([100 * (1 - each.capacity.free[group] / size) for each in results])
            for group, size in first.capacity.sizes.items()
        },
        seconds=spread([result.timings.seconds for result in results]),
    )


def _number(score: float | None) -> float:
    return math.nan if score is None else score


def described(summary: SeriesSummary) -> str:
    """Return the summary as text for a terminal."""
    num_seeds = len(summary.seeds)
    sign = "±" if num_seeds > 1 else None  # One seed has no deviation.
    title = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds, mean ± standard deviation"
    if summary.num_tasks_in_all is not None:
        counts = ", ".join(map(str, summary.num_tasks))
        title += f"\nlearned: {counts} of {summary.num_tasks_in_all} tasks, averaged over these"
    rows = [["task", "test score"]]
    rows += [[task.task, plus_minus(task, sign=sign)] for task in summary.tasks]
    rows.append(["average", plus_minus(summary.average, sign=sign)])
    parts = [title, aligned(rows)]
    if summary.used:
        used = [[group, plus_minus(value, 1, sign=sign)] for group, value in summary.used.items()]
        parts.append(aligned([["layer", "neurons used, %"], *used]))
    kept = "all outputs are the same as when their tasks ended, to the last bit"
    if not summary.unchanged:
        kept = f"outputs have changed, and a task lost {summary.forgetting:.2f} at most"
    return "\n\n".join([*parts, f"Forgetting: {kept}."])


class Column(NamedTuple):
    """A column of the table: its title, field in a `ComparisonRow`, digits, what is best."""

    title: str
    key: str
    digits: int
    highest: bool | None = None
    """Whether the highest value is the best, or the lowest; None if it depends on the machine."""


LEARNED = Column("tasks learned", "tasks", 1, highest=True)
"""Shown unless every run learned all tasks: all other columns are about these."""
COLUMNS = (
    LEARNED,
    Column("average", "average", 2, highest=True),
    Column("forgetting", "forgetting", 2, highest=False),
    Column("backward transfer", "backward_transfer", 2, highest=True),
    Column("forward transfer", "forward_transfer", 2, highest=True),
    Column("free neurons, %", "free", 1, highest=True),
    Column("stored, MB", "stored", 2, highest=False),
    Column("seconds", "seconds", 0),
    Column("peak memory, MB", "peak", 0),
)
CAPTION = (
    "Means over the seeds, with standard deviations if there are several. Average: test score of "
    "all tasks after the last. Forgetting: mean loss of a task since its best score. Backward "
    "transfer: mean change since a task was learned. Forward transfer: mean gain compared with "
    "learning each task alone."
)


def measured(
    scores: Scores,
    *,
    alone: Sequence[float | None] | None,
    free: float | None,
    num_bytes: float | None,
    seconds: float | None,
    peak_bytes: float | None,
) -> dict[str, float | None]:
    """Return the value of a run in every column; `alone` has the scores of tasks learned alone."""
    metrics = metrics_of(scores, alone)
    return {
        "tasks": float(len(scores)),
        "average": metrics.average,
        "forgetting": metrics.forgetting,
        "backward_transfer": metrics.backward_transfer,
        "forward_transfer": metrics.forward_transfer,
        "free": None if free is None else 100 * free,
        "stored": megabytes(num_bytes),
        "seconds": seconds,
        "peak": megabytes(peak_bytes),
    }


def megabytes(num_bytes: float | None) -> float | None:
    """Return a number of bytes in megabytes."""
    return None if num_bytes is None else num_bytes / 1e6


def rows_of(
    results: Mapping[str, Sequence[RunResult]],
    settings: Mapping[str, SettingsSource | None] = {},
) -> list[ComparisonRow]:
    """Return mean and deviation over the seeds of each method that has results, in every column.

    Forward transfer is known if each task has also been learned alone, with the same seed.
    `settings` says where those of each method come from.
    """
    everyone = [result for own in results.values() for result in own]
    most = max((result.num_tasks for result in everyone), default=0)
    all_learned = all(len(result.scores) == most for result in everyone)
    alone = {r.seed: [row[-1] for row in r.scores] for r in results.get(ALONE, ())}
    found = []
    for method, own in results.items():
        if own:
            values = [_values(result, alone.get(result.seed, [])) for result in own]
            columns = [column for column in COLUMNS if column is not LEARNED or not all_learned]
            spreads = {c.key: _spread([each[c.key] for each in values]) for c in columns}
            seeds = tuple(result.seed for result in own if result.seed is not None)
            source = settings.get(method)
            found.append(ComparisonRow(method, seeds, **spreads, settings=source))
    return found


def _values(result: RunResult, alone: Sequence[float | None]) -> dict[str, float | None]:
    """Return the value of a run in every column; `alone` has the scores of tasks learned alone."""
    capacity = result.capacity
    return measured(
        result.scores,
        alone=alone,
        free=free_fraction(capacity.free, capacity.sizes) if capacity.sizes else None,
        num_bytes=sum(result.stored_bytes.values()),
        seconds=result.timings.seconds,
        peak_bytes=result.timings.peak_bytes,
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if len(known) == len(values) else None


def texts(found: Sequence[ComparisonRow]) -> dict[str, str]:
    """Return the table in every format, by the suffix of its file."""
    made = comparison_table(found)
    return {"txt": to_text(made), **made.written()}


def comparison_table(found: Sequence[ComparisonRow]) -> Table:
    """Return the table of a comparison, without columns that are empty for every method."""
    return table_of(
        "method",
        [
            (
                row.method,
                {c.key: _mean(getattr(row, c.key), c, row.seeds) for c in COLUMNS},
                row.seeds,
            )
            for row in found
        ],
        sources=[None if row.settings is None else row.settings.note for row in found],
    )


def _mean(found: Spread | None, column: Column, seeds: Sequence[int]) -> Mean | None:
    if found is None:
        return None
    return Mean(found.mean, found.deviation, len(seeds), column.digits)


def table_of(
    first: str,
    rows: Sequence[tuple[str, Mapping[str, Mean | None], Sequence[object]]],
    *,
    sources: Sequence[str | None],
) -> Table:
    """Return a row for each name with its values and its seeds, and the best values in bold.

    Time and memory depend on the machine: none of them is in bold. `sources` says where the
    settings of each row come from.
    """
    columns = [c for c in COLUMNS if any(values.get(c.key) is not None for _, values, _ in rows)]
    cells = tuple(
        (name, *(values.get(column.key) for column in columns), len(seeds))
        for name, values, seeds in rows
    )
    best = [
        best_of(cells, index, highest=column.highest)
        for index, column in enumerate(columns, 1)
        if column.highest is not None
    ]
    return Table(
        (first, *(column.title for column in columns), "seeds"),
        cells,
        name="comparison",
        caption=CAPTION,
        keys=(first, *(column.key for column in columns), "seeds"),
        best=frozenset().union(*best),
        sources=tuple(sources),
    )
