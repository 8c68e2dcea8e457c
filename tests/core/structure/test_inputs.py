"""Example inputs in their three forms, and random numbers that leave no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from clnp.core.structure.inputs import (
    batch_size,
    inputs_of,
    own_random_numbers,
    random_state,
    seed,
    two_of,
)
from clnp.errors import ArgumentError

X = torch.rand(1, 3)


def test_inputs_of():
    assert inputs_of(X) == ((X,), {})
    assert inputs_of((X, 2)) == ((X, 2), {})
    assert inputs_of({"x": X}) == ((), {"x": X})
    with pytest.raises(ArgumentError, match="example_input is a NoneType; give a tensor"):
        inputs_of(None)


def test_two_of_repeats_a_batch_of_one():
    (twice, ten, scalar), kwargs = two_of(((X, torch.ones(10), torch.ones(())), {"y": [X]}))
    assert torch.equal(twice, torch.cat([X, X]))
    assert ten.shape == (10,)
    assert scalar.shape == ()
    assert kwargs["y"][0].shape == (2, 3)
    inputs = ((torch.ones(3, 1),), {})
    assert two_of(inputs) is inputs
    assert (batch_size(inputs), batch_size(((), {}))) == (3, 1)


def test_own_random_numbers():
    def draw():
        return torch.rand(1).item(), random.random(), np.random.rand()

    model = nn.Linear(1, 1)
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    before = torch.get_rng_state(), random.getstate()
    with own_random_numbers(model):
        first = draw()
    with own_random_numbers(model):
        assert draw() == first
    assert np.random.rand() == expected
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_random_numbers_are_restored_after_an_error():
    before = torch.get_rng_state(), random.getstate()
    with pytest.raises(KeyError), own_random_numbers(nn.Module()):
        raise KeyError(torch.rand(1), random.random())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(1), random.random, np.random.rand, lambda: np.random.normal()]
)
def test_random_state_tells_whether_numbers_were_drawn(draw):
    model = nn.Linear(1, 1)
    with own_random_numbers(model):
        before = random_state(model)
        model(torch.ones(1, 1))
        assert random_state(model) == before
        draw()
        assert random_state(model) != before
        seed(model, 3)
        number = torch.rand(1)
        seed(model, 3)
        assert torch.equal(torch.rand(1), number)
