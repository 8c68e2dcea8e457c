"""Every operation: how it is named, what it does to neurons, and what is refused by name."""

import warnings

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from clnp.core.structure.axis import Segment
from clnp.core.structure.discover import discover
from clnp.core.structure.inputs import tensors_in
from clnp.core.structure.rules import (
    METADATA,
    RULES,
    Call,
    Groups,
    Mark,
    Neurons,
    Operand,
    Refusal,
    follow,
    full_size,
    meet,
    merge_axes,
    operation_name,
    reshape,
    spell,
)
from clnp.errors import GraphError
from support.assembled import Assembled, around

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
X = torch.rand(2, 3)
A, B = Segment("a", 3), Segment("b", 3)


def names_of(run):
    seen = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(operation_name(func))
            return func(*args, **(kwargs or {}))

    with Names():
        run()
    return seen


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("add", [lambda: X + 1, lambda: 1 + X, lambda: X.clone().add_(1), lambda: torch.add(X, 1)]),
        ("sub", [lambda: X - 1, lambda: 1 - X, lambda: X.sub(1)]),
        ("pow", [lambda: X**2, lambda: 2**X, lambda: X.pow(2)]),
        ("relu", [lambda: F.relu(X), lambda: X.relu(), lambda: torch.relu(X), lambda: F.relu_(X)]),
        ("sigmoid", [lambda: X.sigmoid(), lambda: F.sigmoid(X)]),
        ("expit", [lambda: torch.special.expit(X)]),
        ("max_pool2d", [lambda: F.max_pool2d(X[None], 1)]),
        ("getitem", [lambda: X[0]]),
        ("shape", [lambda: X.shape]),
        ("T", [lambda: X.T]),
        ("bool", [lambda: bool(X[0, 0]), lambda: X.bool()]),
        ("invert", [lambda: ~X.bool()]),
        ("and", [lambda: X.bool() & True]),
        ("index", [lambda: range(3)[X[0, 0].long()]]),
        ("and", [lambda: (X > 0).__iand__(X > 1)]),
        ("div", [lambda: X / 2, lambda: 2 / X, lambda: torch.div(X, 2)]),
        ("rand", [lambda: torch.rand(2)]),
        ("set data", [lambda: setattr(X.clone(), "data", X)]),
    ],
)
def test_operation_name(name, spellings):
    for run in spellings:
        assert names_of(run)[-1] == name


def test_reading_the_form_is_metadata():
    def read():
        return X.shape, X.size(), X.dim(), X.ndim, X.dtype, X.device, X.is_cuda, len(X), X.numel()

    assert set(names_of(read)) <= METADATA
    assert set(names_of(lambda: (X.requires_grad, X.is_floating_point(), repr(X)))) <= METADATA


def call(func, *args, **kwargs):
    tensors = tensors_in((args, kwargs))
    neurons = Neurons(1, (Segment("a", 3),))
    operands = tuple(Operand(tensor, tuple(tensor.shape), neurons) for tensor in tensors[:1])
    result = func(*args, **kwargs)
    return Call(operation_name(func), func, args, kwargs, result, operands, Groups())


def test_follow_finds_where_an_axis_goes():
    assert follow(call(torch.Tensor.unsqueeze, X, 0)).dim == 2
    assert follow(call(torch.sum, X, 0)).dim == 0
    assert follow(call(torch.sum, input=X, dim=0)).dim == 0
    assert follow(call(torch.max, X, dim=0)).dim == 0
    assert follow(call(torch.sum, X, 1)) is None
    assert follow(call(torch.Tensor.split, X, 2, 1)) is None
    assert follow(call(torch.Tensor.split, X, 1, 0)).dim == 1
    one = torch.rand(2, 1)
    assert follow(call(torch.Tensor.squeeze, one, 1)) is None


@pytest.fixture
def groups():
    made = Groups()
    for name in ("a", "b", "c"):
        made.add(name)
    return made


def test_first_layer_gives_the_name(groups):
    groups.join("c", "b")
    assert groups.find("c") == "b"
    groups.join("b", "a")
    assert [groups.find(name) for name in "abc"] == ["a", "a", "a"]
    assert groups.names() == ["a"]
    assert groups.resolve((Segment("c", 2, 4), Segment(None, 1))) == (
        Segment("a", 2, 4), Segment(None, 1),
    )  # fmt: skip
    groups.add("c")
    assert groups.find("c") == "a"


def test_spell():
    axis = (Segment("a", 3, 4), Segment(None, 2))
    assert spell(axis) == "3 x 4 of 'a' + 2 of the input"
    assert full_size(axis) == 14


def test_merge_joins_groups(groups):
    assert merge_axes(groups, (A, Segment(None, 2)), (B, Segment(None, 2))) == (
        A, Segment(None, 2),
    )  # fmt: skip
    assert groups.find("b") == "a"


def test_meet_counts_dimensions_from_the_right(groups):
    three = [
        Operand(X, (2, 3, 4), Neurons(1, (A,))),
        Operand(X, (3, 1), Neurons(0, (B,))),
        Operand(X, (4,), Mark.INPUT),
    ]
    assert meet(groups, three, num_dims=3) == Neurons(1, (A,))
    two = [Operand(X, (3,), Neurons(0, (A,))), Operand(X, (5, 2, 1), Mark.CONSTANT)]
    assert meet(groups, two, num_dims=3) == Neurons(2, (A,))


def test_concatenation_skips_empty_tensors():
    def run(m, x):
        joined = torch.cat([torch.empty(0), x, m.conv(x), torch.empty(0)], 1)
        return m.fc(joined.mean((2, 3)))

    graph = discover(Assembled(run, conv=nn.Conv2d(3, 4, 1), fc=nn.Linear(7, 2)), IMAGES)
    assert graph.sites["fc"].columns == (Segment(None, 3), Segment("conv", 4))


def test_reshape():
    hidden = Neurons(1, (A,))
    assert reshape(hidden, (2, 3, 4, 5), (2, 60)) == Neurons(1, (Segment("a", 3, 20),))
    assert reshape(hidden, (2, 3, 4, 5), (2, 12, 5)) == Neurons(1, (Segment("a", 3, 4),))
    assert reshape(hidden, (2, 3, 4, 5), (2, 1, 3, 20)) == Neurons(2, (A,))
    flat = Neurons(1, (Segment("a", 3, 20), Segment("b", 2, 20)))
    assert reshape(flat, (2, 100), (2, 5, 4, 5)) == Neurons(1, (Segment("a", 3), Segment("b", 2)))
    with pytest.raises(Refusal):
        reshape(Neurons(1, (Segment("a", 3, 4), Segment("b", 4))), (2, 16), (2, 4, 4))
    with pytest.raises(Refusal):
        reshape(hidden, (2, 3, 4), (6, 4))
    with pytest.raises(Refusal):
        reshape(Neurons(2, (A,)), (2, 4, 3), (2, 12))


def label(neurons: Neurons, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor in which every entry holds the number of its neuron."""
    numbers, start = [], 0
    for segment in neurons.axis:
        numbers += [start + neuron for neuron in range(segment.size) for _ in range(segment.span)]
        start += segment.size
    sizes = [-1 if dim == neurons.dim else 1 for dim in range(len(shape))]
    return torch.tensor(numbers).view(sizes).expand(shape)


def factorisations(number: int, length: int) -> st.SearchStrategy[tuple[int, ...]]:
    if length == 1:
        return st.just((number,))
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return st.sampled_from(divisors).flatmap(
        lambda d: factorisations(number // d, length - 1).map(lambda rest: (d, *rest))
    )


@given(st.data())
def test_reshape_is_right_or_refused(data):
    ahead = data.draw(st.lists(st.integers(2, 3), max_size=2))
    behind = data.draw(st.lists(st.integers(1, 3), max_size=2))
    axis = tuple(
        Segment(name, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 4])))
        for name in data.draw(st.sampled_from(["a", "ab"]))
    )
    before = (*ahead, full_size(axis), *behind)
    neurons = Neurons(len(ahead), axis)
    labels = label(neurons, before)
    after = data.draw(factorisations(labels.numel(), data.draw(st.integers(1, 4))))
    try:
        found = reshape(neurons, before, after)
    except Refusal:
        # Refused only if no dimension of the result tells the neurons apart in whole blocks.
        moved = labels.reshape(after)
        for dim in range(len(after)):
            lines = moved.movedim(dim, 0).reshape(after[dim], -1)
            alike = bool((lines == lines[:, :1]).all())
            ordered = bool((lines[1:, 0] >= lines[:-1, 0]).all())
            assert not (alike and ordered and len(labels.unique()) > 1)
        return
    assert torch.equal(labels.reshape(after), label(found, after))


def _with_zeroed_border(h):
    h = h.clone()
    h[:, :, 0] = 0
    h[..., -1] = torch.tensor(1.0)
    h[h < 0] = 0
    return h


def _implicit_softmax(h):
    with warnings.catch_warnings(action="ignore"):
        return F.softmax(h, dim=None)


def _assigned(h, index, value):
    h = h.clone()
    h[index] = value
    return h


def _into_constant(h):
    total = torch.zeros(2, 8, 6, 6)
    total[:, :] = h
    return total


FOLLOWED = {
    "activations": lambda h: F.gelu(F.elu(h).relu_().sigmoid() * torch.tanh(h)),
    "modules": nn.Sequential(nn.Hardswish(), nn.ReLU6(inplace=True), nn.Softplus(), nn.Mish()),
    "special": lambda h: torch.special.expit(h),
    "operators": lambda h: abs(1 - -h) / 2 + (2**h) * h + (h > 0) // 1 % 3,
    "in_place_operators": lambda h: h.clone().add_(1).mul_(h).clamp_(min=0),
    "where": lambda h: torch.where(h > 0, h, 0.1 * h),
    "clamp": lambda h: h.clamp(torch.zeros(1), torch.ones(1)),
    "where_of_numbers": lambda h: torch.where(h > 0, 1.0, -0.5) * h,
    "other_reductions": lambda h: (
        h.prod(3).argmax(2)
        + torch.var_mean(h, (2, 3))[1]
        + torch.aminmax(h.nansum(2), dim=2).max
        + h.flatten(2).kthvalue(2, 2).values
        + h.any(3).all(2)
        + h.count_nonzero((2, 3))
    ),
    "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
    "maximum": lambda h: torch.max(torch.maximum(h, h.roll(1, 2)), -h),
    "constant": lambda h: h * torch.arange(36.0).view(1, 1, 6, 6) + torch.ones(6, 1),
    "noise": lambda h: h + 0 * torch.randn_like(h) + torch.zeros_like(h),
    "dropout": lambda h: F.dropout2d(F.alpha_dropout(F.dropout(h, training=False))) * 0 + h,
    "stochastic_depth": lambda h: h + 0 * h * torch.empty([len(h), 1, 1, 1]).bernoulli_(0.5),
    "pooling": lambda h: F.lp_pool2d(F.avg_pool2d(F.max_pool2d(h, 2), 1), 2.0, 1),
    "pooling_with_indices": lambda h: F.max_pool2d(h, 2, return_indices=True)[0],
    "adaptive_pooling": lambda h: F.adaptive_avg_pool2d(h, 2) + F.adaptive_max_pool2d(h, 2),
    "interpolate": lambda h: F.interpolate(h, scale_factor=2, mode="nearest"),
    "pad": lambda h: F.pad(F.pad(h, (1, 2)), (0, 0, 1, 1, 0, 0), value=1.0),
    "pad_module": nn.ReflectionPad2d(1),
    "instance_norm": nn.InstanceNorm2d(8),
    "reductions": lambda h: h.sum((2, 3)) + h.amax(dim=(-1, -2)) + h.mean(3).max(2)[0],
    "keepdim": lambda h: h - h.mean((2, 3), keepdim=True) / h.std(dim=(2, 3), keepdim=True),
    "norms": lambda h: h.norm(2, (2, 3)) + torch.linalg.vector_norm(h, dim=(2, 3)),
    "median": lambda h: h.flatten(2).median(2).values + h.flatten(2).logsumexp(-1),
    "softmax": lambda h: h.softmax(-1) + F.log_softmax(h.flatten(2), 2).view_as(h),
    "implicit_softmax": lambda h: torch.nn.functional.softmax(h.permute(2, 0, 1, 3), 0).sum(0),
    "cumsum": lambda h: h.cumsum(2).flip(2, 3).flip([2]).roll((1, 1), (2, 3)),
    "sort": lambda h: h.sort(2)[0].sort().values.topk(2).values,
    "normalize": lambda h: F.normalize(h, dim=2),
    "views": lambda h: h.view(h.size(0), h.size(1), -1).unflatten(2, (6, 6)).reshape(h.shape),
    "restore": lambda h: h.flatten(1).view(len(h), -1, 6, 6),
    "batch_merge": lambda h: h.permute(0, 2, 3, 1).flatten(0, 2).view(len(h), 36, -1).mT,
    "moves": lambda h: h.movedim(1, -1).transpose(-1, 1).mT.swapaxes(2, 3),
    "transposed": lambda h: h.mean((2, 3)).T.t(),
    "squeeze": lambda h: h.mean(3, keepdim=True).squeeze(3).unsqueeze(1).squeeze(dim=1),
    "indexing": lambda h: h[:, :, ::2, None, 1:] + h[:, :, [0, 2, 4], 1:2, None],
    "advanced_indexing": lambda h: h[:, :, torch.tensor([3, 1])][torch.tensor([1, 0])],
    "ellipsis": lambda h: h[..., -1],
    "parts": lambda h: sum(h.chunk(2, 2)) + sum(h.split(3, dim=2)) + h.narrow(2, 1, 3),
    "unbind": lambda h: sum(h.unbind(-1)) + h.select(3, 0),
    "repeat": lambda h: h.repeat(1, 1, 2, 1).repeat_interleave(2, dim=3),
    "expand": lambda h: h[:, :, :1].expand(-1, -1, 6, 6) + h[..., :1].expand_as(h),
    "expand_to_shape": lambda h: h[:, :, :1, :1].expand(h.shape),
    "cat": lambda h: torch.cat([h, -h, torch.ones(len(h), 2, 6, 6)], dim=-3),
    "cat_elsewhere": lambda h: torch.cat((h, h), 2),
    "stack": lambda h: torch.stack([h, -h], 1).sum(1) + torch.stack([h, h], dim=2).mean(2),
    "copies": lambda h: h.contiguous().detach().to(h).float().double().type_as(h).type(h.dtype),
    "form": lambda h: h * (h.ndim + h.dim() + len(h.shape) + len(h)) if h.is_cpu else h,
    "type_name": lambda h: h if h.type().endswith("Tensor") else -h,
    "setitem": lambda h: _with_zeroed_border(h),
    "new": lambda h: h + h.new_zeros(1) + h.new_full((1, 1, 6, 6), 2.0),
    "index_select": lambda h: h.index_select(2, torch.tensor([0, 1])),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_followed(name):
    model = around(FOLLOWED[name])
    graph = discover(model, IMAGES)
    assert graph.groups == {"conv": 8}


REFUSED = {
    "sum": (lambda h: h.sum(1), "'sum' over the neuron axis"),
    "mean_of_all": (lambda h: h / h.mean(), "'mean' over the neuron axis"),
    "max": (lambda h: h - h.max(1, keepdim=True).values, "mixes neurons without weights"),
    "softmax": (lambda h: h.softmax(1), "'softmax' over the neuron axis"),
    "implicit_softmax": (_implicit_softmax, "'softmax' over the neuron axis"),
    "cumsum": (lambda h: h.cumsum(1), "'cumsum' over the neuron axis"),
    "flip": (lambda h: h.flip(1, 2), "'flip' over the neuron axis"),
    "roll": (lambda h: h.roll(1), "'roll' over the neuron axis"),
    "normalize": (lambda h: F.normalize(h), "'normalize' over the neuron axis"),
    "split": (lambda h: h.split(4, 1)[0], "'split' takes apart"),
    "chunk": (lambda h: h.chunk(2, 1)[0], "'chunk' takes apart"),
    "index": (lambda h: h[:, 0], "'getitem' takes apart"),
    "slice": (lambda h: h[:, 1:], "'getitem' takes apart"),
    "advanced_index": (lambda h: h[:, torch.tensor([0, 1])], "'getitem' takes apart"),
    "repeat": (lambda h: h.repeat(1, 2, 1, 1), "'repeat' takes apart, repeats"),
    "squeeze": (lambda h: h.squeeze(), "'squeeze' without a dimension"),
    "shuffle": (lambda h: h.view(2, 2, 4, 6, 6).transpose(1, 2).flatten(1, 2), "splits the neuron"),
    "batch": (lambda h: h.reshape(2 * 8, 36), "merges it with what lies before it"),
    "space_first": (lambda h: h.permute(0, 2, 3, 1).flatten(1), "merges it with what lies before"),
    "pixel_shuffle": (lambda h: F.pixel_shuffle(h, 2), "'pixel_shuffle' moves neurons"),
    "channel_shuffle": (nn.ChannelShuffle(2), "channel_shuffle' moves neurons"),
    "unfold": (lambda h: F.unfold(h, 2), "'unfold' moves neurons"),
    "pad": (lambda h: F.pad(h, (0, 0, 0, 0, 0, 2)), "'pad' adds to the neuron axis"),
    "pool": (lambda h: F.max_pool2d(h.transpose(1, 2), 2), "'max_pool2d' over the neuron axis"),
    "matmul": (lambda h: h @ h.mT, "'matmul' multiplies hidden neurons outside a layer"),
    "einsum": (lambda h: torch.einsum("nchw,nchw->nc", h, h), "'einsum' multiplies hidden"),
    "linear": (lambda h: F.linear(h, torch.ones(2, 6)), "'linear' multiplies hidden"),
    "conv2d": (lambda h: F.conv2d(h, torch.ones(2, 8, 1, 1)), "'conv2d' multiplies hidden"),
    "attention": (
        lambda h: F.scaled_dot_product_attention(h, h, h),
        "'scaled_dot_product_attention' multiplies hidden",
    ),
    "layer_norm": (lambda h: F.layer_norm(h, h.shape[1:]), "'layer_norm' normalises over several"),
    "group_norm": (lambda h: F.group_norm(h, 2), "'group_norm' normalises over several"),
    "lrn": (nn.LocalResponseNorm(2), "'local_response_norm' normalises over several"),
    "batch_norm": (
        lambda h: F.batch_norm(h, torch.zeros(8), torch.ones(8)),
        "'batch_norm' normalises over several neurons at once, or with values for each",
    ),
    "instance_norm": (
        lambda h: F.instance_norm(h, weight=torch.ones(8)),
        "'instance_norm' normalises over several neurons at once, or with values",
    ),
    "unknown": (lambda h: F.glu(h, 2) * F.glu(h, 2), "'glu' on hidden neurons is not known"),
    "constant": (
        lambda h: h * torch.ones(8, 1, 1),
        "8 of 'conv' meet a constant tensor of shape (8, 1, 1), which has entries for them",
    ),
    "constant_cat": (
        lambda h: torch.cat([h, torch.ones(2, 8, 6, 6)], 2),
        "meet a constant tensor",
    ),
    "item": (lambda h: h if h[0, 0, 0, 0].item() > 9 else -h, "'getitem' takes apart"),
    "tolist": (lambda h: h if h[:1].sum((2, 3)).tolist() else -h, "'tolist' reads the values"),
    "numpy": (lambda h: h * float(h.flatten(1).numpy(force=True)[0, 0]), "'numpy' reads"),
    "where": (lambda h: h[torch.where(h > h)[0]].sum() + h, "'where' on hidden neurons"),
    "out": (lambda h: torch.add(h, h, out=torch.empty(2, 8, 6, 6)), "'add' writes into out="),
    "broadcast_one": (lambda h: h * h[:, :1], "'getitem' takes apart"),
    "setitem": (lambda h: _assigned(h, (slice(None), 0), 0.0), "an assignment writes single"),
    "setitem_values": (lambda h: _assigned(h, 0, torch.ones(8, 6, 6)), "an assignment writes"),
    "into_constant": (lambda h: _into_constant(h), "'setitem' takes hidden neurons where"),
    "copy_into_constant": (lambda h: torch.zeros(2, 8, 6, 6).copy_(h), "meet a constant tensor"),
    "index_by_neurons": (lambda h: torch.arange(99)[h.long() % 9] + h, "'getitem' takes hidden"),
    "view_as_hidden": (lambda h: torch.ones(2 * 8 * 36).view_as(h) + h, "'view_as' on hidden"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    step, expected = REFUSED[name]
    model = around(step)
    with pytest.raises(GraphError) as caught:
        discover(model, IMAGES)
    [problem] = caught.value.problems
    assert expected in problem.found
    assert problem.where == "(model)"
    assert problem.remedy


def two_layers(run, one, other, num_features):
    return Assembled(run, one=one, other=other, fc=nn.Linear(num_features, 2))


MEETINGS = {
    "other_dimension": (
        lambda m, x: m.fc((m.one(x) + m.other(x).transpose(1, 2)).mean((2, 3))), 6, 6, 6,
        "neurons lie along dimension 1 of one tensor and 2 of another",
    ),
    "stack_of_other_dimension": (
        lambda m, x: m.fc(torch.stack([m.one(x), m.other(x).transpose(1, 2)]).mean((0, 3, 4))),
        6, 6, 6, "neurons lie along dimension 1 of one tensor and 2 of another",
    ),
    "one_neuron_over_many": (
        lambda m, x: m.fc((m.one(x) * m.other(x)).mean((2, 3))), 8, 1, 8,
        "one neuron is broadcast over many (8 of 'one' against 1 of 'other')",
    ),
    "boundaries": (
        lambda m, x: m.fc((torch.cat([m.one(x)] * 2, 1) + m.other(x)).mean((2, 3))), 4, 8, 8,
        "neurons meet whose boundaries differ (4 of 'one' + 4 of 'one' against 8 of 'other')",
    ),
    "network_input": (
        lambda m, x: m.fc((m.one(x) + m.other(x) * x).mean((2, 3))), 3, 3, 3,
        "hidden neurons meet the network's input: 3 of 'other' meet a tensor computed from",
    ),
    "spans": (
        lambda m, x: m.fc(m.one(x).flatten(1) + m.other(x).mean((2, 3))), 2, 72, 72,
        "neurons meet whose boundaries differ (2 x 36 of 'one' against 72 of 'other')",
    ),
    "input_against_neurons": (
        lambda m, x: m.fc(
            (torch.cat([m.one(x), x], 1) + torch.cat([x, m.other(x)], 1)).mean((2, 3))
        ),
        3, 3, 6, "hidden neurons meet the network's input (3 of 'one' + 3 of the input against",
    ),
    "cat_along_other_axes": (
        lambda m, x: m.fc(torch.cat([m.one(x), m.other(x).transpose(1, 2)], 1).mean((2, 3))),
        6, 6, 12, "neurons lie along dimension 1 of one tensor and 2 of another",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETINGS)
def test_meetings_that_are_refused(name):
    run, num_one, num_other, num_features, expected = MEETINGS[name]
    model = two_layers(run, nn.Conv2d(3, num_one, 1), nn.Conv2d(3, num_other, 1), num_features)
    with pytest.raises(GraphError) as caught:
        discover(model, IMAGES)
    [problem] = caught.value.problems
    assert expected in problem.found


def test_meetings_join_groups():
    def conv(num):
        return nn.Conv1d(3, num, 1)

    def run(m, x):
        both = torch.cat([m.one(x), m.other(x)], 1) + torch.cat([m.third(x), m.fourth(x)], 1)
        return m.fc(both.mean(2))

    model = Assembled(
        run, one=conv(4), other=conv(5), third=conv(4), fourth=conv(5), fc=nn.Linear(9, 2)
    )
    graph = discover(model, torch.randn(2, 3, 4))
    assert graph.groups == {"one": 4, "other": 5}
    assert graph.group_named("fourth") == "other"

    def run_crossed(m, x):
        return m.fc((torch.cat([m.one(x), m.two(x)], 1) + torch.cat([m.three(x)] * 2, 1)).mean(2))

    layers = {"one": conv(4), "two": conv(4), "three": conv(4), "fc": nn.Linear(8, 2)}
    crossed = discover(Assembled(run_crossed, **layers), torch.randn(2, 3, 4)).groups
    assert crossed == {"one": 4}


def test_every_rule_has_one_spelling():
    assert all(name == name.strip("_") for name in RULES)
