import math

import numpy as np
import pytest
import torch
from torch import nn

import clnp
from clnp.checks import check_kind, listed, number_of_seconds
from clnp.core.net import check_room, checked_outputs
from clnp.core.penalty import alpha_by_layer
from clnp.core.pruning.subsets import told
from clnp.core.pruning.thresholds import extra_by_group, neurons_by_group, threshold_by_group
from clnp.core.structure.graph import Graph
from clnp.errors import ArgumentError, CapacityError, PruningError
from support.networks import ConvNet, example


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


def test_a_score_is_told_what_is_needed_if_it_takes_it():
    assert told(lambda predict, at_least: (predict, at_least), 3.0)("net") == ("net", 3.0)
    assert told(lambda predict, at_least=1.0: (predict, at_least), None)("net") == ("net", None)
    assert told(lambda predict: predict, 3.0)("net") == "net"
    assert told(max, 3.0) is max  # Its signature is not known.


def test_one_alpha_is_for_all_layers(graph):
    assert alpha_by_layer(graph, 2) == dict.fromkeys(graph.sites, 2.0)
    assert alpha_by_layer(graph, np.float64(0.5))["fc1"] == 0.5


def test_alpha_may_name_layers(graph):
    assert alpha_by_layer(graph, {"fc1": 1, "conv2": 0.5}) == {"fc1": 1.0, "conv2": 0.5}
    assert alpha_by_layer(graph, {}) == {}


def test_alpha_of_a_module_is_for_the_layers_in_it(nested):
    assert alpha_by_layer(nested, {"a": 3}) == {"a.0": 3.0, "a.2": 3.0}


@pytest.mark.parametrize("order", [1, -1])
def test_the_longest_path_counts(nested, order):
    alpha = dict([("a", 3.0), ("a.2", 5.0)][::order])
    assert alpha_by_layer(nested, alpha) == {"a.0": 3.0, "a.2": 5.0}


def test_alpha_of_an_unknown_layer_is_refused_with_the_nearest_one(graph):
    with pytest.raises(ArgumentError, match=r"unknown layer 'fc9'; did you mean 'fc[12]'\?"):
        alpha_by_layer(graph, {"fc9": 1.0})
    with pytest.raises(ArgumentError, match="unknown layer ''"):
        alpha_by_layer(graph, {"": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None, "1"])
def test_alpha_that_is_no_number_is_refused(graph, value):
    with pytest.raises(ArgumentError, match=f"alpha is {value!r}; it must be a finite number"):
        alpha_by_layer(graph, value)
    with pytest.raises(ArgumentError, match=f"alpha of fc1 is {value!r}; it must be a finite"):
        alpha_by_layer(graph, {"fc1": value})


def test_negative_alpha_is_refused(graph):
    with pytest.raises(ArgumentError, match=r"alpha is -0\.1; it must be 0 or more"):
        alpha_by_layer(graph, -0.1)
    with pytest.raises(ArgumentError, match="alpha of fc1 is -1; it must be 0 or more"):
        alpha_by_layer(graph, {"fc1": -1})


def test_one_threshold_is_for_all_groups(graph):
    assert threshold_by_group(graph, 2, otherwise=-1) == {"conv1": 2.0, "conv2": 2.0, "fc1": 2.0}


def test_thresholds_name_groups_or_layers_in_them(graph):
    found = threshold_by_group(graph, {"bn1": 0.5, "fc1": math.inf}, otherwise=-1)
    assert found == {"conv1": 0.5, "conv2": -1, "fc1": math.inf}


@pytest.mark.parametrize("name", ["fc2", "dropout", "conv9"])
def test_a_threshold_for_no_group_is_refused(graph, name):
    with pytest.raises(ArgumentError, match=f"unknown group '{name}'.*Known: conv1, conv2, fc1"):
        threshold_by_group(graph, {name: 0.0}, otherwise=-1)


def test_a_layer_that_acts_on_two_groups_names_neither():
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 2)
            self.norm, self.fc = nn.BatchNorm1d(5), nn.Linear(5, 4)

        def forward(self, x):
            return self.fc(self.norm(torch.cat([self.left(x), self.right(x)], 1)).relu())

    joined = clnp.ContinualNet(Joined(), torch.randn(4, 6)).graph
    with pytest.raises(ArgumentError, match=r"unknown group 'norm'\. Known: left, right"):
        threshold_by_group(joined, {"norm": 0.0}, otherwise=-1)


@pytest.mark.parametrize("value", [math.nan, False, None, "0"])
def test_a_threshold_that_is_no_number_is_refused(graph, value):
    with pytest.raises(ArgumentError, match=f"threshold is {value!r}; it must be a number"):
        threshold_by_group(graph, value, otherwise=-1)
    with pytest.raises(ArgumentError, match=f"threshold of fc1 is {value!r}; it must be a number"):
        threshold_by_group(graph, {"fc1": value}, otherwise=-1)


AVAILABLE = {"conv1": 6, "conv2": 5, "fc1": 7}


@pytest.mark.parametrize(
    "neurons",
    [[4, 0], (4, 0), {0, 4}, torch.tensor([4, 0]), np.array([4, 0]), iter([4, 0])],
)
def test_neurons_may_be_given_in_any_form_and_order(graph, neurons):
    found = neurons_by_group(graph, {"bn1": neurons}, AVAILABLE)
    assert {group: list(values) for group, values in found.items()} == {
        "conv1": [0, 4],
        "conv2": [0, 1, 2, 3, 4],
        "fc1": [0, 1, 2, 3, 4, 5, 6],
    }


def test_no_neurons_may_be_named(graph):
    assert neurons_by_group(graph, {"fc1": []}, AVAILABLE)["fc1"] == []
    assert neurons_by_group(graph, {"fc1": torch.tensor([])}, AVAILABLE)["fc1"] == []


@pytest.mark.parametrize("value", [7, -1])
def test_a_neuron_that_is_not_there_is_refused(graph, value):
    expected = f"fc1: there is no free neuron {value}; the open task has 7, numbered from 0"
    with pytest.raises(PruningError, match=expected):
        neurons_by_group(graph, {"fc1": [0, value]}, AVAILABLE)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_something_else_than_a_number_is_no_neuron(graph, value):
    with pytest.raises(PruningError, match=f"fc1: {value!r} is not the number of a neuron"):
        neurons_by_group(graph, {"fc1": [value]}, AVAILABLE)


def test_a_mask_is_no_list_of_neurons(graph):
    with pytest.raises(PruningError, match="fc1: True is not the number of a neuron"):
        neurons_by_group(graph, {"fc1": torch.ones(7, dtype=torch.bool)}, AVAILABLE)


def test_a_neuron_that_is_named_twice_is_refused(graph):
    with pytest.raises(PruningError, match="fc1: a neuron is named twice"):
        neurons_by_group(graph, {"fc1": [1, 2, 1]}, AVAILABLE)


def test_neurons_of_an_unknown_group_are_refused(graph):
    with pytest.raises(ArgumentError, match="unknown group 'fc2'"):
        neurons_by_group(graph, {"fc2": [0]}, AVAILABLE)


def test_neurons_without_groups_are_no_plan(graph):
    with pytest.raises(PruningError, match="a list is no plan; give one of plan_pruning, or the"):
        neurons_by_group(graph, [0, 1], AVAILABLE)


def test_a_group_is_widened_through_any_layer_in_it(graph):
    assert extra_by_group(graph, {"bn1": 2, "fc1": 0}) == {"conv1": 2, "fc1": 0}


def test_a_group_may_go_by_one_name_only(graph):
    twice = pytest.raises(ArgumentError, match="bn1 and conv1 are the same group; name it once")
    with twice:
        extra_by_group(graph, {"conv1": 1, "bn1": 2})
    with twice:
        threshold_by_group(graph, {"conv1": 0.1, "bn1": 0.2}, otherwise=-1.0)
    with twice:
        neurons_by_group(graph, {"conv1": [0], "bn1": [1]}, {"conv1": 6, "conv2": 5, "fc1": 7})


@pytest.mark.parametrize("count", [-1, 1.0, True, None])
def test_a_number_of_extra_neurons_that_makes_no_sense_is_refused(graph, count):
    expected = f"widen fc1 by {count!r}: it must be a whole number, 0 or more"
    with pytest.raises(ArgumentError, match=expected):
        extra_by_group(graph, {"fc1": count})
    with pytest.raises(ArgumentError, match="unknown group 'fc2'; did you mean 'fc1'"):
        extra_by_group(graph, {"fc2": 1})


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
    expected = f"num_outputs is {value!r}; it must be a whole number, 1 or more"
    with pytest.raises(ArgumentError, match=expected):
        checked_outputs(value, own=4, single=False)


def test_a_single_head_has_no_more_outputs_than_the_classifier():
    expected = 'num_outputs is 5, and the single head has 4 for all tasks; .* use head="multi"'
    with pytest.raises(ArgumentError, match=expected):
        checked_outputs(5, own=4, single=True)


def is_number(value):
    return isinstance(value, int)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_kind("it", [], dict, "a mapping"), "it is a list; it must be a mapping"),
        (lambda: listed("it", 3, is_number, what="numbers"), "it is a int; give a list of numbers"),
        (lambda: listed("it", "3", is_number, what="x"), "it is a str; give a list of x"),
        (lambda: listed("it", None, is_number, what="x"), "it is a NoneType; give a list of x"),
        (lambda: listed("it", [3, "3"], is_number, what="x"), "it holds a str; give a list of x"),
        (
            lambda: number_of_seconds("it", "x"),
            "it is 'x'; it must be a number of seconds, 0 or more",
        ),
        (
            lambda: number_of_seconds("it", -1),
            "it is -1; it must be a number of seconds, 0 or more",
        ),
        (
            lambda: number_of_seconds("it", math.nan),
            "it is nan; it must be a number of seconds, 0 or more",
        ),
    ],
)
def test_an_argument_of_another_kind_is_refused_by_its_name(call, message):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert caught.value.argument == "it"


def test_arguments_come_back_as_they_are_used():
    check_kind("it", [], list, "a list")
    assert listed("it", (n for n in (1, 2)), is_number, what="numbers") == [1, 2]
    assert number_of_seconds("it", np.float32(2)) == 2.0
    assert number_of_seconds("it", math.inf) == math.inf
