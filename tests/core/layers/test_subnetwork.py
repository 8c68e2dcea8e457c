import pytest
import torch
from torch import nn

import clnp
from clnp.errors import TaskError
from support.assembled import Assembled
from support.networks import (
    HEADS,
    NETWORKS,
    copied_state,
    example,
    first,
    learn,
    make,
    num_parameters,
    same_state,
    train,
)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_subnetwork_is_plain_narrow_and_gives_the_same_outputs(name, head):
    network, _ = NETWORKS[name]
    net, x = make(name, head=head), example(name)
    before = {task: learn(net, task, x) for task in "ab"}
    net.begin_task("c")
    for task, outputs in before.items():
        plain = net.subnetwork(task)
        assert torch.equal(plain(x), outputs)
        assert not any("clnp" in type(m).__module__ for m in plain.modules() if m is not plain)
        assert type(plain) is network or name == "mlp"
        assert num_parameters(plain) < num_parameters(network())
        assert plain.state_dict().keys() == network().state_dict().keys()
        assert not any(module.training for module in plain.modules())
        assert not any(parameter.requires_grad for parameter in plain.parameters())


class PerStep(nn.Module):
    """A Linear that reads a transposed tensor, which is computed otherwise if it asks for grads."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(11, 8, 3, padding=1), nn.Linear(8, 11)

    def forward(self, x):
        return self.fc(self.conv(x).relu().transpose(1, 2))


def test_a_subnetwork_computes_as_the_network_does():
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(4, 11, 7)
        net = clnp.ContinualNet(PerStep(), x)
        net.begin_task("a")
        net.end_task(first({"conv": 4}))
        assert torch.equal(net.subnetwork("a")(x), net(x, task="a"))


def test_a_subnetwork_has_the_widths_of_the_ledger():
    net, x = make("conv"), example("conv")
    net.begin_task("a")
    net.end_task(first({"conv1": 2, "conv2": 3, "fc1": 4}))
    plain = net.subnetwork("a")
    assert plain.conv1.weight.shape == (2, 3, 3, 3)
    assert plain.conv2.weight.shape == (3, 2, 3, 3)
    assert plain.bn2.num_features == 3
    assert plain.fc1.weight.shape == (4, 27)
    assert plain.fc2.weight.shape == (4, 4)
    assert (plain.conv2.in_channels, plain.conv2.out_channels) == (2, 3)
    assert torch.equal(plain(x), net(x, task="a"))


def test_the_last_layer_of_a_single_heads_subnetwork_has_only_the_tasks_own_neurons():
    net, x = make(head="single"), example("mlp")
    net.begin_task("a")
    net.end_task(first({"fc1": 3, "fc2": 2}))
    net.begin_task("b")
    net.end_task(first({"fc1": 1, "fc2": 3}))
    plain = net.subnetwork("b")
    assert plain.fc2.weight.shape == (3, 4)
    assert plain.fc3.weight.shape == (4, 3)
    assert torch.equal(plain(x), net(x, task="b"))


@pytest.mark.parametrize("head", HEADS)
def test_a_task_without_neurons_has_a_subnetwork_with_the_same_outputs(head):
    for name in NETWORKS:
        net, x = make(name, head=head), example(name)
        net.begin_task("a")
        net.end_task(dict.fromkeys(net.graph.groups, ()))
        plain = net.subnetwork("a")
        assert torch.equal(plain(x), net(x, task="a"))


def test_a_subnetwork_can_be_trained_and_shares_nothing_with_the_network():
    net, x = make("conv"), example("conv")
    before = learn(net, "a", x)
    state = copied_state(net)
    plain = net.subnetwork("a")
    start = copied_state(plain)
    train(plain.requires_grad_(), x)
    assert not torch.equal(plain.fc1.weight, start["fc1.weight"])
    assert not torch.equal(plain.bn1.running_mean, start["bn1.running_mean"])
    assert same_state(net.state_dict(), state)
    assert torch.equal(net(x, task="a"), before)
    net.verify()


def test_a_subnetwork_has_the_classes_of_the_layers_and_what_users_gave_them():
    class Special(nn.Linear):
        pass

    def run(m, x):
        for layer in (m.first, m.second):
            x = torch.tanh(layer(x)) if isinstance(layer, Special) else layer(x) * layer.gain
        return m.fc(x)

    torch.manual_seed(0)
    layers = {"first": Special(6, 5), "second": nn.Linear(5, 5), "fc": nn.Linear(5, 4)}
    layers["second"].gain = 0.5
    x = example("mlp")
    net = clnp.ContinualNet(Assembled(run, **layers), x)
    assert isinstance(net.model.first, Special)
    before = learn(net, "a", x)
    plain = net.subnetwork("a")
    assert type(plain.first) is Special
    assert type(plain.second) is nn.Linear
    assert vars(plain.second).keys() == vars(layers["second"]).keys()
    assert torch.equal(plain(x), before)


def test_a_subnetwork_keeps_dtype_and_constants():
    net, x = make("shifted").double(), example("shifted").double()
    learn(net, "a", x)
    plain = net.subnetwork("a")
    assert {p.dtype for p in plain.parameters()} == {torch.float64}
    assert torch.equal(plain.mean, net.model.mean)
    assert plain.mean is not net.model.mean
    assert torch.equal(plain(x), net(x, task="a"))


def test_an_unknown_or_open_task_has_no_subnetwork():
    net, x = make(), example("mlp")
    learn(net, "first", x)
    net.begin_task("b")
    with pytest.raises(TaskError, match=r"unknown task 'firsd'; did you mean 'first'\?"):
        net.subnetwork("firsd")
    with pytest.raises(TaskError, match="unknown task 'b'"):
        net.subnetwork("b")
