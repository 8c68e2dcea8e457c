"""The progress of a run in `status.json`, which the run replaces while it works.

`clnp watch` and `clnp inspect` show it. Nothing here imports PyTorch.
"""

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from clnp.errors import RunError
from clnp.plain import UnreadableError, to_json
from clnp.records import (
    OURS,
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Evaluated,
    Event,
    FineTuningSettings,
    NetworkFull,
    RoundEnded,
    RunConfig,
    RunFailed,
    RunFinished,
    RunStopped,
    SubsetScored,
    TaskEnded,
    TaskResumed,
    TaskStarted,
)
from clnp.storage.atomic import is_running, replace_file

from .directory import CONFIG, EVENTS, STATUS, read_config, read_events, read_record

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"
LEAST_SECONDS = 1.0
"""Epochs replace the file at most once in this time."""
RECENT = 3
"""Tasks by whose duration that of the next ones is estimated."""
LATEST = 1e11
"""No time in seconds, and no number of epochs or neurons, comes near it."""
MOST_POINTS = 60
"""Points of a curve in the file."""


@dataclass(frozen=True)
class LearnedTask:
    """A task that has ended, and its test score then."""

    task: str
    test_score: float | None = None


@dataclass(frozen=True)
class OpenTask:
    """The task that is being learned; numbers of candidates, rounds and epochs count from 1.

    `phase` is starting, training, pruning or fine-tuning. While a plan is searched for, there
    is the number of evaluations, and how many of the `available` neurons the last one `kept`.
    `losses` and `scores` are the curves of the candidate or round, as means of several epochs if
    there are many.
    """

    task: str
    number: int
    phase: str = "starting"
    candidate: int | None = None
    num_candidates: int = 0
    round: int | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    loss: float | None = None
    score: float | None = None
    losses: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    epoch_seconds: float = 0.0
    num_evaluations: int | None = None
    kept: int | None = None
    available: int | None = None


@dataclass(frozen=True)
class Status:
    """Progress of a run at the time `updated`, in seconds as of `time.time`.

    `state` is running, finished, stopped or failed, for a `reason`; `full` says why no further task
    fits. Epochs include those of fine-tuning. `seconds` counts how long the run has worked.
    `seconds_left` is an estimate. `claimed` has the neurons of each group by ended task.
    """

    state: str = RUNNING
    reason: str | None = None
    mendable: bool | None = None
    full: str | None = None
    recipe: str | None = None
    method: str = OURS
    seed: int | None = None
    num_tasks: int = 0
    learned: tuple[LearnedTask, ...] = ()
    average: float | None = None
    open: OpenTask | None = None
    epochs_done: int = 0
    epochs_of_run: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    claimed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    process: int | None = None
    host: str | None = None
    updated: float = 0.0

    @property
    def fraction(self) -> float:
        """The part of the run that is done, by its epochs; below 1 until it is finished."""
        if self.state == FINISHED:
            return 1.0
        # Pruning after the last epoch takes time too.
        return min(self.epochs_done / self.epochs_of_run, 0.99) if self.epochs_of_run else 0.0

    @property
    def is_dead(self) -> bool:
        """Whether the process of the run is known to have ended without logging it."""
        if self.state != RUNNING or self.process is None or os.name != "posix":
            return False
        return self.host == platform.node() and not is_running(self.process)


def read_status(path: Path) -> Status | None:
    """Return the status of a run, None if there is no run.

    If a version without the file wrote the run, or the file is damaged, its log is read instead.
    """
    # A run that failed before it learned anything has a status, but no config any more.
    has_config = os.path.isfile(path / CONFIG)
    try:
        status = read_record(path / STATUS, Status)
    except (RunError, UnreadableError):
        if not has_config:
            raise
        status = None
    if status is not None and _is_sound(status):
        return status
    if not has_config:
        return None
    status = Progress(read_config(path), read_events(path)).status()
    last = path / (EVENTS if os.path.isfile(path / EVENTS) else CONFIG)
    return replace(status, updated=last.stat().st_mtime)


def _is_sound(status: Status) -> bool:
    """Whether the values of a status can be those of a run."""
    counts = [status.num_tasks, status.epochs_done, status.epochs_of_run, *status.sizes.values()]
    amounts = [*counts, status.seconds, status.seconds_left or 0.0]
    free = [size - sum(status.claimed.get(g, ())) for g, size in status.sizes.items()]
    return (
        status.state in (RUNNING, FINISHED, STOPPED, FAILED)
        and 0 < status.updated < LATEST
        and all(0 <= amount < LATEST for amount in [*amounts, *free])
    )


class StatusWriter:
    """Replaces the status of a run at each event; `events` are those before it was resumed."""

    def __init__(self, path: Path, config: RunConfig, events: Iterable[Event] = ()) -> None:
        self._file, self._progress = path / STATUS, Progress(config, events)
        self._progress.restart()
        self._write()

    def update(self, event: Event) -> None:
        """Add an event, and replace the file unless epochs are too short for that."""
        self._progress.add(event)
        due = time.monotonic() - self._written >= LEAST_SECONDS
        if due or not isinstance(event, EpochEnded | SubsetScored):
            self._write()

    def _write(self) -> None:
        status = self._progress.status()
        status = replace(status, process=os.getpid(), host=platform.node(), updated=time.time())
        with contextlib.suppress(OSError):  # The log of the run says that the disk is full.
            # A power cut may damage it: the log has the same.
            data = (to_json(status, indent=1) + "\n").encode()
            replace_file(self._file, data, durable=False)
        self._written = time.monotonic()


@dataclass
class _Learning:
    """The open task, from the second of the run when it began.

    `curves` has the epochs of each candidate and round, and `curve` those of the last one.
    `reached` counts the epochs of each candidate, and `tuned` those of fine-tuning.
    """

    start: TaskStarted
    began: float
    phase: str = "starting"
    candidate: int | None = None
    round: int | None = None
    curve: list[EpochEnded] = field(default_factory=list)
    curves: dict[tuple[int | None, int | None], list[EpochEnded]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    tuned: int = 0
    subset: SubsetScored | None = None

    @property
    def num_epochs(self) -> int:
        """The epochs of all candidates, if none stops early."""
        return self.start.num_candidates * self.start.num_epochs

    @property
    def num_trained(self) -> int:
        """The epochs of candidates that are done, or not needed any more."""
        if self.phase in ("starting", "training"):
            # Where the events before a crash are not known, earlier candidates are trained.
            before = min(self.reached, default=0) * self.start.num_epochs
            return min(before + sum(self.reached.values()), self.num_epochs)
        return self.num_epochs


class Progress:
    """The progress of a run, from its events in their order."""

    def __init__(self, config: RunConfig, events: Iterable[Event] = ()) -> None:
        self._known = Status(
            recipe=config.recipe,
            method=config.method,
            seed=config.seed,
            num_tasks=len(config.tasks),
        )
        self._tuning = fine_tuning(config)
        self._most_tuned = self._tuning.rounds * self._tuning.epochs
        self._ended: list[TaskEnded] = []
        self._took: list[tuple[float, int]] = []  # Seconds and epochs of each ended task.
        self._start: TaskStarted | None = None
        self._open: _Learning | None = None
        for event in events:
            self.add(event)

    def restart(self) -> None:
        """Continue after a failure or a stop."""
        self._set(state=RUNNING, reason=None, mendable=None)

    def _set(self, **values: Any) -> None:
        self._known = replace(self._known, **values)

    def add(self, event: Event) -> None:
        """Add an event."""
        if event.at is not None:
            self._set(seconds=event.at)
        match event:
            case TaskStarted():
                self.restart()
                self._start = event
                known = self._open if isinstance(event, TaskResumed) else None
                if known is None or known.start.task != event.task:
                    self._open = _Learning(event, self._known.seconds)
            case NetworkFull():
                self._set(full=event.reason)
                self._open = None
            case Evaluated():
                scores = [score for score in event.scores if score is not None]
                average = fmean(scores) if scores else None
                self._set(average=average, sizes=event.sizes or self._known.sizes)
            case RunFailed():
                self._set(state=FAILED, reason=event.reason, mendable=event.mendable)
            case RunStopped():
                self._set(state=STOPPED, reason=None, mendable=None)
            case RunFinished():
                self._set(state=FINISHED, reason=None, mendable=None)
                self._open = None
            case TaskEnded():
                self._ended.append(event)
                if self._open is not None:
                    num_epochs = self._open.num_epochs + self._most_tuned
                    self._took.append((self._known.seconds - self._open.began, num_epochs))
                self._open = None
            case _ if self._open is not None:
                self._learn(event, self._open)

    def _learn(self, event: Event, task: _Learning) -> None:
        task.subset = event if isinstance(event, SubsetScored) else None
        match event:
            case SubsetScored():
                task.phase, task.round = "pruning", event.round
                task.candidate = task.candidate if event.candidate is None else event.candidate
            case EpochEnded():
                task.curve = task.curves.setdefault((event.candidate, event.round), [])
                # An epoch that is logged again after a crash replaces the old one.
                task.curve[event.number :] = [event]
                if event.round is not None:
                    self._tune(task, event.round, event.number + 1)
                elif event.candidate is not None:
                    task.phase, task.candidate = "training", event.candidate
                    task.reached[event.candidate] = event.number + 1
            case CandidateTrained():
                # One that stopped early, or diverged, makes the rest of its epochs unnecessary.
                task.reached[event.candidate] = task.start.num_epochs
            case CandidatePruned() | CandidateChosen():
                task.phase, task.candidate = "pruning", event.candidate
            case RoundEnded():
                # A round that is rolled back is the last one.
                left = self._tuning.epochs if event.kept else self._most_tuned
                self._tune(task, event.round, left)

    def _tune(self, task: _Learning, number: int, num_epochs: int) -> None:
        task.phase, task.round = "fine-tuning", number
        task.tuned = min(number * self._tuning.epochs + num_epochs, self._most_tuned)

    def epochs(self) -> tuple[int, int]:
        """Return the epochs of the run that are done, and all if none is left out."""
        start, task, tuned = self._start, self._open, self._most_tuned
        if start is None:
            return 0, 0
        num_epochs = start.epochs_of_run + tuned * start.num_tasks
        if self._known.state == FINISHED:
            return num_epochs, num_epochs
        before = start.epochs_before + tuned * (start.number - 1)
        if task is None:
            return before + start.num_candidates * start.num_epochs + tuned, num_epochs
        return before + task.num_trained + task.tuned, num_epochs

    def _seconds_left(self) -> float | None:
        """Return how much longer the run will work, if that can be estimated.

        Tasks are assumed to take as long for an epoch, pruning included, as the last three did; the
        first one, which searches a grid, counts only while there is no other.
        """
        if self._known.state != RUNNING or self._known.full is not None:
            return 0.0
        task, (done, num_epochs) = self._open, self.epochs()
        timed = [took for took in self._took if took[1]]
        timed = (timed[1:] or timed)[-RECENT:]
        usual = sum(s for s, _ in timed) / sum(n for _, n in timed) if timed else None
        if task is None:
            return None if usual is None else usual * (num_epochs - done)
        spent, here = self._known.seconds - task.began, task.num_trained + task.tuned
        size = task.num_epochs + self._most_tuned
        own = spent / here if here else None
        if usual is None:
            return None if own is None else own * (num_epochs - done)
        # A task that is slower than the others takes as long as its epochs say.
        own_left = (own or 0.0) * (task.num_epochs - task.num_trained)
        return max(own_left, usual * size - spent, 0.0) + usual * (num_epochs - done - size + here)

    def status(self) -> Status:
        """Return the progress as a record."""
        groups = dict.fromkeys(group for task in self._ended for group in task.new)
        done, num_epochs = self.epochs()
        return replace(
            self._known,
            learned=tuple(LearnedTask(task.task, task.test_score) for task in self._ended),
            open=_open_task(self._open) if self._open else None,
            epochs_done=done,
            epochs_of_run=num_epochs,
            seconds_left=self._seconds_left(),
            claimed={g: tuple(task.new.get(g, 0) for task in self._ended) for g in groups},
        )


def _open_task(task: _Learning) -> OpenTask:
    last = task.curve[-1] if task.curve else None
    in_epochs = last is not None and task.phase in ("training", "fine-tuning")
    return OpenTask(
        task=task.start.task,
        number=task.start.number,
        phase=task.phase,
        candidate=None if task.candidate is None else task.candidate + 1,
        num_candidates=task.start.num_candidates,
        round=None if task.round is None else task.round + 1,
        epoch=len(task.curve) if in_epochs else None,
        num_epochs=last.num_epochs if last and in_epochs else None,
        loss=last.loss if last else None,
        score=last.score if last else None,
        losses=condensed([epoch.loss for epoch in task.curve], MOST_POINTS),
        scores=condensed([epoch.score for epoch in task.curve], MOST_POINTS),
        epoch_seconds=last.seconds if last else 0.0,
        num_evaluations=task.subset.number if task.subset else None,
        kept=task.subset.kept if task.subset else None,
        available=task.subset.available if task.subset else None,
    )


def fine_tuning(config: RunConfig) -> FineTuningSettings:
    """Return the fine-tuning of each task; a baseline may retrain for a number of epochs."""
    if config.method == OURS:
        return config.settings.fine_tuning or FineTuningSettings()
    epochs = config.baseline.get("retrain_epochs") if isinstance(config.baseline, Mapping) else None
    if isinstance(epochs, int) and epochs > 0:
        return FineTuningSettings(1, epochs)
    return FineTuningSettings()


def condensed(values: Sequence[float], most: int) -> tuple[float, ...]:
    """Return the values, or the means of so many stretches of them if there are more."""
    if len(values) <= most:
        return tuple(values)
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    # Dividing first keeps the sum of large values finite.
    return tuple(sum(value / len(part) for value in part) for part in parts)
