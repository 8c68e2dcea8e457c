"""Runs followed from outside, on whatever machine they are: by reading their files, never else.

Nothing is locked, written or waited for. A directory may appear later, a line may be half written,
and a run that is resumed cuts off the events that are younger than its checkpoint.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .compare import COMPARISON, read_comparison
from .errors import RunError
from .ours import method_of
from .runs import (
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
from .series import SERIES, read_series, run_of
from .standing import DAMAGED, Standing, tuning_of
from .tail import Tail

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
