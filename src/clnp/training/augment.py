"""Random changes of a batch of images, on its device: [batch, channels, height, width]."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from clnp.errors import ArgumentError, unknown_name

PADDING = 4
"""Pixels by which `flip_and_crop` moves an image at most, as is usual for CIFAR."""


def flip(images: Tensor) -> Tensor:
    """Each image as it is or mirrored, left to right."""
    _check(images)
    mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def flip_and_crop(images: Tensor) -> Tensor:
    """Each image perhaps mirrored, and moved by up to four pixels; what is moved in is zero."""
    images = flip(images)
    count, _, height, width = images.shape
    padded = F.pad(images, [PADDING] * 4)
    rows = _moved(count, height, images.device)
    columns = _moved(count, width, images.device)
    by_row = padded.gather(
        2, rows[:, None, :, None].expand(-1, images.shape[1], -1, padded.shape[3])
    )
    return by_row.gather(3, columns[:, None, None, :].expand(-1, images.shape[1], height, -1))


def _moved(count: int, size: int, device: torch.device) -> Tensor:
    """For each image, which of the padded pixels are shown: [count, size]."""
    start = torch.randint(0, 2 * PADDING + 1, (count, 1), device=device)
    return start + torch.arange(size, device=device)


def _check(images: Tensor) -> None:
    if images.ndim != 4:
        raise ArgumentError(
            f"augment takes images, batch x channels x height x width; the inputs have shape "
            f"{tuple(images.shape)}",
            argument="augment",
        )


AUGMENTATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "flip": flip,
    "flip-and-crop": flip_and_crop,
}


def augmentation(chosen: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The augmentation of that name, or the one that is given."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in AUGMENTATIONS:
        raise ArgumentError(unknown_name("augment", chosen, AUGMENTATIONS), argument="augment")
    return AUGMENTATIONS[chosen]
