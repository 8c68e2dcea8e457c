"""One run from the command line: its recipe, its options, and how a signal stops it."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from clnp.devices import find_device
from clnp.errors import RunError, StoppedError
from clnp.plain import to_json
from clnp.recipes import recipe
from clnp.recipes.build import experiment_of
from clnp.recipes.recipe import LoadedRecipe, recipe_of
from clnp.recipes.schema import to_toml
from clnp.records import RunResult
from clnp.runs.directory import (
    CONFIG,
    RECIPE,
    Run,
    already_a_run,
    command,
    expanded,
    has_progress,
    last_environment,
    read_config,
    read_result,
    reading,
    resume_command,
)
from clnp.runs.experiment import Experiment, RunLoop
from clnp.runs.trackers import Trackers, require, track_finished_run
from clnp.trackers.named import trackers_named

from .console import Console
from .jobs import interrupt_at_once, on_stop

HEADER = "A recipe with every default spelt out: clnp run FILE runs it again."


@dataclass(frozen=True)
class Source:
    """The name or file of a recipe, and assignments that change it."""

    name: str
    assignments: tuple[str, ...] = ()

    def load(self, seed: int | None = None) -> LoadedRecipe:
        """Return the recipe, with another seed if one is given."""
        seeded = () if seed is None else (f"seed={seed}",)
        return recipe.load(self.name, (*self.assignments, *seeded))

    def with_method(self, name: str) -> "Source":
        """Return the same recipe with another method."""
        return replace(self, assignments=(*self.assignments, f'method="{name}"'))


@dataclass(frozen=True)
class RunOptions:
    """The options of a command that do not belong to the experiment, and what shows progress.

    `num_jobs` is the number of runs at the same time.
    """

    device: str | None = None
    data: str | None = None
    checkpoint_seconds: float = 60.0
    trackers: tuple[str, ...] = ()
    quiet: bool = False
    num_jobs: int = 1
    console: Console = field(default_factory=Console)

    def __post_init__(self) -> None:
        for name in self.trackers:
            require(name, name)

    def arguments(self) -> list[str]:
        """Return the options of the command line for one run."""
        given = {"device": self.device, "data": self.data}
        return [
            f"--checkpoint-every={self.checkpoint_seconds!r}",
            *(f"--{name}={value}" for name, value in given.items() if value is not None),
            *(f"--{name}" for name in self.trackers),
            *(["--quiet"] if self.quiet else []),
        ]


def start_run(loaded: LoadedRecipe, path: Path, options: RunOptions) -> tuple[RunResult, str]:
    """Run a recipe in a new directory; return the result, and a note for the user."""
    device = find_device(options.device)
    experiment = experiment_of(loaded, device, options.data, on_download=options.console.download)
    config = replace(experiment.describe(), recipe=loaded.name, data=data_directory(options.data))
    files = {
        CONFIG: to_json(config, indent=1),
        RECIPE: to_toml(loaded.recipe, header=HEADER),
    }
    if os.path.isfile(path / CONFIG) and not has_progress(path):
        with Run.open(path) as left:
            left.withdraw()
    with Run.create(path, files) as run:
        return _run(experiment, run, options)


def add_tasks(loaded: LoadedRecipe, path: Path, options: RunOptions) -> tuple[RunResult, str]:
    """Resume a run with a recipe that differs from its own in tasks that have not ended.

    Any other recipe is refused, and so is the run's own: `clnp resume` is for that.
    """
    experiment = _experiment(loaded, path, options)
    known = read_config(path)
    config = replace(experiment.describe(), recipe=known.recipe, data=known.data)
    if to_json(config) == to_json(known):
        Run.open(path).close()  # Resuming one in use would fail.
        raise RunError(already_a_run(path))
    with Run.open(path) as run:
        changed = to_toml(loaded.recipe, header=HEADER)
        return _run(experiment, run, options, recipe=changed)


def resume_run(path: Path, options: RunOptions) -> tuple[RunResult, str]:
    """Resume a run that was stopped or killed. A finished one is sent to trackers, if any."""
    read_config(path)
    result = read_result(path)
    if result is not None and result.finished:
        note = f"{path} was already finished."
        if options.trackers:
            note += _send_finished(path, options)
        return result, note
    experiment = _experiment(recipe_of(path), path, options)
    with Run.open(path) as run:
        return _run(experiment, run, options)


def _experiment(loaded: LoadedRecipe, path: Path, options: RunOptions) -> Experiment:
    """Return the experiment of a recipe, on the device and with the data of the run at `path`."""
    config, before = read_config(path), last_environment(path)
    device = find_device(options.device or before.device)
    data, show = options.data or config.data, options.console.download
    return experiment_of(loaded, device, data, on_download=show)


def _run(
    experiment: Experiment,
    run: Run,
    options: RunOptions,
    *,
    recipe: str | None = None,
) -> tuple[RunResult, str]:
    """Run an experiment until it ends or a signal stops it; `recipe` replaces that of the run."""
    trackers = Trackers(trackers_named(options.trackers, quiet=options.quiet), options.console.warn)
    seconds, console = options.checkpoint_seconds, options.console
    loop = RunLoop(experiment, run, seconds, console.show, trackers=trackers, recipe=recipe)

    console.begin(run.path)

    def stop() -> None:
        interrupt_at_once()  # At the second signal.
        loop.stop()
        console.say("Stopping after this epoch. Press Ctrl-C again to stop now.")

    try:
        with on_stop(stop), _warnings_on(console):
            result = loop.run_all()
    except KeyboardInterrupt:
        raise StoppedError(
            f"Stopped within an epoch. The last checkpoint is intact: resume with "
            f"{resume_command(run.path)}."
        ) from None
    console.close()
    note = f"The run is in {run.path}."
    if experiment.baseline is None:
        note += f" Verify it at any time with `{command('verify', run.path)}`."
    return result, note


@contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    """Show Python warnings in lines of the console, without the place in this package."""
    before = warnings.showwarning
    warnings.showwarning = lambda message, *where: console.warn(f"warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = before


def _send_finished(path: Path, options: RunOptions) -> str:
    """Send a finished run to the trackers, and return a sentence about it."""
    failures: list[str] = []
    with reading(path):
        trackers = trackers_named(options.trackers, quiet=options.quiet)
        track_finished_run(path, trackers, failures.append)
    for text in failures:
        options.console.warn(text)
    names = ", ".join(options.trackers)
    return f" Not all of it was sent to {names}." if failures else f" It was sent to {names}."


def data_directory(given: str | None) -> str | None:
    """Return the directory of data sets as an absolute path; None for the default."""
    data = given or os.environ.get("CLNP_DATA")
    return None if data is None else str(expanded(data).absolute())
