"""What an accuracy matrix says about a method of continual learning.

`scores[i][j]` is the test score of task j after task i has been learnt, for j <= i, or None where
it was not to be had yet; both count from 0, and T is the number of tasks. A metric that needs a
score that is not there is None.

- *average*: the mean over j of scores[T-1][j], after the last task.
- *forgetting* (Chaudhry et al., 2018): the mean over j < T-1 of the best score that task j ever
  had, before the last task, less its score at the end.
- *backward transfer* (Lopez-Paz and Ranzato, 2017): the mean over j < T-1 of
  scores[T-1][j] - scores[j][j], what later tasks have done to a task. Negative means forgetting.
- *forward transfer*: the mean over j > 0 of scores[j][j] - alone[j], what earlier tasks have done
  for a task when it was learnt, against a network that learnt it alone. There is none where the
  first task was not learnt before the others, as with tasks that are learnt at the same time.
"""

from collections.abc import Sequence
from statistics import fmean

Scores = Sequence[Sequence[float | None]]


def average(scores: Scores) -> float | None:
    """The mean score of all tasks after the last one."""
    return _mean(scores[-1])


def forgetting(scores: Scores) -> float | None:
    """The mean loss of a task since it was at its best; 0 for one task."""
    last = scores[-1]
    return _mean([_best(scores, j, last[j]) for j in range(len(last) - 1)])


def _best(scores: Scores, task: int, now: float | None) -> float | None:
    before = [row[task] for row in scores[task:-1]]
    known = [score for score in before if score is not None]
    return max(known) - now if known and now is not None else None


def backward_transfer(scores: Scores) -> float | None:
    """The mean change of a task's score by the tasks that came after it; 0 for one task."""
    last = scores[-1]
    return _mean([_difference(last[j], scores[j][j]) for j in range(len(last) - 1)])


def forward_transfer(scores: Scores, alone: Sequence[float | None]) -> float | None:
    """The mean gain of a task over learning it alone, when it was learnt; 0 for one task."""
    if scores[0][0] is None and alone[0] is not None:
        return None
    return _mean([_difference(scores[j][j], alone[j]) for j in range(1, len(scores))])


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return fmean(known) if known else 0.0
