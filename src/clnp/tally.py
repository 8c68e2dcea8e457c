"""What a run has come to so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .judgement import note
from .runs import FORMAT


@dataclass
class Tally:
    """The records of the tasks that have ended, and what they took.

    `scores` has a row for each of them, with the scores of all tasks up to it; `began` is when the
    one that is being learnt was begun, in seconds of the run, and `told` how much the run had told
    before, in bytes of events. `full` says why no more fit.
    """

    num_tasks: int
    done: list[dict[str, Any]] = field(default_factory=list)
    scores: list[list[float | None]] = field(default_factory=list)
    task_seconds: list[float] = field(default_factory=list)
    began: float = 0.0
    told: int = 0
    full: str | None = None
    peak_bytes: int = 0

    @property
    def finished(self) -> bool:
        """Whether there is no task left, or no room for it."""
        return self.full is not None or len(self.done) == self.num_tasks

    def add(self, record: dict[str, Any], now: float) -> None:
        """Note a task that has ended, at this second of the run."""
        self.done.append(record)
        self.task_seconds.append(now - self.began)

    def judge(
        self, outcomes: Sequence[tuple[float, str] | None], arithmetic: str
    ) -> list[float | None]:
        """Note the score and the SHA-256 of the outputs of each ended task; the scores."""
        row = []
        for record, outcome in zip(self.done, outcomes, strict=True):
            score, digest = (None, None) if outcome is None else outcome
            row.append(score)
            note(record, arithmetic, digest)
            if record["test_score"] is None:
                record["test_score"] = score  # Learnt only now, with all others.
        self.scores.append(row)
        return row

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
