"""A search for the settings of methods, before the comparison that reports them.

Trials are judged by their validation scores after the last task, with seeds that are not reported.
In the directory of the comparison are

tuned.toml                      the chosen settings, as tables for a recipe
tuning/ewc/tuning.json          the `TuningRecord` of a method: every trial and its score
tuning/ewc/trial-003/           the runs of a trial, a series like any other
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clnp.errors import RunError
from clnp.methods.registry import NAMES, baseline_of
from clnp.plain import to_json
from clnp.recipes.recipe import Recipe
from clnp.recipes.schema import to_data
from clnp.recipes.toml import Table, document_text, dotted, value_text
from clnp.records import (
    FORMAT,
    OURS,
    RunFailed,
    RunResult,
    SeriesConfig,
    TrialRecord,
    TuningRecord,
)
from clnp.runs.directory import RECIPE, read_events, read_result, writing
from clnp.storage.atomic import replace_file
from clnp.training.config import Training
from clnp.training.search import Ask, Between, OneOf, Settings, SpreadThenNear, Times, Trial

from .launch import RunOptions, Source
from .series import begin_series, run_members
from .study import (
    TUNING,
    has_started,
    open_trials,
    read_series,
    read_tuning,
    run_of,
    trial_path,
    tuning_path,
)

SEEDS = (1000, 1001)
"""The seeds of all trials."""
BUDGET = 20
"""Trials of a method, unless the user says otherwise."""
TOGETHER = 8
"""So many trials are asked for at a time. They can run at the same time."""
TUNED = "tuned.toml"
TUNABLE = tuple(name for name in NAMES if name != OURS)

Searches = Callable[[dict[str, Between | OneOf], str], Ask]
"""Returns a search, given its space and a seed."""


def default_search(space: dict[str, Between | OneOf], seed: str) -> Ask:
    """Return the search that proposes trials unless the caller has another one."""
    return SpreadThenNear(space, seed).ask


def check_tuning(path: Path, config: SeriesConfig) -> None:
    """Raise a `RunError` if the methods of a comparison cannot be tuned as its config says."""
    tuned = config.tuned or ()
    for name in tuned:
        if name not in TUNABLE:
            raise RunError(
                f"{name} cannot be tuned: what a task gives up for free neurons is your choice. "
                f"Tune {', '.join(TUNABLE)}."
            )
        record = read_tuning(path, name)
        spent = 0 if record is None else record.budget
        if has_started(path / name, config.seeds) and spent < (config.budget or 0):
            raise RunError(
                f"{path} contains runs of {name} with settings from {spent} trials. Choose another "
                "directory to tune it further."
            )
    both = sorted({*config.seeds} & {*SEEDS}) if tuned else []
    if both:
        raise RunError(
            f"seed {both[0]} is one of those for tuning, {' '.join(map(str, SEEDS))}. Report other "
            "seeds."
        )


def tune(
    path: Path, config: SeriesConfig, options: RunOptions, search: Searches = default_search
) -> None:
    """Try settings until the budget of every method is spent, and write those that are chosen.

    The trials of all methods run at the same time. A trial that diverges counts as failed.
    """
    tuned = config.tuned or ()
    while left := [name for name in tuned if not _is_spent(path, name, config)]:
        for name in left:
            _ask(path, name, config, search)
        members = [member for name in left for member in open_trials(path, name)]
        waiting = [member for member in members if not _is_finished(read_result(member.path))]
        run_members(path, waiting, options, may_fail=True)
        for name in left:
            options.console.say(_judge(path, name))
    if tuned:
        with writing(path):
            replace_file(path / TUNED, tuned_text(path, tuned).encode())


def _is_spent(path: Path, name: str, config: SeriesConfig) -> bool:
    record = read_tuning(path, name)
    return record is not None and record.finished and record.budget >= (config.budget or 0)


def _is_finished(result: RunResult | None) -> bool:
    return result is not None and result.finished


def _ask(path: Path, name: str, config: SeriesConfig, search: Searches) -> None:
    """Write the next trials of a method, unless some are still open."""
    budget = config.budget or BUDGET
    record = read_tuning(path, name) or TuningRecord(FORMAT, name, budget, SEEDS)
    trials = record.trials
    space, present = _space(_recipe(path, name))
    if all(trial.status != "open" for trial in trials):
        if not trials:
            trials = (TrialRecord(present),)  # The result is never worse than the recipe.
        known = [Trial(trial.settings, trial.score) for trial in trials]
        count = min(budget, TOGETHER * (len(record.trials) // TOGETHER + 1)) - len(trials)
        found = search(space, name)(known, count)
        trials += tuple(TrialRecord(settings) for settings in found)
        record = replace(record, budget=budget, trials=trials)
        _write(path, record)
    for number, trial in enumerate(trials):
        own = trial_path(path, name, number)
        if trial.status == "open" and read_series(own) is None:
            series = SeriesConfig(
                format=FORMAT,
                recipe=config.recipe,
                seeds=record.seeds,
                data=config.data,
                methods=(name,),
            )
            begin_series(own, series, _recipe(path, name, trial.settings))


def _write(path: Path, record: TuningRecord) -> None:
    own = tuning_path(path, record.method)
    with writing(path):
        own.mkdir(parents=True, exist_ok=True)
        replace_file(own / TUNING, (to_json(record, indent=1) + "\n").encode())


def _judge(path: Path, name: str) -> str:
    """Write the scores of the trials that are open, and return a line about the method."""
    record = read_tuning(path, name) or TuningRecord(method=name)
    trials = tuple(
        _judged(trial, trial_path(path, name, number), record.seeds)
        if trial.status == "open"
        else trial
        for number, trial in enumerate(record.trials)
    )
    scores = [(trial.score, -n) for n, trial in enumerate(trials) if trial.score is not None]
    record = replace(record, trials=trials, best=-max(scores)[1] if scores else None)
    _write(path, record)
    return record.described


def _judged(trial: TrialRecord, path: Path, seeds: Sequence[int]) -> TrialRecord:
    """Return the trial with its score: the mean over seeds and tasks, 0 for tasks without room."""
    results = [read_result(run_of(path, seed)) for seed in seeds]
    seconds = sum(result.timings.seconds for result in results if result is not None)
    scores = []
    for result, seed in zip(results, seeds, strict=True):
        if result is None or not result.finished:
            reason = _reason(run_of(path, seed))
            return replace(trial, status="failed", seconds=seconds, reason=reason)
        if None in result.validation:
            reason = "a task has no validation score"
            return replace(trial, status="failed", seconds=seconds, reason=reason)
        scores.append(sum(map(float, result.validation)) / result.num_tasks)  # type: ignore[arg-type]
    return replace(trial, status="finished", score=statistics.fmean(scores), seconds=seconds)


def _reason(path: Path) -> str:
    """Return why a run failed. One that fails in its first task leaves nothing behind."""
    events = read_events(path) if path.exists() else []
    reasons = [event.reason for event in events if isinstance(event, RunFailed)]
    return reasons[-1] if reasons else "it failed in its first task"


def _recipe(path: Path, name: str, settings: Settings | None = None) -> Recipe:
    """Return the recipe of the comparison for a method, with these settings."""
    source = Source(str(path / RECIPE)).with_method(name)
    return with_settings(source, name, settings or {}).load(SEEDS[0]).recipe


def with_settings(source: Source, name: str, settings: Settings) -> Source:
    """Return the recipe with settings of a method, by dotted key."""
    values = (f"{dotted(['methods', name])}.{k}={value_text(v)}" for k, v in settings.items())
    return replace(source, assignments=(*source.assignments, *values))


def tuned_source(source: Source, path: Path, name: str) -> Source:
    """Return the recipe for a method of a comparison, with the settings chosen for it, if any."""
    source, record = source.with_method(name), read_tuning(path, name)
    if record is None or record.best is None:
        return source
    chosen = f"chosen.{name}={value_text(_chosen(record))}"
    source = with_settings(source, name, record.trials[record.best].settings)
    return replace(source, assignments=(*source.assignments, chosen))


def _chosen(record: TuningRecord) -> Table:
    return {"on": "validation", "trials": len(record.trials), "seeds": list(record.seeds)}


def _space(recipe: Recipe) -> tuple[dict[str, Between | OneOf], Settings]:
    """Return the ranges of the settings of the recipe's method, and the present settings."""
    settings: Any = baseline_of(recipe.methods, recipe.method)
    training = settings.training or recipe.learner.training
    space, present = {}, {}
    for key, values in settings.space.items():
        parent, _, last = key.rpartition(".")
        present[key] = getattr(training if parent else settings, last)
        space[key] = values.around(present[key]) if isinstance(values, Times) else values
    return space, present


def tuned_text(path: Path, names: Sequence[str]) -> str:
    """Return the chosen settings of these methods as TOML for a recipe."""
    methods, chosen, scores = Table(), Table(), []
    for name in names:
        record = read_tuning(path, name)
        if record is not None and record.best is not None:
            best = record.trials[record.best]
            recipe = _recipe(path, name, best.settings)
            methods[name] = _table(baseline_of(recipe.methods, name), recipe.learner.training)
            chosen[name] = _chosen(record)
            scores.append(f"{name} {best.score:.2f}")
    header = f"Settings with the best validation scores: {', '.join(scores) or 'none'}."
    return document_text({"methods": methods, "chosen": chosen}, header=header)


def _table(settings: Any, shared: Training) -> Table:
    """Return the settings that differ from their defaults, and the training from the shared one."""
    data, default = to_data(settings), to_data(type(settings)())
    own, common = data.pop("training", {}), to_data(shared)
    found = {key: value for key, value in data.items() if value != default[key]}
    training = {key: value for key, value in own.items() if value != common[key]}
    training.pop("alpha", None)  # Baselines have no penalty.
    return {**found, "training": training} if training else found
