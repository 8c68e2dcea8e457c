"""All trackers of a run, and what happens when one of them fails."""

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ClnpError, RunError
from ..events import Event
from ..runs import (
    EVENTS,
    Run,
    last_environment,
    read_config,
    read_events,
    read_result,
)
from .tracker import TrackedRun, Tracker


def warn(text: str) -> None:
    """Tell the user of something that does not end the run."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class Audience:
    """Passes everything on to all trackers.

    One that fails is left out from then on, and the user is told once: what it missed is in the
    run, which matters more than who gets to see it.
    """

    def __init__(
        self, trackers: Sequence[Tracker], on_warning: Callable[[str], None] = warn
    ) -> None:
        self._waiting = list(trackers)
        self._present: list[Tracker] = []
        self._on_warning = on_warning

    def __bool__(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._waiting or self._present)

    def begin(self, run: TrackedRun, past: Sequence[Event] = ()) -> None:
        """Let all trackers take note of the run, and tell them what happened before."""
        while self._waiting:
            tracker = self._waiting.pop(0)
            try:
                tracker.begin(run)
            except ClnpError:
                raise
            except Exception as error:
                raise RunError(
                    f"{_name(tracker)} cannot track the run: {_reason(error)}; mend that, or go on "
                    "without it"
                ) from error
            self._present.append(tracker)
        for event in past:
            self.event(event)

    def take_up(
        self, path: Path, environment: Mapping[str, Any], state: Mapping[str, Any] | None
    ) -> None:
        """Tell of the run at `path` and of the events that its checkpoint, if any, has left."""
        past = read_events(path, 0 if state is None else state["num_event_bytes"])
        began = time.time() - (0.0 if state is None else state["seconds"])
        config = read_config(path)
        self.begin(TrackedRun(path, config, environment, len(past), began), past)

    def event(self, event: Event) -> None:
        """Tell all of an event."""
        for tracker, reason in self._each(lambda tracker: tracker.event(event)):
            # It may have files and connections to let go of, which may fail like the rest of it.
            with contextlib.suppress(Exception):
                tracker.end(None, reason)

    def end(self, result: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Tell all of the end: the result, or what kept the run from having one."""
        self._each(lambda tracker: tracker.end(result, error))
        self._present = []

    def _each(self, tell: Callable[[Tracker], None]) -> list[tuple[Tracker, Exception]]:
        """Tell every tracker; those that failed, and why."""
        failed = []
        for tracker in list(self._present):
            try:
                tell(tracker)
            except Exception as error:
                self._present.remove(tracker)
                failed.append((tracker, error))
                self._on_warning(
                    f"{_name(tracker)} failed and is told nothing more: {_reason(error)}; the run "
                    f"goes on, {EVENTS} has it all, and going on with the run tells it again"
                )
        return failed


def tell_again(
    path: Path, trackers: Sequence[Tracker], on_warning: Callable[[str], None] = warn
) -> None:
    """Tell trackers of a run that is finished, from its first event to its result."""
    with Run.open(path):
        events = read_events(path)
        seconds = max((float(event.get("at", 0.0)) for event in events), default=0.0)
        ended = (path / EVENTS).stat().st_mtime if events else 0.0
        config, environment = read_config(path), last_environment(path)
        audience = Audience(trackers, on_warning)
        try:
            audience.begin(
                TrackedRun(path, config, environment, len(events), ended - seconds), events
            )
        except BaseException as error:
            audience.end(None, error)
            raise
        audience.end(read_result(path), None)


def _name(tracker: Tracker) -> str:
    return type(tracker).__name__


def _reason(error: Exception) -> str:
    """The first line of what it says: some errors bring a page along."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
