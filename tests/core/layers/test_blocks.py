import numpy as np
import pytest
import torch

from clnp.core.layers.blocks import place, real_part, select, with_stand_ins
from clnp.core.structure.axis import STAND_IN


def test_the_real_part_leaves_out_stand_ins():
    x = torch.arange(10.0).view(2, 5)
    assert real_part(x, 1, None) is x
    assert torch.equal(real_part(x, 1, [(1, 2)]), x[:, 1:3])
    assert torch.equal(real_part(x, -1, [(0, 1), (3, 2)]), x[:, [0, 3, 4]])


@pytest.mark.parametrize(
    "stretches", [[(0, 2)], [(1, 2)], [(3, 2)], [(0, 1), (2, 1)], [(1, 1), (4, 1)]]
)
def test_stand_ins_come_back_as_zeros(stretches):
    y = torch.randn(3, 2, 4)
    full = with_stand_ins(y, 5, stretches)
    assert full.shape == (3, 5, 4)
    assert torch.equal(real_part(full, 1, stretches), y)
    assert full.count_nonzero() == y.count_nonzero()


def test_selecting_everything_copies_nothing():
    tensor = torch.randn(3, 4)
    assert select(tensor, 1, np.arange(4)) is tensor


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([2, 0], [[3.0, 1.0], [6.0, 4.0]]),
        ([STAND_IN, 1], [[9.0, 2.0], [9.0, 5.0]]),
        ([1, STAND_IN, STAND_IN], [[2.0, 9.0, 9.0], [5.0, 9.0, 9.0]]),
        ([STAND_IN], [[9.0], [9.0]]),
        ([], [[], []]),
    ],
)
def test_selecting_fills_stand_ins(index, expected):
    tensor = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = select(tensor, 1, np.array(index, np.int64), fill=9.0)
    assert torch.equal(found, torch.tensor(expected))
    assert found.is_contiguous()


def test_a_stand_in_takes_nothing_from_a_poisoned_tensor():
    tensor = torch.full((2, 3), torch.nan)
    tensor[0] = 1.0
    found = select(tensor, 0, np.array([STAND_IN, 0]))
    assert torch.equal(found, torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))


def test_a_block_is_placed_in_its_rows_and_columns():
    target = torch.zeros(3, 4)
    place(target, np.array([2, 0]), np.array([1, 3]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert target.tolist() == [[0, 3, 0, 4], [0, 0, 0, 0], [0, 1, 0, 2]]
    place(target, np.array([], np.int64), np.array([1]), torch.zeros(0, 1))
    assert target.count_nonzero() == 4
