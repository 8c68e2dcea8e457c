import copy
import math
import pickle
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

import clnp
import clnp.core.net
from clnp.core.net import check_room, checked_outputs
from clnp.errors import (
    ArgumentError,
    CapacityError,
    DivergedError,
    ForgettingError,
    GraphError,
    PruningError,
    TaskError,
)
from support.assembled import Assembled
from support.networks import (
    HEADS,
    NETWORKS,
    Concatenating,
    ConvNet,
    copied_state,
    example,
    first,
    half,
    learn,
    make,
    mlp,
    same_state,
    train,
)

X = example("mlp")


def shapes(net: clnp.ContinualNet) -> dict[str, tuple[int, ...]]:
    """What the open task may change, by name without the leading `model.`."""
    return {
        name.removeprefix("model."): tuple(parameter.shape)
        for name, parameter in net.named_parameters()
    }


def test_a_new_network_has_nothing_to_train_and_no_task():
    net = make()
    assert list(net.parameters()) == []
    assert net.tasks == ()
    assert net.open_task is None
    assert net.certificates == {}
    assert net.ledger.free() == {"fc1": 7, "fc2": 5}
    net.verify()


def test_the_given_model_stays_as_it_is():
    model = ConvNet()
    before, rng = copied_state(model), torch.get_rng_state()
    net = clnp.ContinualNet(model, example("conv"))
    assert torch.equal(torch.get_rng_state(), rng)
    learn(net, "a", example("conv"))
    assert same_state(model.state_dict(), before)
    assert {type(module) for module in model.children()} == {
        nn.Conv2d,
        nn.BatchNorm2d,
        nn.Linear,
        nn.Dropout,
    }


@pytest.mark.parametrize("training", [True, False])
def test_a_network_has_the_mode_of_the_model(training):
    net = clnp.ContinualNet(mlp().train(training), X)
    assert {module.training for module in net.modules()} == {training}


@pytest.mark.parametrize("head", ["both", None, "Multi"])
def test_another_kind_of_head_is_refused(head):
    with pytest.raises(ArgumentError, match=f"head is {head!r}. It must be 'multi' or 'single'"):
        clnp.ContinualNet(mlp(), X, head=head)


class SkipsInput(nn.Module):
    """A network whose classifier also reads the input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 5), nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.cat([F.relu(self.fc1(x)), x], 1))


def test_a_single_head_that_reads_the_input_is_refused():
    with pytest.raises(GraphError, match=r'fc2: the classifier reads the net.* Use head="multi"'):
        clnp.ContinualNet(SkipsInput(), X, head="single")
    before = learn(net := clnp.ContinualNet(SkipsInput(), X), "a", X)
    learn(net, "b", X)
    assert torch.equal(net(X, task="a"), before)
    assert torch.equal(net.subnetwork("a")(X), before)


def test_a_network_says_what_it_is():
    net = make(head="single")
    learn(net, "a", X)
    net.begin_task("b")
    assert net.extra_repr() == ("head='single', tasks=['a'], open='b', free: fc1 3/7, fc2 2/5")
    assert net.extra_repr() in repr(net)


def test_only_what_the_task_may_change_is_a_parameter():
    net = make()
    net.begin_task("a")
    assert shapes(net) == {
        "fc1.weight_free": (7, 6),
        "fc1.bias_free": (7,),
        "fc2.weight_free": (5, 7),
        "fc2.bias_free": (5,),
        "fc3.weight_free": (4, 5),
        "fc3.bias_free": (4,),
    }
    net.end_task(first({"fc1": 3, "fc2": 2}))
    assert list(net.parameters()) == []
    net.begin_task("b", num_outputs=9)
    assert shapes(net) == {
        "fc1.weight_free": (4, 6),
        "fc1.bias_free": (4,),
        "fc2.weight_reuse": (3, 3),
        "fc2.weight_free": (3, 4),
        "fc2.bias_free": (3,),
        "fc3.weight_reuse": (9, 2),
        "fc3.weight_free": (9, 3),
        "fc3.bias_free": (9,),
    }


@pytest.mark.parametrize("name", ["", None, 3, "two\nlines", "tab\t", "\x1b[31mred"])
def test_a_task_needs_a_name_of_one_line(name):
    net = make()
    with pytest.raises(ArgumentError) as caught:
        net.begin_task(name)
    assert str(caught.value) == f"the name of a task is {name!r}. It must be a line of text"
    assert net.open_task is None


def test_a_name_is_used_once():
    net = make()
    learn(net, "a", X)
    with pytest.raises(TaskError, match=r"task 'a' has ended already\. Give the new task another"):
        net.begin_task("a")


@pytest.mark.parametrize("call", ["begin_task", "widen"])
def test_an_open_task_is_in_the_way(call):
    net = make()
    net.begin_task("a")
    expected = f"{call} is not possible while task 'a' is open. End or abandon it"
    with pytest.raises(TaskError, match=expected):
        net.begin_task("b") if call == "begin_task" else net.widen({"fc1": 1})
    assert net.open_task == "a"
    assert net.ledger.sizes == {"fc1": 7, "fc2": 5}


CALLS: dict[str, Callable[[clnp.ContinualNet], object]] = {
    "abandon_task": lambda net: net.abandon_task(),
    "l1_penalty": lambda net: net.l1_penalty(1.0),
    "add_l1_gradient": lambda net: net.add_l1_gradient(1.0),
    "measure_activity": lambda net: net.measure_activity([X]),
    "measure_contribution": lambda net: net.measure_contribution([X]),
    "measure_taylor": lambda net: net.measure_taylor([(X, X)], F.mse_loss),
    "unpruned_score": lambda net: net.unpruned_score(lambda predict: 0.0),
    "plan_pruning": lambda net: net.plan_pruning(None),
    "prune": lambda net: net.prune({}),
    "recalibrate": lambda net: net.recalibrate([X]),
    "end_task": lambda net: net.end_task(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_needs_an_open_task_says_so(call):
    net = make()
    expected = rf"{call} needs an open task. Begin one with net.begin_task\(name\)"
    with pytest.raises(TaskError, match=expected):
        CALLS[call](net)


def test_running_without_an_open_task_says_so():
    net = make()
    with pytest.raises(TaskError, match=r"no task is open. Name one of .* Ended: none"):
        net(X)
    learn(net, "a", X)
    learn(net, "b", X)
    with pytest.raises(TaskError, match=r"or begin one\. Ended: a, b"):
        net(X)
    with pytest.raises(TaskError, match=r"unknown task 'c'\. Known: a, b"):
        net(X, task="c")


def test_the_open_task_may_be_named():
    net = make().eval()
    net.begin_task("a")
    assert torch.equal(net(X, task="a"), net(X))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("head", HEADS)
def test_a_first_task_starts_exactly_as_the_given_model(name, head):
    network, _ = NETWORKS[name]
    model, x = network().eval(), example(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    net = clnp.ContinualNet(network().eval(), x, head=head)
    net.begin_task("a", initial=model)
    assert torch.equal(net(x), model(x))
    before = copied_state(model)
    train(net, x)
    assert same_state(model.state_dict(), before)
    assert not torch.equal(net(x), model(x))


def test_initial_weights_are_for_the_first_task():
    net = make()
    learn(net, "a", X)
    with pytest.raises(
        TaskError, match=r"initial weights are for the first task\. Later ones start"
    ):
        net.begin_task("b", initial=mlp())


def test_initial_weights_of_another_model_are_refused():
    net = make()
    with pytest.raises(ArgumentError, match=r"initial is not like the model: fc1 is Linear\(in_f"):
        net.begin_task("a", initial=clnp.models.MLP(6, (8, 5), 4))
    with pytest.raises(ArgumentError, match=r"not like the model: \(model\) is Concatenating"):
        net.begin_task("a", initial=Concatenating())
    for num_outputs in (3, 5):  # It is unclear which of the four outputs are meant.
        with pytest.raises(ArgumentError) as caught:
            net.begin_task("a", num_outputs, initial=mlp())
        assert str(caught.value) == (
            f"num_outputs is {num_outputs}, and the classifier of initial has 4. Leave num_outputs "
            f"out, or replace the classifier by one of {num_outputs} before you make the network"
        )
    assert net.open_task is None


def test_initial_weights_do_not_fit_a_widened_network():
    net = make()
    net.widen({"fc1": 2})
    expected = "initial is not like the model: the network has been widened"
    with pytest.raises(ArgumentError, match=expected):
        net.begin_task("a", initial=mlp())


def test_a_failed_begin_leaves_no_trace(monkeypatch):
    net = make()
    learn(net, "a", X)
    before = copied_state(net)

    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(net._body.head), "open", fail)
    with pytest.raises(MemoryError):
        net.begin_task("b")
    monkeypatch.undo()
    assert net.open_task is None
    assert list(net.parameters()) == []
    assert same_state(net.state_dict(), before)


def test_a_task_that_ends_without_a_plan_claims_all_it_has():
    net = make().eval()
    net.begin_task("a")
    outputs = net(X)
    certificate = net.end_task()
    assert net.ledger.free() == {"fc1": 0, "fc2": 0}
    assert torch.equal(net(X, task="a"), outputs)
    assert certificate == net.certificates["a"]


def test_a_pruned_task_stays_open_in_smaller_parameters():
    net = make().eval()
    net.begin_task("a")
    net.prune({"fc1": [0, 2, 5], "fc2": torch.tensor([1])})
    assert shapes(net)["fc2.weight_free"] == (1, 3)
    assert net.open_task == "a"
    outputs = net(X)
    train(net, X)
    assert not torch.equal(net.eval()(X), outputs)
    net.prune({"fc1": [0, 2]})
    outputs = net(X)
    net.end_task()
    assert torch.equal(net(X, task="a"), outputs)
    assert net.ledger.claimed() == {"fc1": 2, "fc2": 1}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_task_can_be_pruned_to_nothing_and_goes_on(name):
    for index, group in enumerate(make(name).graph.groups):
        net, x = make(name, head=HEADS[index % 2]), example(name)
        net.begin_task("a")
        net.prune({group: []})
        train(net, x)
        assert bool(net(x).isfinite().all())
        outputs = net.eval()(x)
        net.end_task()
        torch.testing.assert_close(net(x, task="a"), outputs)
        assert torch.equal(net.subnetwork("a")(x), net(x, task="a"))
        net.widen(dict.fromkeys(net.graph.groups, 2))
        learn(net, "b", x)
        net.verify()


def end_fails(net: clnp.ContinualNet, x: Tensor, error: type[BaseException], **end: object) -> None:
    """Check that a failed `end_task` leaves the task open, with the very same Parameters."""
    before, ledger = copied_state(net), net.ledger
    parameters = list(net.parameters())
    task = net.open_task
    outputs = net.eval()(x)
    with pytest.raises(error):
        net.end_task(half(net), **end)
    assert net.open_task == task
    assert net.ledger == ledger
    assert same_state(net.state_dict(), before)
    assert all(one is two for one, two in zip(net.parameters(), parameters, strict=True))
    assert torch.equal(net(x), outputs)


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_a_layer_that_asks_for_no_gradient_goes_on_to_ask_for_none(name):
    net, x = make(name), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    first_layer, head = next(iter(net._body.layers.values())), net._body.head
    for layer in (first_layer, head):
        layer.requires_grad_(False)
    state = net.open_state()
    net.prune(half(net))
    for _ in range(2):
        for layer in (first_layer, head):
            assert not any(parameter.requires_grad for parameter in layer.parameters())
        others = [layer for layer in net._body.layers.values() if layer is not first_layer]
        assert all(p.requires_grad for layer in others for p in layer.parameters())
        net.set_open_state(state)
    net.abandon_task()
    net.begin_task("c")
    assert all(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["mlp", "conv", "depthwise"])
def test_an_end_that_fails_leaves_the_task_open_and_trainable(name, head, monkeypatch):
    net, x = make(name, head=head), example(name)
    first_outputs = learn(net, "a", x)
    net.begin_task("b", num_outputs=2)
    train(net, x)

    def failing():
        yield x
        raise OSError("disk")

    end_fails(net, x, OSError, recalibrate=failing())
    end_fails(net, x, ArgumentError, recalibrate=[])

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clnp.core.net, "certify", interrupt)
    end_fails(net, x, KeyboardInterrupt)
    monkeypatch.undo()
    train(net, x)
    net.end_task(half(net))
    assert torch.equal(net(x, task="a"), first_outputs)
    net.verify()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("tensor", ["fc1.weight_reuse", "fc2.bias_free", "bn1.running_var_free"])
def test_a_task_that_diverged_is_not_frozen(tensor, value):
    net, x = make("conv"), example("conv")
    before = learn(net, "a", x)
    net.begin_task("b")
    net._body.free_part()[tensor].data[0] = value
    expected = f"{tensor} is NaN or infinite: task 'b' has diverged and cannot be frozen. Abandon"
    with pytest.raises(DivergedError, match=expected):
        net.end_task(half(net))
    assert net.open_task == "b"
    assert net.tasks == ("a",)
    net.abandon_task()
    learn(net, "b", x)
    assert torch.equal(net(x, task="a"), before)


def test_neurons_that_diverged_may_be_pruned_away():
    net = make()
    net.begin_task("a")
    with torch.no_grad():
        net.model.fc1.weight_free[3] = math.nan
        net.model.fc2.weight_free[:, 3] = math.nan
    net.end_task({"fc1": [0, 1, 2]})
    assert bool(net(X, task="a").isfinite().all())


@pytest.mark.parametrize(("kept", "warns"), [(0, False), (4, False), (5, True)])
def test_a_task_that_finds_hardly_a_neuron_free_is_warned_of(kept, warns):
    net = make()
    with warnings.catch_warnings(action="error"):
        net.begin_task("a", num_outputs=3)
        train(net, X)
        net.end_task(first({"fc1": 0, "fc2": kept}))
        if not warns:
            net.begin_task("b", num_outputs=3)
            return
    with pytest.warns(UserWarning, match="neurons of") as caught:
        net.begin_task("b", num_outputs=3)
    assert net.open_task == "b"
    assert caught[0].filename == __file__
    assert str(caught[0].message) == (
        "0 of the 5 neurons of fc2 are free: task 'b' can train little more than its outputs. "
        "Widen the network, net.widen({'fc2': ...}), or learn the earlier tasks with a larger "
        "margin"
    )


def test_a_full_multi_head_network_goes_on_with_what_is_free():
    net = make()
    before = {}
    for task, keep in (("a", {"fc1": 7, "fc2": 2}), ("b", {"fc2": 3}), ("c", {}), ("d", {})):
        net.begin_task(task, num_outputs=3)
        free = net.ledger.free()
        train(net, X)
        net.end_task(first(keep))
        before[task] = net(X, task=task)
        if task == "b":
            assert free == {"fc1": 0, "fc2": 3}
    assert net.ledger.free() == {"fc1": 0, "fc2": 0}
    net.begin_task("e", num_outputs=9)
    assert shapes(net) == {"fc3.weight_reuse": (9, 5), "fc3.bias_free": (9,)}
    start = net(X)
    train(net, X)
    assert not torch.equal(net(X), start)
    assert all(torch.equal(net(X, task=task), before[task]) for task in before)
    net.end_task()
    assert torch.equal(net.subnetwork("e")(X), net(X, task="e"))


def test_a_full_single_head_network_says_so_and_what_to_do():
    net = make(head="single")
    net.begin_task("a")
    net.end_task(first({"fc1": 2}))
    expected = (
        "no neuron of fc2 is free, and a single head reads only the neurons that a task adds "
        r"there: task 'b' does not fit. Widen it, net.widen\(\{'fc2': ...\}\), or learn the "
        "earlier tasks with a larger margin"
    )
    with pytest.raises(CapacityError, match=expected):
        net.begin_task("b")
    assert net.open_task is None
    before = net(X, task="a")
    net.widen({"fc2": 2})
    net.begin_task("b")
    train(net, X)
    net.end_task()
    assert torch.equal(net(X, task="a"), before)


def test_a_group_may_be_widened_through_any_layer_in_it():
    net = make("conv")
    net.widen({"bn1": 3, "fc1": 0})
    assert net.ledger.sizes == {"conv1": 9, "conv2": 5, "fc1": 7}
    net.begin_task("a")
    assert shapes(net)["conv1.weight_free"] == (9, 3, 3, 3)
    assert shapes(net)["bn1.weight_free"] == (9,)
    assert shapes(net)["conv2.weight_free"] == (5, 9, 3, 3)


def test_an_ended_task_runs_in_evaluation_mode_and_the_open_one_in_that_of_the_network():
    net, x = make("conv"), example("conv")
    before = learn(net, "a", x)
    net.begin_task("b")
    net.train()
    modes = [module.training for module in net.modules()]
    assert torch.equal(net(x, task="a"), before)
    assert [module.training for module in net.modules()] == modes
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    assert torch.equal(net(x, task="a"), before)


def test_an_ended_task_passes_gradients_to_its_input():
    net = make()
    learn(net, "a", X)
    x = X.clone().requires_grad_()
    net(x, task="a").sum().backward()
    plain = X.clone().requires_grad_()
    net.subnetwork("a")(plain).sum().backward()
    assert torch.equal(x.grad, plain.grad)


def test_the_open_task_passes_gradients_to_its_input_through_frozen_neurons_too():
    net = make().double().eval()
    x = X.double()
    net.begin_task("a")
    net.end_task(first({"fc1": 3, "fc2": 2}))
    net.begin_task("b")
    one = x.clone().requires_grad_()
    net(one).sum().backward()
    net.zero_grad()
    net.end_task()
    two = x.clone().requires_grad_()
    net(two, task="b").sum().backward()
    torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.parametrize("head", HEADS)
def test_a_state_dict_brings_a_network_back(head):
    net, x = make("conv", head=head), example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    state, outputs = copied_state(net), net.eval()(x)
    train(net, x)
    assert not torch.equal(net.eval()(x), outputs)
    net.load_state_dict(state)
    assert same_state(net.state_dict(), state)
    assert torch.equal(net(x), outputs)
    net.verify()


def test_a_state_dict_of_another_ledger_is_refused_and_changes_nothing():
    net = make()
    learn(net, "a", X)
    state = copied_state(net)
    others = [make() for _ in range(4)]
    learn(others[1], "b", X)
    learn(others[2], "a", 2 * X)
    learn(others[3], "a", X)
    others[3].widen({"fc1": 1})
    for other in others:
        before = copied_state(other)
        with pytest.raises(TaskError, match="this state dict is of a network with another ledger"):
            other.load_state_dict(state)
        assert same_state(other.state_dict(), before)
    net.begin_task("c")
    with pytest.raises(TaskError, match=r"Use clnp.save\(net, path\) and clnp.load\(path, model"):
        net.load_state_dict(state)


def averaged(net, *, steps=20):
    """A moving average of the whole state dict while the open task trains."""
    average = copied_state(net)
    for _ in range(steps):
        train(net, X, steps=1)
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                average[name] = 0.9 * average[name] + 0.1 * tensor
    return average


def test_no_state_dict_changes_what_is_frozen():
    net = make()
    outputs = learn(net, "a", X)
    net.begin_task("b")
    average = averaged(net)
    frozen = {n for n in average if n.endswith(("_frozen", "_0"))}
    assert frozen
    before = copied_state(net)
    holder = nn.ModuleDict({"net": net})
    with pytest.raises(TaskError, match=r"model.fc1.weight_frozen is frozen, and .* Nothing was l"):
        net.load_state_dict(average)
    assert same_state(net.state_dict(), before)
    of_model = {name.removeprefix("model."): t for name, t in average.items() if "." in name}
    of_holder = {f"net.{name}": tensor for name, tensor in average.items()}
    for module, state in ((net.model, of_model), (holder, of_holder)):
        for assign in (False, True):
            with pytest.raises(RuntimeError, match="weight_frozen is frozen, and the state dict"):
                module.load_state_dict(state, assign=assign)
    assert torch.equal(net(X, task="a"), outputs)
    allowed = {name: before[name] if name in frozen else t for name, t in average.items()}
    net.load_state_dict(allowed)
    assert torch.equal(net.model.fc1.weight_free, average["model.fc1.weight_free"])
    net.verify()


def test_no_state_dict_changes_a_constant_or_converts_by_assigning():
    net = make("shifted")
    x = example("shifted")
    outputs = learn(net, "a", x)
    net.begin_task("b")
    state = copied_state(net)
    with pytest.raises(TaskError, match=r"model.mean is frozen, and .* Nothing was loaded"):
        net.load_state_dict({**state, "model.mean": state["model.mean"] * 1.001})
    double = {n: t.double() if t.is_floating_point() else t for n, t in state.items()}
    with pytest.raises(
        TaskError, match=r"ended tasks in torch.float32; in torch.float64 their out"
    ):
        net.load_state_dict(double, assign=True)
    assert same_state(net.state_dict(), state)
    net.load_state_dict(double)
    net.model.register_buffer("wide", torch.ones(2, dtype=torch.float64))
    net.load_state_dict(net.state_dict(), assign=True)
    assert torch.equal(net(x, task="a"), outputs)
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}


def test_a_network_is_converted_before_a_task_ends_and_not_after():
    net = make("conv").double()
    x = example("conv").double()
    net.begin_task("a")
    net.float()
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    net.double()
    train(net, x)
    net.end_task(half(net))
    before, state = net(x, task="a"), copied_state(net)
    expected = "the network has ended tasks in torch.float64; in torch.float32 their outputs would"
    for convert in (net.float, lambda: net.to(torch.float32)):
        with pytest.raises(TaskError, match=expected):
            convert()
    assert same_state(net.state_dict(), state)
    assert net.to("cpu") is net
    assert torch.equal(net.double()(x, task="a"), before)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_pickled_copy_is_the_same_and_goes_its_own_way(name, head):
    net, x = make(name, head=head), example(name)
    before = learn(net, "a", x)
    net.begin_task("b")
    net.eval()
    other = pickle.loads(pickle.dumps(net))
    assert torch.equal(other(x), net(x))
    state = copied_state(net)
    train(other, x)
    other.end_task(half(other))
    assert same_state(net.state_dict(), state)
    assert torch.equal(other(x, task="a"), before)
    assert net.open_task == "b"
    train(net, x)
    other.verify()


def test_no_step_of_any_optimizer_reaches_what_is_frozen():
    net = make("conv")
    x = example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    frozen = {name: t.clone() for name, t in net.named_buffers() if not name.endswith("_free")}
    assert not {name for name, _ in net.named_parameters()} & set(frozen)
    assert not any(tensor.requires_grad for tensor in net.buffers())
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        optimizer = kind(net.parameters(), lr=0.1, weight_decay=0.1)
        net.train()
        net(x).sum().backward()
        optimizer.step()
    now = dict(net.named_buffers())
    assert all(torch.equal(now[name], tensor) for name, tensor in frozen.items())


def test_a_model_cannot_be_converted_or_wiped_behind_the_network():
    net, x = make("conv"), example("conv")
    before = learn(net, "a", x)
    state = copied_state(net)
    for convert in (net.model.half, net.model.double, lambda: net.model.fc1.to(torch.bfloat16)):
        with pytest.raises(TaskError, match=r"has ended tasks in torch\.float32; in torch\."):
            convert()
    with pytest.raises(TaskError, match=r"to_empty would wipe the ended tasks. Use net.to\(device"):
        net.to_empty(device="cpu")
    assert same_state(net.state_dict(), state)
    assert torch.equal(net(x, task="a"), before)


def test_a_network_without_ended_tasks_may_be_converted_and_wiped():
    net = make("conv")
    net.begin_task("a")
    net.model.half()
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float16}
    assert net.to_empty(device="cpu") is net


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_dict_that_does_not_say_what_it_is_of_is_refused(strict):
    net = make()
    learn(net, "a", X)
    state = copied_state(net)
    given = {name: 2 * tensor for name, tensor in state.items() if name != "_extra_state"}
    for other in (given, {}):
        with pytest.raises(TaskError, match=r"does not say which tasks it is of\. Nothing was l"):
            net.load_state_dict(other, strict=strict)
    assert same_state(net.state_dict(), state)
    net.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["conv", "depthwise"])
def test_pruning_makes_every_parameter_anew(name, head):
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    net.begin_task("b", 4)
    before = list(net.parameters())
    addresses = {parameter.data_ptr() for parameter in before}
    net.prune({})  # Even where all of it is kept.
    assert not {id(p) for p in net.parameters()} & {id(p) for p in before}
    assert not {p.data_ptr() for p in net.parameters()} & addresses
    assert len(list(net.parameters())) == len(before)


def same_score(predict):
    """Whatever the network says."""
    predict(X)
    return np.float64(1)


def test_numbers_of_numpy_are_numbers():
    net = make()
    net.widen({"fc1": np.int64(2)})
    net.begin_task("a", np.int32(3))
    assert net(X).shape == (8, 3)
    assert net.l1_penalty(np.float32(0.5)) == net.l1_penalty({"fc1": 0.5, "fc2": 0.5, "fc3": 0.5})
    net.end_task({"fc1": np.array([0, 2]), "fc2": [np.int64(1)]})
    assert net.ledger.claimed() == {"fc1": 2, "fc2": 1}
    net.begin_task("b")
    found = net.measure_activity([X])
    assert net.plan_pruning(found, thresholds=np.float32(0)).thresholds["fc1"] == 0.0
    assert net.plan_pruning(found, thresholds={"fc1": np.int64(1)}).thresholds["fc1"] == 1.0
    options = {"margin": np.float32(0.5), "resolution": np.int64(3), "allow_guessing": True}
    plan = net.plan_pruning(found, same_score, **options)
    assert plan.num_evaluations == 2
    net.end_task(plan)


MISTAKES: dict[str, tuple[Callable[[clnp.ContinualNet], object], type[Exception], str]] = {
    "a number of neurons": (
        lambda net: net.end_task({"fc1": 3}),
        PruningError,
        "fc1: give the neurons to keep as a list, not 3",
    ),
    "an activity as plan": (
        lambda net: net.end_task(net.measure_activity([X])),
        PruningError,
        "a Activity is not a plan. Give that of plan_pruning, or the neurons",
    ),
    "a list as plan": (
        lambda net: net.prune([1, 2]),
        PruningError,
        "a list is not a plan. Give that of plan_pruning",
    ),
    "a number as score": (
        lambda net: net.plan_pruning(net.measure_activity([X]), 0.9, margin=1),
        ArgumentError,
        "score is 0.9. It must be a function of predict",
    ),
    "text as margin": (
        lambda net: net.plan_pruning(net.measure_activity([X]), lambda _: 1.0, margin="1"),
        ArgumentError,
        "margin is '1'. It must be a number, 0 or more",
    ),
    "a dictionary as activity": (
        lambda net: net.plan_pruning({"fc1": X}, thresholds=0.0),
        ArgumentError,
        "importance lacks fc2. Give a number for each free neuron",
    ),
    "a tensor as batches": (
        lambda net: net.measure_activity(X),
        ArgumentError,
        "batches is of type Tensor. Give an iterable of batches, such as a DataLoader",
    ),
    "a number as batches": (
        lambda net: net.measure_activity(3),
        ArgumentError,
        "batches is of type int",
    ),
    "a dictionary as batches": (
        lambda net: net.measure_activity({"x": X}),
        ArgumentError,
        "batches is of type dict",
    ),
    "a tensor to recalibrate on": (
        lambda net: net.recalibrate(X),
        ArgumentError,
        "batches is of type Tensor",
    ),
    "a tensor to end on": (
        lambda net: net.end_task(recalibrate=X),
        ArgumentError,
        "batches is of type Tensor",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_changes_nothing(mistake):
    call, error, expected = MISTAKES[mistake]
    net = make()
    net.begin_task("a")
    state = copied_state(net)
    with pytest.raises(error, match=expected):
        call(net)
    assert net.open_task == "a"
    assert same_state(net.state_dict(), state)


def test_widening_by_a_number_asks_for_the_group():
    with pytest.raises(ArgumentError, match=r'widen by 3: name the groups, such as \{"fc1": 10\}'):
        make().widen(3)


@pytest.mark.parametrize("plan", [[], (), "", 0])
def test_an_empty_plan_of_another_kind_does_not_claim_everything(plan):
    net = make()
    net.begin_task("a")
    with pytest.raises(PruningError, match="is not a plan"):
        net.end_task(plan)
    assert net.open_task == "a"


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_pruning_that_breaks_off_leaves_the_task_as_it_was(name, monkeypatch):
    net, x = make(name), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    before, outputs = net.open_state(), net.eval()(x)
    parts = list(net._body.parts.values())
    for part in parts:
        with monkeypatch.context() as patch:
            patch.setattr(part, "restrict", lambda keep: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                net.prune(half(net))
        assert torch.equal(net(x), outputs)
        assert net.open_state().free == before.free
    net.end_task(half(net))


def test_there_is_room_where_one_group_has_a_free_neuron():
    check_room("c", {"left": 0, "right": 1})
    expected = r"no neuron of left and right is free.* task 'c' does not fit.*net.widen\(\{'left'"
    with pytest.raises(CapacityError, match=expected):
        check_room("c", {"left": 0, "right": 0})


def test_outputs_are_the_classifiers_own_unless_given():
    assert checked_outputs(None, own=4, single=True) == 4
    assert checked_outputs(3, own=4, single=True) == 3
    assert checked_outputs(9, own=4, single=False) == 9


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
def test_a_number_of_outputs_that_makes_no_sense_is_refused(value):
    expected = f"num_outputs is {value!r}. It must be a whole number, 1 or more"
    with pytest.raises(ArgumentError, match=expected):
        checked_outputs(value, own=4, single=False)


def test_a_single_head_has_no_more_outputs_than_the_classifier():
    expected = r'num_outputs is 5, and the single head has 4 for all tasks\. .* use head="multi"'
    with pytest.raises(ArgumentError, match=expected):
        checked_outputs(5, own=4, single=True)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


MODELS = {
    "mlp": (lambda: clnp.models.MLP(20, (24, 18), 5), (16, 20)),
    "narrow": (
        lambda: clnp.models.NarrowCNN(5, widths=(6, 7, 8, 9, 10), image_size=12),
        (8, 3, 12, 12),
    ),
    "wide": (lambda: clnp.models.WideCNN(5, widths=(6, 7, 8, 9, 10)), (4, 3, 28, 28)),
}


def learn_three_tasks(name, *, head, device, dtype=torch.float32, autocast=False, backend=None):
    """Three tasks; after each, every ended task must answer as when it ended, to the last bit."""
    model, shape = MODELS[name]
    torch.manual_seed(0)
    x = torch.randn(*shape, device=device, dtype=dtype)
    net = clnp.ContinualNet(model().to(device, dtype), x, head=head)
    run = torch.compile(net, backend=backend) if backend else net
    outputs = {}

    def ended(task, network=None):
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            return run(x, task=task) if network is None else network(x)

    for task in ("a", "b", "c"):
        y = torch.randint(0, 5, (len(x),), device=device)
        net.begin_task(task)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
        net.train()
        for _ in range(2):
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(run(x).float(), y)
            (loss + net.l1_penalty(1e-5)).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert loss.isfinite()
        activity = net.measure_activity([x])
        keep = {g: a.argsort(descending=True)[: max(1, len(a) // 3)] for g, a in activity.items()}
        net.end_task(keep)
        outputs[task] = ended(task)
        for earlier, output in outputs.items():
            assert torch.equal(ended(earlier), output), (task, earlier)
            assert torch.equal(ended(earlier, net.subnetwork(earlier)), output), (task, earlier)
    net.verify()
    return net, x, outputs


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", MODELS)
def test_dtypes(name, head, dtype, device):
    net, _, outputs = learn_three_tasks(name, head=head, device=device, dtype=dtype)
    assert outputs["a"].dtype == dtype
    assert all(
        tensor.dtype in (dtype, torch.uint8, torch.int64) for tensor in net.state_dict().values()
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "head"), [("mlp", "multi"), ("narrow", "single"), ("wide", "multi")]
)
def test_autocast(name, head, device):
    net, *_ = learn_three_tasks(name, head=head, device=device, autocast=True)
    assert net.model.get_submodule(net.graph.classifier).weight.dtype == torch.float32


@pytest.mark.gpu
def test_moving_between_devices_keeps_certificates():
    net, x, outputs = learn_three_tasks("wide", head="multi", device="cuda")
    certificates = net.certificates
    on_cpu = net.to("cpu")
    on_cpu.verify()
    torch.testing.assert_close(on_cpu(x.cpu(), task="a"), outputs["a"].cpu(), rtol=1e-2, atol=1e-3)
    back = on_cpu.to("cuda")
    back.verify()
    assert back.certificates == certificates
    assert torch.equal(back(x, task="a"), outputs["a"])


@pytest.mark.gpu
def test_batches_are_moved_to_the_device_of_the_network(tmp_path):
    x = torch.randn(8, 20)
    net = clnp.ContinualNet(clnp.models.MLP(20, (24, 18), 5).cuda(), x.cuda())
    net.begin_task("a")
    assert set(net.measure_activity([(x, None)])) == {"fc1", "fc2"}
    net.end_task()
    clnp.save(net, tmp_path / "net.safetensors")
    loaded = clnp.load(tmp_path / "net.safetensors", clnp.models.MLP(20, (24, 18), 5))
    assert loaded(x, task="a").device.type == "cpu"
    assert loaded.certificates == net.certificates


def test_the_layers_are_still_the_user_s_own_classes():
    class Fancy(nn.Linear):
        def norm(self):
            return self.in_features

    model = nn.Sequential(Fancy(4, 6), nn.ReLU(), nn.Linear(6, 2))
    net = clnp.ContinualNet(model, torch.zeros(2, 4))
    assert isinstance(net.model[0], Fancy)
    assert net.model[0].norm() == 4
    assert type(model[0]) is Fancy


def kaiming(module):
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.kaiming_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def reset(module):
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


@pytest.mark.parametrize("init", [kaiming, reset])
@pytest.mark.parametrize(("name", "head"), [("conv", "multi"), ("depthwise", "single")])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_initialising_all_layers_reaches_the_open_task_only(name, head, init):
    net, x = make(name, head=head), example(name)
    net.apply(init)
    ended = {}
    for task in "ab":
        ended[task] = learn(net, task, x)
        net.apply(init)
        net.begin_task(f"{task}, then nothing")
        net.apply(init)
        net.abandon_task()
    net.begin_task("c")
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    before = [layer.weight.detach().clone() for layer in layers]
    net.apply(init)
    for layer, weight in zip(layers, before, strict=True):
        assert weight.numel() > 0
        assert layer.weight.requires_grad
        assert not torch.equal(layer.weight, weight)
        if layer.bias is not None and init is not reset:
            assert layer.bias.count_nonzero() == 0
    for task, outputs in ended.items():
        assert torch.equal(net(x, task=task), outputs)
    net.verify()
    train(net, x)
    net.end_task()
    net.verify()


@pytest.mark.parametrize("head", HEADS)
def test_update_bn_changes_the_statistics_of_the_open_task_only(head, tmp_path):
    net, x = make("conv", head=head), example("conv")
    ended = learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    other = copy.deepcopy(net)
    batches = [x[:4] + 1, x[4:]]
    with torch.random.fork_rng():
        update_bn(batches, net)
    other.recalibrate(batches)
    assert net.model.bn1.momentum == 0.1
    for norm, like in ((net.model.bn1, other.model.bn1), (net.model.bn2, other.model.bn2)):
        torch.testing.assert_close(norm.running_mean_free, like.running_mean_free)
        torch.testing.assert_close(norm.running_var_free, like.running_var_free)
    assert torch.equal(net(x, task="a"), ended)
    clnp.save(net, tmp_path / "net")
    clnp.load(tmp_path / "net", type(net.model)())
    net.end_task()
    net.verify()


def test_another_memory_format_keeps_the_bits_of_ended_tasks():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()
    )
    # Of sizes by which formats cannot be told: kernels of 1 x 1, one input of each filter.
    model.extend([nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, groups=64)])
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)])
    net = clnp.ContinualNet(model, x)
    net.begin_task("a")
    net(x)
    net.end_task({"0": range(40), "3": range(48), "5": range(37)})
    before = {task: net(x, task=task) for task in net.tasks}
    together = net.predict_all(x)["a"]
    for change in (
        lambda: net.to(memory_format=torch.channels_last),
        lambda: net.model.to(memory_format=torch.channels_last),
        lambda: net.begin_task("b"),
        lambda: net.to(memory_format=torch.channels_last),
    ):
        change()
        assert all(torch.equal(net(x, task=task), y) for task, y in before.items())
        assert torch.equal(net.predict_all(x)["a"], together)
        assert torch.equal(net.subnetwork("a")(x), before["a"])
    net(x).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.01).step()
    net.end_task()
    assert all(tensor.is_contiguous() for tensor in net.buffers())
    assert torch.equal(net.subnetwork("b")(x), net(x, task="b"))
    net.verify()


def test_gradients_after_inference_mode():
    net, x = make(), example("mlp")
    with torch.inference_mode():
        net.begin_task("a")
    train(net, x)
    with torch.inference_mode():
        net.prune(half(net))
    train(net, x)
    with torch.inference_mode():
        net.end_task()
        ended = net(x, task="a").clone()
    net.begin_task("b")
    with torch.inference_mode():
        net(x)
    for run in (lambda x: net(x, task="a"), net):
        given = x.clone().requires_grad_()
        run(given).sum().backward()
        assert given.grad.abs().sum() > 0
    train(net, x)
    assert torch.equal(net(x, task="a"), ended)


def test_forward_may_take_device_and_dtype_from_the_first_parameter():
    def run(m, x):
        first = next(m.parameters())
        return m.fc(torch.relu(m.first(x.to(first.device, first.dtype))))

    x = torch.randn(4, 6, dtype=torch.float64)
    model = Assembled(run, first=nn.Linear(6, 8), fc=nn.Linear(8, 3))
    for head in ("multi", "single"):
        net = clnp.ContinualNet(model, x, head=head)
        net.begin_task("a")
        net.end_task({"first": range(4)})
        before = net(x, task="a")
        assert torch.equal(net.predict_all(x)["a"], before)
        assert list(net.parameters()) == []
        assert dict(net.named_parameters()) == {}
        net.begin_task("b")
        assert torch.equal(net(x, task="a"), before)
        assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_constant_cannot_be_changed_through_a_wrapper_nor_if_the_example_does_not_read_it():
    def run(m, x):
        return m.fc(torch.relu(m.first(x)) * (m.high if x.sum() > 0 else m.low))

    model = Assembled(run, first=nn.Linear(6, 8), fc=nn.Linear(8, 3))
    model.register_buffer("high", torch.tensor(2.0))
    model.register_buffer("low", torch.tensor(3.0))
    x = torch.rand(4, 6)
    net = clnp.ContinualNet(model, x)
    net.begin_task("a")
    net.end_task()
    before = net(-x, task="a")
    for name in ("high", "low"):
        state = net.state_dict()
        state[f"model.{name}"] = state[f"model.{name}"] + 1
        with pytest.raises(TaskError, match=rf"model\.{name} is frozen"):
            net.load_state_dict(state)
        wrapper = nn.ModuleDict({"net": net})
        with pytest.raises(RuntimeError, match=rf"net\.model\.{name} is frozen"):
            wrapper.load_state_dict({f"net.{key}": tensor for key, tensor in state.items()})
        net.verify()
    assert torch.equal(net(-x, task="a"), before)
    net.model.low += 1
    with pytest.raises(ForgettingError, match="low is not what it was"):
        net.verify()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("head", "backend"), [("multi", "inductor"), ("single", "aot_eager")])
@pytest.mark.filterwarnings("ignore")  # What the compiler itself warns about is not ours.
def test_compile(head, backend, device):
    torch.compiler.reset()
    learn_three_tasks("mlp", head=head, device=device, backend=backend)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_is_that_of_the_network_itself(device):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(8, 20, device=device)
    net = clnp.ContinualNet(clnp.models.MLP(20, (24, 18), 5).to(device), x)
    net.begin_task("a")
    net.end_task({"fc1": range(9), "fc2": range(5)})
    net.begin_task("b")
    torch.testing.assert_close(torch.compile(net, backend="aot_eager")(x), net(x))


@pytest.mark.parametrize("num_outputs", [10**12, 2**63 - 1])
def test_more_outputs_than_fit_in_memory_are_refused(num_outputs):
    net = clnp.ContinualNet(mlp(), torch.zeros(2, 6))
    expected = f"a Linear of 5 inputs and {num_outputs} outputs needs"
    with pytest.raises(ArgumentError, match=expected):
        net.begin_task("a", num_outputs)
    assert net.open_task is None
    net.begin_task("a", 4)


@pytest.mark.parametrize("num", [10**12, 2**63 - 1])
def test_more_neurons_than_fit_in_memory_are_refused(num):
    net = clnp.ContinualNet(mlp(), torch.zeros(2, 6))
    with pytest.raises(ArgumentError, match=r"the network needs .* [GT]B of memory"):
        net.widen({"fc1": num})
    with pytest.raises(ArgumentError, match="of at most 64 bits"):
        net.widen({"fc1": 10**30})
    assert net.ledger.sizes["fc1"] < 100
