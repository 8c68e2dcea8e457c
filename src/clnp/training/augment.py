"""Random changes to a batch of images, [batch, channels, height, width], on its device."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from clnp.errors import ArgumentError, unknown_name

PADDING = 4
"""Largest shift in `flip_and_crop`, in pixels, as usual for CIFAR."""


def flip(images: Tensor) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    if images.ndim != 4:
        raise ArgumentError(
            f"augment got inputs of shape {tuple(images.shape)}. It needs images, batch x channels "
            "x height x width",
            argument="augment",
        )
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def flip_and_crop(images: Tensor) -> Tensor:
    """Mirror each image with probability 1/2, and shift it by up to four pixels, padded with 0."""
    images = flip(images)
    count, channels, height, width = images.shape
    padded = F.pad(images, [PADDING] * 4)
    rows = _window(count, height, images.device)
    columns = _window(count, width, images.device)
    by_row = padded.gather(2, rows[:, None, :, None].expand(-1, channels, -1, padded.shape[3]))
    return by_row.gather(3, columns[:, None, None, :].expand(-1, channels, height, -1))


def _window(count: int, size: int, device: torch.device) -> Tensor:
    """Draw which of the padded pixels each image shows: [count, size]."""
    start = torch.randint(0, 2 * PADDING + 1, (count, 1), device=device)
    return start + torch.arange(size, device=device)


AUGMENTATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "flip": flip,
    "flip-and-crop": flip_and_crop,
}


def augmentation(chosen: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the augmentation of that name; a function is returned as it is."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in AUGMENTATIONS:
        raise ArgumentError(unknown_name("augment", chosen, AUGMENTATIONS), argument="augment")
    return AUGMENTATIONS[chosen]
