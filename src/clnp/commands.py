"""What the commands of `clnp` do. Each gives back what `--json` prints, and text for the others."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from . import datasets
from .assembly import experiment_of
from .atomic import replace_file
from .baselines.methods import NAMES
from .carrying import (
    HEADER,
    Answer,
    Circumstances,
    Source,
    begin,
    carry_out,
    data_of,
    track_finished,
)
from .compare import COMPARISON, TABLE, check_recipe, read_comparison, rows, texts
from .console import Lines, Silence
from .devices import find_device, use_threads
from .errors import ArgumentError, ClnpError, RunError, StoppedError, unknown_name
from .jobs import STOPPED, Job, num_threads, side_by_side
from .likeness import check_alike, fingerprints
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
    taken,
    to_json,
    writing,
)
from .schema import to_data, to_toml
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
from .streams import tasks_of
from .summary import summary

FAILED = 2
"""The exit code of a job that cannot be done as it is."""

WORDS = {
    "recipe": "recipe is",
    "seeds": "seeds are",
    "search_once": "--search-once is",
}
"""What a comparison is, and stays."""


def compare(
    source: Source,
    place: Circumstances,
    *,
    methods: Sequence[str],
    seed: int | None,
    num_seeds: int,
    search_once: bool,
    num_jobs: int,
    out: str | None,
    console: Silence,
) -> Answer:
    """Carry out a recipe with several methods, and compare what they come to."""
    for method in methods:
        if method not in NAMES:
            raise RunError(unknown_name("method", method, NAMES))
    loaded = source.load(seed)
    path = expanded(out) if out is not None else Path("runs") / f"{loaded.name}-compared"
    before = read_comparison(path)
    known = {
        "format": FORMAT,
        "recipe": loaded.name,
        "source": source.absolute().to_json(),
        "seeds": list(range(loaded.recipe.seed, loaded.recipe.seed + num_seeds)),
        "search_once": search_once,
        "data": data_of(place.data),
        # Methods may be added to a comparison later.
        "methods": list(dict.fromkeys([*before.get("methods", []), *methods])),
    }
    for key, words in WORDS.items():
        if before and before[key] != known[key]:
            raise RunError(
                f"{path} is another comparison: its {words} {_in_words(before[key])}, not "
                f"{_in_words(known[key])}; name another directory"
            )
    for method in (m for m in before.get("methods", []) if read_series(path / m)):
        now = source.with_method(method).load(loaded.recipe.seed).recipe
        held = Source(str(path / method / RECIPE)).load().recipe
        check_recipe(path, method, now=to_data(now), before=to_data(held))
    _check_data(path, known, methods, place, console)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / COMPARISON, to_json(known, indent=1).encode())
    return _go_on_comparing(path, place, methods, num_jobs=num_jobs, console=console)


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
    for data in {place.data or {**known, **read_series(path / m)}["data"] for m in wanted}:
        held = recipe_of(begun[0])
        find = cache(partial(datasets.find, directory=data, on_progress=console.download))
        try:
            tasks = tasks_of(held.recipe.stream, find, seed=held.recipe.seed)
            check_alike({"tasks": fingerprints(tasks)}, read_config(begun[0]), begun[0])
        except (ArgumentError, RunError) as error:
            raise RunError(
                f"{error}; all runs of a comparison have the same data, say where it is: --data DIR"
            ) from error


def _go_on_comparing(
    path: Path,
    place: Circumstances,
    methods: Sequence[str],
    *,
    num_jobs: int,
    console: Silence,
) -> Answer:
    """Carry out all runs of these methods that are not finished; the table of all methods.

    What is finished is in the table's files also if some runs fail or are stopped.
    """
    known = read_comparison(path)
    runs = []
    for method in methods:
        source = Source(str(path / method / RECIPE))  # The user's own may be another by now.
        if not read_series(path / method):
            source = Source.from_json(known["source"]).with_method(method)
            text = to_toml(source.load(known["seeds"][0]).recipe, header=HEADER)
            _begin_series(path / method, {**known, "methods": [method]}, text)
        runs += [
            Member(path / method, seed, source, f"{method}, seed {seed}") for seed in known["seeds"]
        ]
    first = [run for run in runs if known["search_once"] and run.seed == known["seeds"][0]]
    try:
        for together in (first, [run for run in runs if run not in first]):
            _carry_out_together(path, together, place, num_jobs=num_jobs, console=console)
    finally:
        found, text = _write_table(path)
    for method in methods:
        _summarise(path / method)
    return found, f"{text}\nThe runs are in {path}, the table in {path / TABLE}.*"


def _write_table(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The table of a comparison as far as it is finished, in its files; its rows and its text."""
    found = rows(path)
    written = texts(found)
    with writing(path):
        replace_file(path / f"{TABLE}.json", (to_json(found, indent=1) + "\n").encode())
        for ending, text in written.items():
            replace_file(path / f"{TABLE}.{ending}", text.encode())
    return found, written["txt"]


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
        if (path / CONFIG).is_file():
            return _add_tasks(loaded, path, place, console)
        with begin(loaded, path, device, place.data, console) as (experiment, run):
            return carry_out(experiment, run, place, console)
    path = expanded(out) if out is not None else _unused(Path("runs"), f"{short}-{num_seeds}seeds")
    series = {
        "format": FORMAT,
        "recipe": short,
        "seeds": list(range(first, first + num_seeds)),
        "search_once": search_once,
        "data": data_of(place.data),
    }
    _begin_series(path, series, to_toml(loaded.recipe, header=HEADER))
    return _go_on(path, source, place, num_jobs=num_jobs, console=console)


def _add_tasks(loaded: LoadedRecipe, path: Path, place: Circumstances, console: Silence) -> Answer:
    """Go on with a run by a recipe that is its own with more tasks; any other is refused."""
    config, before = read_config(path), last_environment(path)
    device = find_device(place.device or before.get("device"))
    use_threads(device, before)
    data = place.data or config.get("data")
    experiment = experiment_of(loaded, device, data, on_download=console.download)
    with reading(path):
        if len(experiment.tasks) <= len(config["tasks"]):
            raise RunError(taken(path))
    with Run.open(path) as run:
        return carry_out(experiment, run, place, console, loaded=loaded)


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
    num_alone = 1 if series["search_once"] else 0
    alone = seeds if num_jobs == 1 else seeds[:num_alone]
    for seed in alone:
        console.say(f"seed {seed}, {seeds.index(seed) + 1} of {len(seeds)}")
        try:
            _carry_out_one(path, seed, source, place, console)
        except StoppedError as error:
            raise _stopped_series(path) from error
    rest = [Member(path, seed, source, f"seed {seed}") for seed in seeds[len(alone) :]]
    _carry_out_together(path, rest, place, num_jobs=num_jobs, console=console)
    summary = _summarise(path)
    return summary, f"{described(summary)}\n\nThe runs are in {path}."


def _summarise(path: Path) -> dict[str, Any]:
    """Write down what the runs of a series have come to."""
    found = aggregate(finished_results(path))
    with writing(path):
        replace_file(path / SUMMARY, (to_json(found, indent=1) + "\n").encode())
    return found


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
    with begin(loaded, run, device, place.data or series["data"], console) as (experiment, begun):
        carry_out(experiment, begun, place, console)


@dataclass(frozen=True)
class Member:
    """A run of a series, and what it is called where several go on at the same time."""

    series: Path
    seed: int
    source: Source
    title: str


def _carry_out_together(
    path: Path,
    runs: Sequence[Member],
    place: Circumstances,
    *,
    num_jobs: int,
    console: Silence,
) -> None:
    """Carry out these runs of the series or comparison at `path`, in processes of their own."""
    if not runs:
        return
    console.close()
    devices = [place.device]
    if place.device is None and torch.cuda.device_count() > 1:
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    threads, quiet = num_threads(num_jobs), type(console) is Silence
    jobs = [
        Job(
            run.title,
            _job,
            (run, replace(place, device=devices[number % len(devices)]), threads, quiet),
        )
        for number, run in enumerate(runs)
    ]
    codes = side_by_side(jobs, at_most=num_jobs)
    failed = [name for name, code in codes.items() if code not in (0, STOPPED)]
    if failed:
        again = command("resume", path)
        raise RunError(f"{', '.join(failed)} failed, see above; go on with: {again}")
    if len(codes) < len(jobs) or STOPPED in codes.values():
        raise _stopped_series(path)


def _job(run: Member, place: Circumstances, threads: int, quiet: bool) -> None:
    """One run of a series in a process of its own."""
    console = Silence() if quiet else Lines(sys.stderr, label=f"{run.title}: ")
    torch.set_num_threads(threads)
    try:
        _carry_out_one(run.series, run.seed, run.source, place, console)
    except StoppedError:
        sys.exit(STOPPED)
    except ClnpError as error:
        print(f"clnp: {run.title}: {error}", file=sys.stderr, flush=True)
        sys.exit(FAILED)


def _stopped_series(path: Path) -> StoppedError:
    return StoppedError(f"stopped; go on with: {command('resume', path)}")


def resume(path: str, place: Circumstances, *, num_jobs: int, console: Silence) -> Answer:
    """Go on with a run, or a series of them, that was stopped, killed or lost its machine."""
    run = expanded(path)
    if known := read_comparison(run):
        methods = known["methods"]
        _check_data(run, known, methods, place, console)
        return _go_on_comparing(run, place, methods, num_jobs=num_jobs, console=console)
    if read_series(run):
        return _go_on(run, Source(str(run / RECIPE)), place, num_jobs=num_jobs, console=console)
    if num_jobs > 1:
        raise RunError(f"--jobs is for a series, and {path} is one run")
    config = read_config(run)
    result = read_json(run, RESULT, {})
    with reading(run):
        if result.get("finished"):
            left = "nothing is left to do"
            if place.trackers:
                left = track_finished(run, place, console)
            return result, f"{run} is finished; {left}.\n\n{summary(result)}"
        before = last_environment(run)
        device = find_device(place.device or before.get("device"))
    use_threads(device, before)
    data = place.data or config.get("data")
    experiment = experiment_of(recipe_of(run), device, data, on_download=console.download)
    with Run.open(run) as opened:
        return carry_out(experiment, opened, place, console)


def _unused(folder: Path, stem: str) -> Path:
    """A directory for the run that is not there yet."""
    candidates = (folder / (stem if number == 1 else f"{stem}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def _in_words(value: Any) -> str:
    """A value of a comparison's file, lists and all, in one line."""
    if isinstance(value, list):
        return " ".join(_in_words(each) for each in value) or "none"
    return str(value)
