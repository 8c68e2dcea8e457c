"""What the commands of `clnp` do. Each gives back what `--json` prints, and text for the others."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from . import recipe
from .assembly import experiment_of
from .atomic import replace_file
from .console import Lines, Silence
from .devices import find_device, use_threads
from .errors import ClnpError, RunError, StoppedError
from .experiment import Course, Experiment
from .jobs import Job, num_threads, side_by_side
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
HEADER = "A recipe with every default spelt out: clnp run FILE runs it again."
FAILED, STOPPED = 2, 130
"""Exit codes of the command line."""


@dataclass(frozen=True)
class Source:
    """Where the recipe of a run comes from, and what is changed in it."""

    name: str
    assignments: tuple[str, ...] = ()

    def load(self, seed: int | None = None) -> LoadedRecipe:
        """The recipe, with another seed if one is given."""
        seeded = () if seed is None else (f"seed={seed}",)
        return recipe.load(self.name, (*self.assignments, *seeded))


@dataclass(frozen=True)
class Circumstances:
    """On what, from where and how often saved: what does not belong to an experiment."""

    device: str | None = None
    data: str | None = None
    checkpoint_seconds: float = 60.0


def start(
    source: Source,
    place: Circumstances,
    *,
    seed: int | None,
    num_seeds: int | None,
    search_once: bool,
    num_jobs: int,
    out: str | None,
    console: Silence,
) -> Answer:
    """Begin a run of a recipe, or one for each of several seeds, and carry it out."""
    loaded = source.load(seed)
    first, short = loaded.recipe.seed, loaded.name
    device = find_device(place.device)
    if num_seeds is None:
        if search_once or num_jobs > 1:
            option = "--search-once" if search_once else "--jobs"
            raise RunError(f"{option} is for a series: name the number of seeds, --seeds 5")
        path = expanded(out) if out is not None else _unused(Path("runs"), f"{short}-seed{first}")
        with _begin(loaded, path, device, place.data, console) as (experiment, run):
            return carry_out(experiment, run, place.checkpoint_seconds, console)
    path = expanded(out) if out is not None else _unused(Path("runs"), f"{short}-{num_seeds}seeds")
    where = _absolute(place.data or os.environ.get("CLNP_DATA"))
    series = {
        "format": FORMAT,
        "recipe": short,
        "seeds": list(range(first, first + num_seeds)),
        "search_once": search_once,
        "data": where,
    }
    _begin_series(path, series, to_toml(loaded.recipe, header=HEADER))
    return _go_on(path, source, place, num_jobs=num_jobs, console=console)


@contextmanager
def _begin(
    loaded: LoadedRecipe, path: Path, device: torch.device, data: str | None, console: Silence
) -> Iterator[tuple[Experiment, Run]]:
    """A new run of a recipe, in its directory."""
    experiment = experiment_of(loaded, device, data, on_download=console.download)
    where = _absolute(data or os.environ.get("CLNP_DATA"))
    config = {**experiment.to_json(), "recipe": loaded.name, "data": where}
    files = {CONFIG: to_json(config, indent=1), RECIPE: to_toml(loaded.recipe, header=HEADER)}
    with Run.create(path, files) as run:
        yield experiment, run


def _begin_series(path: Path, series: dict[str, Any], text: str) -> None:
    with writing(path):
        # One that was killed before its first run had begun may be begun again.
        found = list(path.iterdir()) if path.exists() else []
        own = all(f.name in (SERIES, RECIPE) or f.name.startswith("seed") for f in found)
        if not own or any((each / CONFIG).exists() for each in found):
            raise RunError(
                f"{path} is not empty; go on with it, {command('resume', path)}, or give another "
                "directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / RECIPE, text.encode())
        replace_file(path / SERIES, to_json(series, indent=1).encode())


def _go_on(
    path: Path, source: Source, place: Circumstances, *, num_jobs: int, console: Silence
) -> Answer:
    """Carry out all runs of a series that are not finished, several at a time if asked to."""
    series = read_series(path)
    seeds = series["seeds"]
    # Where the first run searches for all of them, it has to come first.
    alone = seeds if num_jobs == 1 else seeds[: 1 if series["search_once"] else 0]
    for seed in alone:
        console.say(f"seed {seed}, {seeds.index(seed) + 1} of {len(seeds)}")
        try:
            _carry_out_one(path, seed, source, place, console)
        except StoppedError as error:
            raise _stopped_series(path) from error
    rest = seeds[len(alone) :]
    if rest:
        _carry_out_together(path, rest, source, place, num_jobs=num_jobs, console=console)
    summary = aggregate(finished_results(path))
    with writing(path):
        replace_file(path / SUMMARY, (to_json(summary, indent=1) + "\n").encode())
    return summary, f"{described(summary)}\n\nThe runs are in {path}."


def _carry_out_one(
    path: Path, seed: int, source: Source, place: Circumstances, console: Silence
) -> None:
    """Begin the run with this seed, or go on with it."""
    run = run_of(path, seed)
    if (run / CONFIG).is_file():
        resume(str(run), place, num_jobs=1, console=console)
        return
    series = read_series(path)
    loaded = replace(source.load(seed), name=series["recipe"])
    if series["search_once"]:
        learner = loaded.recipe.learner.with_choices(choices(path))
        loaded = replace(loaded, recipe=replace(loaded.recipe, learner=learner))
    device = find_device(place.device)
    with _begin(loaded, run, device, place.data or series["data"], console) as (experiment, begun):
        carry_out(experiment, begun, place.checkpoint_seconds, console)


def _carry_out_together(
    path: Path,
    seeds: list[int],
    source: Source,
    place: Circumstances,
    *,
    num_jobs: int,
    console: Silence,
) -> None:
    """Carry out the runs with these seeds in processes of their own."""
    console.close()
    devices = [place.device]
    if place.device is None and torch.cuda.device_count() > 1:
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    jobs = [
        Job(
            f"seed {seed}",
            _job,
            (
                path,
                seed,
                source,
                replace(place, device=devices[number % len(devices)]),
                num_threads(num_jobs),
                type(console) is Silence,
            ),
        )
        for number, seed in enumerate(seeds)
    ]
    codes = side_by_side(jobs, at_most=num_jobs)
    failed = [name for name, code in codes.items() if code not in (0, STOPPED)]
    if failed:
        again = command("resume", path)
        raise RunError(f"{', '.join(failed)} failed, see above; go on with: {again}")
    if len(codes) < len(jobs) or STOPPED in codes.values():
        raise _stopped_series(path)


def _job(
    path: Path, seed: int, source: Source, place: Circumstances, threads: int, quiet: bool
) -> None:
    """One run of a series in a process of its own."""
    console = Silence() if quiet else Lines(sys.stderr, label=f"seed {seed}: ")
    torch.set_num_threads(threads)
    try:
        _carry_out_one(path, seed, source, place, console)
    except StoppedError:
        sys.exit(STOPPED)
    except ClnpError as error:
        print(f"clnp: seed {seed}: {error}", file=sys.stderr, flush=True)
        sys.exit(FAILED)


def _stopped_series(path: Path) -> StoppedError:
    return StoppedError(f"stopped; go on with: {command('resume', path)}")


def resume(path: str, place: Circumstances, *, num_jobs: int, console: Silence) -> Answer:
    """Go on with a run, or a series of them, that was stopped, killed or lost its machine."""
    run = expanded(path)
    if read_series(run):
        return _go_on(run, Source(str(run / RECIPE)), place, num_jobs=num_jobs, console=console)
    if num_jobs > 1:
        raise RunError(f"--jobs is for a series, and {path} is one run")
    config = read_config(run)
    result = read_json(run, RESULT, {})
    with reading(run):
        if result.get("finished"):
            return result, f"{run} is finished; nothing is left to do.\n\n{summary(result)}"
        before = last_environment(run)
        device = find_device(place.device or before.get("device"))
    use_threads(device, before)
    data = place.data or config.get("data")
    experiment = experiment_of(recipe_of(run), device, data, on_download=console.download)
    with Run.open(run) as opened:
        return carry_out(experiment, opened, place.checkpoint_seconds, console)


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
