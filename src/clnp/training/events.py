"""What is told of a run while it goes on, and written to its `events.jsonl`."""

from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]
"""Plain data. `event` says of what kind it is: run, begin, resumed, epoch, candidate, pruning,
chosen, round, task, evaluation, full, stopped, failed or finished."""


def is_a_guess(score: float, guess: float | None) -> bool:
    """Whether guessing, where it is known what that scores, scores as much."""
    return guess is not None and score <= guess


def guess_told(score: float, guess: float | None) -> str:
    """To be put behind a sentence where guessing scores as much; else nothing."""
    if not is_a_guess(score, guess):
        return ""
    return f"; NO BETTER than always naming the same class, {guess:.2f}"
