"""A pruning plan: the neurons to keep of a task, and the evaluations that found them.

The log of a run has plans, and can be read without PyTorch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Keep = Mapping[str, Sequence[int]]
"""The free neurons to keep of each group, by index."""


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation: the threshold and the number of neurons kept of each group, and the score.

    If the score is below the margin, it may be that of a part of the data.
    """

    thresholds: Mapping[str, float]
    kept: Mapping[str, int]
    score: float

    @property
    def theta(self) -> float | None:
        """The threshold, if it is the same in all groups."""
        return common(self.thresholds)

    @property
    def num_kept(self) -> int:
        """The number of neurons kept in all groups."""
        return sum(self.kept.values())


@dataclass(frozen=True)
class PruningPlan:
    """The neurons to keep of the open task, and how they were found; `print` shows a summary.

    Args:
        task: The name of the task.
        available: The number of free neurons of each group.
        keep: The indices of the neurons to keep among the free neurons of each group.
        thresholds: The threshold of each group.
        reused: The number of neurons of earlier tasks in each group that the task reuses: those
            among the fewest neurons that together give a layer, in the rows that the task keeps, or
            its head, 99 % of what it receives from neurons. None if that was not measured.
        score: The score with these neurons.
        best: The score that the margin refers to.
        margin: How far the score may be below the best.
        curve: Every evaluation, in order.

    Example:
        >>> print(net.plan_pruning(activity, score, margin=0.5))
        keep fc1 120 of 2000, score 97.8 (best 98.1, margin 0.5), 9 evaluations
    """

    task: str
    available: Mapping[str, int]
    keep: Mapping[str, tuple[int, ...]]
    thresholds: Mapping[str, float]
    reused: Mapping[str, int | None]
    score: float | None = None
    best: float | None = None
    margin: float | None = None
    curve: tuple[CurvePoint, ...] = field(default=(), repr=False)

    @property
    def num_evaluations(self) -> int:
        """The number of evaluations of the score."""
        return len(self.curve)

    @property
    def theta(self) -> float | None:
        """The threshold, if it is the same in all groups."""
        return common(self.thresholds)

    @property
    def kept(self) -> dict[str, int]:
        """The number of neurons kept of each group."""
        return num_kept(self.keep)

    @property
    def num_kept(self) -> int:
        """The number of neurons kept in all groups."""
        return sum(self.kept.values())

    def __str__(self) -> str:
        parts = (f"{g} {n} of {self.available[g]}" for g, n in self.kept.items())
        score = "" if self.score is None else f", score {self.score:g}"
        best = "" if self.margin is None else f" (best {self.best:g}, margin {self.margin:g})"
        plural = "" if self.num_evaluations == 1 else "s"
        evaluations = f"{self.num_evaluations} evaluation{plural}"
        return f"keep {', '.join(parts)}{score}{best}, {evaluations}"


def num_kept(keep: Keep) -> dict[str, int]:
    """Return the number of neurons kept of each group."""
    return {group: len(neurons) for group, neurons in keep.items()}


def common(thresholds: Mapping[str, float]) -> float | None:
    """Return the threshold, if it is the same in all groups."""
    values = set(thresholds.values())
    return values.pop() if len(values) == 1 else None
