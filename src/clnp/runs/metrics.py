"""Metrics of continual learning, from an accuracy matrix.

`scores[i][j]` is the test score of task j after task i has been learned, for j <= i, or None if it
is unknown; both count from 0, and T is the number of tasks. A metric that needs an unknown score is
None.

- *average*: the mean over j of scores[T-1][j], after the last task.
- *forgetting* (Chaudhry et al., 2018): the mean over j < T-1 of the best score of task j before the
  last task, minus its score at the end.
- *backward transfer* (Lopez-Paz and Ranzato, 2017): the mean over j < T-1 of
  scores[T-1][j] - scores[j][j], the effect of later tasks. Negative means forgetting.
- *forward transfer*: the mean over j > 0 of scores[j][j] - alone[j], the effect of earlier tasks,
  compared with a network that learned the task alone. It is None if the first task was not learned
  before the others, as in joint training.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from clnp.records import Metrics

Scores = Sequence[Sequence[float | None]]


def metrics_of(scores: Scores, alone: Sequence[float | None] | None = None) -> Metrics:
    """Return all metrics; forward transfer needs the score of each task learned alone."""
    whole = all(len(row) == number for number, row in enumerate(scores, 1))
    if not scores or not whole:  # A file may be damaged.
        return Metrics()
    known = alone is not None and len(alone) >= len(scores)
    return Metrics(
        average=average(scores),
        forgetting=forgetting(scores),
        backward_transfer=backward_transfer(scores),
        forward_transfer=forward_transfer(scores, alone) if known and alone is not None else None,
    )


def average(scores: Scores) -> float | None:
    """Return the mean score of all tasks after the last one."""
    return _mean(scores[-1])


def forgetting(scores: Scores) -> float | None:
    """Return the mean loss of a task since its best score; 0 for one task."""
    last = scores[-1]
    return _mean([_best(scores, j, last[j]) for j in range(len(last) - 1)])


def _best(scores: Scores, task: int, now: float | None) -> float | None:
    before = [row[task] for row in scores[task:-1]]
    known = [score for score in before if score is not None]
    return max(known) - now if known and now is not None else None


def backward_transfer(scores: Scores) -> float | None:
    """Return the mean change of the score of a task by later ones; 0 for one task."""
    last = scores[-1]
    return _mean([_difference(last[j], scores[j][j]) for j in range(len(last) - 1)])


def forward_transfer(scores: Scores, alone: Sequence[float | None]) -> float | None:
    """Return the mean gain of a task over learning it alone; 0 for one task."""
    if scores[0][0] is None and alone[0] is not None:
        return None
    return _mean([_difference(scores[j][j], alone[j]) for j in range(1, len(scores))])


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    try:
        return fmean(known) if known else 0.0
    except (OverflowError, ValueError):  # Of infinity, or beyond all floats.
        return math.nan
