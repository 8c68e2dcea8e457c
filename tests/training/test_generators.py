import random

import numpy as np
import torch

from clnp.training.rng import isolated, seed_all


def draw():
    return torch.rand(()).item(), random.random(), np.random.rand()


def test_a_seed_is_for_all_generators():
    seed_all(2**62 + 3)
    first = draw()
    seed_all(2**62 + 3)
    assert draw() == first
    seed_all(4)
    assert not set(draw()) & set(first)


def test_what_is_drawn_inside_leaves_the_generators_alone():
    seed_all(1)
    draw()
    expected = draw()
    seed_all(1)
    draw()
    with isolated(torch.device("cpu")):
        seed_all(7)
        draw()
    assert draw() == expected


def test_numbers_are_those_of_a_seed_in_pytorch():
    seed_all(2**62 + 3)
    found = torch.rand(5)
    torch.manual_seed(2**62 + 3)
    assert torch.equal(found, torch.rand(5))
