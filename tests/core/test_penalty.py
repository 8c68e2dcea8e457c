import pytest
import torch
from torch import nn

import clnp
from clnp.errors import ArgumentError
from support.networks import NETWORKS, example, learn, make

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


def test_the_penalty_may_name_a_module():
    model = nn.Sequential(
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5)), nn.ReLU(), nn.Linear(5, 4)
    )
    net = clnp.ContinualNet(model, X)
    net.begin_task("a")
    inner, outer = net.model[0][0].weight_free, net.model[0][2].weight_free
    torch.testing.assert_close(
        net.l1_penalty({"0": 1.0, "0.2": 4.0}), inner.abs().sum() + 4 * outer.abs().sum()
    )


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


def test_the_gradient_of_the_penalty_is_the_sign_of_each_weight():
    net = make()
    learn(net, "a", X)
    net.begin_task("b")
    net.l1_penalty({"fc2": 0.25}).backward()
    for weight in (net.model.fc2.weight_free, net.model.fc2.weight_reuse):
        assert torch.equal(weight.grad, 0.25 * weight.sign())
    assert net.model.fc1.weight_free.grad is None
    assert net.model.fc2.bias_free.grad is None


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


def test_a_penalty_that_makes_no_sense_is_refused():
    net = make()
    net.begin_task("a")
    with pytest.raises(ArgumentError, match="unknown layer 'fc9'; did you mean"):
        net.l1_penalty({"fc9": 1.0})
    with pytest.raises(ArgumentError, match="alpha is -1; it must be 0 or more"):
        net.l1_penalty(-1)
