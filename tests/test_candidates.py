"""The open task with only some of its neurons, as the search for thresholds looks at it."""

import pytest
import torch
from torch import nn

from clnp.candidates import Candidates
from clnp.layers import PrefixLayer
from networks import HEADS, NETWORKS, example, learn, make, train


def opened(name="mlp", *, head="multi"):
    """A network with a task that has ended and one that is open, in evaluation mode."""
    net, x = make(name, head=head), example(name)
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    net.eval()
    return net, x


def some(net, step):
    """Every so many free neurons of each group."""
    return {group: tuple(range(0, n, step)) for group, n in net.ledger.free().items()}


def outputs(candidates, keep, x):
    seen = []
    candidates.score(lambda predict: float(len(seen.append(predict(x)) or seen)), keep)
    return seen[0]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_dead_neurons_that_round_widths_up_change_nothing(name, head, step):
    net, x = opened(name, head=head)
    keep = some(net, step)
    plain = outputs(Candidates(net._body), keep, x)
    aligned = outputs(Candidates(net._body, aligned=8), keep, x)
    torch.testing.assert_close(aligned, plain)


@pytest.mark.parametrize("head", HEADS)
def test_dead_neurons_stand_in_for_a_task_that_keeps_none(head):
    net, x = opened(head=head)
    keep = dict.fromkeys(net.ledger.free(), ())
    plain = outputs(Candidates(net._body), keep, x)
    torch.testing.assert_close(outputs(Candidates(net._body, aligned=8), keep, x), plain)


def test_the_widths_of_convolutions_are_rounded_up():
    net, x = opened("conv")
    for aligned, expected in ((8, True), (None, False)):
        outputs(Candidates(net._body, aligned=aligned), some(net, 3), x)
        convolutions = [p for p in net._body.parts.values() if isinstance(p, nn.Conv2d)]
        assert len(convolutions) > 1
        assert all(len(each._shown["weight"]) % 8 == 0 for each in convolutions) == expected


def test_a_layer_is_laid_out_anew_only_for_other_neurons(monkeypatch):
    net, x = opened()
    laid_out, of_class = [], PrefixLayer.as_candidate

    def counted(layer, *args):
        laid_out.append(layer.site.path)
        return of_class(layer, *args)

    monkeypatch.setattr(PrefixLayer, "as_candidate", counted)
    candidates, keep = Candidates(net._body), some(net, 2)
    outputs(candidates, keep, x)
    assert laid_out == ["fc1", "fc2"]
    laid_out.clear()
    other = {**keep, "fc2": keep["fc2"][:-1]}
    found = outputs(candidates, other, x)
    assert laid_out == ["fc2"]
    assert torch.equal(found, outputs(Candidates(net._body), other, x))
    laid_out.clear()
    outputs(candidates, {**other, "fc1": keep["fc1"][1:]}, x)
    assert laid_out == ["fc1", "fc2"]


def test_an_ended_task_may_run_in_between():
    net, x = opened()
    candidates, keep = Candidates(net._body), some(net, 2)
    before = outputs(candidates, keep, x)
    net(x, task="a")
    assert torch.equal(outputs(candidates, keep, x), before)


@pytest.mark.gpu
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_gpu_scores_as_a_cpu_does(name, head):
    net, x = opened(name, head=head)
    keep = some(net, 2)
    expected = outputs(Candidates(net._body), keep, x)
    found = outputs(Candidates(net.cuda()._body), keep, x.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)
