import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from clnp import ContinualNet, FineTuning, Learner, LearnerConfig, Objective, Task, Training
from clnp.data.named import digits
from clnp.errors import ArgumentError
from clnp.training.objective import accuracy
from support.learning import config, network, task
from support.networks import ConvNet


def samples(num, *, seed, spread=1.0):
    """Clouds around four points."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (num,), generator=draw)
    points = 0.8 * torch.randn(4, 10, generator=torch.Generator().manual_seed(99))
    return points[labels] + spread * torch.randn(num, 10, generator=draw), labels


def learned(task, *, seed=0, norm=nn.Identity, **options):
    """The report of a small network with two layers and their norms."""
    layers = (nn.Linear(10, 24), norm(24), nn.ReLU()), (nn.Linear(24, 24), norm(24), nn.ReLU())
    torch.manual_seed(0)
    model = nn.Sequential(*layers[0], *layers[1], nn.Linear(24, 4))
    net = ContinualNet(model, torch.zeros(2, 10))
    training = Training(epochs=4, lr=1e-2, batch_size=32, alpha=1e-4)
    return Learner(net, LearnerConfig(training=training, **options), seed=seed).learn(task)


TUNING = FineTuning(epochs=1, lr=1e-4)


# With these seeds, the statistics of all training data leave the margin.
@pytest.mark.parametrize(
    ("tuning", "calibration_samples", "seed"),
    [(None, 256, 0), (None, 0, 5), (TUNING, 256, 2), (TUNING, 0, 9)],
)
def test_a_task_ends_within_its_margin_behind_batchnorm(tuning, calibration_samples, seed):
    options = {"fine_tuning": tuning, "calibration_samples": calibration_samples}
    given = Task("a", samples(1500, seed=seed, spread=1.4))
    report = learned(given, seed=seed, norm=nn.BatchNorm1d, margin=0.0, **options)
    assert report.score >= report.best_score


class Restless(torch.utils.data.Dataset):
    """Samples that are random every time; with a generator, seeding does not repeat them."""

    def __init__(self, x, y, generator=None):
        self.x, self.y, self.generator = x, y, generator

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.randn(self.x.shape[1], generator=self.generator)
        return self.x[index] + 0.5 * noise, self.y[index]


@pytest.mark.parametrize("own_generator", [False, True])
def test_random_validation_data_is_drawn_once(own_generator):
    generator = torch.Generator().manual_seed(0) if own_generator else None
    given = Restless(*samples(400, seed=0), generator)
    report = learned(Task("a", given, num_outputs=4), margin=0.5)
    assert report.score == report.plan.score
    assert report.plan.best == report.best_score


class Fading(Restless):
    """Samples that become zero after a few thousand reads."""

    num_reads = 0

    def __getitem__(self, index):
        self.num_reads += 1
        return self.x[index] * (self.num_reads < 2500), int(self.y[index])


def test_scores_that_fall_during_pruning_are_no_error():
    """Streamed random validation data may score worse than before."""
    x, y = samples(400, seed=0)
    report = learned(Task("a", (x, y), Fading(x, y), num_outputs=4), margin=0.5, resident=False)
    assert report.best_score > 80
    assert report.plan.best is not None
    assert report.plan.best < report.best_score - 0.5
    assert report.score >= report.plan.best - 0.5


def test_random_training_data_does_not_move_the_bar():
    """Otherwise a candidate might be outside its margin."""

    class Drawn(Restless):
        def __getitem__(self, index):
            noise = torch.from_numpy(self.generator.normal(0, 0.5, self.x[index].shape)).float()
            return self.x[index] + noise, self.y[index]

    x, y = task(num_samples=200).train
    values = x[:, :1] * y[:, None]
    train = Drawn(x[:120], values[:120], np.random.default_rng(0))
    given = Task("a", train, (x[120:], values[120:]), objective="regression", num_outputs=1)
    tuned = FineTuning(epochs=1, lr=1e-3, rounds=2)
    chosen = config(margin=1e-5, fine_tuning=tuned, training={"epochs": 2, "alpha": 0.0})
    for seed in range(3):
        layers = nn.Linear(6, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 1)
        report = Learner(network(layers=layers), chosen, seed=seed).learn(given)
        assert report.plan.score >= report.best_score - 1e-5


def test_a_task_that_learned_nothing_is_reported():
    x, y = samples(400, seed=0)
    with pytest.warns(UserWarning, match="^task 'a' has a validation score of") as caught:
        nothing = learned(Task("a", (torch.zeros_like(x), y)))
    assert str(caught[0].message) == (
        f"task 'a' has a validation score of {nothing.score:.2f}, no better than always naming the "
        f"same class, {nothing.guess:.2f}, and is frozen now. Train longer, or check labels, "
        "learning rate and alpha"
    )
    assert nothing.score <= nothing.guess < 50
    assert f"; NO BETTER than always naming the same class, {nothing.guess:.2f}" in str(nothing)
    boolean = learned(Task("a", (torch.zeros_like(x), y > 1), num_outputs=4))
    assert boolean.score <= boolean.guess
    with warnings.catch_warnings(action="error"):
        something = learned(Task("a", (x, y)))
    assert something.guess == nothing.guess
    assert "NO BETTER" not in str(something)


def test_a_task_whose_warning_is_an_error_is_not_frozen():
    x, y = samples(400, seed=0)
    learner = Learner(network(), config())
    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match="no better"):
        learner.learn(Task("a", (torch.zeros_like(x), y)))
    assert (learner.net.tasks, learner.net.open_task) == ((), None)


def test_the_score_of_guessing_is_known_for_resident_labels():
    x, y = samples(400, seed=0)
    given = Task("a", Restless(x, y), num_outputs=4)
    assert learned(given).guess is not None
    assert learned(given, resident=False).guess is None
    values = torch.randn(400, 4)
    assert learned(Task("a", (x, values), objective="regression")).guess is None


def test_importance_may_be_the_contribution_or_a_taylor_score():
    for kind in ("activity", "contribution", "taylor"):
        report = Learner(network(), config(importance=kind)).learn(task())
        tried = [p.theta for p in report.plan.curve if p.theta is not None and p.theta >= 0]
        # Shares are fractions; the largest sum of every group is 1.
        assert (max(tried) == pytest.approx(1.0)) is (kind != "activity")
        assert report.plan.score >= report.best_score - report.plan.margin


def test_a_taylor_score_is_that_of_the_loss_of_the_objective():
    def half(outputs, targets):
        return F.cross_entropy(outputs[::2], targets[::2])

    given = replace(task(), num_outputs=3, objective=Objective("half", half, accuracy))
    seen = []

    def taylor(net, batches):
        seen.append(net.measure_taylor(batches, half))
        return seen[-1]

    own = Learner(network(), config(importance=taylor)).learn(given)
    named = Learner(network(), config(importance="taylor")).learn(given)
    assert named.plan.keep == own.plan.keep
    assert named.plan.thresholds == pytest.approx(own.plan.thresholds)


def test_importance_may_be_a_function_of_the_network_and_its_batches():
    counts = []

    def alternating(net, batches):
        counts.append([sum(len(x) for x, _ in batches) for _ in range(2)])
        assert net.open_task in ("a", "b")
        return {group: torch.arange(n) % 2 for group, n in net.ledger.free().items()}

    net = network()
    learner = Learner(net, config(margin=100.0, importance=alternating))
    report = learner.learn(task())
    assert counts == [[144, 144]]
    assert report.plan.thresholds == {"0": 1.0, "2": 1.0}
    learner.config = replace(learner.config, margin=3.0)
    report = learner.learn(task("b", seed=1))
    assert report.plan.reused == {"0": 0, "2": 0}
    assert set(report.plan.kept.values()) <= {20, 40}


def test_reuse_is_known_whatever_the_importance_is():
    def ones(net, batches):
        return {group: torch.ones(n) for group, n in net.ledger.free().items()}

    net = network()
    net.begin_task("before")
    net.end_task({"0": range(20), "2": range(20)})
    report = Learner(net, config(importance=ones)).learn(task())
    assert all(report.plan.reused.values())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda net, batches: None, "importance is of type NoneType. It must be what measure_act"),
        (lambda net, batches: {"0": torch.ones(40)}, "importance lacks 2. Give a number for each"),
        (
            lambda net, batches: {"0": torch.ones(40), "2": torch.ones(3)},
            r"importance of 2 has shape \[3\]. It must have a number for each of its 40",
        ),
        (
            lambda net, batches: net.prune({"0": [0]}),
            "the function for importance has changed 0.weight_free. It must leave the network as i",
        ),
    ],
)
def test_what_a_function_returns_and_does_is_checked(function, message):
    net = network()
    with pytest.raises(ArgumentError, match=message):
        Learner(net, config(importance=function)).learn(task())
    assert net.open_task is None


def test_batchnorm_is_recalibrated():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    x = torch.randn(200, 3, 8, 8, generator=generator) + y[:, None, None, None]
    means = []
    for recalibrate in (True, False):
        torch.manual_seed(0)
        net = ContinualNet(ConvNet(), x[:2])
        options = config(recalibrate=recalibrate, margin=0.0, training={"epochs": 3})
        Learner(net, options).learn(Task("a", (x, y), num_outputs=4))
        means.append(net.model.bn1.running_mean_frozen)
    assert len(means[0]) == len(means[1]) > 0
    assert not torch.allclose(*means)


def pruned_behind_batchnorm(**options):
    """The report of a network with BatchNorm, on digits that are sorted by class."""
    data = digits()
    (x, y), validation = ((x / 16, y) for x, y in (data.train, data.test))
    order = y.argsort(stable=True)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    training = {"epochs": 5, "lr": 0.01, "batch_size": 64, "alpha": 1e-4}
    chosen = config(importance="contribution", training=training, **options)
    given = Task("a", (x[order], y[order]), validation=validation)
    return Learner(ContinualNet(model, x[:2]), chosen).learn(given)


def test_neurons_are_recalibrated_before_they_are_scored():
    stale, fresh = (pruned_behind_batchnorm(calibration_samples=num) for num in (0, 256))
    gaps = [abs(report.score - report.plan.score) for report in (stale, fresh)]
    assert gaps[0] > gaps[1]
    assert sum(fresh.plan.kept.values()) < sum(stale.plan.kept.values()) - 4


def test_without_recalibration_calibration_samples_do_not_matter():
    given = Task("a", samples(400, seed=0))
    options = {"norm": nn.BatchNorm1d, "recalibrate": False}
    plans = [learned(given, calibration_samples=num, **options).plan for num in (0, 64)]
    assert plans[0] == plans[1]


def test_data_sorted_by_class_is_shuffled_for_the_last_recalibration():
    """Otherwise statistics would be averages over batches of one class."""
    given = task(seed=2, num_samples=600)
    x, y = (torch.cat(parts) for parts in zip(given.train, given.test, strict=True))
    order = y.argsort(stable=True)
    torch.manual_seed(0)
    linears = (nn.Linear(6, 20), *(nn.Linear(20, 20) for _ in range(3)))
    blocks = [part for linear in linears for part in (linear, nn.BatchNorm1d(20), nn.ReLU())]
    net = ContinualNet(nn.Sequential(*blocks, nn.Linear(20, 3)), x[:2])
    chosen = config(calibration_samples=1000, training={"epochs": 8, "batch_size": 60})
    report = Learner(net, chosen).learn(Task("a", (x[order], y[order]), validation=(x, y)))
    assert report.score == pytest.approx(report.plan.score, abs=0.8)


def test_a_last_batch_of_one_sample_does_not_harm_batchnorm():
    x = torch.randn(97, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    net = network(layers=(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)))
    report = Learner(net, config(training={"epochs": 10})).learn(
        Task("a", (x, y), (x[:40], y[:40]))
    )
    assert report.score > 80
    assert net.ledger.claimed()["0"] > 0
