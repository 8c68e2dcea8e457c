import numpy as np
import pytest
import torch
from torch import nn

from clnp.core.layers.blocks import (
    carry,
    complete,
    dead_weight,
    place,
    real_part,
    select,
    with_stand_ins,
)
from clnp.core.layers.stage import Pass, Stage
from clnp.core.structure.axis import STAND_IN
from clnp.core.structure.graph import Site
from clnp.core.structure.kinds import known_kind
from clnp.errors import TaskError


def sited(layer: nn.Module) -> nn.Module:
    """The layer, which knows its kind."""
    layer.site = Site("a.b", known_kind(layer).name, (), ())
    return layer


def test_a_stage_begins_with_nothing():
    stage = Stage(["a", "b"])
    assert stage.running is Pass.IDLE
    assert stage.frozen == stage.free == {"a": 0, "b": 0}
    assert stage.showing is None


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


def test_a_dead_weight_has_the_right_shape_and_gives_zeros():
    x = torch.randn(2, 5, 4, 4)
    layer = sited(nn.Conv2d(3, 7, 3))
    tensors = dead_weight(layer, x, num_rows=2, kernel=(3, 3))
    assert tensors["weight"].shape == (2, 5, 3, 3)
    assert torch.equal(layer.site.layer_kind.run(layer, x, tensors), torch.zeros(2, 2, 2, 2))


def test_carry_and_complete_give_the_layer_in_two_parts():
    layer, x = sited(nn.Linear(5, 3).double()), torch.randn(4, 5).double()
    blocks = {"reuse": layer.weight[:, :2], "weight": layer.weight[:, 2:], "bias": layer.bias}
    carried = carry(layer, x[:, :2], stretches=None, free=blocks)
    y = complete(layer, x[:, 2:], stretches=None, free=blocks, carried=carried, num_rows=3)
    torch.testing.assert_close(y, layer(x))


def test_nothing_is_carried_without_a_reuse_block():
    layer, x = sited(nn.Linear(5, 3)), torch.randn(4, 5)
    blocks = {"weight": layer.weight, "bias": layer.bias}
    assert carry(layer, x, stretches=None, free=blocks) is None
    y = complete(layer, x, stretches=None, free=blocks, carried=None, num_rows=3)
    assert torch.equal(y, layer(x))


def test_the_carry_brings_the_bias_where_no_free_neuron_is_read():
    layer, x = sited(nn.Linear(5, 3)), torch.randn(4, 5)
    blocks = {"reuse": layer.weight, "bias": layer.bias}
    carried = carry(layer, x, stretches=None, free=blocks)
    stand_in = torch.full((4, 1), torch.nan)
    y = complete(layer, stand_in, stretches=[], free=blocks, carried=carried, num_rows=3)
    assert torch.equal(y, layer(x))


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_that_reads_nothing_gives_its_bias(bias):
    layer = sited(nn.Linear(5, 3, bias=bias))
    layer.kernel = ()
    blocks = {"bias": layer.bias} if bias else {}
    y = complete(layer, torch.ones(4, 1), stretches=[], free=blocks, carried=None, num_rows=3)
    assert torch.equal(y, layer.bias.expand(4, 3) if bias else torch.zeros(4, 3))


def test_stand_ins_reach_neither_carry_nor_complete():
    layer = sited(nn.Linear(5, 3))
    x = torch.randn(4, 4)
    dirty = torch.cat([torch.full((4, 1), torch.nan), x], 1)
    blocks = {"reuse": layer.weight[:, :4], "weight": layer.weight[:, 1:]}
    carried = carry(layer, dirty, stretches=[(1, 4)], free=blocks)
    assert bool(carried.isfinite().all())
    y = complete(layer, dirty, stretches=[(1, 4)], free=blocks, carried=carried, num_rows=3)
    assert bool(y.isfinite().all())


def test_a_layer_that_carried_nothing_cannot_be_completed():
    layer = sited(nn.Linear(5, 3))
    blocks = {"reuse": layer.weight[:, :2], "weight": layer.weight[:, 2:]}
    with pytest.raises(TaskError, match=r"a\.b did not run when the frozen neurons did: from the"):
        complete(layer, torch.ones(4, 3), stretches=None, free=blocks, carried=None, num_rows=3)


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
