import numpy as np
import pytest
import torch
from torch import nn

from clnp.core.layers.blocks import (
    Slot,
    carry,
    complete,
    dead_weight,
    neuron_dim,
    place,
    real_part,
    run,
    select,
    slots_of,
    with_stand_ins,
)
from clnp.core.layers.stage import Pass, Stage
from clnp.core.structure.axis import STAND_IN
from clnp.core.structure.graph import Site
from clnp.errors import TaskError


def trained_norm(kind: type[nn.Module], channels: int, **settings: object) -> nn.Module:
    """BatchNorm in evaluation mode with weights and statistics that are not the default ones."""
    norm = kind(channels, **settings).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        if tensor is not None:
            nn.init.uniform_(tensor, 0.5, 2)
    return norm


LAYERS = [
    (nn.Linear(3, 4), (2, 3)),
    (nn.Linear(3, 4, bias=False), (2, 5, 3)),
    (nn.Conv1d(3, 4, 3, stride=2), (2, 3, 9)),
    (nn.Conv2d(3, 4, 3, padding=1, dilation=2), (2, 3, 7, 7)),
    (nn.Conv2d(3, 4, 3, padding="same", bias=False), (2, 3, 7, 7)),
    (nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular"), (2, 3, 7, 7)),
    (nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"), (2, 3, 7, 7)),
    (nn.Conv2d(4, 4, 3, groups=4), (2, 4, 7, 7)),
    (nn.Conv3d(3, 4, 2), (2, 3, 4, 4, 4)),
    (trained_norm(nn.BatchNorm1d, 3), (2, 3)),
    (trained_norm(nn.BatchNorm2d, 3, eps=0.1), (2, 3, 4, 4)),
    (trained_norm(nn.BatchNorm3d, 3, affine=False), (2, 3, 2, 2, 2)),
    (nn.PReLU(3, init=0.1), (2, 3, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_a_layer_runs_on_given_tensors_as_its_class_does(layer, shape):
    x = torch.randn(shape)
    tensors = {slot.name: getattr(layer, slot.name) for slot in slots_of(layer)}
    assert torch.equal(run(layer, x, tensors), layer(x))


def test_a_depthwise_convolution_runs_on_a_prefix():
    layer, x = nn.Conv2d(4, 4, 3, groups=4), torch.randn(2, 2, 7, 7)
    narrow = nn.Conv2d(2, 2, 3, groups=2)
    tensors = {"weight": layer.weight[:2], "bias": layer.bias[:2]}
    narrow.load_state_dict(tensors)
    assert torch.equal(run(layer, x, tensors), narrow(x))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(3, 4), [Slot("weight", has_columns=True), Slot("bias")]),
        (nn.Linear(3, 4, bias=False), [Slot("weight", has_columns=True)]),
        (nn.Conv2d(4, 4, 3, groups=4), [Slot("weight"), Slot("bias")]),
        (nn.PReLU(3), [Slot("weight")]),
        (
            nn.BatchNorm1d(3),
            [
                Slot("weight"),
                Slot("bias"),
                Slot("running_mean", trained=False),
                Slot("running_var", trained=False, dead=1.0),
            ],
        ),
        (
            nn.BatchNorm1d(3, affine=False),
            [
                Slot("running_mean", trained=False),
                Slot("running_var", trained=False, dead=1.0),
            ],
        ),
    ],
)
def test_slots_are_the_tensors_with_a_row_for_each_neuron(layer, expected):
    assert list(slots_of(layer)) == expected


def test_a_stage_begins_with_nothing():
    stage = Stage(["a", "b"])
    assert stage.running is Pass.IDLE
    assert stage.frozen == stage.free == {"a": 0, "b": 0}
    assert stage.showing is None


def test_neurons_lie_last_for_linear_and_second_for_the_others():
    assert neuron_dim(nn.Linear(1, 1)) == -1
    assert neuron_dim(nn.Conv2d(1, 1, 1)) == 1
    assert neuron_dim(nn.BatchNorm1d(1)) == 1


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
    layer = nn.Conv2d(3, 7, 3)
    tensors = dead_weight(layer, x, num_rows=2, kernel=(3, 3))
    assert tensors["weight"].shape == (2, 5, 3, 3)
    assert torch.equal(run(layer, x, tensors), torch.zeros(2, 2, 2, 2))


def test_carry_and_complete_give_the_layer_in_two_parts():
    layer, x = nn.Linear(5, 3).double(), torch.randn(4, 5).double()
    blocks = {"reuse": layer.weight[:, :2], "weight": layer.weight[:, 2:], "bias": layer.bias}
    carried = carry(layer, x[:, :2], stretches=None, free=blocks)
    y = complete(layer, x[:, 2:], stretches=None, free=blocks, carried=carried, num_rows=3)
    torch.testing.assert_close(y, layer(x))


def test_nothing_is_carried_without_a_reuse_block():
    layer, x = nn.Linear(5, 3), torch.randn(4, 5)
    blocks = {"weight": layer.weight, "bias": layer.bias}
    assert carry(layer, x, stretches=None, free=blocks) is None
    y = complete(layer, x, stretches=None, free=blocks, carried=None, num_rows=3)
    assert torch.equal(y, layer(x))


def test_the_carry_brings_the_bias_where_no_free_neuron_is_read():
    layer, x = nn.Linear(5, 3), torch.randn(4, 5)
    blocks = {"reuse": layer.weight, "bias": layer.bias}
    carried = carry(layer, x, stretches=None, free=blocks)
    stand_in = torch.full((4, 1), torch.nan)
    y = complete(layer, stand_in, stretches=[], free=blocks, carried=carried, num_rows=3)
    assert torch.equal(y, layer(x))


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_that_reads_nothing_gives_its_bias(bias):
    layer = nn.Linear(5, 3, bias=bias)
    layer.kernel = ()
    blocks = {"bias": layer.bias} if bias else {}
    y = complete(layer, torch.ones(4, 1), stretches=[], free=blocks, carried=None, num_rows=3)
    assert torch.equal(y, layer.bias.expand(4, 3) if bias else torch.zeros(4, 3))


def test_stand_ins_reach_neither_carry_nor_complete():
    layer = nn.Linear(5, 3)
    x = torch.randn(4, 4)
    dirty = torch.cat([torch.full((4, 1), torch.nan), x], 1)
    blocks = {"reuse": layer.weight[:, :4], "weight": layer.weight[:, 1:]}
    carried = carry(layer, dirty, stretches=[(1, 4)], free=blocks)
    assert bool(carried.isfinite().all())
    y = complete(layer, dirty, stretches=[(1, 4)], free=blocks, carried=carried, num_rows=3)
    assert bool(y.isfinite().all())


def test_a_layer_that_carried_nothing_cannot_be_completed():
    layer = nn.Linear(5, 3)
    layer.site = Site("a.b", "Linear", (), ())
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
