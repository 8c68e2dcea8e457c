"""Progress of a run: a screen on a terminal, lines in a log."""

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from clnp.records import (
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Event,
    NetworkFull,
    RoundEnded,
    RunConfig,
    RunFailed,
    RunStarted,
    SubsetScored,
    TaskEnded,
    TaskResumed,
    TasksChecked,
    TaskStarted,
    alpha_text,
    guess_note,
    pruning_text,
)
from clnp.runs.directory import CONFIG, read_config, read_events
from clnp.runs.status import Progress, Status
from clnp.studies.console import Console
from clnp.text import one_line

if TYPE_CHECKING:
    import rich.progress
    from rich.console import RenderableType
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


class Live(Console):
    """What `clnp watch` shows of a run, kept up to date below a line for each task and round."""

    def __init__(self, stream: TextIO) -> None:
        from rich import console, live

        self._stream = stream
        self._path = Path()
        self._progress, self._known = Progress(RunConfig()), False
        self.status = Status()
        self._task: TaskStarted | None = None
        self._console = console.Console(file=stream, highlight=False, emoji=False, markup=False)
        self._live = live.Live(console=self._console, get_renderable=self._frame, transient=True)
        self._downloads: rich.progress.Progress | None = None
        self._files: dict[str, TaskID] = {}

    def begin(self, path: Path) -> None:
        """Show the run at `path` from now on."""
        self._path, self._known = path, False

    def show(self, event: Event) -> None:
        """Show an event."""
        # The run continues if the terminal is gone.
        with contextlib.suppress(OSError):
            self._show(event)

    def _show(self, event: Event) -> None:
        if not self._known:
            self._known = True
            config = event.config if isinstance(event, RunStarted) else RunConfig()
            if os.path.isfile(self._path / CONFIG):
                config = read_config(self._path)
            # If the run resumes, its log ends where it does.
            self._progress = Progress(config, read_events(self._path))
        self._progress.add(event)
        self.status = self._progress.status()  # Another thread draws it.
        if isinstance(event, TaskStarted):
            self._task = event
            if self._downloads is not None:
                self._downloads.stop()
            # Not before: an error in the recipe or the data is shown by itself.
            self._live.start()
        if self._live.is_started and not isinstance(event, (EpochEnded, SubsetScored)):
            self._live.refresh()  # A line that is said leaves the last frame below it.
        shown_live = (EpochEnded, CandidateTrained, CandidatePruned, SubsetScored)
        if isinstance(event, shown_live) or type(event) is TaskStarted:
            return
        text = described(event, self._task)
        if text is not None:
            self.say(text)

    def _frame(self) -> "RenderableType":
        from rich.text import Text

        from .tables import MOST_COLUMNS, screen_of
        from .watch import Scene, WatchedRun, frame

        screen, (width, height) = screen_of(self._stream), self._console.size
        screen = replace(screen, width=max(20, min(width, MOST_COLUMNS) - 1), height=height)
        run = WatchedRun("run", str(self._path), self.status)
        shown = frame(Scene(self._path, "run", (run,)), screen, is_own=True)
        if screen.unicode:
            return shown
        return Text(replace(screen, styled=False).text(shown))  # Other characters are escaped.

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Show the progress of a download."""
        from rich import progress

        if self._downloads is None:
            self._live.stop()
            self._downloads = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=self._console,
            )
            self._downloads.start()
        if file not in self._files:
            self._files[file] = self._downloads.add_task(file, total=total)
        self._downloads.update(self._files[file], completed=num_bytes, total=total)

    def say(self, text: str) -> None:
        """Show a line."""
        with contextlib.suppress(OSError):
            self._console.print(one_line(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Show a line that the user must see even without progress."""
        self.say(text)

    def close(self) -> None:
        """Leave the terminal as it was."""
        with contextlib.suppress(OSError):
            if self._downloads is not None:
                self._downloads.stop()
            self._live.stop()


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
