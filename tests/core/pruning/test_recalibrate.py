"""Batches that other threads help to make."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import clnp
from clnp.core.pruning import recalibrate
from clnp.core.pruning.activity import measured
from clnp.errors import ArgumentError
from support.networks import (
    ConvNet,
    copied_state,
    example,
    half,
    learn,
    make,
    same_state,
    train,
)


def prefetched(net, x):
    """Batches that another thread makes, which asks an ended task."""
    with ThreadPoolExecutor(1) as pool:
        for part in x.split(4):
            yield pool.submit(lambda part=part: part + 0 * net(part, task="a").sum()).result(60)


def test_a_thread_that_makes_batches_may_ask_ended_tasks():
    net, x = make("conv"), example("conv", num=12)
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    plain = net.measure_activity(x.split(4))
    found = net.measure_activity(prefetched(net, x))
    assert all(torch.equal(found[group], plain[group]) for group in plain)
    before = net.open_state()
    net.recalibrate(x.split(4))
    once = net.open_state().tensors
    net.set_open_state(before)
    net.recalibrate(prefetched(net, x))
    assert all(torch.equal(tensor, once[name]) for name, tensor in net.open_state().tensors.items())


def test_what_other_threads_run_between_two_batches_is_not_measured():
    net, x = make("conv"), example("conv", num=12)
    net.begin_task("a")

    def batches():
        for part in x.split(4):
            net(10 * part)
            yield part

    plain = net.measure_activity(x.split(4))
    net.train()
    state = net.open_state()
    found = net.eval().measure_activity(batches())
    assert all(torch.equal(found[group], plain[group]) for group in plain)
    net.set_open_state(state)
    assert net._body.stage.on_input is None


def test_a_batch_that_fails_leaves_modes_and_statistics():
    net, x = make("conv").train(), example("conv", num=12)
    net.begin_task("a")
    before = net.open_state().tensors
    for function in (measured, recalibrate.recalibrate):
        with pytest.raises((RuntimeError, clnp.errors.ArgumentError)):
            function(net._body, [x, x[:, :1]])
        assert all(module.training for module in net.modules())
        now = net.open_state().tensors
        assert all(torch.equal(tensor, before[name]) for name, tensor in now.items())
    net.end_task(half(net))


class Masked(nn.Module):
    """A network with an input that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x, mask=None):
        h = self.hidden(x)
        return self.out(torch.relu(self.norm(h if mask is None else h * mask)))


@pytest.mark.parametrize("loaded", [False, True])
def test_a_batch_says_which_of_its_tensors_are_inputs(tmp_path, loaded):
    x, mask, y = torch.randn(6, 4), torch.rand(6, 1), torch.zeros(6)
    net = clnp.ContinualNet(Masked(), (x, mask))
    net.begin_task("a")
    if loaded:
        clnp.save(net, tmp_path / "net")
        net = clnp.load(tmp_path / "net", Masked())
    together = net.measure_activity([((x, mask), y)])
    by_name = net.measure_activity([{"x": x, "mask": mask}])
    alone = net.measure_activity([x])
    assert torch.equal(together["hidden"], by_name["hidden"])
    assert not torch.equal(together["hidden"], alone["hidden"])
    for batch in ((x, mask, y), [x, y]):
        for use in (net.measure_activity, net.recalibrate):
            with pytest.raises(ArgumentError, match=r"has 2 inputs.* Give its inputs together"):
                use([batch])


def test_recalibration_sets_statistics_to_their_means_over_the_batches():
    net = make("conv")
    x = example("conv", num=12)
    net.begin_task("a")
    train(net, x)
    net.eval()
    net.recalibrate(x.split(4))
    with torch.no_grad():
        weight, bias = net.model.conv1.weight_free, net.model.conv1.bias_free
        inputs = [F.conv2d(part, weight, bias, padding=1) for part in x.split(4)]
    norm = net.model.bn1
    means = torch.stack([part.mean((0, 2, 3)) for part in inputs]).mean(0)
    variances = torch.stack([part.var((0, 2, 3)) for part in inputs]).mean(0)
    torch.testing.assert_close(norm.running_mean_free, means)
    torch.testing.assert_close(norm.running_var_free, variances)


def with_norm():
    """A network whose BatchNorm sees one value of a channel for each sample, with an open task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    net, x = clnp.ContinualNet(model, torch.randn(4, 5)), torch.randn(258, 5)
    net.begin_task("a")
    seen = F.linear(x, net.model[0].weight_free, net.model[0].bias_free).detach()
    return net, x, seen


@pytest.mark.parametrize("size", [256, 257, 258])
def test_a_small_last_batch_counts_for_its_samples_only_when_recalibrating(size):
    net, x, seen = with_norm()
    net.recalibrate(x.split(size))
    norm = net.model[1]
    torch.testing.assert_close(norm.running_mean_free, seen.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(norm.running_var_free, seen.var(0), atol=0, rtol=0.02)


def test_a_lone_sample_does_not_count_when_recalibrating():
    net, x, seen = with_norm()
    net.recalibrate([x[:0], x[:1], x[1:], x[:1]])
    torch.testing.assert_close(net.model[1].running_mean_free, seen[1:].mean(0))
    before = net.model[1].running_mean_free.clone()
    with pytest.raises(ArgumentError, match="needs batches of more than one sample"):
        net.recalibrate(x[:5].split(1))
    assert torch.equal(net.model[1].running_mean_free, before)
    net.end_task({"0": []}, recalibrate=x[:3].split(1))


def test_recalibration_changes_nothing_but_free_statistics():
    net, x = make("conv"), example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    net.train()
    net.model.bn2.eval()
    modes = [module.training for module in net.modules()]
    before, rng = copied_state(net), torch.get_rng_state()
    net.recalibrate([x, x])
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), rng)
    after = net.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {
        f"model.{norm}.running_{which}_free" for norm in ("bn1", "bn2") for which in ("mean", "var")
    }


@pytest.mark.parametrize("momentum", [0.1, None])
def test_recalibration_that_fails_half_way_changes_nothing(momentum):
    model = ConvNet()
    model.bn1.momentum = momentum
    net, x = clnp.ContinualNet(model, example("conv")), example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    state, modes = copied_state(net), [module.training for module in net.modules()]

    def batches():
        yield x
        yield x + 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        net.recalibrate(batches())
    assert same_state(net.state_dict(), state)
    assert [module.training for module in net.modules()] == modes
    train(net, x)
