"""What a tracker is, and all trackers of a run together, one of which may fail.

The truth about a run is in its directory; a tracker gets to see it. `TensorBoard`, `MLflow` and
`WeightsAndBiases` are trackers, and so is any object with these three methods.
"""

import contextlib
import importlib.util
import json
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clnp.errors import ClnpError, RunError
from clnp.methods.method import method_of
from clnp.storage.atomic import replace_file
from clnp.training.events import Event

from .directory import (
    EVENTS,
    RECIPE,
    Run,
    last_environment,
    read_config,
    read_events,
    read_json,
    read_result,
    to_json,
    writing,
)

IDENTIFIERS = "trackers.json"
"""What a run is called where it is tracked, to be found there again."""


@dataclass(frozen=True)
class TrackedRun:
    """A run that a tracker is about to be told of.

    `config` and `environment` are plain data, as in `config.json` and in the last entry of
    `environment.json`. The first `num_before` events are from before this start of the run, and
    `began` is the time, in seconds as of `time.time()`, to which the `at` of an event is added.
    """

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    num_before: int = 0
    began: float = field(default_factory=time.time)

    @property
    def title(self) -> str:
        """The directory of the run, with those of its series and its comparison."""
        return "/".join((*self._around, self._path.name))

    @property
    def group(self) -> str | None:
        """The directories of its series and its comparison, if it belongs to one."""
        return "/".join(self._around) or None

    @property
    def _path(self) -> Path:
        return self.path.absolute()

    @property
    def _around(self) -> list[str]:
        if not re.fullmatch(r"seed-?\d+", self._path.name):
            return []
        series = self._path.parent
        compared = series.name == method_of(self.config)
        return [series.parent.name, series.name] if compared else [series.name]

    @property
    def recipe(self) -> str:
        """The recipe in TOML, or the config in JSON where there is none."""
        try:
            return (self.path / RECIPE).read_text(encoding="utf-8")
        except OSError:
            return json.dumps(dict(self.config), indent=1)


class Tracker(Protocol):
    """Is told what happens in a run.

    A run that goes on after a crash is told from its first event on, so that what is kept anew from
    `begin` on is always whole, and events that a crash has undone come once. An error in `begin`
    keeps the run from starting; one that is raised later is told to the user, and the run goes on
    without the tracker.
    """

    def begin(self, run: TrackedRun) -> None:
        """Take note of a run that starts, or goes on."""

    def event(self, event: Event) -> None:
        """Take note of an event: what stands in a line of `events.jsonl`."""

    def end(self, result: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Take note of the end: the result, or what kept the run or the tracker from going on."""


def is_tracker(value: object) -> bool:
    """Whether it can be told of a run; its class cannot."""
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("begin", "event", "end")
    )


def require(package: str, extra: str) -> None:
    """Raise a `RunError` that names the extra if the package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise RunError(f"{package} is not installed; install it: pip install 'clnp[{extra}]'")


def recall(path: Path, tracker: str) -> dict[str, Any]:
    """The identifiers that the run was given by a tracker; empty at first."""
    known = read_json(path, IDENTIFIERS, {}).get(tracker, {})
    return dict(known) if isinstance(known, Mapping) else {}


def forget(path: Path) -> None:
    """Let the run be a new one to all trackers: what they were told before is not so any more."""
    with writing(path):
        (path / IDENTIFIERS).unlink(missing_ok=True)


def note(path: Path, tracker: str, identifiers: Mapping[str, Any]) -> None:
    """Keep the identifiers with the run."""
    known = {**read_json(path, IDENTIFIERS, {}), tracker: identifiers}
    with writing(path):
        replace_file(path / IDENTIFIERS, (to_json(known, indent=1) + "\n").encode())


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
