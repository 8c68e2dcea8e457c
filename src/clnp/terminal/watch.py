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
from clnp.runs.status import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    OpenTask,
    Status,
    read_status,
)
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
    path: str
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
        return self.silent >= max(SILENCE, 3 * self._epoch_seconds)

    @property
    def _epoch_seconds(self) -> float:
        return self.status.open.epoch_seconds if self.status and self.status.open else 0.0

    @property
    def left(self) -> str:
        """The estimate of the time left, to be put at the end of a text."""
        status = self.status
        if status is None or status.seconds_left is None or status.state != RUNNING:
            return ""
        # The epoch that is being trained has taken some of it.
        left = max(0.0, status.seconds_left - min(self.silent, self._epoch_seconds))
        return f", {status.bound} {duration(left)} left"


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
    def finished(self) -> str:
        """How many of the runs are finished, as a text."""
        return f"{sum(r.state == FINISHED for r in self.runs)} of {len(self.runs)} runs finished"

    def to_plain(self) -> dict[str, Any]:
        """Return the scene as plain data for JSON."""
        runs = [
            {**to_plain(run), "state": run.state, "fraction": run.status and run.status.fraction}
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
            runs = tuple(self._look_at(label, path, now) for label, path in paths.items())
            # A directory that vanishes is no news.
            self._scene = Scene(self.path, kind, runs) if kind else self._scene
            self._unreadable = None
        except RunError:
            self._unreadable = now if self._unreadable is None else self._unreadable
            if now - self._unreadable >= patience:
                raise
        return self._scene or Scene(self.path)

    def _look_at(self, label: str, path: Path, now: float) -> WatchedRun:
        status = read_status(path)
        if status is None:
            return WatchedRun(label, str(path))
        updated, heard = self._heard.get(path, (None, 0.0))
        if updated != status.updated:
            # The clocks of two machines differ, so that only the first look compares them.
            heard = now if updated is not None else now - max(0.0, time.time() - status.updated)
            self._heard[path] = status.updated, heard
        return WatchedRun(label, str(path), status, now - heard, status.is_dead)


def runs_at(path: Path) -> tuple[str | None, dict[str, Path]]:
    """Return the kind of a directory, and its runs by their label."""
    for name, kind in ((COMPARISON, "comparison"), (SERIES, "series")):
        found = read_record(path / name, SeriesConfig) if os.path.isfile(path / name) else None
        if found is None:
            continue
        methods = found.methods or () if kind == "comparison" else ("",)
        if not found.seeds or not methods:
            raise RunError(
                f"{path / name} is damaged: it has no {'methods' if found.seeds else 'seeds'}. "
                "Restore a copy of it."
            )
        return kind, {
            f"{method}{', ' if method else ''}seed {seed}": path / method / f"seed{seed}"
            for method in methods
            for seed in found.seeds
        }
    there = any(os.path.isfile(path / name) for name in (STATUS, CONFIG))
    return ("run", {"run": path}) if there else (None, {})


def closing(scene: Scene) -> str:
    """Return the last sentence about the runs that were watched."""
    seen = f"`{command('inspect', scene.path)}` shows all."
    if scene.kind == "run":
        text = state_of(scene.runs[0])
        return f"{text}. {seen}" if scene.state == FINISHED else text
    failed = [f"{run.label}: {state_of(run)}" for run in scene.runs if run.state == FAILED]
    resume = f" Resume with {resume_command(scene.path)}." if scene.state == STOPPED else ""
    return "\n".join([*failed, f"{scene.finished}. {seen}{resume}"])


def unfinished(scene: Scene) -> list[str]:
    """Return the states of several runs that are not all finished, and how to resume them."""
    resume = f"Resume with {resume_command(scene.path)}."
    if scene.state in (FINISHED, WAITING):
        return [] if scene.state == FINISHED else [f"No run has started. {resume}"]
    runs = [run for run in scene.runs if run.state not in (FINISHED, WAITING)]
    states = [f"{run.label}: {state_of(run)}" for run in runs]
    return [*states, resume if scene.state in ENDED else news(scene)]


def line(scene: Scene) -> str:
    """Return the scene in one line."""
    if scene.kind is None:
        return f"waiting for {scene.path}: there is no run yet"
    if scene.kind == "run":
        return state_of(scene.runs[0])
    runs = [run for run in scene.runs if run.state not in (FINISHED, WAITING)]
    return "; ".join([scene.finished, *(f"{run.label} {_shortly(run)}" for run in runs)])


def state_of(run: WatchedRun) -> str:
    """Return the state of a run in one line."""
    status = run.status
    if status is None:
        return "waiting"
    tasks = f"{len(status.learned)} of {status.num_tasks} tasks"
    resume = f"Resume with {resume_command(run.path)}."
    if status.state == FAILED:
        return f"failed after {tasks}: {status.reason}"
    if status.state == STOPPED:
        return f"stopped after {tasks}. {resume}"
    if status.state == FINISHED:
        average = "" if status.average is None else f", average {status.average:.2f}"
        return f"finished: {tasks} in {duration(status.seconds)}{average}"
    if run.dead:
        return f"killed after {tasks}: its process has ended. {resume}"
    task = status.open
    if task is None:
        return f"{tasks} ended" if status.learned else "starting"
    parts = [f"task {task.number} of {status.num_tasks}, {task.task}: {doing(task)}"]
    if task.epoch and task.loss is not None and task.score is not None:
        parts.append(f"loss {task.loss:.4g}, validation {task.score:.2f}")
    return f"{', '.join(parts)}; {100 * status.fraction:.0f} % done{run.left}"


def _shortly(run: WatchedRun) -> str:
    """Return the state of one of several runs in a few words."""
    status = run.status
    if status is None or status.open is None or status.state != RUNNING or run.dead:
        # The bar of a finished run is full.
        return state_of(run).partition(". Resume")[0].removeprefix("finished: ")
    late = f", no news for {duration(run.silent)}" if run.is_late else run.left
    where = f"task {status.open.number} of {status.num_tasks}"
    return f"{100 * status.fraction:.0f} %, {where}{late}, {doing(status.open)}"


def doing(task: OpenTask) -> str:
    """Return the phase of the open task."""
    where = f"candidate {task.candidate} of {task.num_candidates}"
    if task.phase == "fine-tuning":
        where = f"fine-tuning round {task.round}"
    if task.phase in ("starting", "pruning"):
        return f"{where}, pruning" if task.phase == "pruning" else "starting"
    return f"{where}, epoch {task.epoch} of {task.num_epochs}" if task.epoch else where


def news(scene: Scene) -> str:
    """Return when the last news came, and how to resume runs that are dead."""
    resume = f"resume with {resume_command(scene.path)}."
    running = [run for run in scene.runs if run.state == RUNNING]
    if running and all(run.dead for run in running):
        return f"The process has ended; {resume}"
    if running and all(run.is_late for run in running):
        return f"No news for {duration(scene.silent)}. If it was killed, {resume}"
    return f"Last news {duration(scene.silent)} ago."


def frame(scene: Scene, screen: Screen) -> RenderableType:
    """Return the scene for a screen."""
    run = scene.runs[0] if scene.kind == "run" else None
    if scene.kind is None:
        return Text(clean(line(scene)))
    if run is not None:
        parts = _run(run, run.status or Status(), screen)
    else:
        parts = [_title(str(scene.path), scene.finished, screen), *_several(scene, screen)]
    if scene.state == RUNNING and not (run and run.dead):
        parts.append(Text(news(scene)))
    return Group(*parts)


def _title(path: str, text: str, screen: Screen) -> Text:
    return Text(f"{screen.short(path, max(12, screen.width - cell_len(text) - 2))}: {text}")


def _run(run: WatchedRun, status: Status, screen: Screen) -> list[RenderableType]:
    what = f"{clean(status.recipe or 'an experiment')}, {status.method}, seed {status.seed}"
    parts: list[RenderableType] = [_title(run.path, what, screen)]
    task = status.open
    if status.state != RUNNING or run.dead or task is None:
        parts.append(Text(clean(state_of(run))))
    if status.state == RUNNING and not run.dead:
        if task is not None:
            parts.append(Text(clean(f"task {task.number} of {status.num_tasks}: {task.task}")))
        bars = Table.grid(padding=(0, 2))
        percent = f"{100 * status.fraction:.0f} %{run.left}"
        bars.add_row("run", screen.bar(status.fraction), Text(percent))
        if task is not None:
            done = (task.epoch or 0) / (task.num_epochs or 1)
            bars.add_row("now", screen.bar(done), Text(doing(task)))
        parts.append(bars)
        if task is not None and task.loss is not None and task.score is not None:
            width = max(4, min(60, screen.width - 24))
            loss = ["loss", f"{task.loss:.4g}", screen.curve(task.losses, width)]
            score = ["validation", f"{task.score:.2f}", screen.curve(task.scores, width)]
            parts.append(table(["", "", ""], [loss, score], "lrl"))
    if status.learned:
        parts.append(Text(_learned(status, screen)))
    if status.sizes:
        parts.append(_neurons(status, screen))
    if status.full is not None:
        parts.append(Text(clean(f"full: {status.full.partition('. ')[0]}")))
    return parts


def _learned(status: Status, screen: Screen) -> str:
    """Return the last tasks that ended, as many as fit into a line."""
    parts = [
        screen.short(task.task, max(8, screen.width // 4))
        + ("" if task.test_score is None else f" {task.test_score:.2f}")
        for task in status.learned
    ]
    average = "" if status.average is None else f"; average {status.average:.2f}"
    for hidden in range(len(parts)):
        before = f"{hidden} before, " if hidden else ""
        text = f"learned: {before}{', '.join(parts[hidden:])}{average}"
        if cell_len(text) <= screen.width:
            break
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
    if len(runs) > most:
        order = [RUNNING, FAILED, STOPPED, WAITING, FINISHED]
        first = sorted(range(len(runs)), key=lambda index: order.index(runs[index].state))
        runs = [runs[index] for index in sorted(first[: most - 1])]
    hidden = len(scene.runs) - len(runs)
    names = [screen.short(run.label, screen.width // 3) for run in runs]
    room = screen.width - max(map(cell_len, names)) - screen.width // 4 - 4
    rows: list[list[RenderableType]] = [
        [
            name,
            screen.bar(run.status.fraction if run.status else 0.0),
            screen.short(_shortly(run), max(8, room)),
        ]
        for name, run in zip(names, runs, strict=True)
    ]
    return [table([""] * 3, rows, "lll"), *([Text(f"... {hidden} more")] if hidden else [])]


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
        now = [(run.state, run.dead, run.status and run.status.updated) for run in scene.runs]
        if now == self._news:
            if scene.silent < self._silence:
                return
            # After 1, 2, 4, 8 ... minutes.
            while scene.silent >= self._silence:
                self._silence *= 2
            text = f"{news(scene)} {text}"
        else:
            self._news, self._silence = now, SILENCE
        encoding = self._stream.encoding or "utf-8"
        data = f"{datetime.now():%H:%M:%S} {clean(text)}".encode(encoding, "backslashreplace")
        print(data.decode(encoding), file=self._stream, flush=True)


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
        shown = frame(scene, screen)
        if not self._unicode:
            shown = Text(screen.text(shown))  # With escapes in place of other characters.
        self._live.update(shown, refresh=True)

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
