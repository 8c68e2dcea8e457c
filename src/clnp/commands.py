"""What the commands of `clnp` do. Each gives back what `--json` prints, and text for the others."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from . import recipe
from .assembly import experiment_of
from .atomic import replace_file
from .console import Silence
from .devices import find_device, use_threads
from .errors import RunError, StoppedError
from .experiment import Course, Experiment
from .recipe import LoadedRecipe, recipe_of
from .runs import (
    CONFIG,
    FORMAT,
    RECIPE,
    RESULT,
    Run,
    command,
    expanded,
    last_environment,
    read_config,
    read_json,
    reading,
    to_json,
    writing,
)
from .schema import to_toml
from .series import (
    SERIES,
    SUMMARY,
    aggregate,
    choices,
    described,
    finished_results,
    read_series,
    run_of,
)
from .summary import summary

Answer = tuple[Any, str]


def start(
    name: str,
    *,
    assignments: list[str],
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    device: str | None,
    out: str | None,
    data: str | None,
    checkpoint_seconds: float,
    console: Silence,
) -> Answer:
    """Begin a run of a recipe, or one for each of several seeds, and carry it out."""
    if seed is not None:
        assignments = [*assignments, f"seed={seed}"]
    loaded = recipe.load(name, assignments)
    first, short = loaded.recipe.seed, loaded.name
    chosen = find_device(device)
    if search_once and num_seeds is None:
        raise RunError("--search-once is for a series: name the number of seeds, --seeds 5")
    if num_seeds is None:
        path = expanded(out) if out is not None else _unused(Path("runs"), f"{short}-seed{first}")
        with _begin(loaded, path, chosen, data, console) as (experiment, run):
            return carry_out(experiment, run, checkpoint_seconds, console)
    path = expanded(out) if out is not None else _unused(Path("runs"), f"{short}-{num_seeds}seeds")
    seeds = list(range(first, first + num_seeds))
    series = {"format": FORMAT, "recipe": short, "seeds": seeds, "search_once": search_once}
    _begin_series(path, series)
    for each in seeds:
        seeded = _with_choices(recipe.load(name, [*assignments, f"seed={each}"]), path)
        console.say(f"seed {each}, {each - first + 1} of {num_seeds}")
        with _begin(seeded, run_of(path, each), chosen, data, console) as (experiment, run):
            try:
                carry_out(experiment, run, checkpoint_seconds, console)
            except StoppedError as error:
                raise _stopped_series(path) from error
    return _finish_series(path)


def _with_choices(loaded: LoadedRecipe, path: Path) -> LoadedRecipe:
    """The recipe with what the first run of the series chose, if that searches for all of them."""
    if not read_series(path).get("search_once"):
        return loaded
    learner = loaded.recipe.learner.with_choices(choices(path))
    return replace(loaded, recipe=replace(loaded.recipe, learner=learner))


@contextmanager
def _begin(
    loaded: LoadedRecipe, path: Path, device: torch.device, data: str | None, console: Silence
) -> Iterator[tuple[Experiment, Run]]:
    """A new run of a recipe, in its directory."""
    experiment = experiment_of(loaded, device, data, on_download=console.download)
    header = "A recipe with every default spelt out: clnp run FILE runs it again."
    where = _absolute(data or os.environ.get("CLNP_DATA"))
    config = {**experiment.to_json(), "recipe": loaded.name, "data": where}
    files = {CONFIG: to_json(config, indent=1), RECIPE: to_toml(loaded.recipe, header=header)}
    with Run.create(path, files) as run:
        yield experiment, run


def _begin_series(path: Path, series: dict[str, Any]) -> None:
    with writing(path):
        # One that was killed before its first run had begun may be begun again.
        found = list(path.iterdir()) if path.exists() else []
        own = all(each.name == SERIES or each.name.startswith("seed") for each in found)
        if not own or any((each / CONFIG).exists() for each in found):
            raise RunError(
                f"{path} is not empty; go on with it, {command('resume', path)}, or give another "
                "directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / SERIES, to_json(series, indent=1).encode())


def _finish_series(path: Path) -> Answer:
    summary = aggregate(finished_results(path))
    with writing(path):
        replace_file(path / SUMMARY, (to_json(summary, indent=1) + "\n").encode())
    return summary, f"{described(summary)}\n\nThe runs are in {path}."


def _stopped_series(path: Path) -> StoppedError:
    return StoppedError(f"stopped; go on with: {command('resume', path)}")


def _resume_series(
    path: Path,
    *,
    device: str | None,
    data: str | None,
    checkpoint_seconds: float,
    console: Silence,
) -> Answer:
    """Go on with the runs of a series that are not finished; those that never began are begun."""
    seeds = read_series(path)["seeds"]
    begun = [seed for seed in seeds if (run_of(path, seed) / CONFIG).is_file()]
    if not begun:
        raise RunError(f"{path}: none of its runs has begun; begin the series again")
    config = read_config(run_of(path, begun[0]))
    for seed in seeds:
        place = run_of(path, seed)
        console.say(f"seed {seed}, {seeds.index(seed) + 1} of {len(seeds)}")
        try:
            if seed in begun:
                resume(
                    str(place),
                    device=device,
                    data=data,
                    checkpoint_seconds=checkpoint_seconds,
                    console=console,
                )
                continue
            loaded = recipe.load(str(run_of(path, begun[0]) / RECIPE), [f"seed={seed}"])
            named = replace(_with_choices(loaded, path), name=config["recipe"])
            where = data or config["data"]
            with _begin(named, place, find_device(device), where, console) as (experiment, run):
                carry_out(experiment, run, checkpoint_seconds, console)
        except StoppedError as error:
            raise _stopped_series(path) from error
    return _finish_series(path)


def resume(
    path: str, *, device: str | None, data: str | None, checkpoint_seconds: float, console: Silence
) -> Answer:
    """Go on with a run, or a series of them, that was stopped, killed or lost its machine."""
    place = expanded(path)
    if read_series(place):
        return _resume_series(
            place,
            device=device,
            data=data,
            checkpoint_seconds=checkpoint_seconds,
            console=console,
        )
    config = read_config(place)
    result = read_json(place, RESULT, {})
    with reading(place):
        if result.get("finished"):
            return result, f"{place} is finished; nothing is left to do.\n\n{summary(result)}"
        before = last_environment(place)
        chosen = find_device(device or before.get("device"))
    use_threads(chosen, before)
    found = data or config.get("data")
    experiment = experiment_of(recipe_of(place), chosen, found, on_download=console.download)
    with Run.open(place) as run:
        return carry_out(experiment, run, checkpoint_seconds, console)


def carry_out(
    experiment: Experiment, run: Run, checkpoint_seconds: float, console: Silence
) -> Answer:
    """Follow the course of an experiment; a signal makes it save and stop."""
    course = Course(experiment, run, checkpoint_seconds, console.show)
    try:
        with stopping(course, console):
            result = course.follow()
    except KeyboardInterrupt:
        again = command("resume", run.path)
        raise StoppedError(
            f"stopped at once; what was saved last is whole, go on with: {again}"
        ) from None
    console.close()
    verify = command("verify", run.path)
    closing = f"The run is in {run.path}. Check it again at any time: {verify}"
    return result, f"{summary(result)}\n\n{closing}"


@contextmanager
def stopping(course: Course, console: Silence) -> Iterator[None]:
    """Let the first signal to stop end the run after the current epoch, the second at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.default_int_handler)
        course.stop()
        console.say("stopping after this epoch; once more to stop at once")

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # What is ignored stays so: nohup ignores SIGHUP.
    before = {
        each: signal.getsignal(each)
        for each in signals
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _unused(folder: Path, stem: str) -> Path:
    """A directory for the run that is not there yet."""
    candidates = (folder / (stem if number == 1 else f"{stem}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def _absolute(data: str | None) -> str | None:
    return None if data is None else str(expanded(data).absolute())
