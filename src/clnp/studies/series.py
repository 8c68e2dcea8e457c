"""Several runs of one recipe that differ in their seed.

series.json             the recipe's name, the seeds, and whether the first one searches for all
seed0/, seed1/, ...     a run each
summary.json            means and standard deviations over the runs that are finished
"""

import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from clnp.core.layers.ledger import aligned
from clnp.data import datasets
from clnp.data.streams import tasks_of
from clnp.errors import (
    FAILURE,
    OUT_OF_MEMORY,
    STOPPED,
    USER_ERROR,
    ArgumentError,
    ClnpError,
    RunError,
    StoppedError,
    is_out_of_memory,
)
from clnp.methods.method import OURS
from clnp.recipes.recipe import Recipe, difference, recipe_of
from clnp.runs.directory import (
    CONFIG,
    RECIPE,
    command,
    read_config,
    read_json,
    read_result,
    to_json,
    writing,
)
from clnp.runs.fingerprint import check_alike, fingerprints
from clnp.storage.atomic import TEMPORARY, replace_file
from clnp.terminal.progress import Lines, Silence

from .jobs import Job, num_threads, side_by_side
from .launch import Answer, Circumstances, Source, begin, go_on_with

SERIES = "series.json"
SUMMARY = "summary.json"


def run_of(path: Path, seed: int) -> Path:
    """The directory of the run with this seed."""
    return path / f"seed{seed}"


def read_series(path: Path) -> dict[str, Any]:
    """The recipe's name and the seeds of the series at `path`; empty if there is none."""
    if not os.path.isfile(path / SERIES):
        return {}
    return checked(path, SERIES, "seeds")


def checked(path: Path, name: str, *lists: str) -> dict[str, Any]:
    """The JSON file of a series or comparison, which must have lists under these keys."""
    found: dict[str, Any] = read_json(path, name, {})
    for key in lists:
        if not isinstance(found.get(key), list):
            raise RunError(
                f"{path / name} is damaged: it has no {key}; put a copy of it back, or begin anew "
                "in another directory"
            )
    return found


def finished_results(path: Path) -> list[dict[str, Any]]:
    """The results of all runs of the series that are finished, in the order of the seeds.

    None where there is no series yet.
    """
    seeds = read_series(path).get("seeds", [])
    results = (read_result(run_of(path, seed)) for seed in seeds)
    return [result for result in results if result.get("finished")]


def choices(path: Path) -> dict[str, tuple[Any, float]]:
    """Alpha and learning rate that the first run of the series chose for each task."""
    result: dict[str, Any] = read_result(run_of(path, read_series(path)["seeds"][0]))
    winners = {r["task"]: r["candidates"][r["winner"]] for r in result.get("tasks", [])}
    return {task: (winner["alpha"], winner["lr"]) for task, winner in winners.items()}


def aggregate(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard deviations over several results of one recipe.

    `average` is the mean test score over the tasks after the last of them, `used` the percentage
    of each group's neurons that are claimed then, and `forgetting` the largest loss of any task
    since it was learnt. Where runs got different numbers of tasks into the network, tasks are
    those that all have; where not all of them got all in, `num_tasks_in_all` says how many there
    are.
    """
    if not results:
        raise RunError("no run of the series is finished yet")
    counts = [len(result["tasks"]) for result in results]
    num_tasks, in_all = min(counts), max(result["num_tasks"] for result in results)
    last = [[float(score) for score in result["scores"][-1]] for result in results]
    tasks = [record["task"] for record in results[0]["tasks"][:num_tasks]]
    sizes = results[0]["capacity"]["sizes"]
    return {
        "seeds": [result["seed"] for result in results],
        "num_tasks": counts,
        **({"num_tasks_in_all": in_all} if num_tasks < in_all else {}),
        "average": spread([statistics.fmean(row) for row in last]),
        "tasks": [
            {"task": task, **spread([row[place] for row in last])}
            for place, task in enumerate(tasks)
        ],
        "forgetting": max(
            float(record["test_score"]) - now
            for result, row in zip(results, last, strict=True)
            for record, now in zip(result["tasks"], row, strict=True)
        ),
        "unchanged": all(record["unchanged"] for r in results for record in r["tasks"]),
        "used": {
            group: spread(
                [100 * (1 - result["capacity"]["free"][group] / size) for result in results]
            )
            for group, size in sizes.items()
        },
        "seconds": spread([result["timings"]["seconds"] for result in results]),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, and the standard deviation of a sample; that of one value is 0."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation}


def described(summary: Mapping[str, Any]) -> str:
    """The summary in text for a terminal."""
    num_seeds = len(summary["seeds"])
    sign = "±" if num_seeds > 1 else None  # One seed has no deviation.
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds, mean ± standard deviation"
    if "num_tasks_in_all" in summary:
        learnt = ", ".join(map(str, summary["num_tasks"]))
        seeds += f"\nlearnt: {learnt} of {summary['num_tasks_in_all']} tasks, the average is theirs"
    rows = [["task", "test score"]]
    rows += [[task["task"], plus_minus(task, sign=sign)] for task in summary["tasks"]]
    rows.append(["average", plus_minus(summary["average"], sign=sign)])
    used = [["layer", "neurons used, %"]]
    used += [[group, plus_minus(value, 1, sign=sign)] for group, value in summary["used"].items()]
    capacity = f"{aligned(used)}\n\n" if summary["used"] else ""
    kept = "all outputs are what they were when their tasks ended, to the last bit"
    if not summary["unchanged"]:
        kept = f"outputs have changed; the largest loss of a task is {summary['forgetting']:.2f}"
    return f"{seeds}\n\n{aligned(rows)}\n\n{capacity}Forgetting: {kept}."


def plus_minus(value: Mapping[str, float], digits: int = 2, *, sign: str | None = "±") -> str:
    """The mean and its spread, 98.46 ± 0.03; without a sign, the mean alone."""
    # Rounding would leave a minus before nothing: -0.00.
    mean = value["mean"] if round(value["mean"], digits) else 0.0
    if sign is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} {sign} {value['deviation']:.{digits}f}"


@dataclass(frozen=True)
class Member:
    """A run of a series, and what it is called where several go on at the same time."""

    series: Path
    seed: int
    source: Source
    title: str

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return run_of(self.series, self.seed)

    @property
    def begun(self) -> bool:
        """Whether the run is there."""
        return os.path.isfile(self.path / CONFIG)


def begin_series(path: Path, series: dict[str, Any], text: str) -> None:
    """Write down what a new series at `path` is, and its recipe."""
    with writing(path):
        # One that was killed before its first run had begun may be begun again.
        found = list(path.iterdir()) if path.exists() else []
        names = [file.name for file in found if TEMPORARY not in file.name]
        own = all(name in (SERIES, SUMMARY, RECIPE) or name.startswith("seed") for name in names)
        if not own or any((each / CONFIG).exists() for each in found):
            remedy = "give the series a directory of its own"
            if SERIES in names:
                remedy = f"go on with it, {command('resume', path)}, or give another directory"
            raise RunError(f"{path} is not empty; {remedy}")
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / RECIPE, text.encode())
        replace_file(path / SERIES, to_json(series, indent=1).encode())


def add_seeds(path: Path, series: Mapping[str, Any], seeds: Sequence[int]) -> None:
    """Write down that the series at `path` has these seeds, those that it had among them."""
    if series["seeds"] != seeds:
        with writing(path):
            text = to_json({**series, "seeds": list(seeds)}, indent=1)
            replace_file(path / SERIES, text.encode())


def is_longer(path: Path, series: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether this is the series at `path` with more seeds; a `RunError` if it is another."""
    before = read_series(path)
    held, wanted = before.get("seeds", []), series["seeds"]
    begun = any((run_of(path, seed) / CONFIG).is_file() for seed in held)
    # A method of a comparison has the seeds of all.
    if not begun or "methods" in before or len(wanted) <= len(held):
        return False
    found = difference(recipe, recipe_of(path).recipe)
    if not found and before.get("search_once") != series["search_once"]:
        found = "--search-once", f"{before.get('search_once')}, not {series['search_once']}"
    if found:
        key, values = found
        raise RunError(f"{path} is another series: its {key} is {values}; name another directory")
    return True


def go_on_with_series(
    path: Path, source: Source, place: Circumstances, *, num_jobs: int, console: Silence
) -> Answer:
    """Carry out all runs of a series that are not finished, several at a time if asked to."""
    series = read_series(path)
    members = [Member(path, seed, source, f"seed {seed}") for seed in series["seeds"]]
    begun = [member for member in members if member.begun]
    if begun and len(begun) < len(members):
        check_data(begun[0].path, [place.data or series.get("data")], console)
    # Where the first run searches for all of them, it has to come first.
    num_alone = 1 if series.get("search_once") else 0
    alone = members if num_jobs == 1 else members[:num_alone]
    for number, member in enumerate(alone):
        console.say(f"{member.title}, {number + 1} of {len(members)}")
        try:
            _carry_out_one(member, place, console)
        except StoppedError as error:
            raise _stopped(path) from error
    carry_out_together(path, members[len(alone) :], place, num_jobs=num_jobs, console=console)
    summary = summarise(path)
    return summary, f"{described(summary)}\n\nThe runs are in {path}."


def summarise(path: Path) -> dict[str, Any]:
    """Write down what the runs of a series have come to."""
    found = aggregate(finished_results(path))
    with writing(path):
        replace_file(path / SUMMARY, (to_json(found, indent=1) + "\n").encode())
    return found


def check_data(begun: Path, places: Iterable[str | None], console: Silence) -> None:
    """Refuse to begin runs beside one that has begun with what else there is in these places."""
    held = recipe_of(begun)
    for data in dict.fromkeys(places):
        find = cache(partial(datasets.find, directory=data, on_progress=console.download))
        try:
            tasks = tasks_of(held.recipe.stream, find, seed=held.recipe.seed)
            check_alike({"tasks": fingerprints(tasks)}, read_config(begun), begun)
        except (ArgumentError, RunError) as error:
            raise RunError(
                f"{error}; runs that belong together have the same data, say where it is: "
                "--data DIR"
            ) from error


def carry_out_together(
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
    failed = {name: code for name, code in codes.items() if code not in (0, STOPPED)}
    if failed:
        again = command("resume", path)
        killed = [f"{name} (signal {-code})" for name, code in failed.items() if code < 0]
        why = f"{', '.join(killed)} killed, for want of memory perhaps; " if killed else ""
        error = RunError(f"{', '.join(failed)} failed, see above; {why}go on with: {again}")
        error.code = USER_ERROR if set(failed.values()) == {USER_ERROR} else FAILURE
        raise error
    if len(codes) < len(jobs) or STOPPED in codes.values():
        raise _stopped(path)


def _carry_out_one(member: Member, place: Circumstances, console: Silence) -> None:
    """Begin the run, or go on with it."""
    if member.begun:
        go_on_with(member.path, place, console)
        return
    series = read_series(member.series)
    loaded = replace(member.source.load(member.seed), name=series.get("recipe", member.series.name))
    if series.get("search_once") and loaded.recipe.method == OURS:  # No other has a grid.
        learner = loaded.recipe.learner.with_choices(choices(member.series))
        loaded = replace(loaded, recipe=replace(loaded.recipe, learner=learner))
    begin(loaded, member.path, replace(place, data=place.data or series.get("data")), console)


def _job(run: Member, place: Circumstances, threads: int, quiet: bool) -> None:
    """One run of a series in a process of its own."""
    console = Silence() if quiet else Lines(sys.stderr, label=f"{run.title}: ")
    torch.set_num_threads(threads)
    try:
        _carry_out_one(run, place, console)
    except StoppedError:
        sys.exit(STOPPED)
    except ClnpError as error:
        _leave(run, str(error), error.code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _leave(run, OUT_OF_MEMORY, FAILURE)


def _leave(run: Member, message: str, code: int) -> NoReturn:
    print(f"clnp: {run.title}: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _stopped(path: Path) -> StoppedError:
    return StoppedError(f"stopped; go on with: {command('resume', path)}")
