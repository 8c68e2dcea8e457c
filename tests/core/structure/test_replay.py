"""Narrow models: right weights, and the comparison with the full model notices what mixes."""

import pytest
import torch
from torch import nn

from clnp.core.structure.axis import Segment
from clnp.core.structure.discover import discover
from clnp.core.structure.replay import Narrowing, Replay, agrees, narrow
from clnp.core.structure.rules import Mark, Neurons
from clnp.core.structure.trace import Event, Moment
from support.assembled import Assembled

IMAGES = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4), nn.Conv2d(4, 4, 1, groups=4),
        nn.Flatten(), nn.Linear(16, 6), nn.Linear(6, 2),
    )  # fmt: skip


def narrowing_of(model, example):
    graph = discover(model, example)
    rows = {path: site.rows for path, site in graph.sites.items()}
    columns = {path: site.columns for path, site in graph.sites.items()}
    half = {group: size // 2 for group, size in graph.groups.items()}
    return Narrowing(graph.groups, half, rows=rows, columns=columns)


def test_narrow_holds_the_first_neurons():
    model = small_net().double()
    model[1].running_mean.uniform_()
    before = [parameter.clone() for parameter in model.parameters()]
    small = narrow(model, narrowing_of(model, IMAGES.double()))
    assert torch.equal(small[0].weight, model[0].weight[:2])
    assert torch.equal(small[1].running_mean, model[1].running_mean[:2])
    assert torch.equal(small[2].weight, model[2].weight[:2])
    assert torch.equal(small[3].weight, model[3].weight[:2])
    assert small[3].groups == 2
    assert torch.equal(small[5].weight, model[5].weight[:3, :8])
    assert torch.equal(small[6].weight, model[6].weight[:, :3])
    assert torch.equal(small[6].bias, model[6].bias)
    assert all(map(torch.equal, before, model.parameters()))


SIZES = {
    0: ("in_channels", "out_channels"), 1: ("num_features",), 2: ("num_parameters",),
    3: ("in_channels", "out_channels"), 5: ("in_features", "out_features"),
}  # fmt: skip


def test_narrow_layers_have_the_full_sizes_by_default():
    model = small_net()
    narrowing = narrowing_of(model, IMAGES)
    small, own = narrow(model, narrowing), narrow(model, narrowing, own_sizes=True)
    for number, names in SIZES.items():
        for name in names:
            assert getattr(small[number], name) == getattr(model[number], name)
    assert (own[0].in_channels, own[0].out_channels, own[1].num_features) == (3, 2, 2)
    assert (own[2].num_parameters, own[5].in_features, own[5].out_features) == (2, 8, 3)
    assert own[3].groups == small[3].groups == 2
    assert torch.equal(small.eval()(IMAGES), own.eval()(IMAGES))


def test_layers_that_were_not_followed_keep_their_width():
    axis = (Segment("0", 4),)
    narrowing = Narrowing({"0": 4}, {"0": 2}, rows={"0": axis, "1": ()}, columns={"1": axis})
    assert narrowing.paths == ["1"]
    small = narrow(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), narrowing)
    assert [layer.weight.shape for layer in small] == [(4, 5), (2, 2)]
    assert narrowing.dropped((Segment("0", 4, 2), Segment(None, 3))).tolist() == [4, 5, 6, 7]


def test_models_agree():
    model = small_net()
    assert agrees(model, ((IMAGES,), {}), narrowing=narrowing_of(model, IMAGES))


@pytest.mark.parametrize(
    "mix",
    [
        lambda h: h + h.mean(1, keepdim=True),
        lambda h: h.softmax(1),
        lambda h: h / h.shape[1],
        lambda h: h - h.max(),
        lambda h: h.roll(1, 1),
        lambda h: nn.functional.normalize(h),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_is_noticed(mix, dtype):
    # A forward that insists on single precision is compared in it.
    cast = (lambda x: x.float()) if dtype is torch.float32 else (lambda x: x)
    layers = {"conv": nn.Conv2d(3, 8, 1), "fc": nn.Linear(8, 2)}
    plain = Assembled(lambda m, x: m.fc(m.conv(cast(x)).mean((2, 3))), **layers)
    mixed = Assembled(lambda m, x: m.fc(mix(m.conv(cast(x))).mean((2, 3))), **layers)
    narrowing = narrowing_of(plain, IMAGES)
    assert agrees(plain, ((IMAGES,), {}), narrowing=narrowing)
    assert not agrees(mixed, ((IMAGES,), {}), narrowing=narrowing)


def moment(func, *args):
    return Moment(func.__name__, "", "", func, args, {})


def test_replay_continues_after_a_problem():
    hidden = Neurons(1, (Segment("a", 4),))
    shape = torch.empty(2, 4, device="meta")
    device = torch.device("cpu")
    events = [
        Event("neg", "", shape, hidden, device, False),
        Event("flatten", "", shape, hidden, device, False),
        Event("reshape", "", shape, hidden, device, False),
        Event("sum", "", shape, Mark.UNKNOWN, device, False),
        Event("tanh", "", shape, hidden, device, False),
    ]
    replay = Replay(events, {"a": 2}, followed=[])
    narrow_input = torch.ones(2, 2)
    assert torch.equal(replay.see(moment(torch.neg, narrow_input)), -narrow_input)
    assert replay.see(moment(torch.flatten, narrow_input)).shape == (2, 2)
    assert replay.see(moment(torch.reshape, narrow_input, (2, 4))).shape == (2, 2)
    assert replay.see(moment(torch.sum, narrow_input)).shape == (2, 4)
    assert replay.see(moment(torch.exp, narrow_input)).shape == (2, 2)
    assert replay.see(moment(torch.exp, narrow_input)).shape == (2, 2)
    flatten, reshape, path = [problem.found for problem in replay.problems]
    assert (
        "'flatten' has a number of neurons built in: with fewer it gives the shape (4,)" in flatten
    )
    assert "'reshape' has a number of neurons built in: with fewer it fails" in reshape
    assert "'exp' runs where 'tanh' ran" in path


def layer_event(path, name="Linear"):
    shape = torch.empty(2, 4, device="meta")
    return Event(name, path, shape, Mark.INPUT, torch.device("cpu"), True)


def test_another_path_is_reported_with_the_paths_of_both():
    replay = Replay([layer_event("")], {}, followed=[])
    replay.see(Moment("tanh", "act", "", lambda: torch.ones(1), (), {}))
    assert "'tanh' in 'act' runs where Linear '(model)' ran" in str(replay.problems[0])
    replay = Replay([], {}, followed=[])
    replay.see(moment(torch.tanh, torch.ones(1)))
    assert "'tanh' runs where nothing ran" in str(replay.problems[0])


def test_a_lost_path_is_reported_once():
    replay = Replay([layer_event("fc"), layer_event("norm", "BatchNorm1d")], {}, followed=["fc"])
    run = Moment("Linear", "fc", "", lambda: torch.ones(2, 4), (), {}, nn.Linear(4, 4))
    replay.see(run)
    replay.finish()
    [problem] = replay.problems
    assert problem.where == "norm"
    assert "it ends where BatchNorm1d 'norm' ran" in problem.found
    replay.see(run)
    replay.finish()
    assert len(replay.problems) == 2
