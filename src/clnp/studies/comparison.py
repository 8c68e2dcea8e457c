"""Several methods on the same tasks, network and seeds, and a table of their results.

compare.json            a `SeriesConfig` with the methods
recipe.toml             the recipe with every default
clnp/, ewc/, ...        a series of runs for each method
comparison.json         a list of `ComparisonRow`: the table, also as .txt, .csv, .md and .tex
"""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clnp.core.layers.ledger import aligned
from clnp.errors import RunError, unknown_name
from clnp.methods.registry import NAMES
from clnp.plain import to_json
from clnp.recipes.recipe import difference
from clnp.recipes.schema import to_toml
from clnp.records import FORMAT, OURS, ComparisonRow, RunResult, SeriesConfig, Spread
from clnp.runs.directory import (
    CONFIG,
    LOCK,
    RECIPE,
    expanded,
    locked,
    missing_run,
    resume_command,
    writing,
)
from clnp.runs.metrics import average, backward_transfer, forgetting, forward_transfer
from clnp.storage.atomic import TEMPORARY, replace_file

from .launch import HEADER, Console, RunOptions, Source, data_directory
from .series import (
    SERIES,
    Member,
    add_seeds,
    begin_series,
    check_data,
    finished_results,
    plus_minus,
    read_series,
    read_study,
    run_members,
    run_of,
    spread,
    summarise,
    write_study,
)

COMPARISON = "compare.json"
TABLE = "comparison"
ALONE = "single"
"""The method that forward transfer is measured against."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title, its field in a `ComparisonRow`, and its digits."""

    title: str
    key: str
    digits: int

    def of(self, row: ComparisonRow) -> Spread | None:
        """Return the value of a row."""
        value: Spread | None = getattr(row, self.key)
        return value


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


def read_comparison(path: Path) -> SeriesConfig | None:
    """Return the config of the comparison at `path`; None if there is none."""
    return read_study(path, COMPARISON, "seeds", "methods")


def rows(path: Path) -> list[ComparisonRow]:
    """Return the results of each method of the comparison at `path` so far."""
    config = read_comparison(path)
    if config is None:
        raise RunError(f"{path} has no comparison any more. It was removed while it ran.")
    return rows_of({method: finished_results(path / method) for method in config.methods or ()})


def rows_of(results: Mapping[str, Sequence[RunResult]]) -> list[ComparisonRow]:
    """Return mean and deviation over the seeds of each method that has results, in every column.

    Forward transfer is known if each task has also been learned alone, with the same seed.
    """
    everyone = [result for own in results.values() for result in own]
    most = max((result.num_tasks for result in everyone), default=0)
    all_learned = all(len(result.scores) == most for result in everyone)
    alone = {r.seed: [row[-1] for row in r.scores] for r in results.get(ALONE, ())}
    found = []
    for method, own in results.items():
        if not own:
            continue
        values = [_values(result, alone.get(result.seed, [])) for result in own]
        columns = [column for column in COLUMNS if column is not LEARNED or not all_learned]
        spreads = {column.key: _spread([each[column.key] for each in values]) for column in columns}
        seeds = tuple(result.seed for result in own if result.seed is not None)
        found.append(ComparisonRow(method, seeds, **spreads))
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


def texts(found: Sequence[ComparisonRow]) -> dict[str, str]:
    """Return the table in every format, by the suffix of its file."""
    lines = _cells(found, "±")
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    markdown = "\n".join([head, "|" + "---|" * len(lines[0]), *rest])
    return {
        "txt": aligned(lines) + "\n",
        "csv": _csv(found),
        "md": markdown + "\n",
        "tex": _latex(_cells(found, r"\pm")),
    }


def _columns(found: Sequence[ComparisonRow]) -> list[Column]:
    """Return the columns that are shown."""
    counted = any(row.tasks is not None for row in found)
    return [column for column in COLUMNS if counted or column is not LEARNED]


def _cells(found: Sequence[ComparisonRow], sign: str) -> list[list[str]]:
    """Return the rows as text below a head; an unknown value is a dash."""
    columns = _columns(found)
    lines = [["method", *(column.title for column in columns), "seeds"]]
    for row in found:
        own = sign if len(row.seeds) > 1 else None  # One seed has no deviation.
        values = [(column.of(row), column.digits) for column in columns]
        cells = ["-" if v is None else plus_minus(v, digits, sign=own) for v, digits in values]
        lines.append([row.method, *cells, str(len(row.seeds))])
    return lines


def _csv(found: Sequence[ComparisonRow]) -> str:
    """Return means and deviations in separate columns, with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = _columns(found)
    keys = [f"{column.key}_{part}" for column in columns for part in ("mean", "std")]
    writer.writerow(["method", *keys, "seeds"])
    for row in found:
        cells: list[float | str] = []
        for value in (column.of(row) for column in columns):
            cells += ["", ""] if value is None else [value.mean, value.deviation]
        writer.writerow([row.method, *cells, len(row.seeds)])
    return text.getvalue()


def _latex(lines: Sequence[Sequence[str]]) -> str:
    """Return a tabular of booktabs, with numbers in math mode, where a minus is not a hyphen."""
    head, *rest = lines
    body = []
    for method, *cells, seeds in rest:
        numbers = ("--" if cell == "-" else f"${cell}$" for cell in cells)
        body.append(" & ".join([method.replace("_", r"\_"), *numbers, seeds]) + r" \\")
    columns = f"l{'r' * (len(head) - 1)}"
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def compare(
    source: Source,
    options: RunOptions,
    console: Console,
    *,
    methods: Sequence[str],
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    out: str | None,
) -> tuple[list[ComparisonRow], str]:
    """Run a recipe with several methods, in a new comparison or in one that gets more of them.

    If `num_seeds` is None, the seeds are those of the comparison, or one in a new comparison.
    """
    for method in methods:
        if method not in NAMES:
            raise RunError(unknown_name("method", method, NAMES))
    loaded = source.load(seed)
    path = expanded(out) if out is not None else Path("runs") / f"{loaded.name}-compared"
    with _locked(path):
        before = read_comparison(path)
        if before is None:
            _check_empty(path)
        known = before or SeriesConfig()
        first = loaded.recipe.seed
        config = SeriesConfig(
            format=FORMAT,
            recipe=loaded.name,
            seeds=tuple(range(first, first + (num_seeds or len(known.seeds) or 1))),
            search_once=search_once,
            data=data_directory(options.data),
            methods=tuple(dict.fromkeys([*(known.methods or ()), *methods])),
        )
        if before is not None:
            _check_same(path, before, config)
        for method in known.methods or ():
            file = path / method / RECIPE
            if not (_has_started(path / method, known.seeds) and file.is_file()):
                continue
            now = source.with_method(method).load(first).recipe
            if found := difference(now, Source(str(file)).load().recipe):
                raise _another(path, f"{found[0]} of its {method} is {found[1]}")
        text = to_toml(loaded.recipe, header=HEADER)
        return _run(path, config, methods, options, console, recipe=text)


def resume_comparison(
    path: Path, options: RunOptions, console: Console
) -> tuple[list[ComparisonRow], str]:
    """Start or resume all runs of a comparison that are not finished."""
    with _locked(path):
        config = read_comparison(path)
        if config is None:
            raise RunError(missing_run(path))
        return _run(path, config, config.methods or (), options, console)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the directory of a comparison, and remove a new one that stays empty."""
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


def _check_same(path: Path, before: SeriesConfig, now: SeriesConfig) -> None:
    """Raise a `RunError` if the comparison is another one; it may get more seeds and methods."""
    if before.recipe != now.recipe:
        raise _another(path, f"its recipe is {before.recipe}, not {now.recipe}")
    if before.seeds != now.seeds[: len(before.seeds)]:
        known, given = (" ".join(map(str, each.seeds)) for each in (before, now))
        raise _another(path, f"its seeds are {known or 'none'}, not {given}")
    if before.search_once != now.search_once:
        raise _another(path, f"its --search-once is {before.search_once}, not {now.search_once}")


def _another(path: Path, reason: str) -> RunError:
    return RunError(f"{path} contains another comparison: {reason}. Choose another directory.")


def _check_empty(path: Path) -> None:
    """Raise a `RunError` if the directory contains something else."""
    with writing(path):
        found = list(path.iterdir())
    if any(file.name != LOCK and TEMPORARY not in file.name for file in found):
        raise RunError(f"{path} is not empty. Choose another directory for the comparison.")


def _has_started(path: Path, seeds: Sequence[int]) -> bool:
    """Whether the series has a run."""
    return any(os.path.isfile(run_of(path, seed) / CONFIG) for seed in seeds)


def _run(
    path: Path,
    config: SeriesConfig,
    methods: Sequence[str],
    options: RunOptions,
    console: Console,
    *,
    recipe: str | None = None,
) -> tuple[list[ComparisonRow], str]:
    """Run all that is not finished of these methods, and return the table of all methods.

    The files of the table have everything that is finished, even if runs fail or are stopped. A
    comparison keeps its `recipe`, because the user may change the file before a method starts.
    """
    members = {
        method: [Member(path / method, seed, f"{method}, seed {seed}") for seed in config.seeds]
        for method in config.methods or ()
    }
    _check_data(config, {method: members[method] for method in methods}, members, options, console)
    write_study(path, COMPARISON, config, recipe)
    for method in methods:
        _write_method(path / method, config)
    wanted = [member for method in methods for member in members[method]]
    # If the first run searches the grid for the others, it has to come first.
    searching = [m for m in wanted if config.search_once and m.series.name == OURS]
    first = [member for member in searching if member.seed == config.seeds[0]]
    failed = None
    try:
        try:
            run_members(path, first, options, console)
        except RunError as error:
            failed = error
        left = [m for m in wanted if m not in (first if failed is None else searching)]
        run_members(path, left, options, console)
        if failed is not None:
            raise failed
    except BaseException:
        with suppress(RunError):  # The first error says more.
            _write_table(path)
        raise
    found = _write_table(path)
    for method in methods:
        summarise(path / method)
    text = f"{texts(found)['txt']}\nThe runs are in {path}, the table in {path / TABLE}.*"
    num_seeds = len(config.seeds)
    others = [m for m in config.methods or () if len(finished_results(path / m)) < num_seeds]
    if others:
        text += f"\nSome seeds of {', '.join(others)} are missing. Run them with "
        text += f"{resume_command(path)}."
    return found, text


def _write_method(path: Path, config: SeriesConfig) -> None:
    """Write the files of the series of a method, or restore those that it has lost."""
    series, started = read_series(path), _has_started(path, config.seeds)
    if series is not None and started:
        add_seeds(path, series, config.seeds)
        return
    # The first run started with the recipe of the series.
    places = [path / RECIPE, run_of(path, config.seeds[0]) / RECIPE] if started else []
    recipes = [place.read_text("utf-8") for place in places if place.is_file()]
    source = Source(str(path.parent / RECIPE)).with_method(path.name)
    text = recipes[0] if recipes else to_toml(source.load(config.seeds[0]).recipe, header=HEADER)
    series = replace(config, methods=(path.name,))
    if started:
        write_study(path, SERIES, series, text)
    else:
        begin_series(path, series, text)


def _check_data(
    config: SeriesConfig,
    wanted: Mapping[str, Sequence[Member]],
    members: Mapping[str, Sequence[Member]],
    options: RunOptions,
    console: Console,
) -> None:
    """Raise a `RunError` if new runs would get other data than those that have started."""
    started = [member for own in members.values() for member in own if member.started]
    directories = []
    for own in wanted.values():
        if not all(member.started for member in own):
            series = read_series(own[0].series) if any(m.started for m in own) else None
            directories.append(options.data or (series or config).data)
    if started:
        check_data(started[0].path, directories, console)


def _write_table(path: Path) -> list[ComparisonRow]:
    """Write the table of everything that is finished, and return it."""
    found = rows(path)
    with writing(path):
        replace_file(path / f"{TABLE}.json", (to_json(found, indent=1) + "\n").encode())
        for suffix, text in texts(found).items():
            replace_file(path / f"{TABLE}.{suffix}", text.encode())
    return found
