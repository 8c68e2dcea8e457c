import pytest
import torch

from clnp.core import OpenState
from clnp.errors import TaskError
from support.networks import HEADS, NETWORKS, example, learn, make, train


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
