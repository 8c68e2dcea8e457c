"""Groups of whole models; and the problems that only a whole model shows.

`test_oracle.py` has the groups of random networks of five families.
"""

import copy
import functools
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clnp.core.structure.axis import Segment
from clnp.core.structure.declared import takes_task
from clnp.core.structure.discover import discover
from clnp.errors import ArgumentError, GraphError
from support.assembled import Assembled

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
VECTORS = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))


def net(run, **layers):
    """A model with the layers `first` (12 to 8), the given ones and `fc` (8 to 2)."""
    first, fc = nn.Linear(12, 8), nn.Linear(8, 2)
    return Assembled(run, **{"first": first, **layers, "fc": layers.get("fc", fc)})


def problems_of(model, example, **kwargs):
    with pytest.raises(GraphError) as caught:
        discover(model, example, **kwargs)
    return caught.value.problems


def mlp(*sizes):
    layers = [nn.Flatten()]
    for num_in, num_out in itertools.pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def test_flatten_makes_each_channel_a_block():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Flatten(), nn.BatchNorm1d(144), nn.PReLU(144), nn.Linear(144, 2)
    )
    graph = discover(model, IMAGES)
    assert graph.groups == {"0": 4}
    assert graph.sites["2"].rows == graph.sites["3"].rows == (Segment("0", 4, 36),)
    assert graph.sites["4"].columns == (Segment("0", 4, 36),)


def test_last_convolution_is_the_classifier():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 7, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    graph = discover(model, IMAGES)
    assert graph.classifier == "2"
    assert graph.groups == {"0": 4}


def test_layer_that_adds_to_what_it_reads_mixes():
    def run(m, x):
        h = m.first(x)
        return m.fc(h + m.inner(h))

    graph = discover(net(run, inner=nn.Linear(8, 8)), VECTORS)
    assert graph.sites["inner"].rows == graph.sites["inner"].columns == (Segment("first", 8),)
    assert [site.path for site in graph.readers("first")] == ["inner", "fc"]


def test_one_and_three_dimensional_convolutions():
    def run(m, x):
        h = F.leaky_relu(m.bn3(m.conv3(x)))
        h = h.flatten(3).mean(2)
        h = F.avg_pool1d(m.bn1(m.depthwise(m.conv1(h))), 2)
        return m.fc(m.prelu(h).flatten(1))

    model = Assembled(
        run,
        conv3=nn.Conv3d(2, 4, 3, padding="same", padding_mode="reflect"),
        bn3=nn.BatchNorm3d(4, affine=False),
        conv1=nn.Conv1d(4, 6, 3, bias=False),
        depthwise=nn.Conv1d(6, 6, 3, groups=6),
        bn1=nn.BatchNorm1d(6),
        prelu=nn.PReLU(6),
        fc=nn.Linear(36, 3),
    )
    graph = discover(model, torch.randn(1, 2, 4, 4, 4))
    assert graph.groups == {"conv3": 4, "conv1": 6}
    assert graph.sites["depthwise"].kind == "DepthwiseConv1d"
    for path in ("depthwise", "bn1", "prelu"):
        assert graph.sites[path].rows == (Segment("conv1", 6),)


def test_in_place_operations_and_nested_containers():
    def run(m, x):
        h = m.layers[0](x).relu_()
        h.add_(m.layers[1](h)).mul_(0.5)
        h += 1
        h -= m.by_name["out"](h)
        h[0] = 0.0
        h.unsqueeze_(0).transpose_(0, 2)
        h.transpose_(0, 2).squeeze_(0)
        return h

    block = Assembled(
        run,
        layers=nn.ModuleList([nn.Linear(12, 12), nn.Linear(12, 12)]),
        by_name=nn.ModuleDict({"out": nn.Linear(12, 12)}),
    )
    graph = discover(nn.Sequential(block, nn.Linear(12, 2)), VECTORS)
    assert graph.groups == {"0.layers.0": 12}


def test_tokens_and_permuted_channels():
    def run(m, x):
        batch, _, height, width = x.shape
        h = m.conv(x).permute(0, 2, 3, 1)
        h = m.inner(h.reshape(batch * height, width, -1)).relu()
        h = h.view(batch, height * width, h.shape[-1]).transpose(1, 2)
        return m.fc(h.softmax(-1).sum(-1))

    model = Assembled(run, conv=nn.Conv2d(3, 5, 1), inner=nn.Linear(5, 7), fc=nn.Linear(7, 2))
    assert discover(model, IMAGES).groups == {"conv": 5, "inner": 7}


@pytest.mark.parametrize("example", [(IMAGES, VECTORS), {"x": IMAGES, "y": VECTORS}])
def test_several_inputs(example):
    def run(m, x, y):
        return m.fc(torch.cat([m.conv(x).flatten(1), m.linear(y), y], 1))

    model = Assembled(
        run, conv=nn.Conv2d(3, 2, 3), linear=nn.Linear(12, 4), fc=nn.Linear(72 + 4 + 12, 2)
    )
    assert discover(model, example).sites["fc"].columns == (
        Segment("conv", 2, 36), Segment("linear", 4), Segment(None, 12),
    )  # fmt: skip


def test_control_flow_may_depend_on_the_input():
    def run(m, x):
        h = m.first(x) if x.mean().item() > 0 and bool((x > 0).any()) else m.first(-x).tanh()
        for _ in range(int(x.abs().max()) + 1):
            h = h * 0.5
        return m.fc(h)

    for example in (VECTORS.abs(), -VECTORS.abs()):
        assert discover(net(run), example).groups == {"first": 8}


def test_constants_are_the_buffers_outside_of_layers():
    """Those too that the example does not lead to."""
    model = net(
        lambda m, x: m.fc(m.bn(m.first((x - m.inner.mean) / m.scale))),
        inner=nn.Module(),
        bn=nn.BatchNorm1d(8),
    )
    model.inner.register_buffer("mean", torch.zeros(12))
    model.inner.register_buffer("elsewhere", torch.zeros(12))
    model.register_buffer("scale", torch.ones(()))
    assert discover(model, VECTORS).constants == ("scale", "inner.mean", "inner.elsewhere")


class MyLinear(nn.Linear):
    """A class with the forward of its base."""


def scaled_by_a_plain_subclass():
    def run(m, x):
        return m.fc(m.first(x) * m.first.factor) if isinstance(m.first, MyLinear) else x

    model = net(run, first=MyLinear(12, 8))
    model.first.factor = 2.0
    return model


def with_an_alias():
    model = net(lambda m, x: m.fc(m.alias(x)))
    model.alias = model.first
    return model


def making_tensors(m, x):
    made = torch.tensor(2.0) * torch.arange(8.0, device=x.device).amax() + x.new_ones(1)
    return m.fc(m.first(x) * made + torch.full((), 3.0))


def asking_a_weight_for_its_form(m, x):
    x = x.to(m.first.weight.device, next(m.parameters()).dtype).type_as(m.first.weight)
    return m.fc(m.first(x.to(m.first.weight.dtype)))


def returning_a_dictionary(m, x):
    logits = m.fc(m.first(x))
    return {"p": logits.softmax(1).view(-1, 2), "top": [logits.topk(1)[0] @ torch.ones(1, 1)]}


ACCEPTED = {
    "frozen parameters": lambda: net(lambda m, x: m.fc(m.first(x))).requires_grad_(False),
    "its own precision": lambda: net(lambda m, x: m.fc(m.first(x.float()))),
    "plain subclass": scaled_by_a_plain_subclass,
    "direct call of forward": lambda: net(lambda m, x: m.fc.forward(m.first.forward(x))),
    "outputs in a dictionary": lambda: net(returning_a_dictionary),
    "a copy of the input is written": lambda: net(lambda m, x: m.fc(m.first(x.clone().mul_(0.1)))),
    "fixed size": lambda: net(lambda m, x: m.fc(m.first(x.view(-1, m.first.in_features)))),
    "tensors made in forward": lambda: net(making_tensors),
    "one layer at two paths": with_an_alias,
    "the form of a weight": lambda: net(asking_a_weight_for_its_form),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    graph = discover(ACCEPTED[name](), VECTORS)
    assert graph.groups == {"first": 8}
    assert list(graph.sites) == ["first", "fc"]


def test_half_precision():
    assert discover(mlp(12, 8, 2).bfloat16(), VECTORS.bfloat16()).groups == {"1": 8}


class WithGrid(nn.Module):
    """Computes constants when it first needs them."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(4, 5, 3), nn.Conv2d(5, 2, 1)

    @functools.cached_property
    def grid(self):
        return torch.linspace(-1, 1, 8).expand(1, 1, 8, 8)

    def forward(self, x):
        return self.out(self.conv(torch.cat([x, self.grid.expand(len(x), -1, -1, -1)], 1)).relu())


def test_constants_may_stay_behind():
    assert discover(WithGrid(), IMAGES).groups == {"conv": 5}


def test_given_classifier():
    def run(m, x):
        return m.out(m.first(x)), None

    model = Assembled(run, out=nn.Linear(6, 2), first=nn.Linear(12, 6))
    assert discover(model, VECTORS, classifier="out").classifier == "out"
    with pytest.raises(ArgumentError, match=r"unknown classifier 'ou'. Did you mean 'out'"):
        discover(model, VECTORS, classifier="ou")
    with pytest.raises(ArgumentError, match="Give the path of the Linear layer or convolution"):
        discover(nn.Sequential(*mlp(12, 8, 2), nn.ReLU()), VECTORS, classifier="2")


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match=r"model is of type int\. Give a torch\.nn\.Module"):
        discover(3, VECTORS)


def test_model_and_random_numbers_are_untouched():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2)
    )
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    example = IMAGES.clone()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first, second = discover(model, example), discover(model, example)
    assert first == second
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(example, IMAGES)
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.gpu
def test_model_on_the_gpu():
    def run(m, x):
        h = m.bn(m.conv(x))[:, :, torch.arange(6, device=x.device)]
        return m.fc(F.dropout(h, training=m.training).flatten(1))

    model = Assembled(
        run, conv=nn.Conv2d(3, 4, 3), bn=nn.BatchNorm2d(4), fc=nn.Linear(144, 2)
    ).cuda()
    state = torch.cuda.get_rng_state()
    graph = discover(model, IMAGES.cuda())
    assert graph.groups == {"conv": 4}
    assert torch.equal(torch.cuda.get_rng_state(), state)


def _subtract(x):
    x -= 1
    return x


WRITES = {
    "mul": lambda x: x.mul_(0.1),
    "sub": _subtract,
    "relu": nn.ReLU(inplace=True),
    "view": lambda x: (x[0].add_(1), x)[1],
    "shape": lambda x: x.unsqueeze_(0)[0],
    "out": lambda x: torch.neg(x, out=x),
}


@pytest.mark.parametrize(
    ("name", "only"), [*((name, None) for name in WRITES), ("mul", False), ("mul", True)]
)
def test_forward_that_writes_into_its_input(name, only):
    def run(m, x):
        return m.fc(m.first(WRITES[name](x) if only in (None, m.training) else x))

    example = VECTORS.clone()
    [problem] = problems_of(net(run), example)
    assert problem.where == "(model)"
    assert "writes into the network's input" in problem.found
    assert name == "relu" or "test_discover.py:" in problem.found
    assert "write x = x * 0.1" in problem.remedy
    assert torch.equal(example, VECTORS)


def test_hard_coded_widths_are_all_reported():
    def run(m, x):
        h = m.first(x).view(-1, 8).relu()
        h = m.second(h)
        h = h.reshape(h.shape[0], 6)
        return m.fc(h)

    view, reshape = problems_of(net(run, second=nn.Linear(8, 6), fc=nn.Linear(6, 2)), VECTORS)
    assert "'view' has a number of neurons built in: with fewer it gives" in view.found
    assert "'reshape' has a number of neurons built in: with fewer it fails" in reshape.found
    assert "test_discover.py:" in view.found
    assert "flatten(1)" in view.remedy


SIZES_OF_LAYERS = {
    "in_features": lambda m, h: h.view(-1, m.fc.in_features),
    "out_channels": lambda m, h: h.view(-1, m.conv.out_channels * 36),
    "in_channels": lambda m, h: h.view(-1, m.depthwise.in_channels, 36).flatten(1),
    "num_features": lambda m, h: h.view(-1, m.norm.num_features, 36).flatten(1),
    "num_parameters": lambda m, h: h.view(-1, m.act.num_parameters, 36).flatten(1),
}


@pytest.mark.parametrize("name", SIZES_OF_LAYERS)
def test_size_that_is_taken_from_a_layer(name):
    """The layers of a network keep the sizes of the user's layers, whatever a task reads."""

    def run(m, x):
        return m.fc(SIZES_OF_LAYERS[name](m, m.act(m.norm(m.depthwise(m.conv(x))))))

    model = Assembled(
        run, conv=nn.Conv2d(3, 8, 3), depthwise=nn.Conv2d(8, 8, 1, groups=8),
        norm=nn.BatchNorm2d(8), act=nn.PReLU(8), fc=nn.Linear(288, 2),
    )  # fmt: skip
    [problem] = problems_of(model, IMAGES)
    assert "'view' has a number of neurons built in" in problem.found
    assert "not from numbers or from layers" in problem.remedy


def path_by_width(least):
    def run(m, x):
        h = m.first(x)
        return m.fc(h.relu() if h.shape[1] > least else h.tanh())

    return net(run)


def shorter_in_training(m, x):
    h = m.first(x)
    y = m.fc(h)
    return y * 2 if m.training and h.shape[1] > 6 else y


def in_order_of_width(m, h):
    return m.other(m.one(h)) if h.shape[1] > 6 else m.one(m.other(h))


def with_order_by_width():
    two = Assembled(in_order_of_width, one=nn.Linear(8, 8), other=nn.Linear(8, 8))
    return nn.Sequential(nn.Linear(12, 8), two, nn.Linear(8, 2))


def failing_in_training(m, x):
    if m.training:
        raise KeyError("labels")
    return m.fc(m.first(x))


def checking_its_width(m, x):
    h = m.first(x)
    assert h.shape[1] == 8, "eight or nothing"
    return m.fc(h)


def with_an_extra_layer_in_training(m, x):
    h = m.first(x)
    return m.fc(h + m.extra(h) if m.training else h)


def reading_others_in_training(m, x):
    one, other = m.first(x), m.second(x)
    return m.fc(torch.cat([one, other] if m.training else [other, one], 1))


def returning_neurons(m, x):
    h = m.first(x)
    return m.fc(h), h


def returning_the_input(m, x):
    m.fc(m.first(x))
    return x


def multiplying_outputs(m, x):
    h = m.first(x)
    return m.fc(h) * h


class Uncopied(nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("no copies")


def keeping_hidden_neurons(m, x):
    m.features = [m.first(x).relu()]
    return m.fc(m.features[0])


class WithTask(nn.Sequential):
    def forward(self, x, task=None):
        return super().forward(x)


SQUARE = {"second": nn.Linear(8, 8)}
REFUSED = {
    "width in evaluation mode": (
        lambda: net(lambda m, x: m.fc(m.first(x) if m.training else m.first(x).view(-1, 8))),
        "(model)", "'view' has a number of neurons built in",
    ),
    "width in training mode": (
        lambda: net(lambda m, x: m.fc(m.first(x).view(-1, 8) if m.training else m.first(x))),
        "(model)", "'view' has a number of neurons built in",
    ),
    "path by half the width": (
        lambda: path_by_width(6),
        "(model)", "another path with fewer neurons: 'tanh' runs where 'relu' ran",
    ),
    "path by a width of 1": (lambda: path_by_width(1), "(model)", "another path with fewer"),
    "path by a width of 3": (lambda: path_by_width(3), "(model)", "another path with fewer"),
    "path that ends earlier": (
        lambda: net(shorter_in_training), "(model)", "it ends where 'mul' ran",
    ),
    "order of layers of one kind": (
        with_order_by_width, "1.other", "Linear '1.other' runs where Linear '1.one' ran",
    ),
    "factor by a small width": (
        lambda: net(lambda m, x: m.fc((h := m.first(x)) * min(h.shape[1], 2))),
        "(model)", "with fewer neurons the outputs differ",
    ),
    "factor by the width": (
        lambda: net(lambda m, x: m.fc((h := m.first(x)) * h.shape[1] ** -0.5)),
        "(model)", "mixes neurons in a way that was not recognised",
    ),
    # A network would compute with the full size, its exported subnetworks with their own.
    "factor by the size of a layer": (
        lambda: net(lambda m, x: m.fc(m.first(x) * m.fc.in_features**-0.5)),
        "(model)", "a factor that depends on their number",
    ),
    "failure on the example": (
        lambda: nn.Sequential(nn.Linear(9, 8), nn.Linear(8, 2)),
        "(model)", "fails on the example input, with RuntimeError",
    ),
    "failure in training mode": (
        lambda: net(failing_in_training), "(model)", "in training mode on a batch of 2, with KeyE",
    ),
    "failure with fewer neurons": (
        lambda: net(checking_its_width),
        "(model)", "fails with fewer neurons, with AssertionError: eight or nothing (test_disc",
    ),
    "no copy": (
        lambda: nn.Sequential(nn.Linear(12, 8), Uncopied(8, 2)),
        "(model)", "copy.deepcopy cannot copy the model, with TypeError: no copies",
    ),
    "tensors left behind": (
        lambda: net(keeping_hidden_neurons),
        "(model)", "forward leaves a tensor of the pass in the attribute 'features'",
    ),
    "argument task": (
        lambda: WithTask(nn.Linear(12, 8), nn.Linear(8, 2)),
        "(model)", "forward has an argument 'task'",
    ),
    "one layer": (lambda: nn.Sequential(nn.Linear(12, 2)), "(model)", "only '0' runs, so there"),
    "a model that is a layer": (lambda: nn.Linear(12, 2), "(model)", "only '(model)' runs"),
    "no layers": (
        lambda: nn.Sequential(nn.ReLU()), "(model)", "no Linear layer or convolution runs",
    ),
    "refused layer": (lambda: nn.Sequential(nn.LSTM(12, 8), nn.Identity()), "0", "is recurrent"),
    "call twice": (
        lambda: net(lambda m, x: m.fc(m.second(m.second(m.first(x)))), **SQUARE),
        "second", "Linear is called 2 times",
    ),
    "layer that never runs": (
        lambda: net(lambda m, x: m.fc(m.first(x)), **SQUARE),
        "second", "Linear never runs on this example",
    ),
    "layer in training mode only": (
        lambda: net(with_an_extra_layer_in_training, extra=nn.Linear(8, 8)),
        "extra", "runs in training mode only",
    ),
    "other neurons in training mode": (
        lambda: net(reading_others_in_training, second=nn.Linear(12, 8), fc=nn.Linear(16, 2)),
        "fc", "8 of 'second' + 8 of 'first' in evaluation mode and 8 of 'first' + 8 of 'second'",
    ),
    "weight outside its module": (
        lambda: net(lambda m, x: m.fc(F.linear(m.first(x), m.second.weight)), **SQUARE),
        "(model)", "'linear' uses weights outside their module, 'second'",
    ),
    "width of a weight": (
        lambda: net(lambda m, x: m.fc(m.first(x) * m.fc.weight.shape[1])),
        "(model)", "uses weights outside their module, 'fc'",
    ),
    "weight in another type": (
        lambda: net(lambda m, x: m.fc(m.first(x)) * m.fc.weight.to(torch.float64).sum()),
        "(model)", "'to' uses weights outside their module, 'fc'",
    ),
    "weight as an input": (
        lambda: net(lambda m, x: m.fc(m.first(x)) + m.second(m.second.weight).sum(), **SQUARE),
        "second", "Linear reads a tensor of unknown origin",
    ),
    "number of entries of a weight": (
        lambda: net(lambda m, x: m.fc(m.first(x) * m.fc.weight.numel())),
        "(model)", "uses weights outside their module, 'fc'",
    ),
    "hidden neurons returned": (
        lambda: net(returning_neurons), "(model)", "returns hidden neurons (8 of 'first')",
    ),
    "the input returned": (
        lambda: net(returning_the_input), "(model)", "do not come from the classifier 'fc'",
    ),
    "norm behind the classifier": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4), nn.BatchNorm1d(4)),
        "2", "BatchNorm1d lies behind the classifier '1'",
    ),
    "neurons meet outputs": (
        lambda: net(multiplying_outputs, first=nn.Linear(12, 2), fc=nn.Linear(2, 2)),
        "(model)", "meet the outputs of the classifier",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, where, found = REFUSED[name]
    [problem] = problems_of(make(), VECTORS)
    assert problem.where == where
    assert found in problem.found
    assert problem.remedy


def test_keyword_named_task():
    model = net(lambda m, x, **rest: m.fc(m.first(x)))
    [problem] = problems_of(model, {"x": VECTORS, "task": 1})
    assert "forward has an argument 'task'" in problem.found
    starred = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 2))
    starred.forward = lambda x, *task: nn.Sequential.forward(starred, x)
    assert not takes_task(starred)


def test_a_refused_layer_may_be_the_reason_for_others():
    model = Assembled(
        lambda m, x: m.fc(m.norm(m.grouped(x)).flatten(1)),
        grouped=nn.Conv2d(3, 6, 3, groups=3), norm=nn.BatchNorm2d(6), fc=nn.Linear(216, 2),
    )  # fmt: skip
    [problem] = problems_of(model, IMAGES)
    assert (problem.where, "grouped convolution" in problem.found) == ("grouped", True)


HELD = torch.tensor(2.0)


@pytest.mark.parametrize(
    ("forward", "operation"),
    [
        (lambda m, x: m.fc(m.first(x) * HELD), "mul"),
        (lambda m, x: m.fc(m.first(x) + m.settings.shift.relu()), "add"),
        (lambda m, x: m.fc(m.first(x)) * HELD, "mul"),
        (lambda m, x: torch.where(x.sum() > 1e9, HELD, m.fc(m.first(x))), "where"),
    ],
)
def test_tensors_of_unknown_origin(forward, operation):
    """A tensor that a global or a plain object holds could change behind an ended task."""
    model = net(forward)
    model.settings = SimpleNamespace(shift=torch.ones(1))
    [problem] = problems_of(model, VECTORS)
    assert problem.found.startswith(f"'{operation}' takes a tensor that is neither an input,")
    assert problem.remedy.startswith("Compute it in forward, or register it as a buffer")


def test_buffers_that_forward_changes():
    def run(m, x):
        if m.training:
            m.steps += 1
        m.inner.seen = x.mean(0)
        return m.fc(m.first(x))

    model = net(run, inner=nn.Module())
    model.register_buffer("steps", torch.zeros(()))
    model.inner.register_buffer("seen", torch.zeros(12))
    steps, *seen = problems_of(model, VECTORS)
    assert "changes the buffer 'steps' in training mode" in steps.found
    assert "changes the buffer 'inner.seen' in evaluation mode" in seen[0].found
    assert [problem.where for problem in seen] == ["inner", "inner"]


def test_two_heads():
    model = Assembled(
        lambda m, x: (m.one(m.first(x)), m.other(m.first.eval()(x))),
        first=nn.Linear(12, 8), one=nn.Linear(8, 2), other=nn.Linear(8, 2),
    )  # fmt: skip
    assert {problem.where for problem in problems_of(model, VECTORS)} == {"(model)", "first"}


def test_classifier_that_is_not_the_last_layer():
    def run(m, x):
        return m.fc(x) + 0 * m.out(m.first(x)).sum().detach()

    model = net(run, out=nn.Linear(8, 1), fc=nn.Linear(12, 2))
    found = [(p.where, p.found) for p in problems_of(model, VECTORS, classifier="fc")]
    assert ("fc", "the classifier (Linear) reads no hidden neurons") in found
    model = nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4), nn.Linear(4, 2))
    [problem] = problems_of(model, VECTORS, classifier="1")
    assert (problem.where, problem.found) == ("2", "Linear lies behind the classifier '1'")


def test_problems_are_listed_once_and_in_the_order_of_the_model():
    def run(m, x):
        h = m.second(m.norm(m.first(x))).sum(1, keepdim=True)
        return m.fc(m.third(m.first(x)) + h)

    model = net(
        run, norm=nn.LayerNorm(8), second=nn.Linear(8, 8), third=nn.Linear(8, 8),
        unused=nn.Linear(8, 8),
    )  # fmt: skip
    with pytest.raises(GraphError) as caught:
        discover(model, VECTORS)
    assert [p.where for p in caught.value.problems] == ["(model)", "first", "norm", "unused"]
    assert "4 problems" in str(caught.value)
