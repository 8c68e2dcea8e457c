import copy
import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import clnp
from clnp.core.structure.axis import Segment
from clnp.core.structure.graph import Site
from clnp.core.structure.kinds import (
    KINDS,
    Kind,
    Slot,
    is_mixing,
    kind_of,
    known_kind,
    plain_layer,
    register,
)
from clnp.errors import ArgumentError, GraphError


class Scaled(nn.Linear):
    """A user's own kind of Linear, with a setting."""

    def __init__(self, num_inputs: int, num_outputs: int, scale: float = 2.0) -> None:
        super().__init__(num_inputs, num_outputs)
        self.scale = scale


def trained_norm(kind: type[nn.Module], channels: int, **settings: object) -> nn.Module:
    """BatchNorm in evaluation mode with weights and statistics that are not the default ones."""
    norm = kind(channels, **settings).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        if tensor is not None:
            nn.init.uniform_(tensor, 0.5, 2)
    return norm


LAYERS = [
    (nn.Linear(3, 4), (2, 3)),
    (nn.Linear(3, 4, bias=False), (2, 5, 3)),
    (nn.Conv1d(3, 4, 3, stride=2), (2, 3, 9)),
    (nn.Conv2d(3, 4, 3, padding=1, dilation=2), (2, 3, 7, 7)),
    (nn.Conv2d(3, 4, 3, padding="same", bias=False), (2, 3, 7, 7)),
    (nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular"), (2, 3, 7, 7)),
    (nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"), (2, 3, 7, 7)),
    (nn.Conv2d(4, 4, 3, groups=4), (2, 4, 7, 7)),
    (nn.Conv3d(3, 4, 2), (2, 3, 4, 4, 4)),
    (nn.Conv1d(4, 4, 3, groups=4), (2, 4, 7)),
    (nn.Conv3d(4, 4, 2, groups=4, bias=False), (2, 4, 3, 3, 3)),
    (trained_norm(nn.BatchNorm1d, 3), (2, 3)),
    (trained_norm(nn.BatchNorm2d, 3, eps=0.1), (2, 3, 4, 4)),
    (trained_norm(nn.BatchNorm3d, 3, affine=False), (2, 3, 2, 2, 2)),
    (nn.PReLU(3, init=0.1), (2, 3, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_a_layer_runs_on_given_tensors_as_its_class_does(layer, shape):
    x = torch.randn(shape)
    tensors = {slot.name: getattr(layer, slot.name) for slot in known_kind(layer).slots_of(layer)}
    assert torch.equal(known_kind(layer).run(layer, x, tensors), layer(x))


def test_a_depthwise_convolution_runs_on_a_prefix():
    layer, x = nn.Conv2d(4, 4, 3, groups=4), torch.randn(2, 2, 7, 7)
    narrow = nn.Conv2d(2, 2, 3, groups=2)
    tensors = {"weight": layer.weight[:2], "bias": layer.bias[:2]}
    narrow.load_state_dict(tensors)
    assert torch.equal(known_kind(layer).run(layer, x, tensors), narrow(x))


def test_statistics_are_not_trained_and_a_dead_channel_has_variance_1():
    slots = {slot.name: slot for slot in KINDS["BatchNorm2d"].slots}
    assert [name for name, slot in slots.items() if slot.trained] == ["weight", "bias"]
    assert [slot.dead for slot in slots.values()] == [0.0, 0.0, 0.0, 1.0]


def test_every_kind_is_tested():
    assert {known_kind(layer).name for layer, _ in LAYERS} == set(KINDS)


@pytest.mark.parametrize(
    ("layer", "name", "mixes"),
    [
        (nn.Linear(3, 3), "Linear", True),
        (Scaled(3, 3), "Linear", True),
        (nn.Conv2d(3, 3, 1), "Conv2d", True),
        (nn.Conv2d(1, 1, 1), "Conv2d", True),
        (nn.Conv2d(4, 4, 1, groups=4), "DepthwiseConv2d", False),
        (nn.Conv2d(4, 4, 1, groups=2), "Conv2d", True),
        (nn.Conv2d(4, 8, 1, groups=4), "Conv2d", True),
        (nn.BatchNorm2d(3), "BatchNorm2d", False),
        (nn.PReLU(3), "PReLU", False),
    ],
)
def test_a_layer_has_the_kind_of_its_class_and_settings(layer, name, mixes):
    assert known_kind(layer).name == name
    assert is_mixing(layer) is mixes


def test_a_layer_that_is_not_in_the_table_has_no_kind():
    assert kind_of(nn.LayerNorm(3)) is None
    assert not is_mixing(nn.ReLU())
    with pytest.raises(TypeError, match="LayerNorm cannot be sliced by neuron"):
        known_kind(nn.LayerNorm(3))


def settings(layer: nn.Module) -> str:
    return f"{type(layer).__name__}({layer.extra_repr()})"


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(4, 6), nn.Linear(3, 5)),
        (nn.Linear(4, 6, bias=False), nn.Linear(3, 5, bias=False)),
        (Scaled(4, 6), nn.Linear(3, 5)),
        (nn.Conv1d(4, 6, 3, dilation=2), nn.Conv1d(3, 5, 3, dilation=2)),
        (
            nn.Conv2d(4, 6, (3, 1), stride=2, padding=1, bias=False, padding_mode="circular"),
            nn.Conv2d(3, 5, (3, 1), stride=2, padding=1, bias=False, padding_mode="circular"),
        ),
        (nn.Conv2d(4, 6, 3, padding="same"), nn.Conv2d(3, 5, 3, padding="same")),
        (nn.Conv3d(4, 6, 2), nn.Conv3d(3, 5, 2)),
        (nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(5, 5, 3, groups=5)),
        (nn.BatchNorm1d(6, eps=0.1, momentum=None), nn.BatchNorm1d(5, eps=0.1, momentum=None)),
        (nn.BatchNorm2d(6, affine=False), nn.BatchNorm2d(5, affine=False)),
        (nn.BatchNorm3d(6), nn.BatchNorm3d(5)),
        (nn.PReLU(6), nn.PReLU(5)),
    ],
)
def test_a_plain_layer_has_the_settings_and_other_widths(layer, expected):
    made = plain_layer(layer, num_outputs=5, num_inputs=3)
    assert type(made) is type(expected)
    assert settings(made) == settings(expected)
    assert {n: t.shape for n, t in made.state_dict().items()} == {
        n: t.shape for n, t in expected.state_dict().items()
    }


@pytest.mark.parametrize("layer", [nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False)])
def test_a_plain_layer_has_mode_and_dtype_of_the_layer(layer):
    layer = copy.deepcopy(layer).double().eval()
    made = plain_layer(layer, num_outputs=5, num_inputs=3)
    assert not made.training
    floats = [t for t in made.state_dict().values() if t.is_floating_point()]
    assert {t.dtype for t in floats} == {torch.float64}


def test_a_plain_layer_draws_no_random_numbers():
    layer = nn.Linear(4, 6)
    before = torch.get_rng_state()
    plain_layer(layer, num_outputs=5, num_inputs=3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(
    "bias" not in inspect.signature(nn.BatchNorm2d).parameters, reason="needs a newer PyTorch"
)
@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_without_a_bias_stays_without(affine):
    made = plain_layer(nn.BatchNorm2d(6, affine=affine, bias=False), num_outputs=3, num_inputs=3)
    assert made.bias is None
    assert (made.weight is not None) == affine


class Doubled(nn.Linear):
    """A subclass that computes something else than its base class."""

    def forward(self, x):
        return 2 * super().forward(x)


class ChannelScale(nn.Module):
    """A factor for each channel, in a tensor that no layer of PyTorch has."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.scale = nn.Parameter(torch.empty(num_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x):
        return x * self.scale.view(-1, 1, 1)


DOUBLED = Kind(
    "Doubled",
    Doubled,
    slots=KINDS["Linear"].slots,
    run=lambda layer, x, tensors: 2 * F.linear(x, tensors["weight"], tensors.get("bias")),
    build=lambda layer, num_outputs, num_inputs: Doubled(num_inputs, num_outputs),
    sizes=("in_features", "out_features"),
    neuron_dim=-1,
)
CHANNEL_SCALE = Kind(
    "ChannelScale",
    ChannelScale,
    slots=(Slot("scale", middle=1.0),),
    run=lambda layer, x, tensors: x * tensors["scale"].view(-1, 1, 1),
    build=lambda layer, num_outputs, num_inputs: ChannelScale(num_outputs),
    sizes=("num_channels",),
    mixes=False,
    penalised=False,
)
CHANNEL_NORM = Kind(
    "ChannelNorm",
    nn.GroupNorm,
    slots=(Slot("weight", middle=1.0), Slot("bias")),
    run=lambda layer, x, tensors: F.group_norm(x, x.shape[1], eps=layer.eps, **tensors),
    build=lambda layer, num_outputs, num_inputs: nn.GroupNorm(num_outputs, num_outputs, layer.eps),
    sizes=("num_channels",),
    mixes=False,
    matches=lambda layer: layer.affine and layer.num_groups == layer.num_channels,
    penalised=False,
)


def images(layer: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), layer, nn.ReLU(), nn.Conv2d(6, 8, 3), nn.Flatten(), nn.Linear(32, 3)
    )


def vectors(layer: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(108, 6), nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 3)
    )


NEW = {
    "doubled": (DOUBLED, lambda: vectors(Doubled(6, 8))),
    "channel scale": (CHANNEL_SCALE, lambda: images(ChannelScale(6))),
    "channel norm": (CHANNEL_NORM, lambda: images(nn.GroupNorm(6, 6, 0.1))),
}


@pytest.fixture
def registered():
    """`register`, until the end of the test."""
    before = dict(KINDS)
    yield register
    KINDS.clear()
    KINDS.update(before)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("head", ["multi", "single"])
def test_a_new_kind_takes_one_entry(name, head, registered, tmp_path):
    """Two tasks are trained, pruned, verified, exported and saved with layers of that kind."""
    kind, make = NEW[name]
    with pytest.raises(GraphError):
        clnp.discover(make(), torch.zeros(2, 3, 6, 6))
    registered(kind)
    torch.manual_seed(0)
    x, y = torch.randn(48, 3, 6, 6), torch.randint(3, (48,))
    loader = [(x[:24], y[:24]), (x[24:], y[24:])]
    net = clnp.ContinualNet(make(), x[:2], head=head)
    [layer] = [site for site in net.graph.sites.values() if site.kind == kind.name]
    before = {}
    for task in ("first", "second"):
        net.begin_task(task, num_outputs=3)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for inputs, labels in loader * 3:
            loss = F.cross_entropy(net(inputs), labels) + net.l1_penalty(1e-3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        plan = net.plan_pruning(
            net.measure_activity(loader),
            score=lambda predict: -F.cross_entropy(predict(x), y).item(),
            margin=0.1,
            allow_guessing=True,
        )
        net.end_task(plan)
        before[task] = net(x, task=task)
    net.begin_task("third", num_outputs=3)
    for parameter in net.parameters():
        nn.init.constant_(parameter, torch.nan)
    net.verify()
    net.abandon_task()
    clnp.save(net, tmp_path / "net")
    loaded = clnp.load(tmp_path / "net", make())
    for task, outputs in before.items():
        assert torch.equal(net(x, task=task), outputs)
        assert torch.equal(loaded(x, task=task), outputs)
        narrow = net.subnetwork(task)
        assert torch.equal(narrow(x), outputs)
        assert type(narrow.get_submodule(layer.path)) is kind.layer_class


@pytest.mark.parametrize("name", NEW)
def test_an_entry_that_computes_something_else_is_refused(name, registered):
    kind, make = NEW[name]
    registered(replace(kind, run=lambda *args: kind.run(*args) * 1.01))
    with pytest.raises(GraphError, match=f"something else than run of the kind '{kind.name}'"):
        clnp.discover(make(), torch.zeros(2, 3, 6, 6))
    registered(replace(kind, name="Failing", run=lambda layer, x, tensors: tensors["none"]))
    with pytest.raises(GraphError, match=r"kind 'Failing', which fails \('none'\)"):
        clnp.discover(make(), torch.zeros(2, 3, 6, 6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Linear"}, "is called 'Linear' already. Choose another name"),
        ({"layer_class": nn.ReLU}, "ReLU has no method reset_parameters"),
        ({"slots": (Slot("scale", has_columns=True),)}, "Give it 'weight' with columns"),
        ({"slots": (), "mixes": False}, "Give it at least one"),
        ({"mixes": False}, "none with columns"),
        ({"slots": (Slot("scale"),), "mixes": False}, "no slot 'weight' to penalise"),
        ({"keeps_statistics": True}, "Add 'running_mean' and 'running_var'"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(changes, message, registered):
    with pytest.raises(ArgumentError, match=message):
        registered(replace(DOUBLED, **changes))


def test_a_graph_names_the_kind_that_is_not_registered():
    site = Site("fc", "Doubled", (), (Segment(None, 3),))
    with pytest.raises(ArgumentError, match="fc: unknown kind of layer 'Doubled'"):
        _ = site.mixes
