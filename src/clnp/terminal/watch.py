"""A run as it stands: on a screen, in lines of a log, and in a last word."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TextIO

from clnp.errors import RunError
from clnp.runs.directory import again, command, no_run
from clnp.text import duration

from .status import ENDED, FAILED, FINISHED, RUNNING, STOPPED, WAITING, Following, Scene, View
from .tables import (
    MOST_LAYERS,
    Screen,
    cells,
    columns,
    ends,
    glyphs_for,
    progress,
    screen_of,
    sparkline,
    stacked,
)

SILENCE = 60.0
"""Seconds without news that are worth a word."""
WIDE = 72
"""Columns that it takes to show long bars beside what they are about."""
LEAST_BAR = 4
"""Columns that a bar has, if there is one."""
PERCENTAGE = len("  100 %  ")
SHORT_TEXT = len("100 of 100 tasks")
LEAST_LINES = 6
"""Lines that are shown however low the screen is."""


def closing(scene: Scene) -> str:
    """The last word on what was followed."""
    seen = command("inspect", scene.path)
    if scene.kind == "run":
        view = scene.views[0]
        if view.status in (FAILED, STOPPED):
            return _told(view)
        average = "" if view.average is None else f", average {view.average:.2f}"
        return f"finished: {_tasks(view)}{average}; {seen} shows all"
    failed = [
        f"{label}: {view.reason}"
        for label, view in zip(scene.labels, scene.views, strict=True)
        if view.status == FAILED
    ]
    done = sum(view.status == FINISHED for view in scene.views)
    text = f"{done} of {len(scene.views)} runs finished; {seen} shows all"
    if scene.status == STOPPED:
        text += f", {again(scene.path)} goes on"
    return "\n".join([*(f"failed: {each}" for each in failed), text])


def unfinished(scene: Scene) -> list[str]:
    """How several runs stand that are not all finished, and what goes on with them."""
    if scene.status == FINISHED:
        return []
    if scene.status == WAITING:
        return [f"none has begun; {again(scene.path)} goes on"]
    pairs = list(zip(scene.labels, scene.views, strict=True))
    under_way = [_briefly(label, view) for label, view in pairs if view.status != FAILED]
    lines = ["; ".join(text for text in under_way if text)]
    lines += [f"{label} failed: {view.reason}" for label, view in pairs if view.status == FAILED]
    ends = {STOPPED: f"{again(scene.path)} goes on", FAILED: f"{again(scene.path)} tries again"}
    lines.append(ends.get(scene.status) or _heard_of_several(scene))
    return [text for text in lines if text]


def line(scene: Scene) -> str:
    """How it stands, in one line."""
    if scene.kind is None:
        return f"waiting for {scene.path}, where there is no run yet"
    if scene.kind == "run":
        return _told(scene.views[0])
    done = sum(view.status == FINISHED for view in scene.views)
    parts = [f"{done} of {len(scene.views)} runs finished"]
    parts += map(_briefly, scene.labels, scene.views)
    return "; ".join(part for part in parts if part)


def _briefly(label: str, view: View) -> str:
    """How one of several runs stands; nothing of those that wait, or are finished."""
    if view.status == RUNNING:
        where = _between(view)
        if view.number is not None:
            where = f"task {view.number} of {view.num_tasks}"
        return f"{label} {100 * view.fraction:.0f} % ({where})"
    return f"{label} {view.status}" if view.status in (FAILED, STOPPED) else ""


def _told(view: View) -> str:
    if view.status == FAILED:
        return f"failed after {_tasks(view)}: {view.reason}"
    if view.status == STOPPED:
        return f"stopped after {_tasks(view)}; {again(view.run)} goes on"
    if view.status == FINISHED:
        return f"finished: {_tasks(view)}"
    if view.status == WAITING:
        return f"waiting for {view.run}, which cannot be read yet"
    if view.task is None:
        return _between(view)
    parts = [f"task {view.number} of {view.num_tasks}, {view.task}: {_doing(view)}"]
    if view.epoch:
        parts.append(f"loss {view.losses[-1]:.4g}, validation {view.scores[-1]:.2f}")
    return f"{', '.join(parts)}; {100 * view.fraction:.0f} % done{_left(view)}"


def _tasks(view: View) -> str:
    whole = "" if view.num_tasks is None else f" of {view.num_tasks}"
    return f"{view.num_learnt}{whole} tasks"


def _between(view: View) -> str:
    """How a run stands that has no open task."""
    return f"{_tasks(view)} learnt" if view.num_learnt else "starting"


def _doing(view: View) -> str:
    """What is being done to the open task."""
    if view.phase == "fine-tuning":
        where = f"fine-tuning round {view.round}"
    elif view.candidate is None:
        return "starting"
    else:
        where = f"candidate {view.candidate} of {view.num_candidates}"
        if view.phase == "pruning":
            return f"{where}, pruning"
    return f"{where}, epoch {view.epoch} of {view.num_epochs}" if view.epoch else where


def _left(view: View) -> str:
    if view.seconds_left is None or view.status != RUNNING:
        return ""
    how = "at least" if view.at_least else "at most" if view.at_most else "about"
    return f", {how} {duration(view.seconds_left)} left"


def frame(scene: Scene, *, screen: Screen) -> list[str]:
    """How it stands, in lines that fit the screen."""
    if scene.kind is None or (scene.kind == "run" and scene.views[0].num_tasks is None):
        lines = screen.wrapped(line(scene), indent=2)
    elif scene.kind == "run":
        lines = _run(scene.views[0], screen=screen)
    else:
        lines = _several(scene, screen=screen)
    return [
        screen.short(text, screen.width) for text in lines[: max(LEAST_LINES, screen.height - 1)]
    ]


def _run(view: View, *, screen: Screen) -> list[str]:
    what = view.recipe or "an experiment"
    title = f"{what}, {view.method}, seed {view.seed}"
    lines = [f"{screen.short(view.run, max(12, screen.width - cells(title) - 2))}: {title}"]
    if view.status in (FAILED, STOPPED):
        lines += screen.wrapped(_told(view), indent=2)
    elif view.status == FINISHED:
        lines.append(f"{_told(view)} in {duration(view.seconds)}")
    else:
        now = _told(view) if view.task is None else f"task {view.number} of {view.num_tasks}: "
        lines.append(now + (view.task or ""))
        lines.append(
            _bar("run", view.fraction, f"{100 * view.fraction:.0f} %{_left(view)}", screen)
        )
        if view.task is not None:
            lines += _open_task(view, screen=screen)
    lines += _learnt(view, screen=screen)
    lines += _neurons(view, screen=screen)
    if view.full is not None:
        lines += screen.wrapped(f"full: {view.full.partition('. ')[0]}", indent=2)
    if view.status == RUNNING:
        lines += screen.wrapped(_heard(view), indent=2)
    return lines


def _bar(name: str, fraction: float, text: str, screen: Screen) -> str:
    """A bar in what is left of the line beside its name and a text."""
    wanted = screen.width // 2
    width = min(wanted, screen.width - cells(name) - cells(text) - 4)
    if width < LEAST_BAR:
        return f"{name}  {text}"
    return f"{name}  {progress(fraction, width=width, glyphs=screen.glyphs)}  {text}"


def _open_task(view: View, *, screen: Screen) -> list[str]:
    lines = []
    if view.epoch and view.num_epochs:
        done = view.epoch / view.num_epochs
        lines.append(_bar("now", done, _doing(view), screen))
    else:
        lines.append(f"now  {_doing(view)}")
    if view.losses:
        width = max(4, screen.width - 22)
        for name, values, form in (
            ("loss", view.losses, ".4g"),
            ("validation", view.scores, ".2f"),
        ):
            curve = sparkline(values, width=min(width, 60), glyphs=screen.glyphs)
            lines.append(f"{name:10}  {format(values[-1], form):>7}  {curve}")
    return lines


def _learnt(view: View, *, screen: Screen) -> list[str]:
    """The last of the tasks that were learnt, as many as a line holds."""
    if not view.tasks:
        return []
    average = "" if view.average is None else f"; average {view.average:.2f}"
    parts: list[str] = []
    for record in reversed(view.tasks):
        score = "" if record["test_score"] is None else f" {record['test_score']:.2f}"
        parts.insert(0, f"{screen.short(record['task'], max(8, screen.width // 4))}{score}")
        hidden = len(view.tasks) - len(parts)
        more = f"{hidden} before, " if hidden else ""
        text = f"learnt: {more}{', '.join(parts)}{average}"
        if cells(text) > screen.width and len(parts) > 1:
            more = f"{hidden + 1} before, "
            return [f"learnt: {more}{', '.join(parts[1:])}{average}"]
    return [text]


def _neurons(view: View, *, screen: Screen) -> list[str]:
    """A bar for each layer, stacked by task."""
    front, hidden, back = ends(list(view.sizes), MOST_LAYERS)

    def told(group: str) -> list[str]:
        size = view.sizes[group]
        free = size - sum(view.claimed.get(group, ()))
        return [screen.short(group, max(8, screen.width // 4)), f"{free} of {size} free"]

    def bar(group: str) -> str:
        counts = view.claimed.get(group, ())
        return stacked(counts, view.sizes[group], width=width, glyphs=screen.glyphs)

    if not view.sizes:
        return []
    gap = [[f"... {len(hidden)} more", ""]] if hidden else []
    names = columns([*map(told, front), *gap, *map(told, back)])
    width = max(4, min(60, screen.width - max(map(cells, names)) - 2))
    bars = [*map(bar, front), *["" for _ in gap], *map(bar, back)]
    left = max(map(cells, names))
    return [
        f"{name}{' ' * (left - cells(name))}  {shown}".rstrip()
        for name, shown in zip(names, bars, strict=True)
    ]


def _heard(view: View) -> str:
    silent = view.silent or 0.0
    if silent < max(SILENCE, 3 * (view.epoch_seconds or 0.0)):
        return f"last heard of {duration(silent)} ago"
    return f"no news for {duration(silent)}; if it was stopped, {again(view.run)} goes on"


def _several(scene: Scene, *, screen: Screen) -> list[str]:
    """One line for each run; where there are too many, those that are under way come first."""
    done = sum(view.status == FINISHED for view in scene.views)
    title = f"{done} of {len(scene.views)} runs finished"
    lines = [f"{screen.short(scene.path, max(12, screen.width - cells(title) - 2))}: {title}"]
    pairs = list(zip(scene.labels, scene.views, strict=True))
    most = max(LEAST_LINES, screen.height - 4)
    hidden = 0
    if len(pairs) > most:
        order = {RUNNING: 0, FAILED: 1, STOPPED: 1, WAITING: 2, FINISHED: 3}
        chosen = sorted(range(len(pairs)), key=lambda place: order[pairs[place][1].status])
        kept = sorted(chosen[: most - 1])
        hidden = len(pairs) - len(kept)
        pairs = [pairs[place] for place in kept]
    lines += _rows(pairs, screen=screen)
    lines += [f"... {hidden} more"] if hidden else []
    if scene.status == RUNNING:
        lines += screen.wrapped(_heard_of_several(scene), indent=2)
    return lines


def _heard_of_several(scene: Scene) -> str:
    silent = min((view.silent for view in scene.views if view.silent is not None), default=0.0)
    if silent < SILENCE:
        return f"last heard of {duration(silent)} ago"
    return f"no news for {duration(silent)}; if it was stopped, {again(scene.path)} goes on"


def _rows(pairs: Sequence[tuple[str, View]], *, screen: Screen) -> list[str]:
    """Name, bar, percentage and text of each run; the bar gives way first, the number never."""
    most = max(8, screen.width - PERCENTAGE - SHORT_TEXT)
    names = [screen.short(label, most) for label, _ in pairs]
    left = max(map(cells, names), default=0)
    room = screen.width - left - PERCENTAGE
    texts = [_shortly(view) for _, view in pairs]
    # Candidate and epoch, or why a run failed, are not worth a bar.
    worth = [
        forms[view.status == RUNNING :]
        for forms, (_, view) in zip(texts, pairs, strict=True)
        if view.status in (RUNNING, FINISHED) and forms[1:]
    ] or [[""]]
    needed = (max(cells(forms[place]) for forms in worth) for place in (0, -1))
    wanted = 20 if screen.width >= WIDE else 8
    widths = (min(wanted, room - text - 1) for text in needed)
    width = next((found for found in widths if found >= LEAST_BAR), 0)
    lines = []
    for name, (_, view), forms in zip(names, pairs, texts, strict=True):
        bar = progress(view.fraction, width=width, glyphs=screen.glyphs) + " " if width else ""
        space = max(0, room - cells(bar))
        told = next((text for text in forms if cells(text) <= space), None)
        told = screen.short(forms[-1], space) if told is None else told
        front = f"{name}{' ' * (left - cells(name))}  {bar}{100 * view.fraction:3.0f} %"
        lines.append(f"{front}  {told}".rstrip())
    return lines


def _shortly(view: View) -> list[str]:
    """How one of several runs stands, from in full to as short as can be."""
    if view.status == WAITING:
        return ["waiting"]
    if view.status == FAILED:
        return [f"failed: {view.reason}"]
    if view.status == STOPPED:
        return [f"stopped after {_tasks(view)}", "stopped"]
    if view.status == FINISHED:
        took = f"{_tasks(view)} in {duration(view.seconds)}"
        average = "" if view.average is None else f", average {view.average:.2f}"
        return [f"{took}{average}", took, _tasks(view)]
    if view.task is None:
        return [_between(view), _tasks(view)] if view.num_learnt else [_between(view)]
    silent = view.silent or 0.0
    late = silent >= max(SILENCE, 3 * (view.epoch_seconds or 0.0))
    news = f", no news for {duration(silent)}" if late else _left(view)
    where = f"task {view.number} of {view.num_tasks}"
    return [f"{where}, {_doing(view)}{news}", f"{where}{news}", where]


SCREEN_SECONDS, LINE_SECONDS = 1.0, 10.0
"""How often to look, unless told otherwise: for a screen, and for a log."""
LEAST_SECONDS = 0.05


def watch(
    path: str, *, once: bool = False, interval: float | None = None, quiet: bool = False
) -> tuple[Scene, str]:
    """Follow a run until it ends, or look at it once; what it is then, and a text to show.

    With `quiet`, nothing is shown on the way.
    """
    if once:
        following = Following(path, patience=0.0)
        scene = following.look()
        if scene.kind is None:
            raise RunError(no_run(following.path))
        return scene, "\n".join(frame(scene, screen=screen_of(sys.stdout)))
    display = _display(sys.stdout, quiet=quiet)
    with contextlib.closing(display):
        seconds = display.seconds if interval is None else max(interval, LEAST_SECONDS)
        scene = follow(Following(path), display.show, seconds=seconds)
    return scene, closing(scene)


def follow(
    following: Following,
    show: Callable[[Scene], None],
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Scene:
    """Look and show again and again, until all that is followed has ended."""
    while True:
        scene = following.look()
        show(scene)
        if scene.status in ENDED:
            return scene
        sleep(seconds)


class Quiet:
    """Shows nothing."""

    seconds = SCREEN_SECONDS

    def show(self, scene: Scene) -> None:
        """Take note of how it is now."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Log(Quiet):
    """A line whenever something has changed, and now and then one that nothing has."""

    seconds = LINE_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told: str | None = None
        self._silence = SILENCE

    def show(self, scene: Scene) -> None:
        """Print what has changed since the last time."""
        if scene.status in ENDED:
            return  # The last word is for whoever asked to watch.
        text = line(scene)
        silent = min((v.silent for v in scene.views if v.silent is not None), default=0.0)
        if text == self._told:
            if silent < self._silence:
                return
            # Less and less often: after 1, 2, 4, 8 ... minutes.
            while silent >= self._silence:
                self._silence *= 2
            self._print(f"no news for {duration(silent)}; {text}")
            return
        self._told, self._silence = text, SILENCE
        self._print(text)

    def _print(self, text: str) -> None:
        shown = f"{datetime.now():%H:%M:%S} {text}"
        encoding = self._stream.encoding or "utf-8"
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
        print(shown, file=self._stream, flush=True)


class Frames(Quiet):
    """A screen that is drawn anew each time, in place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._glyphs = glyphs_for(stream)
        self._console = Console(file=stream, highlight=False, emoji=False, markup=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._before = _interruptible()
        self._live.start()

    def show(self, scene: Scene) -> None:
        """Draw how it is now, in the size that the terminal has now."""
        from rich.text import Text

        width, height = self._console.size
        # The last column makes some terminals begin a new line.
        screen = Screen(max(20, min(width, 120) - 1), height, self._glyphs)
        lines = frame(scene, screen=screen)
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def close(self) -> None:
        """Leave what was drawn last on the terminal, and its cursor visible."""
        self._live.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _interruptible() -> dict[signal.Signals, Any]:
    """Let what would end the process leave a visible cursor; the handlers from before."""
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
    if not stream.isatty():
        return Log(stream)
    from rich.console import Console

    return Log(stream) if Console(file=stream).is_dumb_terminal else Frames(stream)
