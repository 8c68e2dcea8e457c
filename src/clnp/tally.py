"""What a run has come to so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .runs import FORMAT


@dataclass
class Tally:
    """The records of the tasks that have ended, and what they took.

    `scores` has a row for each of them, with the scores of all tasks up to it; `began` is when the
    one that is being learnt was begun, in seconds of the run. `full` says why no more fit.
    """

    num_tasks: int
    done: list[dict[str, Any]] = field(default_factory=list)
    scores: list[list[float | None]] = field(default_factory=list)
    task_seconds: list[float] = field(default_factory=list)
    began: float = 0.0
    full: str | None = None
    peak_bytes: int = 0

    @property
    def finished(self) -> bool:
        """Whether there is no task left, or no room for it."""
        return self.full is not None or len(self.done) == self.num_tasks

    def state(self) -> dict[str, Any]:
        """All that `restore` needs."""
        return {name: value for name, value in vars(self).items() if name != "num_tasks"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state()` was taken; tasks may have been added since."""
        for name in self.state():
            setattr(self, name, state[name])

    def result(
        self, experiment: Mapping[str, Any], figures: Mapping[str, Any], *, seconds: float
    ) -> dict[str, Any]:
        """All of it, with what the experiment is and the figures of the network."""
        return {
            "format": FORMAT,
            "finished": self.finished,
            "full": self.full,
            "num_tasks": self.num_tasks,
            **{name: experiment[name] for name in ("method", "head", "seed")},
            "tasks": self.done,
            "scores": self.scores,
            **figures,
            "timings": {
                "seconds": seconds,
                "tasks": self.task_seconds,
                "peak_bytes": self.peak_bytes,
            },
        }
