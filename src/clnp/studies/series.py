"""Several runs of one recipe that differ in their seed.

A series also has

summary.json            a `SeriesSummary`: means and standard deviations over the finished runs
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch

from clnp.data import named
from clnp.data.streams import tasks_of
from clnp.errors import FAILURE, STOPPED, USER_ERROR, ArgumentError, RunError, StoppedError
from clnp.plain import to_json
from clnp.recipes.recipe import Recipe, difference, recipe_of
from clnp.recipes.schema import to_toml
from clnp.records import OURS, Alpha, RunResult, SeriesConfig, SeriesSummary
from clnp.runs.directory import (
    CONFIG,
    LOCK,
    RECIPE,
    read_config,
    read_result,
    resume_command,
    writing,
)
from clnp.runs.fingerprint import check_alike, fingerprints
from clnp.storage.atomic import TEMPORARY, replace_file

from .jobs import run_jobs
from .launch import HEADER, RunOptions, Source, resume_run, start_run
from .study import (
    SERIES,
    Member,
    finished_results,
    has_started,
    kept,
    members_of,
    read_series,
    run_of,
    write_study,
)
from .summaries import aggregate, described

SUMMARY = "summary.json"


def write_series(path: Path, config: SeriesConfig, recipe: Recipe) -> None:
    """Write the files of a new series, or add seeds to one that has started."""
    before = read_series(path)
    # A method of a comparison has the seeds of the comparison.
    grows = before is not None and before.methods is None and len(config.seeds) > len(before.seeds)
    if before is None or not grows or not has_started(path, before.seeds):
        begin_series(path, config, recipe)
        return
    found = difference(recipe, recipe_of(path).recipe)
    if not found and before.search_once != config.search_once:
        found = "--search-once", f"{before.search_once}, not {config.search_once}"
    if found:
        raise another_study(path, "series", f"its {found[0]} is {found[1]}")
    write_study(path / SERIES, replace(before, seeds=config.seeds))


def another_study(path: Path, kind: str, reason: str) -> RunError:
    """Return the error for a directory with a series or comparison that is a different one."""
    return RunError(f"{path} contains another {kind}: {reason}. Choose another directory.")


def begin_series(path: Path, config: SeriesConfig, recipe: Recipe) -> None:
    """Write the config and the recipe of a new series."""
    with writing(path):
        # A series that was killed before its first run can be started again.
        found = list(path.iterdir()) if path.exists() else []
    names = [file.name for file in found if TEMPORARY not in file.name]
    own = all(name in (SERIES, SUMMARY, RECIPE, LOCK) or name.startswith("seed") for name in names)
    if not own or any((each / CONFIG).exists() for each in found):
        remedy = "Choose another directory."
        if SERIES in names:
            remedy = f"Resume its series with {resume_command(path)}, or choose another one."
        raise RunError(f"{path} is not empty. {remedy}")
    write_study(path / SERIES, config, to_toml(recipe, header=HEADER))


def resume_series(
    path: Path, options: RunOptions, *, source: Source | None = None
) -> tuple[SeriesSummary, str]:
    """Start or resume all runs of a series that are not finished.

    With a `source`, errors in the recipe name the user's file instead of that of the series.
    """
    config = read_series(path) or SeriesConfig()
    members = members_of(path, config)
    check_data(members, members, replace(options, data=options.data or config.data))
    # If the first run searches the grid for all, it has to come first.
    alone = members if options.num_jobs == 1 else members[: int(config.search_once)]
    with kept(path / SERIES, path / RECIPE):
        for number, member in enumerate(alone, 1):
            options.console.say(f"{member.title}, {number} of {len(members)}")
            try:
                run_member(member, options, source=source)
            except StoppedError as error:
                raise _stopped(path) from error
        run_members(path, members[len(alone) :], options)
    summary = summarise(path)
    return summary, f"{described(summary)}\n\nThe runs are in {path}."


def summarise(path: Path) -> SeriesSummary:
    """Write the summary of the finished runs of a series, and return it."""
    summary = aggregate(finished_results(path))
    with writing(path):
        replace_file(path / SUMMARY, (to_json(summary, indent=1) + "\n").encode())
    return summary


def check_data(wanted: Sequence[Member], members: Sequence[Member], options: RunOptions) -> None:
    """Raise a `RunError` if `wanted` would start with other data than the members that have."""
    started = [member.path for member in members if member.started]
    if not started or all(member.started for member in wanted):
        return
    recipe, config = recipe_of(started[0]).recipe, read_config(started[0])
    find = cache(partial(named.find, directory=options.data, on_progress=options.console.download))
    try:
        tasks = tasks_of(recipe.stream, find, seed=recipe.seed)
        check_alike(replace(config, tasks=fingerprints(tasks)), config, started[0])
    except (ArgumentError, RunError) as error:
        raise RunError(
            f"{str(error).rstrip('.')}. All runs of a series or comparison need the same data: "
            "give its directory with --data."
        ) from error


def run_members(
    path: Path, members: Sequence[Member], options: RunOptions, *, may_fail: bool = False
) -> None:
    """Run members of the series or comparison at `path` as jobs, several at the same time.

    A failure of one is an error, unless they `may_fail`. A usage error always is.
    """
    if not members:
        return
    options.console.close()
    devices = [options.device]
    if options.device is None and torch.cuda.device_count() > 1:
        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    jobs = {}
    for index, member in enumerate(members):
        own = replace(options, device=devices[index % len(devices)]).arguments()
        job = ["-m", "clnp", "resume", f"--job={member.title}", *own, "--", str(member.path)]
        jobs[member.title] = job
    codes = run_jobs(jobs, at_most=options.num_jobs)
    failed = {
        name: code
        for name, code in codes.items()
        if code not in (0, STOPPED) and not (may_fail and code == FAILURE)
    }
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


def run_job(path: Path, options: RunOptions, *, title: str) -> None:
    """Start or resume a run of a series, as a job."""
    member = Member(path.parent, int(path.name.removeprefix("seed")), title)
    try:
        run_member(member, options)
    except StoppedError:
        raise SystemExit(STOPPED) from None  # The parent has a message for all jobs.


def run_member(member: Member, options: RunOptions, *, source: Source | None = None) -> None:
    """Start or resume a run of a series."""
    if member.started:
        resume_run(member.path, options)
        return
    config = read_series(member.series)
    if config is None:
        raise RunError(
            f"{member.series} has lost its {SERIES}. Start or resume {member.title} again."
        )
    source = source or Source(str(member.series / RECIPE))
    loaded = replace(source.load(member.seed), name=config.recipe)
    if config.search_once and loaded.recipe.method == OURS:  # Baselines have no grid.
        learner = loaded.recipe.learner.with_choices(_choices(member.series, config))
        loaded = replace(loaded, recipe=replace(loaded.recipe, learner=learner))
    start_run(loaded, member.path, replace(options, data=options.data or config.data))


def _choices(path: Path, config: SeriesConfig) -> Mapping[str, tuple[Alpha, float]]:
    """Return the alpha and learning rate that the first run chose for each task."""
    result = read_result(run_of(path, config.seeds[0])) or RunResult()
    winners = {record.task: record.candidates[record.winner] for record in result.tasks}
    return {task: (winner.alpha, winner.lr) for task, winner in winners.items()}


def _stopped(path: Path) -> StoppedError:
    return StoppedError(f"Stopped. Resume with {resume_command(path)}.")
