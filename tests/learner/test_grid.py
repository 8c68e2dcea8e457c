import warnings

import pytest
import torch
from torch import nn

import clnp
from clnp import Learner, LearnerConfig, Task, Training
from clnp.errors import ArgumentError
from clnp.learner.grid import Lane
from clnp.learner.progress import Progress
from clnp.training.config import FineTuning

GRID = {"alphas": (1e-4, 1e-3), "lrs": (0.01, 0.03)}


def task(name="a", seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 6, generator=generator)
    y = (x @ torch.randn(6, 3, generator=generator)).argmax(1)
    return Task(name, (x[:200], y[:200]), test=(x[200:], y[200:]))


def network(device="cpu"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 3)
    )
    return clnp.ContinualNet(model.to(device), torch.zeros(2, 6, device=device))


def config(at_once, *, cuda_graph=True, training=None, **options):
    made = {"epochs": 4, "batch_size": 32, "cuda_graph": cuda_graph, "patience": 2}
    return LearnerConfig(
        margin=3.0,
        training=Training(**{**made, **(training or {})}),
        candidates_at_once=at_once,
        **{**GRID, **options},
    )


def learnt(options, device="cpu", progress=None):
    """Two tasks learnt in a network, what was told on the way, and the reports."""
    net, events = network(device), []
    learner = Learner(net, options, on_event=events.append)
    reports = [learner.learn(task("a")), learner.learn(task("b", seed=1))]
    return net, events, reports


def candidates(reports):
    return [
        (c.alpha, c.lr, c.num_epochs, c.score, c.diverged) for r in reports for c in r.candidates
    ]


def epochs(events):
    """What was told of each epoch but for how long it took, in the order of the candidates."""
    told = [
        {k: v for k, v in event.items() if k != "seconds"}
        for event in events
        if event["event"] == "epoch"
    ]
    return sorted(told, key=lambda e: (e["task"], e["candidate"], e["number"]))


@pytest.mark.parametrize("at_once", [3, 10])
def test_candidates_at_the_same_time_are_those_one_after_the_other(at_once):
    alone, alone_events, alone_reports = learnt(config(1))
    net, events, reports = learnt(config(at_once))
    assert candidates(reports) == candidates(alone_reports)
    assert epochs(events) == epochs(alone_events)
    assert [r.winner for r in reports] == [r.winner for r in alone_reports]
    assert {n: c.digest for n, c in net.certificates.items()} == {
        n: c.digest for n, c in alone.certificates.items()
    }
    x = task().test[0]
    for name in ("a", "b"):
        assert torch.equal(net(x, task=name), alone(x, task=name))


def test_they_take_turns():
    _, events, _ = learnt(config(4, training={"patience": None}))
    first = [e["candidate"] for e in events if e["event"] == "epoch" and e["task"] == "a"]
    assert first == [0, 1, 2, 3] * 4


def test_one_that_diverges_does_not_take_the_others_along():
    options = {"alphas": (), "lrs": (0.01, 1e25, 0.02)}
    alone = learnt(config(1, **options))[2]
    reports = learnt(config(3, **options))[2]
    assert candidates(reports) == candidates(alone)
    assert "lower learning rate" in reports[0].candidates[1].diverged


def test_a_run_that_breaks_off_comes_to_the_same():
    class Stop(BaseException):
        pass

    whole, whole_events, _ = learnt(config(3))
    net, saved, seen = network(), {}, []

    def stop(progress):
        seen.append(len(progress.trained))
        if len(seen) == int(saved["at"]):
            saved["progress"] = progress.to_state()
            saved["open"] = net.open_task and net.open_state()
            raise Stop

    # Among three candidates, after them, and in the second wave, in which there is one.
    for at in (1, 2, 4, 5, 6, 9):
        net, seen[:] = network(), []
        saved["at"] = at
        events = []
        with pytest.raises(Stop):
            Learner(net, config(3), on_event=events.append, on_progress=stop).learn(task("a"))
        resumed = network()
        if saved["open"]:
            resumed.begin_task("a", 3)
            resumed.set_open_state(saved["open"])
        learner = Learner(resumed, config(3), on_event=events.append)
        learner.learn(task("a"), Progress.from_state(saved["progress"]))
        learner.learn(task("b", seed=1))
        assert epochs(events) == epochs(whole_events)
        assert resumed.certificates["b"].digest == whole.certificates["b"].digest


def test_one_that_diverged_has_done_so_after_a_crash_too():
    class Stop(BaseException):
        pass

    options = config(3, alphas=(), lrs=(0.01, 1e25, 0.02), training={"patience": None})
    whole = Learner(network(), options).learn(task())
    saved = []

    def stop(progress):
        if progress.group is not None and any(progress.group.errors):
            saved.append(progress.to_state())
            raise Stop

    with pytest.raises(Stop):
        Learner(network(), options, on_progress=stop).learn(task())
    assert [bool(each["error"]) for each in saved[0]["group"]] == [False, True, False]
    events = []
    learner = Learner(network(), options, on_event=events.append)
    report = learner.learn(task(), Progress.from_state(saved[0]))
    assert candidates([report]) == candidates([whole])
    assert {e["candidate"] for e in events if e["event"] == "epoch"} == {0, 2}


def test_the_network_itself_is_left_alone():
    net, states = network(), []

    def look(event):
        if event["event"] == "epoch" and "round" not in event:
            states.append(net.open_task)

    options = config(4, fine_tuning=FineTuning(epochs=1))
    Learner(net, options, on_event=look).learn(task())
    assert set(states) == {None}


def test_a_number_that_makes_no_sense():
    with pytest.raises(ArgumentError, match="candidates_at_once is 0; it must be a whole number"):
        LearnerConfig(candidates_at_once=0)


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", [True, False])
def test_on_a_gpu_they_are_the_same_up_to_rounding(cuda_graph):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = epochs(learnt(config(1, cuda_graph=cuda_graph), "cuda")[1])
        net, events, reports = learnt(config(4, cuda_graph=cuda_graph), "cuda")
    assert min(report.test_score for report in reports) > 60
    net.verify()
    for one, other in zip(alone, epochs(events), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


@pytest.mark.gpu
def test_random_numbers_of_lanes_are_their_own():
    device = torch.device("cuda")
    lanes = [Lane(device), Lane(device)]
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
