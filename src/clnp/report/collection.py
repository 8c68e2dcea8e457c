"""The runs that a report is about: one, several seeds, several methods, or what was named."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clnp.errors import RunError
from clnp.methods.method import OURS
from clnp.runs.directory import CONFIG, EVENTS, again, command, expanded
from clnp.runs.records import RunHistory, TaskHistory, flat, mappings, name_of, read_run, sequence
from clnp.studies.comparison import read_comparison
from clnp.studies.series import SERIES, read_series, run_of
from clnp.text import clean


@dataclass(frozen=True)
class Member:
    """One line of an overlay: a run, or the runs of one method and setting with several seeds.

    `comparison` is the directory of the comparison that it comes from, if it comes from one.
    """

    label: str
    runs: tuple[RunHistory, ...]
    comparison: Path | None = None

    @property
    def has_neurons(self) -> bool:
        """Whether a task of it claims neurons; baselines have none."""
        return any(run.sizes and run.learnt for run in self.runs)

    @property
    def num_tasks(self) -> int:
        """The most tasks that a run of it has learnt."""
        return max(len(run.learnt) for run in self.runs)

    @property
    def longest(self) -> RunHistory:
        """The run that has learnt the most tasks; the first of them."""
        return max(self.runs, key=lambda run: len(run.learnt))

    @property
    def groups(self) -> list[str]:
        """The groups of neurons, in the order of the network."""
        return list(self.longest.sizes)

    def task(self, place: int) -> list[TaskHistory]:
        """The task at this place, in every run that has begun it."""
        return [run.tasks[place] for run in self.runs if place < len(run.tasks)]


@dataclass(frozen=True)
class Collection:
    """All that a report is about, and what its reader has to know about it beforehand."""

    title: str
    members: tuple[Member, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> tuple[RunHistory, ...]:
        """The runs of all members."""
        return tuple(run for member in self.members for run in member.runs)

    @property
    def single(self) -> RunHistory | None:
        """The run, if there is one only."""
        return self.runs[0] if len(self.runs) == 1 else None

    @property
    def num_tasks(self) -> int:
        """The most tasks that a run has learnt."""
        return max(member.num_tasks for member in self.members)

    @property
    def with_neurons(self) -> tuple[Member, ...]:
        """The members whose tasks claim neurons."""
        return tuple(member for member in self.members if member.has_neurons)

    @property
    def groups(self) -> list[str]:
        """The groups of neurons, in the order of the network."""
        return list(dict.fromkeys(group for run in self.runs for group in run.sizes))

    @property
    def names(self) -> list[str]:
        """The names of the tasks that have begun; numbers where runs have other tasks."""
        rows = [[task.name for task in run.tasks] for run in self.runs]
        longest = max(rows, key=len)
        if all(row == longest[: len(row)] for row in rows):
            return longest
        return [f"task {number}" for number in range(1, len(longest) + 1)]

    @property
    def score_name(self) -> str:
        """What scores are: accuracies in percent if all tasks are classified."""
        tasks = [task for run in self.runs for task in run.tasks]
        return "accuracy, %" if all(task.classification for task in tasks) else "score"


def read_collection(paths: Sequence[str | os.PathLike[str]]) -> Collection:
    """The runs at these paths, each a run, a series or a comparison; a `RunError` if one is none.

    Runs that differ in nothing but their seed are one member. A run of a series or a comparison
    that cannot be read is left out, and a note says so.
    """
    named: dict[str, Path] = {}
    for place in map(expanded, paths):
        named.setdefault(os.path.realpath(place), place)
    places = list(named.values())
    if not places:
        raise RunError("name a run to report on")
    notes: list[str] = []
    found = [member for place in places for member in _members(place, notes, alone=len(places) < 2)]
    if not found:
        raise RunError(
            f"there is nothing to report on in {places[0]}: no run has begun, or none can be "
            f"read; {again(places[0])} goes on with it"
        )
    title = _title(found := _grouped(found))
    members = tuple(
        replace(member, label=label) for label, member in zip(_labels(found), found, strict=True)
    )
    notes += [note for run in _all_runs(members) for note in _notes(run, _called(run, members))]
    return Collection(title, members, tuple(dict.fromkeys(notes)))


def _all_runs(members: Sequence[Member]) -> list[RunHistory]:
    return [run for member in members for run in member.runs]


def _members(place: Path, notes: list[str], *, alone: bool) -> Iterator[Member]:
    if comparison := read_comparison(place):
        for method in sequence(comparison.get("methods")):
            runs = _series_runs(place / str(method), notes, str(method))
            if runs:
                yield Member(str(method), runs, place)
    elif read_series(place):
        runs = _series_runs(place, notes, name_of(place))
        if runs:
            yield Member(name_of(place), runs)
    elif seeds := _seeds_in(place):
        for run in _read_seeds(place, seeds, notes, name_of(place)):
            yield Member(name_of(run.path), (run,))
    elif inside := _runs_in(place):
        raise RunError(
            f"{place} is not a run, but there are runs in it: name those that belong into the "
            f"report, {inside[0]} for example"
        )
    elif alone:
        yield Member(name_of(place), (read_run(place),))
    else:
        try:
            yield Member(name_of(place), (_whole_run(place),))
        except RunError as error:
            if not os.path.isfile(place / CONFIG):
                raise  # It is no run: a slip of the pen, which a report without it would hide.
            notes.append(f"{place} is left out: {error}.")


def _seeds_in(place: Path) -> list[int]:
    """The seeds of the runs in a directory that is none: seed0, seed1 and so on."""
    if os.path.isfile(place / CONFIG):
        return []
    found = (re.fullmatch(r"seed(\d+)", path.parent.name) for path in place.glob(f"*/{CONFIG}"))
    return sorted({int(name[1]) for name in found if name is not None})


def _runs_in(place: Path) -> list[Path]:
    """The directories in one that is no run which are runs, or have seed0, seed1 in them."""
    if os.path.isfile(place / CONFIG):
        return []
    runs = [path.parent for path in place.glob(f"*/{CONFIG}")]
    seeds = [path.parent.parent for path in place.glob(f"*/seed*/{CONFIG}")]
    return sorted({*runs, *seeds})


def _grouped(members: Sequence[Member]) -> list[Member]:
    """The members; runs that differ in nothing but their seed are one of them."""
    alike: dict[str, list[Member]] = {}
    for place, member in enumerate(members):
        key = str(place)
        if len(member.runs) == 1 and member.comparison is None:
            key = json.dumps(settings_of(member.runs[0]), sort_keys=True)
        alike.setdefault(key, []).append(member)
    found: list[Member] = []
    for own in alike.values():
        runs = sorted((run for member in own for run in member.runs), key=lambda run: run.seed or 0)
        # Two runs with the same seed are there to be compared: of another version, for example.
        if len(own) == 1 or len({run.seed for run in runs} - {None}) < len(runs):
            found += own
        else:
            found.append(Member(_common_name(runs), tuple(runs)))
    return found


def _common_name(runs: Sequence[RunHistory]) -> str:
    """What the names of the directories have before the seed: own-0 and own-1 are own."""
    names = [name_of(run.path) for run in runs]
    starts = {re.sub(r"((^|[\W_]+)seed)?[\W_]*\d+$", "", name) for name in names}
    places = {name_of(run.path.parent) for run in runs}
    if starts == {""} and len(places) == 1:
        return places.pop()
    if len(starts) == 1 and starts != {""}:
        return starts.pop()
    return f"{names[0]} and {len(names) - 1} more"


def _whole_run(path: Path) -> RunHistory:
    """The run; a `RunError` also if its result is damaged, without which it adds to no mean."""
    run = read_run(path)
    if run.damaged is not None:
        raise RunError(run.damaged)
    return run


def _series_runs(place: Path, notes: list[str], name: str) -> tuple[RunHistory, ...]:
    try:
        seeds = [int(seed) for seed in sequence(read_series(place).get("seeds"))]
    except (RunError, TypeError, ValueError) as error:
        notes.append(f"{name} is left out: {error}.")
        return ()
    if not seeds:
        notes.append(f"{name} has not begun, or its {SERIES} does not say which seeds it has.")
    return _read_seeds(place, seeds, notes, name)


def _read_seeds(
    place: Path, seeds: Sequence[int], notes: list[str], name: str
) -> tuple[RunHistory, ...]:
    """The runs with these seeds; those that cannot be read are left out, and a note says so."""
    runs = []
    for seed in seeds:
        path = run_of(place, seed)
        if not os.path.isfile(path / CONFIG):
            notes.append(f"{name}: the run with seed {seed} has not begun.")
            continue
        try:
            runs.append(_whole_run(path))
        except RunError as error:
            notes.append(f"{name}: the run with seed {seed} is left out: {error}.")
    return tuple(runs)


def _labels(members: Sequence[Member]) -> list[str]:
    """The shortest kind of name that tells all members apart."""
    if len(members) == 1:
        run = members[0].runs[0]
        return [run.method if len(members[0].runs) > 1 else name_of(run.path)]
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
    """The recipe, or what a run that has none is called after."""
    return str(member.runs[0].config.get("recipe") or member.label)


def settings_of(run: RunHistory) -> dict[str, Any]:
    """The config of a run by dotted keys, but for what another seed or machine changes by itself.

    Where the seed draws an order of the inputs, `prepare` of a task is another.
    """
    tasks = [
        {key: value for key, value in task.items() if key != "prepare"}
        for task in mappings(run.config.get("tasks"))
    ]
    config = {**run.config, "tasks": tasks} if tasks else run.config
    return {k: v for k, v in flat(config).items() if k not in ("seed", "data")}


def _title(members: Sequence[Member]) -> str:
    runs = _all_runs(members)
    recipes = list(dict.fromkeys(clean(_recipe(member)) for member in members))
    if len(members) > 1:
        compared = f"{len(members)} {_kind(members)} compared"
        if not all(run.config.get("recipe") for run in runs):
            return compared
        return f"{recipes[0] if len(recipes) == 1 else f'{len(recipes)} recipes'}: {compared}"
    if len(runs) > 1:
        return f"{recipes[0]}, {len(runs)} seeds"
    method = "" if runs[0].method == OURS else f" by {clean(runs[0].method)}"
    return f"{recipes[0]}{method}, seed {'?' if runs[0].seed is None else runs[0].seed}"


def _kind(members: Sequence[Member]) -> str:
    methods = {member.runs[0].method for member in members}
    return "methods" if len(methods) == len(members) else "runs"


def _called(run: RunHistory, members: Sequence[Member]) -> str:
    """How a note names the run; nothing, where there is one only."""
    if sum(len(member.runs) for member in members) == 1:
        return ""
    member = next(member for member in members if run in member.runs)
    if len(member.runs) == 1:
        return member.label
    label = f"{member.label}, " if len(members) > 1 else ""
    return f"{label}seed {run.seed}"


def _notes(run: RunHistory, name: str) -> Iterator[str]:
    """What a reader has to know about a run before he reads its numbers."""
    where, the, there = (f"{name}: ", "the", "there") if name else ("", "The", "There")
    num = len(run.learnt)
    if run.failed is not None:
        yield f"{where}{the} run failed after {num} of {run.num_tasks} tasks: {run.failed}."
    elif not run.finished:
        begun = next((task.name for task in run.tasks if not task.learnt), None)
        last = f"; {clean(begun)} is being trained" if begun else ""
        yield (
            f"{where}{the} run is not finished: {num} of {run.num_tasks} tasks are learnt{last}; "
            f"{again(run.path)} goes on with it."
        )
    if run.full is not None:
        reason = run.full.partition(". ")[0]
        yield f"{where}{the} network was full after {num} of {run.num_tasks} tasks: {reason}."
    if run.damaged is not None:
        yield f"{where}{run.damaged}. What it says is left out."
    if run.num_damaged:
        lines = "1 line" if run.num_damaged == 1 else f"{run.num_damaged} lines"
        verb = "is" if run.num_damaged == 1 else "are"
        yield f"{where}{lines} of {EVENTS} {verb} damaged and left out; curves may have gaps."
    if not run.num_events:
        yield f"{where}{there} is no {EVENTS}: training and pruning curves are missing."
    if any(task.unchanged is False for task in run.learnt) and run.method == OURS:
        check = command("verify", run.path)
        yield f"{where}OUTPUTS OF AN ENDED TASK HAVE CHANGED, which must not happen: {check}."
