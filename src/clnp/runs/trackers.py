"""The interface of a tracker, and all trackers of a run together, each of which may fail.

`TensorBoard`, `MLflow` and `WeightsAndBiases` are trackers, and so is any object with the three
methods of `Tracker`.
"""

import contextlib
import importlib.util
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from clnp import extras
from clnp.errors import ClnpError, RunError
from clnp.plain import to_json
from clnp.records import Environment, Event, RunConfig, RunResult
from clnp.storage.atomic import replace_file

from .directory import (
    EVENTS,
    RECIPE,
    Run,
    last_environment,
    read_config,
    read_events,
    read_json,
    read_result,
    warn,
    writing,
)

IDENTIFIERS = "trackers.json"
"""The file with the identifiers of a run in each tracker."""


@dataclass(frozen=True)
class TrackedRun:
    """A run that a tracker is about to follow.

    Args:
        path: The directory of the run.
        config: The config of the run.
        environment: The environment of this start.
        num_before: How many of the events are from before this start.
        began: The time, as of `time.time()`, to which `Event.at` is added.
    """

    path: Path
    config: RunConfig = field(default_factory=RunConfig)
    environment: Environment = field(default_factory=Environment)
    num_before: int = 0
    began: float = field(default_factory=time.time)

    @property
    def title(self) -> str:
        """The directories of the comparison, the series and the run."""
        return "/".join(filter(None, (self.group, self.path.absolute().name)))

    @property
    def group(self) -> str | None:
        """The directories of the comparison and the series, if the run belongs to one."""
        path = self.path.absolute()
        if not re.fullmatch(r"seed-?\d+", path.name):
            return None
        series = path.parent
        is_compared = series.name == self.config.method
        return f"{series.parent.name}/{series.name}" if is_compared else series.name

    @property
    def recipe(self) -> str:
        """The recipe in TOML, or the config in JSON for a run without a recipe."""
        try:
            return (self.path / RECIPE).read_text(encoding="utf-8")
        except OSError:
            return to_json(self.config, indent=1)


class Tracker(Protocol):
    """The interface of a tracker.

    At every start of a run, a tracker gets all events from the first one on. Events that were
    logged after the last checkpoint are not repeated. An error in `begin` stops the start; after an
    error in `event` or `end`, the user gets a warning and the run continues without the tracker.
    """

    def begin(self, run: TrackedRun) -> None:
        """Follow a run that starts or resumes.

        Args:
            run: The run, its config and its environment.
        """

    def event(self, event: Event) -> None:
        """Process an event.

        Args:
            event: An event of the log, such as `clnp.records.EpochEnded`.
        """

    def end(self, result: RunResult | None, error: BaseException | None) -> None:
        """Finish.

        Args:
            result: The result of a finished run, otherwise None.
            error: The error that ended the run or the tracker, if any.
        """


def is_tracker(value: object) -> bool:
    """Whether the value has the methods of a tracker. A class does not count."""
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("begin", "event", "end")
    )


def require(package: str, extra: str) -> None:
    """Raise a `RunError` that names the extra if the package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise RunError(f"{package} is not installed. Install it with {extras.command(extra)}.")


def recall(path: Path, tracker: str) -> dict[str, str]:
    """Return the identifiers of a run in a tracker; none at first."""
    known = (read_json(path / IDENTIFIERS, dict) or {}).get(tracker)
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, Mapping) else {}


def forget(path: Path) -> None:
    """Make the run a new one for every tracker."""
    with writing(path):
        (path / IDENTIFIERS).unlink(missing_ok=True)


def note(path: Path, tracker: str, identifiers: Mapping[str, str]) -> None:
    """Store the identifiers of a run in a tracker."""
    known = {**(read_json(path / IDENTIFIERS, dict) or {}), tracker: identifiers}
    with writing(path):
        replace_file(path / IDENTIFIERS, (to_json(known, indent=1) + "\n").encode())


class Trackers:
    """All trackers of a run. One that fails is removed, with a warning."""

    def __init__(
        self, trackers: Sequence[Tracker], on_warning: Callable[[str], None] = warn
    ) -> None:
        self._waiting = list(trackers)
        self._active: list[Tracker] = []
        self._on_warning = on_warning

    def __bool__(self) -> bool:
        """Whether there is a tracker."""
        return bool(self._waiting or self._active)

    def begin(
        self, path: Path, environment: Environment, past: Sequence[Event], *, seconds: float
    ) -> None:
        """Begin with all trackers, and send them the past events; the run began `seconds` ago."""
        run = TrackedRun(path, read_config(path), environment, len(past), time.time() - seconds)
        while self._waiting:
            tracker = self._waiting.pop(0)
            try:
                tracker.begin(run)
            except ClnpError:
                raise
            except Exception as error:
                raise RunError(
                    f"{_name(tracker)} cannot track the run: {_reason(error)}. Fix that, or run "
                    "without it."
                ) from error
            self._active.append(tracker)
        for event in past:
            self.event(event)

    def event(self, event: Event) -> None:
        """Send an event to all trackers."""
        for tracker, reason in self._each(lambda tracker: tracker.event(event)):
            # It may have files and connections to close, which may fail as well.
            with contextlib.suppress(Exception):
                tracker.end(None, reason)

    def end(self, result: RunResult | None, error: BaseException | None) -> None:
        """Send the end of the run to all trackers."""
        self._each(lambda tracker: tracker.end(result, error))
        self._active = []

    def _each(self, call: Callable[[Tracker], None]) -> list[tuple[Tracker, Exception]]:
        """Call every tracker; return those that failed, and why."""
        failed = []
        for tracker in list(self._active):
            try:
                call(tracker)
            except Exception as error:
                self._active.remove(tracker)
                failed.append((tracker, error))
                self._on_warning(
                    f"{_name(tracker)} failed: {_reason(error)}. The run continues without it. "
                    f"{EVENTS} has all events, and resuming the run sends them again."
                )
        return failed


def track_finished_run(
    path: Path, trackers: Sequence[Tracker], on_warning: Callable[[str], None] = warn
) -> None:
    """Send a finished run to trackers, from its first event to its result."""
    with Run.open(path):
        events = read_events(path)
        seconds = max((event.at or 0.0 for event in events), default=0.0)
        if events:
            seconds += time.time() - (path / EVENTS).stat().st_mtime
        group = Trackers(trackers, on_warning)
        try:
            group.begin(path, last_environment(path), events, seconds=seconds)
        except BaseException as error:
            group.end(None, error)
            raise
        group.end(read_result(path), None)


def _name(tracker: Tracker) -> str:
    return type(tracker).__name__


def _reason(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
