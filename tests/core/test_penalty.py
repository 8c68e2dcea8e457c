import math

import numpy as np
import pytest
import torch
from torch import nn

import clnp
from clnp.core.penalty import alpha_by_layer
from clnp.core.structure.graph import Graph
from clnp.errors import ArgumentError
from support.networks import NETWORKS, ConvNet, example, learn, make

X = example("mlp")


def test_the_penalty_is_the_sum_of_all_weights_that_train():
    net = make("conv")
    learn(net, "a", example("conv"))
    net.begin_task("b")
    weights = [
        parameter
        for name, parameter in net.named_parameters()
        if "weight" in name and "bn" not in name
    ]
    assert len(weights) == 7
    expected = 0.5 * sum(weight.abs().sum() for weight in weights)
    torch.testing.assert_close(net.l1_penalty(0.5), expected)


def test_the_penalty_may_differ_by_layer():
    net = make()
    learn(net, "a", X)
    net.begin_task("b")
    fc1, fc2 = net.model.fc1, net.model.fc2
    expected = 2.0 * fc1.weight_free.abs().sum() + 3.0 * (
        fc2.weight_free.abs().sum() + fc2.weight_reuse.abs().sum()
    )
    torch.testing.assert_close(net.l1_penalty({"fc1": 2, "fc2": 3.0}), expected)


def test_the_penalty_counts_depthwise_convolutions_and_not_prelu():
    net = make("depthwise")
    net.begin_task("a")
    paths = ("expand", "depthwise", "project", "fc")
    weights = [net.model.get_submodule(path).weight_free for path in paths]
    torch.testing.assert_close(net.l1_penalty(1.0), sum(weight.abs().sum() for weight in weights))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_the_penalty_can_be_added_after_the_backward_pass(name):
    net, x = make(name).double(), example(name).double()
    learn(net, "a", x)
    net.begin_task("b")
    last = [path for path in net.graph.sites if net.graph.sites[path].mixes][-1]
    for alpha in (0.0, 0.5, {last: 0.25, net.graph.classifier: 0.5}):
        torch.manual_seed(1)  # One of the networks has dropout.
        (net(x).square().mean() + net.l1_penalty(alpha)).backward()
        expected = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
        net.zero_grad()
        torch.manual_seed(1)
        net(x).square().mean().backward()
        net.add_l1_gradient(alpha)
        for path, parameter in net.named_parameters():
            if path in expected:
                torch.testing.assert_close(parameter.grad, expected[path])
        net.zero_grad()


def test_the_gradient_of_the_penalty_is_there_without_a_backward_pass():
    net = make()
    net.begin_task("a")
    net.add_l1_gradient({"fc2": 0.25})
    weight = net.model.fc2.weight_free
    assert torch.equal(weight.grad, 0.25 * weight.detach().sign())
    assert net.model.fc1.weight_free.grad is None


@pytest.mark.parametrize("alpha", [0, 0.0, {}, {"fc1": 0.0}])
def test_a_penalty_of_nothing_is_zero(alpha):
    net = make()
    net.begin_task("a")
    penalty = net.l1_penalty(alpha)
    assert penalty.shape == ()
    assert penalty.item() == 0
    (net(X).sum() + penalty).backward()


def test_weights_that_ask_for_no_gradient_get_none():
    net = make()
    net.begin_task("a")
    net.model.fc1.requires_grad_(False)
    net.add_l1_gradient(0.5)
    assert net.model.fc1.weight_free.grad is None
    assert net.model.fc2.weight_free.grad is not None
    net.requires_grad_(False)
    net.zero_grad()
    net.add_l1_gradient(0.5)
    assert net.model.fc2.weight_free.grad is None


@pytest.fixture(scope="module")
def graph() -> Graph:
    """The graph of a network with BatchNorm: groups conv1, conv2 and fc1, classifier fc2."""
    return clnp.ContinualNet(ConvNet(), example("conv")).graph


class Nested(nn.Module):
    """Layers at the paths a.0, a.2, ab and fc."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        self.ab = nn.Linear(4, 3)
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.ab(torch.relu(self.a(x)))))


@pytest.fixture(scope="module")
def nested() -> Graph:
    return clnp.ContinualNet(Nested(), torch.randn(4, 6)).graph


def test_one_alpha_is_for_all_layers(graph):
    assert alpha_by_layer(graph, 2) == dict.fromkeys(graph.sites, 2.0)
    assert alpha_by_layer(graph, np.float64(0.5))["fc1"] == 0.5


def test_alpha_may_name_layers(graph):
    assert alpha_by_layer(graph, {"fc1": 1, "conv2": 0.5}) == {"fc1": 1.0, "conv2": 0.5}
    assert alpha_by_layer(graph, {}) == {}


@pytest.mark.parametrize("order", [1, -1])
def test_the_longest_path_counts(nested, order):
    alpha = dict([("a", 3.0), ("a.2", 5.0)][::order])
    assert alpha_by_layer(nested, alpha) == {"a.0": 3.0, "a.2": 5.0}


def test_alpha_of_an_unknown_layer_is_refused_with_the_nearest_one(graph):
    with pytest.raises(ArgumentError, match=r"unknown layer 'fc9'. Did you mean 'fc[12]'\?"):
        alpha_by_layer(graph, {"fc9": 1.0})
    with pytest.raises(ArgumentError, match="unknown layer ''"):
        alpha_by_layer(graph, {"": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None, "1"])
def test_alpha_that_is_no_number_is_refused(graph, value):
    with pytest.raises(ArgumentError, match=f"alpha is {value!r}. It must be a finite"):
        alpha_by_layer(graph, value)
    with pytest.raises(ArgumentError, match=f"alpha of fc1 is {value!r}. It must be a finite"):
        alpha_by_layer(graph, {"fc1": value})


def test_negative_alpha_is_refused(graph):
    with pytest.raises(ArgumentError, match=r"alpha is -0\.1. It must be a finite"):
        alpha_by_layer(graph, -0.1)
    with pytest.raises(ArgumentError, match=r"alpha of fc1 is -1. It must be a finite"):
        alpha_by_layer(graph, {"fc1": -1})
