import functools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from clnp import FineTuning, Learner, Objective, Task
from clnp.errors import ArgumentError, CapacityError, DivergedError, PruningError, TaskError
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    RoundEnded,
    SubsetScored,
    TaskEnded,
)
from clnp.training.config import TaskSettings
from support.learning import config, moments, network, reopened, task
from support.networks import copied_state, same_state

SHORT = {"epochs": 2}


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("head", ["multi", "single"])
def test_tasks_are_learned_pruned_and_never_forgotten(head):
    net = network(head)
    learner = Learner(net, config(alphas=(1e-4, 3e-3)))
    answers = {}
    for number, name in enumerate("abc"):
        given = task(name, seed=number)
        report = learner.learn(given)
        assert report.task == name
        assert report.score >= report.best_score - 3.0
        assert report.score == report.plan.score
        assert report.test_score > 65
        assert sum(report.plan.kept.values()) < 80
        answers[name] = (given.test[0], net(given.test[0], task=name))
    for name, (x, answer) in answers.items():
        assert torch.equal(net(x, task=name), answer)
    net.verify()


def test_the_sparsest_candidate_within_the_margin_wins():
    events = []
    grid = config(alphas=(0.0, 1e-2), margin=30.0)
    report = Learner(network(), grid, on_event=events.append).learn(task())
    plans = {e.candidate: e.plan for e in of(events, CandidatePruned)}
    assert set(plans) == {0, 1}
    kept = {number: sum(plan.kept.values()) for number, plan in plans.items()}
    assert report.winner == min(kept, key=kept.get)
    assert all(plan.best == report.best_score for plan in plans.values())


def test_of_equally_sparse_candidates_the_better_one_wins():
    """With a margin of 100, all of them keep no neuron."""
    options = {"margin": 100.0, "training": {"epochs": 3}}
    report = Learner(network(), config(lrs=(1e-6, 0.02, 1e-6), **options)).learn(task())
    assert set(report.plan.kept.values()) == {0}
    scores = [candidate.score for candidate in report.candidates]
    assert max(scores[0], scores[2]) < scores[1]
    assert report.winner == 1
    twice = Learner(network(), config(lrs=(0.02, 0.02), **options)).learn(task())
    assert twice.candidates[0].score == twice.candidates[1].score
    assert twice.winner == 0


def test_a_candidate_outside_the_margin_is_not_pruned():
    events = []
    hopeless = config(alphas=(1e-3, 10.0), margin=1.0)
    assert Learner(network(), hopeless, on_event=events.append).learn(task()).winner == 0
    assert [e.candidate for e in of(events, CandidatePruned)] == [0]


def test_the_text_of_a_report():
    report = Learner(network(), config(training=SHORT)).learn(task("a"))
    text = str(report)
    assert text.startswith(
        f"learned a: validation {report.score:.2f}, test {report.test_score:.2f}, best unpruned "
        f"{report.best_score:.2f}; alpha "
    )
    assert f"; pruning: {report.plan}; " in text
    assert text.endswith(" s")


def test_full_groups_are_reported():
    net, events = network(width=6), []
    training = {"alpha": 0.0, "epochs": 4}
    learner = Learner(net, config(training=training, margin=0.0), on_event=events.append)
    while any(net.ledger.free().values()) and len(net.tasks) < 6:
        report = learner.learn(task(f"task {len(net.tasks)}", seed=len(net.tasks)))
        full = tuple(group for group, free in net.ledger.free().items() if not free)
        assert of(events, TaskEnded)[-1].full == report.full == full
        assert (" full; " in str(report)) == bool(full)
    assert full


def test_a_task_is_learned_with_its_own_settings():
    own = TaskSettings(margin=40.0, alphas=(1e-3, 2e-3, 3e-3), epochs=2)
    learner = Learner(network(), config(tasks={"b": own}, fine_tuning=FineTuning(1, 1e-6)))
    one, two = learner.learn(task("a")), learner.learn(task("b", seed=1))
    assert [len(report.candidates) for report in (one, two)] == [1, 3]
    assert [report.candidates[0].num_epochs for report in (one, two)] == [12, 2]
    assert (one.plan.margin, two.plan.margin) == (3.0, 40.0)
    assert two.plan.score < two.best_score - 3.0
    assert two.num_rounds == 1  # Within its own margin too.


def test_the_winner_of_the_first_task_is_kept_for_tasks_without_their_own_grid():
    own = {"b": TaskSettings(lrs=(0.01, 0.02)), "c": TaskSettings(epochs=3)}
    grid = config(alphas=(1e-3, 10.0), search_on="first", tasks=own, training=SHORT)
    learner = Learner(network(), grid)
    reports = [learner.learn(task(name, seed=n)) for n, name in enumerate("abc")]
    assert [len(report.candidates) for report in reports] == [2, 4, 1]
    assert reports[2].candidates[0].num_epochs == 3
    assert reports[2].candidates[0].alpha == reports[0].candidates[reports[0].winner].alpha
    every = Learner(network(), config(alphas=(1e-3, 10.0), training=SHORT))
    every.learn(task("a"))
    assert len(every.candidates("c")) == 2


def test_a_candidate_that_diverges_is_dropped():
    net = network()
    report = Learner(net, config(training={"optimizer": "SGD"}, lrs=(1e30, 0.1))).learn(task())
    assert report.winner == 1
    assert report.candidates[0].score is None
    assert "the loss of task 'a' is" in report.candidates[0].diverged
    assert net.tasks == ("a",)
    # Also if only its score is not finite.
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    line = Task("line", (x, x[:, :2]), objective="regression")
    wild = config(lrs=(1e-3, 1e19), training={"epochs": 1, "batch_size": 300, "optimizer": "SGD"})
    report = Learner(network(), wild).learn(line)
    assert report.winner == 0
    assert "the validation score of task 'line' is" in report.candidates[1].diverged


def test_if_all_candidates_diverge_the_network_does_not_change():
    net = network()
    Learner(net, config(training=SHORT)).learn(task())
    before = copied_state(net)
    broken = Learner(net, config(training={"optimizer": "SGD", "lr": 1e30}))
    with pytest.raises(DivergedError, match="every candidate of task 'b' diverged: alpha"):
        broken.learn(task("b"))
    assert net.open_task is None
    assert same_state(net.state_dict(), before)


def test_the_same_seed_gives_the_same_task_and_another_candidate_changes_no_other():
    def learned(seed=0, noise=0, **options):
        net = network()
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        report = Learner(net, config(training=SHORT, **options), seed=seed).learn(task())
        assert torch.equal(torch.get_rng_state(), state)  # The user's generator is left alone.
        return report, net.certificates["a"].digest

    one, digest = learned()
    assert learned(noise=5)[1] == digest
    assert learned(seed=1)[1] != digest
    more, _ = learned(alphas=(5e-2, 1e-3))
    assert more.candidates[1] == one.candidates[0]


def test_seeds_do_not_depend_on_the_type_of_equal_numbers():
    nets = network(), network()
    short = {"epochs": 2, "batch_size": 64}
    Learner(nets[0], config(alphas=(0,), lrs=(1,), margin=3, training=short)).learn(task())
    Learner(nets[1], config(alphas=(0.0,), lrs=(1.0,), training=short)).learn(task())
    assert nets[0].certificates == nets[1].certificates


def test_fine_tuning_trains_the_remaining_neurons_only():
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


def test_later_rounds_prune_again_and_one_that_leaves_the_margin_is_rolled_back():
    once, often = network(), network()
    one = Learner(once, config(margin=10.0, fine_tuning=FineTuning(10, 0.01))).learn(task())
    tuning = FineTuning(10, 0.01, rounds=4)
    more = Learner(often, config(margin=10.0, fine_tuning=tuning)).learn(task())
    assert one.num_rounds == 1
    assert more.num_rounds > 1
    assert sum(often.ledger.claimed().values()) < sum(once.ledger.claimed().values())
    assert more.score >= more.best_score - 10.0
    assert more.plans[-1].thresholds != more.plan.thresholds
    assert one.plans == (one.plan,)

    events = []
    wild = config(fine_tuning=FineTuning(3, 50.0))
    report = Learner(network(), wild, on_event=events.append).learn(task())
    assert report.num_rounds == 0
    assert [e.kept for e in of(events, RoundEnded)] == [False]
    assert report.score == report.plan.score


def test_a_task_that_keeps_no_neuron_is_not_fine_tuned():
    """With a single head, it has no outputs either."""
    learner = Learner(network("single"), config(margin=100.0, fine_tuning=FineTuning(2)))
    first, second = learner.learn(task("a")), learner.learn(task("b", seed=1))
    assert (first.num_rounds, second.num_rounds) == (1, 0)
    assert set(second.plan.kept.values()) == {0}


@pytest.mark.parametrize("lr", [0.01, 50.0])  # A rate of 50 leaves the margin in the first round.
def test_reused_neurons_are_those_of_the_last_pruning(lr):
    net = network()
    learner = Learner(net, config(margin=8.0, fine_tuning=FineTuning(5, lr, rounds=3)))
    learner.learn(task("a"))
    report = learner.learn(task("b", seed=1))
    last = report.plans[-1].reused
    assert len(report.plans) == (1 if lr == 50.0 else 3)
    assert all(last.values())
    assert {group: net.capacity().of("b", group).reused for group in last} == last


def test_objectives_of_all_kinds():
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    labels = Task("labels", (x, (x[:, :3] > 0).float()), objective="multi-label")
    assert Learner(network(), config()).learn(labels).score > 80
    line = Task("line", (x, x[:, :2] * 2), objective="regression")
    assert Learner(network(), config(training={"epochs": 40, "alpha": 1e-5})).learn(line).score > 80
    own = Objective("own", lambda o, y: (o - y).abs().mean(), lambda o, y: -(o - y).abs().mean())
    mine = Task("mine", (x, x[:, :3]), objective=own, num_outputs=3)
    assert -1 < Learner(network(), config(margin=0.05)).learn(mine).score < 0


@pytest.mark.parametrize(
    ("loss", "score", "message"),
    [
        (
            lambda o, t: (o - t).square(),
            None,
            r"^the loss of the objective 'own' is of shape \[2, ",
        ),
        (lambda o, t: 0.0, None, r"^the loss of the objective 'own' is 0"),
        (lambda o, t: (o - t).square().mean(), None, "the score of the objective 'own' is None. "),
    ],
)
def test_an_objective_that_returns_no_number_is_refused(loss, score, message):
    x = torch.randn(200, 6)
    own = Objective("own", loss, lambda outputs, targets: score)
    with pytest.raises(ArgumentError, match=message):
        Learner(network(), config()).learn(Task("a", (x, x[:, :3]), objective=own, num_outputs=3))


def normed(head="multi"):
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    return network(head, layers=layers)


@pytest.mark.parametrize(
    ("net", "changed", "options", "message"),
    [
        (
            network,
            {"train": (torch.zeros(20, 5), torch.arange(20) % 3)},
            {},
            r"task 'a', training data: inputs of shape \(2, 5\) and torch.float32",
        ),
        (
            network,
            {"validation": (torch.zeros(20, 5), torch.arange(20) % 3)},
            {},
            r"task 'a', validation data: inputs of shape \(2, 5\)",
        ),
        (
            network,
            {"test": (torch.zeros(20, 5), torch.arange(20) % 3)},
            {},
            r"task 'a', test data: inputs of shape \(2, 5\)",
        ),
        (
            functools.partial(network, "single"),
            {"num_outputs": 4},
            {},
            "num_outputs is 4, and the single head has 3",
        ),
        (normed, {}, {"training": {"batch_size": 1}}, "Expected more than 1 value per channel"),
        (network, {}, {"training": {"optimizer": "LBFGS"}}, "training: LBFGS cannot be used: "),
        (network, {}, {"training": {"optimizer": "SparseAdam"}}, "training: SparseAdam cannot be "),
        (
            network,
            {},
            {"training": {"optimizer_options": {"betas": (0.9,)}}},
            "training: Adam: ",
        ),
        (network, {}, {"alphas": (1e-3, {"9": 1e-3})}, "unknown layer '9'"),
        (network, {}, {"fine_tuning": FineTuning(alpha={"nope": 1.0})}, "unknown layer 'nope'"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(net, changed, options, message):
    events, made = [], net()
    with pytest.raises(ArgumentError, match=message):
        Learner(made, config(**options), on_event=events.append).learn(replace(task(), **changed))
    assert not events
    assert made.open_task is None
    assert made.tasks == ()


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from every generator."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.rand(()) + random.random() + np.random.rand()
        return self.x[index] + 0.1 * noise.float(), int(self.y[index])


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


def test_the_events_of_a_task():
    events = []
    options = config(training=SHORT, fine_tuning=FineTuning(1))
    Learner(network(), options, on_event=events.append).learn(task())
    assert [type(event) for event in events if event.logged] == [
        *(*[EpochEnded] * 2, CandidateTrained, CandidatePruned, CandidateChosen),
        *(EpochEnded, RoundEnded, TaskEnded),
    ]
    assert {event.task for event in events} == {"a"}


def test_a_full_single_head_is_an_error():
    net = network("single")
    net.begin_task("all")
    net.end_task()
    with pytest.raises(CapacityError, match="no neuron of 2 is free"):
        Learner(net, config()).learn(task())


def test_an_open_task_of_the_user_stays_open():
    net = network()
    net.begin_task("mine")
    with pytest.raises(TaskError, match=r"task 'mine' is open\. End or abandon it before the next"):
        Learner(net, config()).learn(task())
    assert net.open_task == "mine"


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_network_is_restored(training):
    net = network().train(training)
    Learner(net, config(training=SHORT)).learn(task())
    assert net.training is training
    with pytest.raises(ArgumentError):
        Learner(net, config()).learn(task("b", num_inputs=5))
    assert net.training is training


def test_an_interrupted_task_is_abandoned():
    net = network()

    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Learner(net, config(), on_event=interrupt).learn(task())
    assert net.open_task is None


@functools.cache
def undisturbed(lr):
    """A task with this rate of fine-tuning: config, certificates, report, and all moments."""
    tuning = FineTuning(2, lr, rounds=2)
    training = {"epochs": 3, "batch_size": 16}
    options = config(alphas=(1e-3, 3e-3), margin=25.0, fine_tuning=tuning, training=training)
    net = network()
    report = Learner(net, options).learn(task())
    saved = moments(Learner(network(), options), task())
    return options, net.certificates, replace(report, seconds=0), saved


@pytest.mark.parametrize("lr", [0.01, 50.0])  # A rate of 50 leaves the margin.
def test_a_task_resumes_from_any_moment_to_the_same_result(lr):
    options, certificates, expected, saved = undisturbed(lr)
    assert len(saved) == (17 if lr == 0.01 else 14)
    # Before fine-tuning, the moments of both are the same.
    for progress, open_state in saved if lr == 0.01 else saved[-4:]:
        net = reopened(network(), open_state)
        report = Learner(net, options).learn(task(), progress)
        assert net.certificates == certificates
        assert replace(report, seconds=0) == expected


def test_a_task_with_random_data_resumes_to_the_same_result():
    noisy = Task("a", Noisy(*task().train), num_outputs=3)
    options = config(alphas=(1e-3, 3e-3), margin=10.0, training={"epochs": 2})
    whole = network()
    saved = moments(Learner(whole, options), noisy)
    assert len(saved) == 9
    for progress, open_state in saved[::2]:
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(1)
        net = reopened(network(), open_state)
        Learner(net, options).learn(noisy, progress)
        assert net.certificates == whole.certificates


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
        nn.init.constant_(layer.weight, random.random())


@pytest.mark.parametrize("function", [from_torch, from_numpy, from_random])
def test_initial_weights_depend_on_the_candidate_whatever_draws_them(function):
    found = []
    for alphas in ((5e-3,), (1e-3, 5e-3)):
        events = []
        options = config(alphas=alphas, training={"initialisation": function, "epochs": 2})
        Learner(network(), options, on_event=events.append).learn(task())
        epochs = [e for e in of(events, EpochEnded) if e.candidate == len(alphas) - 1]
        found.append([epoch.penalised_loss for epoch in epochs])
    assert found[0] == found[1]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("resident", [True, False])
def test_learning_on_a_gpu(precision, resident):
    net = network(device="cuda")
    learner = Learner(net, config(training={"precision": precision}, resident=resident))
    first, second = task("a"), task("b", seed=1)
    assert learner.learn(first).test_score > 65
    answer = net(first.test[0].cuda(), task="a")
    assert learner.learn(second).test_score > 65
    assert torch.equal(net(first.test[0].cuda(), task="a"), answer)
    net.verify()


def own(score):
    """A task with the score of a user, and few epochs."""
    return replace(
        task(),
        objective=Objective("own", torch.nn.functional.cross_entropy, score),
        num_outputs=3,
    )


def share(outputs, targets):
    return (outputs.argmax(1) == targets).double().mean().item()


def test_a_score_from_0_to_1_by_a_margin_in_percentage_points_is_refused():
    net = network()
    before = copied_state(net)
    with pytest.raises(PruningError, match="Give score and margin \\(1\\) in the same unit"):
        Learner(net, config(margin=1.0)).learn(own(share))
    assert (net.open_task, net.tasks) == (None, ())
    assert same_state(net.state_dict(), before)
    assert Learner(net, config(margin=0.03)).learn(own(share)).plan.num_kept


def test_a_later_task_with_a_margin_that_includes_guessing_is_warned_of():
    net = network()
    settings = config(margin=0.03, tasks={"b": TaskSettings(margin=1.0)})
    learner = Learner(net, settings)
    learner.learn(own(share))
    with pytest.warns(UserWarning, match="task 'b': a network whose outputs do not depend"):
        assert learner.learn(replace(own(share), name="b")).plan.num_kept == 0


def test_a_margin_that_includes_guessing_is_a_choice_where_scores_are_ours():
    assert Learner(network(), config(margin=100.0)).learn(task()).plan.num_kept == 0


def test_pruning_reports_each_set_of_neurons():
    events = []
    tuning = FineTuning(epochs=1, lr=1e-3, rounds=2)
    learner = Learner(network(), config(fine_tuning=tuning), on_event=events.append)
    plans = learner.learn(task()).plans
    first = [event for event in of(events, SubsetScored) if event.candidate == 0]
    assert [event.kept for event in first] == [point.num_kept for point in plans[0].curve]
    assert [event.number for event in first] == [n + 1 for n in range(len(first))]
    assert {event.available for event in first} == {80}
    later = [event for event in of(events, SubsetScored) if event.round is not None]
    assert {(event.candidate, event.round) for event in later} == {(None, 1)}
    assert {event.available for event in later} == {plans[0].num_kept}


def test_a_compiled_network_learns():
    net = network()
    learner = Learner(torch.compile(net, backend="eager"), config(training={"epochs": 1}))
    learner.learn(task())
    assert net.tasks == (task().name,)


def test_what_is_no_network_and_no_task_is_refused():
    with pytest.raises(ArgumentError, match=r"net is of type Linear\. It must be a ContinualNet"):
        Learner(nn.Linear(2, 3))
    with pytest.raises(ArgumentError, match=r"config is of type dict\. It must be a LearnerConfig"):
        Learner(network(), {"margin": 1})
    learner = Learner(network())
    for call in (learner.learn, learner.check):
        with pytest.raises(ArgumentError, match=r"task is of type tuple\. It must be a Task"):
            call(task().train)
