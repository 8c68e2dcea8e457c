import warnings

import pytest
import torch
from torch import nn

import clnp
from clnp.core import OpenState
from clnp.core.record import Description, kind_of
from clnp.errors import TaskError
from clnp.runs.fingerprint import describe_model
from support.networks import (
    HEADS,
    NETWORKS,
    ConvNet,
    Residual,
    example,
    learn,
    make,
    train,
)


def test_modules_are_described_by_class_and_settings():
    found = Description.of(ConvNet()).modules
    assert list(found) == ["(model)", "conv1", "bn1", "conv2", "bn2", "fc1", "dropout", "fc2"]
    assert found["(model)"] == "ConvNet()"
    assert found["dropout"] == "Dropout"
    assert found["fc2"] == "Linear(in_features=7, out_features=4, bias=True)"
    assert found["conv2"].startswith("Conv2d(6, 5, kernel_size=(3, 3)")


def test_a_model_like_the_described_one_has_no_difference():
    model = ConvNet().double()
    model.dropout.p = 0.1
    assert Description.of(ConvNet()).difference(model) is None


@pytest.mark.parametrize(
    ("path", "layer", "expected"),
    [
        ("fc1", nn.Linear(45, 8), "fc1 is Linear(in_features=45, out_features=8, bias=True), exp"),
        ("fc1", nn.Identity(), "fc1 is Identity(), expected Linear(in_features=45, out_features=7"),
        ("bn1", nn.BatchNorm2d(6, eps=0.1), "bn1 is BatchNorm2d(6, eps=0.1"),
        ("dropout", nn.Tanh(), "dropout is Tanh(), expected Dropout"),
        ("more", nn.ReLU(), "more is ReLU(), expected nothing"),
    ],
)
def test_the_first_difference_is_named(path, layer, expected):
    model = ConvNet()
    setattr(model, path, layer)
    assert Description.of(ConvNet()).difference(model).startswith(expected)


def test_a_missing_module_is_a_difference():
    found = Description.of(nn.Sequential(nn.Linear(2, 3))).difference(nn.Sequential())
    assert found.startswith("0 is nothing, expected Linear(in_features=2")
    assert Description.of(ConvNet()).difference(Residual()).startswith("(model) is Residual()")


class Told(nn.Module):
    """A model that is told what to do by plain attributes."""

    def __init__(self, pool=2, sizes=(3, 4), **others):
        super().__init__()
        self.pool, self.sizes = pool, sizes
        self.table = {"a": 1}
        vars(self).update(others)
        self.inner = nn.Sequential(nn.Linear(8 // pool, 6), nn.ReLU())
        self.fc = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(self.inner(x.unflatten(1, (-1, self.pool)).sum(2)))


def test_plain_attributes_of_a_users_own_modules_are_described():
    assert Description.of(Told(name="mine")).attributes == {
        "pool": "2",
        "sizes": "(3, 4)",
        "name": "'mine'",
    }
    wrapped = nn.Sequential(Told(), nn.Linear(2, 2))
    assert Description.of(wrapped).attributes == {"0.pool": "2", "0.sizes": "(3, 4)"}


def test_a_model_with_other_attributes_is_loaded_with_a_warning(tmp_path):
    net = clnp.ContinualNet(Told(scale=1.0), torch.zeros(2, 8))
    net.begin_task("a")
    net.end_task({"inner.0": [0, 1]})
    net.model.scale = 2.0  # What it is later says nothing of the model that it was made from.
    clnp.save(net, tmp_path / "net")
    with warnings.catch_warnings(action="error"):
        clnp.load(tmp_path / "net", Told(scale=1.0))
        clnp.load(tmp_path / "net", Told(scale=1.0, more="than it had"))
    for others, message in (
        ({"scale": 3.0}, "made from a model whose scale is 1.0, and here it is 3.0. If forward"),
        ({"sizes": (1,), "scale": 1.0}, r"whose sizes is \(3, 4\), and here it is \(1,\)"),
        ({}, "whose scale is 1.0, and here it is nothing"),
    ):
        with pytest.warns(UserWarning, match=message) as caught:
            clnp.load(tmp_path / "net", Told(**others))
        assert [each.filename for each in caught] == [__file__]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.BatchNorm2d(6), "6, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"),
        (
            nn.InstanceNorm1d(6),
            "6, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False",
        ),
        (nn.GroupNorm(2, 6), "2, 6, eps=1e-05, affine=True"),
        (nn.LayerNorm(6), "(6,), eps=1e-05, elementwise_affine=True"),
        (nn.LayerNorm(6, bias=False), "(6,), eps=1e-05, elementwise_affine=True, bias=False"),
        (nn.Linear(2, 3), "in_features=2, out_features=3, bias=True"),
    ],
)
def test_all_versions_of_pytorch_are_described_in_the_same_words(module, expected):
    """PyTorch 2.11 does not say of layers that normalise whether they have a bias; 2.15 does."""
    assert kind_of(module) == f"{type(module).__name__}({expected})"
    assert describe_model(module) == [kind_of(module)]


def test_a_copy_of_an_open_task_goes_back_into_the_same_network_only():
    net, x = make("mlp"), example("mlp")
    net.begin_task("b")
    copy = net.open_state()
    net.abandon_task()
    learn(net, "a", x)
    net.begin_task("b")
    with pytest.raises(TaskError, match="was taken before another task ended"):
        net.set_open_state(copy)


def test_the_record_says_what_the_network_is():
    net = make(head="single")
    learn(net, "a", example("mlp"))
    net.begin_task("b", num_outputs=2)
    record = net.record()
    assert (record.head, record.open_task.name, record.open_task.num_outputs) == ("single", "b", 2)
    assert record.ledger == net.ledger
    assert record.num_outputs == (4,)
    assert record.open_free == net.ledger.free()
    assert record.certificates == (net.certificates["a"],)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_open_task_comes_back_as_it_was_taken_out(name, head):
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    net.eval()
    before, state = net(x), net.open_state()
    net.train()
    train(net, x)
    net.prune({group: range(1) for group in net.graph.groups if net.ledger.free()[group]})
    net.eval()
    assert not torch.equal(net(x), before)

    net.set_open_state(state)
    assert torch.equal(net(x), before)
    net.abandon_task()
    net.begin_task("b")
    net.set_open_state(OpenState.from_state(state.to_state()))
    assert torch.equal(net.eval()(x), before)
    net.end_task()
    net.verify()


def test_a_copy_shares_nothing_with_the_network():
    net, x = make(), example("mlp")
    net.begin_task("a")
    state = net.open_state()
    first = net.eval()(x)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    net.set_open_state(state)
    assert torch.equal(net(x), first)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    net.set_open_state(state)
    assert torch.equal(net(x), first)


def test_a_pruned_copy_remembers_what_was_reused():
    net, x = make(), example("mlp")
    learn(net, "a", x)
    net.begin_task("b")
    net.prune(net.plan_pruning(net.measure_activity([x]), thresholds=0.0))
    state = net.open_state()
    assert state.task.reused is not None
    net.abandon_task()
    net.begin_task("b")
    net.set_open_state(state)
    net.end_task()
    assert net.ledger.row("b").reused == state.task.reused


def test_a_copy_of_another_task_is_refused():
    net = make()
    with pytest.raises(TaskError, match="open_state needs an open task"):
        net.open_state()
    net.begin_task("a")
    state = net.open_state()
    with_other_outputs = make()
    with_other_outputs.begin_task("a", num_outputs=2)
    with pytest.raises(TaskError, match="the copy is of task 'a', and 'a' is open"):
        with_other_outputs.set_open_state(state)
    net.abandon_task()
    with pytest.raises(TaskError, match="set_open_state needs an open task"):
        net.set_open_state(state)
    net.begin_task("b")
    with pytest.raises(TaskError, match="the copy is of task 'a', and 'b' is open"):
        net.set_open_state(state)
