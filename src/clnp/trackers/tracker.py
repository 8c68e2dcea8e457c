"""What a tracker is: somebody who is told what happens in a run.

The truth about a run is in its directory; a tracker gets to see it. `TensorBoard`, `MLflow` and
`WeightsAndBiases` are trackers, and so is any object with these three methods.
"""

import importlib.util
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..atomic import replace_file
from ..errors import RunError
from ..events import Event
from ..ours import method_of
from ..runs import RECIPE, read_json, to_json, writing

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
