"""A run as its files tell it: candidates, tasks and neurons.

A run may be older than this version, unfinished, or edited by hand: a value that is missing or
damaged is None or empty.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from clnp.core.forecast import Forecast
from clnp.errors import RunError
from clnp.methods.method import OURS
from clnp.report.labels import all_shortened
from clnp.training.events import is_a_guess

from .directory import (
    ENVIRONMENT,
    EVENTS,
    RECIPE,
    expanded,
    read_config,
    read_events,
    read_json,
    read_result,
)


def number(value: Any) -> float | None:
    """The value as a number; text like "nan" is one, because JSON has no other way to write it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def count(value: Any) -> int | None:
    """The value as a whole number that is not negative."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 2**53 else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object of JSON, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is an array of JSON, otherwise an empty one."""
    return value if isinstance(value, list | tuple) else ()


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects in an array of JSON."""
    return [each for each in sequence(value) if isinstance(each, Mapping)]


def counts(value: Any) -> dict[str, int]:
    """The whole numbers in an object of JSON, by name."""
    found = {str(name): count(each) for name, each in mapping(value).items()}
    return {name: each for name, each in found.items() if each is not None}


def flag(value: Any) -> bool | None:
    """The value if it is true or false."""
    return value if isinstance(value, bool) else None


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, with dotted names: {"a": {"b": 1}} == {"a.b": 1}."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value} if prefix else {}
    found: dict[str, Any] = {}
    for name, each in value.items():
        found |= flat(each, f"{prefix}.{name}" if prefix else str(name))
    return found


LONGEST_GROUP = 32
"""Characters of the name of a group in the sentence."""


def room_left(forecast: Mapping[str, Any]) -> str | None:
    """The forecast as a sentence; keys that this version does not know are left out."""
    known = {f.name for f in fields(Forecast)}
    groups = list(mapping(forecast.get("free"))) or [str(forecast.get("bottleneck"))]
    short = dict(zip(groups, all_shortened(groups, LONGEST_GROUP), strict=True))
    try:
        return str(
            Forecast(**{name: _renamed(v, short) for name, v in forecast.items() if name in known})
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with other names of groups in it."""
    if isinstance(value, Mapping):
        return {names.get(key, key): each for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Epoch:
    """The training loss and the validation score at the end of an epoch."""

    loss: float | None
    score: float | None


@dataclass(frozen=True)
class Point:
    """One evaluation on the way to a threshold; `theta` is None where groups have their own."""

    theta: float | None
    num_kept: int
    score: float


@dataclass(frozen=True)
class Pruning:
    """How the threshold of a candidate was found, and what it keeps of each group."""

    curve: tuple[Point, ...]
    best: float | None
    margin: float | None
    score: float | None
    theta: float | None
    kept: Mapping[str, int]

    @property
    def num_kept(self) -> int:
        """Neurons kept over all groups."""
        return sum(self.kept.values())


@dataclass(frozen=True)
class CandidateHistory:
    """One combination of the grid: how it was trained, and how it was pruned if it was."""

    alpha: str
    lr: float | None
    score: float | None
    diverged: str | None
    epochs: tuple[Epoch, ...]
    pruning: Pruning | None

    @property
    def name(self) -> str:
        """Alpha and learning rate, as one reads them."""
        lr = "?" if self.lr is None else f"{self.lr:g}"
        return f"alpha {self.alpha}, lr {lr}"


@dataclass(frozen=True)
class TaskHistory:
    """A task: its scores, its neurons, its candidates; not `learnt` if it is still being trained.

    `test_score` is from when it was learnt, None if all were learnt at the same time; `now` is from
    after the last task; `tuning` are the epochs of all rounds of fine-tuning. It `is_a_guess` if
    always naming the same class is known to be as good.
    """

    name: str
    learnt: bool
    is_a_guess: bool
    classification: bool
    test_score: float | None
    now: float | None
    unchanged: bool | None
    new: Mapping[str, int]
    reused: Mapping[str, int | None]
    candidates: tuple[CandidateHistory, ...]
    winner: int | None
    tuning: tuple[Epoch, ...]
    certificate: str | None
    seconds: float | None

    @property
    def chosen(self) -> CandidateHistory | None:
        """The candidate that won, once one has."""
        known = self.winner is not None and self.winner < len(self.candidates)
        return self.candidates[self.winner] if known and self.winner is not None else None


@dataclass(frozen=True)
class RunHistory:
    """A run; `tasks` are those that have begun, `scores` the accuracy matrix of those learnt."""

    path: Path
    recipe: str
    method: str
    seed: int | None
    head: str
    num_tasks: int
    finished: bool
    verified: bool
    full: str | None
    failed: str | None
    tasks: tuple[TaskHistory, ...]
    scores: tuple[tuple[float | None, ...], ...]
    sizes: Mapping[str, int]
    outlook: str | None
    num_more: int | None
    stored_bytes: float | None
    seconds: float | None
    peak_bytes: float | None
    config: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]
    text: str
    num_events: int
    num_damaged: int
    damaged: str | None

    @property
    def learnt(self) -> tuple[TaskHistory, ...]:
        """The tasks that have ended."""
        return tuple(task for task in self.tasks if task.learnt)

    def used(self, group: str) -> list[int]:
        """How many neurons of the group are claimed at the start and after each task."""
        found = [0]
        for task in self.learnt:
            found.append(found[-1] + task.new.get(group, 0))
        return found


def read_run(path: str | os.PathLike[str]) -> RunHistory:
    """The history of the run at `path`; a `RunError` if it is none."""
    place = expanded(path)
    config = read_config(place)
    damaged = None
    try:
        result = mapping(read_result(place))
    except RunError as error:
        result, damaged = {}, str(error)
    events = read_events(place)
    forecast, timings = mapping(result.get("forecast")), mapping(result.get("timings"))
    failures = [event.get("reason") for event in events if event.get("event") == "failed"]
    sessions = mappings(read_json(place, ENVIRONMENT, []))
    tasks = _read_tasks(config, result, events)
    sizes = counts(mapping(result.get("capacity")).get("sizes"))
    stored = counts(result.get("stored_bytes"))
    full = result.get("full")
    num_lines = _num_lines(place)
    return RunHistory(
        path=place,
        recipe=str(config.get("recipe") or name_of(place)),
        method=str(result.get("method") or config.get("method") or OURS),
        seed=count(config.get("seed")),
        head=str(config.get("head", "?")),
        num_tasks=len(sequence(config.get("tasks"))),
        finished=result.get("finished") is True,
        # The last event of a run comes after its certificates have been computed once more.
        verified=any(event.get("event") == "finished" for event in events),
        full=None if full is None else str(full),
        failed=str(failures[-1]) if failures and events[-1].get("event") == "failed" else None,
        tasks=tasks,
        scores=_square(result, num_tasks=sum(task.learnt for task in tasks)),
        sizes={group: size for group, size in sizes.items() if size},
        outlook=room_left(forecast) if sizes and tasks else None,
        num_more=count(forecast.get("num_tasks")),
        stored_bytes=sum(stored.values()) if stored else None,
        seconds=number(timings.get("seconds")),
        peak_bytes=number(timings.get("peak_bytes")),
        config=config,
        sessions=sessions,
        text=_recipe_text(place),
        num_events=len(events),
        num_damaged=num_lines - len(events),
        damaged=damaged,
    )


def name_of(place: Path) -> str:
    """The name of a directory, also of `.`."""
    return Path(os.path.abspath(place)).name


def _num_lines(place: Path) -> int:
    try:
        lines = (place / EVENTS).read_bytes().splitlines()
    except OSError:
        return 0
    return sum(1 for line in lines if line.strip())


def _recipe_text(place: Path) -> str:
    try:
        return (place / RECIPE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _square(result: Mapping[str, Any], *, num_tasks: int) -> tuple[tuple[float | None, ...], ...]:
    """The accuracy matrix; row i has i + 1 scores, whatever the file holds."""
    rows = [[number(score) for score in sequence(row)] for row in sequence(result.get("scores"))]
    rows = rows[:num_tasks]
    return tuple(tuple((*row, *[None] * (i + 1))[: i + 1]) for i, row in enumerate(rows))


def _at_once(scores: Sequence[Sequence[float | None]]) -> bool:
    """Whether tasks have a score in the end and none from when they were learnt."""
    if not scores:
        return False
    then = [row[-1] for row in scores]
    return any(a is None and b is not None for a, b in zip(then, scores[-1], strict=True))


def _read_tasks(
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
) -> tuple[TaskHistory, ...]:
    """The tasks that were learnt, as the result has them, and after them the one in training."""
    told: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if isinstance(event.get("task"), str):
            told.setdefault(event["task"], []).append(event)
    records = {str(r["task"]): r for r in mappings(result.get("tasks")) if "task" in r}
    objectives = {str(t.get("name")): t.get("objective") for t in mappings(config.get("tasks"))}
    begun = [name for name, own in told.items() if any(e["event"] == "epoch" for e in own)]
    last = sequence((sequence(result.get("scores")) or [[]])[-1])
    seconds = sequence(mapping(result.get("timings")).get("tasks"))
    at_once = _at_once(_square(result, num_tasks=len(records)))
    found = []
    for place, name in enumerate(dict.fromkeys([*records, *begun])):
        record = records.get(name, {})
        own = told.get(name, [])
        objective = record.get("objective", objectives.get(name))
        certificate = mapping(result.get("certificates")).get(name)
        new, reused = _usage(name, record, result)
        candidates, winner = _candidates(record, own)
        tuning = [e for e in own if e["event"] == "epoch" and "round" in e]
        found.append(
            TaskHistory(
                name=name,
                learnt=name in records,
                is_a_guess=_is_a_guess(record),
                classification=objective == "classification",
                test_score=None if at_once else number(record.get("test_score")),
                now=number(last[place]) if place < len(last) else None,
                unchanged=flag(record.get("unchanged")),
                new=new,
                reused=reused,
                candidates=candidates,
                winner=winner,
                tuning=_epochs(tuning),
                certificate=certificate if isinstance(certificate, str) else None,
                seconds=number(seconds[place]) if place < len(seconds) else None,
            )
        )
    return tuple(found)


def _is_a_guess(record: Mapping[str, Any]) -> bool:
    """Whether guessing scores as much on the validation data; no, where that is not known."""
    score = number(record.get("score"))
    return score is not None and is_a_guess(score, number(record.get("guess")))


def _usage(
    name: str, record: Mapping[str, Any], result: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, int | None]]:
    """What the task claimed of each group, and what it reused of it."""
    new: dict[str, int] = counts(record.get("new"))
    reused: dict[str, int | None] = {
        str(group): count(value) for group, value in mapping(record.get("reused")).items()
    }
    for usage in mappings(mapping(result.get("capacity")).get("usages")):
        if usage.get("task") == name and (claimed := count(usage.get("new"))) is not None:
            new[str(usage.get("group"))] = claimed
            reused[str(usage.get("group"))] = count(usage.get("reused"))
    return new, reused


def _candidates(
    record: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> tuple[tuple[CandidateHistory, ...], int | None]:
    """The grid of a task, and the place of its winner."""
    known: dict[int, Mapping[str, Any]] = dict(enumerate(mappings(record.get("candidates"))))
    epochs: dict[int, list[Mapping[str, Any]]] = {}
    plans: dict[int, Mapping[str, Any]] = {}
    winner = count(record.get("winner"))
    for event in events:
        place = count(event.get("candidate"))
        if place is None:
            continue
        if event["event"] == "epoch" and "round" not in event:
            epochs.setdefault(place, []).append(event)
        elif event["event"] == "candidate":
            known.setdefault(place, event)
        elif event["event"] == "pruning":
            plans[place] = mapping(event.get("plan"))
        elif event["event"] == "chosen" and winner is None:
            winner = place
    places = sorted({*known, *epochs})
    found = tuple(
        CandidateHistory(
            alpha=_alpha(known.get(place, {}).get("alpha")),
            lr=number(known.get(place, {}).get("lr")),
            score=number(known.get(place, {}).get("score")),
            diverged=known.get(place, {}).get("diverged"),
            epochs=_epochs(epochs.get(place, [])),
            pruning=_pruning(plans.get(place, {})),
        )
        for place in places
    )
    return found, places.index(winner) if winner in places else None


def _alpha(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{layer} {_alpha(each)}" for layer, each in value.items())
    found = number(value)
    return "?" if found is None else f"{found:g}"


def _epochs(events: Sequence[Mapping[str, Any]]) -> tuple[Epoch, ...]:
    return tuple(Epoch(number(e.get("loss")), number(e.get("score"))) for e in events)


def _pruning(plan: Mapping[str, Any]) -> Pruning | None:
    curve = []
    for point in mappings(plan.get("curve")):
        score = number(point.get("score"))
        if score is not None:
            num_kept = sum(counts(point.get("kept")).values())
            curve.append(Point(_theta(point.get("thresholds")), num_kept, score))
    if not plan:
        return None
    kept = {str(group): len(sequence(n)) for group, n in mapping(plan.get("keep")).items()}
    return Pruning(
        curve=tuple(curve),
        best=number(plan.get("best")),
        margin=number(plan.get("margin")),
        score=number(plan.get("score")),
        theta=_theta(plan.get("thresholds")),
        kept=kept,
    )


def _theta(thresholds: Any) -> float | None:
    """The threshold, where all groups have the same."""
    values = {number(each) for each in mapping(thresholds).values()}
    return values.pop() if len(values) == 1 else None
