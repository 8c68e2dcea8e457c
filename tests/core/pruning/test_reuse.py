import pytest
import torch
from torch.nn import functional as F

from clnp.core.pruning.reuse import num_reused
from support.networks import NETWORKS, example, first, learn, make


def second_task():
    """An open task beside three neurons of `fc1` and two of `fc2`, all of whose inputs are 1."""
    net = make().double()
    net.begin_task("a")
    net.end_task(first({"fc1": 3, "fc2": 2}))
    net.begin_task("b")
    inputs = net.measure_activity([example("mlp").double()]).inputs
    for means in inputs.values():
        for values in means.values():
            values.fill_(1.0)
    layer = net.model.fc2
    with torch.no_grad():
        layer.weight_reuse.zero_(), layer.weight_free.zero_()
        layer.weight_free[0, 0] = 98.5
        net.model.fc3.weight_reuse.zero_()
    return net, layer, inputs


ALL = {"fc1": range(4), "fc2": range(3)}


def test_reused_neurons_are_among_the_fewest_that_make_up_99_percent():
    net, layer, inputs = second_task()
    with torch.no_grad():
        layer.weight_reuse[0, 0] = -1.2
        layer.weight_reuse[1, 1] = 0.2
    assert num_reused(net._body, inputs, ALL) == {"fc1": 1, "fc2": 0}
    with torch.no_grad():
        layer.weight_reuse[0, 1] = 0.9
    assert num_reused(net._body, inputs, ALL) == {"fc1": 2, "fc2": 0}


def test_neurons_that_do_not_fire_are_not_reused():
    net, layer, inputs = second_task()
    with torch.no_grad():
        layer.weight_reuse[0] = 50.0
    assert num_reused(net._body, inputs, ALL)["fc1"] == 3
    silent = {path: dict(means) for path, means in inputs.items()}
    for running, values in silent["fc2"].items():
        if len(values) == 3:
            silent["fc2"][running] = torch.tensor([0.0, 1.0, 0.0]).double()
    assert num_reused(net._body, silent, ALL)["fc1"] == 1


def test_only_what_the_task_keeps_counts():
    net, layer, inputs = second_task()
    with torch.no_grad():
        layer.weight_reuse[0, 0], layer.weight_reuse[1, 1] = 50.0, 0.2
    assert num_reused(net._body, inputs, {**ALL, "fc2": [1, 2]})["fc1"] == 1
    # Without the new neuron, the small weight is a large part.
    assert num_reused(net._body, inputs, ALL)["fc1"] == 1
    with torch.no_grad():
        layer.weight_reuse[0, 0] = 0.3
    assert num_reused(net._body, inputs, ALL)["fc1"] == 0
    assert num_reused(net._body, inputs, {**ALL, "fc1": [1, 2]})["fc1"] == 2


def test_the_head_reuses_neurons_too():
    net, _, inputs = second_task()
    with torch.no_grad():
        net.model.fc3.weight_reuse[1, 1] = 9.0
    assert num_reused(net._body, inputs, ALL) == {"fc1": 0, "fc2": 1}
    assert num_reused(net._body, inputs, {"fc1": [], "fc2": []}) == {"fc1": 0, "fc2": 1}


def test_without_what_the_layers_read_nothing_is_known():
    net, _, _ = second_task()
    assert num_reused(net._body, None, ALL) == {"fc1": None, "fc2": None}


def test_a_single_head_reuses_no_neuron_of_its_layer():
    net, x = make(head="single"), example("mlp")
    learn(net, "a", x)
    net.begin_task("b")
    reused = net.plan_pruning(net.measure_activity([x]), thresholds=0.0).reused
    assert reused["fc2"] == 0
    assert 0 < reused["fc1"] <= net.capacity().of("a", "fc1").new


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("head", ["multi", "single"])
def test_every_network_counts_the_same_whatever_it_is_pruned_by(name, head):
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    measured = [
        net.measure_activity([x]),
        net.measure_contribution([x]),
        net.measure_taylor([(x, torch.arange(len(x)) % 4)], F.cross_entropy),
    ]
    keep = {group: range(num) for group, num in net.ledger.free().items()}
    counts = [num_reused(net._body, each.inputs, keep) for each in measured]
    assert counts[0] == counts[1] == counts[2]
    others = set(counts[0]) - net._body._head_only
    assert bool(others) is any(counts[0].values())
    plan = net.plan_pruning(measured[0], thresholds=-1.0)
    assert plan.reused == counts[0]
    net.end_task(plan)
    assert {g: net.capacity().of("b", g).reused for g in counts[0]} == counts[0]
