"""A run while it works: on a screen, in lines of a log, and in a closing sentence."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from clnp.errors import RunError
from clnp.palette import CLNP, OTHERS
from clnp.plain import to_plain
from clnp.records import OURS, pruning_text
from clnp.runs.directory import (
    CONFIG,
    STATUS,
    command,
    expanded,
    may_become_a_run,
    read_config,
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
from clnp.studies.jobs import on_stop
from clnp.studies.study import Member, members_of, open_trials, read_comparison, read_series
from clnp.text import clean, duration

from .tables import MOST_COLUMNS, Screen, plain_screen, screen_of, stacked_bars, table

WAITING = "waiting"
NOT_STARTED = Status(state=WAITING)
ENDED = (FINISHED, FAILED, STOPPED)
PATIENCE = 10.0
"""Seconds for which a file may be unreadable: a network file system may be slow."""
SILENCE = 60.0
"""Seconds after which missing news is reported, and the series of a failed run has ended."""
SCREEN_SECONDS, LINE_SECONDS, LEAST_SECONDS = 1.0, 10.0, 0.05
"""Time between two looks, by default on a screen and in a log, and at least."""
RESUMING = 30.0
"""Seconds for which a run that was stopped before may be resuming: that imports PyTorch first."""
LEAST_RUNS = 6
"""Runs of a series that are shown however low the screen is."""
ORDER = (RUNNING, FAILED, STOPPED, WAITING, FINISHED)
"""The states of runs by how much they matter."""


@dataclass(frozen=True)
class WatchedRun:
    """A run and its last status.

    `silent` counts the seconds since the status was written, and `dead` says that the process of
    the run has ended and could not write it.
    """

    label: str
    path: str
    status: Status = NOT_STARTED
    silent: float = 0.0
    dead: bool = False

    @property
    def state(self) -> str:
        """The state of the run, or waiting before it starts."""
        return self.status.state

    @property
    def is_late(self) -> bool:
        """Whether there should have been news by now."""
        return self.silent >= max(SILENCE, 3 * self._epoch_seconds)

    @property
    def _epoch_seconds(self) -> float:
        return self.status.open.epoch_seconds if self.status.open else 0.0

    @property
    def left(self) -> str:
        """The estimate of the time left, or how late news is, to be put at the end of a text."""
        if self.is_late:
            return f", no news for {duration(self.silent)}"
        if self.status.seconds_left is None or self.state != RUNNING:
            return ""
        # The epoch that is being trained has taken some of it.
        left = max(0.0, self.status.seconds_left - min(self.silent, self._epoch_seconds))
        return f", about {duration(left)} left"


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
        return FAILED if FAILED in found and self.silent >= SILENCE else RUNNING

    @property
    def silent(self) -> float:
        """The seconds since the last news of any run."""
        return min((run.silent for run in self.runs if run.state != WAITING), default=0.0)

    @property
    def finished(self) -> str:
        """The number of finished runs, as a text."""
        return f"{sum(r.state == FINISHED for r in self.runs)} of {len(self.runs)} runs finished"

    def to_plain(self) -> dict[str, object]:
        """Return the scene as plain data for JSON."""
        runs = [
            {
                **to_plain(run),
                "status": None if run.state == WAITING else to_plain(run.status),
                **{"state": run.state, "fraction": run.status.fraction},
            }
            for run in self.runs
        ]
        return {"path": str(self.path), "kind": self.kind, "state": self.state, "runs": runs}


@dataclass
class Watcher:
    """Looks at a run, a series or a comparison, which may not exist yet."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    # By the path of a run: when its status was written, and when that was first seen.
    _heard: dict[Path, tuple[float, float]] = field(default_factory=dict)

    def look(self) -> Scene:
        """Return everything as it is now."""
        kind, members = "run", dict[str, Path]()
        if comparison := read_comparison(self.path):
            kind = "comparison"
            trials = [t for name in comparison.tuned or () for t in open_trials(self.path, name)]
            reported = members_of(self.path, comparison, comparison.methods or ())
            members = _paths([*trials, *reported])
        elif series := read_series(self.path):
            kind, members = "series", _paths(members_of(self.path, series))
        elif any(os.path.isfile(self.path / name) for name in (STATUS, CONFIG)):
            members = {"run": self.path}
        runs = tuple(self._look_at(label, path) for label, path in members.items())
        return Scene(self.path, kind if members else None, runs)

    def _look_at(self, label: str, path: Path) -> WatchedRun:
        status, now = read_status(path), self.clock()
        if status is None:
            return WatchedRun(label, str(path))
        updated, heard = self._heard.get(path, (None, 0.0))
        if updated != status.updated:
            # The clocks of two machines differ, so that only the first look compares them.
            heard = now if updated is not None else now - max(0.0, time.time() - status.updated)
            self._heard[path] = status.updated, heard
        return WatchedRun(label, str(path), status, now - heard, status.is_dead)


def _paths(members: list[Member]) -> dict[str, Path]:
    return {member.title: member.path for member in members}


def closing(scene: Scene) -> str:
    """Return the last sentences about the runs that were watched."""
    seen = f"`{command('inspect', scene.path)}` shows all."
    if scene.kind != "run":
        return "\n".join([f"{scene.finished}. {seen}", *unfinished(scene)])
    text = state_of(scene.runs[0])
    return f"{text}. {seen}" if scene.state == FINISHED else text


def unfinished(scene: Scene) -> list[str]:
    """Return the states of several runs that are not all finished, and how to resume them."""
    if scene.state == FINISHED:
        return []
    runs = [run for run in scene.runs if run.state not in (FINISHED, WAITING)]
    states = [f"{run.label}: {state_of(run)}" for run in runs] or ["No run has started."]
    resume = f"Resume with {resume_command(scene.path)}."
    return [*states, news(scene) if scene.state == RUNNING else resume]


def line(scene: Scene) -> str:
    """Return the scene in one line."""
    if scene.kind is None:
        return f"waiting for {scene.path}: there is no run yet"
    if scene.kind == "run":
        return state_of(scene.runs[0])
    runs = [run for run in scene.runs if run.state not in (FINISHED, WAITING)]
    return "; ".join([scene.finished, *(f"{run.label}: {_shortly(run)}" for run in runs)])


def state_of(run: WatchedRun) -> str:
    """Return the state of a run in one line."""
    status = run.status
    if run.state == WAITING:
        return WAITING
    tasks = f"{len(status.learned)} of {status.num_tasks} tasks"
    resume = f"Resume with {resume_command(run.path)}."
    if run.state == FAILED:
        return f"failed after {tasks}: {status.reason}"
    if run.state == STOPPED:
        return f"stopped after {tasks}. {resume}"
    if run.state == FINISHED:
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
    """Return the state of one of several runs: all of them are resumed together."""
    return state_of(run).partition(". Resume")[0]


def doing(task: OpenTask) -> str:
    """Return the phase of the open task."""
    where = f"candidate {task.candidate} of {task.num_candidates}"
    if task.round is not None:
        where = f"fine-tuning round {task.round}"
    if task.phase == "starting":
        return "starting"
    if task.phase == "pruning":
        if task.num_evaluations is None or task.kept is None or task.available is None:
            return f"{where}, pruning"
        return f"{where}, {pruning_text(task.num_evaluations, task.kept, task.available)}"
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


def frame(scene: Scene, screen: Screen, *, is_own: bool = False) -> RenderableType:
    """Return the scene for a screen; the process of the run knows that there is no older news."""
    run = scene.runs[0] if scene.kind == "run" else None
    if scene.kind is None:
        return Text(clean(line(scene)))
    parts = _several(scene, screen) if run is None else _run(run, screen)
    if scene.state == RUNNING and not (run and run.dead) and not is_own:
        parts.append(Text(news(scene)))
    return Group(*parts)


def _title(path: str, text: str, screen: Screen) -> Text:
    return Text(f"{screen.short(path, max(12, screen.width - cell_len(text) - 2))}: {text}")


def _run(run: WatchedRun, screen: Screen) -> list[RenderableType]:
    status, task = run.status, run.status.open
    what = f"{clean(status.recipe or 'an experiment')}, {status.method}, seed {status.seed}"
    parts: list[RenderableType] = [_title(run.path, what, screen)]
    if run.state != RUNNING or run.dead or task is None:
        parts.append(Text(clean(state_of(run))))
    else:
        parts += _open_task(run, task, screen)
    if status.learned:
        last = status.learned[-1]
        name = screen.short(last.task, max(8, screen.width // 4))
        score = "" if last.test_score is None else f" {last.test_score:.2f}"
        average = "" if status.average is None else f"; average {status.average:.2f}"
        learned = f"{len(status.learned)} of {status.num_tasks}"
        parts.append(Text(f"learned: {learned}, last {name}{score}{average}"))
    if status.sizes:
        parts += [_neurons(status, screen), screen.legend()]
    if status.full is not None:
        parts.append(Text(clean(f"full: {status.full.partition('. ')[0]}")))
    return parts


def _open_task(run: WatchedRun, task: OpenTask, screen: Screen) -> list[RenderableType]:
    """Return the bars and the curves of a run that is learning a task."""
    bars = Table.grid(padding=(0, 2))
    status, fraction = run.status, run.status.fraction
    colour = CLNP if status.method == OURS else OTHERS[0]
    epochs = f"epoch {status.epochs_done} of {status.epochs_of_run}, {100 * fraction:.0f} %"
    bars.add_row("run", screen.bar(fraction, colour), Text(f"{epochs}{run.left}"))
    done = (task.epoch or 0) / (task.num_epochs or 1)
    bars.add_row("now", screen.bar(done, colour), Text(doing(task)))
    title = clean(f"task {task.number} of {run.status.num_tasks}: {task.task}")
    parts: list[RenderableType] = [Text(title), bars]
    if task.loss is not None and task.score is not None:
        width = max(4, min(60, screen.width - 24))
        rows: list[list[RenderableType]] = [
            [name, value, Text(screen.curve(curve, width), colour)]
            for name, value, curve in (
                ("loss", f"{task.loss:.4g}", task.losses),
                ("validation", f"{task.score:.2f}", task.scores),
            )
        ]
        parts.append(table(["", "", ""], rows, "lrl"))
    return parts


def _neurons(status: Status, screen: Screen) -> Table:
    """Return a bar for each layer, stacked by task."""

    def row(group: str) -> list[str]:
        free = status.sizes[group] - sum(status.claimed.get(group, ()))
        name = screen.short(group, max(8, screen.width // 4))
        return [name, f"{free} of {status.sizes[group]} free"]

    return stacked_bars(["", "", ""], status.sizes, status.claimed, row, screen)


def _several(scene: Scene, screen: Screen) -> list[RenderableType]:
    """Return a row for each run; if there are too many, those that matter most."""
    runs, most = list(scene.runs), max(LEAST_RUNS, screen.height - 4)
    if len(runs) > most:
        runs = sorted(runs, key=lambda run: ORDER.index(run.state))[: most - 1]
    names = [screen.short(run.label, screen.width // 3) for run in runs]
    room = max(8, screen.width - max(map(cell_len, names)) - screen.width // 4 - 4)
    rows: list[list[RenderableType]] = [
        [name, screen.bar(run.status.fraction), screen.short(_shortly(run), room)]
        for name, run in zip(names, runs, strict=True)
    ]
    hidden = len(scene.runs) - len(runs)
    more = [Text(f"... {hidden} more")] if hidden else []
    return [_title(str(scene.path), scene.finished, screen), table([""] * 3, rows, "lll"), *more]


def watch(
    path: str, *, once: bool = False, interval: float | None = None, quiet: bool = False
) -> tuple[Scene, str]:
    """Show a run until it ends, or as it is now.

    Args:
        path: The directory of a run, a series or a comparison, which need not exist yet.
        once: Show the run as it is now.
        interval: The seconds between two looks. Default: 1 on a terminal, 10 in a log.
        quiet: Show nothing until the end.

    Returns:
        The last scene, and a text about it.
    """
    watcher = Watcher(expanded(path))
    scene = watcher.look()
    if scene.kind is None and (once or not may_become_a_run(watcher.path)):
        read_config(watcher.path)  # It says what is missing.
    if once:
        screen = plain_screen(sys.stdout)
        return scene, screen.text(frame(scene, screen))
    is_log = not sys.stdout.isatty() or Console(file=sys.stdout).is_dumb_terminal
    seconds = LINE_SECONDS if is_log and not quiet else SCREEN_SECONDS
    if interval is not None:
        seconds = max(interval, LEAST_SECONDS)
    if quiet or is_log:
        show = (lambda _: None) if quiet else Log(sys.stdout).show
        scene = follow(watcher, show, seconds=seconds)
    else:
        with _screen(sys.stdout) as show:
            scene = follow(watcher, show, seconds=seconds)
    return scene, closing(scene)


def follow(
    watcher: Watcher,
    show: Callable[[Scene], None],
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Scene:
    """Look and show until everything has ended, and return the last scene.

    Raises:
        RunError: If a file is damaged for good.
    """
    scene, readable = Scene(watcher.path), watcher.clock()
    began, has_worked = readable, False
    while True:
        try:
            found = watcher.look()
            # A directory that vanishes may come back.
            scene, readable = found if found.kind else scene, watcher.clock()
        except RunError:
            if watcher.clock() - readable >= PATIENCE:
                raise
        show(scene)
        has_worked = has_worked or scene.state == RUNNING
        is_over = has_worked or watcher.clock() - began >= RESUMING
        if scene.state == FINISHED or (scene.state in ENDED and is_over):
            return scene
        sleep(seconds)


class Log:
    """A line for each change, and one when there should have been news."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._news: object = None

    def show(self, scene: Scene) -> None:
        """Print a line if something has changed."""
        now = [(run.state, run.dead, run.status.updated, run.is_late) for run in scene.runs]
        is_first = self._news is None
        if now == self._news or scene.state == FINISHED:
            return  # A closing sentence follows.
        self._news, text = now, line(scene)
        if scene.state in ENDED:
            if not is_first:
                return
            text += f" Waiting {duration(RESUMING)} in case it is resuming."
        if any(run.state == RUNNING and run.is_late for run in scene.runs):
            text = f"{news(scene)} {text}"
        encoding = self._stream.encoding or "utf-8"
        data = f"{datetime.now():%H:%M:%S} {clean(text)}".encode(encoding, "backslashreplace")
        print(data.decode(encoding), file=self._stream, flush=True)


@contextlib.contextmanager
def _screen(stream: TextIO) -> Iterator[Callable[[Scene], None]]:
    """Show scenes on a terminal, each in place of the one before."""
    unicode, styled = screen_of(stream).unicode, screen_of(stream).styled
    console = Console(file=stream, highlight=False, emoji=False, markup=False)

    def show(scene: Scene) -> None:
        width, height = console.size
        # The last column makes some terminals begin a new line.
        screen = Screen(max(20, min(width, MOST_COLUMNS) - 1), height, unicode, styled)
        shown = frame(scene, screen)
        # Without Unicode, other characters are escaped.
        live.update(shown if unicode else Text(screen.text(shown)), refresh=True)

    # A signal that ends the process leaves a visible cursor.
    with (
        on_stop(_interrupt),
        Live(console=console, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        yield show


def _interrupt() -> None:
    raise KeyboardInterrupt
