import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import clnp
from clnp import Task, Training
from clnp.errors import ArgumentError, DivergedError
from clnp.storage.packing import pack, unpack
from clnp.training import fit
from clnp.training.fit import Fit as Loop, StepRule, evaluate, l1_rule
from clnp.training.objective import CLASSIFICATION, REGRESSION, Objective, accuracy
from clnp.training.optimizer import check_optimizers, load_optimizer, make_optimizer
from clnp.training.task import load
from support.networks import ConvNet

CPU = torch.device("cpu")


def Fit(net, data, training, *, seed):
    """The loop as the learner uses it."""
    return Loop(net, data, training, seed=seed, rule=l1_rule(net, training.alpha))


def data(*, num_samples=120, nan=False):
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


def weights(net):
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_training_learns():
    net = opened()
    score = Fit(net, data(), Training(epochs=30, lr=0.02, batch_size=16), seed=0).run()
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
def test_a_fit_taken_up_again_after_any_epoch_ends_the_same(options):
    training = Training(epochs=4, lr=0.05, batch_size=32, **options)
    whole = opened()
    expected = Fit(whole, data(), training, seed=3)
    score = expected.run()
    for stop_after in (1, 2, 3):
        net = opened()
        fit = Fit(net, data(), training, seed=3)
        stopped = {}

        def stop(epoch, fit=fit, net=net, stopped=stopped, stop_after=stop_after):
            if epoch.number + 1 == stop_after:
                tensors = {}
                stopped["packed"] = pack(fit.state(), tensors, name="fit")
                stopped["tensors"], stopped["open"] = tensors, net.open_state()
                raise KeyboardInterrupt

        try:
            fit.run(stop)
        except KeyboardInterrupt:
            resumed = opened()
            resumed.set_open_state(stopped["open"])
            again = Fit(resumed, data(), training, seed=3)
            again.restore(unpack(stopped["packed"], stopped["tensors"]))
            torch.manual_seed(99)  # Nothing may depend on the generator's state.
            assert again.run() == score
            assert same(weights(resumed), weights(whole))
            unlike = {"seconds"}
            for a, b in zip(again.epochs, expected.epochs, strict=True):
                assert {k: v for k, v in vars(a).items() if k not in unlike} == {
                    k: v for k, v in vars(b).items() if k not in unlike
                }


def test_the_seed_decides_and_nothing_else_does():
    training = Training(epochs=2, batch_size=16)
    nets = []
    for seed, noise in ((1, 10), (1, 20), (2, 10)):
        net = opened()
        torch.manual_seed(noise)
        Fit(net, data(), training, seed=seed).run()
        nets.append(weights(net))
    assert same(nets[0], nets[1])
    assert not same(nets[0], nets[2])


def test_patience_waits_for_a_better_score_and_not_for_one_as_good():
    training = Training(epochs=9, lr=1e-30, alpha=0.0, patience=2)
    fit = Fit(opened(), data(), training, seed=0)
    fit.run()
    assert len({epoch.score for epoch in fit.epochs}) == 1
    assert len(fit.epochs) == 3


def test_patience_stops_and_puts_the_best_weights_back():
    net = opened()
    fit = Fit(net, data(), Training(epochs=50, lr=0.5, batch_size=8, patience=2), seed=0)
    kept = {}

    def remember(epoch):
        kept[epoch.number] = net.open_state()

    score = fit.run(remember)
    assert len(fit.epochs) < 50
    assert len(fit.epochs) - 1 - fit.best_epoch == 2
    assert score == max(epoch.score for epoch in fit.epochs)
    best = kept[fit.best_epoch].tensors
    assert all(torch.equal(net.open_state().tensors[name], best[name]) for name in best)


def test_a_loss_that_is_no_number_is_divergence():
    net = opened()
    training = Training(epochs=3, lr=1e30, optimizer="SGD")
    with pytest.raises(DivergedError, match=r"the loss of task .a. is \S+ in epoch \d"):
        Fit(net, data(), training, seed=0).run()


def test_schedules():
    cosine = Training(epochs=10, lr=0.4, schedule="cosine")
    assert cosine.lr_at(0) == 0.4
    assert math.isclose(cosine.lr_at(5), 0.2)
    assert cosine.lr_at(10) == 0
    steps = Training(
        epochs=10, lr=1.0, schedule="milestones", milestones=(3, 6), milestone_factor=0.5
    )
    assert [steps.lr_at(e) for e in (0, 2.9, 3, 5.9, 6)] == [1, 1, 0.5, 0.5, 0.25]
    assert Training(lr=0.3).lr_at(7) == 0.3


def test_the_optimizer_follows_the_schedule():
    net, seen = opened(), []

    def factory(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr=lr)
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
        return optimizer

    training = Training(
        epochs=3,
        lr=1.0,
        batch_size=200,
        optimizer=factory,
        schedule="milestones",
        milestones=(1, 2),
    )
    Fit(net, data(), training, seed=0).run()
    assert seen == pytest.approx([1.0, 0.1, 0.01])


NAMES = ["Adam", "AdamW", "SGD", "RMSprop", "NAdam", "Adamax", "RAdam", "Adadelta", "ASGD", "Rprop"]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_captured_on_a_gpu_goes_on_on_a_cpu(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    training = Training(epochs=2, batch_size=32, optimizer=name, optimizer_options=options)
    net = opened()
    fit = Fit(net, data(), training, seed=0)
    fit.begin_epoch()
    fit.end_epoch()
    state, start = copy.deepcopy(fit.state()), net.open_state()
    for group in state["optimizer"]["param_groups"]:
        # As an optimizer has them whose steps are captured.
        group.update({key: True for key in ("capturable", "fused") if key in group})
        group["lr"] = torch.tensor(group["lr"])
    net = opened()
    net.set_open_state(start)
    resumed = Fit(net, data(), training, seed=0)
    made = [dict(group) for group in resumed.optimizer.param_groups]
    resumed.restore(state)
    for group, own in zip(resumed.optimizer.param_groups, made, strict=True):
        assert type(group["lr"]) is float
        assert [group.get(k) for k in KEYS] == [own.get(k) for k in KEYS]
    resumed.run()
    fit.run()
    expected = weights(fit.net)
    assert same(weights(net), expected)


KEYS = ("capturable", "fused", "foreach")


def grouped(parameters, lr):
    """SGD with a rate for each of its groups: one is a hundredth, one is nothing, one a tensor."""
    groups = [
        {"params": parameters[:1], "lr": lr / 128},
        {"params": parameters[1:2], "lr": 0.0},
        {"params": parameters[2:3], "lr": torch.tensor(lr / 4)},
        {"params": parameters[3:]},
    ]
    return torch.optim.SGD(groups, lr=lr)


def test_groups_keep_their_share_of_the_learning_rate():
    training = Training(
        epochs=4, lr=0.5, batch_size=32, optimizer=grouped, schedule="milestones", milestones=(2,)
    )
    net = opened()
    before = weights(net)
    fit = Fit(net, data(), training, seed=0)
    fit.begin_epoch()
    rates = [float(group["lr"]) for group in fit.optimizer.param_groups]
    assert rates == [0.5 / 128, 0, 0.125, 0.5]
    fit.end_epoch()
    moved = [not torch.equal(before[name], now) for name, now in weights(net).items()]
    assert moved == [True, False, *[True] * (len(moved) - 2)]
    # The same after it has been taken up again, when the optimizer holds the rates of a step.
    again = opened()
    again.set_open_state(net.open_state())
    resumed = Fit(again, data(), training, seed=0)
    resumed.restore(fit.state())
    fit.run()
    resumed.run()
    assert same(weights(again), weights(net))
    rates = [float(group["lr"]) for group in resumed.optimizer.param_groups]
    assert rates == pytest.approx([0.05 / 128, 0, 0.0125, 0.05])


def test_an_optimizer_that_has_no_rate_is_given_one():
    def without_rate(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr=lr)
        optimizer.param_groups[0]["lr"] = None
        return optimizer

    fit = Fit(opened(), data(), Training(epochs=1, lr=0.25, optimizer=without_rate), seed=0)
    load_optimizer(fit.optimizer, fit.optimizer.state_dict())
    fit.begin_epoch()
    assert fit.optimizer.param_groups[0]["lr"] == 0.25


def test_images_may_have_their_channels_last_in_training():
    x, y = torch.randn(44, 3, 8, 8), torch.arange(44) % 4
    seen, trained = [], []
    for wanted in (False, True):
        torch.manual_seed(0)
        net = clnp.ContinualNet(ConvNet(), x)
        net.begin_task("a")
        net.model.conv1.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        loaded = load(Task("a", (x, y), num_outputs=4), CPU)
        training = Training(1, batch_size=20, optimizer="SGD", channels_last=wanted)
        Fit(net, loaded, training, seed=0).run()
        formats = [each.is_contiguous(memory_format=torch.channels_last) for each in seen]
        assert formats == [wanted, wanted, False]  # Two steps, and the evaluation.
        trained.append(weights(net))
        seen.clear()
    for name, weight in trained[0].items():
        torch.testing.assert_close(weight, trained[1][name], rtol=1e-3, atol=1e-4)
    Fit(opened(), data(), Training(epochs=1, channels_last=True), seed=0).run()


def test_options_reach_the_step():
    inputs = []

    def augment(x):
        inputs.append(x)
        return x + 1

    net = opened()
    Fit(net, data(), Training(epochs=1, batch_size=200, augment=augment), seed=0).run()
    assert len(inputs) == 1
    assert inputs[0].shape == (108, 6)
    plain, clipped = opened(), opened()
    before = weights(plain)
    sgd = {"epochs": 1, "optimizer": "SGD", "lr": 1.0, "alpha": 0.0, "batch_size": 200}
    Fit(plain, data(), Training(**sgd), seed=0).run()
    Fit(clipped, data(), Training(**sgd, clip_norm=1e-3), seed=0).run()

    def moved(net):
        return sum((weights(net)[n] - before[n]).norm() ** 2 for n in before) ** 0.5

    assert moved(clipped) <= 1.01e-3 < moved(plain)
    dropped = opened()
    Fit(dropped, data(), Training(**sgd, input_dropout=0.5), seed=0).run()
    assert not same(weights(dropped), weights(plain))
    penalised = opened()
    Fit(penalised, data(), Training(**{**sgd, "alpha": 0.1}), seed=0).run()
    assert not same(weights(penalised), weights(plain))


def test_epochs_report_the_loss_with_and_without_the_penalty():
    net = opened()
    fit = Fit(net, data(), Training(epochs=1, alpha=0.5, lr=1e-9, batch_size=200), seed=0)
    fit.run()
    [epoch] = fit.epochs
    expected = net.l1_penalty(0.5).item()
    assert epoch.penalised_loss - epoch.loss == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"lr": 0.0},
        {"lr": math.inf},
        {"batch_size": 0},
        {"patience": 0},
        {"input_dropout": 1.0},
        {"clip_norm": 0.0},
        {"milestone_factor": 0.0},
    ],
)
def test_numbers_that_make_no_sense_are_refused(options):
    (name,) = options
    with pytest.raises(ArgumentError, match=f"training: {name} is .*; it must be a"):
        Training(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": "3"}, "training: epochs is '3'; it must be a whole number"),
        ({"lr": None}, "training: lr is None; it must be a finite number above 0"),
        ({"batch_size": "16"}, "training: batch_size is '16'; it must be a whole number"),
        ({"epochs": 2.5}, "training: epochs is 2.5; it must be a whole number"),
        ({"batch_size": 16.0}, "training: batch_size is 16.0; it must be a whole number"),
        ({"milestones": [1.5]}, "training: one of milestones is 1.5; it must be a whole number"),
        ({"alpha": {"fc1": "1"}}, "training: alpha of fc1 is '1'; it must be a number"),
        ({"patience": "3"}, "training: patience is '3'; it must be a whole number"),
        ({"clip_norm": "3"}, "training: clip_norm is '3'; it must be a finite number above 0"),
        ({"input_dropout": None}, "training: input_dropout is None; it must be a number"),
        (
            {"milestone_factor": "1"},
            "training: milestone_factor is '1'; it must be a finite number",
        ),
        ({"milestones": 3}, r"training: milestones is 3; give a list, milestones=\[3\]"),
        ({"optimizer_options": []}, "optimizer_options is a list; it must be a dictionary"),
    ],
)
def test_settings_are_of_their_kinds(options, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        Training(**options)
    assert [caught.value.argument] == list(options)


def test_milestones_may_be_an_array():
    training = Training(schedule="milestones", milestones=torch.tensor([1, 2]))
    assert training == Training(schedule="milestones", milestones=(1, 2))


def test_unknown_choices_are_refused_with_those_that_there_are():
    with pytest.raises(
        ArgumentError, match="schedule is 'cosin'; it must be 'constant', 'cosine' or"
    ):
        Training(schedule="cosin")
    with pytest.raises(ArgumentError, match="schedule is 'milestones', and there are none"):
        Training(schedule="milestones")
    with pytest.raises(
        ArgumentError, match="precision is 'float23'; it must be 'float32', 'tf32',"
    ):
        Training(precision="float23")
    with pytest.raises(ArgumentError, match="unknown optimizer 'Adm'; did you mean 'Adam"):
        Training(optimizer="Adm")
    with pytest.raises(ArgumentError, match="unknown optimizer 'Optimizer'") as caught:
        Training(optimizer="Optimizer")
    known = str(caught.value).partition("Known: ")[2].split(", ")
    assert "Adam" in known
    assert "Optimizer" not in known
    bad = Training(optimizer_options={"momentun": 1})
    with pytest.raises(ArgumentError, match="momentun"):
        make_optimizer(bad, [nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_sgd_whose_steps_are_captured_takes_the_same_steps(options):
    training = Training(optimizer="SGD", lr=0.1, optimizer_options=options)
    weights = []
    for captured in (False, True):
        weight = nn.Parameter(torch.linspace(-1, 1, 5))
        optimizer = make_optimizer(training, [weight], captured=captured)
        for number in range(4):
            weight.grad = weight.detach() ** 2
            optimizer.step()
            rate = optimizer.param_groups[0]["lr"]
            if captured:
                rate.fill_(0.1 / (number + 2))  # Where a captured step reads it.
            else:
                optimizer.param_groups[0]["lr"] = 0.1 / (number + 2)
        weights.append(weight.detach())
    assert torch.allclose(*weights, atol=1e-6)


def test_evaluating_keeps_the_mode_and_judges_in_evaluation_mode():
    net = opened().train()
    loaded = data()
    once = evaluate(net, loaded.validation, loaded.objective)
    assert evaluate(net, loaded.validation, loaded.objective) == once
    assert net.training
    twin = copy.deepcopy(net).eval()
    assert evaluate(twin, loaded.validation, loaded.objective) == once
    assert not twin.training


@pytest.mark.parametrize("share", [0.0, 0.3, 0.62, 0.999, 1.0])
def test_what_is_out_of_reach_is_not_looked_at_to_the_end(share, monkeypatch):
    """Of 1000 samples, in batches of 100, those up to a share are wrong."""
    monkeypatch.setattr(fit, "EVALUATION_BATCH", 100)
    targets = torch.arange(1000) % 3
    wrong = torch.randperm(1000, generator=torch.Generator().manual_seed(0)) < share * 1000
    outputs = torch.nn.functional.one_hot((targets + wrong.long()) % 3, 3).double()
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
        # With less, it would have been open; and it begins with an eighth of a batch.
        before = wrong[: num_seen - seen[-1]].sum().item()
        assert 100 * (1 - before / 1000) >= at_least - 1e-6 or num_seen == 12
        assert seen == [12, 25, 63, *[100] * 9][: len(seen)]


@pytest.mark.gpu
def test_a_gpu_looks_at_whole_batches():
    x = torch.eye(3).repeat(1000, 1)
    loaded = load(
        Task("a", (x, x.argmax(1)), (x, x.argmax(1)), num_outputs=3), torch.device("cuda")
    )
    seen = []

    def predict(x):
        seen.append(len(x))
        return -x

    assert evaluate(predict, loaded.validation, CLASSIFICATION, at_least=90.0) == 0
    assert seen == [1000]  # The first of three that are equal, where a CPU begins with a part.


def test_a_score_that_is_no_mean_over_samples_is_taken_over_all_of_them():
    x = torch.arange(10.0)[:, None]
    loaded = load(Task("a", (x, x[:, 0]), (x, x[:, 0]), objective="regression"), CPU)
    found = evaluate(lambda x: -x, loaded.validation, REGRESSION, at_least=99.0)
    assert found == evaluate(lambda x: -x, loaded.validation, REGRESSION) < 0


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
    training = Training(1, lr=0.1, batch_size=54, optimizer="SGD")
    fit = Loop(net, data(), training, seed=0, rule=rule)
    fit.run()
    assert calls == [
        *(0.0, "loss", "after backward", "after step"),
        *(0.5, "loss", "after backward", "after step"),
    ]
    assert same(weights(net), before)  # The gradients were gone when the optimizer came.
    assert fit.epochs[0].loss > 3.0
    assert fit.epochs[0].penalised_loss == pytest.approx(fit.epochs[0].loss + 7.0)


def test_the_loss_of_a_rule_gets_what_the_network_got_and_the_targets():
    net, read, got = opened(), [], []
    net.register_forward_pre_hook(lambda _, arguments: read.append((net.training, arguments[0])))
    rule = StepRule(loss=lambda inputs, targets: got.append((inputs, targets)) or 0.0)
    training = Training(2, batch_size=54, input_dropout=0.5)
    found = data()
    Loop(net, found, training, seed=0, rule=rule).run()
    steps = [inputs for is_training, inputs in read if is_training]
    assert len(got) == len(steps) == 4
    assert all(inputs is there for (inputs, _), there in zip(got, steps, strict=True))
    assert any((inputs == 0).any() for inputs, _ in got)
    targets = torch.cat([targets for _, targets in got[:2]])
    assert torch.equal(targets.sort().values, found.train.targets.sort().values)


def test_the_loss_of_a_rule_is_a_function_of_both():
    for wrong in (lambda: 0.0, lambda inputs: 0.0, lambda a, b, c: 0.0, 3.0):
        message = r"must be a function of the inputs and the targets of the step, loss\(inputs, "
        with pytest.raises(ArgumentError, match=message) as caught:
            StepRule(loss=wrong)
        assert caught.value.argument == "loss"
    StepRule(loss=torch.add)  # Of which Python knows no signature.


@pytest.mark.parametrize(
    ("found", "told"), [(None, "None"), ("no", "'no'"), (torch.ones(54), r"of shape \[54\]")]
)
def test_the_loss_of_a_rule_is_one_number(found, told):
    rule = StepRule(loss=lambda inputs, targets: found)
    with pytest.raises(ArgumentError, match=f"the loss of a StepRule is {told}; it must be a "):
        Loop(opened(), data(), Training(1, batch_size=54), seed=0, rule=rule).run()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_an_optimizer_must_take_the_weights_of_the_model():
    muon = Training(optimizer="Muon")
    check_optimizers([muon], nn.Linear(3, 2, bias=False))
    with pytest.raises(ArgumentError, match="training: Muon: Muon only supports 2D") as caught:
        check_optimizers([Training(), muon], nn.Linear(3, 2))
    assert caught.value.argument == "optimizer_options"


def test_an_optimizer_must_take_a_step():
    with pytest.raises(ArgumentError, match="training: LBFGS cannot be used"):
        check_optimizers([Training(optimizer="LBFGS")], nn.Linear(3, 2))
    check_optimizers([Training(optimizer="LBFGS")], nn.ReLU())
    check_optimizers([Training(optimizer=lambda parameters, lr: None)], nn.Linear(3, 2))


def test_a_loss_without_a_gradient_is_refused_in_the_first_step():
    def errors(outputs, targets):
        return (outputs.argmax(1) != targets).float().mean()

    found = replace(data(), objective=Objective("wrong", errors, accuracy))
    with pytest.raises(ArgumentError, match="the loss of the objective 'wrong' has no gradient"):
        Fit(opened(), found, Training(epochs=1), seed=0).run()
    found = replace(data(), objective=Objective("wrong", lambda o, t: o, accuracy))
    with pytest.raises(ArgumentError, match="the loss of the objective 'wrong' is of shape"):
        Fit(opened(), found, Training(epochs=1), seed=0).run()
