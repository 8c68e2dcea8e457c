"""Runs that break off, and their records without the times."""

from dataclasses import replace

import pytest

from clnp.records import RunResult, TaskResumed, Timings, event_to_plain
from clnp.runs.directory import read_events


class Crash(BaseException):
    """A power cut, seen from inside."""


def crash_at(kind, count=1, **values):
    """Return an `on_event` that crashes at the `count`-th event of this class and values."""
    seen = 0

    def crash(event):
        nonlocal seen
        if isinstance(event, kind) and all(getattr(event, k) == v for k, v in values.items()):
            seen += 1
            if seen == count:
                raise Crash

    return crash


def break_off(made, path, kind, count=1, *, checkpoint_seconds=0, **values):
    """Run the experiment until it crashes at this event."""
    with pytest.raises(Crash):
        made.run(
            path, checkpoint_seconds=checkpoint_seconds, on_event=crash_at(kind, count, **values)
        )


def untimed(result: RunResult) -> RunResult:
    """Return the result as every equal run has it."""
    return replace(result, timings=Timings())


def log_of(path):
    """Return the events of a run without their times, and without those that say it resumed."""
    return [
        {key: value for key, value in event_to_plain(event).items() if key not in ("at", "seconds")}
        for event in read_events(path)
        if not isinstance(event, TaskResumed)
    ]
