"""An experiment: task after task learnt in one network, in a run that survives crashes."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from clnp.checks import check_kind, listed, number_of_seconds, settle, whole_number
from clnp.errors import ArgumentError, CapacityError, RunError, StoppedError, failure, unknown_name
from clnp.methods.method import Method, Setting
from clnp.methods.neural_pruning import NeuralPruning
from clnp.methods.registry import check_baseline, method_for, name_of, takes_more_tasks
from clnp.storage.checkpoint import attached
from clnp.training.config import LearnerConfig
from clnp.training.events import Event
from clnp.training.optimizer import check_optimizers
from clnp.training.task import Task, checked_tasks

from .directory import (
    CHECKPOINT,
    CONFIG,
    FORMAT,
    RECIPE,
    RESULT,
    Run,
    command,
    expanded,
    has_learnt,
    read_config,
    read_result,
    reading,
    to_json,
    writing,
)
from .environment import arithmetic, describe, peak_bytes, reset_peak
from .fingerprint import check_alike, describe_model, fingerprints, plain
from .outputs import is_known, judge, note, note_elsewhere
from .trackers import Audience, Tracker, forget, is_tracker, tell_again


@dataclass
class Tally:
    """The records of the tasks that have ended, and what they took.

    `scores` has a row for each of them, with the scores of all tasks up to it; `began` is when the
    one that is being learnt was begun, in seconds of the run, and `told` how much the run had told
    before, in bytes of events. `full` says why no more fit.
    """

    num_tasks: int
    done: list[dict[str, Any]] = field(default_factory=list)
    scores: list[list[float | None]] = field(default_factory=list)
    task_seconds: list[float] = field(default_factory=list)
    began: float = 0.0
    told: int = 0
    full: str | None = None
    peak_bytes: int = 0

    @property
    def finished(self) -> bool:
        """Whether there is no task left, or no room for it."""
        return self.full is not None or len(self.done) == self.num_tasks

    def add(self, record: dict[str, Any], now: float) -> None:
        """Note a task that has ended, at this second of the run."""
        self.done.append(record)
        self.task_seconds.append(now - self.began)

    def judge(
        self, outcomes: Sequence[tuple[float, str] | None], arithmetic: str
    ) -> list[float | None]:
        """Note the score and the SHA-256 of the outputs of each ended task; the scores."""
        row = []
        for record, outcome in zip(self.done, outcomes, strict=True):
            score, digest = (None, None) if outcome is None else outcome
            row.append(score)
            note(record, arithmetic, digest)
            if record["test_score"] is None:
                record["test_score"] = score  # Learnt only now, with all others.
        self.scores.append(row)
        return row

    def state(self) -> dict[str, Any]:
        """All that `restore` needs."""
        return {name: value for name, value in vars(self).items() if name != "num_tasks"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state()` was taken; tasks may have been added since."""
        for name in self.state():
            setattr(self, name, state[name])

    def result(
        self, experiment: Mapping[str, Any], figures: Mapping[str, Any], *, seconds: float
    ) -> dict[str, Any]:
        """All of it, with what the experiment is and the figures of the network."""
        return {
            "format": FORMAT,
            "finished": self.finished,
            "full": self.full,
            "num_tasks": self.num_tasks,
            **{name: experiment[name] for name in ("method", "head", "seed")},
            "tasks": self.done,
            "scores": self.scores,
            **figures,
            "timings": {
                "seconds": seconds,
                "tasks": self.task_seconds,
                "peak_bytes": self.peak_bytes,
            },
        }


@dataclass(frozen=True)
class Continuation:
    """Where a run goes on: the state of its checkpoint, or None if it has none yet.

    `num_alike` tasks are those that the run knows. The one that it had begun, or found no room for,
    may have been `exchanged`: then the state is that of a run which has not heard of it.
    """

    state: dict[str, Any] | None
    num_alike: int = 0
    exchanged: bool = False


def continuation(place: Path, described: Mapping[str, Any], baseline: Any) -> Continuation:
    """Where the run at `place` goes on, by an experiment that is described so.

    Tasks that have not ended may be others now, or left out: neural pruning gives up the one that
    it has begun. A baseline cannot, because all weights have moved; and joint training has begun
    them all. A run that has learnt nothing is begun anew, whatever it was begun with.
    """
    takes_more = takes_more_tasks(baseline)
    if not (place / CHECKPOINT).exists():
        if (place / RESULT).exists():
            raise RunError(f"{place} has lost its {CHECKPOINT}; begin a new run")
        if has_learnt(place):
            known = read_config(place)
            check_alike(described, known, place, at_least=0 if takes_more else None)
        return Continuation(None)
    state: dict[str, Any] = attached(place / CHECKPOINT)
    num_ended, is_open = len(state["done"]), state["progress"] is not None
    settled: int | None = num_ended
    if baseline is not None:
        settled = num_ended + is_open if takes_more else None
    num_alike = check_alike(described, state["experiment"], place, at_least=settled)
    exchanged = num_alike == num_ended and (is_open or state["full"] is not None)
    if exchanged:
        state.update(progress=None, full=None, num_event_bytes=state["told"])
    return Continuation({**state, "experiment": described}, num_alike, exchanged)


@dataclass(frozen=True)
class Experiment:
    """Tasks, a model, and how it learns them.

        experiment = clnp.Experiment(model, torch.zeros(2, 20), tasks, clnp.LearnerConfig())
        result = experiment.run("runs/mine")        # after a crash, the same again: it goes on

    `model`, `example_input`, `head` and `classifier` are those of `ContinualNet`; the network is on
    the device of the model. The same seed gives the same result, bit for bit on a CPU. `baseline`
    has the settings of another method to learn them with, such as `clnp.methods.EWC()`, or of
    one of your own: a dataclass with `training` and `strategy` (`clnp.methods.method`).
    """

    model: nn.Module
    example_input: Any
    tasks: Sequence[Task]
    config: LearnerConfig = field(default_factory=LearnerConfig)
    head: Literal["multi", "single"] = "multi"
    classifier: str | None = None
    seed: int = 0
    baseline: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", checked_tasks(self.tasks))
        settle(self, {"seed": whole_number})
        check_kind("model", self.model, nn.Module, "an nn.Module")
        check_kind("config", self.config, LearnerConfig, "a LearnerConfig")
        if self.classifier is not None:
            check_kind("classifier", self.classifier, str, "the path of a layer, or None")
        names = [task.name for task in self.tasks]
        for unused in self.config.unused(names):
            message = f"config.tasks: {unknown_name('task', unused, names)}"
            raise ArgumentError(message, argument="config")
        if self.baseline is not None:
            check_baseline(self.baseline)
        own = self.config.candidates() if self.baseline is None else [self.baseline.training]
        check_optimizers([each or self.config.training for each in own], self.model)

    def to_json(self) -> dict[str, Any]:
        """What is learnt and how, in plain data: an experiment that goes on must be like it."""
        return {
            "format": FORMAT,
            "tasks": fingerprints(self.tasks),
            "model": describe_model(self.model),
            "head": self.head,
            "classifier": self.classifier,
            "seed": self.seed,
            "learner": plain(self.config),
            "method": self.method,
            "baseline": None if self.baseline is None else plain(self.baseline),
        }

    @property
    def method(self) -> str:
        """The name of the method that learns."""
        return name_of(self.baseline)

    def run(
        self,
        directory: str | os.PathLike[str],
        *,
        checkpoint_seconds: float = 60.0,
        on_event: Callable[[Event], None] = lambda event: None,
        trackers: Sequence[Tracker] = (),
    ) -> dict[str, Any]:
        """Learn all tasks in a run directory, from where it broke off if there is a run already.

        A run that has the first of these tasks, finished or not, goes on with the others; those
        that have not ended may be others than it was begun with. A run of another experiment is
        refused: with other tasks or settings, layers of another kind or size, or other data. Of
        data in tensors, in a `TensorDataset` or in a list every number counts; of other data sets,
        whose samples may be random, how many there are. What comes back is also in `result.json`.
        Trackers, `clnp.trackers.TensorBoard()` for example, get the whole run, even a finished one.
        """
        seconds = number_of_seconds("checkpoint_seconds", checkpoint_seconds)
        told = listed("trackers", trackers, is_tracker, what="trackers")
        path, described = expanded(directory), self.to_json()
        going_on = (path / CONFIG).is_file()
        result = read_result(path) if going_on else {}
        if result.get("finished"):
            known, num_ended = read_config(path), len(result["tasks"])
            num_alike = check_alike(described, known, path, at_least=num_ended)
            if num_alike == len(self.tasks) == len(known["tasks"]):
                if told:
                    tell_again(path, told)
                return dict(result)
        new = {CONFIG: to_json(described, indent=1)}
        with Run.open(path) if going_on else Run.create(path, new) as run:
            course = Course(self, run, seconds, on_event, audience=Audience(told))
            return course.follow()


class Course:
    """An experiment on its way through the tasks.

    A run that has but the first of them goes on with the others; `recipe` is then the text of the
    one that has them all, where the run is made from a recipe. Call `stop` from a signal handler:
    the run then saves where it is after the current epoch, and `follow` raises a `StoppedError`.
    """

    def __init__(
        self,
        experiment: Experiment,
        run: Run,
        checkpoint_seconds: float = 60.0,
        on_event: Callable[[Event], None] = lambda event: None,
        *,
        audience: Audience | None = None,
        recipe: str | None = None,
    ) -> None:
        self.experiment, self.run, self.on_event = experiment, run, on_event
        self._recipe = recipe
        self._audience = Audience(()) if audience is None else audience
        self.checkpoint_seconds = checkpoint_seconds
        self._described = json.loads(to_json(experiment.to_json()))
        self.method: Method
        self.tally = Tally(len(experiment.tasks))
        self._arithmetic = ""
        self._saved = time.monotonic()
        self._stopping = False

    def stop(self) -> None:
        """Ask the run to save and stop as soon as it can."""
        self._stopping = True

    def follow(self) -> dict[str, Any]:
        """Learn the tasks that are left; the result."""
        try:
            result = self._follow()
        except BaseException as error:
            self._audience.end(None, error)
            # What a user mends; a run that was killed, or has no room, goes on as it is.
            mistake = isinstance(error, Exception) and not isinstance(error, RunError)
            if mistake and not has_learnt(self.run.path):
                self.run.withdraw()
            raise
        self._audience.end(result, None)
        return result

    def _follow(self) -> dict[str, Any]:
        resumed = self._take_up()
        tasks, tally = self.experiment.tasks, self.tally
        while not tally.finished:
            with self._telling(tasks[len(tally.done)]):
                self._learn(tasks[len(tally.done)], resumed=resumed)
            resumed = False
        with self._telling(tasks[-1]):
            self.method.verify()
        self._tell({"event": "finished", "num_tasks": len(tally.done)})
        # The last of all: a run whose result is finished is not taken up again.
        result = self.result()
        self.run.write(RESULT, result)
        return result

    def _learn(self, task: Task, *, resumed: bool) -> None:
        tally = self.tally
        if not resumed:
            tally.began, tally.told = self.run.seconds, self.run.state()["num_event_bytes"]
            self._announce("begin", task)
        try:
            record = self.method.learn(task)
        except CapacityError as error:
            tally.full = str(error)
            self._tell({"event": "full", "task": task.name, "reason": tally.full})
        else:
            tally.add(record, self.run.seconds)
            self._judge()
        self._save()

    @contextmanager
    def _telling(self, task: Task) -> Iterator[None]:
        """Let those who look at the run know what it breaks off with, in our code or a user's."""
        try:
            yield
        except StoppedError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            with suppress(Exception):  # The disk, perhaps: the error itself says more.
                stopped = isinstance(error, KeyboardInterrupt)
                what = {"event": "failed", "task": task.name, **failure(error)}
                self._tell({"event": "stopped"} if stopped else what)
            raise

    def _take_up(self) -> bool:
        """Put everything to where the last checkpoint left it; whether that is inside a task."""
        experiment, run = self.experiment, self.run
        with reading(run.path):
            found = continuation(run.path, self._described, experiment.baseline)
            state = found.state
            if state is not None:
                self.tally.restore(state)
        if state is not None:
            self._check_added(experiment.tasks[found.num_alike :])
        self.method = self._method(state)
        self._describe(found.num_alike)
        if found.exchanged:
            # Before its events go: whoever comes back must not find the task in the checkpoint.
            with writing(run.path):
                self.method.save(run.path / CHECKPOINT, attached=state)
        reset_peak(self.method.device)
        environment = describe(self.method.device)
        self._arithmetic = arithmetic(environment)
        run.add_environment(environment)
        if self._audience:
            # Before the clock of the run starts: connecting may take longer than a task.
            self._audience.take_up(run.path, environment, state)
        run.go_on_from(state)
        if state is None:
            self._tell({"event": "run", **self._described})
            for task in experiment.tasks:
                with self._telling(task):
                    self.method.check(task)
            return False
        self._look_elsewhere(state)
        if state["progress"] is None:
            return False
        self._announce("resumed", experiment.tasks[len(self.tally.done)])
        return True

    def _describe(self, num_alike: int) -> None:
        """Write down what the run is now, if it was begun as another: with other tasks, perhaps."""
        known = read_config(self.run.path)
        now = to_json({**known, **self._described}, indent=1)
        if now == to_json(known, indent=1):
            return
        recipe = {} if self._recipe is None else {RECIPE: self._recipe}
        self.run.reopen({**recipe, CONFIG: now})
        if num_alike == len(self.tally.done) < len(known["tasks"]):
            forget(self.run.path)  # Trackers may have been told of the task, saved or not.

    def _check_added(self, tasks: Sequence[Task]) -> None:
        """Raise an error unless the run can have these tasks at the end."""
        if not tasks:
            return
        if not takes_more_tasks(self.experiment.baseline):
            raise RunError(
                f"{self.run.path}: {self.experiment.method} learns all tasks at the same time, so "
                "that none can be added; begin a new run"
            )
        fresh = self._method(None)  # The network of the run may be inside a task.
        for task in tasks:
            fresh.check(task)

    def _method(self, state: Mapping[str, Any] | None) -> Method:
        """What learns, from the start or from a checkpoint with this state."""
        experiment = self.experiment
        setting = Setting(
            experiment.model,
            experiment.example_input,
            experiment.tasks,
            experiment.config,
            head=experiment.head,
            classifier=experiment.classifier,
            seed=experiment.seed,
            on_event=self._tell,
            on_progress=self._progressed,
        )
        if experiment.baseline is None:
            return NeuralPruning(setting, self.run.path / CHECKPOINT, state)
        return method_for(experiment.baseline, setting, state)

    def _announce(self, event: str, task: Task) -> None:
        self._tell(
            {
                "event": event,
                "task": task.name,
                "number": len(self.tally.done) + 1,
                "num_tasks": len(self.experiment.tasks),
                "num_candidates": self.method.num_candidates(task.name),
                "num_epochs": self.method.num_epochs(task.name),
                "epochs_before": self.method.epochs_before(len(self.tally.done)),
                "epochs_of_run": self.method.epochs_before(len(self.experiment.tasks)),
            }
        )

    def _tell(self, event: Event) -> None:
        written = self.run.log(event)
        self.on_event(event)
        if self._audience:
            # As it stands in the file, from where it is told when the run goes on.
            self._audience.event(json.loads(to_json(written)))

    def _progressed(self) -> None:
        due = time.monotonic() - self._saved >= self.checkpoint_seconds
        if due or self._stopping:
            self._save()

    def _save(self) -> None:
        """Write the checkpoint and, between two tasks, the result so far; then stop if asked to."""
        own = self.method.state()
        self._note_peak()
        tally = self.tally.state()
        state = {**self.run.state(), "experiment": self._described, **own, **tally}
        with writing(self.run.path):
            self.method.save(self.run.path / CHECKPOINT, attached=state)
        if own["progress"] is None and not self.tally.finished:
            self.run.write(RESULT, self.result())
        self._saved = time.monotonic()
        if self._stopping and not self.tally.finished:
            self._tell({"event": "stopped"})
            raise StoppedError(f"stopped; go on with: {command('resume', self.run.path)}")

    def _outcome(self, method: Method, task: Task) -> tuple[float, str] | None:
        """The score of a task and the SHA-256 of its outputs, if it is learnt and has test data."""
        if not method.answers(task.name):
            return None
        config, seed = self.experiment.config, self.experiment.seed
        return judge(method.predict, task, config, seed=seed, device=method.device)

    def _look_elsewhere(self, state: Mapping[str, Any]) -> None:
        """Note the outputs of ended tasks that are not known in the present arithmetic."""
        here = self._arithmetic
        pairs = zip(self.experiment.tasks, self.tally.done, strict=False)
        unknown = [(t, r) for t, r in pairs if r["outputs"] is not None and not is_known(r, here)]
        if unknown:
            # A baseline may lose what it is learning when it answers for another task.
            method = self._method(state)
            for task, record in unknown:
                found = self._outcome(method, task)
                assert found is not None
                note_elsewhere(record, here, found[1])

    def _judge(self) -> None:
        """Run the test data of every task learnt so far: its score, and whether a bit differs."""
        learnt = self.experiment.tasks[: len(self.tally.done)]
        outcomes = [self._outcome(self.method, task) for task in learnt]
        row = self.tally.judge(outcomes, self._arithmetic)
        last, figures = self.tally.done[-1], self.method.figures()
        self._tell(
            {
                "event": "evaluation",
                "task": last["task"],
                "scores": row,
                "new": last["new"],
                "reused": last["reused"],
                "sizes": figures["capacity"]["sizes"],
                "free": figures["capacity"]["free"],
                "forecast": figures["forecast"],
            }
        )

    def _note_peak(self) -> None:
        peak = peak_bytes(self.method.device)
        self.tally.peak_bytes = max(self.tally.peak_bytes, peak)

    def result(self) -> dict[str, Any]:
        """All that the run has come to so far; two runs that are alike differ in `timings` only."""
        self._note_peak()
        return self.tally.result(self._described, self.method.figures(), seconds=self.run.seconds)
