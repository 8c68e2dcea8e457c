import pytest
import torch

from clnp.errors import ArgumentError
from clnp.training.augment import AUGMENTATIONS, PADDING, augmentation, flip, flip_and_crop


def images(count=200, height=6, width=8):
    """Images whose pixels all differ, none of them zero."""
    shape = count, 3, height, width
    return 1 + torch.arange(count * 3 * height * width, dtype=torch.float64).reshape(shape)


def test_flip_mirrors_about_half_of_the_images():
    x = images()
    y = flip(x)
    same = (y == x).flatten(1).all(1)
    mirrored = (y == x.flip(3)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 60 < int(mirrored.sum()) < 140


def test_crop_shifts_each_image_by_a_few_pixels():
    x = images()
    y = flip_and_crop(x)
    assert y.shape == x.shape
    padded = torch.nn.functional.pad(torch.stack([x, x.flip(3)], 1), [PADDING] * 4)
    seen = set()
    for candidates, found in zip(padded, y, strict=True):
        shifts = [
            (mirrored, row, column)
            for mirrored in (0, 1)
            for row in range(2 * PADDING + 1)
            for column in range(2 * PADDING + 1)
            if torch.equal(candidates[mirrored, :, row : row + 6, column : column + 8], found)
        ]
        assert len(shifts) == 1
        seen.add(shifts[0])
    assert len(seen) > 80
    assert {row for _, row, _ in seen} == {column for _, _, column in seen} == set(range(9))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentations_follow_the_seed_and_do_not_change_their_input(name):
    x = images()
    before = x.clone()
    torch.manual_seed(3)
    one = augmentation(name)(x)
    torch.manual_seed(3)
    assert torch.equal(augmentation(name)(x), one)
    assert torch.equal(x, before)


def test_inputs_that_are_not_images_are_refused():
    with pytest.raises(ArgumentError, match=r"augment got inputs of shape \(4, 9\). It needs im"):
        flip(torch.zeros(4, 9))


def test_augmentations_are_given_by_name_or_as_a_function():
    assert augmentation(torch.relu) is torch.relu
    with pytest.raises(
        ArgumentError, match=r"unknown augment 'flop'. Did you mean 'flip'"
    ) as error:
        augmentation("flop")
    assert error.value.argument == "augment"
