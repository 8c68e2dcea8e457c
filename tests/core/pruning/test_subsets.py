"""The open task with only some of its neurons, as the search for thresholds looks at it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import clnp
from clnp.core.layers.layer import PrefixLayer
from clnp.core.pruning.subsets import Subsets
from clnp.errors import (
    ArgumentError,
    DivergedError,
    PruningError,
    TaskError,
)
from support.networks import (
    HEADS,
    NETWORKS,
    example,
    learn,
    make,
    train,
)


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


def subsets(net, x, **options):
    """A function from neurons to the outputs of the open task with only those."""
    seen = []

    def score(predict):
        seen.append(predict(x))
        return 0.0

    scored = Subsets(net._body, score, **options)
    return lambda keep: (scored.score(keep, None), seen.pop())[1]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_copies_that_round_widths_up_change_nothing(name, head):
    net, x = opened(name, head=head)
    for step in (1, 2, 1000):
        keep = some(net, step)
        torch.testing.assert_close(subsets(net, x, multiple=8)(keep), subsets(net, x)(keep))


class Log(nn.Module):
    """What follows its convolution is not finite at 0."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 11, 3), nn.Linear(11, 4)

    def forward(self, x):
        return self.fc(torch.log(self.conv(x).square().mean((2, 3))))


def test_what_rounds_widths_up_is_finite_where_the_neurons_are():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 8, 8)
    net = clnp.ContinualNet(Log(), x)
    net.begin_task("a")
    keep = {"conv": (2, 3, 7)}
    found = subsets(net, x, multiple=8)(keep)
    torch.testing.assert_close(found, subsets(net, x)(keep))
    assert found.isfinite().all()


def widths(net, kind):
    return [len(p._shown["weight"]) for p in net._body.layers.values() if isinstance(p, kind)]


def test_the_widths_of_convolutions_are_rounded_up_and_no_others():
    net, x = opened("conv")
    subsets(net, x)(some(net, 3))
    plain = widths(net, nn.Conv2d), widths(net, nn.Linear)
    subsets(net, x, multiple=8)(some(net, 3))
    assert len(plain[0]) > 1
    assert widths(net, nn.Conv2d) == [-(-width // 8) * 8 for width in plain[0]]
    assert widths(net, nn.Linear) == plain[1]
    assert any(width % 8 for width in plain[0] + plain[1])


def test_weights_that_are_loaded_in_between_are_seen():
    net, x = make(), example("mlp")
    net.begin_task("a")
    outputs = subsets(net, x)
    before = outputs(some(net, 2))
    state = net.state_dict()
    net.load_state_dict({n: 2 * t if t.is_floating_point() else t for n, t in state.items()})
    after = outputs(some(net, 2))
    assert not torch.equal(after, before)
    assert torch.equal(after, subsets(net, x)(some(net, 2)))


def test_a_layer_is_laid_out_anew_only_for_other_neurons(monkeypatch):
    net, x = opened()
    laid_out, of_class = [], PrefixLayer.subset_of

    def counted(layer, *args, **options):
        laid_out.append(layer.site.path)
        return of_class(layer, *args, **options)

    monkeypatch.setattr(PrefixLayer, "subset_of", counted)
    outputs, keep = subsets(net, x), some(net, 2)
    outputs(keep)
    assert laid_out == ["fc1", "fc2"]
    laid_out.clear()
    other = {**keep, "fc2": keep["fc2"][:-1]}
    found = outputs(other)
    assert laid_out == ["fc2"]
    assert torch.equal(found, subsets(net, x)(other))
    laid_out.clear()
    others = {**other, "fc1": tuple(neuron + 1 for neuron in keep["fc1"][:-1])}
    outputs({**others, "fc1": keep["fc1"][:-1]})
    assert laid_out == ["fc1", "fc2"]
    # As many, but not the same ones.
    assert torch.equal(outputs(others), subsets(net, x)(others))


class Branches(nn.Module):
    """BatchNorm over two branches side by side, so that frozen channels lie between free ones."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1)
        self.norm, self.conv = nn.BatchNorm2d(13), nn.Conv2d(13, 9, 3, bias=False)
        self.flat, self.fc = nn.BatchNorm1d(9), nn.Linear(9, 4)

    def forward(self, x):
        x = torch.cat([self.left(x), self.right(x)], 1)
        x = torch.relu(self.conv(torch.relu(self.norm(x))))
        return self.fc(self.flat(x.mean((2, 3))))


def opened_with_norms(*, head="multi"):
    """`Branches` with a task that has ended and one that is open; batches that it is trained on."""
    torch.manual_seed(0)
    x = torch.randn(60, 3, 6, 6)
    net = clnp.ContinualNet(Branches(), x[:2], head=head)
    learn(net, "a", x)
    net.begin_task("b")
    train(net, x)
    net.eval()
    return net, x, x.split(20)


@pytest.mark.parametrize("aligned", [1, 8])
@pytest.mark.parametrize(("head", "step"), [("multi", 2), ("multi", 1000), ("single", 3)])
def test_a_recalibrated_candidate_is_what_the_task_will_be(head, step, aligned):
    net, x, batches = opened_with_norms(head=head)
    keep, ended = some(net, step), net(x, task="a")
    plain = subsets(net, x)(keep)
    found = subsets(net, x, multiple=aligned, recalibrate=batches)(keep)
    net.end_task(keep, recalibrate=batches)
    torch.testing.assert_close(found, net(x, task="b"), rtol=1e-4, atol=1e-5)
    assert (found - plain).abs().max() > 0.05
    assert torch.equal(net(x, task="a"), ended)


def test_one_candidate_leaves_nothing_of_its_statistics_to_the_next():
    net, x, batches = opened_with_norms()
    outputs = subsets(net, x, recalibrate=iter(batches))
    keeps = [some(net, 2), {**some(net, 2), "left": (1,)}, some(net, 3)]
    for keep in (*keeps, *keeps):
        alone = subsets(net, x, recalibrate=batches)(keep)
        assert torch.equal(outputs(keep), alone)


def test_with_all_neurons_statistics_are_averaged_anew_too():
    net, x, batches = opened_with_norms()
    before = net.open_state().tensors
    seen = []

    def score(predict):
        seen.append(predict(x))
        return 0.0

    net.unpruned_score(score, recalibrate=batches)
    assert torch.equal(subsets(net, x, recalibrate=batches)(some(net, 1)), *seen)
    assert not torch.equal(subsets(net, x)(some(net, 1)), *seen)
    # The task itself is left as it was.
    assert all(torch.equal(t, before[name]) for name, t in net.open_state().tensors.items())
    net.end_task(recalibrate=batches)
    torch.testing.assert_close(net(x, task="b"), *seen, rtol=1e-4, atol=1e-5)


def test_statistics_that_are_not_finite_are_mended():
    net, x, batches = opened_with_norms()
    expected = subsets(net, x, recalibrate=batches)(some(net, 2))
    for buffer in (net.model.norm.running_mean_free, net.model.flat.running_var_free):
        buffer.fill_(torch.nan)
    found = subsets(net, x, recalibrate=batches)(some(net, 2))
    assert torch.equal(found, expected)
    net.end_task(some(net, 2), recalibrate=batches)
    torch.testing.assert_close(net(x, task="b"), expected, rtol=1e-4, atol=1e-5)


def planned(net, x, **options):
    """A plan that keeps the more active half, by how near it is to the network with all neurons."""
    outputs, activity = net(x).detach(), net.measure_activity([x])

    def score(predict):
        return -(predict(x) - outputs).abs().mean().item()

    thresholds = {group: values.median().item() for group, values in activity.items()}
    return score, net.plan_pruning(activity, score, thresholds=thresholds, **options)


def test_a_plan_that_is_recalibrated_says_what_the_ended_task_scores():
    """And with statistics of all neurons it does not."""
    gaps = []
    for recalibrated in (True, False):
        net, x, batches = opened_with_norms()
        score, plan = planned(net, x, **({"recalibrate": batches} if recalibrated else {}))
        assert 0 < sum(plan.kept.values()) < sum(plan.available.values())
        net.end_task(plan, recalibrate=batches)
        gaps.append(abs(plan.score - score(lambda x, net=net: net(x, task="b"))))
    assert gaps[0] < 1e-4
    assert gaps[1] > 0.005


def test_what_cannot_be_recalibrated_on_is_refused():
    net, x, batches = opened_with_norms()
    with pytest.raises(ArgumentError, match="batches is of type Tensor"):
        planned(net, x, recalibrate=x)
    with pytest.raises(ArgumentError, match="more than one sample"):
        planned(net, x, recalibrate=x.split(1)[:3])
    used_up = iter(batches)
    assert list(used_up)
    for nothing in ([], used_up):
        with pytest.raises(ArgumentError, match="no batch was given: recalibration needs data"):
            planned(net, x, recalibrate=nothing)
    with pytest.raises(DivergedError, match="norm: over these batches, its statistics are NaN"):
        planned(net, x, recalibrate=[x * torch.nan])
    assert planned(net, x, recalibrate=batches)[1].num_evaluations


def test_without_batch_norm_no_batch_is_asked_for():
    net, x = opened()

    def batches():
        raise AssertionError
        yield x

    activity = net.measure_activity([x])
    plan = net.plan_pruning(activity, lambda f: f(x).mean(), thresholds=0, recalibrate=batches())
    assert plan.num_evaluations


@pytest.mark.gpu
@pytest.mark.parametrize("head", HEADS)
def test_a_gpu_recalibrates_as_a_cpu_does(head):
    net, x, batches = opened_with_norms(head=head)
    keep = some(net, 2)
    expected = subsets(net, x, recalibrate=batches)(keep)
    found = subsets(net.cuda(), x.cuda(), recalibrate=batches)(keep)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_gpu_scores_as_a_cpu_does(name, head):
    net, x = opened(name, head=head)
    keep = some(net, 2)
    expected = subsets(net, x)(keep)
    found = subsets(net.cuda(), x.cuda())(keep)
    assert all(width % 8 == 0 for width in widths(net, nn.Conv2d) if width > 1)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=1e-2)


def test_predict_is_of_no_use_after_score_has_returned():
    net, x = make(), example("mlp")
    net.begin_task("a")
    handed = []

    def score(predict: Callable[[Tensor], Tensor]) -> float:
        handed.append(predict)
        if len(handed) > 1:
            with pytest.raises(TaskError, match="predict is for the call of score that it was"):
                handed[0](x)
        return float(predict(x).shape[1])

    net.plan_pruning(net.measure_activity([x]), score, margin=0.0, allow_guessing=True)
    assert len(handed) > 1
    with pytest.raises(TaskError, match="predict is for the call of score that it was handed to"):
        handed[-1](x)
    assert net(x).shape == (8, 4)


def test_the_unpruned_score_is_that_of_a_plan_that_keeps_everything():
    net, x = make("conv"), example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    net.prune({"fc1": [0, 2]})

    def score(predict):
        return float(predict(x).double().sum())

    plan = net.plan_pruning(net.measure_activity([x]), score, thresholds=-1.0)
    assert net.unpruned_score(score) == plan.score
    with pytest.raises(PruningError, match=r"score returned nan. It must be a finite"):
        net.unpruned_score(lambda predict: math.nan * predict(x).sum())
    with pytest.raises(PruningError, match="score did not call predict, which is the network with"):
        net.unpruned_score(lambda predict: float(net(x).sum()))


def test_a_score_that_takes_it_gets_the_score_that_is_needed():
    net, x = opened()
    seen = []

    def score(predict, at_least):
        predict(x)
        seen.append(at_least)
        return 0.0

    scored = Subsets(net._body, score)
    for needed in (3.0, None):
        scored.score(some(net, 2), needed)
    assert seen == [3.0, None]
