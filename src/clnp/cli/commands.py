"""The commands of `clnp` that learn: each returns the answer for `--json`, and the text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clnp.devices import find_device
from clnp.errors import RunError
from clnp.recipes.schema import to_toml
from clnp.records import FORMAT, SeriesConfig
from clnp.runs.directory import CONFIG, expanded, has_progress, writing
from clnp.studies.comparison import read_comparison, resume_comparison
from clnp.studies.launch import (
    HEADER,
    Console,
    RunOptions,
    Source,
    add_tasks,
    data_directory,
    resume_run,
    start_run,
)
from clnp.studies.series import (
    add_seeds,
    begin_series,
    read_series,
    resume_series,
    run_job,
    series_to_extend,
)
from clnp.terminal.summary import summary

Answer = tuple[Any, str]


def start(
    source: Source,
    options: RunOptions,
    console: Console,
    *,
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    out: str | None,
) -> Answer:
    """Run a recipe, once or with each of several seeds."""
    loaded = source.load(seed)
    first, short = loaded.recipe.seed, loaded.name
    find_device(options.device)  # Before any directory is made.
    if num_seeds is None:
        if search_once or options.num_jobs > 1:
            option = "--search-once" if search_once else "--jobs"
            raise RunError(
                f"{option} needs several runs. Give the number of seeds, for example --seeds 5."
            )
        with _directory(out, f"{short}-seed{first}") as path:
            resumes = os.path.isfile(path / CONFIG) and has_progress(path)
            run = add_tasks if resumes else start_run
            result, note = run(loaded, path, options, console)
            return result, f"{summary(result)}\n\n{note}"
    series = SeriesConfig(
        format=FORMAT,
        recipe=short,
        seeds=tuple(range(first, first + num_seeds)),
        search_once=search_once,
        data=data_directory(options.data),
    )
    with _directory(out, f"{short}-{num_seeds}seeds") as path:
        before = series_to_extend(path, series, loaded.recipe)
        if before is not None:
            add_seeds(path, before, series.seeds)
        else:
            begin_series(path, series, to_toml(loaded.recipe, header=HEADER))
    return resume_series(path, options, console, source=source)


def resume(path: str, options: RunOptions, console: Console, *, job: str | None = None) -> Answer:
    """Resume a run, a series or a comparison; or be the `job` of one of its runs."""
    run = expanded(path)
    if job is not None:
        run_job(run, options, console, title=job)
        return None, ""
    if read_comparison(run) is not None:
        return resume_comparison(run, options, console)
    if read_series(run) is not None:
        return resume_series(run, options, console)
    if options.num_jobs > 1:
        raise RunError(f"--jobs needs several runs, and {path} is one. Resume it without --jobs.")
    result, note = resume_run(run, options, console)
    return result, f"{summary(result)}\n\n{note}"


@contextmanager
def _directory(out: str | None, stem: str) -> Iterator[Path]:
    """Yield the given directory, or a new one, which is removed if it stays empty."""
    if out is not None:
        yield expanded(out)
        return
    folder = Path("runs")
    is_new = not folder.exists()
    path = _new_directory(folder, stem)
    try:
        yield path
    finally:
        with suppress(OSError):  # It is not empty.
            path.rmdir()
            if is_new:
                folder.rmdir()


def _new_directory(folder: Path, stem: str) -> Path:
    """Make a directory that did not exist; a command at the same time gets another one."""
    path, number = folder / stem, 1
    with writing(path):
        while True:
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                if not os.path.lexists(path):
                    raise  # The folder cannot be made.
            number += 1
            path = folder / f"{stem}-{number}"
