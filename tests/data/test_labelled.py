import pytest
import torch

from clnp.data.labelled import LabelledData, Prepare
from clnp.errors import ArgumentError, DataError


def test_the_shape_is_that_of_one_sample():
    pair = torch.zeros(5, 3, 2), torch.zeros(5)
    assert LabelledData("a", pair, pair, 1).shape == (3, 2)


@pytest.mark.parametrize("other", [torch.zeros(5, 6), torch.zeros(5, 3, 2, dtype=torch.uint8)])
def test_training_and_test_samples_have_one_shape_and_dtype(other):
    labels = torch.zeros(5)
    with pytest.raises(DataError) as caught:
        LabelledData("a", (torch.zeros(5, 3, 2), labels), (other, labels), 1)
    assert str(caught.value) == (
        "data set 'a': training samples are torch.float32 of shape (3, 2), and test samples "
        f"{other.dtype} of shape {tuple(other.shape[1:])}. Both must be the same"
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_samples_are_divided_and_reordered(dtype):
    stored = torch.arange(24).reshape(4, 1, 2, 3).to(dtype)
    before = stored.clone()
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    inputs = Prepare(16.0, order)(stored)
    assert inputs.dtype == torch.float32
    expected = (stored.float() / 16).flatten(1)[:, order].reshape(stored.shape)
    assert torch.equal(inputs, expected)
    assert torch.equal(Prepare(16.0)(stored), stored.float() / 16)
    assert torch.equal(Prepare(1.0, order)(stored), expected.mul(16).to(dtype))
    assert torch.equal(stored, before)
    assert Prepare()(stored) is stored


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("largest", [1.0, 255.0])
def test_samples_are_normalised_after_the_division(dtype, largest):
    stored = torch.arange(36).reshape(2, 3, 2, 3).to(dtype)
    before = stored.clone()
    mean, deviation = (0.5, 0.25, 0.125), (2.0, 0.5, 0.3)
    inputs = Prepare(largest, mean=mean, deviation=deviation)(stored)
    assert inputs.dtype == torch.float32
    for channel in range(3):
        expected = stored[:, channel].float() / largest
        expected = (expected - torch.tensor(mean[channel])) / torch.tensor(deviation[channel])
        assert torch.equal(inputs[:, channel], expected)
    assert torch.equal(stored, before)


def test_samples_are_normalised_before_they_are_reordered():
    stored = torch.arange(8, dtype=torch.uint8).reshape(2, 2, 2)
    order = torch.tensor([3, 0, 2, 1])
    figures = {"mean": (0.5, 0.25), "deviation": (2.0, 0.5)}
    plain = Prepare(16.0, **figures)(stored)
    inputs = Prepare(16.0, order, **figures)(stored)
    assert torch.equal(inputs, plain.flatten(1)[:, order].reshape(2, 2, 2))
    assert not torch.equal(inputs, plain)


@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 2, 2), (4, 3, 2)])
def test_one_mean_is_for_all_channels(shape):
    stored = torch.rand(shape)
    assert torch.equal(Prepare(mean=(0.5,), deviation=(0.25,))(stored), (stored - 0.5) / 0.25)


def test_tensors_are_kept_on_every_device():
    order = torch.tensor([1, 0])
    prepare = Prepare(1.0, order, mean=(1.0, 2.0), deviation=(1.0, 2.0))
    assert prepare(torch.tensor([[1.0, 4.0]])).tolist() == [[1.0, 0.0]]
    kept = prepare._constants[torch.device("cpu")]
    assert kept[0] is order
    assert prepare(torch.tensor([[1.0, 4.0]])).tolist() == [[1.0, 0.0]]
    assert prepare._constants[torch.device("cpu")] is kept
    prepare = Prepare(mean=(1.0, 2.0), deviation=(1.0, 2.0))
    assert prepare(torch.zeros(2, 2, device="meta")).device.type == "meta"
    assert prepare._constants[torch.device("meta")][1].device.type == "meta"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"mean": (0.5, 0.5), "deviation": (1.0,)},
            "mean has 2 numbers, and deviation 1. Give as many of both, one for each channel or ",
        ),
        ({"mean": (0.5,)}, "mean has 1 numbers, and deviation 0. Give as many of both, one for "),
        ({"mean": (0.5,), "deviation": (0.0,)}, "one of deviation is 0.0. It must be a finite "),
        ({"mean": ("a",), "deviation": (1.0,)}, "one of mean is 'a'. It must be a number"),
        ({"largest": 0}, "largest is 0. It must be a finite float32 number above 0"),
    ],
)
def test_the_constants_of_a_preparation_are_checked(settings, message):
    with pytest.raises(ArgumentError) as caught:
        Prepare(**settings)
    assert str(caught.value).startswith(message)


def test_there_is_a_mean_for_each_channel_or_one_for_all():
    stored = torch.arange(24.0).reshape(2, 3, 4)
    one = Prepare(mean=(0.5,), deviation=(2.0,))(stored)
    assert torch.equal(one, Prepare(mean=(0.5,) * 3, deviation=(2.0,) * 3)(stored))
    for num in (2, 4):  # Four would be broadcast along another dimension.
        with pytest.raises(ArgumentError) as caught:
            Prepare(mean=(0.5,) * num, deviation=(2.0,) * num)(stored)
        assert str(caught.value) == (
            f"mean has {num} numbers, and the samples have shape [3, 4]. Give one for each "
            "channel, or one for all"
        )
