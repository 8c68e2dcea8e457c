"""Progress of a run: bars on a terminal, lines in a log."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, TextIO

from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Event,
    NetworkFull,
    RoundEnded,
    RunConfig,
    RunFailed,
    SubsetScored,
    TaskEnded,
    TaskResumed,
    TasksChecked,
    TaskStarted,
    alpha_text,
    guess_note,
    pruning_text,
)
from clnp.runs.status import Progress as Counted
from clnp.studies.console import Console
from clnp.text import clean, one_line

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_SECONDS = 10.0
"""Least time between two lines about epochs, or sets of neurons, in a log."""


class Lines(Console):
    """One line for each candidate, pruning and task, and at most every 10 s one for an epoch.

    Args:
        stream: The stream to write to. Default: standard error.
        label: The beginning of each line, after the time.

    Example:
        >>> experiment.run("runs/mine", on_event=clnp.terminal.Lines().show)
    """

    def __init__(self, stream: TextIO | None = None, *, label: str = "") -> None:
        self._stream, self._label = sys.stderr if stream is None else stream, label
        self._started = self._shown = time.monotonic()
        self._task: TaskStarted | None = None

    def show(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, TaskStarted):
            self._task = event
        if isinstance(event, EpochEnded | SubsetScored):
            if time.monotonic() - self._shown < LINE_SECONDS:
                return
            self._shown = time.monotonic()
        text = described(event, self._task)
        if text is not None:
            self.say(text)

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Show the start of a download."""
        if num_bytes == 0:
            size = "" if total is None else f", {total / 1e6:.1f} MB"
            self.say(f"downloading {file}{size}")

    def say(self, text: str) -> None:
        """Show a line."""
        elapsed = int(time.monotonic() - self._started)
        clock = f"{elapsed // 3600}:{elapsed // 60 % 60:02}:{elapsed % 60:02}"
        # The run continues if the reader of the stream is gone.
        with contextlib.suppress(OSError, UnicodeError):
            print(f"[{clock}] {self._label}{one_line(text)}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Show a line that the user must see even without progress."""
        self.say(text)


class Bars(Console):
    """A bar for the whole run and one for the task, with rate and remaining time."""

    def __init__(self, stream: TextIO) -> None:
        from rich import console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console.Console(file=stream),
        )
        self._run_bar = self._progress.add_task("run", total=None, rate="")
        self._task_bar = self._progress.add_task("", total=None, rate="")
        self._task: TaskStarted | None = None
        self._counted = Counted(RunConfig())
        self._downloads: Progress | None = None
        self._files: dict[str, TaskID] = {}
        self._rate = ""

    def show(self, event: Event) -> None:
        """Show an event."""
        # The run continues if the terminal is gone.
        with contextlib.suppress(OSError):
            self._show(event)

    def _show(self, event: Event) -> None:
        self._counted.add(event)
        if isinstance(event, TaskStarted):
            self._start(event)
        elif isinstance(event, EpochEnded) and event.candidate is not None:
            self._rate = f"{per_second(event.seconds)}  {event.score:.2f} validation"
            self._progress.update(self._task_bar, rate=self._rate)
        elif isinstance(event, SubsetScored):
            rate = pruning_text(event.number, event.kept, event.available)
            self._progress.update(self._task_bar, rate=rate)
        elif isinstance(event, CandidateChosen):
            self._progress.update(self._task_bar, rate=self._rate)
        shown_by_bars = (EpochEnded, CandidateTrained, CandidatePruned, SubsetScored)
        if self._task is not None and isinstance(event, (*shown_by_bars, TaskStarted, TaskEnded)):
            done, total = self._counted.epochs()
            here = done - self._task.epochs_before
            self._progress.update(self._run_bar, completed=done, total=total)
            self._progress.update(self._task_bar, completed=here)
        if isinstance(event, shown_by_bars) or type(event) is TaskStarted:
            return
        text = described(event, self._task)
        if text is not None:
            self.say(text)

    def _start(self, event: TaskStarted) -> None:
        self._task = event
        description = clean(f"task {event.number} of {event.num_tasks}, {event.task}")
        size = event.num_candidates * event.num_epochs
        self._progress.reset(self._task_bar, description=description, total=size, rate="")
        if self._downloads is not None:
            self._downloads.stop()
        # Not before: an error in the recipe or the data is shown without bars.
        self._progress.start()

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Show the progress of a download."""
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if self._downloads is None:
            self._downloads = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._progress.console,
            )
            self._downloads.start()
        if file not in self._files:
            self._files[file] = self._downloads.add_task(file, total=total)
        self._downloads.update(self._files[file], completed=num_bytes, total=total)

    def say(self, text: str) -> None:
        """Show a line."""
        with contextlib.suppress(OSError):
            self._progress.console.print(
                one_line(text), markup=False, emoji=False, highlight=False, soft_wrap=True
            )

    def warn(self, text: str) -> None:
        """Show a line that the user must see even without progress."""
        self.say(text)

    def close(self) -> None:
        """Leave the terminal as it was."""
        with contextlib.suppress(OSError):
            if self._downloads is not None:
                self._downloads.stop()
            if self._progress.live.is_started:
                self._progress.stop()


def per_second(seconds: float) -> str:
    """Return how many epochs of this length a second has, in a few characters."""
    if not seconds:
        return ""
    rate = 1 / seconds
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def described(event: Event, task: TaskStarted | None) -> str | None:
    """Return an event of this task in one line; None if it is not worth one."""
    match event:
        case TasksChecked():
            return f"checked {event.number} of {event.num_tasks} tasks"
        case TaskStarted():
            resumed = ", resumed" if isinstance(event, TaskResumed) else ""
            return f"task {event.number} of {event.num_tasks}: {event.task}{resumed}"
        case EpochEnded():
            where = _candidate(event.candidate, task)
            if event.round is not None:
                where = f"fine-tuning round {event.round + 1}"
            return (
                f"  {where}, epoch {event.number + 1} of {event.num_epochs}: loss "
                f"{event.loss:.4g}, validation {event.score:.2f}, {event.seconds:.3g} s"
            )
        case CandidateTrained():
            end = f"diverged and is dropped: {event.diverged}"
            if event.score is not None and not event.diverged:
                epochs = "1 epoch" if event.num_epochs == 1 else f"{event.num_epochs} epochs"
                end = f"validation {event.score:.2f} after {epochs}"
            where = _candidate(event.candidate, task)
            return f"  {where}, alpha {alpha_text(event.alpha)}, lr {event.lr:g}: {end}"
        case SubsetScored():
            where = _candidate(event.candidate, task)
            if event.round is not None:
                where = f"fine-tuning round {event.round + 1}"
            return f"  {where}, {pruning_text(event.number, event.kept, event.available)}"
        case CandidatePruned():
            kept = ", ".join(f"{group} {count}" for group, count in event.plan.kept.items())
            score = "" if event.plan.score is None else f", validation {event.plan.score:.2f}"
            return f"  {_candidate(event.candidate, task)} pruned: keeps {kept}{score}"
        case RoundEnded():
            score = "diverged" if event.score is None else f"validation {event.score:.2f}"
            end = "" if event.kept else ", outside the margin: rolled back"
            return f"  fine-tuning round {event.round + 1}: {score}{end}"
        case TaskEnded(score=None):
            return f"{event.task} waits for the other tasks, which are learned together"
        case TaskEnded(score=float(validation)):
            test = "" if event.test_score is None else f", test {event.test_score:.2f}"
            new = ", ".join(f"{group} {count}" for group, count in event.new.items())
            neurons = f"; new neurons {new}" if new else ""
            full = f"; {', '.join(event.full)} full" if event.full else ""
            note = guess_note(validation, event.guess)
            return f"learned {event.task}: validation {validation:.2f}{test}{note}{neurons}{full}"
        case NetworkFull():
            return f"the network is full: {event.reason}"
        case RunFailed():
            return f"failed: {event.reason}"
    return None


def _candidate(index: int | None, task: TaskStarted | None) -> str:
    whole = "" if task is None else f" of {task.num_candidates}"
    return f"candidate {(index or 0) + 1}{whole}"
