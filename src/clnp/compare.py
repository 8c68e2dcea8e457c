"""Several methods on the same tasks, network and seeds, and the table that comes of it.

compare.json            the recipe's name, the methods and the seeds
clnp/, ewc/, ...        a series of runs for each method
comparison.json         the table, also as .txt, .csv, .md and .tex
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RunError
from .ledger import aligned
from .metrics import Scores, average, backward_transfer, forgetting, forward_transfer
from .series import checked, finished_results, plus_minus, spread

COMPARISON = "compare.json"
TABLE = "comparison"
ALONE = "single"
"""The method that forward transfer is measured against."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, its key in a row, and how its numbers are written."""

    title: str
    key: str
    digits: int


LEARNT = Column("tasks learnt", "tasks", 1)
"""Of which everything else is: shown where not all runs have learnt all tasks."""
COLUMNS = (
    LEARNT,
    Column("average", "average", 2),
    Column("forgetting", "forgetting", 2),
    Column("backward transfer", "backward_transfer", 2),
    Column("forward transfer", "forward_transfer", 2),
    Column("stored, MB", "stored", 2),
    Column("seconds", "seconds", 0),
    Column("peak memory, MB", "peak", 0),
)


def read_comparison(path: Path) -> dict[str, Any]:
    """The recipe's name, the methods and the seeds of the comparison at `path`, if there is one."""
    if not os.path.isfile(path / COMPARISON):
        return {}
    return checked(path, COMPARISON, "seeds", "methods")


def rows(path: Path) -> list[dict[str, Any]]:
    """What each method of the comparison at `path` has come to, as far as it is finished."""
    methods = read_comparison(path).get("methods")
    if methods is None:
        raise RunError(f"there is no comparison at {path} any more")
    return rows_of({method: finished_results(path / method) for method in methods})


def rows_of(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What each method's results come to: mean and deviation over the seeds of every column.

    Forward transfer is known where each task has also been learnt alone, with the same seed. How
    many tasks were learnt is there if it is not all of them in every run.
    """
    everyone = [result for own in results.values() for result in own]
    most = max((result["num_tasks"] for result in everyone), default=0)
    all_learnt = all(len(result["scores"]) == most for result in everyone)
    shown = [column for column in COLUMNS if column is not LEARNT or not all_learnt]
    alone = {r["seed"]: [row[-1] for row in r["scores"]] for r in results.get(ALONE, [])}
    found = []
    for method, own in results.items():
        if not own:
            continue
        columns = [_figures(result, alone.get(result["seed"])) for result in own]
        row: dict[str, Any] = {"method": method, "seeds": [r["seed"] for r in own]}
        for column in shown:
            values = [figures[column.key] for figures in columns]
            known = [value for value in values if value is not None]
            row[column.key] = spread(known) if len(known) == len(values) else None
        found.append(row)
    return found


def _figures(
    result: Mapping[str, Any], alone: Sequence[float | None] | None
) -> dict[str, float | None]:
    timings = result["timings"]
    return figures(
        result["scores"],
        alone,
        num_tasks=len(result["scores"]),
        stored_bytes=sum(result["stored_bytes"].values()),
        seconds=timings["seconds"],
        peak_bytes=timings["peak_bytes"],
    )


def figures(
    scores: Scores,
    alone: Sequence[float | None] | None,
    *,
    num_tasks: int,
    stored_bytes: float | None,
    seconds: float | None,
    peak_bytes: float | None,
) -> dict[str, float | None]:
    """What a run has in every column, by its key; `alone` has the scores of tasks learnt alone."""
    enough = bool(scores) and alone is not None and len(alone) >= len(scores)
    return {
        "tasks": float(num_tasks),
        "average": average(scores) if scores else None,
        "forgetting": forgetting(scores) if scores else None,
        "backward_transfer": backward_transfer(scores) if scores else None,
        "forward_transfer": forward_transfer(scores, alone or ()) if enough else None,
        "stored": None if stored_bytes is None else stored_bytes / 1e6,
        "seconds": seconds,
        "peak": None if peak_bytes is None else peak_bytes / 1e6,
    }


def table(found: Sequence[Mapping[str, Any]], *, sign: str = "±") -> list[list[str]]:
    """The rows as text, a head first; what is not known is a dash."""
    shown = _shown(found)
    lines = [["method", *(column.title for column in shown), "seeds"]]
    for row in found:
        sign_or_none = sign if len(row["seeds"]) > 1 else None
        cells = [_cell(row[column.key], column.digits, sign_or_none) for column in shown]
        lines.append([row["method"], *cells, str(len(row["seeds"]))])
    return lines


def _shown(found: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns that the rows have."""
    return [column for column in COLUMNS if all(column.key in row for row in found)]


def _cell(value: Mapping[str, float] | None, digits: int, sign: str | None) -> str:
    """Mean and deviation with the sign between them; one seed has no deviation, and no sign."""
    return "-" if value is None else plus_minus(value, digits, sign=sign)


def texts(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table in every format, by the ending of its file."""
    lines = table(found)
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    markdown = "\n".join([head, "|" + "---|" * len(lines[0]), *rest])
    return {
        "txt": aligned(lines) + "\n",
        "csv": _csv(found),
        "md": markdown + "\n",
        "tex": _latex(table(found, sign=r"\pm")),
    }


def _csv(found: Sequence[Mapping[str, Any]]) -> str:
    """Means and deviations in columns of their own, with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [column.key for column in _shown(found)]
    writer.writerow(
        ["method", *(f"{key}_{part}" for key in keys for part in ("mean", "std")), "seeds"]
    )
    for row in found:
        cells: list[Any] = []
        for key in keys:
            value = row[key]
            cells += ["", ""] if value is None else [value["mean"], value["deviation"]]
        writer.writerow([row["method"], *cells, len(row["seeds"])])
    return text.getvalue()


def _latex(lines: Sequence[Sequence[str]]) -> str:
    """A tabular of booktabs; what was measured is in math mode, where a minus is not a hyphen."""
    head, *rest = lines
    body = [" & ".join([*map(_latex_cell, line[:-1]), line[-1]]) + r" \\" for line in rest]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _latex_cell(text: str) -> str:
    if text == "-":
        return "--"
    try:
        float(text.partition(r" \pm ")[0])
    except ValueError:
        return text.replace("_", r"\_")
    return f"${text}$"
