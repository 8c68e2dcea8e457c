"""Where a run stands, from its events: task, candidate, curves, neurons claimed, time left."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .events import Event
from .ours import is_ours

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
