"""Where a run stands, read from its files only, on whatever machine it runs."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clnp.errors import RunError
from clnp.methods.method import is_ours, method_of
from clnp.runs.directory import (
    CONFIG,
    EVENTS,
    expanded,
    has_learnt,
    read_config,
    read_events,
    read_result,
    reading,
    silence,
    to_json,
)
from clnp.studies.comparison import COMPARISON, read_comparison
from clnp.studies.series import SERIES, read_series, run_of
from clnp.training.events import Event

NUM_SEEN = 512
"""Bytes before the place that was read up to, by which it is known again."""


class Tail:
    """Reads what has been added to a file, line by line, as often as it is asked to.

    It only ever reads. A line counts once it is whole. Where the file has been cut off since, or
    replaced, it is read from its beginning; a resumed run may have grown past the old place by
    then, so that its size alone does not tell. Network file systems may show zeros in place of
    what has not arrived yet: at the end of the file they are read again the next time. A line
    with zeros that others follow is damaged, and left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0
        self._seen = b""

    def read(self) -> tuple[list[bytes], bool]:
        """The lines that are new, and whether they are all that there are.

        Nothing is new where the file is not there, or cannot be read for the moment.
        """
        try:
            with self.path.open("rb") as file:
                anew = not self._continues(file.fileno())
                if anew:
                    self._place, self._seen = 0, b""
                file.seek(self._place)
                data = file.read()
        except OSError:
            return [], False
        lines = data.split(b"\n")[:-1]
        while lines and b"\0" in lines[-1]:
            lines.pop()
        whole = data[: sum(len(line) + 1 for line in lines)]
        self._place += len(whole)
        self._seen = (self._seen + whole)[-NUM_SEEN:]
        return [line for line in lines if b"\0" not in line], anew

    def _continues(self, descriptor: int) -> bool:
        """Whether what was read before is still there."""
        if os.fstat(descriptor).st_size < self._place:
            return False
        os.lseek(descriptor, self._place - len(self._seen), os.SEEK_SET)
        return os.read(descriptor, len(self._seen)) == self._seen


RECENT = 3
"""Tasks that the next ones are taken to last as long as."""

DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What may come of a line that is not what an event should be."""


@dataclass
class Curve:
    """Loss and validation score of each epoch of a candidate, or of a round of fine-tuning."""

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    num_epochs: int = 0
    seconds: float = 0.0

    def add(self, event: Event) -> None:
        """Take note of an epoch; one that comes again after a crash replaces the old one."""
        number, num_epochs = int(event["number"]), int(event["num_epochs"])
        # What is not a finite number is text in the file of a run.
        loss, score = float(event["loss"]), float(event["score"])
        self.num_epochs, self.seconds = num_epochs, _finite(event["seconds"])
        self.losses[number:], self.scores[number:] = [loss], [score]


@dataclass(frozen=True)
class Learnt:
    """A task that has ended: its test score, neurons claimed, seconds, and epochs.

    `num_epochs` are those that it was to have, `tuned` those of fine-tuning that it has had.
    """

    task: str
    score: float | None
    new: Mapping[str, int]
    num_epochs: int
    tuned: int
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """How many rounds of fine-tuning a task has at most, and the epochs of each."""

    rounds: int = 0
    epochs: int = 0

    @property
    def most(self) -> int:
        """The epochs of all rounds."""
        return self.rounds * self.epochs


def tuning_of(config: Mapping[str, Any]) -> Tuning:
    """The fine-tuning that the config of a run asks for; of baselines, those that retrain."""
    if not is_ours(config):
        settings = config.get("baseline")
        epochs = settings.get("retrain_epochs") if isinstance(settings, Mapping) else None
        return Tuning(1, epochs) if isinstance(epochs, int) and epochs > 0 else Tuning()
    found = config.get("learner", {}).get("fine_tuning")
    return Tuning(int(found["rounds"]), int(found["epochs"])) if found else Tuning()


@dataclass
class Standing:
    """What the events of a run say, told one after the other to `add`.

    `phase` is what is being done to the open task: "training", "pruning" or "fine-tuning"; between
    two tasks and before the first it is None. `ended` is "finished", "failed" or "stopped". `at`
    counts the seconds that the run has been at work, all starts taken together. Epochs are those of
    training and of fine-tuning: events tell of the former how many there will be, `tuning` of the
    latter.
    """

    tuning: Tuning = Tuning()
    plan: Event = field(default_factory=dict)
    phase: str | None = None
    candidate: int | None = None
    round: int | None = None
    curve: Curve = field(default_factory=Curve)
    learnt: list[Learnt] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    full: str | None = None
    ended: str | None = None
    reason: str | None = None
    at: float = 0.0
    _curves: dict[tuple[str, int], Curve] = field(default_factory=dict)
    _reached: dict[int, int] = field(default_factory=dict)
    _tuned: int = 0
    _is_tuned: bool = False
    _began: float = 0.0

    def add(self, event: Event) -> None:
        """Take note of an event.

        One that does not hold what it should is an error of the kinds in `DAMAGED`, and leaves
        what was known.
        """
        kind = event["event"]
        at = _finite(event.get("at", self.at))
        take = getattr(self, f"_take_{kind}", None) if isinstance(kind, str) else None
        if take is not None:
            take(event, at)
        self.at = at

    def _take_begin(self, event: Event, at: float) -> None:
        self.plan, self._began = _plan(event), at
        self.phase, self.ended, self.reason = "training", None, None
        self.candidate = self.round = None
        self.curve, self._curves, self._reached = Curve(), {}, {}
        self._tuned, self._is_tuned = 0, False

    def _take_resumed(self, event: Event, at: float) -> None:
        if self.plan.get("task") != event["task"] or self.phase is None:
            self._take_begin(event, at)
        self.plan = _plan(event)
        self.ended = self.reason = None

    def _take_epoch(self, event: Event, at: float) -> None:
        key = ("round", int(event["round"])) if "round" in event else None
        key = key or ("candidate", int(event["candidate"]))
        curve = self._curves.setdefault(key, Curve())
        curve.add(event)
        self.curve = curve
        if key[0] == "round":
            self._tuning(key[1], len(curve.losses))
        else:
            self.phase, self.candidate, self.round = "training", key[1], None
            self._reached[key[1]] = len(curve.losses)

    def _take_candidate(self, event: Event, at: float) -> None:
        # One that stopped early, or diverged, makes the rest of its epochs unnecessary.
        self._reached[int(event["candidate"])] = int(self.plan.get("num_epochs", 0))

    def _take_pruning(self, event: Event, at: float) -> None:
        candidate, claimed = int(event["candidate"]), self.claimed
        self.sizes = {
            str(group): int(free) + sum(claimed.get(group, ()))
            for group, free in event["plan"]["available"].items()
        }
        self.phase, self.candidate, self.round = "pruning", candidate, None

    def _take_chosen(self, event: Event, at: float) -> None:
        self.phase, self.candidate = "pruning", int(event["candidate"])

    def _take_round(self, event: Event, at: float) -> None:
        self._tuning(int(event["round"]), self.tuning.epochs)
        # A round that is taken back is the last one.
        self._is_tuned = not event.get("kept", True)

    def _tuning(self, number: int, num_epochs: int) -> None:
        self.phase, self.round = "fine-tuning", number
        self._tuned = min(number * self.tuning.epochs + num_epochs, self.tuning.most)

    def _take_task(self, event: Event, at: float) -> None:
        score = event["test_score"]
        self.learnt.append(
            Learnt(
                str(event["task"]),
                None if score is None else float(score),
                {str(group): int(count) for group, count in event["new"].items()},
                self.epochs_of_task,
                self._tuned,
                at - self._began,
            )
        )
        self.phase = None

    def _take_evaluation(self, event: Event, at: float) -> None:
        self.scores = [None if score is None else float(score) for score in event["scores"]]

    def _take_full(self, event: Event, at: float) -> None:
        self.full, self.phase = str(event["reason"]), None

    def _take_failed(self, event: Event, at: float) -> None:
        self.ended, self.reason = "failed", str(event["reason"])

    def _take_stopped(self, event: Event, at: float) -> None:
        self.ended = "stopped"

    def _take_finished(self, event: Event, at: float) -> None:
        self.ended, self.phase = "finished", None

    @property
    def claimed(self) -> dict[str, list[int]]:
        """How many neurons of each group each ended task claimed."""
        groups = dict.fromkeys(group for task in self.learnt for group in task.new)
        return {group: [task.new.get(group, 0) for task in self.learnt] for group in groups}

    @property
    def epochs_of_training(self) -> int:
        """The epochs of all candidates of the task, if none stops early."""
        return int(self.plan.get("num_candidates", 0)) * int(self.plan.get("num_epochs", 0))

    @property
    def epochs_of_task(self) -> int:
        """Those, and the ones of fine-tuning, if no round is taken back."""
        return self.epochs_of_training + self.tuning.most

    @property
    def epochs_here(self) -> int:
        """How many of them are done, or not needed any more."""
        if self.phase == "training":
            return min(sum(self._reached.values()), self.epochs_of_training)
        if self.phase is None or self._is_tuned:
            return self.epochs_of_task
        return self.epochs_of_training + self._tuned

    @property
    def epochs_before(self) -> int:
        """The epochs of the tasks before this one."""
        number = int(self.plan.get("number", 1))
        return int(self.plan.get("epochs_before", 0)) + self.tuning.most * (number - 1)

    @property
    def epochs_done(self) -> int:
        """The epochs that are done, out of `epochs_of_run`."""
        if not self.plan or self.ended == "finished":
            return self.epochs_of_run
        return self.epochs_before + self.epochs_here

    @property
    def epochs_of_run(self) -> int:
        """The epochs of all tasks, if no candidate stops early and no round is taken back."""
        num_tasks = int(self.plan.get("num_tasks", 0))
        return int(self.plan.get("epochs_of_run", 0)) + self.tuning.most * num_tasks

    @property
    def is_lower_bound(self) -> bool:
        """Whether `seconds_left` leaves out what follows training, which was not seen yet."""
        return not self.learnt and not self.tuning.most

    @property
    def is_upper_bound(self) -> bool:
        """Whether it has rounds of fine-tuning that may turn out not to be needed."""
        return not self.learnt and self.tuning.rounds > 1 and self.phase == "fine-tuning"

    def seconds_left(self) -> float | None:
        """How much longer the run will be at work, if that can be told.

        Later tasks are taken to last as long as the last three did, by their number of epochs,
        with all that follows training; the first one, which searches a grid of its own, counts
        only while there is no other. The open task takes what it would by that measure, or by the
        epochs that it has had, whichever is longer.
        """
        if not self.plan or self.ended is not None or self.full is not None:
            return None if self.ended is None and self.full is None else 0.0
        timed = [task for task in self.learnt if task.num_epochs]
        timed = (timed[1:] or timed)[-RECENT:]
        usual = None
        if timed:
            usual = sum(task.seconds for task in timed) / sum(task.num_epochs for task in timed)
        size, done, spent = self.epochs_of_task, self.epochs_here, self.at - self._began
        later = self.epochs_of_run - self.epochs_before - size
        here = 0.0
        if self.phase is not None:
            own = spent / done if done else None
            if own is None and usual is None:
                return None
            by_epochs = (own or 0.0) * max(self.epochs_of_training - done, 0)
            # Candidates may have stopped early, or been trained at once; rounds are not.
            tuning = self.curve.seconds if self.phase == "fine-tuning" else 0.0
            by_epochs += (tuning or own or 0.0) * self._tuning_left(timed)
            here = max(by_epochs, (usual or 0.0) * size - spent, 0.0)
            usual = own if usual is None else usual
        return None if usual is None and later else here + (usual or 0.0) * max(later, 0)

    def _tuning_left(self, timed: Sequence[Learnt]) -> float:
        """Epochs of fine-tuning that the open task will have yet.

        As many as others had, or all of them; of the round that is under way the rest at least.
        """
        if self._is_tuned or not self.tuning.most:
            return 0.0
        expected = sum(task.tuned for task in timed) / len(timed) if timed else self.tuning.most
        return max(expected - self._tuned, -self._tuned % self.tuning.epochs)


def _plan(event: Event) -> Event:
    """What the beginning of a task says about it and the run."""
    counts = ("number", "num_tasks", "num_candidates", "num_epochs", "epochs_before")
    found: dict[str, Any] = {key: int(event[key]) for key in (*counts, "epochs_of_run")}
    return {**found, "task": str(event["task"])}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no time")
    return number


WAITING, RUNNING, FINISHED = "waiting", "running", "finished"
FAILED, STOPPED = "failed", "stopped"
ENDED = (FINISHED, FAILED, STOPPED)
PATIENCE = 10.0
"""Seconds for which a file may be unreadable, or lag behind another, before that is believed."""
GRACE = 60.0
"""Seconds without news after which the rest of a series with a failed run is not waited for."""


@dataclass(frozen=True)
class View:
    """A run as it is now.

    `status` is waiting (it has not begun), running, finished, failed or stopped. `silent` is for
    how many seconds nothing was heard of it, and `seconds_left` an estimate: `at_least` that while
    what follows training has not been seen yet, `at_most` that while rounds of fine-tuning may turn
    out not to be needed. Epochs of the run are those of training and of fine-tuning. `claimed` has
    the neurons of each group by ended task, `sizes` how many there are. Numbers of candidates,
    rounds and epochs count from 1.
    """

    run: str
    status: str = WAITING
    reason: str | None = None
    recipe: str | None = None
    method: str | None = None
    seed: int | None = None
    num_tasks: int | None = None
    num_learnt: int = 0
    task: str | None = None
    number: int | None = None
    phase: str | None = None
    candidate: int | None = None
    num_candidates: int | None = None
    round: int | None = None
    epoch: int | None = None
    num_epochs: int | None = None
    losses: Sequence[float] = ()
    scores: Sequence[float] = ()
    epochs_done: int = 0
    epochs_of_run: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None
    at_least: bool = False
    at_most: bool = False
    silent: float | None = None
    epoch_seconds: float | None = None
    tasks: Sequence[Mapping[str, Any]] = ()
    average: float | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    claimed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    full: str | None = None

    @property
    def fraction(self) -> float:
        """How much of the run is done, by its epochs; all of it only once it is finished.

        What follows the last epoch takes time too.
        """
        if self.status == FINISHED:
            return 1.0
        return min(self.epochs_done / self.epochs_of_run, 0.99) if self.epochs_of_run else 0.0


@dataclass(frozen=True)
class Scene:
    """All that is followed: `kind` is run, series, comparison, or None before it is there."""

    path: str
    kind: str | None
    views: Sequence[View] = ()
    labels: Sequence[str] = ()

    @property
    def status(self) -> str:
        """That of the run; of several: failed, stopped or finished once all of them have ended."""
        found = [view.status for view in self.views]
        if not found or all(status == WAITING for status in found):
            return WAITING
        # Whoever stops one of several stops them all: those that wait do not begin.
        waits = {WAITING} if STOPPED in found else set()
        if {*found} <= {*ENDED, *waits}:
            return next(status for status in (FAILED, STOPPED, FINISHED) if status in found)
        silent = min((v.silent for v in self.views if v.silent is not None), default=0.0)
        # A series ends with the first run that fails, unless others are under way.
        return FAILED if FAILED in found and silent >= GRACE else RUNNING

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        runs = [
            {"label": label, "fraction": view.fraction, **asdict(view)}
            for label, view in zip(self.labels, self.views, strict=True)
        ]
        found = {"path": self.path, "kind": self.kind, "status": self.status, "runs": runs}
        plain: dict[str, Any] = json.loads(to_json(found))
        return plain


class Follower:
    """One run, looked at again and again."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self.path = path
        self._clock, self._patience = clock, patience
        self._tail = Tail(path / EVENTS)
        self._standing = Standing()
        self._config: dict[str, Any] | None = None
        self._result: dict[str, Any] | None = None
        self._heard = 0.0
        self._unreadable: float | None = None

    def look(self) -> View:
        """The run as it is now; a `RunError` if its config is damaged for good."""
        known = self._config is not None
        self._read_config()
        if self._config is None:
            # One that failed before it had learnt anything leaves nothing but what it told.
            reason = withdrawn(self.path)
            if reason is None:
                return View(str(self.path))
            silent = silence(self.path)
            return View(str(self.path), status=FAILED, reason=reason, silent=silent)
        news = self._read_events(self._config)
        if not known:
            self._heard = self._clock() - silence(self.path)
        elif news:
            self._heard = self._clock()
        with reading(self.path):
            return self._view(self._config)

    def _read_config(self) -> None:
        if self._config is not None or not os.path.isfile(self.path / CONFIG):
            return
        now = self._clock()
        try:
            self._config = read_config(self.path)
        except RunError:
            # Another machine may be shown a file before all of it has arrived.
            self._unreadable = self._unreadable if self._unreadable is not None else now
            if now - self._unreadable >= self._patience:
                raise

    def _read_events(self, config: Mapping[str, Any]) -> bool:
        """Take note of the events that are new; whether there are any."""
        lines, anew = self._tail.read()
        if anew:
            self._standing = Standing()
        with reading(self.path):
            self._standing.tuning = tuning_of(config)
        if anew or lines:
            self._result = None
        for line in lines:
            with contextlib.suppress(*DAMAGED):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._standing.add(event)
        return anew or bool(lines)

    def _view(self, config: Mapping[str, Any]) -> View:
        standing = self._standing
        plan, curve = standing.plan, standing.curve
        silent = max(0.0, self._clock() - self._heard)
        status = standing.ended or RUNNING
        if status == RUNNING and silent >= PATIENCE and self._final():
            status = FINISHED
        training = standing.phase == "training" and bool(curve.losses)
        tuning = standing.phase == "fine-tuning" and standing.round is not None
        left = standing.seconds_left() if status == RUNNING else 0.0
        if left is not None and curve.seconds:
            # An epoch that is under way has taken some of it.
            left = max(0.0, left - min(silent, curve.seconds))
        known = [score for score in standing.scores if score is not None]
        tasks = [{"task": task.task, "test_score": task.score} for task in standing.learnt]
        if status == FINISHED and "tasks" in (final := self._final()):
            # Events may be damaged.
            tasks = [
                {"task": str(record["task"]), "test_score": _number(record["test_score"])}
                for record in final["tasks"]
            ]
            scores = map(_number, final["scores"][-1] if final["scores"] else [])
            known = [score for score in scores if score is not None]
        return View(
            run=str(self.path),
            status=status,
            reason=standing.reason,
            recipe=config.get("recipe"),
            method=method_of(config),
            seed=config["seed"],
            num_tasks=len(config["tasks"]),
            num_learnt=len(tasks),
            task=plan.get("task") if standing.phase else None,
            number=plan.get("number") if standing.phase else None,
            phase=standing.phase,
            candidate=None if standing.candidate is None else standing.candidate + 1,
            num_candidates=plan.get("num_candidates"),
            round=None if standing.round is None else standing.round + 1,
            epoch=len(curve.losses) if training or tuning else None,
            num_epochs=curve.num_epochs if training or tuning else None,
            losses=list(curve.losses) if standing.phase else [],
            scores=list(curve.scores) if standing.phase else [],
            epochs_done=standing.epochs_done,
            epochs_of_run=standing.epochs_of_run,
            seconds=standing.at,
            seconds_left=left,
            at_least=standing.is_lower_bound,
            at_most=standing.is_upper_bound,
            silent=silent,
            epoch_seconds=curve.seconds or None,
            tasks=tasks,
            average=sum(known) / len(known) if known else None,
            sizes=dict(standing.sizes),
            claimed=standing.claimed,
            full=standing.full,
        )

    def _final(self) -> dict[str, Any]:
        """The result of the run if that says that it is finished, whatever its events say."""
        if self._result is None:
            with contextlib.suppress(RunError):
                found = read_result(self.path)
                self._result = found if found.get("finished") else None
        return self._result or {}


class Following:
    """A run, a series or a comparison, looked at again and again; it may not be there yet.

    A file that is damaged is an error after `patience` seconds: it may be on its way.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self.path = expanded(path)
        self._clock, self._patience = clock, patience
        self._followers: dict[str, Follower] = {}
        self._runs: tuple[str, dict[str, Path]] | None = None
        self._unreadable: float | None = None

    def look(self) -> Scene:
        """All of it as it is now; a `RunError` if a file is damaged for good."""
        kind, runs = self._find()
        for label, path in runs.items():
            if label not in self._followers:
                self._followers[label] = Follower(path, clock=self._clock, patience=self._patience)
        views = [self._followers[label].look() for label in runs]
        return Scene(str(self.path), kind, views, list(runs))

    def _find(self) -> tuple[str | None, dict[str, Path]]:
        """What it is, and the runs by what they are called."""
        try:
            found = _runs_at(self.path)
            self._unreadable = None
        except RunError:
            now = self._clock()
            self._unreadable = self._unreadable if self._unreadable is not None else now
            if now - self._unreadable >= self._patience:
                raise
            found = None
        self._runs = found or self._runs
        return self._runs if self._runs is not None else (None, {})


def _runs_at(path: Path) -> tuple[str, dict[str, Path]] | None:
    with reading(path):
        if os.path.isfile(path / COMPARISON):
            known = read_comparison(path)
            return "comparison", {
                f"{method}, seed {seed}": run_of(path / method, seed)
                for method in known["methods"]
                for seed in known["seeds"]
            }
        if os.path.isfile(path / SERIES):
            return "series", {
                f"seed {seed}": run_of(path, seed) for seed in read_series(path)["seeds"]
            }
    found = os.path.isfile(path / CONFIG) or withdrawn(path) is not None
    return ("run", {"run": path}) if found else None


def withdrawn(path: Path) -> str | None:
    """Why a run failed that had learnt nothing, and was taken back; None if it was not."""
    last = next(iter(read_events(path)[-1:]), {})
    if last.get("event") != "failed" or has_learnt(path):
        return None
    return str(last.get("reason"))


def _number(value: Any) -> float | None:
    """A score as it is in a file, where what is not finite is text."""
    return None if value is None else float(value)
