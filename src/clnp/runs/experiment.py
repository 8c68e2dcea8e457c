"""An experiment: tasks learned one after the other in one network, in a resumable run."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from clnp.checks import (
    SEED,
    THREADS,
    check_kind,
    listed,
    number_of_seconds,
    optional,
    settle,
)
from clnp.devices import restoring_threads, use_threads
from clnp.errors import (
    ArgumentError,
    CapacityError,
    CheckpointError,
    RunError,
    StoppedError,
    failure,
    unknown_name,
)
from clnp.methods.method import Method, Setting
from clnp.methods.neural_pruning import NeuralPruning
from clnp.methods.registry import check_baseline, method_for, name_of, takes_more_tasks
from clnp.plain import read, to_json, to_plain
from clnp.records import (
    FORMAT,
    Evaluated,
    Event,
    NetworkFull,
    RunConfig,
    RunFailed,
    RunFinished,
    RunResult,
    RunStarted,
    RunState,
    RunStopped,
    SubsetScored,
    TaskRecord,
    TaskResumed,
    TasksChecked,
    TaskStarted,
    Timings,
    Warned,
)
from clnp.storage.checkpoint import attached
from clnp.training.config import LearnerConfig, Training
from clnp.training.criterion import criterion_of
from clnp.training.optimizer import check_optimizers
from clnp.training.task import Task, checked_tasks

from .directory import (
    CHECKPOINT,
    CONFIG,
    RECIPE,
    RESULT,
    Run,
    expanded,
    has_progress,
    last_environment,
    read_config,
    read_events,
    read_result,
    reading,
    resume_command,
    writing,
)
from .environment import arithmetic, describe, peak_bytes, reset_peak
from .fingerprint import check_alike, describe_model, fingerprints, plain
from .metrics import metrics_of
from .outputs import (
    is_known,
    score_and_digest,
    validation_score,
    with_outputs,
    with_outputs_elsewhere,
)
from .status import StatusWriter
from .threads import fitting
from .trackers import Tracker, Trackers, forget, is_tracker, track_finished_run

CHECK_SECONDS = 5.0
"""Least time between two reports of how many tasks are checked."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run resumes.

    `state` is that of the run and `method` that of its method, as saved. The run has the first
    `num_alike` tasks of the experiment. The task that it had started, or found no room for, may be
    `exchanged` for another: then the state is that of a run that never started it.
    """

    state: RunState
    method: Mapping[str, Any]
    num_alike: int
    exchanged: bool


def read_checkpoint(path: Path, config: RunConfig, baseline: Any) -> Checkpoint | None:
    """Return where the run at `path` resumes in an experiment with this config; None at the start.

    Tasks that have not ended may be exchanged or left out: neural pruning abandons an open task. A
    baseline cannot, because all of its weights have moved; and joint training starts all tasks at
    the same time. A run without progress starts again, whatever its config was.
    """
    takes_more = takes_more_tasks(baseline)
    if not (path / CHECKPOINT).exists():
        if (path / RESULT).exists():
            raise CheckpointError(
                f"{path} has lost its {CHECKPOINT}. Restore a copy of it, or start a new run."
            )
        if has_progress(path):
            at_least = 0 if takes_more else None
            check_alike(config, read_config(path), path, at_least=at_least)
        return None
    saved: dict[str, Any] = attached(path / CHECKPOINT)
    state = read(RunState, saved)
    num_ended, is_open = len(state.done), saved["progress"] is not None
    settled: int | None = num_ended
    if baseline is not None:
        settled = num_ended + is_open if takes_more else None
    num_alike = check_alike(config, state.experiment, path, at_least=settled)
    exchanged = num_alike == num_ended and (is_open or state.full is not None)
    if exchanged:
        saved["progress"] = None
        state = replace(state, full=None, num_event_bytes=state.told)
    return Checkpoint(replace(state, experiment=config), saved, num_alike, exchanged)


@dataclass(frozen=True)
class Experiment:
    """Tasks, a model, and the settings to learn them with.

    Args:
        model: The network to learn in, on the device to use. It is copied.
        example_input: A batch for the model, of any values.
        tasks: The tasks, in order.
        config: The settings of the learner.
        head: `"multi"`, a head for each task, or `"single"`, one head for all.
        classifier: The path of the output layer, if it cannot be inferred from the model.
        seed: The seed of all random numbers. The same seed gives the same result, bit for bit on a
            CPU with the same number of threads.
        baseline: The settings of another method, such as `clnp.methods.EWC()`, or of a custom one:
            a dataclass with `training` and `strategy` (see `clnp.methods.Strategy`).
        threads: The number of threads on a CPU. Default: that of the run if it is resumed,
            otherwise one if a batch takes fewer than 100 million multiplications, and PyTorch's
            own number for larger ones. It is restored when the run ends.

    Example:
        >>> experiment = clnp.Experiment(model, torch.zeros(2, 20), tasks, clnp.LearnerConfig())
        >>> result = experiment.run("runs/mine")     # run it again to resume after a crash
        >>> result.scores[-1]
    """

    model: nn.Module
    example_input: Any
    tasks: Sequence[Task]
    config: LearnerConfig = field(default_factory=LearnerConfig)
    head: Literal["multi", "single"] = "multi"
    classifier: str | None = None
    seed: int = 0
    baseline: Any = None
    threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", checked_tasks(self.tasks))
        settle(self, {"seed": SEED, "threads": optional(THREADS)})
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
        trainings = self._trainings()
        # The function of a user may expect the weights of the network.
        by_name = [each for each in trainings if isinstance(each.optimizer, str)]
        check_optimizers(by_name, self.model)

    def _trainings(self) -> list[Training]:
        own = self.config.candidates() if self.baseline is None else [self.baseline.training]
        return [each or self.config.training for each in own]

    def describe(self) -> RunConfig:
        """Return the config of a run of this experiment.

        Returns:
            The config. An experiment can resume a run only if both have the same.
        """
        return RunConfig(
            format=FORMAT,
            tasks=fingerprints(self.tasks),
            model=tuple(describe_model(self.model)),
            head=self.head,
            classifier=self.classifier,
            seed=self.seed,
            # A function counts by its code, also where a recipe names it.
            learner=plain(replace(self.config, importance=criterion_of(self.config.importance))),
            method=self.method,
            baseline=None if self.baseline is None else plain(self.baseline),
        )

    @property
    def method(self) -> str:
        """The name of the method."""
        return name_of(self.baseline)

    def run(
        self,
        directory: str | os.PathLike[str],
        *,
        checkpoint_seconds: float = 60.0,
        on_event: Callable[[Event], None] = lambda event: None,
        trackers: Sequence[Tracker] = (),
    ) -> RunResult:
        """Learn all tasks in a run directory; resume if it already contains a run.

        Args:
            directory: The directory of the run. If it contains a run, finished or not, its tasks
                must be the first ones of this experiment, except for those that have not ended. A
                run with other settings, other layers or other data is refused. Data in tensors, in
                a `TensorDataset` or in a list is compared by its numbers; other data sets, whose
                samples may be random, by their length. Functions are compared by name and code,
                dataclasses by their fields, and other objects by their `repr`; there is a warning
                if it does not show their state.
            checkpoint_seconds: How often to save within a task.
            on_event: Called with each event of the log, such as `clnp.records.EpochEnded`, and with
                each `clnp.records.SubsetScored` and `TasksChecked`.
            trackers: Trackers such as `clnp.trackers.TensorBoard()`. They get the whole run, even
                if it is finished.

        Returns:
            The result, as in `result.json`.

        Raises:
            RunError: If the directory contains something else, or another experiment.

        Example:
            >>> result = experiment.run("runs/mine", on_event=clnp.terminal.Lines().show)
        """
        seconds = number_of_seconds("checkpoint_seconds", checkpoint_seconds)
        given = listed("trackers", trackers, is_tracker, what="trackers")
        path, config = expanded(directory), self.describe()
        exists = (path / CONFIG).is_file()
        result = read_result(path) if exists else None
        if result is not None and result.finished:
            known = read_config(path)
            at_least = len(result.tasks)
            num_alike = check_alike(config, known, path, at_least=at_least)
            if num_alike == len(self.tasks) == len(known.tasks):
                if given:
                    track_finished_run(path, given)
                return result
        files = {CONFIG: to_json(config, indent=1)}
        with Run.open(path) if exists else Run.create(path, files) as run:
            return RunLoop(self, run, seconds, on_event, trackers=Trackers(given)).run_all()


class RunLoop:
    """The loop over the tasks of an experiment in a run directory, from the checkpoint on.

    If the run has only the first tasks of the experiment, the others are added to it; `recipe` is
    then the text of the recipe with all tasks, for runs that were started from one.
    """

    def __init__(
        self,
        experiment: Experiment,
        run: Run,
        checkpoint_seconds: float = 60.0,
        on_event: Callable[[Event], None] = lambda event: None,
        *,
        trackers: Trackers | None = None,
        recipe: str | None = None,
    ) -> None:
        self.experiment, self.run, self.on_event = experiment, run, on_event
        self._recipe = recipe
        self._trackers = Trackers(()) if trackers is None else trackers
        self.checkpoint_seconds = checkpoint_seconds
        self.state = RunState(experiment=experiment.describe())
        self.method: Method
        self._status: StatusWriter
        self._arithmetic = ""
        self._saved = time.monotonic()
        self._stopping = False

    def stop(self) -> None:
        """Save, after this epoch or before this pruning, and raise a `StoppedError`.

        Safe to call in a signal handler.
        """
        self._stopping = True

    def run_all(self) -> RunResult:
        """Learn the tasks that are left, and return the result."""
        try:
            with restoring_threads():
                result = self._run_all()
        except BaseException as error:
            self._trackers.end(None, error)
            # Unlike after a full disk or a signal, the experiment must be corrected.
            is_its_own = isinstance(error, Exception) and not isinstance(error, RunError)
            if is_its_own and not has_progress(self.run.path):
                self.run.withdraw()
            raise
        self._trackers.end(result, None)
        return result

    def _run_all(self) -> RunResult:
        resumed = self._resume()
        tasks = self.experiment.tasks
        while not self.state.finished:
            task = tasks[len(self.state.done)]
            with self._logging_failure(task):
                self._learn(task, resumed=resumed)
            resumed = False
        with self._logging_failure(tasks[-1]):
            self.method.verify()
            validation = self._validation()
        if not (self.run.path / CHECKPOINT).exists():
            self._save()
        self._log(RunFinished(num_tasks=len(self.state.done)))
        self.run.flush_log()
        # Written last: a run with a finished result is not resumed.
        result = replace(self.result(), validation=validation)
        self.run.write(RESULT, result)
        return result

    def _learn(self, task: Task, *, resumed: bool) -> None:
        if not resumed:
            self.state = replace(self.state, began=self.run.seconds, told=self.run.flush_log())
            self._log_start(TaskStarted, task)
        try:
            with self._logging_warnings(task):
                record = self.method.learn(task)
        except CapacityError as error:
            self.state = replace(self.state, full=str(error))
            self._log(NetworkFull(task=task.name, reason=str(error)))
        else:
            seconds = self.run.seconds - self.state.began
            self.state = replace(
                self.state,
                done=(*self.state.done, record),
                task_seconds=(*self.state.task_seconds, seconds),
            )
            self._evaluate()
        self._save()

    @contextmanager
    def _logging_warnings(self, task: Task) -> Iterator[None]:
        """Log each warning that Python shows, and show it as before."""
        python: Any = warnings
        before = python.showwarning

        def show(message: Any, *where: Any) -> None:
            python.showwarning = before  # A callback may itself issue a warning.
            try:
                self._log(Warned(task=task.name, text=str(message)))
            finally:
                python.showwarning = show
            before(message, *where)

        python.showwarning = show
        try:
            yield
        finally:
            python.showwarning = before

    @contextmanager
    def _logging_failure(self, task: Task) -> Iterator[None]:
        """Log the error that ends the run, whether it comes from this package or from the user."""
        try:
            yield
        except StoppedError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            with suppress(Exception):  # If the disk is full, the error itself says more.
                if isinstance(error, KeyboardInterrupt):
                    self._log(RunStopped())
                else:
                    reason, mendable = failure(error)
                    self._log(RunFailed(task=task.name, reason=reason, mendable=mendable))
            raise

    def _resume(self) -> bool:
        """Restore the last checkpoint, if there is one; return whether that is inside a task."""
        experiment, run = self.experiment, self.run
        with reading(run.path):
            checkpoint = read_checkpoint(run.path, self.state.experiment, experiment.baseline)
        if checkpoint is not None:
            self.state = checkpoint.state
            self._check_added(experiment.tasks[checkpoint.num_alike :])
        self.method = self._method(checkpoint.method if checkpoint else None)
        self._update_config(checkpoint.num_alike if checkpoint else 0)
        if checkpoint is not None and checkpoint.exchanged:
            # Before the log is cut: the task must not come back from the checkpoint.
            self._write_checkpoint(checkpoint.method)
        use_threads(self.method.device, self._num_threads())
        reset_peak(self.method.device)
        environment = describe(self.method.device)
        self._arithmetic = arithmetic(environment)
        run.add_environment(environment)
        num_bytes, seconds = self.state.num_event_bytes, self.state.seconds
        if self._trackers:
            # Before the clock of the run starts: connecting may take longer than a task.
            past = read_events(run.path, num_bytes)
            self._trackers.begin(run.path, environment, past, seconds=seconds)
        run.resume_log(num_bytes, seconds)
        self._status = StatusWriter(run.path, read_config(run.path), read_events(run.path))
        if checkpoint is None:
            self._log(RunStarted(config=self.state.experiment))
            self._check_tasks()
            return False
        self._evaluate_elsewhere(checkpoint.method)
        if checkpoint.method["progress"] is None:
            return False
        self._log_start(TaskResumed, experiment.tasks[len(self.state.done)])
        return True

    def _num_threads(self) -> int | None:
        """Return the number of threads of the run on a CPU; None for PyTorch's own number."""
        experiment = self.experiment
        known = experiment.threads or last_environment(self.run.path).num_threads
        if known is not None or self.method.device.type != "cpu":
            return known
        largest = max(training.batch_size for training in experiment._trainings())
        return fitting(experiment.model, experiment.example_input, largest)

    def _check_tasks(self) -> None:
        """Check all tasks before the first one, which may take minutes if there are many."""
        tasks, shown = self.experiment.tasks, time.monotonic()
        for number, task in enumerate(tasks):
            if self._stopping:
                raise StoppedError("Stopped before the first task. Nothing is kept: start again.")
            if time.monotonic() - shown >= CHECK_SECONDS:
                shown = time.monotonic()
                self.on_event(TasksChecked(number=number, num_tasks=len(tasks)))
            with self._logging_failure(task):
                self.method.check(task)

    def _update_config(self, num_alike: int) -> None:
        """Replace the config of the run if the experiment has other tasks than before."""
        known = read_config(self.run.path)
        text = to_json(
            replace(self.state.experiment, recipe=known.recipe, data=known.data), indent=1
        )
        if text == to_json(known, indent=1):
            return
        recipe = {} if self._recipe is None else {RECIPE: self._recipe}
        self.run.reopen({**recipe, CONFIG: text})
        if num_alike == len(self.state.done) < len(known.tasks):
            forget(self.run.path)  # Trackers may have events of the exchanged task.

    def _check_added(self, tasks: Sequence[Task]) -> None:
        """Raise an error unless these tasks can be added to the run."""
        if not tasks:
            return
        if not takes_more_tasks(self.experiment.baseline):
            raise RunError(
                f"{self.run.path}: {self.experiment.method} learns all tasks at the same time, so "
                "no task can be added. Start a new run."
            )
        fresh = self._method(None)  # The network of the run may be inside a task.
        for task in tasks:
            fresh.check(task)

    def _method(self, state: Mapping[str, Any] | None) -> Method:
        """Return the method, new or restored from the state in a checkpoint."""
        experiment, setting = self.experiment, self._setting()
        if experiment.baseline is None:
            return NeuralPruning(setting, self.run.path / CHECKPOINT, state)
        return method_for(experiment.baseline, setting, state)

    def _setting(self) -> Setting:
        """Return the experiment for its method."""
        experiment = self.experiment
        return Setting(
            experiment.model,
            experiment.example_input,
            experiment.tasks,
            experiment.config,
            head=experiment.head,
            classifier=experiment.classifier,
            seed=experiment.seed,
            on_event=self._log,
            on_progress=self._save_if_due,
        )

    def _log_start(self, kind: type[TaskStarted], task: Task) -> None:
        index = len(self.state.done)
        self._log(
            kind(
                task=task.name,
                number=index + 1,
                num_tasks=len(self.experiment.tasks),
                num_candidates=self.method.num_candidates(task.name),
                num_epochs=self.method.num_epochs(task.name),
                epochs_before=self.method.epochs_before(index),
                epochs_of_run=self.method.epochs_before(len(self.experiment.tasks)),
            )
        )

    def _log(self, event: Event) -> None:
        if not event.logged:
            self._status.update(event)
            self.on_event(event)
            if self._stopping and isinstance(event, SubsetScored):
                raise StoppedError("Stopped while pruning.")  # The learner lets the run save.
            return
        timed = self.run.log(event)
        self._status.update(timed)
        self.on_event(timed)
        self._trackers.event(timed)

    def _save_if_due(self) -> None:
        due = time.monotonic() - self._saved >= self.checkpoint_seconds
        if due or self._stopping:
            self._save()

    def _save(self) -> None:
        """Write the checkpoint and, between two tasks, the result; then stop if asked to."""
        method = self.method.state()
        self._measure()
        self.state = replace(self.state, num_event_bytes=self.run.flush_log())
        self._write_checkpoint(method)
        if method["progress"] is None and not self.state.finished:
            self.run.write(RESULT, self.result())
        self._saved = time.monotonic()
        if self._stopping and not self.state.finished:
            self._log(RunStopped())
            raise StoppedError(f"Stopped. Resume with {resume_command(self.run.path)}.")

    def _write_checkpoint(self, method: Mapping[str, Any]) -> None:
        with writing(self.run.path):
            attachment = {**method, **to_plain(self.state)}
            self.method.save(self.run.path / CHECKPOINT, attached=attachment)

    def _outcome(self, method: Method, task: Task) -> tuple[float, str] | None:
        """Return the test score of an ended task and the SHA-256 of its outputs, if it has any."""
        if not method.answers(task.name):
            return None
        config, seed = self.experiment.config, self.experiment.seed
        return score_and_digest(method.predict, task, config, seed=seed, device=method.device)

    def _evaluate_elsewhere(self, saved: Mapping[str, Any]) -> None:
        """Record the outputs of ended tasks that are not known in the present arithmetic."""
        here, done = self._arithmetic, list(self.state.done)
        unknown = [
            index
            for index, record in enumerate(done)
            if record.outputs is not None and not is_known(record, here)
        ]
        if unknown:
            # A baseline may lose its open task when it runs as another one.
            method = self._method(saved)
            for index in unknown:
                outcome = self._outcome(method, self.experiment.tasks[index])
                assert outcome is not None
                done[index] = with_outputs_elsewhere(done[index], here, outcome[1])
            self.state = replace(self.state, done=tuple(done))

    def _evaluate(self) -> None:
        """Run the test data of every ended task: its score, and whether a bit has changed."""
        done: list[TaskRecord] = []
        row: list[float | None] = []
        for task, record in zip(self.experiment.tasks, self.state.done, strict=False):
            score, digest = self._outcome(self.method, task) or (None, None)
            row.append(score)
            evaluated = with_outputs(record, self._arithmetic, digest)
            if evaluated.test_score is None:  # All tasks were learned together.
                evaluated = replace(evaluated, test_score=score)
            done.append(evaluated)
        scores = (*self.state.scores, tuple(row))
        self.state = replace(self.state, done=tuple(done), scores=scores)
        last, figures = done[-1], self.method.figures()
        self._log(
            Evaluated(
                task=last.task,
                scores=scores[-1],
                new=last.new,
                reused=last.reused,
                sizes=figures.capacity.sizes,
                free=figures.capacity.free,
                forecast=figures.forecast,
            )
        )

    def _validation(self) -> tuple[float | None, ...]:
        """Return the validation score of every task that has ended, now that all of them have."""
        if self.experiment.baseline is None:  # It is what it was, to the bit.
            return tuple(record.score for record in self.state.done)
        tasks = self.experiment.tasks[: len(self.state.done)]
        return tuple(validation_score(self.method, self._setting(), task) for task in tasks)

    def _measure(self) -> None:
        """Note how long the run has worked, and its peak memory."""
        peak = max(self.state.peak_bytes, peak_bytes(self.method.device))
        self.state = replace(self.state, seconds=self.run.seconds, peak_bytes=peak)

    def result(self) -> RunResult:
        """Return the result so far."""
        self._measure()
        state, config, figures = self.state, self.state.experiment, self.method.figures()
        return RunResult(
            format=FORMAT,
            finished=state.finished,
            full=state.full,
            num_tasks=len(config.tasks),
            method=config.method,
            head=config.head,
            seed=config.seed,
            tasks=state.done,
            scores=state.scores,
            metrics=metrics_of(state.scores),
            capacity=figures.capacity,
            forecast=figures.forecast,
            certificates=figures.certificates,
            stored_bytes=figures.stored_bytes,
            timings=Timings(state.seconds, state.task_seconds, state.peak_bytes),
        )
