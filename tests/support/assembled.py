"""Models for tests, put together from layers and a forward function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Assembled(nn.Module):
    """A model with the given layers, whose forward is `run(model, *inputs)`."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def around(step: Callable[[torch.Tensor], torch.Tensor], *, channels: int = 8) -> Assembled:
    """Convolution, then `step` on [N, channels, 6, 6], then flatten and a linear classifier."""
    conv = nn.Conv2d(3, channels, 3, padding=1)
    with torch.no_grad():
        num_features = step(conv(torch.zeros(2, 3, 6, 6))).flatten(1).shape[1]
    fc = nn.Linear(num_features, 5)
    return Assembled(lambda m, x: m.fc(step(m.conv(x)).flatten(1)), conv=conv, fc=fc)
