"""The events of a run as points of curves and as tables, the same for every tracker."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from clnp.plain import flat, to_plain
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Evaluated,
    Event,
    RunConfig,
    RunResult,
    TaskEnded,
    TaskStarted,
    alpha_text,
    task_of,
)
from clnp.runs.metrics import average, backward_transfer, forgetting

NAME_LENGTH = 40
"""Length to which names of tasks are cut; their numbers tell them apart."""

ALL = "all tasks"
"""The section of the curves over tasks."""

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

    Curves with the same `section` and `measure` belong in one chart; `part`, such as "candidate 2",
    tells them apart. Curves without a part go over tasks, those with one over epochs.
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
        """Return the table in Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        escaped = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
        return "\n".join(f"| {line} |" for line in escaped)


@dataclass
class _OpenTask:
    """The open task: the cells of each candidate by column, and how many epochs there were."""

    name: str
    began: float | None = None
    chosen: int = 0
    cells: dict[int, dict[str, str]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    epochs_of_rounds: dict[int, int] = field(default_factory=dict)

    def fill(self, candidate: int, cells: Mapping[str, str]) -> None:
        """Fill cells in the row of a candidate."""
        self.cells.setdefault(candidate, {"candidate": str(candidate + 1)}).update(cells)


class Curves:
    """The curves of a run, made from its events from the first one on."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._open = _OpenTask("")
        self._scores: list[tuple[float | None, ...]] = []

    def read(self, event: Event) -> tuple[list[Point], list[Table]]:
        """Return the points and tables that an event adds."""
        name = task_of(event)
        if name is None:
            return [], []
        self._start(name, event)
        match event:
            case EpochEnded():
                return self._epoch(event), []
            case CandidateTrained():
                score = "diverged" if event.diverged else _text(event.score)
                cells = {"alpha": alpha_text(event.alpha), "lr": f"{event.lr:g}"}
                cells |= {"epochs": str(event.num_epochs), "validation": score}
                self._open.fill(event.candidate, cells)
            case CandidatePruned(plan=plan):
                kept = ", ".join(f"{group} {count}" for group, count in plan.kept.items())
                cells = {"validation pruned": _text(plan.score), "neurons kept": kept}
                self._open.fill(event.candidate, cells)
            case CandidateChosen():
                self._open.chosen = event.candidate
                self._open.fill(event.candidate, {"chosen": "yes"})
            case TaskEnded():
                return self._ended(event), self._tables()
            case Evaluated():
                return self._evaluation(event), []
        return [], []

    def finish(self, result: RunResult) -> list[Point]:
        """Return the points that are known when the run is finished."""
        values = {
            "seconds": result.timings.seconds,
            "peak memory MB": result.timings.peak_bytes / 1e6,
            "stored MB": sum(result.stored_bytes.values()) / 1e6,
        }
        return _points("run", values, step=len(result.tasks))

    def _start(self, name: str, event: Event) -> None:
        """Label the task of the event; a task without a start is the next one."""
        if name not in self._labels:
            number, num_tasks = len(self._labels) + 1, 0
            if isinstance(event, TaskStarted):
                number, num_tasks = event.number, event.num_tasks
            self._labels[name] = label(number, name, num_tasks)
        if name != self._open.name:
            self._open = _OpenTask(name, event.at if isinstance(event, TaskStarted) else None)

    def _epoch(self, event: EpochEnded) -> list[Point]:
        step, task = event.number + 1, self._open
        if event.round is not None:
            rounds = task.epochs_of_rounds
            rounds[event.round] = step
            # To the right of the training that it follows.
            step += sum(epochs for number, epochs in rounds.items() if number < event.round)
            step += task.epochs.get(task.chosen, 0)
            part = "fine-tuning"
        else:
            candidate = event.candidate or 0
            task.epochs[candidate] = step
            part = f"candidate {candidate + 1}"
        values = {
            "loss": event.loss,
            "penalised loss": event.penalised_loss,
            "validation": event.score,
            "seconds": event.seconds,
        }
        return _points(self._labels[event.task], values, step=step, part=part)

    def _ended(self, event: TaskEnded) -> list[Point]:
        values = {
            "validation when learned": event.score,
            "test score when learned": event.test_score,
        }
        return _points(ALL, values, step=list(self._labels).index(event.task) + 1)

    def _evaluation(self, event: Evaluated) -> list[Point]:
        row = event.scores
        self._scores = [*self._scores[: len(row) - 1], row]
        step, labels = len(row), list(self._labels.values())
        points = _points("test score", dict(zip(labels, row, strict=False)), step=step)
        values: dict[str, float | None] = {}
        # A method that learns all tasks at the same time has no scores before the last.
        if len(self._scores) == len(row) and None not in row:
            values["average test score"] = average(self._scores)
            values["forgetting"] = forgetting(self._scores)
            values["backward transfer"] = backward_transfer(self._scores)
        if event.at is not None and self._open.began is not None:
            values["seconds of the task"] = event.at - self._open.began
        values["more tasks that fit"] = event.forecast.num_tasks if event.forecast else None
        sizes, free = event.sizes, event.free
        if total := sum(sizes.values()):
            values["neurons used percent"] = 100 * (1 - sum(free.values()) / total)
        points += _points(ALL, values, step=step)
        used = {group: 100 * (1 - free[group] / size) for group, size in sizes.items() if size}
        points += _points("neurons used percent", used, step=step)
        points += _points("neurons new", event.new, step=step)
        points += _points("neurons reused", event.reused, step=step)
        return points

    def _tables(self) -> list[Table]:
        """Return a table of the candidates of the open task, if there were any to choose from."""
        cells = [row for _, row in sorted(self._open.cells.items())]
        rows = tuple(tuple(row.get(column, "") for column in COLUMNS) for row in cells)
        return [Table(self._labels[self._open.name], COLUMNS, rows)] if rows else []


def label(number: int, name: str, num_tasks: int = 0) -> str:
    """Return the label of a task among curves, such as `task 03 cats and dogs`.

    Numbers sort as text. Characters that a tracker could refuse, or take for a path, are replaced.
    """
    width = max(2, len(str(num_tasks)))
    return f"task {number:0{width}} {clean(name)[:NAME_LENGTH].strip(' .')}".rstrip()


def clean(name: str) -> str:
    """Replace the characters of a name that not all trackers accept."""
    return re.sub(r"[^\w .\-]", "_", name)


def settings(config: RunConfig) -> dict[str, str | float | bool]:
    """Return the hyper-parameters of a run under dotted names.

    Unset ones are left out, lists are text, and tasks, which are data, are counted.
    """
    plain = to_plain(config)
    kept = {key: value for key, value in plain.items() if key not in ("format", "tasks", "data")}
    found: dict[str, str | float | bool] = {}
    for name, value in flat(kept).items():
        if isinstance(value, bool | int | float | str):
            found[clean(name)] = value
        elif isinstance(value, list) and value:
            found[clean(name)] = json.dumps(value)
    return {**found, "num_tasks": len(config.tasks)}


def _points(
    section: str, values: Mapping[str, float | None], *, step: int, part: str | None = None
) -> list[Point]:
    """Return a point for every known value."""
    return [
        Point(section, clean(name), step, float(value), part)
        for name, value in values.items()
        if value is not None
    ]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
