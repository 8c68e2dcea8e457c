"""How a run shows what it does: bars on a terminal, lines in a log."""

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from clnp.training.events import Event, guess_told

LINE_SECONDS = 10.0
"""In a log, epochs are told of this often at most."""


class Silence:
    """Shows nothing."""

    def show(self, event: Event) -> None:
        """Take note of an event."""

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Take note of how far a download has come."""

    def say(self, text: str) -> None:
        """Show a line that the user must see."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Lines(Silence):
    """One line for each candidate, pruning and task, and now and then one for an epoch.

        experiment.run("runs/mine", on_event=clnp.terminal.Lines().show)

    They go to the standard error stream unless another one is given.
    """

    def __init__(self, stream: TextIO | None = None, *, label: str = "") -> None:
        self._stream, self._label = sys.stderr if stream is None else stream, label
        self._started = self._told = time.monotonic()
        self._plan: Mapping[str, Any] = {}

    def show(self, event: Event) -> None:
        """Take note of an event."""
        if event["event"] in ("begin", "resumed"):
            self._plan = event
        if event["event"] == "epoch":
            if time.monotonic() - self._told < LINE_SECONDS:
                return
            self._told = time.monotonic()
        text = described(event, self._plan)
        if text is not None:
            self.say(text)

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Take note of how far a download has come."""
        if num_bytes == 0:
            size = "" if total is None else f", {total / 1e6:.1f} MB"
            self.say(f"downloading {file}{size}")

    def say(self, text: str) -> None:
        """Show a line that the user must see."""
        elapsed = int(time.monotonic() - self._started)
        clock = f"{elapsed // 3600}:{elapsed // 60 % 60:02}:{elapsed % 60:02}"
        # Nobody may be reading any more; that is no reason to end a run.
        with contextlib.suppress(OSError, UnicodeError):
            print(f"[{clock}] {self._label}{text}", file=self._stream, flush=True)


class Bars(Silence):
    """A bar for the whole run and one for the task, with rate and remaining time."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
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
            TextColumn("{task.fields[unit]}", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=Console(file=stream),
        )
        self._all = self._progress.add_task("run", total=None, unit="epochs", rate="")
        self._one = self._progress.add_task("", total=None, unit="epochs", rate="")
        self._plan: Mapping[str, Any] = {}
        # Epochs of each candidate that has been told of; several may be trained at a time.
        self._reached: dict[int, int] = {}
        self._downloads: Any = None
        self._files: dict[str, Any] = {}

    def show(self, event: Event) -> None:
        """Take note of an event."""
        # The terminal may be gone; that is no reason to end a run.
        with contextlib.suppress(OSError):
            self._show(event)

    def _show(self, event: Event) -> None:
        kind = event["event"]
        if kind in ("begin", "resumed"):
            self._begin(event)
        elif kind == "epoch" and "round" not in event:
            self._epoch(event)
        elif kind == "candidate":
            # One that stopped early, or diverged, makes the rest of its epochs unnecessary.
            self._reached[event["candidate"]] = self._plan["num_epochs"]
            self._move_on()
        elif kind in ("epoch", "pruning", "chosen", "task"):
            # All candidates are trained; one of a task that is taken up again may not be told of.
            self._move_to(self._size)
        if kind not in ("begin", "epoch", "candidate", "pruning", "chosen"):
            text = described(event, self._plan)
            if text is not None:
                self.say(text)

    def download(self, file: str, num_bytes: int, total: int | None) -> None:
        """Take note of how far a download has come."""
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
        """Show a line that the user must see."""
        with contextlib.suppress(OSError):
            self._progress.console.print(
                text, markup=False, emoji=False, highlight=False, soft_wrap=True
            )

    def close(self) -> None:
        """Leave the terminal as it was."""
        with contextlib.suppress(OSError):
            if self._downloads is not None:
                self._downloads.stop()
            if self._progress.live.is_started:
                self._progress.stop()

    @property
    def _size(self) -> int:
        """The epochs of a task."""
        size: int = self._plan["num_candidates"] * self._plan["num_epochs"]
        return size

    def _begin(self, event: Event) -> None:
        self._plan, self._reached = event, {}
        description = f"task {event['number']} of {event['num_tasks']}, {event['task']}"
        # New fields replace all that there are.
        self._progress.reset(
            self._one, description=description, total=self._size, unit="epochs", rate=""
        )
        before, total = event["epochs_before"], event["epochs_of_run"]
        self._progress.update(self._all, total=total, completed=before)
        if self._downloads is not None:
            self._downloads.stop()
        # Not before: what is wrong with a recipe or its data is said without bars.
        self._progress.start()

    def _epoch(self, event: Event) -> None:
        rate = per_second(event["seconds"])
        self._progress.update(self._one, rate=f"{rate}  {event['score']:.2f} validation")
        self._reached[event["candidate"]] = event["number"] + 1
        self._move_on()

    def _move_on(self) -> None:
        # Those before the first that is told of were trained before a crash.
        before = min(self._reached) * self._plan["num_epochs"]
        self._move_to(before + sum(self._reached.values()))

    def _move_to(self, place: int) -> None:
        self._progress.update(self._one, completed=place)
        self._progress.update(self._all, completed=self._plan["epochs_before"] + place)


def per_second(seconds: float) -> str:
    """How many epochs of that length a second has, in a few characters."""
    if not seconds:
        return ""
    rate = 1 / seconds
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def described(event: Event, plan: Mapping[str, Any]) -> str | None:
    """The event in one line; `plan` is the beginning of its task. None: not worth a line."""
    kind = event["event"]
    if kind in ("begin", "resumed"):
        again = ", taken up again" if kind == "resumed" else ""
        return f"task {event['number']} of {event['num_tasks']}: {event['task']}{again}"
    if kind == "epoch":
        where = (
            f"fine-tuning round {event['round'] + 1}"
            if "round" in event
            else (_candidate(event, plan))
        )
        where += f", epoch {event['number'] + 1} of {event['num_epochs']}"
        # A score that is not finite is text in the file of a run.
        return (
            f"  {where}: loss {event['loss']:.4g}, validation {float(event['score']):.2f}, "
            f"{event['seconds']:.3g} s"
        )
    if kind == "candidate":
        what = (
            f"  {_candidate(event, plan)}, alpha {alpha_told(event['alpha'])}, lr {event['lr']:g}: "
        )
        if event["diverged"]:
            return f"{what}diverged and is dropped: {event['diverged']}"
        epochs = "1 epoch" if event["num_epochs"] == 1 else f"{event['num_epochs']} epochs"
        return f"{what}validation {event['score']:.2f} after {epochs}"
    if kind == "pruning":
        keep = event["plan"]["keep"]
        kept = ", ".join(f"{group} {len(places)}" for group, places in keep.items())
        score = event["plan"]["score"]
        return f"  {_candidate(event, plan)} pruned: keeps {kept}, validation {score:.2f}"
    if kind == "round":
        score = "diverged" if event["score"] is None else f"validation {event['score']:.2f}"
        end = "" if event["kept"] else ", outside the margin: taken back"
        return f"  fine-tuning round {event['round'] + 1}: {score}{end}"
    if kind == "task":
        if event["score"] is None:
            return f"{event['task']} waits for the others, to be learnt with them"
        test = "" if event["test_score"] is None else f", test {float(event['test_score']):.2f}"
        new = ", ".join(f"{group} {count}" for group, count in event["new"].items())
        neurons = f"; new neurons {new}" if new else ""
        from clnp.core.forecast import full_told  # Loads PyTorch, which is there by now.

        full = full_told(event.get("full", ()))
        guess = guess_told(float(event["score"]), event.get("guess"))
        score = f"validation {float(event['score']):.2f}{test}{guess}"
        return f"learnt {event['task']}: {score}{neurons}{full}"
    if kind == "full":
        return f"the network is full: {event['reason']}"
    if kind == "failed":
        return f"failed: {event['reason']}"
    return None


def alpha_told(alpha: float | Mapping[str, float]) -> str:
    """The strength of the penalty, or those of all layers."""
    if isinstance(alpha, Mapping):
        return ", ".join(f"{layer} {value:g}" for layer, value in alpha.items())
    return f"{alpha:g}"


def _candidate(event: Event, plan: Mapping[str, Any]) -> str:
    whole = f" of {plan['num_candidates']}" if "num_candidates" in plan else ""
    return f"candidate {event['candidate'] + 1}{whole}"
