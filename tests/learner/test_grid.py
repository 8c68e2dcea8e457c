import copy
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from clnp import FineTuning, Learner, LearnerConfig, Training
from clnp.learner.grid import Lane
from clnp.records import CandidateTrained, EpochEnded
from clnp.training.task import load
from support.learning import moments, network as made, reopened, task

GRID = {"alphas": (1e-4, 1e-3), "lrs": (0.01, 0.03)}
DIVERGING = {"alphas": (), "lrs": (0.01, 1e25, 0.02)}


def network(device="cpu"):
    layers = nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 3)
    return made(device=device, layers=layers)


def config(at_once, *, cuda_graph=True, patience=2, epochs=3, **options):
    training = Training(epochs=epochs, batch_size=32, cuda_graph=cuda_graph, patience=patience)
    chosen = {**GRID, **options}
    return LearnerConfig(margin=3.0, training=training, candidates_at_once=at_once, **chosen)


def learned(options, device="cpu"):
    """Two tasks learned in a network, the epochs, and the reports."""
    net, events = network(device), []
    learner = Learner(net, options, on_event=events.append)
    reports = [learner.learn(task("a")), learner.learn(task("b", seed=1))]
    return net, epochs(events), reports


def candidates(reports):
    return [
        (c.alpha, c.lr, c.num_epochs, c.score, c.diverged) for r in reports for c in r.candidates
    ]


def epochs(events):
    """The epochs without their times, in the order of the candidates."""
    found = [replace(event, seconds=0) for event in events if isinstance(event, EpochEnded)]
    return sorted(found, key=lambda e: (e.task, e.candidate, e.number))


@pytest.fixture(scope="module")
def together():
    return learned(config(3))


def test_candidates_at_the_same_time_are_those_one_after_the_other(together):
    alone, alone_epochs, alone_reports = learned(config(1))
    net, found, reports = together
    assert candidates(reports) == candidates(alone_reports)
    assert found == alone_epochs
    assert [r.winner for r in reports] == [r.winner for r in alone_reports]
    assert net.certificates == alone.certificates


def test_candidates_take_turns_in_copies_of_the_network():
    net, events, open_tasks = network(), [], set()

    def look(event):
        if isinstance(event, EpochEnded) and event.round is None:
            events.append(event.candidate)
            open_tasks.add(net.open_task)

    options = config(4, patience=None, fine_tuning=FineTuning(epochs=1))
    Learner(net, options, on_event=look).learn(task())
    assert events == [0, 1, 2, 3] * 3
    assert open_tasks == {None}


def test_a_candidate_that_diverges_does_not_affect_the_others():
    alone = learned(config(1, **DIVERGING))[2]
    reports = learned(config(3, **DIVERGING))[2]
    assert candidates(reports) == candidates(alone)
    assert "lower learning rate" in reports[0].candidates[1].diverged


# Among three candidates, after them, and in the second wave, which has one.
@pytest.mark.parametrize("at", [0, 1, 3, 4, 7])
def test_candidates_at_the_same_time_resume_to_the_same_result(at, together, saved):
    whole, whole_epochs, _ = together
    progress, open_state = copy.deepcopy(saved[at])
    net, events = reopened(network(), open_state), []
    learner = Learner(net, config(3), on_event=events.append)
    learner.learn(task(), progress)
    learner.learn(task("b", seed=1))
    known = {(epoch.task, epoch.candidate, epoch.number): epoch for epoch in whole_epochs}
    assert epochs(events) == [known[e.task, e.candidate, e.number] for e in epochs(events)]
    assert net.certificates == whole.certificates


@pytest.fixture(scope="module")
def saved():
    return moments(Learner(network(), config(3)), task())


def test_a_candidate_that_diverged_is_not_trained_again_when_a_run_resumes():
    options = config(3, **DIVERGING, patience=None)
    learner, reports = Learner(network(), options), []
    learner.on_event = reports.append
    one, *_ = moments(learner, task(), lambda progress: any(x.error for x in progress.lanes))
    progress, _ = one
    assert [bool(lane["error"]) for lane in progress.resumed] == [False, True, False]
    events = []
    report = Learner(network(), options, on_event=events.append).learn(task(), progress)
    trained = [event for event in reports if isinstance(event, CandidateTrained)]
    assert [c.score for c in report.candidates] == [event.score for event in trained]
    assert {event.candidate for event in epochs(events)} == {0, 2}


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [True, False])
def test_on_a_gpu_candidates_are_the_same_up_to_rounding(cuda_graph):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = learned(config(1, cuda_graph=cuda_graph, epochs=4), "cuda")[1]
        net, found, reports = learned(config(4, cuda_graph=cuda_graph, epochs=4), "cuda")
    assert min(report.test_score for report in reports) > 60
    net.verify()
    for one, other in zip(alone, found, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-3)


@pytest.mark.gpu
def test_lanes_have_their_own_random_numbers():
    device, net = torch.device("cuda"), network("cuda")
    data = load(task(), device)
    lanes = [
        Lane(net, data, Training(), seed=0, begin=lambda net: net.begin_task("a", 3))
        for _ in range(2)
    ]
    torch.manual_seed(5)
    outside = torch.rand(3, device=device)
    torch.manual_seed(5)
    drawn = []
    for lane in lanes:
        with lane.entered():
            torch.manual_seed(7)
    for _ in range(2):
        for lane in lanes:
            with lane.entered():
                drawn.append(torch.rand(3, device=device).tolist())
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3] != drawn[0]
    assert torch.equal(torch.rand(3, device=device), outside)
