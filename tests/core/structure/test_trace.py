"""How layers are followed: where they want their neurons, and what they may read."""

import numpy as np
import pytest
import torch
from torch import nn

from clnp.core.structure.axis import Segment
from clnp.core.structure.discover import discover
from clnp.core.structure.rules import Groups, Mark, Neurons
from clnp.core.structure.trace import Recorder, observe
from clnp.errors import GraphError
from support.assembled import Assembled

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


def only_problem(model, example):
    with pytest.raises(GraphError) as caught:
        discover(model, example)
    [problem] = caught.value.problems
    return problem


def record(model, x, *, classifier):
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    recorder = Recorder(layers, (), classifier=classifier, groups=Groups())
    recorder.begin(model, x)
    out = observe(model, ((x,), {}), observer=recorder.see, opaque=layers)
    return recorder, out


def test_states_of_tensors():
    kept = {}

    def run(m, x):
        kept["input"] = x * 2
        kept["hidden"] = m.first(x)
        kept["constant"] = torch.zeros(3) + m.held
        kept["unknown"] = kept["hidden"].sum()
        kept["outputs"] = m.fc(kept["hidden"]).exp()
        return kept["outputs"] + kept["unknown"]

    model = Assembled(run, first=nn.Linear(6, 4), fc=nn.Linear(4, 2))
    model.held = torch.ones(3)
    recorder, out = record(model, VECTORS, classifier="fc")
    assert recorder.state(kept["input"]) is Mark.INPUT
    assert recorder.state(kept["hidden"]) == Neurons(1, (Segment("first", 4),))
    assert recorder.state(kept["constant"]) is Mark.CONSTANT
    assert recorder.state(kept["outputs"]) is Mark.OUTPUTS
    assert recorder.state(kept["unknown"]) is Mark.UNKNOWN
    assert recorder.state(out) is Mark.UNKNOWN
    assert recorder.state(torch.ones(1)) is Mark.UNSEEN
    assert recorder.rows == {"first": (Segment("first", 4),), "fc": ()}
    assert recorder.columns == {"first": (Segment(None, 6),), "fc": (Segment("first", 4),)}
    assert [event.name for event in recorder.events] == [
        "mul", "Linear", "zeros", "add", "sum", "Linear", "exp", "add",
    ]  # fmt: skip
    assert all(event.result.is_meta for event in recorder.events)
    recorder.forget()
    assert recorder.state(out) is Mark.UNSEEN


def test_dead_tensors_do_not_lend_their_state():
    kept = []

    def run(m, x):
        for _ in range(50):
            x * 2
            kept.append(torch.from_numpy(np.ones(6)))  # no operation that a mode can see
        return m.fc(m.first(x))

    model = Assembled(run, first=nn.Linear(6, 4), fc=nn.Linear(4, 2))
    recorder, _ = record(model, VECTORS, classifier="fc")
    assert {recorder.state(tensor) for tensor in kept} == {Mark.UNSEEN}


def test_linear_reads_the_last_dimension():
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Linear(6, 4), nn.Flatten(), nn.Linear(144, 2))
    problem = only_problem(model, IMAGES)
    assert problem.where == "1"
    assert "Linear reads neurons along dimension 1 of (2, 6, 6, 6)" in problem.found
    assert "expects them along dimension 3" in problem.found


def test_convolution_reads_the_second_dimension():
    model = Assembled(
        lambda m, x: m.fc(m.second(m.first(x).transpose(1, 2)).flatten(1)),
        first=nn.Conv2d(3, 6, 1), second=nn.Conv2d(6, 4, 1), fc=nn.Linear(144, 2),
    )  # fmt: skip
    assert "Conv2d reads neurons along dimension 2" in only_problem(model, IMAGES).found


def test_norm_acts_on_the_second_dimension():
    model = Assembled(
        lambda m, x: m.fc(m.norm(m.first(x)).flatten(1)),
        first=nn.Linear(6, 4), norm=nn.BatchNorm1d(5), fc=nn.Linear(20, 2),
    )  # fmt: skip
    problem = only_problem(model, torch.randn(2, 5, 6))
    assert problem.where == "norm"
    assert "BatchNorm1d reads neurons along dimension 2" in problem.found


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1, groups=3), nn.PReLU(3)], ids=repr
)
def test_layers_for_each_channel_need_neurons(layer):
    model = nn.Sequential(layer, nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(144, 2))
    problem = only_problem(model, IMAGES)
    assert problem.where == "0"
    assert "acts on the network's input (3 of the input)" in problem.found


def test_norm_over_neurons_and_input():
    model = Assembled(
        lambda m, x: m.fc(m.norm(torch.cat([m.first(x), x], 1))),
        first=nn.Linear(6, 4), norm=nn.BatchNorm1d(10), fc=nn.Linear(10, 2),
    )  # fmt: skip
    problem = only_problem(model, VECTORS)
    assert "acts on the network's input (4 of 'first' + 6 of the input)" in problem.found


@pytest.mark.parametrize("channels", [1, 3])
def test_convolution_without_batch(channels):
    model = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.Flatten(1), nn.Linear(36, 2))
    with pytest.raises(GraphError) as caught:
        discover(model, torch.randn(channels, 6, 6))
    assert caught.value.problems[0].where == "0"
    assert "Conv2d is called without a batch dimension" in caught.value.problems[0].found


def test_tensor_of_unknown_origin():
    class Hidden:
        made = torch.ones(2, 6)

    def run(m, x):
        return m.fc(m.first(x) + m.other(Hidden.made))

    model = Assembled(run, first=nn.Linear(6, 4), other=nn.Linear(6, 4), fc=nn.Linear(4, 2))
    problem = only_problem(model, VECTORS)
    assert problem.where == "other"
    assert "Linear reads a tensor of unknown origin" in problem.found


def test_custom_function_is_followed_from_inside():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    model = Assembled(
        lambda m, x: m.fc(Double.apply(m.first(x))), first=nn.Linear(6, 4), fc=nn.Linear(4, 2)
    )
    assert discover(model, VECTORS).groups == {"first": 4}
