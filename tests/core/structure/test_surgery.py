import copy
import pickle

import pytest
import torch
from torch import nn

import clnp
from clnp.core.structure.surgery import give_back, in_front_of, rebuilt, with_layers
from clnp.errors import GraphError


class Scaled(nn.Linear):
    """A user's own kind of Linear, with a setting."""

    def __init__(self, num_inputs: int, num_outputs: int, scale: float = 2.0) -> None:
        super().__init__(num_inputs, num_outputs)
        self.scale = scale


class Loud(nn.Module):
    """A class to put in front of a layer, with another forward."""

    def forward(self, x):
        return -x

    def __reduce__(self):
        return rebuilt, type(self).__mro__[1:3], self.__dict__


def test_every_reference_to_a_layer_follows_its_replacement():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
            self.listed = [self.body[0]]
            self.again = self.body[2]

    model, new = Listed(), nn.Linear(2, 3)
    copied = with_layers(model, {"body.0": new})
    assert copied.body[0] is new
    assert copied.listed[0] is new
    assert copied.again is copied.body[2]
    assert copied.body[2] is not model.body[2]
    assert model.body[0] is not new
    assert model.listed[0] is model.body[0]


def test_a_layer_in_front_is_an_instance_of_both_and_keeps_the_settings():
    layer = Scaled(2, 3, scale=5.0)
    made = in_front_of(Loud, layer)
    assert isinstance(made, Loud)
    assert isinstance(made, Scaled)
    assert type(made).__name__ == "LoudScaled"
    assert give_back(made) == []
    assert (made.in_features, made.out_features, made.scale) == (2, 3, 5.0)
    assert torch.equal(made(torch.ones(2)), -torch.ones(2))
    assert list(made.parameters()) == []
    assert len(list(layer.parameters())) == 2


def test_a_layer_in_front_shares_no_hooks_with_the_layer():
    layer = nn.Linear(2, 3)
    made = in_front_of(Loud, layer)
    made.register_forward_pre_hook(lambda *_: None)
    made.register_forward_hook(lambda *_: None)
    assert not layer._forward_pre_hooks
    assert not layer._forward_hooks


def test_a_layer_in_front_runs_the_hooks_of_the_layer():
    layer, seen = nn.Linear(2, 3), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    in_front_of(Loud, layer)(torch.ones(2))
    assert seen == [1]


def test_the_combined_class_is_made_once_and_can_be_copied_and_pickled():
    one, two = in_front_of(Loud, nn.Linear(2, 3)), in_front_of(Loud, nn.Linear(4, 5))
    assert type(one) is type(two)
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert type(other) is type(one)
        assert other.in_features == 2


class Opening(nn.Linear):
    def open(self):
        return 1


@pytest.mark.parametrize(
    ("path", "name"), [("0", "stage"), ("0", "kernel"), ("2", "stage"), ("2", "like")]
)
def test_attributes_that_would_be_hidden_are_refused(path, name):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    layer = model.get_submodule(path)
    layer.mine = {"a": 1}
    net = clnp.ContinualNet(model, torch.randn(2, 6))
    assert net.model.get_submodule(path).mine == {"a": 1}
    setattr(layer, name, 1)
    with pytest.raises(GraphError, match=f"{path}: has an attribute '{name}'"):
        clnp.ContinualNet(model, torch.randn(2, 6))


def test_methods_of_a_class_that_would_be_hidden_are_refused():
    model = nn.Sequential(Opening(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(GraphError, match="0: has an attribute 'open'"):
        clnp.ContinualNet(model, torch.randn(2, 6))
