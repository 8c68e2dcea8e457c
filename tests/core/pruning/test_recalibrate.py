"""Batches that other threads help to make."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import clnp
from clnp.core.pruning import recalibrate
from clnp.core.pruning.activity import measured
from clnp.errors import ArgumentError
from support.networks import example, half, learn, make, train


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
            with pytest.raises(ArgumentError, match=r"has 2 inputs.* give its inputs together"):
                use([batch])
