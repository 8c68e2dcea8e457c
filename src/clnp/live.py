"""What is followed, as it goes on: a screen on a terminal, lines in a log."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TextIO

from .durations import duration
from .errors import RunError
from .following import ENDED, Following, Scene
from .frames import SILENCE, closing, frame, line
from .glyphs import Screen, glyphs_for, screen_of
from .runs import no_run

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
