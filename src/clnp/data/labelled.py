"""Labelled samples as they are stored, and the function that turns them into inputs."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clnp.checks import ABOVE_0, number, settle, several
from clnp.errors import ArgumentError, DataError


@dataclass(frozen=True)
class LabelledData:
    """Samples of several classes as they are stored, and the constants to normalise them.

    Args:
        name: Name of the data set.
        train: Samples, [N, ...], and their labels, int64 [N].
        test: The same for testing.
        num_classes: Number of classes. Labels count from 0.
        largest: Divisor of the samples, which brings them to 0 to 1.
        mean: Mean of each channel of the divided training samples, if it is known.
        deviation: Standard deviation, likewise.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    num_classes: int
    largest: float = 1.0
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        kinds = [f"{x.dtype} of shape {tuple(x.shape[1:])}" for x, _ in (self.train, self.test)]
        if kinds[0] != kinds[1]:
            raise DataError(
                f"data set {self.name!r}: training samples are {kinds[0]}, and test samples "
                f"{kinds[1]}. Both must be the same"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train[0].shape[1:])


@dataclass(frozen=True)
class Prepare:
    """Turns stored samples into inputs, on their device.

    Args:
        largest: Divisor of the samples.
        order: Permutation of the numbers of a sample, int64.
        mean: Mean of each channel after the division, or one for all.
        deviation: Standard deviation, likewise.

    Example:
        >>> Prepare(16.0, order)(x)  # (x / 16).flatten(1)[:, order].reshape(x.shape)
        >>> Prepare(255.0, mean=m, deviation=d)(x)  # (x[:, c] / 255 - m[c]) / d[c] in [:, c]
    """

    largest: float = 1.0
    order: Tensor | None = None
    mean: tuple[float, ...] = field(default=(), kw_only=True)
    deviation: tuple[float, ...] = field(default=(), kw_only=True)
    _constants: dict[torch.device, tuple[Tensor | None, Tensor | None]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        settle(self, {"largest": ABOVE_0, "mean": several(number), "deviation": several(ABOVE_0)})
        if len(self.mean) != len(self.deviation):
            raise ArgumentError(
                f"mean has {len(self.mean)} numbers, and deviation {len(self.deviation)}. Give as "
                "many of both, one for each channel or one for all",
                argument="deviation",
            )

    def __call__(self, stored: Tensor) -> Tensor:
        if self.mean and (len(self.mean),) not in ((1,), stored.shape[1:2]):
            raise ArgumentError(
                f"mean has {len(self.mean)} numbers, and the samples have shape "
                f"{list(stored.shape[1:])}. Give one for each channel, or one for all",
                argument="mean",
            )
        device = stored.device
        if device not in self._constants:
            order = None if self.order is None else self.order.to(device)
            self._constants[device] = order, self.scale.to(device) if self.mean else None
        order, scale = self._constants[device]
        return prepared(stored, self.largest, order=order, scale=scale)

    @property
    def scale(self) -> Tensor:
        """Mean and deviation of each channel, float32 [2, channels]."""
        return torch.tensor([self.mean, self.deviation], dtype=torch.float32, device="cpu")


def prepared(
    stored: Tensor, largest: float, *, order: Tensor | None, scale: Tensor | None
) -> Tensor:
    """Return the samples divided, normalised by `scale`, [2, channels], and in another order."""
    inputs = stored.to(torch.float32) / largest if largest != 1.0 else stored
    if scale is not None:
        along_channels = (-1, *[1] * (inputs.ndim - 2))
        mean, deviation = (each.view(along_channels) for each in scale.unbind())
        inputs = (inputs - mean).div(deviation)
    return inputs if order is None else inputs.flatten(1)[:, order].reshape(stored.shape)
