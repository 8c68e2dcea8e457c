"""Progress of a run in `status.json`, which the run replaces while it works.

`clnp watch` and `clnp inspect` show it. Nothing here imports PyTorch.
"""

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from clnp.plain import to_json
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
    TaskEnded,
    TaskResumed,
    TaskStarted,
)
from clnp.storage.atomic import is_running, replace_file

from .directory import EVENTS, STATUS, read_events, read_record

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"
LEAST_SECONDS = 1.0
"""Epochs replace the file this often at most."""
RECENT = 3
"""Tasks by whose duration that of the next ones is estimated."""
MOST_POINTS = 60
"""Points of a curve in the file."""


@dataclass(frozen=True)
class LearnedTask:
    """A task that has ended, and its test score then."""

    task: str
    test_score: float | None = None


@dataclass(frozen=True)
class Status:
    """Progress of a run at the second `updated`, counted as by `time.time`.

    `state` is running, finished, stopped or failed, for a `reason`; `full` says why no further task
    fits. `phase` is that of the open task: training, pruning or fine-tuning. Candidates, rounds and
    epochs count from 1. `losses` and `scores` are the curves of the candidate or round, as means of
    several epochs if it has many. Epochs of the run include those of fine-tuning. `seconds_left` is
    an estimate, and `bound` says of which kind: about, at least or at most. `claimed` has the
    neurons of each group by ended task.
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
    task: str | None = None
    number: int | None = None
    phase: str | None = None
    candidate: int | None = None
    num_candidates: int | None = None
    round: int | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    loss: float | None = None
    score: float | None = None
    losses: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    epochs_done: int = 0
    epochs_of_run: int = 0
    seconds: float = 0.0
    epoch_seconds: float | None = None
    seconds_left: float | None = None
    bound: str = "about"
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
        """Whether the process of the run is known to have ended without a word."""
        if self.state != RUNNING or self.process is None or os.name != "posix":
            return False
        return self.host == platform.node() and not is_running(self.process)


def read_status(path: Path, config: RunConfig) -> Status:
    """Return the status of a run; if a version without the file wrote it, that of its log."""
    status = read_record(path / STATUS, Status)
    if status is not None:
        return status
    progress = Progress(config, read_events(path))
    updated = time.time()
    with contextlib.suppress(OSError):
        updated = (path / EVENTS).stat().st_mtime
    return progress.status(updated=updated)


class StatusWriter:
    """Replaces the status of a run at each event; `events` are those before it was resumed."""

    def __init__(self, path: Path, config: RunConfig, events: Iterable[Event] = ()) -> None:
        self._file = path / STATUS
        self._progress = Progress(config, events)
        self._progress.resume()
        self._write()

    def update(self, event: Event) -> None:
        """Add an event, and replace the file unless epochs are too short for that."""
        self._progress.add(event)
        due = time.monotonic() - self._written >= LEAST_SECONDS
        if due or not isinstance(event, EpochEnded):
            self._write()

    def _write(self) -> None:
        status = self._progress.status(process=os.getpid(), host=platform.node())
        with contextlib.suppress(OSError):  # The log of the run says that the disk is full.
            replace_file(self._file, (to_json(status, indent=1) + "\n").encode())
        self._written = time.monotonic()


@dataclass
class _Curve:
    """Loss and validation score after each epoch of a candidate, or of a round of fine-tuning."""

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    num_epochs: int = 0
    seconds: float = 0.0

    def add(self, event: EpochEnded) -> None:
        """Add an epoch; one that is logged again after a crash replaces the old one."""
        self.num_epochs, self.seconds = event.num_epochs, event.seconds
        self.losses[event.number :] = [event.loss]
        self.scores[event.number :] = [event.score]


@dataclass(frozen=True)
class _Timed:
    """An ended task: its epochs if none is left out, those of fine-tuning it had, its seconds."""

    num_epochs: int
    tuned: int
    seconds: float


class Progress:
    """The progress of a run, from its events in their order."""

    def __init__(self, config: RunConfig, events: Iterable[Event] = ()) -> None:
        self._config, self._tuning = config, fine_tuning(config)
        self._most_tuning = self._tuning.rounds * self._tuning.epochs
        self._state = RUNNING
        self._failure: RunFailed | None = None
        self._full: str | None = None
        self._learned: list[LearnedTask] = []
        self._timed: list[_Timed] = []
        self._new: list[Mapping[str, int]] = []
        self._sizes: Mapping[str, int] = {}
        self._average: float | None = None
        self._at = 0.0
        self._start: TaskStarted | None = None
        self._begin_task(None, 0.0)
        for event in events:
            self.add(event)

    def resume(self) -> None:
        """Note that the run works again."""
        self._state, self._failure = RUNNING, None

    def add(self, event: Event) -> None:
        """Add an event."""
        at = self._at if event.at is None else event.at
        match event:
            case TaskResumed() if self._phase and self._start and self._start.task == event.task:
                self._start = event
                self.resume()
            case TaskStarted():
                self._begin_task(event, at)
            case EpochEnded():
                self._add_epoch(event)
            case CandidateTrained():
                # One that stopped early, or diverged, makes the rest of its epochs unnecessary.
                self._reached[event.candidate] = self._start.num_epochs if self._start else 0
            case CandidatePruned() | CandidateChosen():
                self._phase, self._candidate, self._round = "pruning", event.candidate, None
            case RoundEnded():
                self._add_tuning(event.round, self._tuning.epochs)
                # A round that is rolled back is the last one.
                self._is_tuned = not event.kept
            case TaskEnded():
                self._learned.append(LearnedTask(event.task, event.test_score))
                self._new.append(event.new)
                seconds = at - self._began
                self._timed.append(_Timed(self._epochs_of_task, self._tuned, seconds))
                self._phase = None
            case Evaluated():
                known = [score for score in event.scores if score is not None]
                self._average = sum(known) / len(known) if known else None
                self._sizes = event.sizes or self._sizes
            case NetworkFull():
                self._full, self._phase = event.reason, None
            case RunFailed():
                self._state, self._failure = FAILED, event
            case RunStopped():
                self._state = STOPPED
            case RunFinished():
                self._state, self._phase = FINISHED, None
        self._at = at

    def _begin_task(self, event: TaskStarted | None, at: float) -> None:
        self.resume()
        self._start, self._began = event, at
        self._phase = None if event is None else "training"
        self._candidate: int | None = None
        self._round: int | None = None
        self._curve = _Curve()
        self._curves: dict[tuple[int | None, int | None], _Curve] = {}
        self._reached: dict[int, int] = {}
        self._tuned, self._is_tuned = 0, False

    def _add_epoch(self, event: EpochEnded) -> None:
        key = event.candidate, event.round
        self._curve = self._curves.setdefault(key, _Curve())
        self._curve.add(event)
        if event.round is not None:
            self._add_tuning(event.round, event.number + 1)
        elif event.candidate is not None:
            self._phase, self._candidate, self._round = "training", event.candidate, None
            self._reached[event.candidate] = event.number + 1

    def _add_tuning(self, number: int, num_epochs: int) -> None:
        self._phase, self._round = "fine-tuning", number
        self._tuned = min(number * self._tuning.epochs + num_epochs, self._most_tuning)

    @property
    def _epochs_of_training(self) -> int:
        """The epochs of all candidates of the task, if none stops early."""
        return self._start.num_candidates * self._start.num_epochs if self._start else 0

    @property
    def _epochs_of_task(self) -> int:
        """Those, and the ones of fine-tuning, if no round is rolled back."""
        return self._epochs_of_training + self._most_tuning

    @property
    def _epochs_here(self) -> int:
        """The epochs of the task that are done, or not needed any more."""
        if self._phase == "training":
            return min(sum(self._reached.values()), self._epochs_of_training)
        if self._phase is None or self._is_tuned:
            return self._epochs_of_task
        return self._epochs_of_training + self._tuned

    @property
    def _epochs_before(self) -> int:
        """The epochs of the tasks before this one."""
        start = self._start
        return start.epochs_before + self._most_tuning * (start.number - 1) if start else 0

    @property
    def _epochs_of_run(self) -> int:
        """The epochs of all tasks, if no candidate stops early and no round is rolled back."""
        start = self._start
        return start.epochs_of_run + self._most_tuning * start.num_tasks if start else 0

    def _seconds_left(self) -> float | None:
        """Return how much longer the run will work, if that can be estimated.

        Later tasks are assumed to take as long for an epoch, pruning included, as the last three
        did; the first one, which searches a grid, counts only while there is no other. The open
        task takes what it would by that measure or by its own epochs, whichever is longer.
        """
        if self._start is None or self._state != RUNNING or self._full is not None:
            return None if self._state == RUNNING and self._full is None else 0.0
        timed = [task for task in self._timed if task.num_epochs]
        timed = (timed[1:] or timed)[-RECENT:]
        usual = None
        if timed:
            usual = sum(task.seconds for task in timed) / sum(task.num_epochs for task in timed)
        size, done, spent = self._epochs_of_task, self._epochs_here, self._at - self._began
        later = self._epochs_of_run - self._epochs_before - size
        here = 0.0
        if self._phase is not None:
            own = spent / done if done else None
            if own is None and usual is None:
                return None
            by_epochs = (own or 0.0) * max(self._epochs_of_training - done, 0)
            # Candidates may have stopped early, or been trained at once; rounds are not.
            tuning = self._curve.seconds if self._phase == "fine-tuning" else 0.0
            by_epochs += (tuning or own or 0.0) * self._tuning_left(timed)
            here = max(by_epochs, (usual or 0.0) * size - spent, 0.0)
            usual = own if usual is None else usual
        return None if usual is None and later else here + (usual or 0.0) * max(later, 0)

    def _tuning_left(self, timed: Sequence[_Timed]) -> float:
        """Return the epochs of fine-tuning that are left: as many as others had, or all."""
        if self._is_tuned or not self._most_tuning:
            return 0.0
        expected = sum(task.tuned for task in timed) / len(timed) if timed else self._most_tuning
        return max(expected - self._tuned, -self._tuned % self._tuning.epochs)

    def _bound(self) -> str:
        """Return in which direction the estimate of the time left may be wrong."""
        if self._learned:
            return "about"
        if not self._most_tuning:
            return "at least"  # The duration of pruning is not known yet.
        more_rounds = self._tuning.rounds > 1 and self._phase == "fine-tuning"
        return "at most" if more_rounds else "about"

    def status(
        self,
        *,
        process: int | None = None,
        host: str | None = None,
        updated: float | None = None,
    ) -> Status:
        """Return the progress as a record."""
        config, start, curve, failure = self._config, self._start, self._curve, self._failure
        is_open = self._phase is not None and start is not None
        in_epochs = self._phase in ("training", "fine-tuning") and bool(curve.losses)
        groups = dict.fromkeys(group for new in self._new for group in new)
        finished = start is None or self._state == FINISHED
        return Status(
            state=self._state,
            reason=failure.reason if failure else None,
            mendable=failure.mendable if failure else None,
            full=self._full,
            recipe=config.recipe,
            method=config.method,
            seed=config.seed,
            num_tasks=len(config.tasks),
            learned=tuple(self._learned),
            average=self._average,
            task=start.task if is_open and start else None,
            number=start.number if is_open and start else None,
            phase=self._phase,
            candidate=None if self._candidate is None else self._candidate + 1,
            num_candidates=start.num_candidates if is_open and start else None,
            round=None if self._round is None else self._round + 1,
            epoch=len(curve.losses) if in_epochs else None,
            num_epochs=curve.num_epochs if in_epochs else None,
            loss=curve.losses[-1] if is_open and curve.losses else None,
            score=curve.scores[-1] if is_open and curve.scores else None,
            losses=condensed(curve.losses, MOST_POINTS) if is_open else (),
            scores=condensed(curve.scores, MOST_POINTS) if is_open else (),
            epochs_done=self._epochs_of_run
            if finished
            else self._epochs_before + self._epochs_here,
            epochs_of_run=self._epochs_of_run,
            seconds=self._at,
            epoch_seconds=curve.seconds or None,
            seconds_left=self._seconds_left(),
            bound=self._bound(),
            sizes=self._sizes,
            claimed={g: tuple(new.get(g, 0) for new in self._new) for g in groups},
            process=process,
            host=host,
            updated=time.time() if updated is None else updated,
        )


def fine_tuning(config: RunConfig) -> FineTuningSettings:
    """Return the fine-tuning of each task; a baseline may retrain for a number of epochs."""
    if config.method == OURS:
        return config.settings.fine_tuning or FineTuningSettings()
    epochs = config.baseline.get("retrain_epochs") if isinstance(config.baseline, Mapping) else None
    return (
        FineTuningSettings(1, epochs)
        if isinstance(epochs, int) and epochs > 0
        else (FineTuningSettings())
    )


def condensed(values: Sequence[float], most: int) -> tuple[float, ...]:
    """Return the values, or the means of so many stretches of them if there are more."""
    if len(values) <= most:
        return tuple(values)
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    # Dividing first keeps the sum of large values finite.
    return tuple(sum(value / len(part) for value in part) for part in parts)
