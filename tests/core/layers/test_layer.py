import copy
import pickle

import pytest
import torch
from torch import nn

from clnp.core.layers.layer import PrefixLayer
from clnp.core.layers.stage import Averaging, Pass, Stage
from clnp.core.structure.axis import Segment
from clnp.core.structure.graph import Site
from clnp.core.structure.surgery import in_front_of
from clnp.errors import TaskError

ROWS, COLUMNS = (Segment("out", 5),), (Segment("in", 4), Segment(None, 2))


def dense(*, bias: bool = True) -> tuple[PrefixLayer, Stage]:
    """A Linear layer from four neurons of "in" and two inputs to five neurons of "out"."""
    stage = Stage(["in", "out"])
    layer = nn.Linear(6, 5, bias=bias)
    made = in_front_of(PrefixLayer, layer)
    made.set_up(layer, Site("fc", "Linear", ROWS, COLUMNS), stage)
    return made, stage


def norm(kind: type[nn.Module] = nn.BatchNorm1d, **settings: object) -> tuple[PrefixLayer, Stage]:
    """BatchNorm on the five neurons of "out"."""
    stage = Stage(["out"])
    layer = kind(5, **settings)
    made = in_front_of(PrefixLayer, layer)
    made.set_up(layer, Site("bn", kind.__name__, ROWS, ROWS), stage)
    return made, stage


def open_task(layer: PrefixLayer, stage: Stage, **free: int) -> None:
    stage.free = free
    layer.open(None)


def claim(layer: PrefixLayer, stage: Stage) -> None:
    """Freeze all that the open task has."""
    tensors = layer.extended()
    stage.frozen = {group: stage.frozen[group] + count for group, count in stage.free.items()}
    stage.free = dict.fromkeys(stage.free, 0)
    layer.close(tensors, index=0)


def test_a_new_layer_has_no_parameters_and_keeps_its_class():
    layer, _ = dense()
    assert isinstance(layer, nn.Linear)
    assert (layer.in_features, layer.out_features) == (6, 5)
    assert list(layer.parameters()) == []
    assert {name: tuple(t.shape) for name, t in layer.named_buffers()} == {
        "weight_frozen": (0, 2),
        "bias_frozen": (0,),
    }


def test_an_opened_layer_is_initialised_as_its_class_does():
    layer, stage = dense()
    torch.manual_seed(3)
    open_task(layer, stage, **{"in": 4, "out": 5})
    torch.manual_seed(3)
    like = nn.Linear(6, 5)
    assert layer.weight_reuse is None
    assert torch.equal(layer.weight_free, like.weight)
    assert torch.equal(layer.bias_free, like.bias)


def test_weights_from_frozen_neurons_are_a_block_of_their_own():
    layer, stage = dense()
    stage.frozen = {"in": 3, "out": 2}
    layer.allocate()
    torch.manual_seed(3)
    open_task(layer, stage, **{"in": 1, "out": 3})
    torch.manual_seed(3)
    like = nn.Linear(6, 3)
    assert torch.equal(layer.weight_reuse, like.weight[:, :3])
    assert torch.equal(layer.weight_free, like.weight[:, 3:])
    assert [name for name, _ in layer.named_parameters()] == [
        "weight_reuse",
        "weight_free",
        "bias_free",
    ]


def test_a_full_layer_has_nothing_to_train():
    layer, stage = dense()
    stage.frozen = {"in": 1, "out": 5}
    layer.allocate()
    open_task(layer, stage, **{"in": 3, "out": 0})
    assert list(layer.parameters()) == []
    assert layer.num_free_rows == 0
    stage.running = Pass.FREE
    assert torch.equal(layer(torch.randn(2, 5)), torch.zeros(2, 1))


def test_pruning_keeps_rows_and_columns_in_new_parameters():
    layer, stage = dense()
    stage.frozen = {"in": 1, "out": 1}
    layer.allocate()
    open_task(layer, stage, **{"in": 3, "out": 4})
    reuse, free, bias = (p.detach().clone() for p in layer.parameters())
    layer.restrict({"in": [2, 0], "out": [1, 3]})
    assert torch.equal(layer.weight_reuse, reuse[[1, 3]])
    assert torch.equal(layer.weight_free, free[[1, 3]][:, [2, 0, 3, 4]])
    assert torch.equal(layer.bias_free, bias[[1, 3]])


def test_a_claim_puts_blocks_together_with_zero_interference():
    layer, stage = dense()
    open_task(layer, stage, **{"in": 2, "out": 2})
    first, first_bias = layer.weight_free.detach().clone(), layer.bias_free.detach().clone()
    claim(layer, stage)
    assert torch.equal(layer.weight_frozen, first)
    open_task(layer, stage, **{"in": 2, "out": 3})
    reuse, free, bias = (p.detach().clone() for p in layer.parameters())
    tensors = layer.extended()
    expected = torch.zeros(5, 6)
    expected[:2, [0, 1, 4, 5]] = first
    expected[2:, :2] = reuse
    expected[2:, 2:] = free
    assert torch.equal(tensors["weight"], expected)
    assert torch.equal(tensors["bias"], torch.cat([first_bias, bias]))
    assert torch.equal(layer.weight_frozen, first)


def test_a_closed_layer_has_buffers_only():
    layer, stage = dense()
    open_task(layer, stage, **{"in": 2, "out": 2})
    claim(layer, stage)
    assert list(layer.parameters()) == []
    assert layer.frozen()["weight"].requires_grad is False
    assert layer.free() == {}
    before = {name: tensor.clone() for name, tensor in layer.named_buffers()}
    open_task(layer, stage, **{"in": 2, "out": 3})
    layer.close({}, index=0)
    assert all(torch.equal(t, before[name]) for name, t in layer.named_buffers())


def test_the_two_passes_together_are_the_dense_layer():
    layer, stage = dense()
    open_task(layer, stage, **{"in": 2, "out": 2})
    claim(layer, stage)
    open_task(layer, stage, **{"in": 2, "out": 3})
    layer.show(layer.frozen())
    old, new, given = torch.randn(7, 2), torch.randn(7, 2), torch.randn(7, 2)
    whole = layer.extended()
    stage.running, stage.with_grad = Pass.FROZEN, True
    frozen = layer(torch.cat([old, given], 1))
    stage.running = Pass.FREE
    free = layer(torch.cat([new, given], 1))
    expected = torch.cat([old, new, given], 1) @ whole["weight"].T + whole["bias"]
    torch.testing.assert_close(torch.cat([frozen, free], 1), expected)
    assert not frozen.requires_grad
    free.sum().backward()
    assert layer.weight_reuse.grad.abs().sum() > 0


def linear(*columns: str, bias: bool = True, **frozen: int) -> tuple[PrefixLayer, Stage]:
    """A Linear layer to "out" from four neurons of each group, of which some are frozen."""
    stage = Stage([*columns, "out"])
    plain = nn.Linear(4 * len(columns), 5, bias=bias)
    layer = in_front_of(PrefixLayer, plain)
    axis = tuple(Segment(group, 4) for group in columns)
    layer.set_up(plain, Site("a.b", "Linear", ROWS, axis), stage)
    stage.frozen = {group: frozen.get(group, 0) for group in stage.frozen}
    layer.allocate()
    return layer, stage


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_that_reads_nothing_gives_its_bias(bias):
    layer, stage = linear("in", bias=bias)
    open_task(layer, stage, **{"in": 0, "out": 3})
    stage.running = Pass.FREE
    expected = layer.bias_free.expand(7, 3) if bias else torch.zeros(7, 3)
    assert torch.equal(layer(torch.ones(7, 1)), expected)


def test_the_carry_has_the_bias_if_no_free_neuron_is_read():
    layer, stage = linear("in", **{"in": 4, "out": 2})
    open_task(layer, stage, **{"in": 0, "out": 3})
    layer.show(layer.frozen())
    x = torch.randn(7, 4)
    stage.running = Pass.FROZEN
    layer(x)
    stage.running = Pass.FREE
    expected = nn.functional.linear(x, layer.weight_reuse, layer.bias_free)
    assert torch.equal(layer(torch.full((7, 1), torch.nan)), expected)


def test_stand_ins_reach_neither_pass():
    layer, stage = linear("none", "in", **{"in": 2, "out": 2})
    open_task(layer, stage, **{"none": 0, "in": 2, "out": 3})
    layer.show({"weight": torch.zeros(2, 3)})
    dirty = torch.cat([torch.full((7, 1), torch.nan), torch.randn(7, 2)], 1)
    for running in (Pass.FROZEN, Pass.FREE):
        stage.running = running
        y = layer(dirty)
    assert bool(y.isfinite().all())


def test_a_layer_that_carried_nothing_cannot_run_on_free_neurons():
    layer, stage = linear("in", **{"in": 2, "out": 2})
    open_task(layer, stage, **{"in": 2, "out": 3})
    stage.running = Pass.FREE
    with pytest.raises(TaskError, match=r"a\.b did not run when the frozen neurons did"):
        layer(torch.ones(7, 2))


def test_narrowed_tensors_are_a_prefix_with_stand_ins_for_empty_groups():
    layer, stage = dense()
    open_task(layer, stage, **{"in": 2, "out": 2})
    claim(layer, stage)
    weight = layer.weight_frozen
    narrow = layer.narrowed(
        layer.frozen(), stage.frozen, {"in": range(1), "out": range(1)}, stand_in=True
    )
    assert torch.equal(narrow["weight"], weight[:1][:, [0, 2, 3]])
    nothing = {"in": [], "out": []}
    dead = layer.narrowed(layer.frozen(), stage.frozen, nothing, stand_in=True)
    assert torch.equal(dead["weight"], torch.zeros(1, 3)[:, :1].expand(1, 3))
    assert torch.equal(dead["bias"], torch.zeros(1))
    empty = layer.narrowed(layer.frozen(), stage.frozen, nothing, stand_in=False)
    assert empty["weight"].shape == (0, 2)


def test_a_dead_neuron_of_batch_norm_has_variance_one():
    layer, stage = norm()
    view = {"out": []}
    dead = layer.narrowed(layer.frozen(), stage.frozen, view, stand_in=True)
    assert {name: t.tolist() for name, t in dead.items()} == {
        "weight": [0.0],
        "bias": [0.0],
        "running_mean": [0.0],
        "running_var": [1.0],
    }


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_free_channels_normalise_and_count_as_batch_norm_does(affine, momentum):
    layer, stage = norm(affine=affine, momentum=momentum)
    open_task(layer, stage, out=5)
    like = nn.BatchNorm1d(5, affine=affine, momentum=momentum)
    stage.running = Pass.FREE
    for seed in range(4):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(layer(x), like(x))
    assert torch.equal(layer.running_mean_free, like.running_mean)
    assert torch.equal(layer.running_var_free, like.running_var)
    layer.eval(), like.eval()
    assert torch.equal(layer(x), like(x))


def test_frozen_channels_use_their_statistics_in_training_too():
    layer, stage = norm()
    open_task(layer, stage, out=3)
    stage.running = Pass.FREE
    layer(torch.randn(8, 3))
    claim(layer, stage)
    layer.show(layer.frozen())
    before = {name: tensor.clone() for name, tensor in layer.frozen().items()}
    layer.train()
    for running in (Pass.PLAIN, Pass.FROZEN):
        stage.running = running
        x = torch.randn(8, 3)
        like = nn.BatchNorm1d(3).eval()
        like.load_state_dict({**like.state_dict(), **before})
        assert torch.equal(layer(x), like(x))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.frozen().items())


def test_recalibration_averages_over_batches_whatever_the_momentum():
    layer, stage = norm(momentum=0.3)
    open_task(layer, stage, out=5)
    stage.running = Pass.FREE
    layer(torch.randn(8, 5) + 100)
    layer.averaging = Averaging()
    batches = [torch.randn(8, 5) * scale for scale in (1.0, 2.0, 3.0)]
    for x in batches:
        layer(x)
    torch.testing.assert_close(layer.running_mean_free, torch.stack(batches).mean((0, 1)))
    torch.testing.assert_close(
        layer.running_var_free, torch.stack([x.var(0) for x in batches]).mean(0)
    )


def test_the_count_of_batches_survives_pruning_and_ends_with_the_task():
    layer, stage = norm(momentum=None)
    assert layer.num_batches_free is None
    open_task(layer, stage, out=5)
    stage.running = Pass.FREE
    for _ in range(3):
        layer(torch.randn(8, 5))
    layer.restrict({"out": [0, 1]})
    stage.free = {"out": 2}
    assert int(layer.num_batches_free) == 3
    claim(layer, stage)
    assert layer.num_batches_free is None


def test_stand_ins_pass_through_batch_norm_as_zeros():
    stage = Stage(["a", "b"])
    axis = (Segment("a", 2), Segment("b", 3))
    plain = nn.BatchNorm2d(5)
    layer = in_front_of(PrefixLayer, plain)
    layer.set_up(plain, Site("bn", "BatchNorm2d", axis, axis), stage)
    stage.free = {"a": 0, "b": 3}
    layer.open(None)
    stage.running = Pass.FREE
    x = torch.randn(4, 4, 2, 2)
    y = layer(x)
    assert torch.equal(y[:, :1], torch.zeros(4, 1, 2, 2))
    assert torch.equal(y[:, 1:], nn.BatchNorm2d(3)(x[:, 1:]))
    stage.free = {"a": 0, "b": 0}
    layer.lay_out()
    assert torch.equal(layer(torch.ones(4, 2, 2, 2)), torch.zeros(4, 2, 2, 2))


def test_stand_ins_pass_through_a_depthwise_convolution_in_its_output_shape():
    stage = Stage(["out"])
    plain = nn.Conv2d(5, 5, 3, stride=2, groups=5)
    layer = in_front_of(PrefixLayer, plain)
    layer.set_up(plain, Site("dw", "DepthwiseConv2d", ROWS, ROWS), stage)
    stage.running = Pass.FREE
    layer.lay_out()
    assert torch.equal(layer(torch.ones(2, 1, 7, 7)), torch.zeros(2, 1, 3, 3))


def test_weight_and_bias_are_those_that_train_and_else_empty():
    layer, stage = dense()
    assert layer.weight.shape == (0, 2)
    assert layer.bias.shape == (0,)
    open_task(layer, stage, **{"in": 4, "out": 5})
    assert layer.weight is layer.weight_free
    assert layer.bias is layer.bias_free
    plain, _ = dense(bias=False)
    assert plain.bias is None
    assert plain.running_mean is None
    statistics, _ = norm(affine=False)
    assert statistics.weight is None
    assert statistics.running_mean.shape == statistics.running_var.shape == (0,)


def test_the_weight_of_a_layer_that_reads_frozen_neurons_only_is_what_it_reuses():
    layer, stage = dense()
    layer.site = Site("fc", "Linear", ROWS, COLUMNS[:1])
    stage.frozen = {"in": 4, "out": 2}
    layer.allocate()
    open_task(layer, stage, **{"in": 0, "out": 3})
    assert layer.weight_free is None
    assert layer.weight is layer.weight_reuse


def test_no_name_of_a_layer_leads_to_what_is_frozen():
    for layer, stage in (dense(), norm(), norm(nn.BatchNorm2d, affine=False)):
        for free in (2, 3, 0, 0):
            open_task(layer, stage, **dict.fromkeys(stage.frozen, free))
            held = {tensor.data_ptr() for tensor in layer.frozen().values() if tensor.numel()}
            for name in ("weight", "bias", "running_mean", "running_var"):
                found = getattr(layer, name)
                assert found is None or found.data_ptr() not in held
            claim(layer, stage)
            assert all(
                getattr(layer, slot.name).numel() == 0 and layer.frozen()[slot.name].numel() > 0
                for slot in layer.slots
            )


@pytest.mark.parametrize("momentum", [0.1, None])
def test_resetting_statistics_reaches_those_of_the_open_task_only(momentum):
    layer, stage = norm(momentum=momentum)
    stage.running = Pass.FREE
    open_task(layer, stage, out=2)
    layer(torch.randn(8, 2))
    claim(layer, stage)
    before = {name: tensor.clone() for name, tensor in layer.frozen().items()}
    layer.reset_running_stats()
    open_task(layer, stage, out=3)
    layer(torch.randn(8, 3) + 5)
    layer.reset_running_stats()
    assert torch.equal(layer.running_mean, torch.zeros(3))
    assert torch.equal(layer.running_var, torch.ones(3))
    assert int(layer.num_batches_free) == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.frozen().items())


def test_moving_or_loading_a_layer_forgets_what_is_shown():
    layer, stage = dense()
    for change in (layer.double, lambda: layer.load_state_dict(layer.state_dict())):
        stage.showing = 0
        change()
        assert stage.showing is None


def test_a_layer_can_be_copied_and_pickled():
    layer, stage = dense()
    open_task(layer, stage, **{"in": 4, "out": 5})
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is type(layer)
        assert torch.equal(other.weight_free, layer.weight_free)
        assert other.weight_free is not layer.weight_free
        assert other.stage is not stage
