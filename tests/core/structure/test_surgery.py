import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

import clnp
from clnp.core.structure.surgery import (
    SUPPORTED,
    give_back,
    in_front_of,
    is_depthwise,
    is_mixing,
    plain_class,
    plain_layer,
    rebuilt,
    with_layers,
)
from clnp.errors import GraphError


class Scaled(nn.Linear):
    """A user's own kind of Linear, with a setting."""

    def __init__(self, num_inputs: int, num_outputs: int, scale: float = 2.0) -> None:
        super().__init__(num_inputs, num_outputs)
        self.scale = scale


class Loud(nn.Module):
    """What `in_front_of` puts before a layer, here: a forward of its own."""

    def forward(self, x):
        return -x

    def __reduce__(self):
        return rebuilt, type(self).__mro__[1:3], self.__dict__


def settings(layer: nn.Module) -> str:
    return f"{type(layer).__name__}({layer.extra_repr()})"


def test_the_plain_class_is_that_of_pytorch():
    assert plain_class(Scaled(2, 3)) is nn.Linear
    assert plain_class(nn.Conv1d(1, 1, 1)) is nn.Conv1d
    assert plain_class(nn.PReLU(3)) is nn.PReLU
    with pytest.raises(TypeError, match="LayerNorm cannot be sliced by neuron"):
        plain_class(nn.LayerNorm(3))
    assert len(SUPPORTED) == 8


@pytest.mark.parametrize(
    ("layer", "mixing", "depthwise"),
    [
        (nn.Linear(3, 3), True, False),
        (nn.Conv2d(3, 3, 1), True, False),
        (nn.Conv2d(1, 1, 1), True, False),
        (nn.Conv2d(4, 4, 1, groups=4), False, True),
        (nn.Conv2d(4, 4, 1, groups=2), True, False),
        (nn.Conv2d(4, 8, 1, groups=4), True, False),
        (nn.BatchNorm2d(3), False, False),
        (nn.PReLU(3), False, False),
    ],
)
def test_mixing_and_depthwise_layers_are_told_apart(layer, mixing, depthwise):
    assert is_mixing(layer) is mixing
    assert is_depthwise(layer) is depthwise


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(4, 6), nn.Linear(3, 5)),
        (nn.Linear(4, 6, bias=False), nn.Linear(3, 5, bias=False)),
        (Scaled(4, 6), nn.Linear(3, 5)),
        (nn.Conv1d(4, 6, 3, dilation=2), nn.Conv1d(3, 5, 3, dilation=2)),
        (
            nn.Conv2d(4, 6, (3, 1), stride=2, padding=1, bias=False, padding_mode="circular"),
            nn.Conv2d(3, 5, (3, 1), stride=2, padding=1, bias=False, padding_mode="circular"),
        ),
        (nn.Conv2d(4, 6, 3, padding="same"), nn.Conv2d(3, 5, 3, padding="same")),
        (nn.Conv3d(4, 6, 2), nn.Conv3d(3, 5, 2)),
        (nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(5, 5, 3, groups=5)),
        (nn.BatchNorm1d(6, eps=0.1, momentum=None), nn.BatchNorm1d(5, eps=0.1, momentum=None)),
        (nn.BatchNorm2d(6, affine=False), nn.BatchNorm2d(5, affine=False)),
        (nn.BatchNorm3d(6), nn.BatchNorm3d(5)),
        (nn.PReLU(6), nn.PReLU(5)),
    ],
)
def test_a_plain_layer_has_the_settings_and_other_widths(layer, expected):
    made = plain_layer(layer, num_outputs=5, num_inputs=3)
    assert type(made) is type(expected)
    assert settings(made) == settings(expected)
    assert {n: t.shape for n, t in made.state_dict().items()} == {
        n: t.shape for n, t in expected.state_dict().items()
    }


@pytest.mark.parametrize("layer", [nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False)])
def test_a_plain_layer_has_mode_and_dtype_of_the_layer(layer):
    layer = copy.deepcopy(layer).double().eval()
    made = plain_layer(layer, num_outputs=5, num_inputs=3)
    assert not made.training
    floats = [t for t in made.state_dict().values() if t.is_floating_point()]
    assert {t.dtype for t in floats} == {torch.float64}


def test_a_plain_layer_draws_no_random_numbers():
    layer = nn.Linear(4, 6)
    before = torch.get_rng_state()
    plain_layer(layer, num_outputs=5, num_inputs=3)
    assert torch.equal(torch.get_rng_state(), before)


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


@pytest.mark.parametrize("name", ["stage", "kernel", "free", "num_outputs", "like", "shared"])
@pytest.mark.parametrize("place", [0, 2])
def test_attributes_that_would_be_hidden_are_refused(name, place):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model[place].mine = {"a": 1}
    assert clnp.ContinualNet(model, torch.randn(2, 6)).model[place].mine == {"a": 1}
    if (name, place) in [("num_outputs", 0), ("like", 0), ("shared", 0), ("free", 2)]:
        return  # Only the other has such a thing.
    setattr(model[place], name, 1)
    with pytest.raises(GraphError, match=f"{place}: has an attribute '{name}'"):
        clnp.ContinualNet(model, torch.randn(2, 6))


def test_methods_of_a_class_that_would_be_hidden_are_refused():
    model = nn.Sequential(Opening(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(GraphError, match="0: has an attribute 'open'"):
        clnp.ContinualNet(model, torch.randn(2, 6))


@pytest.mark.skipif(
    "bias" not in inspect.signature(nn.BatchNorm2d).parameters, reason="needs a newer PyTorch"
)
@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_without_a_bias_stays_without(affine):
    made = plain_layer(nn.BatchNorm2d(6, affine=affine, bias=False), num_outputs=3, num_inputs=3)
    assert made.bias is None
    assert (made.weight is not None) == affine
