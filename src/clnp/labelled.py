"""Labelled samples as they are stored, and what turns them into inputs."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import ArgumentError


@dataclass(frozen=True)
class LabelledData:
    """Samples of several classes, as they are stored, with what makes numbers near 1 of them."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    num_classes: int
    largest: float = 1.0
    """What the stored numbers are divided by."""
    mean: tuple[float, ...] = ()
    """Of each channel of the training data, after the division; empty where it is not known."""
    deviation: tuple[float, ...] = ()
    """Standard deviation, likewise."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train[0].shape[1:])


@dataclass(frozen=True)
class Prepare:
    """Turns stored samples into inputs, on their device: divides, standardizes and reorders them.

    Prepare(16.0, order)(x) == (x / 16).flatten(1)[:, order].reshape(x.shape)
    Prepare(255.0, mean=m, deviation=d)(x)[:, c] == (x[:, c] / 255 - m[c]) / d[c]
    """

    largest: float = 1.0
    order: Tensor | None = None
    mean: tuple[float, ...] = field(default=(), kw_only=True)
    deviation: tuple[float, ...] = field(default=(), kw_only=True)
    _orders: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _scales: dict[torch.device, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation):
            raise ArgumentError(
                f"mean has {len(self.mean)} numbers and deviation {len(self.deviation)}; give one "
                "of each for every channel",
                argument="deviation",
            )
        if any(not each > 0 for each in self.deviation):
            raise ArgumentError(
                f"deviation is {self.deviation}; every number must be more than 0",
                argument="deviation",
            )

    def __call__(self, stored: Tensor) -> Tensor:
        inputs = stored.to(torch.float32) / self.largest if self.largest != 1.0 else stored
        if self.mean:
            inputs = self._standardized(inputs)
        if self.order is None:
            return inputs
        if stored.device not in self._orders:
            self._orders[stored.device] = self.order.to(stored.device)
        return inputs.flatten(1)[:, self._orders[stored.device]].reshape(stored.shape)

    def _standardized(self, inputs: Tensor) -> Tensor:
        if len(self.mean) not in (1, inputs.shape[1]):
            raise ArgumentError(
                f"mean has {len(self.mean)} numbers and samples of shape "
                f"{tuple(inputs.shape[1:])} have {inputs.shape[1]} channels; give one for each",
                argument="mean",
            )
        if inputs.device not in self._scales:
            scale = torch.tensor([self.mean, self.deviation], dtype=torch.float32)
            self._scales[inputs.device] = scale.to(inputs.device)
        along_channels = (-1, *[1] * (inputs.ndim - 2))
        mean, deviation = self._scales[inputs.device].unbind()
        return (inputs - mean.view(along_channels)).div(deviation.view(along_channels))
