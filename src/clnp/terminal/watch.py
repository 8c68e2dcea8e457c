"""A run while it works: on a screen, in lines of a log, and in a closing sentence."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clnp.errors import RunError
from clnp.plain import to_plain
from clnp.records import SeriesConfig
from clnp.runs.directory import (
    COMPARISON,
    CONFIG,
    SERIES,
    STATUS,
    command,
    expanded,
    read_config,
    read_record,
    resume_command,
)
from clnp.runs.status import FAILED, FINISHED, RUNNING, STOPPED, Status, read_status
from clnp.text import clean, duration

from .tables import Screen, screen_of, stacked_bars, table

WAITING = "waiting"
ENDED = (FINISHED, FAILED, STOPPED)
PATIENCE = 10.0
"""Seconds for which a file may be unreadable: on a network it may still be on its way."""
GRACE = 60.0
"""Seconds without news after which the other runs of a series with a failed run have ended."""
SILENCE = 60.0
"""Seconds without news that are worth a sentence."""
SCREEN_SECONDS, LINE_SECONDS, LEAST_SECONDS = 1.0, 10.0, 0.05
"""Time between two looks, by default on a screen and in a log, and at least."""
LEAST_RUNS = 6
"""Runs of a series that are shown however low the screen is."""


@dataclass(frozen=True)
class WatchedRun:
    """A run and its last status, None before it starts.

    `silent` counts the seconds since the status was written, and `dead` says that the process of
    the run has ended without a word.
    """

    label: str
    path: Path
    status: Status | None = None
    silent: float = 0.0
    dead: bool = False

    @property
    def state(self) -> str:
        """The state of the run, or waiting."""
        return WAITING if self.status is None else self.status.state

    @property
    def is_late(self) -> bool:
        """Whether there should have been news by now."""
        seconds = self.status.epoch_seconds if self.status else None
        return self.silent >= max(SILENCE, 3 * (seconds or 0.0))


@dataclass(frozen=True)
class Scene:
    """Everything that is watched. `kind` is run, series, comparison, or None before it exists."""

    path: Path
    kind: str | None = None
    runs: tuple[WatchedRun, ...] = ()

    @property
    def state(self) -> str:
        """The state of the run; of several runs, failed, stopped or finished once all ended."""
        found = {run.state for run in self.runs}
        if found <= {WAITING}:
            return WAITING
        # A series is stopped as a whole: its waiting runs do not start.
        if found <= {*ENDED, *({WAITING} if STOPPED in found else ())}:
            return next(state for state in (FAILED, STOPPED, FINISHED) if state in found)
        # A series ends with the first run that fails, unless others are still working.
        return FAILED if FAILED in found and self.silent >= GRACE else RUNNING

    @property
    def silent(self) -> float:
        """The seconds since the last news of any run."""
        return min((run.silent for run in self.runs if run.status), default=0.0)

    @property
    def num_finished(self) -> int:
        """The number of finished runs."""
        return sum(run.state == FINISHED for run in self.runs)

    def to_plain(self) -> dict[str, Any]:
        """Return the scene as plain data for JSON."""
        runs = [
            {
                **{"label": run.label, "path": str(run.path), "state": run.state},
                **{"silent": run.silent, "dead": run.dead},
                **({"fraction": run.status.fraction, **to_plain(run.status)} if run.status else {}),
            }
            for run in self.runs
        ]
        return {"path": str(self.path), "kind": self.kind, "state": self.state, "runs": runs}


@dataclass
class Watcher:
    """Looks at a run, a series or a comparison again and again; it may not exist yet."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    _scene: Scene | None = None
    _unreadable: float | None = None
    # By the path of a run: when its status was written, and when that was first seen.
    _heard: dict[Path, tuple[float, float]] = field(default_factory=dict)

    def look(self, *, patience: float = PATIENCE) -> Scene:
        """Return everything as it is now; a `RunError` if a file is damaged for good."""
        now = self.clock()
        try:
            kind, paths = runs_at(self.path)
            runs = tuple(self._look_at(label, path) for label, path in paths.items())
            # A directory that vanishes is no news.
            self._scene = Scene(self.path, kind, runs) if kind else self._scene
            self._unreadable = None
        except RunError:
            self._unreadable = now if self._unreadable is None else self._unreadable
            if now - self._unreadable >= patience:
                raise
        return self._scene or Scene(self.path)

    def _look_at(self, label: str, path: Path) -> WatchedRun:
        # A run that failed before it learned anything has a status, but no config any more.
        status = read_record(path / STATUS, Status)
        if status is None and os.path.isfile(path / CONFIG):
            status = read_status(path, read_config(path))
        if status is None:
            return WatchedRun(label, path)
        now = self.clock()
        updated, heard = self._heard.get(path, (None, 0.0))
        if updated != status.updated:
            # The clocks of two machines differ, so that only the first look compares them.
            heard = now if updated is not None else now - max(0.0, time.time() - status.updated)
            self._heard[path] = status.updated, heard
        return WatchedRun(label, path, status, now - heard, status.is_dead)


def runs_at(path: Path) -> tuple[str | None, dict[str, Path]]:
    """Return the kind of a directory, and its runs by their label."""
    for name, kind in ((COMPARISON, "comparison"), (SERIES, "series")):
        found = read_record(path / name, SeriesConfig) if os.path.isfile(path / name) else None
        if found is None:
            continue
        methods = found.methods if kind == "comparison" else ("",)
        if not found.seeds or not methods:
            missing = "methods" if found.seeds else "seeds"
            raise RunError(f"{path / name} is damaged: it has no {missing}. Restore a copy of it.")
        pairs = [(method, seed) for method in methods for seed in found.seeds]
        return kind, {
            f"{method}{', ' if method else ''}seed {seed}": path / method / f"seed{seed}"
            for method, seed in pairs
        }
    there = any(os.path.isfile(path / name) for name in (STATUS, CONFIG))
    return ("run", {"run": path}) if there else (None, {})


def closing(scene: Scene) -> str:
    """Return the last sentence about the runs that were watched."""
    seen = f"`{command('inspect', scene.path)}` shows all"
    if scene.kind == "run" and scene.runs[0].status:
        run, status = scene.runs[0], scene.runs[0].status
        if status.state != FINISHED:
            return told(run)
        average = "" if status.average is None else f", average {status.average:.2f}"
        return f"{told(run)}{average}. {seen}."
    failed = [
        f"{run.label} failed: {run.status.reason}"
        for run in scene.runs
        if run.status and run.state == FAILED
    ]
    resume = f" Resume with {resume_command(scene.path)}." if scene.state == STOPPED else ""
    return "\n".join([*failed, f"{_finished(scene)}. {seen}.{resume}"])


def unfinished(scene: Scene) -> list[str]:
    """Return the states of several runs that are not all finished, and how to resume them."""
    if scene.state == FINISHED:
        return []
    resume = f"Resume with {resume_command(scene.path)}."
    if scene.state == WAITING:
        return [f"No run has started. {resume}"]
    briefly = [_briefly(run) for run in scene.runs if run.state != FAILED]
    lines = ["; ".join(text for text in briefly if text)]
    for run in scene.runs:
        if run.status and run.state == FAILED:
            lines.append(f"{run.label} failed: {run.status.reason}")
    lines.append(resume if scene.state in ENDED else heard_of(scene))
    return [text for text in lines if text]


def line(scene: Scene) -> str:
    """Return the scene in one line."""
    if scene.kind is None:
        return f"waiting for {scene.path}: there is no run yet"
    if scene.kind == "run":
        return told(scene.runs[0])
    return "; ".join(text for text in [_finished(scene), *map(_briefly, scene.runs)] if text)


def _finished(scene: Scene) -> str:
    return f"{scene.num_finished} of {len(scene.runs)} runs finished"


def _briefly(run: WatchedRun) -> str:
    """Return the state of one of several runs; nothing if it waits or is finished."""
    if run.status is None or run.state == FINISHED:
        return ""
    if run.state != RUNNING:
        return f"{run.label} {run.state}"
    number = run.status.number
    where = _ended(run.status) if number is None else f"task {number} of {run.status.num_tasks}"
    return f"{run.label} {run.status.fraction:.0%} ({where})".replace("%", " %")


def told(run: WatchedRun) -> str:
    """Return the state of a run in one line."""
    status = run.status
    if status is None:
        return f"waiting for {run.path}"
    if status.state == FAILED:
        return f"failed after {_tasks(status)}: {status.reason}"
    if status.state == STOPPED:
        return f"stopped after {_tasks(status)}. Resume with {resume_command(run.path)}."
    if status.state == FINISHED:
        return f"finished: {_tasks(status)}"
    if run.dead:
        resume = resume_command(run.path)
        return f"killed after {_tasks(status)}: the process has ended. Resume with {resume}."
    if status.task is None:
        return _ended(status)
    parts = [f"task {status.number} of {status.num_tasks}, {status.task}: {_doing(status)}"]
    if status.epoch and status.loss is not None and status.score is not None:
        parts.append(f"loss {status.loss:.4g}, validation {status.score:.2f}")
    return f"{', '.join(parts)}; {100 * status.fraction:.0f} % done{_left(run)}"


def _tasks(status: Status) -> str:
    return f"{len(status.learned)} of {status.num_tasks} tasks"


def _ended(status: Status) -> str:
    """Return the state of a run without an open task."""
    return f"{_tasks(status)} ended" if status.learned else "starting"


def _doing(status: Status) -> str:
    """Return the phase of the open task."""
    if status.phase == "fine-tuning":
        where = f"fine-tuning round {status.round}"
    elif status.candidate is None:
        return "starting"
    else:
        where = f"candidate {status.candidate} of {status.num_candidates}"
        if status.phase == "pruning":
            return f"{where}, pruning"
    return f"{where}, epoch {status.epoch} of {status.num_epochs}" if status.epoch else where


def _left(run: WatchedRun) -> str:
    status = run.status
    if status is None or status.seconds_left is None or status.state != RUNNING:
        return ""
    # The epoch that is being trained has taken some of it.
    left = max(0.0, status.seconds_left - min(run.silent, status.epoch_seconds or 0.0))
    return f", {status.bound} {duration(left)} left"


def heard_of(scene: Scene) -> str:
    """Return when the last news came, and how to resume a run that is dead."""
    resume = f"resume with {resume_command(scene.path)}."
    running = [run for run in scene.runs if run.state == RUNNING]
    if running and all(run.dead for run in running):
        return f"The process has ended; {resume}"
    if running and all(run.is_late for run in running):
        return f"No news for {duration(scene.silent)}. If it was killed, {resume}"
    return f"Last news {duration(scene.silent)} ago."


def frame(scene: Scene, screen: Screen) -> RenderableType:
    """Return the scene for a screen."""
    if scene.kind is None or (scene.kind == "run" and scene.runs[0].status is None):
        return Text(line(scene))
    if scene.kind == "run" and scene.runs[0].status:
        parts = _run(scene.runs[0], scene.runs[0].status, screen)
    else:
        parts = [_title(scene.path, _finished(scene), screen), *_several(scene, screen)]
    if scene.state == RUNNING and not (scene.kind == "run" and scene.runs[0].dead):
        parts.append(Text(heard_of(scene)))
    return Group(*parts)


def _title(path: Path, text: str, screen: Screen) -> Text:
    return Text(f"{screen.short(path, max(12, screen.width - cell_len(text) - 2))}: {text}")


def _run(run: WatchedRun, status: Status, screen: Screen) -> list[RenderableType]:
    what = f"{clean(status.recipe or 'an experiment')}, {status.method}, seed {status.seed}"
    parts: list[RenderableType] = [_title(run.path, what, screen)]
    if status.state != RUNNING or run.dead:
        took = f" in {duration(status.seconds)}" if status.state == FINISHED else ""
        parts.append(Text(told(run) + took))
    else:
        name = f"task {status.number} of {status.num_tasks}: {status.task}"
        parts.append(Text(clean(name) if status.task else _ended(status)))
        bars = Table.grid(padding=(0, 2))
        percent = f"{100 * status.fraction:.0f} %{_left(run)}"
        bars.add_row("run", screen.bar(status.fraction), Text(percent))
        if status.task:
            done = (status.epoch or 0) / (status.num_epochs or 1)
            bars.add_row("now", screen.bar(done), Text(_doing(status)))
        parts.append(bars)
        if status.task and status.loss is not None and status.score is not None:
            width = max(4, min(60, screen.width - 24))
            loss = ["loss", f"{status.loss:.4g}", screen.curve(status.losses, width)]
            score = ["validation", f"{status.score:.2f}", screen.curve(status.scores, width)]
            parts.append(table(["", "", ""], [loss, score], "lrl"))
    if status.learned:
        parts.append(Text(_learned(status, screen)))
    if status.sizes:
        parts.append(_neurons(status, screen))
    if status.full is not None:
        parts.append(Text(f"full: {status.full.partition('. ')[0]}"))
    return parts


def _learned(status: Status, screen: Screen) -> str:
    """Return the last tasks that ended, as many as a line holds."""
    average = "" if status.average is None else f"; average {status.average:.2f}"
    shown, text = "", ""
    for hidden in reversed(range(len(status.learned))):
        task = status.learned[hidden]
        score = "" if task.test_score is None else f" {task.test_score:.2f}"
        name = screen.short(task.task, max(8, screen.width // 4))
        shown = f"{name}{score}{', ' if shown else ''}{shown}"
        before = f"{hidden} before, " if hidden else ""
        longer = f"learned: {before}{shown}{average}"
        if text and cell_len(longer) > screen.width:
            break
        text = longer
    return text


def _neurons(status: Status, screen: Screen) -> Table:
    """Return a bar for each layer, stacked by task."""

    def row(group: str) -> list[str]:
        free = status.sizes[group] - sum(status.claimed.get(group, ()))
        name = screen.short(group, max(8, screen.width // 4))
        return [name, f"{free} of {status.sizes[group]} free"]

    return stacked_bars(["", "", ""], status.sizes, status.claimed, row, screen)


def _several(scene: Scene, screen: Screen) -> list[RenderableType]:
    """Return a row for each run; if there are too many, those that are working come first."""
    runs, most = list(scene.runs), max(LEAST_RUNS, screen.height - 4)
    hidden = 0
    if len(runs) > most:
        order = {RUNNING: 0, FAILED: 1, STOPPED: 1, WAITING: 2, FINISHED: 3}
        first = sorted(range(len(runs)), key=lambda index: order[runs[index].state])[: most - 1]
        hidden = len(runs) - len(first)
        runs = [runs[index] for index in sorted(first)]
    names = [screen.short(run.label, screen.width // 3) for run in runs]
    room = (
        screen.width - max(map(cell_len, names), default=0) - screen.width // 4 - len("  100 %  ")
    )
    rows: list[list[RenderableType]] = []
    for name, run in zip(names, runs, strict=True):
        fraction = run.status.fraction if run.status else 0.0
        text = screen.short(_shortly(run), max(8, room - 2))
        rows.append([name, screen.bar(fraction), f"{100 * fraction:.0f} %", text])
    more = [Text(f"... {hidden} more")] if hidden else []
    return [table([""] * 4, rows, "llrl"), *more]


def _shortly(run: WatchedRun) -> str:
    """Return the state of one of several runs in a few words."""
    status = run.status
    if status is None:
        return "waiting"
    if status.state == FINISHED:
        average = "" if status.average is None else f", average {status.average:.2f}"
        return f"{_tasks(status)} in {duration(status.seconds)}{average}"
    if status.state == FAILED:
        return f"failed: {status.reason}"
    if status.state == STOPPED:
        return f"stopped after {_tasks(status)}"
    if run.dead:
        return "killed"
    news = f", no news for {duration(run.silent)}" if run.is_late else _left(run)
    if status.task is None:
        return _ended(status)
    return f"task {status.number} of {status.num_tasks}{news}, {_doing(status)}"


def watch(
    path: str, *, once: bool = False, interval: float | None = None, quiet: bool = False
) -> tuple[Scene, str]:
    """Show a run until it ends, or as it is now.

    Args:
        path: The directory of a run, a series or a comparison.
        once: Show the run as it is now.
        interval: The seconds between two looks. Default: 1 on a terminal, 10 in a log.
        quiet: Show nothing until the end.

    Returns:
        The last scene, and a text about it.
    """
    watcher = Watcher(expanded(path))
    if once:
        scene = watcher.look(patience=0.0)
        if scene.kind is None:
            read_config(watcher.path)  # It says what is missing.
        screen = screen_of(sys.stdout)
        return scene, screen.text(frame(scene, screen))
    display = _display(sys.stdout, quiet=quiet)
    with contextlib.closing(display):
        seconds = display.seconds if interval is None else max(interval, LEAST_SECONDS)
        scene = follow(watcher, display.show, seconds=seconds)
    return scene, closing(scene)


def follow(
    watcher: Watcher,
    show: Callable[[Scene], None],
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Scene:
    """Look and show until everything has ended, and return the last scene."""
    while True:
        scene = watcher.look()
        show(scene)
        if scene.state in ENDED:
            return scene
        sleep(seconds)


class Quiet:
    """Shows nothing."""

    seconds = SCREEN_SECONDS

    def show(self, scene: Scene) -> None:
        """Show a scene."""

    def close(self) -> None:
        """Restore the terminal."""


class Log(Quiet):
    """A line for each change, and less and less often one if there is none."""

    seconds = LINE_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._news: object = None
        self._silence = SILENCE

    def show(self, scene: Scene) -> None:
        """Print a line if something has changed."""
        if scene.state in ENDED:
            return  # The closing sentence follows.
        text = line(scene)
        news = [(run.state, run.dead, run.status and run.status.updated) for run in scene.runs]
        if news == self._news:
            if scene.silent < self._silence:
                return
            # After 1, 2, 4, 8 ... minutes.
            while scene.silent >= self._silence:
                self._silence *= 2
            text = f"{heard_of(scene)} {text}"
        else:
            self._news, self._silence = news, SILENCE
        encoding = self._stream.encoding or "utf-8"
        text = f"{datetime.now():%H:%M:%S} {text}".encode(encoding, "backslashreplace")
        print(text.decode(encoding), file=self._stream, flush=True)


class Frames(Quiet):
    """A screen that replaces the one before."""

    def __init__(self, stream: TextIO) -> None:
        self._unicode = screen_of(stream).unicode
        self._console = Console(file=stream, highlight=False, emoji=False, markup=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._before = _interruptible()
        self._live.start()

    def show(self, scene: Scene) -> None:
        """Draw a scene in the present size of the terminal."""
        width, height = self._console.size
        # The last column makes some terminals begin a new line.
        screen = Screen(max(20, min(width, 120) - 1), height, self._unicode)
        self._live.update(frame(scene, screen), refresh=True)

    def close(self) -> None:
        """Leave the last screen on the terminal, and its cursor visible."""
        self._live.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _interruptible() -> dict[signal.Signals, Any]:
    """Let signals that end the process leave a visible cursor, and return their handlers."""
    names = ("SIGTERM", "SIGHUP")
    signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return {
        each: signal.signal(each, signal.default_int_handler)
        for each in signals
        if signal.getsignal(each) is not signal.SIG_IGN
    }


def _display(stream: TextIO, *, quiet: bool) -> Quiet:
    if quiet:
        return Quiet()
    dumb = not stream.isatty() or Console(file=stream).is_dumb_terminal
    return Log(stream) if dumb else Frames(stream)
