"""A search for settings: the ranges to search, and what proposes the next settings to try.

A search is a function `ask(history, count)` of what has been tried, so another can take its place.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Value = float | str | bool
Settings = Mapping[str, Value]
"""Settings of a method by their dotted key, such as `training.lr`."""
NUM_SPREAD = 8
"""Trials before the first that is near the best one."""
SPREAD_EVERY = 4
"""After that, every such trial is still far from the others."""
LARGEST_STEP, SMALLEST_STEP = 0.2, 0.05
"""Standard deviations of a step away from the best trial, as fractions of a range."""
PRIMES = (2, 3, 5, 7, 11, 13)


@dataclass(frozen=True)
class Between:
    """A range of numbers, `low` to `high`; if it is `log`, on a logarithmic scale."""

    low: float
    high: float
    log: bool = True

    def at(self, position: float) -> float:
        """Return the number at a position from 0 to 1, rounded to two digits."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        found = low + position * (high - low)
        return float(f"{math.exp(found) if self.log else found:.2g}")

    def position(self, value: Value) -> float:
        """Return the position of a number, 0 or 1 if it is outside."""
        number = min(max(float(value), self.low), self.high)
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(number) - low) / (high - low)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value


@dataclass(frozen=True)
class Times:
    """A range of numbers around the present one: it, times `low` to `high`."""

    low: float
    high: float

    def around(self, present: float) -> Between:
        """Return the range around this number."""
        return Between(self.low * present, self.high * present)


@dataclass(frozen=True)
class OneOf:
    """Values without an order."""

    values: tuple[Value, ...]

    def at(self, position: float) -> Value:
        """Return the value at a position from 0 to 1."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]

    def position(self, value: Value) -> float:
        """Return the position of a value, that of the first one if it is another."""
        index = self.values.index(value) if value in self.values else 0
        return (index + 0.5) / len(self.values)


Space = Mapping[str, Between | Times | OneOf]
"""The ranges to search, by the dotted key of a setting."""
LEARNING_RATE: Space = {"training.lr": Times(1 / 30, 3.0)}


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and their score, higher is better; None if training failed."""

    settings: Settings
    score: float | None


Ask = Callable[[Sequence[Trial], int], list[Settings]]
"""`ask(history, count)` returns the next settings to try, after those that have been tried."""


@dataclass(frozen=True)
class SpreadThenNear:
    """The default search: points spread evenly over the ranges, then most of them near the best.

    A trial depends on the seed, on its number and on the history, and on nothing else.
    """

    space: Mapping[str, Between | OneOf]
    seed: str

    def ask(self, history: Sequence[Trial], count: int) -> list[Settings]:
        """Return the next settings to try.

        Args:
            history: What has been tried, in order.
            count: How many settings to return.

        Returns:
            A value for every key of the space, `count` times.
        """
        known = [(trial.score, -n) for n, trial in enumerate(history) if trial.score is not None]
        best = history[-max(known)[1]].settings if known else None
        found: list[Settings] = []
        for number in range(len(history), len(history) + count):
            later, rest = divmod(number, SPREAD_EVERY)
            if number < NUM_SPREAD or best is None:
                found.append(self._spread(number))
            elif rest == 0:
                found.append(self._spread(NUM_SPREAD + later))  # The next one of the sequence.
            else:
                found.append(self._near(best, number))
        return found

    def _spread(self, index: int) -> Settings:
        """Return a point of a Halton sequence that is shifted at random."""
        shifts = random.Random(self.seed)
        return {
            key: values.at((_radical_inverse(index, prime) + shifts.random()) % 1.0)
            for (key, values), prime in zip(self.space.items(), PRIMES, strict=False)
        }

    def _near(self, best: Settings, number: int) -> Settings:
        """Return a point near another one, the nearer the later it is."""
        draw = random.Random(f"{self.seed} {number}")
        step = max(SMALLEST_STEP, LARGEST_STEP * NUM_SPREAD / number)
        found = {}
        for key, values in self.space.items():
            position = values.position(best[key]) + draw.gauss(0.0, step)
            found[key] = values.at(min(max(position, 0.0), 1.0))
        return found


def _radical_inverse(number: int, base: int) -> float:
    """Return the digits of the number in this base, mirrored at the point: 6 -> 0.011 -> 0.375."""
    found, share = 0.0, 1.0
    while number:
        share /= base
        number, digit = divmod(number, base)
        found += digit * share
    return found
