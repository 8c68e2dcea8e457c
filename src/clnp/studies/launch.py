"""One run from the command line: where its recipe comes from, and how it is carried out."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from clnp.devices import find_device, use_threads
from clnp.errors import RunError, StoppedError
from clnp.recipes import bundled, recipe
from clnp.recipes.build import experiment_of
from clnp.recipes.recipe import LoadedRecipe, recipe_of
from clnp.recipes.schema import to_toml
from clnp.runs.directory import (
    CONFIG,
    RECIPE,
    Run,
    command,
    expanded,
    has_learnt,
    last_environment,
    read_config,
    read_result,
    reading,
    taken,
    to_json,
)
from clnp.runs.experiment import Course, Experiment
from clnp.runs.trackers import Audience, tell_again
from clnp.terminal.progress import Silence
from clnp.terminal.summary import summary
from clnp.trackers.named import check_installed, trackers_named

from .jobs import stop_signals

Answer = tuple[Any, str]
HEADER = "A recipe with every default spelt out: clnp run FILE runs it again."


@dataclass(frozen=True)
class Source:
    """Where the recipe of a run comes from, and what is changed in it."""

    name: str
    assignments: tuple[str, ...] = ()

    def load(self, seed: int | None = None) -> LoadedRecipe:
        """The recipe, with another seed if one is given."""
        seeded = () if seed is None else (f"seed={seed}",)
        return recipe.load(self.name, (*self.assignments, *seeded))

    def with_method(self, name: str) -> "Source":
        """The same recipe with another method."""
        return replace(self, assignments=(*self.assignments, f'method="{name}"'))

    def absolute(self) -> "Source":
        """The same, to be found from any directory."""
        is_file = self.name not in bundled.names()
        return replace(self, name=str(expanded(self.name).absolute()) if is_file else self.name)

    def to_json(self) -> list[Any]:
        """Plain data that `from_json` reads back."""
        return [self.name, list(self.assignments)]

    @staticmethod
    def from_json(data: Sequence[Any]) -> "Source":
        """The source that `to_json` described."""
        return Source(data[0], tuple(data[1]))


@dataclass(frozen=True)
class Circumstances:
    """On what, from where, how often saved and who is told: what is not of an experiment."""

    device: str | None = None
    data: str | None = None
    checkpoint_seconds: float = 60.0
    trackers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_installed(self.trackers)


def begin(loaded: LoadedRecipe, path: Path, place: Circumstances, console: Silence) -> Answer:
    """Carry out a recipe in a new directory, or in that of a run which has learnt nothing."""
    device, data = find_device(place.device), place.data
    experiment = experiment_of(loaded, device, data, on_download=console.download)
    config = {**experiment.to_json(), "recipe": loaded.name, "data": data_of(data)}
    files = {CONFIG: to_json(config, indent=1), RECIPE: to_toml(loaded.recipe, header=HEADER)}
    if os.path.isfile(path / CONFIG) and not has_learnt(path):
        with Run.open(path) as left:
            left.withdraw()
    with Run.create(path, files) as run:
        return carry_out(experiment, run, place, console)


def add_tasks(loaded: LoadedRecipe, path: Path, place: Circumstances, console: Silence) -> Answer:
    """Go on with a run by a recipe that is its own but for tasks which have not ended.

    Any other is refused, and so is the run's own: that is what `clnp resume` is for.
    """
    experiment = _taken_up(loaded, path, place, console)
    known = read_config(path)
    if to_json({**known, **experiment.to_json()}) == to_json(known):
        raise RunError(taken(path))
    with Run.open(path) as run:
        return carry_out(experiment, run, place, console, loaded=loaded)


def go_on_with(path: Path, place: Circumstances, console: Silence) -> Answer:
    """Go on with a run that was stopped, killed or lost its machine."""
    read_config(path)
    result = read_result(path)
    with reading(path):
        if result.get("finished"):
            left = "nothing is left to do"
            if place.trackers:
                left = track_finished(path, place, console)
            return result, f"{path} is finished; {left}.\n\n{summary(result)}"
    experiment = _taken_up(recipe_of(path), path, place, console)
    with Run.open(path) as run:
        return carry_out(experiment, run, place, console)


def _taken_up(
    loaded: LoadedRecipe, path: Path, place: Circumstances, console: Silence
) -> Experiment:
    """The experiment of a recipe, where the run at `path` has been before and with its data."""
    config, before = read_config(path), last_environment(path)
    with reading(path):
        device = find_device(place.device or before.get("device"))
    use_threads(device, before)
    data = place.data or config.get("data")
    return experiment_of(loaded, device, data, on_download=console.download)


def carry_out(
    experiment: Experiment,
    run: Run,
    place: Circumstances,
    console: Silence,
    *,
    loaded: LoadedRecipe | None = None,
) -> Answer:
    """Follow the course of an experiment; a signal makes it save and stop.

    Where it adds tasks to the run, the recipe that is given becomes the run's.
    """
    trackers = trackers_named(place.trackers, quiet=type(console) is Silence)
    audience = Audience(trackers, lambda text: warn(text, console))
    recipe = None if loaded is None else to_toml(loaded.recipe, header=HEADER)
    seconds, show = place.checkpoint_seconds, console.show
    course = Course(experiment, run, seconds, show, audience=audience, recipe=recipe)
    try:
        with stopping(course, console):
            result = course.follow()
    except KeyboardInterrupt:
        again = command("resume", run.path)
        raise StoppedError(
            f"stopped at once; what was saved last is whole, go on with: {again}"
        ) from None
    console.close()
    closing = f"The run is in {run.path}."
    if experiment.baseline is None:
        closing += f" Check it again at any time: {command('verify', run.path)}"
    return result, f"{summary(result)}\n\n{closing}"


def track_finished(path: Path, place: Circumstances, console: Silence) -> str:
    """Tell the trackers that are asked for of a run that is finished; what came of it."""
    failures: list[str] = []
    trackers = trackers_named(place.trackers, quiet=type(console) is Silence)
    tell_again(path, trackers, failures.append)
    for text in failures:
        warn(text, console)
    names = ", ".join(place.trackers)
    return f"not all of it could be told to {names}" if failures else f"it was told to {names}"


def warn(text: str, console: Silence) -> None:
    """Show a line that the user must see even if no progress is shown."""
    if type(console) is Silence:
        print(f"clnp: {text}", file=sys.stderr, flush=True)
    console.say(text)


@contextmanager
def stopping(course: Course, console: Silence) -> Iterator[None]:
    """Let the first signal to stop end the run after the current epoch, the second at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.default_int_handler)
        course.stop()
        console.say("stopping after this epoch; once more to stop at once")

    # What is ignored stays so: nohup ignores SIGHUP.
    before = {
        each: signal.getsignal(each)
        for each in stop_signals()
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def data_of(given: str | None) -> str | None:
    """Where data is looked for, such that it is found from any directory."""
    data = given or os.environ.get("CLNP_DATA")
    return None if data is None else str(expanded(data).absolute())
