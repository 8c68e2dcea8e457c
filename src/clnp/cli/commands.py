"""The commands of `clnp`: each returns the answer for `--json`, and the text.

They import what they need when they are called: PyTorch takes seconds.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clnp.checks import THREADS, optional
from clnp.errors import FAILURE, STOPPED, ArgumentError, RunError
from clnp.recipes import bundled
from clnp.runs.directory import CONFIG, expanded, has_progress, writing
from clnp.studies.console import Console
from clnp.studies.jobs import stop_with_parent
from clnp.terminal.progress import Lines, Live
from clnp.text import Styled, printable

if TYPE_CHECKING:
    from clnp.records import ComparisonRow, RunResult
    from clnp.studies.launch import RunOptions, Source

Answer = tuple[object, str]


def demo(options: argparse.Namespace) -> Answer:
    """Run the recipe of the demo."""
    options.recipe = "permuted-digits"
    return run(options)


def run(options: argparse.Namespace) -> Answer:
    """Run a recipe, once or with each of several seeds."""
    from clnp.devices import find_device
    from clnp.records import FORMAT, SeriesConfig
    from clnp.studies import launch, series, study

    source, place = _source(options), _run_options(options)
    with closing(place.console):
        loaded = source.load(options.seed)
        first, short = loaded.recipe.seed, loaded.name
        find_device(place.device)  # Before any directory is made.
        if options.seeds is None:
            if options.search_once or options.jobs > 1:
                option = "--search-once" if options.search_once else "--jobs"
                raise RunError(
                    f"{option} needs several runs. Give the number of seeds, for example --seeds 5."
                )
            with _directory(options.out, f"{short}-seed{first}") as path:
                resumes = os.path.isfile(path / CONFIG) and has_progress(path)
                learn = launch.add_tasks if resumes else launch.start_run
                return _summary(*learn(loaded, path, place))
        config = SeriesConfig(
            format=FORMAT,
            recipe=short,
            seeds=tuple(range(first, first + options.seeds)),
            search_once=options.search_once,
            data=launch.data_directory(options.data),
        )
        with _directory(options.out, f"{short}-{options.seeds}seeds") as path, study.in_use(path):
            series.write_series(path, config, loaded.recipe)
            return series.resume_series(path, place, source=source)


def compare(options: argparse.Namespace) -> Answer:
    """Run a recipe with several methods."""
    from clnp.studies import comparison

    if options.budget is not None and not options.tuned:
        raise RunError("--budget is for methods to tune. Name them with --tune, or leave it out.")
    place = _run_options(options)
    with closing(place.console):
        return _compared(
            *comparison.compare(
                _source(options, method="--methods"),
                place,
                methods=options.methods,
                seed=options.seed,
                num_seeds=options.seeds,
                search_once=options.search_once,
                tuned=options.tuned,
                budget=options.budget,
                out=options.out,
            )
        )


def resume(options: argparse.Namespace) -> Answer:
    """Resume a run, a series or a comparison; or be the job of one of its runs."""
    if options.job is not None:
        stop_with_parent()
    from clnp.studies import comparison, launch, series, study

    path, place = expanded(options.run), _run_options(options)
    with closing(place.console):
        if options.job is not None:
            series.run_job(path, place, title=options.job)
            return None, ""
        if study.read_comparison(path) is not None:
            return _compared(*comparison.resume_comparison(path, place))
        if study.read_series(path) is not None:
            return series.resume_series(path, place)
        if options.jobs > 1:
            raise RunError(
                f"--jobs needs several runs, and {path} is one. Resume it without --jobs."
            )
        return _summary(*launch.resume_run(path, place))


def _compared(rows: "list[ComparisonRow]", note: str) -> Answer:
    from clnp.terminal.overview import compared
    from clnp.terminal.tables import screen_of

    screen = screen_of(sys.stdout)
    return rows, _with_note(compared(rows, screen), note, styled=screen.styled)


def _with_note(text: str, note: str, *, styled: bool) -> str:
    """Return the text, which has styles or none, with a note below it."""
    return Styled(f"{text}\n\n{printable(note)}") if styled else f"{text}\n\n{note}"


def _summary(result: "RunResult", note: str) -> Answer:
    from clnp.terminal.summary import summary
    from clnp.terminal.tables import UNLIMITED, screen_of

    screen = replace(screen_of(sys.stdout), height=UNLIMITED)
    return result, _with_note(summary(result, screen), note, styled=screen.styled)


def _source(options: argparse.Namespace, **instead: str) -> "Source":
    """Return the recipe and its --set assignments; refuse keys that another option sets."""
    from clnp.studies.launch import Source

    given = {name: getattr(options, name) for name in ("seed", "threads")}
    first = {**instead, **{name: f"--{name}" for name in given if given[name] is not None}}
    for text in options.assignments:
        if (key := text.partition("=")[0].strip()) in first:
            raise ArgumentError(f"--set {text} would have no effect. Use {first[key]} instead.")
    num = optional(THREADS)("--threads", options.threads)
    threads = () if num is None else (f"threads={num}",)
    return Source(options.recipe, (*options.assignments, *threads))


def _data(options: argparse.Namespace) -> str | None:
    """Return the directory of data sets, which must exist: a misspelt one would be a new one."""
    if options.data is not None and not os.path.isdir(expanded(options.data)):
        raise ArgumentError(
            f"--data {options.data} is not a directory. Create it, or leave out --data."
        )
    return str(options.data) if options.data is not None else None


def _run_options(options: argparse.Namespace) -> "RunOptions":
    from clnp.studies.launch import RunOptions

    return RunOptions(
        device=options.device,
        data=_data(options),
        checkpoint_seconds=options.checkpoint_every,
        trackers=tuple(dict.fromkeys(options.trackers or ())),
        quiet=options.quiet,
        num_jobs=options.jobs,
        console=_console(options),
    )


def _console(options: argparse.Namespace) -> Console:
    """Return a screen on a terminal and lines in a log, on stderr: stdout has the answer only."""
    if options.quiet:
        return Console()
    if options.job is not None:
        return Lines(sys.stderr, label=f"{options.job}: ")
    return Live(sys.stderr) if sys.stderr.isatty() else Lines(sys.stderr)


@contextmanager
def _directory(out: str | None, stem: str) -> Iterator[Path]:
    """Yield the given directory, or a new one, which is removed if it stays empty."""
    if out is not None:
        yield expanded(out)
        return
    path = _new_directory(Path("runs"), stem)
    try:
        yield path
    finally:
        with suppress(OSError):  # It is not empty.
            path.rmdir()
            path.parent.rmdir()


def _new_directory(folder: Path, stem: str) -> Path:
    """Make a directory that does not exist. Another command at the same time gets another one."""
    path, number = folder / stem, 1
    with writing(path):
        folder.mkdir(exist_ok=True)
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
                path = folder / f"{stem}-{number}"


def inspect(options: argparse.Namespace) -> Answer:
    """Show a run on one screen."""
    from clnp.terminal import overview

    return overview.inspect(options.run, in_full=options.all)


def watch(options: argparse.Namespace) -> Answer:
    """Follow a run."""
    from clnp.terminal.watch import watch

    try:
        scene, text = watch(
            options.run, once=options.once, interval=options.interval, quiet=options.json
        )
    except KeyboardInterrupt:
        raise SystemExit(STOPPED) from None  # The run continues.
    except BrokenPipeError:  # The reader, such as `head`, has ended.
        drop_stdout()
        raise SystemExit(0) from None
    options.code = {"failed": FAILURE, "stopped": STOPPED}.get(scene.state, 0)
    return scene.to_plain(), text


def drop_stdout() -> None:
    """Discard what is left of the output. Python would try to print it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def verify(options: argparse.Namespace) -> Answer:
    """Verify a run."""
    from clnp.studies.verify import verify_at

    return verify_at(options.run, device=options.device, data=_data(options))


def export(options: argparse.Namespace) -> Answer:
    """Export ended tasks of a run."""
    from clnp.exports import from_run

    return from_run.export(
        options.run,
        tasks=None if options.all else options.tasks,
        out=options.out,
        kind=options.format,
        bare=options.bare,
        device=options.device,
        data=_data(options),
    )


def report(options: argparse.Namespace) -> Answer:
    """Write the report of runs."""
    from clnp.report.write import FIGURES, write_report

    page, *figures = write_report(options.runs, out=options.out)
    kinds = sorted({file.suffix[1:] for file in figures})
    shown = f"\nThe figures are in {page.parent / FIGURES}: {', '.join(kinds)}." if figures else ""
    files = [str(file) for file in (page, *figures)]
    return {"page": str(page), "files": files}, f"The report is in {page}.{shown}"


def recipes(options: argparse.Namespace) -> Answer:
    """List recipes, print one, or explain the keys."""
    if options.keys and options.recipe is not None:
        raise ArgumentError(f"--keys explains the keys of all recipes. Leave out {options.recipe}.")
    if options.keys:
        from clnp.recipes.reference import reference, rows

        return rows(), reference()
    if options.recipe is not None:
        text = bundled.text(options.recipe)
        return {"name": options.recipe, "text": text}, text.rstrip()
    found = {name: bundled.description(name) for name in bundled.names()}
    width = max(map(len, found))
    return found, "\n".join(f"{name:{width}}  {line}" for name, line in found.items())
