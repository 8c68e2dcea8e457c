"""The events of a run as points of curves and as tables, the same for every tracker."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clnp.runs.metrics import average, backward_transfer, forgetting
from clnp.training.events import Event

NAME_LENGTH = 40
"""Characters of a task's name that are shown; its number tells it from others."""

EPOCH = {
    "loss": "loss",
    "penalised_loss": "penalised loss",
    "score": "validation",
    "seconds": "seconds",
    "lr": "learning rate",
}
"""What is told of an epoch, and what it is called."""

ALL = "all tasks"
"""The section of what is said of all tasks together."""

COLUMNS = (
    "candidate",
    "alpha",
    "lr",
    "epochs",
    "validation",
    "validation pruned",
    "neurons kept",
    "chosen",
)


@dataclass(frozen=True)
class Point:
    """A value on a curve.

    Curves with the same `section` and `measure` belong into one picture; `part` tells them apart,
    "candidate 2" for example. Curves without a part go over tasks, those with one over epochs.
    """

    section: str
    measure: str
    step: int
    value: float
    part: str | None = None


@dataclass(frozen=True)
class Table:
    """A table about a task."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        escaped = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
        return "\n".join(f"| {line} |" for line in escaped)


class Curves:
    """Follows the events of a run, from the first on."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._candidates: dict[int, dict[str, Any]] = {}
        self._chosen: int | None = None
        self._reached: dict[int, int] = {}
        self._rounds: dict[int, int] = {}
        self._open: str | None = None
        self._scores: list[list[float | None]] = []

    def read(self, event: Event) -> tuple[list[Point], list[Table]]:
        """The points and tables that come with an event."""
        kind, task = event.get("event"), event.get("task")
        if not isinstance(task, str):
            return [], []
        self._follow(task, event)
        if kind == "epoch":
            return self._epoch(event), []
        if kind == "candidate":
            self._candidate(event["candidate"]).update(event)
        elif kind == "pruning":
            self._candidate(event["candidate"])["plan"] = event["plan"]
        elif kind == "chosen":
            self._chosen = event["candidate"]
        elif kind == "task":
            return self._learnt(event), self._tables()
        elif kind == "evaluation":
            return self._evaluation(event), []
        return [], []

    def finish(self, result: Mapping[str, Any]) -> list[Point]:
        """The points that are known when the run is finished."""
        timings, stored = result.get("timings", {}), result.get("stored_bytes", {})
        values = {
            "seconds": timings.get("seconds"),
            "peak memory MB": timings.get("peak_bytes", 0) / 1e6,
            "stored MB": sum(stored.values()) / 1e6,
        }
        return _points("run", values, step=len(result.get("tasks", [])))

    def _follow(self, task: str, event: Event) -> None:
        """Know which task is being learnt; one that does not begin with an event is the next."""
        if task not in self._labels:
            number = event.get("number") if event.get("event") in ("begin", "resumed") else None
            number = len(self._labels) + 1 if number is None else number
            self._labels[task] = label(number, task, event.get("num_tasks", 0))
        if event["event"] == "begin":
            self._began[task] = event.get("at", 0.0)
        if task != self._open:
            self._open, self._chosen = task, None
            self._candidates, self._reached, self._rounds = {}, {}, {}

    def _candidate(self, number: int) -> dict[str, Any]:
        return self._candidates.setdefault(number, {})

    def _epoch(self, event: Event) -> list[Point]:
        step = event["number"] + 1
        if "round" in event:
            self._rounds[event["round"]] = step
            # To the right of the training that it follows.
            step += sum(self._rounds[n] for n in self._rounds if n < event["round"])
            # A baseline has one candidate, and says nothing of it but its epochs.
            step += self._reached.get(self._chosen or 0, 0)
            part = "fine-tuning"
        else:
            self._reached[event.get("candidate", 0)] = step
            part = f"candidate {event.get('candidate', 0) + 1}"
        values = {name: event.get(key) for key, name in EPOCH.items()}
        return _points(self._labels[event["task"]], values, step=step, part=part)

    def _learnt(self, event: Event) -> list[Point]:
        values = {
            "validation when learnt": event.get("score"),
            "test score when learnt": event.get("test_score"),
        }
        return _points(ALL, values, step=list(self._labels).index(event["task"]) + 1)

    def _evaluation(self, event: Event) -> list[Point]:
        row = [None if score is None else float(score) for score in event["scores"]]
        self._scores = [*self._scores[: len(row) - 1], row]
        step, task, labels = len(row), event["task"], list(self._labels.values())
        points = _points("test score", dict(zip(labels, row, strict=False)), step=step)
        values: dict[str, Any] = {}
        # A method that learns all tasks at the same time has no scores before the last.
        if len(self._scores) == len(row) and None not in row:
            values["average test score"] = average(self._scores)
            values["forgetting"] = forgetting(self._scores)
            values["backward transfer"] = backward_transfer(self._scores)
        if "at" in event and task in self._began:
            values["seconds of the task"] = event["at"] - self._began[task]
        values["more tasks that fit"] = event.get("forecast", {}).get("num_tasks")
        sizes, free = event.get("sizes", {}), event.get("free", {})
        if total := sum(sizes.values()):
            values["neurons used percent"] = 100 * (1 - sum(free.values()) / total)
        points += _points(ALL, values, step=step)
        used = {group: 100 * (1 - free[group] / size) for group, size in sizes.items() if size}
        points += _points("neurons used percent", used, step=step)
        points += _points("neurons new", event.get("new", {}), step=step)
        points += _points("neurons reused", event.get("reused", {}), step=step)
        return points

    def _tables(self) -> list[Table]:
        """What each candidate came to, if there were any to choose from."""
        rows = []
        for number, found in sorted(self._candidates.items()):
            plan = found.get("plan", {})
            kept = {group: len(places) for group, places in plan.get("keep", {}).items()}
            score = "diverged" if found.get("diverged") else _text(found.get("score"))
            rows.append(
                (
                    str(number + 1),
                    _text(found.get("alpha"), "g"),
                    _text(found.get("lr"), "g"),
                    _text(found.get("num_epochs"), "d"),
                    score,
                    _text(plan.get("score")),
                    _text(kept, "d"),
                    "yes" if number == self._chosen else "",
                )
            )
        if not rows or self._open is None:
            return []
        return [Table(self._labels[self._open], COLUMNS, tuple(rows))]


def label(number: int, name: str, num_tasks: int = 0) -> str:
    """What a task is called among curves: `task 03 cats and dogs`.

    Numbers sort as text. Characters that a tracker might refuse or take for a path are replaced.
    """
    width = max(2, len(str(num_tasks)))
    return f"task {number:0{width}} {clean(name)[:NAME_LENGTH].strip(' .')}".rstrip()


def clean(name: str) -> str:
    """The name in letters, digits, and what all trackers take."""
    return re.sub(r"[^\w .\-]", "_", name)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str | float | bool]:
    """Nested settings under dotted names; what is not set is left out, lists are text."""
    found: dict[str, str | float | bool] = {}
    for key, value in config.items():
        name = prefix + clean(str(key))
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif isinstance(value, bool | int | float | str):
            found[name] = value
        elif isinstance(value, list | tuple) and value:
            found[name] = json.dumps(value)
    return found


def settings(config: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """The hyper-parameters of a run; its tasks, which are data, go by their number."""
    kept = {key: value for key, value in config.items() if key not in ("format", "tasks", "data")}
    return {**flat(kept), "num_tasks": len(config.get("tasks", []))}


def _points(
    section: str, values: Mapping[str, Any], *, step: int, part: str | None = None
) -> list[Point]:
    """A point for every value that is known; one that is not finite is text in a file."""
    return [
        Point(section, clean(name), step, float(value), part)
        for name, value in values.items()
        if value is not None
    ]


def _text(value: Any, form: str = ".2f") -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item, form)}" for key, item in value.items())
    return f"{float(value):{form}}" if form != "d" else str(value)
