"""Several methods on the same tasks, network and seeds, and the table of their results.

compare.json            the recipe's name, the methods and the seeds
clnp/, ewc/, ...        a series of runs for each method
comparison.json         the table, also as .txt, .csv, .md and .tex
"""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clnp.core.layers.ledger import aligned
from clnp.errors import RunError, unknown_name
from clnp.methods.method import OURS
from clnp.methods.registry import NAMES
from clnp.recipes.recipe import difference
from clnp.recipes.schema import to_toml
from clnp.runs.directory import (
    CONFIG,
    FORMAT,
    LOCK,
    RECIPE,
    command,
    expanded,
    locked,
    to_json,
    writing,
)
from clnp.runs.metrics import Scores, average, backward_transfer, forgetting, forward_transfer
from clnp.storage.atomic import TEMPORARY, replace_file
from clnp.terminal.progress import Silence

from .launch import HEADER, Answer, Circumstances, Source, data_of
from .series import (
    SERIES,
    Member,
    add_seeds,
    begin_series,
    carry_out_together,
    check_data,
    checked,
    finished_results,
    plus_minus,
    read_series,
    run_of,
    spread,
    summarise,
)

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


WORDS = {
    "recipe": "recipe is",
    "seeds": "seeds are",
    "search_once": "--search-once is",
}
"""What a comparison is, and stays, but for seeds that are added."""


def compare(
    source: Source,
    place: Circumstances,
    *,
    methods: Sequence[str],
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    num_jobs: int,
    out: str | None,
    console: Silence,
) -> Answer:
    """Carry out a recipe with several methods, and compare what they come to.

    Unless their number is given, seeds are those that the comparison has: one, if it begins.
    """
    for method in methods:
        if method not in NAMES:
            raise RunError(unknown_name("method", method, NAMES))
    loaded = source.load(seed)
    path = expanded(out) if out is not None else Path("runs") / f"{loaded.name}-compared"
    with _alone(path):
        before = read_comparison(path)
        if not before:
            _check_empty(path)
        held = before.get("seeds", [])
        first, num_all = loaded.recipe.seed, num_seeds or len(held) or 1
        known: dict[str, Any] = {
            "format": FORMAT,
            "recipe": loaded.name,
            "seeds": list(range(first, first + num_all)),
            "search_once": search_once,
            "data": data_of(place.data),
            # Methods may be added to a comparison later, and seeds.
            "methods": list(dict.fromkeys([*before.get("methods", []), *methods])),
        }
        for key, words in WORDS.items():
            grows = key == "seeds" and held == known["seeds"][: len(held)]
            if before and before.get(key) != known[key] and not grows:
                raise RunError(
                    f"{path} is another comparison: its {words} {_in_words(before.get(key))}, not "
                    f"{_in_words(known[key])}; name another directory"
                )
        begun = [m for m in before.get("methods", []) if _has_begun(path / m, held)]
        for method in (m for m in begun if (path / m / RECIPE).is_file()):
            now = source.with_method(method).load(first).recipe
            if found := difference(now, Source(str(path / method / RECIPE)).load().recipe):
                key, values = found
                raise RunError(
                    f"{path} is another comparison: {key} of its {method} is {values}; name "
                    "another directory"
                )
        recipe = to_toml(loaded.recipe, header=HEADER)
        return _carry_out(
            path, known, methods, place, num_jobs=num_jobs, console=console, recipe=recipe
        )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes away from the comparison; a directory that stays empty goes again."""
    is_new = not path.exists()
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = locked(path)
    try:
        yield
    finally:
        lock.release()
        if is_new and not (path / COMPARISON).exists():
            with suppress(OSError):
                (path / LOCK).unlink(missing_ok=True)
                path.rmdir()


def go_on_comparing(path: Path, place: Circumstances, *, num_jobs: int, console: Silence) -> Answer:
    """Carry out all runs of a comparison that are not finished; the table of all methods."""
    with _alone(path):
        known = read_comparison(path)
        methods = known["methods"]
        return _carry_out(path, known, methods, place, num_jobs=num_jobs, console=console)


def _carry_out(
    path: Path,
    known: Mapping[str, Any],
    methods: Sequence[str],
    place: Circumstances,
    *,
    num_jobs: int,
    console: Silence,
    recipe: str | None = None,
) -> Answer:
    """Carry out all runs of these methods that are not finished; the table of all methods.

    What is finished is in the table's files also if some runs fail or are stopped. A comparison
    keeps its `recipe`: the user's own may be another by the time that a method begins.
    """
    _check_data(path, known, methods, place, console)
    with writing(path):
        if recipe is not None:
            replace_file(path / RECIPE, recipe.encode())
        replace_file(path / COMPARISON, to_json(known, indent=1).encode())
    runs = []
    for method in methods:
        series = read_series(path / method)
        if series and _has_begun(path / method, known["seeds"]):
            add_seeds(path / method, series, known["seeds"])
        else:
            _begin_method(path / method, known)
        source = Source(str(path / method / RECIPE))
        runs += [
            Member(path / method, seed, source, f"{method}, seed {seed}") for seed in known["seeds"]
        ]
    # Where the first run of a grid searches for the others, it comes first.
    searching = [run for run in runs if known.get("search_once") and run.series.name == OURS]
    first, failed = [run for run in searching if run.seed == known["seeds"][0]], None
    try:
        try:
            carry_out_together(path, first, place, num_jobs=num_jobs, console=console)
        except RunError as error:
            failed = error
        left = [run for run in runs if run not in (first if failed is None else searching)]
        carry_out_together(path, left, place, num_jobs=num_jobs, console=console)
        if failed is not None:
            raise failed
    except BaseException:
        with suppress(RunError):  # What it broke off with says more.
            _write_table(path)
        raise
    found, text = _write_table(path)
    for method in methods:
        summarise(path / method)
    text += f"\nThe runs are in {path}, the table in {path / TABLE}.*"
    num_seeds = len(known["seeds"])
    others = [m for m in known["methods"] if len(finished_results(path / m)) < num_seeds]
    if others:
        again = command("resume", path)
        text += f"\nSeeds of {', '.join(others)} are missing; carry them out with: {again}"
    return found, text


def _begin_method(path: Path, known: Mapping[str, Any]) -> None:
    """Write down what the series of a method is, also if its runs are there and that was lost."""
    series = {**known, "methods": [path.name]}
    source = Source(str(path.parent / RECIPE)).with_method(path.name)
    text = to_toml(source.load(known["seeds"][0]).recipe, header=HEADER)
    if not _has_begun(path, known["seeds"]):
        begin_series(path, series, text)
        return
    first = run_of(path, known["seeds"][0])  # It began with the recipe of the series.
    held = [place / RECIPE for place in (path, first) if (place / RECIPE).is_file()]
    with writing(path):
        replace_file(path / RECIPE, held[0].read_bytes() if held else text.encode())
        replace_file(path / SERIES, to_json(series, indent=1).encode())


def _check_empty(path: Path) -> None:
    """Refuse to write a comparison beside something else."""
    with writing(path):
        found = list(path.iterdir()) if path.exists() else []
    if any(file.name != LOCK and TEMPORARY not in file.name for file in found):
        raise RunError(f"{path} is not empty; give the comparison a directory of its own")


def _has_begun(path: Path, seeds: Sequence[int]) -> bool:
    """Whether a run of the series is there."""
    return any(os.path.isfile(run_of(path, seed) / CONFIG) for seed in seeds)


def _check_data(
    path: Path,
    known: Mapping[str, Any],
    methods: Sequence[str],
    place: Circumstances,
    console: Silence,
) -> None:
    """Refuse to begin runs with other data than the runs of the comparison that are there have."""
    runs = {m: [run_of(path / m, seed) for seed in known["seeds"]] for m in known["methods"]}
    begun = [run for own in runs.values() for run in own if (run / CONFIG).is_file()]
    wanted = [m for m in methods if begun and not set(runs[m]) <= set(begun)]
    if wanted:
        held = {m: read_series(path / m) for m in wanted if _has_begun(path / m, known["seeds"])}
        places = (place.data or {**known, **held.get(m, {})}.get("data") for m in wanted)
        check_data(begun[0], places, console)


def _write_table(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The table of a comparison as far as it is finished, in its files; its rows and its text."""
    found = rows(path)
    written = texts(found)
    with writing(path):
        replace_file(path / f"{TABLE}.json", (to_json(found, indent=1) + "\n").encode())
        for ending, text in written.items():
            replace_file(path / f"{TABLE}.{ending}", text.encode())
    return found, written["txt"]


def _in_words(value: Any) -> str:
    """A value of a comparison's file, lists and all, in one line."""
    if isinstance(value, list):
        return " ".join(_in_words(each) for each in value) or "none"
    return str(value)
