"""Several methods on the same tasks, network and seeds, and a table of their results.

A comparison also has

comparison.json         a list of `ComparisonRow`: the table, also as .txt, .csv, .md and .tex

and, if methods were tuned, their trials (`tuning.py`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clnp.errors import RunError, unknown_name
from clnp.methods.registry import NAMES
from clnp.plain import to_json
from clnp.recipes.recipe import difference
from clnp.recipes.schema import to_toml
from clnp.records import FORMAT, OURS, ComparisonRow, SeriesConfig
from clnp.runs.directory import LOCK, RECIPE, expanded, missing_run, resume_command, writing
from clnp.storage.atomic import TEMPORARY, replace_file

from .launch import HEADER, RunOptions, Source, data_directory
from .series import another_study, begin_series, check_data, run_members, summarise
from .study import (
    COMPARISON,
    SERIES,
    finished_results,
    has_started,
    in_use,
    kept,
    members_of,
    read_comparison,
    read_series,
    settings_sources,
    write_study,
)
from .summaries import rows_of, texts
from .tuning import BUDGET, TUNED, check_tuning, tune, tuned_source, tuned_text

TABLE = "comparison"


def compare(
    source: Source,
    options: RunOptions,
    *,
    methods: Sequence[str],
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    tuned: Sequence[str],
    budget: int | None,
    out: str | None,
) -> tuple[list[ComparisonRow], str]:
    """Run a recipe with several methods, in a new comparison or in one that gets more of them.

    If `num_seeds` is None, the seeds are those of the comparison, or one in a new comparison. The
    `tuned` methods are added to `methods`; each has a `budget` of trials.
    """
    methods = tuple(dict.fromkeys([*methods, *tuned]))
    unknown = [unknown_name("method", each, NAMES) for each in methods if each not in NAMES]
    if unknown:
        text = "; ".join(each.partition(" Known: ")[0].rstrip(".") for each in unknown)
        end = "" if text.endswith("?") else "."
        raise RunError(f"{text}{end} Known: {', '.join(NAMES)}")
    loaded = source.load(seed)
    path = expanded(out) if out is not None else Path("runs") / f"{loaded.name}-compared"
    with in_use(path):
        before = read_comparison(path)
        if before is None:
            _check_empty(path)
        known = before or SeriesConfig()
        first, own = loaded.recipe.seed, known.methods or ()
        config = SeriesConfig(
            format=FORMAT,
            recipe=loaded.name,
            seeds=tuple(range(first, first + (num_seeds or len(known.seeds) or 1))),
            search_once=search_once,
            data=data_directory(options.data) or known.data,
            methods=tuple(dict.fromkeys([*own, *methods])),
        )
        if searched := tuple(dict.fromkeys([*(known.tuned or ()), *tuned])):
            config = replace(config, tuned=searched, budget=budget or known.budget or BUDGET)
        if before is not None:
            _check_same(path, before, config)
        check_tuning(path, config)
        for method in own:
            if has_started(path / method, known.seeds):
                now = tuned_source(source, path, method).load(first).recipe
                if found := difference(now, Source(str(path / method / RECIPE)).load().recipe):
                    reason = f"{found[0]} of its {method} is {found[1]}"
                    raise another_study(path, "comparison", reason)
        text = to_toml(loaded.recipe, header=HEADER)
        return _run(path, config, methods, options, recipe=text)


def resume_comparison(path: Path, options: RunOptions) -> tuple[list[ComparisonRow], str]:
    """Start or resume all runs of a comparison that are not finished."""
    with in_use(path):
        config = read_comparison(path)
        if config is None:
            raise RunError(missing_run(path))
        return _run(path, config, config.methods or (), options)


def _check_same(path: Path, before: SeriesConfig, now: SeriesConfig) -> None:
    """Raise a `RunError` if the comparison is another one; it may get more seeds and methods."""
    reason = ""
    if before.recipe != now.recipe:
        reason = f"its recipe is {before.recipe}, not {now.recipe}"
    elif before.seeds != now.seeds[: len(before.seeds)]:
        known, given = (" ".join(map(str, each.seeds)) for each in (before, now))
        reason = f"its seeds are {known}, not {given}"
    elif before.search_once != now.search_once:
        reason = f"its --search-once is {before.search_once}, not {now.search_once}"
    if reason:
        raise another_study(path, "comparison", reason)


def _check_empty(path: Path) -> None:
    """Raise a `RunError` if the directory contains something else."""
    with writing(path):
        found = list(path.iterdir())
    if any(file.name != LOCK and TEMPORARY not in file.name for file in found):
        raise RunError(f"{path} is not empty. Choose another directory for the comparison.")


def _run(
    path: Path,
    config: SeriesConfig,
    methods: Sequence[str],
    options: RunOptions,
    *,
    recipe: str | None = None,
) -> tuple[list[ComparisonRow], str]:
    """Run all that is not finished of these methods, and return the table of all, and a note.

    The files of the table have everything that is finished, even if runs fail or are stopped. A
    comparison keeps its `recipe`, because the user may change the file before a method starts.
    """
    every, options = config.methods or (), replace(options, data=options.data or config.data)
    wanted = members_of(path, config, methods)
    check_data(wanted, members_of(path, config, every), options)
    write_study(path / COMPARISON, config, recipe)
    tune(path, config, options)
    for method in methods:
        _write_method(path / method, config)
    # If the first run searches the grid for the others, it has to come first.
    searching = [m for m in wanted if config.search_once and m.series.name == OURS]
    left, failed = [m for m in wanted if m not in searching[:1]], None
    files = [path / method / name for method in every for name in (SERIES, RECIPE)]
    try:
        with kept(path / COMPARISON, path / RECIPE, *files):
            try:
                run_members(path, searching[:1], options)
            except RunError as error:
                left, failed = [m for m in left if m not in searching], error
            run_members(path, left, options)
            if failed is not None:
                raise failed
    except BaseException:
        with suppress(RunError):  # The first error says more.
            _write_table(path, every)
        raise
    found = _write_table(path, every)
    for method in methods:
        summarise(path / method)
    note = f"The runs are in {path}, the table in {path / TABLE}.*"
    if config.tuned:
        note += f"\n\n{tuned_text(path, config.tuned)}\nThese settings are in {path / TUNED}."
    num_seeds = len(config.seeds)
    others = [method for method in every if len(finished_results(path / method)) < num_seeds]
    if others:
        note += f"\nSome seeds of {', '.join(others)} are missing. Run them with "
        note += f"{resume_command(path)}."
    return found, note


def _write_method(path: Path, config: SeriesConfig) -> None:
    """Write the files of the series of a method, or add seeds to one that has started."""
    series = read_series(path)
    if series is not None and has_started(path, series.seeds):
        write_study(path / SERIES, replace(series, seeds=config.seeds))
    else:
        source = tuned_source(Source(str(path.parent / RECIPE)), path.parent, path.name)
        recipe = source.load(config.seeds[0]).recipe
        own = replace(config, methods=(path.name,), tuned=None, budget=None)
        begin_series(path, replace(own, settings=recipe.settings_source), recipe)


def rows(path: Path, methods: Sequence[str]) -> list[ComparisonRow]:
    """Return the results of these methods of the comparison at `path` so far."""
    results = {method: finished_results(path / method) for method in methods}
    return rows_of(results, settings_sources(path, methods))


def _write_table(path: Path, methods: Sequence[str]) -> list[ComparisonRow]:
    """Write the table of everything that is finished, and return it."""
    found = rows(path, methods)
    with writing(path):
        replace_file(path / f"{TABLE}.json", (to_json(found, indent=1) + "\n").encode())
        for suffix, text in texts(found).items():
            replace_file(path / f"{TABLE}.{suffix}", text.encode())
    return found
