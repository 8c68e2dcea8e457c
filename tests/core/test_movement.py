import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clnp import ContinualNet
from clnp.core.movement import sums_of
from clnp.errors import TaskError
from support.networks import example, make, mlp, train

X = example("mlp")
Y = torch.arange(len(X)) % 4

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
}
CALLS = {
    "measure_activity": lambda net: net.measure_activity([X]),
    "measure_contribution": lambda net: net.measure_contribution([X]),
    "measure_taylor": lambda net: net.measure_taylor([(X, Y)], F.cross_entropy),
    "plan_pruning": lambda net: net.plan_pruning(None, thresholds=0),
    "end_task": lambda net: net.end_task(),
}


def trained_with(optimizer, net, *, zero=lambda: None):
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        optimizer.step()
        zero()


def in_second_task():
    """Return a network in its second task, and the optimizer of the first one."""
    net = make()
    net.begin_task("a")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trained_with(optimizer, net)
    net.end_task({"fc1": [0, 1], "fc2": [0]})
    net.begin_task("b")
    return net, optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_task_that_was_trained_raises_nothing(kind):
    net = make()
    for task in ("a", "b"):
        net.begin_task(task)
        trained_with(OPTIMIZERS[kind](net.parameters()), net)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net.measure_activity([X])
            net.end_task({"fc1": [0, 1], "fc2": [0]})


UNMOVED = (
    "no weight of task 'b' has moved since it began, and its Parameters have gradients: "
    ".* new Trainer for each task$"
)


@pytest.mark.parametrize("call", ["plan_pruning", "end_task"])
def test_an_optimizer_of_an_earlier_task_is_an_error(call):
    net, optimizer = in_second_task()
    trained_with(optimizer, net)
    for _ in range(2):
        with pytest.raises(TaskError, match=UNMOVED):
            CALLS[call](net)
    trained_with(torch.optim.SGD(net.parameters(), lr=0.1), net)
    net.end_task(net.plan_pruning(net.measure_activity([X]), thresholds=0))


@pytest.mark.parametrize("call", ["measure_activity", "measure_contribution", "measure_taylor"])
def test_measuring_warns_of_an_optimizer_of_an_earlier_task(call):
    net, optimizer = in_second_task()
    trained_with(optimizer, net)
    with pytest.warns(UserWarning, match=UNMOVED) as seen:
        CALLS[call](net)
    assert seen[0].filename == __file__
    with pytest.raises(TaskError, match=UNMOVED):
        net.end_task()


def test_measuring_before_the_first_step_leaves_the_training_alone():
    net, _ = in_second_task()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 2, 1))
    trained_with(optimizer, net)
    with pytest.warns(UserWarning, match="a learning rate of 0"):
        net.measure_activity([X])
    warmup.step()
    trained_with(optimizer, net)
    net.end_task(net.plan_pruning(net.measure_activity([X]), thresholds=0))


@pytest.mark.parametrize("call", ["measure_activity", "measure_contribution", "end_task"])
def test_an_old_optimizer_is_told_apart_without_gradients(call):
    net, optimizer = in_second_task()
    trained_with(optimizer, net, zero=net.zero_grad)  # As the Trainer of Hugging Face does.
    with pytest.warns(UserWarning, match="Parameters of an earlier task are still in use") as seen:
        CALLS[call](net)
    assert seen[0].filename == __file__
    del optimizer
    with warnings.catch_warnings():  # Once.
        warnings.simplefilter("error")
        if net.open_task:
            net.end_task()


def test_a_task_without_gradients_was_not_trained():
    net, _ = in_second_task()
    del _
    message = "it got no gradients: a Trainer that has .* Train net itself, with a new Trainer"
    with pytest.warns(UserWarning, match=message):
        net.end_task()
    assert net.tasks == ("a", "b")


@pytest.mark.parametrize(
    "move",
    [
        lambda p: p.data.add_(1),
        lambda p: setattr(p, "data", p.data + 1),
        lambda p: p.detach().numpy().__iadd__(1),
    ],
)
def test_any_way_to_move_a_weight_counts(move):
    net = make()
    net.begin_task("a")
    move(next(net.parameters()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.end_task()


def test_loaded_and_restored_weights_have_moved():
    net = make()
    net.begin_task("a")
    train(net, X)
    trained, tensors = net.open_state(), net.state_dict()
    for restore in (lambda: net.set_open_state(trained), lambda: net.load_state_dict(tensors)):
        net.abandon_task()
        net.begin_task("a")
        restore()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net.measure_activity([X])


def test_a_trained_model_may_end_as_it_is():
    model = mlp()
    net = ContinualNet(model, X)
    net.begin_task("deployed", initial=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.end_task()


def test_what_asks_for_no_gradients_need_not_move():
    net = make()
    net.begin_task("a")
    net.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.end_task()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_knows_how_the_task_began(copied):
    net, optimizer = in_second_task()
    trained_with(optimizer, net)
    other = copied(net)
    other.zero_grad()
    with pytest.warns(UserWarning, match="no weight of task 'b' has moved"):
        other.end_task()


def test_sums_are_those_of_all_bits():
    weights = [nn.Parameter(torch.randn(3, 5, 2, 3)), nn.Parameter(torch.randn(7).half())]
    before = sums_of(weights)
    weights[0].data = weights[0].data.contiguous(memory_format=torch.channels_last)
    assert torch.equal(sums_of(weights), before)
    for weight in weights:
        last = weight.data.view(-1) if weight.ndim == 1 else weight.data[2, 4, 1]
        last[-1] = torch.nextafter(last[-1:].float(), torch.tensor(9.0)).to(last.dtype) + (
            weight.dtype == torch.float16
        )
        assert not torch.equal(sums_of(weights), before)
        before = sums_of(weights)
    assert sums_of([]) is None


def test_the_sum_of_a_part_of_a_flat_tensor_is_that_of_its_copy():
    part = nn.Parameter(torch.randn(20)[3:14])
    assert torch.equal(sums_of([part]), sums_of([nn.Parameter(part.detach().clone())]))
