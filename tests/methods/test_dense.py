import pytest
import torch
from torch import nn

from clnp import Task, Training
from clnp.methods.dense import DenseNet
from clnp.storage.packing import pack, unpack
from clnp.training.fit import Fit, StepRule
from clnp.training.task import load
from support.networks import HEADS, ConvNet, copied_state, example, mlp, same_state


def made(head="multi", *, model=None, classifier="fc3"):
    torch.manual_seed(0)
    return DenseNet(mlp() if model is None else model, classifier, shared_head=head == "single")


def learned(net, *counts):
    """Return the network after ending one task for each number of outputs."""
    for number, count in enumerate(counts):
        net.begin_task(f"task {number}", count)
        net.end_task()
    return net


def move(net):
    """Change all tensors a little, in place."""
    with torch.no_grad():
        for tensor in net.model.state_dict().values():
            tensor += 1


def test_every_task_has_a_separate_head():
    net = learned(made(), 3, 2, 6)
    assert net.tasks == ["task 0", "task 1", "task 2"]
    assert [head.out_features for head in net.heads.layers] == [3, 2, 6]
    for task, count in enumerate((3, 2, 6)):
        net.heads.current = task
        hidden = torch.relu(net.model.fc2(torch.relu(net.model.fc1(example("mlp")))))
        outputs = net(example("mlp"))
        assert outputs.shape == (8, count)
        assert torch.equal(outputs, net.heads.layers[task](hidden))


def test_tasks_with_a_shared_head_use_its_first_outputs():
    net = learned(made("single"), 3, 4, 2)
    assert len(net.heads.layers) == 1
    assert net.heads.layers[0].out_features == 4
    net.heads.current = 1
    whole = net(example("mlp"))
    for task, count in enumerate((3, 4, 2)):
        net.heads.current = task
        assert torch.equal(net(example("mlp")), whole[:, :count])


def test_a_convolution_as_classifier():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 1))
    x = torch.randn(2, 3, 6, 6)
    assert learned(made("single", model=model, classifier="2"), 3)(x).shape == (2, 3, 4, 4)
    assert learned(made("multi", model=model, classifier="2"), 6)(x).shape == (2, 6, 4, 4)


def test_a_head_is_like_the_classifier():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4, bias=False)).double()
    net = learned(made(model=model, classifier="1"), 7)
    (head,) = net.heads.layers
    assert head.bias is None
    assert head.weight.shape == (7, 5)
    assert head.weight.dtype == torch.float64


@pytest.mark.parametrize("head", HEADS)
def test_the_model_that_was_given_is_never_touched(head):
    model = ConvNet()
    before = copied_state(model)
    net = learned(made(head, model=model, classifier="fc2"), 4, 4)
    move(net)
    net.reset()
    assert same_state(copied_state(model), before)
    assert isinstance(model.fc2, nn.Linear)


@pytest.mark.parametrize("head", HEADS)
def test_a_new_task_starts_from_the_weights_of_the_last(head):
    net = learned(made(head), 4)
    before = copied_state(net.model)
    net.begin_task("task 1", 4)
    assert net.open_task == "task 1"
    assert net.tasks == ["task 0"]
    after = copied_state(net.model)
    assert same_state({name: after[name] for name in before}, before)
    new = {"fc3.layers.1.weight", "fc3.layers.1.bias"} if head == "multi" else set()
    assert after.keys() - before.keys() == new


def test_a_task_trains_the_trunk_and_its_own_head():
    net = learned(made(), 3, 2)
    net.begin_task("task 2", 5)
    trunk = [net.model.fc1.weight, net.model.fc1.bias, net.model.fc2.weight, net.model.fc2.bias]
    own = [net.heads.layers[2].weight, net.heads.layers[2].bias]
    assert [id(p) for p in net.parameters()] == [id(p) for p in trunk + own]
    assert list(net.trunk()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert [id(p) for p in net.trunk().values()] == [id(p) for p in trunk]


def test_a_shared_head_is_part_of_the_trunk():
    net = learned(made("single"), 3, 2)
    net.begin_task("task 2", 4)
    assert list(net.trunk())[4:] == ["fc3.layers.0.weight", "fc3.layers.0.bias"]
    assert [id(p) for p in net.parameters()] == [id(p) for p in net.trunk().values()]


def test_training_a_task_leaves_the_heads_of_others():
    net = learned(made(), 3)
    before = copied_state(net.heads.layers[0])
    net.begin_task("task 1", 3)
    x = torch.randn(40, 6)
    data = load(Task("task 1", (x, x[:, :3].argmax(1))), torch.device("cpu"))
    training = Training(epochs=2, optimizer="AdamW", optimizer_options={"weight_decay": 0.1})
    trunk = copied_state(net.model.fc1)
    Fit(net, data, training, seed=0, rule=StepRule()).run()
    assert same_state(copied_state(net.heads.layers[0]), before)
    assert not same_state(copied_state(net.model.fc1), trunk)


@pytest.mark.parametrize("head", HEADS)
def test_reset_initialises_all_but_heads(head):
    net = made(head, model=ConvNet(), classifier="fc2")
    net.begin_task("task 0", 4)
    move(net)
    before = copied_state(net.model)
    torch.manual_seed(5)
    net.reset()
    after = copied_state(net.model)
    unlike = {name for name in before if not torch.equal(before[name], after[name])}
    assert unlike == {name for name in before if not name.startswith("fc2.")}
    torch.manual_seed(5)
    again = made(head, model=ConvNet(), classifier="fc2")
    torch.manual_seed(5)
    again.reset()
    trunk = copied_state(again.model)
    assert same_state({name: after[name] for name in trunk}, trunk)


@pytest.mark.parametrize("head", HEADS)
def test_the_open_task_can_be_copied_and_restored(head):
    net = made(head, model=ConvNet(), classifier="fc2")
    learned(net, 4)
    net.begin_task("task 1", 3)
    before, places = copied_state(net.model), [p.data_ptr() for p in net.parameters()]
    taken = net.open_state()
    assert (taken.task.name, taken.task.num_outputs) == ("task 1", 3)
    move(net)
    assert not same_state(copied_state(net.model), before)
    assert same_state(dict(taken.tensors), before)
    net.set_open_state(type(taken).from_state(taken.to_state()))
    assert same_state(copied_state(net.model), before)
    assert [p.data_ptr() for p in net.parameters()] == places


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("head", HEADS)
def test_a_network_can_be_stored(head, is_open):
    net = made(head, model=ConvNet(), classifier="fc2")
    learned(net, 4, 2)
    if is_open:
        net.begin_task("task 2", 3)
    move(net)
    tensors = {}
    packed = pack(net.state(), tensors, name="net")
    torch.manual_seed(1)
    other = DenseNet(ConvNet(), "fc2", shared_head=head == "single")
    other.restore(unpack(packed, tensors))
    assert (other.tasks, other.open_task) == (net.tasks, net.open_task)
    assert other.heads.num_outputs == net.heads.num_outputs
    assert same_state(copied_state(other.model), copied_state(net.model))
    x = example("conv")
    assert torch.equal(other.eval()(x), net.eval()(x))
    for network in (net, other):
        if is_open:
            network.end_task()
        torch.manual_seed(2)
        network.begin_task("last", 4)
    assert same_state(copied_state(other.model), copied_state(net.model))
    assert torch.equal(other(x), net(x))


def test_what_a_method_adds_is_trained_and_stored():
    net = made()
    net.begin_task("task 0", 4)
    net.extra["gate"] = nn.Parameter(torch.ones(3))
    assert list(net.parameters())[-1] is net.extra["gate"]
    assert "gate" not in net.trunk()
    taken = net.open_state()
    with torch.no_grad():
        net.extra["gate"].zero_()
    state = net.state()
    other = made()
    other.restore(unpack(pack(state, tensors := {}, name="net"), tensors))
    assert torch.equal(other.extra["gate"], torch.zeros(3))
    net.set_open_state(taken)
    assert torch.equal(net.extra["gate"], torch.ones(3))


@pytest.mark.parametrize("head", HEADS)
def test_heads_follow_training_mode(head):
    net = made(head)
    net.eval()
    net.begin_task("task 0", 4)
    assert not any(layer.training for layer in net.heads.layers)
    net.train()
    assert all(layer.training for layer in net.heads.layers)


def test_the_network_answers_for_any_task_while_one_is_open():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net, x = DenseNet(model, "2", shared_head=False), torch.randn(5, 3)
    for number, name in enumerate("abc"):
        net.begin_task(name, number + 1)
        net.end_task()
    hidden = net.model[1](net.model[0](x))
    for number in range(3):
        outputs = net.answer(x, number)
        assert torch.equal(outputs, net.heads.layers[number](hidden))
        assert outputs.requires_grad
    with pytest.raises(IndexError):
        net.answer(x, 7)
    assert net.heads.current == 2
