"""Where the weights of a new layer begin: as its class does, by name, or by one's own function."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import clnp
from clnp.core.layers.initialisation import glorot, initialisation
from clnp.errors import ArgumentError
from clnp.methods.dense import DenseNet
from clnp.methods.joint import Joint, JointMethod
from clnp.methods.single import Finetune, Single
from support.forgetting import labelled, method_of
from support.networks import NETWORKS, example, learn, mlp

X = torch.rand(4, 6)


def halves(layer):
    """An initialisation that cannot be mistaken for another; norms are left as they are."""
    if layer.weight.ndim > 1:
        nn.init.constant_(layer.weight, 0.5)


def test_glorot_spreads_weights_by_inputs_and_outputs_and_leaves_biases_at_zero():
    torch.manual_seed(0)
    layer = nn.Linear(300, 100)
    glorot(layer)
    bound = (6 / 400) ** 0.5
    assert 0.98 * bound < layer.weight.abs().max() <= bound
    assert layer.weight.var().item() == pytest.approx(2 / 400, rel=0.05)
    assert not layer.bias.any()
    convolution = nn.Conv2d(4, 8, 3, bias=False)
    glorot(convolution)
    assert 0.9 * (6 / 108) ** 0.5 < convolution.weight.abs().max() <= (6 / 108) ** 0.5


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ArgumentError, match="Did you mean 'glorot'"):
        clnp.Training(initialisation="gloro")
    assert initialisation("pytorch") is None


@pytest.mark.parametrize("head", ["multi", "single"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_function_initialises_all_that_every_task_trains(name, head):
    x = example(name)
    net = clnp.ContinualNet(NETWORKS[name][0](), x, head=head)
    learn(net, "a", x)
    net.begin_task("b", initial=halves)
    weights = [p for p in net.parameters() if p.ndim > 1 and p.numel()]
    assert weights
    for weight in weights:
        assert torch.equal(weight, torch.full_like(weight, 0.5))


def test_a_function_sees_layers_as_wide_as_the_task_does():
    net = clnp.ContinualNet(mlp(), X)
    learn(net, "a", X)
    free, seen = list(net.ledger.free().values()), []
    net.begin_task("b", 3, initial=lambda layer: seen.append(tuple(layer.weight.shape)))
    sizes = list(net.ledger.sizes.values())
    assert seen == [(free[0], 6), (free[1], sizes[0]), (3, sizes[1])]


def test_what_a_function_leaves_alone_is_as_its_class_made_it():
    torch.manual_seed(3)
    net = clnp.ContinualNet(mlp(), X)
    net.begin_task("a", initial=lambda layer: None)
    left = [p.detach().clone() for p in net.parameters()]
    torch.manual_seed(3)
    net = clnp.ContinualNet(mlp(), X)
    net.begin_task("a")
    assert all(map(torch.equal, left, net.parameters()))


def test_initial_is_a_model_a_function_or_a_name():
    net = clnp.ContinualNet(mlp(), X)
    with pytest.raises(ArgumentError, match="It must be a model, a function of a layer, or the na"):
        net.begin_task("a", initial=3)
    with pytest.raises(ArgumentError, match="Did you mean 'glorot'"):
        net.begin_task("a", initial="gloro")
    net.begin_task("a", initial="glorot")
    assert not any(p.any() for p in net.parameters() if p.ndim == 1)


@pytest.mark.parametrize("chosen", [3, None, [], nn.Linear(2, 2)])
def test_what_is_no_initialisation_is_refused(chosen):
    with pytest.raises(ArgumentError, match="It must be a name, or a function of a layer"):
        clnp.Training(initialisation=chosen)


def wrong_shape(layer):
    layer.weight = nn.Parameter(torch.zeros(len(layer.weight) + 1, layer.weight.shape[1]))


def no_bias(layer):
    layer.bias = None


def other_dtype(layer):
    layer.weight.data = layer.weight.data.double()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (wrong_shape, r"made weight of a Linear \[8, 6\], .*; it was \[7, 6\]"),
        (no_bias, "made bias of a Linear nothing; it was"),
        (other_dtype, "float64 on cpu; it was .*only its values may change"),
    ],
)
def test_only_the_values_of_a_layer_may_change(function, message):
    net = clnp.ContinualNet(mlp(), X)
    with pytest.raises(ArgumentError, match=message):
        net.begin_task("a", initial=function)
    assert net.open_task is None


class Block(nn.Module):
    """A container that knows how to reset its layers."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 5), nn.Linear(5, 3)

    def reset_parameters(self):
        self.fc1.reset_parameters()

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


def test_a_container_is_not_initialised_as_a_layer():
    net = DenseNet(nn.Sequential(Block()), "0.fc2", shared_head=False, initialise=halves)
    net.reset()
    assert net.model[0].fc1.weight.eq(0.5).all()


def test_a_function_that_fails_leaves_the_network_as_it_was():
    def fails(layer):
        raise ValueError("no")

    net = clnp.ContinualNet(mlp(), X)
    learn(net, "a", X)
    before = net(X, task="a")
    with pytest.raises(ValueError, match="no"):
        net.begin_task("b", initial=fails)
    assert net.open_task is None
    assert torch.equal(net(X, task="a"), before)
    net.begin_task("b")


def fours(name):
    return clnp.Task(name, (X.repeat(10, 1), torch.arange(40) % 4), num_outputs=4)


@pytest.mark.parametrize("candidates_at_once", [1, 2])
def test_the_learner_initialises_as_its_training_says(candidates_at_once):
    seen = []

    def seeing(layer):
        seen.append(type(layer))

    training = clnp.Training(epochs=1, initialisation=seeing)
    config = clnp.LearnerConfig(
        training=training, lrs=(1e-3, 1e-2), margin=100, candidates_at_once=candidates_at_once
    )
    learner = clnp.Learner(clnp.ContinualNet(mlp(), X), config)
    learner.learn(fours("a"))
    num_first = len(seen)
    assert num_first % 3 == 0
    learner.learn(fours("b"))
    assert len(seen) == 2 * num_first


@pytest.mark.parametrize("shared", [True, False])
def test_a_dense_network_initialises_trunk_and_heads(shared):
    net = DenseNet(mlp(), "fc3", shared_head=shared, initialise=halves)
    net.reset()
    net.begin_task("a", 4)
    assert all(p.eq(0.5).all() for p in net.parameters() if p.ndim > 1)
    net.heads.layers[0].weight.data.zero_()
    net.heads.reset(0)
    assert net.heads.layers[0].weight.eq(0.5).all()


STILL = clnp.Training(epochs=1, lr=1e-30, initialisation=halves)


@pytest.mark.parametrize("baseline", [Finetune(STILL), Single(STILL)], ids=["finetune", "single"])
@pytest.mark.parametrize("head", ["multi", "single"])
def test_a_baseline_initialises_as_its_training_says(baseline, head):
    method = method_of(baseline, "mlp", head=head, device="cpu")
    for name in ("a", "b"):
        method.learn(labelled(name))
    assert all(p.eq(0.5).all() for p in method.net.parameters() if p.ndim > 1)


def test_joint_training_initialises_as_its_training_says():
    tasks = (labelled("a"), labelled("b", seed=1))
    setting = replace(method_of(Finetune(), "mlp", head="multi", device="cpu").setting, tasks=tasks)
    method = JointMethod(Joint(training=STILL), setting, None)
    for task in tasks:
        method.learn(task)
    assert all(p.eq(0.5).all() for p in method.net.parameters() if p.ndim > 1)
