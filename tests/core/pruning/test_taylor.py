import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from clnp.core.layers.stage import Pass
from clnp.core.pruning.activity import by_group, up_to
from clnp.errors import ArgumentError, DivergedError
from support.networks import (
    NETWORKS,
    ConvNet,
    copied_state,
    example,
    learn,
    make,
    mlp,
    same_state,
)


def labels(num: int) -> Tensor:
    return torch.arange(num) % 4


def begun(model: nn.Module, x: Tensor) -> clnp.ContinualNet:
    net = clnp.ContinualNet(model, x)
    net.begin_task("a", initial=model)
    return net


def terms_by_hand(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Sums of weight times gradient over the column of each input, `[samples, inputs]`, by path."""
    found: dict[str, list[Tensor]] = {}
    for number in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[number : number + 1]), y[number : number + 1]).backward()
        for path, layer in model.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                term = layer.weight.detach() * layer.weight.grad
                rest = [d for d in range(term.ndim) if d != 1]
                found.setdefault(path, []).append(term.sum(rest))
    return {path: torch.stack(each) for path, each in found.items()}


def cumulated(scores: Tensor) -> Tensor:
    return up_to(scores / scores.sum())


@pytest.mark.parametrize("size", [3, 9])
def test_the_score_is_the_mean_square_of_weight_times_gradient_of_each_sample(size):
    model, x, y = mlp().double(), torch.randn(9, 6).double(), labels(9)
    batches = list(zip(x.split(size), y.split(size), strict=True))
    found = begun(model, x).measure_taylor(batches, F.cross_entropy)
    terms = terms_by_hand(model, x, y)
    torch.testing.assert_close(found["fc1"], cumulated(terms["fc2"].square().mean(0)))
    torch.testing.assert_close(found["fc2"], cumulated(terms["fc3"].square().mean(0)))


def test_the_batches_need_not_have_one_size():
    model, x, y = mlp().double(), torch.randn(9, 6).double(), labels(9)
    net = begun(model, x)
    batches = zip(x.split([7, 2]), y.split([7, 2]), strict=True)
    found = net.measure_taylor(batches, F.cross_entropy)
    whole = net.measure_taylor([(x, y)], F.cross_entropy)
    for group in whole:
        torch.testing.assert_close(found[group], whole[group])


def test_a_channel_counts_with_its_whole_kernel_and_all_places_that_flatten_makes_of_it():
    model, x, y = ConvNet().double().eval(), torch.randn(5, 3, 8, 8).double(), labels(5)
    for norm in (model.bn1, model.bn2):
        nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.weight, 0.5, 2)
    found = begun(model, x).measure_taylor([(x, y)], F.cross_entropy)
    terms = terms_by_hand(model, x, y)
    torch.testing.assert_close(found["conv1"], cumulated(terms["conv2"].square().mean(0)))
    flattened = terms["fc1"].view(5, 5, 9).sum(2)
    torch.testing.assert_close(found["conv2"], cumulated(flattened.square().mean(0)))


def on_parameters(net: clnp.ContinualNet, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The scores of all neurons from gradients of weights, free neurons before earlier ones."""
    body = net._body
    num = {**net.record().open_free}
    largest = {g: torch.zeros(n + body.stage.frozen[g]).double() for g, n in num.items()}
    layers = [part for part in body.parts.values() if part.layer_kind.mixes]
    squares: dict[tuple[int, int], tuple[str, Pass, Tensor]] = {}
    for number in range(len(x)):
        net.zero_grad()
        F.cross_entropy(net(x[number : number + 1]), y[number : number + 1]).backward()
        for index, layer in enumerate(layers):
            segments = []
            for running in (Pass.FREE, Pass.FROZEN):
                block = layer.weight_free if running is Pass.FREE else layer.weight_reuse
                if block is None or block.grad is None:
                    continue
                term = block.detach() * block.grad
                term = term.sum([d for d in range(term.ndim) if d != 1])
                found = by_group(layer, running, term)
                segments += [(group, running, part.sum(1).square()) for group, part in found]
            for place, (group, running, square) in enumerate(segments):
                before = squares.get((index, place))
                total = square if before is None else before[2] + square
                squares[index, place] = group, running, total
    net.zero_grad()
    for index in range(len(layers)):
        own = [each for (layer, _), each in squares.items() if layer == index]
        total = sum(square.sum() for *_, square in own)
        for group, running, square in own:
            here = slice(num[group]) if running is Pass.FREE else slice(num[group], None)
            if total > 0:
                largest[group][here] = torch.maximum(largest[group][here], square / total)
    return {group: up_to(values) for group, values in largest.items()}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("head", ["multi", "single"])
def test_every_network_has_the_scores_of_its_weights(name, head):
    net, x = make(name, head=head).double(), example(name).double()
    learn(net, "a", x)
    net.begin_task("b")
    net.eval()
    x, y = x[:3], labels(3)
    found = net.measure_taylor([(x, y)], F.cross_entropy)
    assert found.num_free() == net.ledger.free()
    for group, expected in on_parameters(net, x, y).items():
        both = torch.cat([found[group], found.owned[group]])
        torch.testing.assert_close(both, expected, msg=group)


def test_a_neuron_that_is_always_0_or_that_nothing_reads_has_the_score_0():
    net, x = make("conv"), example("conv")
    net.begin_task("a")
    with torch.no_grad():
        net.model.conv2.weight_free[:, 1] = 0
        net.model.bn1.weight_free[2], net.model.bn1.bias_free[2] = 0, 0
    found = net.measure_taylor([(x, labels(len(x)))], F.cross_entropy)
    assert found["conv1"][1:3].tolist() == [0, 0]
    plan = net.plan_pruning(found, thresholds=0.0)
    assert not {1, 2} & set(plan.keep["conv1"])
    assert plan.num_kept > 10


@pytest.mark.parametrize("training", [True, False])
def test_measuring_changes_nothing_and_leaves_no_gradient(training):
    net, x = make("conv"), example("conv")
    learn(net, "a", x)
    net.begin_task("b")
    net.train(training)
    before, rng = copied_state(net), torch.get_rng_state()
    with torch.no_grad():
        one = net.measure_taylor([(x, labels(len(x)))], F.cross_entropy)
    assert net.training is training
    assert same_state(net.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(parameter.grad is None for parameter in net.parameters())
    net.requires_grad_(False)
    batches = [(x, labels(len(x)))]
    with torch.inference_mode():
        other = net.measure_taylor(batches, F.cross_entropy)
    for group in one:
        torch.testing.assert_close(one[group], other[group])


def test_a_pruned_task_and_an_empty_group_have_scores():
    net, x = make("concatenating"), example("concatenating")
    net.begin_task("a")
    net.prune({"left": [], "both": [1, 2, 3]})
    found = net.measure_taylor([(x, labels(len(x)))], F.cross_entropy)
    assert found.num_free() == {"left": 0, "right": 4, "both": 3}
    assert float(found["right"].max()) == pytest.approx(1)


def test_the_loss_may_take_all_that_follows_the_inputs():
    net, x = make(), example("mlp")
    net.begin_task("a")
    y, weight = labels(len(x)), torch.zeros(len(x))
    weight[0] = 8.0

    def weighted(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (F.cross_entropy(outputs, targets, reduction="none") * weights).mean()

    found = net.measure_taylor([[x, y, weight]], weighted)
    only = net.measure_taylor([(x[:1], y[:1])], F.cross_entropy)
    torch.testing.assert_close(found["fc1"], only["fc1"])


@pytest.mark.parametrize(
    ("batches", "loss", "message"),
    [
        ([(example("mlp"), labels(8))], 3, "loss is 3. It must be a function of outputs and tar"),
        ([example("mlp")], F.cross_entropy, "a batch holds no targets, which the loss needs. Give"),
        ([(example("mlp"),)], F.cross_entropy, "a batch holds no targets, which the loss needs"),
        ([], F.cross_entropy, "no sample was given"),
        (
            [(example("mlp"), labels(8))],
            lambda outputs, targets: outputs,
            r"loss returned a tensor of shape \[8, 4\]. It must return the mean loss of the batch",
        ),
        (
            [(example("mlp"), labels(8))],
            lambda outputs, targets: F.cross_entropy(outputs, targets).item(),
            "loss returned .*It must return the mean loss",
        ),
        (
            [(example("mlp"), labels(8))],
            lambda outputs, targets: F.cross_entropy(outputs.detach(), targets),
            "loss returned a tensor without a gradient. It must return the mean loss",
        ),
    ],
)
def test_batches_and_loss_are_checked(batches, loss, message):
    net = make()
    net.begin_task("a")
    with pytest.raises(ArgumentError, match=message):
        net.measure_taylor(batches, loss)


def test_scores_that_are_no_numbers_mean_that_the_task_diverged():
    net, x = make(), example("mlp")
    net.begin_task("a")
    with torch.no_grad():
        net.model.fc2.bias_free[0] = torch.nan
    with pytest.raises(
        DivergedError, match="the Taylor score of fc1 is NaN or infinite: the task has"
    ):
        net.measure_taylor([(x, labels(len(x)))], F.cross_entropy)
    assert net._body.stage.on_input is None


def test_a_threshold_cuts_the_same_part_of_every_layer():
    net, x = make("conv"), example("conv")
    net.begin_task("a")
    found = net.measure_taylor([(x, labels(len(x)))], F.cross_entropy)
    assert all(float(values.max()) == pytest.approx(1) for values in found.values())
    kept = net.plan_pruning(found, thresholds=0.2).keep
    for group, values in found.items():
        cut = [float(each) for n, each in enumerate(values) if n not in kept[group]]
        assert max(cut, default=0.0) <= 0.2
