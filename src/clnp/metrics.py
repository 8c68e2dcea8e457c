"""What an accuracy matrix says about a method of continual learning.

`scores[i][j]` is the test score of task j after task i has been learnt, for j <= i; both count
from 0, and T is the number of tasks.

- *average*: the mean over j of scores[T-1][j], after the last task.
- *forgetting* (Chaudhry et al., 2018): the mean over j < T-1 of the best score that task j ever
  had, before the last task, less its score at the end.
- *backward transfer* (Lopez-Paz and Ranzato, 2017): the mean over j < T-1 of
  scores[T-1][j] - scores[j][j], what later tasks have done to a task. Negative means forgetting.
- *forward transfer*: the mean over j > 0 of scores[j][j] - alone[j], what earlier tasks have done
  for a task when it was learnt, against a network that learnt it alone.
"""

from collections.abc import Sequence
from statistics import fmean

Scores = Sequence[Sequence[float]]


def average(scores: Scores) -> float:
    """The mean score of all tasks after the last one."""
    return fmean(scores[-1])


def forgetting(scores: Scores) -> float:
    """The mean loss of a task since it was at its best; 0 for one task."""
    last = scores[-1]
    tasks = range(len(last) - 1)
    if not tasks:
        return 0.0
    return fmean(max(row[j] for row in scores[j:-1]) - last[j] for j in tasks)


def backward_transfer(scores: Scores) -> float:
    """The mean change of a task's score by the tasks that came after it; 0 for one task."""
    last = scores[-1]
    tasks = range(len(last) - 1)
    return fmean(last[j] - scores[j][j] for j in tasks) if tasks else 0.0


def forward_transfer(scores: Scores, alone: Sequence[float]) -> float:
    """The mean gain of a task over learning it alone, when it was learnt; 0 for one task."""
    tasks = range(1, len(scores))
    return fmean(scores[j][j] - alone[j] for j in tasks) if tasks else 0.0
