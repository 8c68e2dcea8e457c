import functools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import clnp
from clnp import FineTuning, Learner, LearnerConfig, Objective, Task, Training
from clnp.data.datasets import digits
from clnp.errors import ArgumentError, CapacityError, DivergedError, TaskError
from clnp.learner.progress import Progress
from clnp.storage.packing import pack, unpack
from clnp.training.config import TaskSettings
from support.networks import ConvNet, copied_state, same_state


def task(name="a", *, seed=0, num_samples=160, num_inputs=6):
    """Which of three directions is largest, in inputs that are rotated by the seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples + 60, num_inputs, generator=generator)
    y = (x @ torch.randn(num_inputs, 3, generator=generator)).argmax(1)
    part = slice(0, num_samples), slice(num_samples, None)
    return Task(name, (x[part[0]], y[part[0]]), test=(x[part[1]], y[part[1]]))


def network(head="multi", width=40):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )
    return clnp.ContinualNet(model, torch.zeros(2, 6), head=head)


def config(**options):
    training = {"epochs": 12, "lr": 0.02, "batch_size": 32, "alpha": 1e-3}
    training.update(options.pop("training", {}))
    return LearnerConfig(**{"margin": 3.0, "training": Training(**training), **options})


@pytest.mark.parametrize("head", ["multi", "single"])
def test_task_after_task_is_learnt_pruned_and_never_forgotten(head):
    net = network(head)
    learner = Learner(net, config(alphas=(1e-4, 3e-3)))
    answers = {}
    for number, name in enumerate("abc"):
        learnt = task(name, seed=number)
        report = learner.learn(learnt)
        assert report.task == name
        assert report.score >= report.best_score - 3.0
        assert report.score == report.plan.score
        assert report.test_score > 65
        assert sum(report.plan.kept.values()) < 80
        answers[name] = (learnt.test[0], net(learnt.test[0], task=name))
    for name, (x, answer) in answers.items():
        assert torch.equal(net(x, task=name), answer)
    net.verify()


def test_the_sparsest_candidate_within_the_margin_wins():
    net, events = network(), []
    grid = config(alphas=(0.0, 1e-2), margin=30.0)
    report = Learner(net, grid, on_event=events.append).learn(task())
    plans = {e["candidate"]: e["plan"] for e in events if e["event"] == "pruning"}
    assert set(plans) == {0, 1}
    kept = {number: sum(map(len, plan["keep"].values())) for number, plan in plans.items()}
    assert report.winner == min(kept, key=kept.get)
    assert all(plan["best"] == report.best_score for plan in plans.values())


def test_a_report_can_be_read():
    report = Learner(network(), config()).learn(task("a"))
    text = str(report)
    assert text.startswith(
        f"learnt a: validation {report.score:.2f}, test {report.test_score:.2f}, best unpruned "
        f"{report.best_score:.2f}; alpha "
    )
    assert f"; pruning: {report.plan}; " in text
    assert text.endswith(" s")


def test_what_is_full_is_told():
    net, events = network(width=6), []
    learner = Learner(net, config(training={"alpha": 0.0}, margin=0.0), on_event=events.append)
    while any(net.ledger.free().values()) and len(net.tasks) < 6:
        report = learner.learn(task(f"task {len(net.tasks)}", seed=len(net.tasks)))
        full = [group for group, free in net.ledger.free().items() if not free]
        assert [e["full"] for e in events if e["event"] == "task"][-1] == full == list(report.full)
        assert (" full; " in str(report)) == bool(full)
    assert full


def test_a_task_is_learnt_with_its_own_settings():
    own = TaskSettings(margin=40.0, alphas=(1e-3, 2e-3, 3e-3), epochs=2)
    learner = Learner(network(), config(tasks={"b": own}, fine_tuning=FineTuning(1, 1e-6)))
    one, two = learner.learn(task("a")), learner.learn(task("b", seed=1))
    assert [len(report.candidates) for report in (one, two)] == [1, 3]
    assert [report.candidates[0].num_epochs for report in (one, two)] == [12, 2]
    assert (one.plan.margin, two.plan.margin) == (3.0, 40.0)
    assert two.plan.score < two.best_score - 3.0
    assert two.num_rounds == 1  # Judged by its own margin too.


def test_a_grid_of_its_own_is_searched_whatever_is_kept():
    own = {"b": TaskSettings(lrs=(0.01, 0.02)), "c": TaskSettings(epochs=3)}
    learner = Learner(network(), config(alphas=(1e-4, 1e-3), search_on="first", tasks=own))
    reports = [learner.learn(task(name, seed=n)) for n, name in enumerate("abc")]
    assert [len(report.candidates) for report in reports] == [2, 4, 1]
    assert reports[2].candidates[0].num_epochs == 3


def test_a_candidate_outside_the_margin_is_not_even_pruned():
    net, events = network(), []
    hopeless = config(alphas=(1e-3, 10.0), margin=1.0)
    report = Learner(net, hopeless, on_event=events.append).learn(task())
    assert report.winner == 0
    assert [e["candidate"] for e in events if e["event"] == "pruning"] == [0]


def test_the_winner_of_the_first_task_is_kept_for_the_others():
    learner = Learner(network(), config(alphas=(1e-3, 10.0), search_on="first"))
    first = learner.learn(task("a"))
    second = learner.learn(task("b", seed=1))
    assert len(first.candidates) == 2
    assert [c.alpha for c in second.candidates] == [first.candidates[first.winner].alpha]
    every = Learner(network(), config(alphas=(1e-3, 10.0)))
    every.learn(task("a"))
    assert len(every.learn(task("b", seed=1)).candidates) == 2


def test_a_candidate_that_diverges_is_dropped():
    net = network()
    report = Learner(net, config(training={"optimizer": "SGD"}, lrs=(1e30, 0.1))).learn(task())
    assert report.winner == 1
    assert report.candidates[0].score is None
    assert "the loss of task 'a' is" in report.candidates[0].diverged
    assert net.tasks == ("a",)


def test_if_all_diverge_the_network_is_as_it_was():
    net = network()
    Learner(net, config()).learn(task())
    before = copied_state(net)
    broken = Learner(net, config(training={"optimizer": "SGD", "lr": 1e30}))
    with pytest.raises(DivergedError, match="every candidate of task 'b' diverged: alpha"):
        broken.learn(task("b"))
    assert net.open_task is None
    assert same_state(net.state_dict(), before)


def test_the_same_seed_gives_the_same_task_and_a_candidate_more_changes_no_other():
    def learnt(seed=0, noise=0, **options):
        net = network()
        torch.manual_seed(noise)
        report = Learner(net, config(**options), seed=seed).learn(task())
        return report, net.certificates["a"].digest

    one, digest = learnt()
    assert learnt(noise=5)[1] == digest
    assert learnt(seed=1)[1] != digest
    more, _ = learnt(alphas=(5e-2, 1e-3))
    assert more.candidates[1].score == one.candidates[0].score
    assert more.candidates[1].num_epochs == one.candidates[0].num_epochs


def test_the_generator_of_the_user_is_left_alone():
    net = network()
    state = torch.get_rng_state()
    Learner(net, config()).learn(task())
    assert torch.equal(torch.get_rng_state(), state)


def test_fine_tuning_trains_the_survivors_only():
    plain, tuned = network(), network()
    first = Learner(plain, config(margin=15.0)).learn(task())
    second = Learner(tuned, config(margin=15.0, fine_tuning=FineTuning(20, 0.01))).learn(task())
    assert first.plan.kept == second.plan.kept
    assert plain.ledger.claimed() == tuned.ledger.claimed()
    assert second.num_rounds == 1
    assert second.score > first.score


@pytest.mark.parametrize(("schedule", "last"), [("constant", 0.01), ("cosine", 0.01 / 2)])
def test_fine_tuning_follows_its_schedule(schedule, last):
    made = []

    def factory(parameters, lr):
        made.append(torch.optim.SGD(parameters, lr))
        return made[-1]

    tuning = FineTuning(2, 0.01, schedule=schedule)
    training = {"optimizer": factory, "batch_size": 200}
    Learner(network(), config(margin=100.0, fine_tuning=tuning, training=training)).learn(task())
    assert made[-1].param_groups[0]["lr"] == pytest.approx(last)


def test_importance_may_be_the_contribution():
    nets = {kind: network() for kind in ("activity", "contribution")}
    for kind, net in nets.items():
        report = Learner(net, config(importance=kind)).learn(task())
        tried = [p.theta for p in report.plan.curve if p.theta is not None and p.theta >= 0]
        assert tried
        # A contribution is a part of a whole; the largest of every group is all of it.
        assert (max(tried) == pytest.approx(1.0)) is (kind == "contribution")
        assert report.plan.score >= report.best_score - report.plan.margin


def test_rounds_prune_on_and_one_that_leaves_the_margin_is_rolled_back():
    once, often = network(), network()
    one = Learner(once, config(margin=10.0, fine_tuning=FineTuning(10, 0.01))).learn(task())
    more = Learner(often, config(margin=10.0, fine_tuning=FineTuning(10, 0.01, rounds=4))).learn(
        task()
    )
    assert one.num_rounds == 1
    assert more.num_rounds > 1
    assert sum(often.ledger.claimed().values()) < sum(once.ledger.claimed().values())
    assert more.score >= more.best_score - 10.0

    assert {**more.plans[-1].thresholds} != {**more.plan.thresholds}
    assert {**one.plans[-1].thresholds} == {**one.plan.thresholds}

    net, events = network(), []
    wild = FineTuning(3, 50.0)
    report = Learner(net, config(fine_tuning=wild), on_event=events.append).learn(task())
    assert report.num_rounds == 0
    assert [e["kept"] for e in events if e["event"] == "round"] == [False]
    assert report.score == report.plan.score


def test_of_those_that_are_equally_sparse_the_better_one_is_chosen():
    """A margin of 100 lets all of them be emptied."""
    options = {"margin": 100.0, "training": {"epochs": 3}}
    report = Learner(network(), config(lrs=(1e-6, 0.02, 1e-6), **options)).learn(task())
    assert set(report.plan.kept.values()) == {0}
    scores = [candidate.score for candidate in report.candidates]
    assert max(scores[0], scores[2]) < scores[1]
    assert report.winner == 1
    twice = Learner(network(), config(lrs=(0.02, 0.02), **options)).learn(task())
    assert twice.candidates[0].score == twice.candidates[1].score
    assert twice.winner == 0


def test_a_task_that_keeps_no_neuron_has_nothing_to_fine_tune():
    """With a single head, not even an output."""
    net = network("single")
    learner = Learner(net, config(margin=100.0, fine_tuning=FineTuning(2)))
    first, second = learner.learn(task("a")), learner.learn(task("b", seed=1))
    assert (first.num_rounds, second.num_rounds) == (1, 0)
    assert set(second.plan.kept.values()) == {0}


def test_settings_that_are_equal_come_to_the_same():
    """Whole numbers or not: seeds are drawn by them."""
    nets = network(), network()
    options = {"training": {"epochs": 2, "batch_size": 64}}
    for net, settings in zip(
        nets,
        ({"alphas": (0,), "lrs": (1,), "margin": 3}, {"alphas": (0.0,), "lrs": (1.0,)}),
        strict=True,
    ):
        Learner(net, config(**settings, **options)).learn(task())
    assert nets[0].certificates == nets[1].certificates


@pytest.mark.parametrize("lr", [0.01, 50.0])  # A rate of 50 leaves the margin in the first round.
def test_neurons_are_reused_by_the_thresholds_of_the_last_pruning(lr):
    net = network()
    tuning = FineTuning(5, lr, rounds=3)
    learner = Learner(net, config(margin=8.0, fine_tuning=tuning))
    second = task("b", seed=1)
    learner.learn(task("a"))
    # With validation data of its own, so that it is trained on all of the others.
    report = learner.learn(replace(second, validation=second.test))
    owned = net.capacity()
    net.begin_task("c", 3)
    # Neurons of an ended task do what they did; those of b come last.
    activity = net.measure_activity([second.train[0]]).owned
    for group, values in activity.items():
        of_a = values[: owned.of("a", group).new]
        assert owned.of("b", group).reused == int((of_a > report.plans[-1].thresholds[group]).sum())


def test_batchnorm_is_recalibrated():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    x = torch.randn(200, 3, 8, 8, generator=generator) + y[:, None, None, None]
    images = Task("a", (x, y), num_outputs=4)
    means = {}
    for recalibrate in (True, False):
        torch.manual_seed(0)
        net = clnp.ContinualNet(ConvNet(), x[:2])
        options = config(recalibrate=recalibrate, margin=0.0, training={"epochs": 10})
        Learner(net, options).learn(images)
        means[recalibrate] = net.model.bn1.running_mean_frozen
        assert len(means[recalibrate])
    assert means[True].shape == means[False].shape
    assert not torch.allclose(means[True], means[False])


def pruned_behind_batchnorm(**options):
    """What came of a network with BatchNorm and digits that lie one class after the other."""
    data = digits()
    (x, y), (x_test, y_test) = (
        (torch.as_tensor(x).float().view(-1, 1, 8, 8) / 16, torch.as_tensor(y).long())
        for x, y in (data.train, data.test)
    )
    order = y.argsort(stable=True)
    task = Task("a", (x[order], y[order]), validation=(x_test, y_test))
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    training = {"epochs": 6, "lr": 0.01, "batch_size": 64, "alpha": 1e-4}
    chosen = config(importance="contribution", training=training, **options)
    return Learner(clnp.ContinualNet(model, x[:2]), chosen).learn(task)


def test_neurons_are_recalibrated_before_they_are_scored():
    stale, fresh = (pruned_behind_batchnorm(calibration_samples=num) for num in (0, 256))
    gaps = [abs(report.score - report.plan.score) for report in (stale, fresh)]
    assert gaps[0] > gaps[1]
    assert sum(fresh.plan.kept.values()) < sum(stale.plan.kept.values()) - 4
    # On samples of all classes, however few they are.
    few = pruned_behind_batchnorm(calibration_samples=64)
    assert sum(few.plan.kept.values()) < sum(stale.plan.kept.values()) - 4


class Restless(torch.utils.data.Dataset):
    """Samples that differ every time, by random numbers of its own."""

    def __init__(self, x, y):
        self.x, self.y, self.random = x, y, np.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        noise = torch.from_numpy(self.random.normal(0, 0.5, self.x[place].shape)).float()
        return self.x[place] + noise, self.y[place]


def test_candidates_and_plans_are_scored_after_the_same_samples():
    """Or a candidate might be out of its own margin."""
    x, y = task(num_samples=200).train
    model = nn.Sequential(nn.Linear(6, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 1))
    values = x[:, :1] * y[:, None]
    restless = Task(
        "a",
        Restless(x[:120], values[:120]),
        validation=(x[120:], values[120:]),
        objective="regression",
        num_outputs=1,
    )
    for seed in range(3):
        torch.manual_seed(seed)
        net = clnp.ContinualNet(model, x[:2])
        tuned = FineTuning(epochs=1, lr=1e-3, rounds=2)
        chosen = config(margin=1e-5, fine_tuning=tuned, training={"epochs": 2, "alpha": 0.0})
        report = Learner(net, chosen, seed=seed).learn(restless)
        assert report.plan.score >= report.best_score - 1e-5


def test_classes_that_lie_one_after_the_other_are_mixed_for_the_last_recalibration():
    """Else batches of one class are what the statistics are averages of."""
    given = task(seed=2, num_samples=600)
    x, y = (torch.cat(parts) for parts in zip(given.train, given.test, strict=True))
    order = y.argsort(stable=True)
    torch.manual_seed(0)
    layers = (nn.Linear(6, 20), *(nn.Linear(20, 20) for _ in range(3)))
    blocks = [part for layer in layers for part in (layer, nn.BatchNorm1d(20), nn.ReLU())]
    net = clnp.ContinualNet(nn.Sequential(*blocks, nn.Linear(20, 3)), x[:2])
    sorted_task = Task("a", (x[order], y[order]), validation=(x, y))
    chosen = config(calibration_samples=1000, training={"epochs": 8, "batch_size": 60})
    report = Learner(net, chosen).learn(sorted_task)
    assert report.score == pytest.approx(report.plan.score, abs=0.8)


def test_without_recalibration_plans_are_made_without_it():
    plans = [
        pruned_behind_batchnorm(recalibrate=False, calibration_samples=num).plan for num in (0, 64)
    ]
    assert plans[0] == plans[1]


def test_a_lone_sample_in_the_last_batch_does_no_harm_to_batchnorm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(97, 6)
    y = (x[:, 0] > 0).long()
    net = clnp.ContinualNet(model, x[:2])
    options = config(training={"epochs": 10, "batch_size": 32})
    report = Learner(net, options).learn(Task("a", (x, y), (x[:40], y[:40])))
    assert report.score > 80
    assert net.ledger.claimed()["0"] > 0


def test_an_objective_that_gives_no_number_is_refused():
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))

    def learn(loss, score):
        own = Objective("own", loss, score)
        Learner(network(), config()).learn(Task("a", (x, x[:, :3]), objective=own, num_outputs=3))

    def square(outputs, targets):
        return (outputs - targets).square()

    with pytest.raises(ArgumentError, match=r"^the loss of the objective 'own' is of shape \[2, "):
        learn(square, lambda outputs, targets: 1.0)
    with pytest.raises(ArgumentError, match=r"^the loss of the objective 'own' is 0"):
        learn(lambda outputs, targets: 0.0, lambda outputs, targets: 1.0)
    with pytest.raises(ArgumentError, match="the score of the objective 'own' is None; it must be"):
        learn(lambda o, t: square(o, t).mean(), lambda outputs, targets: None)


def test_objectives_of_all_kinds():
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    several = Task("labels", (x, (x[:, :3] > 0).float()), objective="multi-label")
    assert Learner(network(), config()).learn(several).score > 80
    line = Task("line", (x, x[:, :2] * 2), objective="regression")
    assert Learner(network(), config(training={"epochs": 40, "alpha": 1e-5})).learn(line).score > 80
    own = Objective("own", lambda o, y: (o - y).abs().mean(), lambda o, y: -(o - y).abs().mean())
    mine = Task("mine", (x, x[:, :3]), objective=own, num_outputs=3)
    assert -1 < Learner(network(), config(margin=0.05)).learn(mine).score < 0


def test_a_task_that_does_not_fit_is_refused_before_training():
    net, events = network(), []
    learner = Learner(net, config(), on_event=events.append)
    with pytest.raises(
        ArgumentError, match=r"task 'a', training data: inputs of shape \(2, 5\) and torch.float32"
    ):
        learner.learn(task(num_inputs=5))
    single = network("single")
    x = torch.randn(50, 6)
    with pytest.raises(ArgumentError, match="num_outputs is 4, and the single head has 3"):
        Learner(single, config(), on_event=events.append).learn(
            Task("a", (x, torch.arange(50) % 4))
        )
    assert not events
    assert net.open_task is None
    assert single.open_task is None


@pytest.mark.parametrize("part", ["validation", "test"])
def test_other_data_that_does_not_fit_is_refused_before_training(part):
    net, events, good = network(), [], task()
    x, y = good.test
    bad = replace(good, **{part: (x[:, :5], y)})
    with pytest.raises(ArgumentError, match=rf"task 'a', {part} data: inputs of shape \(2, 5\)"):
        Learner(net, config(), on_event=events.append).learn(bad)
    assert not events
    assert net.tasks == ()


def test_batches_of_one_do_not_fit_batchnorm():
    x, y = torch.randn(20, 6), torch.arange(20) % 2
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    net = clnp.ContinualNet(model, x[:2])
    with pytest.raises(ArgumentError, match="Expected more than 1 value per channel"):
        Learner(net, config(training={"batch_size": 1})).learn(Task("a", (x, y), num_outputs=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "LBFGS"}, "training: LBFGS cannot be used: "),
        ({"optimizer": "SparseAdam"}, "training: SparseAdam cannot be used: "),
        ({"optimizer_options": {"betas": (0.9,)}}, "training: Adam: "),
        ({"optimizer_options": {"fused": True, "foreach": True}}, "training: Adam: "),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_refused_before_training(options, message):
    events = []
    with pytest.raises(ArgumentError, match=message):
        Learner(network(), config(training=options), on_event=events.append).learn(task())
    assert not events


def test_a_candidate_whose_score_is_not_finite_is_dropped():
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    line = Task("line", (x, x[:, :2]), objective="regression")
    wild = config(lrs=(1e-3, 1e19), training={"epochs": 1, "batch_size": 300, "optimizer": "SGD"})
    report = Learner(network(), wild).learn(line)
    assert report.winner == 0
    assert "the validation score of task 'line' is" in report.candidates[1].diverged


def test_a_task_that_is_interrupted_is_abandoned():
    net = network()

    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Learner(net, config(), on_event=interrupt).learn(task())
    assert net.open_task is None


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from every generator that there is."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        noise = torch.rand(()) + random.random() + np.random.rand()
        return self.x[place] + 0.1 * noise.float(), int(self.y[place])


@pytest.mark.parametrize("stop_at", [3, 12, 13, 14, 16])
def test_data_that_draws_random_numbers_goes_on_as_if_nothing_had_happened(stop_at):
    def learnt(draws, progress=None, net=None, on_progress=lambda progress: None):
        torch.manual_seed(draws)
        random.seed(draws)
        np.random.seed(draws)
        net = network() if net is None else net
        noisy = Task("a", Noisy(*task().train), num_outputs=3)
        options = config(alphas=(1e-3, 3e-3), margin=10.0, training={"epochs": 6})
        Learner(net, options, on_progress=on_progress).learn(noisy, progress)
        return net.certificates

    whole, saved, seen = learnt(0), {}, []
    net = network()

    def stop(progress):
        seen.append(None)
        if len(seen) == stop_at:
            saved["progress"] = Progress.from_state(progress.to_state())
            saved["open"] = net.open_state() if net.open_task else None
            raise Stop

    with pytest.raises(Stop):
        learnt(1, net=net, on_progress=stop)
    resumed = network()
    if saved["open"] is not None:
        resumed.begin_task("a", 3)
        resumed.set_open_state(saved["open"])
    assert learnt(2, saved["progress"], resumed) == whole


def from_torch(layer):
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=0.3)


def from_numpy(layer):
    if isinstance(layer, nn.Linear):
        drawn = np.random.randn(*layer.weight.shape) * 0.3
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(drawn))


def from_random(layer):
    if isinstance(layer, nn.Linear):
        with torch.no_grad():
            layer.weight.copy_(torch.empty_like(layer.weight).fill_(random.random()))


@pytest.mark.parametrize("function", [from_torch, from_numpy, from_random])
def test_weights_begin_by_the_seed_of_their_candidate_whatever_draws_them(function):
    found = []
    for alphas in ((5e-3,), (1e-3, 5e-3)):
        events = []
        options = config(alphas=alphas, training={"initialisation": function, "epochs": 2})
        Learner(network(), options, on_event=events.append).learn(task())
        last = len(alphas) - 1
        epochs = [e for e in events if e["event"] == "epoch" and e["candidate"] == last]
        found.append([epoch["penalised_loss"] for epoch in epochs])
    assert found[0] == found[1]


def test_a_task_can_be_checked_without_learning_it():
    net = network("single")
    learner = Learner(net, config())
    learner.check(task())
    x = torch.randn(50, 6)
    with pytest.raises(ArgumentError, match="num_outputs is 4, and the single head has 3"):
        learner.check(Task("a", (x, torch.arange(50) % 4)))
    with pytest.raises(ArgumentError, match="an input is NaN or infinite"):
        learner.check(Task("a", (x / 0, torch.arange(50) % 3)))
    noisy = Noisy(x[:, :5], torch.arange(50) % 3)
    with pytest.raises(ArgumentError, match=r"inputs of shape \(2, 5\)"):
        learner.check(Task("a", noisy, num_outputs=3))
    learner.check(Task("a", noisy))
    assert net.open_task is None


def test_an_alpha_for_an_unknown_layer_is_refused_before_training():
    events = []
    learner = Learner(network(), config(alphas=(1e-3, {"9": 1e-3})), on_event=events.append)
    with pytest.raises(ArgumentError, match="unknown layer '9'"):
        learner.learn(task())
    tuned = config(fine_tuning=FineTuning(alpha={"nope": 1.0}))
    with pytest.raises(ArgumentError, match="unknown layer 'nope'"):
        Learner(network(), tuned, on_event=events.append).learn(task())
    assert not events


def test_events_name_their_task():
    events = []
    Learner(
        network(), config(fine_tuning=FineTuning(1)), on_event=lambda e: events.append(dict(e))
    ).learn(task())
    kinds = [event["event"] for event in events]
    assert kinds == [*["epoch"] * 12, "candidate", "pruning", "chosen", "epoch", "round", "task"]
    assert {event["task"] for event in events} == {"a"}


def test_a_full_single_head_says_so():
    net = network("single")
    net.begin_task("all")
    net.end_task()
    with pytest.raises(CapacityError, match="no neuron of 2 is free"):
        Learner(net, config()).learn(task())


def test_an_open_task_of_the_user_is_left_alone():
    net = network()
    net.begin_task("mine")
    with pytest.raises(TaskError, match="task 'mine' is open; end or abandon it before the next"):
        Learner(net, config()).learn(task())
    assert net.open_task == "mine"


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_network_is_left_alone(training):
    net = network().train(training)
    Learner(net, config()).learn(task())
    assert net.training is training
    with pytest.raises(ArgumentError):
        Learner(net, config()).learn(task("b", num_inputs=5))
    assert net.training is training


class Stop(BaseException):
    """A crash."""


@functools.cache
def undisturbed(lr):
    """How a task is learnt that is tuned at that rate: settings, certificates, report, moments."""
    tuning = FineTuning(10, lr, rounds=2)
    options = config(alphas=(1e-3, 3e-3), margin=10.0, fine_tuning=tuning)
    net, moments = network(), []
    report = Learner(net, options, on_progress=moments.append).learn(task())
    return options, net.certificates, report, len(moments)


@pytest.mark.parametrize("lr", [0.01, 50.0])  # A rate of 50 leaves the margin.
@pytest.mark.parametrize("stop_at", [1, 5, 11, 12, 14, 24, 25, 26, 27, 29, 33, 34, 40, 45, 46])
def test_a_task_goes_on_from_any_moment_as_if_nothing_had_happened(stop_at, lr):
    options, certificates, expected, num_moments = undisturbed(lr)
    if stop_at > num_moments:
        assert lr == 50.0
        return

    net, saved, seen = network(), {}, []

    def stop(progress):
        seen.append(None)
        if len(seen) == stop_at:
            tensors = {}
            saved["state"] = pack(progress.to_state(), tensors, name="progress")
            saved["tensors"] = tensors
            saved["open"] = net.open_state() if net.open_task else None
            raise Stop

    with pytest.raises(Stop):
        Learner(net, options, on_progress=stop).learn(task())
    resumed = network()
    if saved["open"] is not None:
        resumed.begin_task("a")
        resumed.set_open_state(saved["open"])
    progress = Progress.from_state(unpack(saved["state"], saved["tensors"]))
    report = Learner(resumed, options).learn(task(), progress)
    assert resumed.certificates == certificates
    assert (report.score, report.winner, report.num_rounds) == (
        expected.score,
        expected.winner,
        expected.num_rounds,
    )
    assert report.plan.to_json() == expected.plan.to_json()
    assert report.plans == expected.plans
    assert math.isfinite(report.score)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("resident", [True, False])
def test_learning_on_the_gpu(precision, resident):
    net = network().to("cuda")
    options = config(training={"precision": precision}, resident=resident, num_workers=0)
    learner = Learner(net, options)
    first, second = task("a"), task("b", seed=1)
    assert learner.learn(first).test_score > 65
    answer = net(first.test[0].cuda(), task="a")
    assert learner.learn(second).test_score > 65
    assert torch.equal(net(first.test[0].cuda(), task="a"), answer)
    net.verify()
