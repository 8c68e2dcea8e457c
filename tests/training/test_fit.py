import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clnp
from clnp import Experiment, LearnerConfig, Objective, Task, Training
from clnp.errors import ArgumentError, DivergedError
from clnp.methods.single import Finetune
from clnp.storage.packing import pack, unpack
from clnp.training import fit as module
from clnp.training.fit import Fit, StepRule, evaluate, joined, l1_rule
from clnp.training.objective import CLASSIFICATION, REGRESSION, accuracy
from clnp.training.task import load
from support.networks import ConvNet

CPU = torch.device("cpu")


def data(*, num_samples=120):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_samples, 6, generator=generator)
    return load(Task("a", (x, x[:, :3].argmax(1))), CPU)


def opened():
    torch.manual_seed(0)
    net = clnp.ContinualNet(
        nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 3)),
        torch.zeros(2, 6),
    )
    net.begin_task("a")
    return net


def fit_of(net, training, *, seed=0, rule=None, loaded=None):
    rule = rule or l1_rule(net, training.alpha)
    return Fit(net, loaded or data(), training, seed=seed, rule=rule)


def weights(net):
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def trained(seed=0, **options):
    """The weights after a training."""
    net = opened()
    fit_of(net, Training(**options), seed=seed).run()
    return weights(net)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_training_learns():
    net = opened()
    score = fit_of(net, Training(epochs=30, lr=0.02, batch_size=16)).run()
    assert score > 70
    assert score == evaluate(net, data().validation, data().objective)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}},
        {"patience": 2},
        {"schedule": "cosine", "input_dropout": 0.2, "clip_norm": 1.0},
        {"precision": "bfloat16"},
    ],
)
@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_fit_resumes_after_any_epoch_to_the_same_result(options, stop_after):
    training = Training(epochs=4, lr=0.05, batch_size=32, **options)
    whole, net = opened(), opened()
    expected, stopped = fit_of(whole, training, seed=3), fit_of(net, training, seed=3)
    score = expected.run()
    for _ in range(min(stop_after, len(expected.epochs))):
        stopped.begin_epoch()
        stopped.end_epoch()
    tensors = {}
    packed = pack(stopped.state(), tensors, name="fit")

    resumed = opened()
    resumed.set_open_state(net.open_state())
    again = fit_of(resumed, training, seed=3)
    again.restore(unpack(packed, tensors))
    torch.manual_seed(99)  # Nothing may depend on the state of the generator.
    assert again.run() == score
    assert same(weights(resumed), weights(whole))
    assert [replace(epoch, seconds=0) for epoch in again.epochs] == [
        replace(epoch, seconds=0) for epoch in expected.epochs
    ]


def test_the_result_depends_on_the_seed_only():
    found = []
    for seed, noise in ((1, 10), (1, 20), (2, 10)):
        net = opened()
        torch.manual_seed(noise)
        fit_of(net, Training(epochs=2, batch_size=16), seed=seed).run()
        found.append(weights(net))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_an_equal_score_does_not_reset_patience():
    fit = fit_of(opened(), Training(epochs=9, lr=1e-30, alpha=0.0, patience=2))
    fit.run()
    assert len({epoch.score for epoch in fit.epochs}) == 1
    assert len(fit.epochs) == 3


def test_patience_stops_and_restores_the_best_weights():
    net = opened()
    fit = fit_of(net, Training(epochs=50, lr=0.5, batch_size=8, patience=2))
    kept = {}

    def remember(epoch):
        kept[epoch.number] = net.open_state()

    score = fit.run(remember)
    assert len(fit.epochs) < 50
    assert len(fit.epochs) - 1 - fit.best_epoch == 2
    assert score == max(epoch.score for epoch in fit.epochs)
    best = kept[fit.best_epoch].tensors
    assert all(torch.equal(net.open_state().tensors[name], best[name]) for name in best)


def test_a_loss_that_is_not_finite_is_divergence():
    training = Training(epochs=3, lr=1e30, optimizer="SGD")
    with pytest.raises(DivergedError, match=r"the loss of task .a. is \S+ in epoch \d\. Use a low"):
        fit_of(opened(), training).run()


def grouped(parameters, lr):
    """SGD with its own rate for each group: a small one, zero, and a tensor."""
    groups = [
        {"params": parameters[:1], "lr": lr / 128},
        {"params": parameters[1:2], "lr": 0.0},
        {"params": parameters[2:3], "lr": torch.tensor(lr / 4)},
        {"params": parameters[3:]},
    ]
    return torch.optim.SGD(groups, lr=lr)


def test_parameter_groups_keep_their_share_of_the_learning_rate():
    training = Training(
        epochs=4, lr=0.5, batch_size=32, optimizer=grouped, schedule="milestones", milestones=(2,)
    )
    net = opened()
    before = weights(net)
    fit = fit_of(net, training)
    fit.begin_epoch()
    rates = [float(group["lr"]) for group in fit.optimizer.param_groups]
    assert rates == [0.5 / 128, 0, 0.125, 0.5]
    fit.end_epoch()
    moved = [not torch.equal(before[name], now) for name, now in weights(net).items()]
    assert moved == [True, False, *[True] * (len(moved) - 2)]
    # Also when it resumes, and the optimizer has the rates of a step.
    again = opened()
    again.set_open_state(net.open_state())
    resumed = fit_of(again, training)
    resumed.restore(fit.state())
    fit.run()
    resumed.run()
    assert same(weights(again), weights(net))
    rates = [float(group["lr"]) for group in resumed.optimizer.param_groups]
    assert rates == pytest.approx([0.05 / 128, 0, 0.0125, 0.05])


def test_images_may_be_channels_last_in_training():
    x, y = torch.randn(44, 3, 8, 8), torch.arange(44) % 4
    seen, found = [], []
    for wanted in (False, True):
        torch.manual_seed(0)
        net = clnp.ContinualNet(ConvNet(), x)
        net.begin_task("a")
        net.model.conv1.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        loaded = load(Task("a", (x, y), num_outputs=4), CPU)
        training = Training(1, batch_size=20, optimizer="SGD", channels_last=wanted)
        fit_of(net, training, loaded=loaded).run()
        formats = [each.is_contiguous(memory_format=torch.channels_last) for each in seen]
        assert formats == [wanted, wanted, False]  # Two steps, and the evaluation.
        found.append(weights(net))
        seen.clear()
    for name, weight in found[0].items():
        torch.testing.assert_close(weight, found[1][name], rtol=1e-3, atol=1e-4)
    fit_of(opened(), Training(epochs=1, channels_last=True)).run()


def test_settings_reach_the_step():
    inputs = []

    def augment(x):
        inputs.append(x)
        return x + 1

    before = weights(opened())
    sgd = {"epochs": 1, "optimizer": "SGD", "lr": 1.0, "alpha": 0.0, "batch_size": 200}
    plain = trained(**sgd)
    assert not same(trained(**sgd, augment=augment), plain)
    assert [x.shape for x in inputs] == [(108, 6)]
    assert not same(trained(**sgd, input_dropout=0.5), plain)
    assert not same(trained(**{**sgd, "alpha": 0.1}), plain)

    def moved(found):
        return sum((found[n] - before[n]).norm() ** 2 for n in before) ** 0.5

    assert moved(trained(**sgd, clip_norm=1e-3)) <= 1.01e-3 < moved(plain)


def test_epochs_report_the_loss_with_and_without_the_penalty():
    net = opened()
    fit = fit_of(net, Training(epochs=1, alpha=0.5, lr=1e-9, batch_size=200))
    fit.run()
    [epoch] = fit.epochs
    expected = net.l1_penalty(0.5).item()
    assert epoch.penalised_loss - epoch.loss == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, t: (o.argmax(1) != t).float().mean(), "has no gradient. Compute it"),
        (lambda o, t: o, "is of shape"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused_in_the_first_step(loss, message):
    loaded = replace(data(), objective=Objective("wrong", loss, accuracy))
    with pytest.raises(ArgumentError, match=f"the loss of the objective 'wrong' {message}"):
        fit_of(opened(), Training(epochs=1), loaded=loaded).run()


def test_a_rule_takes_part_in_every_step():
    net, calls = opened(), []

    def loss(inputs, targets):
        calls.append("loss")
        return torch.tensor(3.0)

    def drop_gradients():
        calls.append("after backward")
        for parameter in net.parameters():
            parameter.grad.zero_()

    rule = StepRule(
        before_step=lambda over: calls.append(over),
        loss=loss,
        after_backward=drop_gradients,
        after_step=lambda: calls.append("after step"),
        penalty=lambda: 7.0,
    )
    before = weights(net)
    fit = fit_of(net, Training(1, lr=0.1, batch_size=54, optimizer="SGD"), rule=rule)
    fit.run()
    assert calls == [
        *(0.0, "loss", "after backward", "after step"),
        *(0.5, "loss", "after backward", "after step"),
    ]
    assert same(weights(net), before)  # The optimizer found no gradients.
    assert fit.epochs[0].loss > 3.0
    assert fit.epochs[0].penalised_loss == pytest.approx(fit.epochs[0].loss + 7.0)


def test_the_loss_of_a_rule_gets_the_inputs_of_the_network_and_the_targets():
    net, read, got = opened(), [], []
    net.register_forward_pre_hook(lambda _, arguments: read.append((net.training, arguments[0])))
    rule = StepRule(loss=lambda inputs, targets: got.append((inputs, targets)) or 0.0)
    loaded = data()
    fit_of(net, Training(2, batch_size=54, input_dropout=0.5), rule=rule, loaded=loaded).run()
    steps = [inputs for is_training, inputs in read if is_training]
    assert len(got) == len(steps) == 4
    assert all(inputs is there for (inputs, _), there in zip(got, steps, strict=True))
    assert any((inputs == 0).any() for inputs, _ in got)
    targets = torch.cat([targets for _, targets in got[:2]])
    assert torch.equal(targets.sort().values, loaded.train.targets.sort().values)


@pytest.mark.parametrize(
    ("found", "text"), [(None, "None"), ("no", "'no'"), (torch.ones(54), r"of shape \[54\]")]
)
def test_the_loss_of_a_rule_is_one_number(found, text):
    rule = StepRule(loss=lambda inputs, targets: found)
    with pytest.raises(ArgumentError, match=rf"the loss of a StepRule is {text}\. It must be a "):
        fit_of(opened(), Training(1, batch_size=54), rule=rule).run()


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"loss": lambda x: 0.0}, "too many positional arguments"),
        ({"loss": lambda x, y, z: 0.0}, "missing a required argument: 'z'"),
        ({"after_step": lambda x: None}, "missing a required argument: 'x'"),
        ({"before_step": lambda: None}, "too many positional arguments"),
        ({"set_up": lambda: None}, "too many positional arguments"),
    ],
)
def test_a_function_of_a_rule_with_other_arguments_is_refused(functions, message):
    ((name, _),) = functions.items()
    expected = (
        rf"^{name} of a StepRule cannot be called: {message}. It must be a function (of|with)"
    )
    with pytest.raises(ArgumentError, match=expected) as caught:
        StepRule(**functions)
    assert caught.value.argument == name


def test_what_is_no_function_is_refused_in_a_rule():
    with pytest.raises(ArgumentError, match=r"^loss of a StepRule is 0.1. It must be a func"):
        StepRule(loss=0.1)
    StepRule(loss=max)  # It has no signature.


def test_evaluation_runs_in_evaluation_mode_and_restores_the_mode():
    loaded = data()
    for mode in (True, False):
        net = opened().train(mode)
        once = evaluate(net, loaded.validation, loaded.objective)
        assert evaluate(net, loaded.validation, loaded.objective) == once
        assert net.training is mode
        assert evaluate(copy.deepcopy(net).eval(), loaded.validation, loaded.objective) == once


@pytest.mark.parametrize("share", [0.0, 0.3, 0.62, 0.999, 1.0])
def test_evaluation_stops_once_the_score_is_out_of_reach(share, monkeypatch):
    """Of 1000 samples, in batches of 100, this share is wrong."""
    monkeypatch.setattr(module, "EVALUATION_BATCH", 100)
    targets = torch.arange(1000) % 3
    wrong = torch.randperm(1000, generator=torch.Generator().manual_seed(0)) < share * 1000
    outputs = F.one_hot((targets + wrong.long()) % 3, 3).double()
    loaded = load(Task("a", (outputs, targets), (outputs, targets), num_outputs=3), CPU)
    seen = []

    def predict(x):
        seen.append(len(x))
        return x

    def score(at_least):
        seen.clear()
        return evaluate(predict, loaded.validation, CLASSIFICATION, at_least=at_least)

    true = score(None)
    assert true == pytest.approx(100 * (1 - share))
    for at_least in (0.0, 20.0, true - 0.1, true):
        if at_least <= true:
            assert score(at_least) == true
            assert sum(seen) == 1000
    for at_least in (true + 0.1, true + 10.0, 100.0, 120.0):
        found = score(at_least)
        assert found < at_least or at_least <= true
        num_seen = sum(seen)
        if num_seen < 1000:
            num_wrong = wrong[:num_seen].sum().item()
            assert found == pytest.approx(100 * (1 - num_wrong / num_seen))
        # One batch less would have left it open; the first has an eighth of the samples.
        before = wrong[: num_seen - seen[-1]].sum().item()
        assert 100 * (1 - before / 1000) >= at_least - 1e-6 or num_seen == 12
        assert seen == [12, 25, 63, *[100] * 9][: len(seen)]


@pytest.mark.gpu
def test_evaluation_on_a_gpu_uses_batches_of_one_size():
    x = torch.eye(3).repeat(1000, 1)
    task = Task("a", (x, x.argmax(1)), (x, x.argmax(1)), num_outputs=3)
    loaded = load(task, torch.device("cuda"))
    seen = []

    def predict(x):
        seen.append(len(x))
        return -x

    assert evaluate(predict, loaded.validation, CLASSIFICATION, at_least=90.0) == 0
    assert seen == [1000]


def test_a_score_that_is_not_a_mean_is_computed_on_all_samples():
    x = torch.arange(10.0)[:, None]
    loaded = load(Task("a", (x, x[:, 0]), (x, x[:, 0]), objective="regression"), CPU)
    found = evaluate(lambda x: -x, loaded.validation, REGRESSION, at_least=99.0)
    assert found == evaluate(lambda x: -x, loaded.validation, REGRESSION) < 0


class Both(NamedTuple):
    logits: Tensor
    hidden: Tensor


@dataclass
class Outputs:
    logits: Tensor
    note: str = "same for all"


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: x,
        lambda x: {"logits": x, "more": [x + 1, (x,)], "none": None},
        lambda x: Both(x, x + 1),
        lambda x: [x, {"a": Outputs(x)}],
    ],
)
def test_nested_outputs_of_batches_are_concatenated(nest):
    parts = torch.arange(6.0).reshape(3, 2).split(2)
    outputs, targets = joined([(nest(part), torch.ones(len(part))) for part in parts])
    whole = nest(torch.cat(parts))
    assert type(outputs) is type(whole)
    assert repr(outputs) == repr(whole)
    assert len(targets) == 3


def test_outputs_without_an_axis_for_samples_are_refused():
    with pytest.raises(ArgumentError, match="returns a tensor without an axis, such as a loss"):
        joined([({"loss": torch.tensor(1.0)}, torch.ones(2))])


class Nested(nn.Module):
    """A network that returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.out(torch.relu(self.hidden(x))), "none": None}


@pytest.mark.parametrize("baseline", [None, Finetune()])
def test_networks_that_return_dictionaries_learn(tmp_path, baseline):
    own = Objective(
        "own",
        lambda outputs, y: F.cross_entropy(outputs["logits"], y),
        lambda outputs, y: 100 * (outputs["logits"].argmax(1) == y).double().mean().item(),
        highest=100.0,
    )
    x = torch.randn(300, 6)
    y = (x[:, 0] > 0).long()
    tasks = [
        Task(name, (x[:200], y[:200]), test=(x[200:], y[200:]), num_outputs=2, objective=own)
        for name in "ab"
    ]
    config = LearnerConfig(margin=5.0, training=Training(epochs=10, lr=0.02, batch_size=32))
    result = Experiment(Nested(), x[:2], tasks, config, baseline=baseline).run(tmp_path / "run")
    assert min(result.scores[-1]) > 80
    if baseline is None:
        assert [task.unchanged for task in result.tasks] == [True, True]
    assert result.tasks[0].outputs != result.tasks[1].outputs


def with_score(score):
    own = Objective("own", lambda o, y: F.cross_entropy(o, y), score)
    return fit_of(opened(), Training(epochs=8, lr=0.05), loaded=replace(data(), objective=own))


def test_a_score_that_falls_while_training_goes_on_is_a_warning():
    fit = with_score(lambda o, y: F.cross_entropy(o, y).item())
    message = "^the score of the objective 'own' falls as the training loss does, and higher is"
    with pytest.warns(UserWarning, match=message) as seen:
        fit.run()
    assert len(seen) == 1


@pytest.mark.parametrize(
    "score",
    [
        lambda o, y: -F.cross_entropy(o, y).item(),
        lambda o, y: accuracy(o, y) / 100,
        lambda o, y: 0.99 - F.cross_entropy(o, y).item() / 1e4,
        lambda o, y: 0.99 + F.cross_entropy(o, y).item() / 1e4,  # As good as constant.
    ],
)
def test_a_score_that_rises_or_stands_still_is_no_warning(score):
    fit = with_score(score)
    fit.run()
    assert fit.epochs[-1].loss < 0.75 * fit.epochs[0].loss
