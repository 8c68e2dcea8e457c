"""What an observer sees of a forward pass, and how layers are followed."""

import numpy as np
import pytest
import torch
from torch import nn

from clnp.core.structure.axis import Segment
from clnp.core.structure.discover import discover
from clnp.core.structure.rules import Groups, Mark, Neurons
from clnp.core.structure.trace import Moment, Recorder, observe
from clnp.errors import GraphError
from support.assembled import Assembled

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


class Doubled(nn.Linear):
    def forward(self, input):
        return super().forward(input) + 0


def test_layers_are_seen_from_outside_and_operations_with_their_module():
    inner = nn.Sequential(Doubled(4, 4), nn.ReLU())
    model = Assembled(lambda m, x: m.inner(x.tanh()).shape and m.inner(x) * 2, inner=inner)
    seen, inputs = [], ((torch.ones(1, 4),), {})

    def see(moment):
        seen.append(moment)
        return moment.run()

    out = observe(model, inputs, observer=see, opaque=["inner.0"])
    assert torch.equal(out, inner(torch.ones(1, 4)) * 2)
    once = [("inner.0", "Doubled"), ("inner.1", "relu")]
    places = [(moment.path, moment.name) for moment in seen]
    assert places == [("", "tanh"), *once, *once, ("", "mul")]
    assert [moment.layer for moment in seen[:3]] == [None, inner[0], None]
    assert seen[-1].source.startswith("test_trace.py:")
    assert not out.requires_grad
    assert observe(model, inputs, observer=see, opaque=["inner.0"], with_grad=True).requires_grad


def test_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    own = lambda x: x  # noqa: E731
    model[1].forward = own

    def fail(moment):
        raise KeyError

    with pytest.raises(KeyError):
        observe(model, ((torch.ones(1, 4),), {}), observer=fail, opaque=["0"])
    assert "forward" not in vars(model[0])
    assert model[1].forward is own


def test_operations_draw_the_same_numbers_whatever_ran_before_them():
    drawn = []

    def run(m, x):
        torch.rand(m.num)
        drawn.append(torch.rand(3))
        return x

    for num in (1, 7):
        model = Assembled(run)
        model.num = num
        observe(model, ((torch.ones(1),), {}), observer=Moment.run, opaque=[])
    assert torch.equal(*drawn)


def test_problem_says_where():
    moment = Moment("add", "block.0", "net.py:7", torch.add, (), {})
    problem = moment.problem("this does not go", "Do that")
    assert str(problem) == "block.0: this does not go (add, net.py:7). Do that"
    assert moment.problem("'add' fails", "").found == "'add' fails (net.py:7)"
    layer = Moment("Linear", "", "", torch.add, (), {}, nn.Linear(1, 1))
    assert str(layer.problem("no", "Yes")) == "(model): no. Yes"


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
    recorder.finish()
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


FLAT = (nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(144, 2))
PLACED = {
    "linear": (
        nn.Sequential(nn.Conv2d(3, 6, 1), nn.Linear(6, 4), nn.Flatten(), nn.Linear(144, 2)),
        IMAGES, "1", "Linear reads neurons along dimension 1 of (2, 6, 6, 6), where it expects "
        "them along dimension 3",
    ),
    "convolution": (
        Assembled(
            lambda m, x: m.fc(m.second(m.first(x).transpose(1, 2)).flatten(1)),
            first=nn.Conv2d(3, 6, 1), second=nn.Conv2d(6, 4, 1), fc=nn.Linear(144, 2),
        ),
        IMAGES, "second", "Conv2d reads neurons along dimension 2",
    ),
    "norm": (
        Assembled(
            lambda m, x: m.fc(m.norm(m.first(x)).flatten(1)),
            first=nn.Linear(6, 4), norm=nn.BatchNorm1d(6), fc=nn.Linear(24, 2),
        ),
        torch.randn(2, 6, 6), "norm", "BatchNorm1d reads neurons along dimension 2",
    ),
    "norm on the input": (nn.Sequential(nn.BatchNorm2d(3), *FLAT), IMAGES, "0", "(3 of the input)"),
    "depthwise on the input": (
        nn.Sequential(nn.Conv2d(3, 3, 1, groups=3), *FLAT),
        IMAGES, "0", "Conv2d acts on the network's input (3 of the input)",
    ),
    "norm over neurons and input": (
        Assembled(
            lambda m, x: m.fc(m.norm(torch.cat([m.first(x), x], 1))),
            first=nn.Linear(6, 4), norm=nn.BatchNorm1d(10), fc=nn.Linear(10, 2),
        ),
        VECTORS, "norm", "acts on the network's input (4 of 'first' + 6 of the input)",
    ),
    "layer on a tensor from elsewhere": (
        Assembled(
            lambda m, x: m.fc(m.first(x) + m.other(VECTORS)),
            first=nn.Linear(6, 4), other=nn.Linear(6, 4), fc=nn.Linear(4, 2),
        ),
        VECTORS.clone(), "other", "Linear reads a tensor of unknown origin",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_layers_that_cannot_read_what_they_are_given(name):
    model, example, where, found = PLACED[name]
    problem = only_problem(model, example)
    assert problem.where == where
    assert found in problem.found


@pytest.mark.parametrize("channels", [1, 3])
def test_convolution_without_batch(channels):
    model = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.Flatten(1), nn.Linear(36, 2))
    problem = only_problem(model, torch.randn(channels, 6, 6))
    assert problem.where == "0"
    assert "Conv2d is called without a batch dimension" in problem.found


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
