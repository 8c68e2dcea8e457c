import pytest
import torch
from torch import nn

from clnp.core.layers.head import Head
from clnp.core.layers.stage import Pass, Stage
from clnp.core.structure.axis import Segment
from clnp.core.structure.graph import Site
from clnp.core.structure.surgery import in_front_of


def make_head(*, shared: bool, bias: bool = True) -> tuple[Head, Stage]:
    """A Linear classifier with four outputs on six neurons of the group "last"."""
    stage = Stage(["last"])
    layer = nn.Linear(6, 4, bias=bias)
    head = in_front_of(Head, layer)
    head.set_up(layer, Site("fc", "Linear", (), (Segment("last", 6),)), stage, shared=shared)
    return head, stage


def begin(head: Head, stage: Stage, *, free: int, num_outputs: int = 4) -> None:
    stage.free = {"last": free}
    head.num_outputs = num_outputs
    head.open(None)


def end(head: Head, stage: Stage, *, index: int) -> None:
    """Freeze all neurons that the open task has."""
    free = stage.free["last"]
    tensors = head.extended()
    stage.frozen = {"last": stage.frozen["last"] + free}
    stage.free = {"last": 0}
    head.close(tensors, index=index)


def trained(head):
    return [name for name, parameter in head.named_parameters() if parameter.requires_grad]


def test_a_new_head_trains_nothing_and_keeps_its_class():
    head, _ = make_head(shared=False)
    assert isinstance(head, nn.Linear)
    assert [name for name, _ in head.named_parameters()] == ["like"]
    assert not head.like.requires_grad
    assert head.like.numel() == 0
    assert head.num_outputs == 4
    assert head.weight.shape == (0, 1)
    assert head.bias.shape == (0,)


def test_a_first_task_is_initialised_as_the_class_does():
    head, stage = make_head(shared=False)
    torch.manual_seed(3)
    begin(head, stage, free=6)
    torch.manual_seed(3)
    like = nn.Linear(6, 4)
    assert torch.equal(head.weight, like.weight)
    assert torch.equal(head.bias, like.bias)


def test_a_first_task_can_start_from_given_weights():
    head, stage = make_head(shared=False)
    stage.free = {"last": 6}
    initial = nn.Linear(6, 4)
    head.open(initial)
    assert torch.equal(head.weight_free, initial.weight)
    assert torch.equal(head.bias_free, initial.bias)


def test_every_task_of_a_multi_head_has_outputs_and_bias_of_its_own():
    head, stage = make_head(shared=False)
    begin(head, stage, free=2)
    end(head, stage, index=0)
    first = {name: tensor.clone() for name, tensor in head.frozen(0).items()}
    begin(head, stage, free=3, num_outputs=9)
    assert head.weight_reuse.shape == (9, 2)
    assert head.weight_free.shape == (9, 3)
    assert head.bias_free.shape == (9,)
    whole = torch.cat([head.weight_reuse, head.weight_free], 1).detach()
    end(head, stage, index=1)
    assert torch.equal(head.frozen(1)["weight"], whole)
    assert head.outputs(2) == (4, 9)
    assert all(torch.equal(tensor, first[name]) for name, tensor in head.frozen(0).items())
    assert head.num_outputs == head.most_outputs == 4


def test_a_task_of_a_single_head_reads_only_its_own_neurons():
    head, stage = make_head(shared=True)
    begin(head, stage, free=2)
    end(head, stage, index=0)
    begin(head, stage, free=3)
    assert head.weight_reuse is None
    assert head.weight_free.shape == (4, 3)
    end(head, stage, index=1)
    assert head.frozen(0)["weight"].shape == (4, 2)
    assert head.frozen(1)["weight"].shape == (4, 3)


def test_the_bias_of_a_single_head_is_learned_by_the_first_task_that_uses_an_output():
    head, stage = make_head(shared=True)
    begin(head, stage, free=2, num_outputs=2)
    learned = head.bias_free.detach().clone()
    end(head, stage, index=0)
    begin(head, stage, free=1, num_outputs=2)
    assert head.bias_free is None
    assert head.bias.numel() == 0
    assert torch.equal(head.extended()["bias"], learned)
    end(head, stage, index=1)
    begin(head, stage, free=1, num_outputs=4)
    assert head.bias_free.shape == (2,)
    whole = torch.cat([learned, head.bias_free.detach()])
    assert head.bias is head.bias_free
    assert torch.equal(head.extended()["bias"], whole)
    end(head, stage, index=2)
    assert torch.equal(head.frozen(2)["bias"], whole)
    assert torch.equal(head.frozen(0)["bias"], learned)
    begin(head, stage, free=1, num_outputs=3)
    assert head.bias.numel() == 0
    assert torch.equal(head.extended()["bias"], whole[:3])


@pytest.mark.parametrize("shared", [True, False])
def test_a_head_without_bias_has_none(shared):
    head, stage = make_head(shared=shared, bias=False)
    begin(head, stage, free=2)
    assert head.bias is None
    assert trained(head) == ["weight_free"]
    end(head, stage, index=0)
    assert list(head.frozen(0)) == ["weight"]


@pytest.mark.parametrize("shared", [True, False])
def test_the_passes_give_the_outputs_of_the_open_task(shared):
    head, stage = make_head(shared=shared)
    begin(head, stage, free=2)
    end(head, stage, index=0)
    begin(head, stage, free=3)
    old, new = torch.randn(5, 2), torch.randn(5, 3)
    stage.running, stage.with_grad = Pass.FROZEN, True
    assert not head(old).requires_grad
    stage.running = Pass.FREE
    found = head(new)
    tensors = head.extended()
    seen = new if shared else torch.cat([old, new], 1)
    torch.testing.assert_close(found, seen @ tensors["weight"].T + tensors["bias"])
    assert found.requires_grad


@pytest.mark.parametrize("shared", [True, False])
def test_a_head_without_any_neuron_gives_its_bias(shared):
    head, stage = make_head(shared=shared)
    begin(head, stage, free=2)
    head.restrict({"last": []})
    stage.free = {"last": 0}
    head.lay_out()
    stage.running = Pass.FREE
    assert torch.equal(head(torch.ones(5, 1)), head.bias.expand(5, 4))


def test_pruning_keeps_the_columns_of_the_survivors():
    head, stage = make_head(shared=False)
    begin(head, stage, free=1)
    end(head, stage, index=0)
    begin(head, stage, free=4)
    reuse, free = head.weight_reuse.detach().clone(), head.weight_free.detach().clone()
    assert torch.equal(head.extended()["weight"], torch.cat([reuse, free], 1))
    head.restrict({"last": [1, 3]})
    assert torch.equal(head.weight_free, free[:, [1, 3]])
    assert torch.equal(head.weight_reuse, reuse)


def test_a_single_head_has_zero_columns_for_neurons_in_view_that_it_does_not_read():
    head, _ = make_head(shared=True)
    tensors = {"weight": torch.ones(4, 3)}
    found = head.narrowed(tensors, before={"last": 2}, after={"last": 5}, view={"last": range(5)})
    assert torch.equal(found["weight"], torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0]]).expand(4, 5))
    own = head.narrowed(tensors, before={"last": 2}, after={"last": 5}, view={"last": range(2, 5)})
    assert torch.equal(own["weight"], tensors["weight"])


def test_a_convolution_can_be_the_classifier():
    stage = Stage(["last"])
    layer = nn.Conv2d(6, 4, 3, padding=1)
    head = in_front_of(Head, layer)
    head.set_up(layer, Site("c", "Conv2d", (), (Segment("last", 6),)), stage, shared=True)
    stage.free = {"last": 6}
    head.open(layer)
    stage.running = Pass.FREE
    x = torch.randn(2, 6, 5, 5)
    assert torch.equal(head(x), layer(x))
