"""The runs of a report, read from the paths of runs, series and comparisons."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clnp.errors import RunError
from clnp.plain import flat, to_plain
from clnp.records import OURS, RunConfig, SettingsSource
from clnp.runs.directory import (
    CONFIG,
    EVENTS,
    command,
    expanded,
    name_of,
    resume_command,
)
from clnp.runs.history import RunHistory, TaskHistory, read_run
from clnp.studies.study import SERIES, read_comparison, read_series, run_of, settings_sources
from clnp.text import clean

MOST_NAMED = 4
"""Runs that a note names if several have the same note."""


@dataclass(frozen=True)
class Member:
    """A run, or all seeds of one method and setting.

    `comparison` is the directory of the comparison that it belongs to, if any, and `settings` says
    where those of its method come from.
    """

    label: str
    runs: tuple[RunHistory, ...]
    comparison: Path | None = None
    settings: SettingsSource | None = None

    @property
    def has_neurons(self) -> bool:
        """Whether its tasks claim neurons. Those of baselines do not."""
        return any(run.sizes and run.learned for run in self.runs)

    @property
    def num_tasks(self) -> int:
        """The largest number of tasks that a run has learned."""
        return max(len(run.learned) for run in self.runs)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of neurons of each layer, in the order of the network."""
        return dict(max(self.runs, key=lambda run: len(run.learned)).sizes)

    def task(self, index: int) -> list[TaskHistory]:
        """The task at this index, in every run that has started it."""
        return [run.tasks[index] for run in self.runs if index < len(run.tasks)]

    def learned(self, index: int) -> list[TaskHistory]:
        """The task at this index, in every run that has learned it."""
        return [task for task in self.task(index) if task.learned]


@dataclass(frozen=True)
class Collection:
    """The runs of a report, notes that belong at its top, and why paths were left out."""

    title: str
    members: tuple[Member, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[RunHistory, ...]:
        """The runs of all members."""
        return tuple(run for member in self.members for run in member.runs)

    @property
    def single(self) -> RunHistory | None:
        """The run, if there is only one."""
        return self.runs[0] if len(self.runs) == 1 else None

    @property
    def num_tasks(self) -> int:
        """The largest number of tasks that a run has learned."""
        return max(member.num_tasks for member in self.members)

    @property
    def with_neurons(self) -> tuple[Member, ...]:
        """The members whose tasks claim neurons."""
        return tuple(member for member in self.members if member.has_neurons)

    @property
    def names(self) -> list[str]:
        """The names of all tasks that have started; numbers if runs have different tasks."""
        rows = [[task.name for task in run.tasks] for run in self.runs]
        longest = max(rows, key=len)
        if all(row == longest[: len(row)] for row in rows):
            return longest
        return [f"task {number}" for number in range(1, len(longest) + 1)]

    @property
    def is_accuracy(self) -> bool:
        """Whether scores are accuracies in percent: all tasks are classification."""
        return all(task.classification for run in self.runs for task in run.tasks)

    @property
    def score_name(self) -> str:
        """The label of an axis with scores."""
        return "accuracy, %" if self.is_accuracy else "score"


def read_collection(paths: Sequence[str | os.PathLike[str]]) -> Collection:
    """Read the runs at these paths. Runs that differ only in their seed are one member.

    A run that cannot be read is left out, and a note says so.

    Raises:
        RunError: If there is nothing to show.
    """
    unique = {os.path.realpath(path): path for path in map(expanded, paths)}
    notes: list[str] = []
    found: list[Member] = []
    errors: list[RunError] = []
    for path in unique.values():
        try:
            found += _read_members(path, notes)
        except RunError as error:
            errors.append(error)
    notes += [f"Left out: {error}" for error in errors]
    if errors and not found:
        raise errors[0]
    if not found:
        first = expanded(paths[0])
        raise RunError(
            f"There is nothing to report on in {first}: no run has started, or none can be read. "
            f"Resume it with {resume_command(first)}."
        )
    found = _merge_seeds(found)
    title = _title(found)
    members = tuple(
        replace(member, label=label) for label, member in zip(_labels(found), found, strict=True)
    )
    notes += [*_all_notes(members), *_settings_notes(members)]
    return Collection(title, members, tuple(dict.fromkeys(notes)), tuple(map(str, errors)))


def _read_members(path: Path, notes: list[str]) -> Iterator[Member]:
    name = name_of(path)
    if comparison := read_comparison(path):
        for method in comparison.methods or ():
            if runs := _read_series_runs(path / method, notes, method):
                yield Member(method, runs, path, settings_sources(path, [method])[method])
    elif os.path.isfile(path / SERIES):
        if runs := _read_series_runs(path, notes, name):
            yield Member(name, runs)
    elif os.path.isfile(path / CONFIG):
        yield Member(name, (read_run(path),))
    elif seeds := _find_seeds(path):
        for run in _read_seeds(path, seeds, notes, name):
            yield Member(name_of(run.path), (run,))
    elif inside := _find_runs(path):
        raise RunError(
            f"{path} is not a run, but it contains runs. Give those that belong in the report, "
            f"{inside[0]} for example."
        )
    else:
        read_run(path)  # Raises an error that says what is missing.


def _read_series_runs(path: Path, notes: list[str], name: str) -> tuple[RunHistory, ...]:
    try:
        series = read_series(path)
    except RunError as error:
        notes.append(f"{name} is left out. {error}")
        return ()
    if series is None or not series.seeds:
        notes.append(f"{name} has not started.")
        return ()
    return _read_seeds(path, series.seeds, notes, name)


def _read_seeds(
    path: Path, seeds: Sequence[int], notes: list[str], name: str
) -> tuple[RunHistory, ...]:
    runs = []
    for seed in seeds:
        directory = run_of(path, seed)
        if not os.path.isfile(directory / CONFIG):
            notes.append(f"{name}: the run with seed {seed} has not started.")
            continue
        try:
            run = read_run(directory)
            if run.damaged is not None:  # It has nothing for a mean.
                raise RunError(run.damaged)
            runs.append(run)
        except RunError as error:
            notes.append(f"{name}: the run with seed {seed} is left out. {error}")
    return tuple(runs)


def _find_seeds(path: Path) -> list[int]:
    """Return the seeds of runs in a directory without `series.json`: seed0, seed1, ..."""
    found = (re.fullmatch(r"seed(\d+)", file.parent.name) for file in path.glob(f"*/{CONFIG}"))
    return sorted({int(name[1]) for name in found if name is not None})


def _find_runs(path: Path) -> list[Path]:
    """Return the directories in this one that are runs, or contain seed0, seed1, ..."""
    runs = {file.parent for file in path.glob(f"*/{CONFIG}")}
    return sorted(runs | {file.parent.parent for file in path.glob(f"*/seed*/{CONFIG}")})


def settings_of(run: RunHistory) -> dict[str, object]:
    """Return the config of a run with dotted keys, without all that depends on seed or machine.

    A seed that draws a permutation of the inputs changes `prepare` of a task.
    """
    tasks = tuple(replace(task, prepare=None) for task in run.config.tasks)
    return config_of(replace(run.config, tasks=tasks), without=("seed", "data"))


def config_of(config: RunConfig, *, without: Sequence[str]) -> dict[str, object]:
    """Return a config with dotted keys, without some of them."""
    plain: dict[str, object] = to_plain(config)
    return {key: value for key, value in flat(plain).items() if key not in without}


def _merge_seeds(members: Sequence[Member]) -> list[Member]:
    """Return the members; single runs with the same settings become one."""
    alike: dict[str, list[Member]] = {}
    for index, member in enumerate(members):
        key = str(index)
        if len(member.runs) == 1 and member.comparison is None:
            key = json.dumps(settings_of(member.runs[0]), sort_keys=True)
        alike.setdefault(key, []).append(member)
    found: list[Member] = []
    for own in alike.values():
        runs = sorted((run for member in own for run in member.runs), key=lambda run: run.seed or 0)
        # Two runs with the same seed are there to be compared: two versions, for example.
        if len(own) == 1 or len({run.seed for run in runs} - {None}) < len(runs):
            found += own
        else:
            found.append(Member(_common_name(runs), tuple(runs)))
    return found


def _common_name(runs: Sequence[RunHistory]) -> str:
    """Return the name that the directories have without the seed: own-0 and own-1 become own."""
    names = [name_of(run.path) for run in runs]
    starts = {re.sub(r"((^|[\W_]+)seed)?[\W_]*\d+$", "", name) for name in names}
    parents = {name_of(run.path.parent) for run in runs}
    if starts == {""} and len(parents) == 1:
        return parents.pop()
    if len(starts) == 1 and starts != {""}:
        return starts.pop()
    return f"{names[0]} and {len(names) - 1} more"


def _labels(members: Sequence[Member]) -> list[str]:
    """Return the shortest kind of name that distinguishes all members."""
    if len(members) == 1:
        run = members[0].runs[0]
        return [clean(run.method if len(members[0].runs) > 1 else name_of(run.path))]
    kinds: list[Callable[[Member], str]] = [
        lambda m: m.runs[0].method,
        _recipe,
        lambda m: f"{_recipe(m)}, {m.runs[0].method}",
        lambda m: m.label,
        lambda m: f"{name_of(m.comparison or m.runs[0].path.parent)}/{m.label}",
    ]
    for kind in kinds:
        labels = [clean(kind(member)) for member in members]
        if len(set(labels)) == len(labels):
            return labels
    return [clean(member.runs[0].path) for member in members]


def _recipe(member: Member) -> str:
    return member.runs[0].config.recipe or member.label


def _title(members: Sequence[Member]) -> str:
    runs = [run for member in members for run in member.runs]
    recipes = list(dict.fromkeys(clean(_recipe(member)) for member in members))
    if len(members) > 1:
        methods = {member.runs[0].method for member in members}
        kind = "methods" if len(methods) == len(members) else "runs"
        compared = f"{len(members)} {kind} compared"
        if not all(run.config.recipe for run in runs):
            return compared
        return f"{recipes[0] if len(recipes) == 1 else f'{len(recipes)} recipes'}: {compared}"
    if len(runs) > 1:
        return f"{recipes[0]}, {len(runs)} seeds"
    method = "" if runs[0].method == OURS else f" by {clean(runs[0].method)}"
    return f"{recipes[0]}{method}, seed {'?' if runs[0].seed is None else runs[0].seed}"


def _all_notes(members: Sequence[Member]) -> Iterator[str]:
    """Return the notes on all runs; those that several runs have in common are one."""
    found: dict[str, list[str]] = {}
    for member in members:
        for run in member.runs:
            names = [member.label] if len(members) > 1 else []
            names += [f"seed {run.seed}"] if len(member.runs) > 1 else []
            for note in _notes(run):
                found.setdefault(note, []).append(clean(", ".join(names)) if names else "")
    for note, names in found.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        where = "; ".join(names[:MOST_NAMED]) + more
        yield f"{where}: {note}" if where else note[:1].upper() + note[1:]


def _settings_notes(members: Sequence[Member]) -> Iterator[str]:
    """Return where the settings of a single method come from; a table has footnotes."""
    if len(members) == 1 and (source := members[0].settings) is not None:
        yield f"{members[0].label}: {source.note}."


def _notes(run: RunHistory) -> Iterator[str]:
    """Return what a reader has to know about a run before its numbers."""
    num = f"{len(run.learned)} of {run.num_tasks} tasks"
    if run.failed is not None:
        yield f"the run failed after {num}: {run.failed.rstrip('.')}."
    elif run.damaged is None and not run.finished:
        open_task = next((task.name for task in run.tasks if not task.learned), None)
        current = f"; {clean(open_task)} is in training" if open_task else ""
        yield (
            f"the run is not finished: {num} are learned{current}. Resume it with "
            f"{resume_command(run.path)}."
        )
    if run.full is not None:
        yield f"the network was full after {num}: {run.full.partition('. ')[0].rstrip('.')}."
    if run.damaged is not None:
        yield f"the result is left out. {run.damaged}"
    if run.network is not None:
        yield f"the {run.network}"
    if run.num_damaged:
        damaged = run.num_damaged
        yield f"damaged lines of the log {EVENTS} are left out: {damaged}. Curves may have gaps."
    if not run.num_events:
        yield f"the log {EVENTS} is missing, and with it training and pruning curves."
    if any(task.unchanged is False for task in run.learned) and run.method == OURS:
        yield (
            "the OUTPUTS OF AN ENDED TASK HAVE CHANGED, which must not happen. Check it with "
            f"`{command('verify', run.path)}`."
        )
