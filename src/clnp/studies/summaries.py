"""Means over seeds: the summary of a series, and the table of a comparison in every format.

Nothing here imports PyTorch.
"""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clnp.core.layers.ledger import aligned
from clnp.errors import RunError
from clnp.records import (
    ComparisonRow,
    RunResult,
    SeriesSummary,
    SettingsSource,
    Spread,
    TaskSummary,
)
from clnp.runs.metrics import average, backward_transfer, forgetting, forward_transfer

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
    """A column of the table: its title, its field in a `ComparisonRow`, and its digits."""

    title: str
    key: str
    digits: int


LEARNED = Column("tasks learned", "tasks", 1)
"""Shown unless every run learned all tasks: all other columns are about these."""
COLUMNS = (
    LEARNED,
    Column("average", "average", 2),
    Column("forgetting", "forgetting", 2),
    Column("backward transfer", "backward_transfer", 2),
    Column("forward transfer", "forward_transfer", 2),
    Column("stored, MB", "stored", 2),
    Column("seconds", "seconds", 0),
    Column("peak memory, MB", "peak", 0),
)


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
    scores = result.scores
    known = bool(scores) and len(alone) >= len(scores)
    return {
        "tasks": float(len(scores)),
        "average": average(scores) if scores else None,
        "forgetting": forgetting(scores) if scores else None,
        "backward_transfer": backward_transfer(scores) if scores else None,
        "forward_transfer": forward_transfer(scores, alone) if known else None,
        "stored": sum(result.stored_bytes.values()) / 1e6,
        "seconds": result.timings.seconds,
        "peak": result.timings.peak_bytes / 1e6,
    }


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return spread(known) if len(known) == len(values) else None


def footnotes(found: Sequence[ComparisonRow]) -> list[str]:
    """Return the notes below the table, on the settings of methods: "[1] default settings"."""
    return [f"[{number}] {note}." for number, note in enumerate(_sources(found), 1)]


def marked(found: Sequence[ComparisonRow]) -> dict[str, str]:
    """Return the name of each method with the number of its footnote: "ewc [1]"."""
    numbers = {note: number for number, note in enumerate(_sources(found), 1)}
    notes = {row.method: row.settings.note for row in found if row.settings is not None}
    names = {method: f"{method} [{numbers[note]}]" for method, note in notes.items()}
    return {row.method: names.get(row.method, row.method) for row in found}


def _sources(found: Sequence[ComparisonRow]) -> list[str]:
    return list(dict.fromkeys(row.settings.note for row in found if row.settings is not None))


def texts(found: Sequence[ComparisonRow]) -> dict[str, str]:
    """Return the table in every format, by the suffix of its file."""
    counted = any(row.tasks is not None for row in found)
    columns = [column for column in COLUMNS if counted or column is not LEARNED]
    lines, notes = _cells(found, columns, "±"), footnotes(found)
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    below = "\n\n" + "  \n".join(notes) if notes else ""  # Two spaces break a line.
    return {
        "txt": "\n".join([aligned(lines), *notes, ""]),
        "csv": _csv(found, columns),
        "md": "\n".join([head, "|" + "---|" * len(lines[0]), *rest]) + below + "\n",
        "tex": _latex(_cells(found, columns, r"\pm"), notes),
    }


def _cells(found: Sequence[ComparisonRow], columns: Sequence[Column], sign: str) -> list[list[str]]:
    """Return the rows as text below a head; an unknown value is a dash."""
    lines, names = [["method", *(column.title for column in columns), "seeds"]], marked(found)
    for row in found:
        own = sign if len(row.seeds) > 1 else None  # One seed has no deviation.
        values = [(getattr(row, column.key), column.digits) for column in columns]
        cells = ["-" if v is None else plus_minus(v, digits, sign=own) for v, digits in values]
        lines.append([names[row.method], *cells, str(len(row.seeds))])
    return lines


def _csv(found: Sequence[ComparisonRow], columns: Sequence[Column]) -> str:
    """Return means and deviations in separate columns, with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [f"{column.key}_{part}" for column in columns for part in ("mean", "std")]
    noted = any(row.settings is not None for row in found)
    writer.writerow(["method", *keys, "seeds", *(["settings"] if noted else [])])
    for row in found:
        cells: list[float | str] = []
        for value in (getattr(row, column.key) for column in columns):
            cells += ["", ""] if value is None else [value.mean, value.deviation]
        note = "" if row.settings is None else row.settings.note
        writer.writerow([row.method, *cells, len(row.seeds), *([note] if noted else [])])
    return text.getvalue()


def _latex(lines: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return a tabular of booktabs, with numbers in math mode, where a minus is not a hyphen."""
    head, *rest = lines
    body = []
    for method, *cells, seeds in rest:
        numbers = ("--" if cell == "-" else f"${cell}$" for cell in cells)
        body.append(" & ".join([method.replace("_", r"\_"), *numbers, seeds]) + r" \\")
    parts = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
    whole = rf"\multicolumn{{{len(head)}}}{{l}}{{\footnotesize "
    below = [rf"{whole}{note}}} \\" for note in notes]
    parts += [" & ".join(head) + r" \\", r"\midrule", *body, r"\bottomrule", *below]
    parts += [r"\end{tabular}", ""]
    return "\n".join(parts)
