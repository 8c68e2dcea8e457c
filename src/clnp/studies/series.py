"""Several runs of one recipe that differ in their seed.

series.json             a `SeriesConfig`: the recipe's name, the seeds, where data sets are
recipe.toml             the recipe with every default
seed0/, seed1/, ...     a run for each seed
summary.json            a `SeriesSummary`: means and standard deviations over the finished runs
"""

import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from clnp.core.layers.ledger import aligned
from clnp.data import datasets
from clnp.data.streams import tasks_of
from clnp.errors import FAILURE, STOPPED, USER_ERROR, ArgumentError, RunError, StoppedError
from clnp.plain import read, to_json
from clnp.recipes.recipe import Recipe, difference, recipe_of
from clnp.records import OURS, RunResult, SeriesConfig, SeriesSummary, Spread, TaskSummary
from clnp.runs.directory import (
    CONFIG,
    RECIPE,
    read_config,
    read_json,
    read_result,
    resume_command,
    writing,
)
from clnp.runs.fingerprint import check_alike, fingerprints
from clnp.storage.atomic import TEMPORARY, replace_file

from .jobs import Job, run_jobs
from .launch import Console, RunOptions, Source, resume_run, start_run

SERIES = "series.json"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Member:
    """A run of a series, and its title among runs at the same time."""

    series: Path
    seed: int
    title: str

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return run_of(self.series, self.seed)

    @property
    def started(self) -> bool:
        """Whether the directory has a run."""
        return os.path.isfile(self.path / CONFIG)


def run_of(path: Path, seed: int) -> Path:
    """Return the directory of the run with this seed."""
    return path / f"seed{seed}"


def read_series(path: Path) -> SeriesConfig | None:
    """Return the config of the series at `path`; None if there is none."""
    return read_study(path, SERIES, "seeds")


def read_study(path: Path, name: str, *lists: str) -> SeriesConfig | None:
    """Return the config of a series or comparison, which must have these lists."""
    data = read_json(path / name, dict) if os.path.isfile(path / name) else None
    if data is None:
        return None
    for key in lists:
        if not isinstance(data.get(key), list):
            raise RunError(
                f"{path / name} is damaged: it has no {key}. Restore a copy of it, or start again "
                "in another directory."
            )
    return read(SeriesConfig, data)


def write_study(path: Path, name: str, config: SeriesConfig, recipe: str | None = None) -> None:
    """Write the config of a series or comparison, after its recipe if that is given."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        if recipe is not None:
            replace_file(path / RECIPE, recipe.encode())
        replace_file(path / name, to_json(config, indent=1).encode())


def finished_results(path: Path) -> list[RunResult]:
    """Return the results of all finished runs of the series, in the order of the seeds."""
    series = read_series(path) or SeriesConfig()
    results = [read_result(run_of(path, seed)) for seed in series.seeds]
    return [result for result in results if result is not None and result.finished]


def aggregate(results: Sequence[RunResult]) -> SeriesSummary:
    """Return means and standard deviations over several results of one recipe."""
    if not results:
        raise RunError("No run of the series is finished. Resume the series first.")
    if not all(result.tasks and result.scores for result in results):
        raise RunError("A run of the series ended no task. Give its network larger widths.")
    counts = tuple(len(result.tasks) for result in results)
    num_tasks, in_all = min(counts), max(result.num_tasks for result in results)
    last = [[_number(score) for score in result.scores[-1]] for result in results]
    tasks = [spread([row[index] for row in last]) for index in range(num_tasks)]
    first = results[0]
    return SeriesSummary(
        seeds=tuple(result.seed for result in results if result.seed is not None),
        num_tasks=counts,
        num_tasks_in_all=in_all if num_tasks < in_all else None,
        average=spread([statistics.fmean(row) for row in last]),
        tasks=tuple(
            TaskSummary(record.task, each.mean, each.deviation)
            for record, each in zip(first.tasks[:num_tasks], tasks, strict=True)
        ),
        forgetting=max(
            _number(record.test_score) - now
            for result, row in zip(results, last, strict=True)
            for record, now in zip(result.tasks, row, strict=True)
        ),
        unchanged=all(record.unchanged for result in results for record in result.tasks),
        used={
            group: spread([100 * (1 - each.capacity.free[group] / size) for each in results])
            for group, size in first.capacity.sizes.items()
        },
        seconds=spread([result.timings.seconds for result in results]),
    )


def _number(score: float | None) -> float:
    return math.nan if score is None else score


def spread(values: Sequence[float]) -> Spread:
    """Return the mean, and the standard deviation of a sample; that of one value is 0."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation)


def described(summary: SeriesSummary) -> str:
    """Return the summary as text for a terminal."""
    num_seeds = len(summary.seeds)
    sign = "±" if num_seeds > 1 else None  # One seed has no deviation.
    title = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds, mean ± standard deviation"
    if summary.num_tasks_in_all is not None:
        counts = ", ".join(map(str, summary.num_tasks))
        title += f"\nlearned: {counts} of {summary.num_tasks_in_all} tasks, averaged over these"
    rows = [["task", "test score"]]
    rows += [[task.task, plus_minus(task, sign=sign)] for task in summary.tasks]
    rows.append(["average", plus_minus(summary.average, sign=sign)])
    used = [["layer", "neurons used, %"]]
    used += [[group, plus_minus(value, 1, sign=sign)] for group, value in summary.used.items()]
    capacity = f"{aligned(used)}\n\n" if summary.used else ""
    kept = "all outputs are the same as when their tasks ended, to the last bit"
    if not summary.unchanged:
        kept = f"outputs have changed, and a task lost {summary.forgetting:.2f} at most"
    return f"{title}\n\n{aligned(rows)}\n\n{capacity}Forgetting: {kept}."


def plus_minus(value: Spread | TaskSummary, digits: int = 2, *, sign: str | None = "±") -> str:
    """Return the mean and its deviation, 98.46 ± 0.03; without a sign, the mean alone."""
    # Rounding would leave a minus before zero: -0.00.
    mean = value.mean if round(value.mean, digits) else 0.0
    if sign is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} {sign} {value.deviation:.{digits}f}"


def begin_series(path: Path, series: SeriesConfig, text: str) -> None:
    """Write the config and the recipe of a new series."""
    with writing(path):
        # A series that was killed before its first run can be started again.
        found = list(path.iterdir()) if path.exists() else []
    names = [file.name for file in found if TEMPORARY not in file.name]
    own = all(name in (SERIES, SUMMARY, RECIPE) or name.startswith("seed") for name in names)
    if not own or any((each / CONFIG).exists() for each in found):
        remedy = "Choose another directory."
        if SERIES in names:
            remedy = f"Resume its series with {resume_command(path)}, or choose another one."
        raise RunError(f"{path} is not empty. {remedy}")
    write_study(path, SERIES, series, text)


def add_seeds(path: Path, series: SeriesConfig, seeds: Sequence[int]) -> None:
    """Write the config of a series with these seeds, which include its own."""
    if series.seeds != tuple(seeds):
        write_study(path, SERIES, replace(series, seeds=tuple(seeds)))


def series_to_extend(path: Path, series: SeriesConfig, recipe: Recipe) -> SeriesConfig | None:
    """Return the series at `path` if the given one has more seeds; None if there is none.

    Raises:
        RunError: If the series at `path` is a different one.
    """
    before = read_series(path)
    # A method of a comparison has the seeds of the comparison.
    if before is None or before.methods is not None or len(series.seeds) <= len(before.seeds):
        return None
    if not any((run_of(path, seed) / CONFIG).is_file() for seed in before.seeds):
        return None
    found = difference(recipe, recipe_of(path).recipe)
    if not found and before.search_once != series.search_once:
        found = "--search-once", f"{before.search_once}, not {series.search_once}"
    if found:
        key, values = found
        raise RunError(
            f"{path} contains another series: its {key} is {values}. Choose another directory."
        )
    return before


def resume_series(
    path: Path, options: RunOptions, console: Console, *, source: Source | None = None
) -> tuple[SeriesSummary, str]:
    """Start or resume all runs of a series that are not finished.

    With a `source`, errors in the recipe name the user's file instead of that of the series.
    """
    series = read_series(path) or SeriesConfig()
    members = [Member(path, seed, f"seed {seed}") for seed in series.seeds]
    started = [member for member in members if member.started]
    if started and len(started) < len(members):
        check_data(started[0].path, [options.data or series.data], console)
    # If the first run searches the grid for all, it has to come first.
    alone = members if options.num_jobs == 1 else members[: int(series.search_once)]
    for number, member in enumerate(alone, 1):
        console.say(f"{member.title}, {number} of {len(members)}")
        try:
            run_member(member, options, console, source=source)
        except StoppedError as error:
            raise _stopped(path) from error
    run_members(path, members[len(alone) :], options, console)
    summary = summarise(path)
    return summary, f"{described(summary)}\n\nThe runs are in {path}."


def summarise(path: Path) -> SeriesSummary:
    """Write the summary of the finished runs of a series, and return it."""
    summary = aggregate(finished_results(path))
    with writing(path):
        replace_file(path / SUMMARY, (to_json(summary, indent=1) + "\n").encode())
    return summary


def check_data(run: Path, directories: Iterable[str | None], console: Console) -> None:
    """Raise a `RunError` unless the data in these directories is that of a run."""
    recipe, config = recipe_of(run).recipe, read_config(run)
    for data in dict.fromkeys(directories):
        find = cache(partial(datasets.find, directory=data, on_progress=console.download))
        try:
            tasks = tasks_of(recipe.stream, find, seed=recipe.seed)
            check_alike(replace(config, tasks=fingerprints(tasks)), config, run)
        except (ArgumentError, RunError) as error:
            raise RunError(
                f"{str(error).rstrip('.')}. All runs of a series or comparison need the same data: "
                "give its directory with --data."
            ) from error


def run_members(
    path: Path, members: Sequence[Member], options: RunOptions, console: Console
) -> None:
    """Run members of the series or comparison at `path` as jobs, several at the same time."""
    if not members:
        return
    console.close()
    devices = [options.device]
    if options.device is None and torch.cuda.device_count() > 1:
        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    jobs = []
    for index, member in enumerate(members):
        own = replace(options, device=devices[index % len(devices)]).arguments()
        job = ("-m", "clnp", "resume", f"--job={member.title}", *own, "--", str(member.path))
        jobs.append(Job(member.title, job))
    codes = run_jobs(jobs, at_most=options.num_jobs)
    failed = {name: code for name, code in codes.items() if code not in (0, STOPPED)}
    if failed:
        killed = [f"{name} (signal {-code})" for name, code in failed.items() if code < 0]
        reason = f" Killed, probably for lack of memory: {', '.join(killed)}." if killed else ""
        error = RunError(
            f"{', '.join(failed)} failed, see above.{reason} Resume with {resume_command(path)}."
        )
        error.code = USER_ERROR if set(failed.values()) == {USER_ERROR} else FAILURE
        raise error
    if len(codes) < len(jobs) or STOPPED in codes.values():
        raise _stopped(path)


def run_job(path: Path, options: RunOptions, console: Console, *, title: str) -> None:
    """Start or resume a run of a series, as a job."""
    member = Member(path.parent, int(path.name.removeprefix("seed")), title)
    try:
        run_member(member, options, console)
    except StoppedError:
        raise SystemExit(STOPPED) from None  # The parent has a message for all jobs.


def run_member(
    member: Member, options: RunOptions, console: Console, *, source: Source | None = None
) -> None:
    """Start or resume a run of a series."""
    if member.started:
        resume_run(member.path, options, console)
        return
    series = read_series(member.series) or SeriesConfig()
    source = source or Source(str(member.series / RECIPE))
    loaded = replace(source.load(member.seed), name=series.recipe)
    if series.search_once and loaded.recipe.method == OURS:  # Baselines have no grid.
        learner = loaded.recipe.learner.with_choices(_choices(member.series, series))
        loaded = replace(loaded, recipe=replace(loaded.recipe, learner=learner))
    start_run(loaded, member.path, replace(options, data=options.data or series.data), console)


def _choices(path: Path, series: SeriesConfig) -> dict[str, tuple[Any, float]]:
    """Return the alpha and learning rate that the first run chose for each task."""
    result = read_result(run_of(path, series.seeds[0])) or RunResult()
    winners = {record.task: record.candidates[record.winner] for record in result.tasks}
    return {task: (winner.alpha, winner.lr) for task, winner in winners.items()}


def _stopped(path: Path) -> StoppedError:
    return StoppedError(f"Stopped. Resume with {resume_command(path)}.")
