"""Example inputs in their three forms, and random numbers that leave no trace."""

import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from clnp.core.structure.inputs import (
    batch_size,
    generators_of,
    imitate,
    inputs_of,
    own_random_numbers,
    random_state,
    seed_all,
    tensors_in,
    two_of,
)
from clnp.errors import ArgumentError

X = torch.rand(1, 3)


def test_inputs_of():
    assert inputs_of(X) == ((X,), {})
    assert inputs_of((X, 2)) == ((X, 2), {})
    assert inputs_of({"x": X}) == ((), {"x": X})
    with pytest.raises(ArgumentError, match=r"example_input is of type NoneType\. Give a tensor"):
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

    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    model, drawn = nn.Linear(1, 1), []
    before = states()
    for error in (ValueError, KeyError):
        with pytest.raises(error), own_random_numbers(model):
            raise error(drawn.append(draw()))
    assert drawn[0] == drawn[1]
    assert states() == before


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(1), random.random, np.random.rand, lambda: np.random.normal()]
)
def test_random_state_tells_whether_numbers_were_drawn(draw):
    model = nn.Linear(1, 1)
    with own_random_numbers(model):
        generators = generators_of(model)
        before = random_state(generators)
        model(torch.ones(1, 1))
        assert random_state(generators) == before
        draw()
        assert random_state(generators) != before
        seed_all(model, 3)
        number = torch.rand(1)
        seed_all(model, 3)
        assert torch.equal(torch.rand(1), number)


def test_tensors_in_and_imitate():
    pair = namedtuple("pair", "left right")

    @dataclass
    class Output:
        logits: torch.Tensor
        other: str = "x"

    value = [X, (1, {"a": X}), pair(X, None), Output(X), X.max(0)]
    assert len(tensors_in(value)) == 6
    assert tensors_in(["x", None, Output]) == []
    twice = imitate(value, lambda tensor: tensor * 2)
    assert torch.equal(twice[1][1]["a"], X * 2)
    assert torch.equal(twice[2].left, X * 2)
    assert torch.equal(twice[4].values, X.max(0).values * 2)
    assert twice[3] is value[3]
