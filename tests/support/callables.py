"""Functions and objects that a user may hand over."""

from dataclasses import dataclass, field


def made(gain):
    def scale(layer):
        return layer.weight * gain

    return scale


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def halved(self, x):
        return x * self.factor / 2


@dataclass(frozen=True)
class Shifted:
    by: float
    seen: list = field(default_factory=list, compare=False)

    def __call__(self, x):
        return x + self.by
