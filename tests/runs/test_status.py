import json
import math
import os
import platform
from dataclasses import replace

import pytest

from clnp.plain import read, to_json
from clnp.records import (
    CandidateChosen,
    CandidateTrained,
    EpochEnded,
    NetworkFull,
    RoundEnded,
    RunConfig,
    TaskResumed,
    event_to_plain,
)
from clnp.runs import status as module
from clnp.runs.directory import EVENTS, STATUS, read_events
from clnp.runs.status import OpenTask, Progress, Status, condensed, fine_tuning, read_status
from support.progress import (
    END,
    FAILURE,
    SETTINGS,
    STOP,
    begin,
    ended,
    epoch,
    evaluated,
    experiment,
    make,
    pruned,
    subset,
)
from support.runs import break_off

CONFIG = RunConfig(**SETTINGS)


@pytest.fixture
def small():
    return experiment("a", "b", alphas=(1e-4, 1e-3))


def after(*events, config=CONFIG):
    return Progress(config, events).status()


def trained(candidate, at):
    return CandidateTrained(
        task="task 1", candidate=candidate, alpha=0.1, lr=0.1, num_epochs=3, at=at
    )


def test_a_run_without_events():
    found = after()
    assert (found.state, found.open, found.fraction, found.seconds_left) == (
        "running",
        None,
        0,
        None,
    )
    assert (found.recipe, found.method, found.seed, found.num_tasks) == ("mine", "clnp", 0, 3)


def test_training():
    found = after(begin(), epoch(0, 2.0), epoch(1, 4.0))
    assert found.open == OpenTask(
        "task 1",
        1,
        "training",
        candidate=1,
        num_candidates=2,
        epoch=2,
        num_epochs=10,
        loss=0.5,
        score=51.0,
        losses=(1.0, 0.5),
        scores=(50.0, 51.0),
        epoch_seconds=2.0,
    )
    assert (found.epochs_done, found.epochs_of_run, found.seconds) == (2, 60, 4.0)
    assert after(begin()).open.phase == "starting"


def test_a_candidate_that_stopped_early_is_done():
    assert after(begin(), epoch(0, 2.0), trained(0, 2.5)).epochs_done == 10


def test_candidates_that_are_trained_at_the_same_time():
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = after(begin(), *(epoch(n, 1.0 + n, candidate=c) for n, c in pairs))
    assert (found.epochs_done, found.open.candidate, found.open.losses) == (4, 2, (1.0, 0.5))


def test_pruning_and_fine_tuning():
    found = after(begin(), epoch(0, 2.0), pruned())
    assert (found.open.phase, found.open.candidate, found.epochs_done) == ("pruning", 2, 20)
    assert (found.open.epoch, found.open.loss) == (None, 1.0)
    found = after(begin(), epoch(0, 2.0), subset(3, candidate=1), subset(4, candidate=1)).open
    assert (found.phase, found.candidate) == ("pruning", 2)
    assert (found.num_evaluations, found.kept, found.available) == (4, 340, 800)
    found = after(begin(), epoch(0, 2.0), subset(3, candidate=1), pruned()).open
    assert (found.phase, found.num_evaluations) == ("pruning", None)
    chosen = CandidateChosen(task="task 1", candidate=0, at=31.0)
    tuning = [chosen, epoch(0, 32.0, round=0), epoch(1, 34.0, round=0)]
    found = after(begin(), *tuning).open
    assert (found.phase, found.round, found.epoch) == ("fine-tuning", 1, 2)
    first = RoundEnded(task="task 1", round=0, score=1.0, at=35.0)
    found = after(begin(), *tuning, first, epoch(0, 36.0, round=1)).open
    assert (found.round, found.epoch) == (2, 1)


def test_a_task_that_has_ended():
    found = after(begin(), pruned(), ended(), evaluated(88.0, None))
    assert (found.open, [task.test_score for task in found.learned]) == (None, [88.0])
    assert (found.claimed, found.sizes) == ({"fc1": (4,), "fc2": (2,)}, {"fc1": 40, "fc2": 20})
    assert (found.average, found.epochs_done) == (88.0, 20)
    assert after(begin(), ended(new={}, test_score=None)).claimed == {}  # A baseline.


def test_a_task_that_is_resumed_continues():
    resumed = begin(at=9.5, kind=TaskResumed)
    found = after(begin(at=5.0), epoch(0, 7.0), epoch(1, 9.0), resumed)
    assert found.epochs_done == 2
    # Epochs that are trained again replace the old ones.
    again = after(begin(), epoch(0, 2.0), epoch(1, 4.0), resumed, epoch(1, 13.0, loss=9.0))
    assert again.open.losses == (1.0, 9.0)
    # The log of the beginning may be damaged.
    assert after(begin(2, kind=TaskResumed), epoch(0, 11.0)).epochs_done == 21


def test_the_end_of_a_run():
    finished = after(begin(3), ended(3), END)
    assert (finished.state, finished.fraction, finished.seconds_left) == ("finished", 1.0, 0.0)
    assert replace(finished, state="running").fraction == 0.99
    failed = after(begin(), FAILURE)
    assert (failed.state, failed.reason) == ("failed", "every candidate diverged")
    assert (failed.open.task, failed.mendable) == ("task 1", None)
    restarted = after(begin(), FAILURE, begin())
    assert (restarted.state, restarted.reason) == ("running", None)
    assert after(begin(), epoch(0, 1.0), STOP).state == "stopped"
    full = after(begin(), ended(), begin(2), NetworkFull(task="b", reason="no neuron", at=1.0))
    assert (full.full, full.state, full.open, full.seconds_left) == (
        "no neuron",
        "running",
        None,
        0,
    )


def test_time_left_in_the_first_task_is_by_its_epochs():
    found = after(begin(at=10.0), epoch(0, 12.0), epoch(1, 14.0))
    assert found.seconds_left == pytest.approx(58 * 2.0)
    assert after(begin(at=10.0)).seconds_left is None


def test_time_left_is_by_the_seconds_of_earlier_tasks():
    first = [begin(), epoch(0, 2.0), ended(at=50.0), begin(2, 50.0)]
    found = after(*first)
    assert found.seconds_left == pytest.approx(100.0)
    # Of 50 seconds, 2 are gone; by its epochs alone the task would take less.
    assert after(*first, epoch(0, 52.0)).seconds_left == pytest.approx(48.0 + 50.0)
    # A task that is slower than the others takes as long as its epochs say.
    slow = after(*first, epoch(0, 52.0), epoch(1, 70.0))
    assert slow.seconds_left == pytest.approx(18 * 10.0 + 50.0)
    assert after(*first, pruned(at=60.0)).seconds_left == pytest.approx(40.0 + 50.0)
    assert after(*first, pruned(at=500.0)).seconds_left == pytest.approx(50.0)


def test_the_first_task_and_those_long_ago_do_not_count():
    starts, events = [0, 1000, 1900, 1910, 1920, 1930], []
    for number, start in enumerate(starts[:-1], 1):
        events += [begin(number, start, epochs_of_run=140), ended(number, starts[number])]
    found = after(*events, begin(6, 1930, epochs_of_run=140))
    assert found.seconds_left == pytest.approx(2 * 10.0)


def test_tasks_without_epochs_do_not_count_for_the_time():
    # Joint training collects all tasks before it trains.
    events = [begin(1, num_candidates=0), ended(1, 0.1), begin(2, 0.1, num_candidates=0)]
    events += [ended(2, 0.2), begin(3, 0.2, num_candidates=1, num_epochs=20)]
    assert after(*events).seconds_left is None
    found = after(*events, epoch(0, 10.2, num_epochs=20))
    assert (found.epochs_done, found.seconds_left) == (41, pytest.approx(190.0))


def test_epochs_of_fine_tuning_count():
    tuned = replace(CONFIG, learner={"fine_tuning": {"rounds": 2, "epochs": 40}})
    plan = {"num_candidates": 1, "num_epochs": 4, "epochs_of_run": 12}
    events = [begin(**plan, epochs_before=0)]
    events += [epoch(n, 2.0 * (n + 1), num_epochs=4) for n in range(4)]
    found = after(*events, config=tuned)
    assert (found.epochs_done, found.epochs_of_run) == (4, 3 * 84)
    assert found.seconds_left == pytest.approx((84 * 3 - 4) * 2.0)
    events += [pruned(at=8.0), epoch(0, 9.0, round=0, num_epochs=40)]
    found = after(*events, config=tuned)
    assert found.epochs_done == 5
    kept, rolled_back = (
        RoundEnded(task="task 1", round=0, score=1.0, kept=kept, at=50.0) for kept in (True, False)
    )
    assert after(*events, kept, config=tuned).epochs_done == 44
    assert after(*events, rolled_back, config=tuned).epochs_done == 84
    events += [kept, ended(at=100.0), begin(2, 100.0, **plan | {"epochs_before": 4})]
    found = after(*events, config=tuned)
    assert (found.epochs_done, found.seconds_left) == (84, pytest.approx(200.0))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"learner": {"fine_tuning": {"epochs": 40, "rounds": 2, "lr": 0.1}}}, (2, 40)),
        ({"learner": {"fine_tuning": None}}, (0, 0)),
        ({"method": "packnet", "baseline": {"retrain_epochs": 7}}, (1, 7)),
        ({"method": "mine", "baseline": {"retrain_epochs": "few"}}, (0, 0)),
        ({"method": "ewc", "learner": {"fine_tuning": {"epochs": 4, "rounds": 2}}}, (0, 0)),
    ],
)
def test_fine_tuning_of_a_method(changes, found):
    settings = fine_tuning(replace(CONFIG, **changes))
    assert (settings.rounds, settings.epochs) == found


def test_long_curves_are_means():
    assert condensed([1.0, 2.0], 3) == (1.0, 2.0)
    assert condensed([0, 0, 4, 4, 8, 8], 3) == (0.0, 4.0, 8.0)
    assert condensed([1.7e308] * 4, 2) == (1.7e308, 1.7e308)


def test_the_file_is_the_status(tmp_path):
    make(tmp_path, begin(), epoch(0, 2.0, loss=math.nan))
    found = read_status(tmp_path)
    assert math.isnan(found.open.losses[0])
    assert (found.process, found.host, found.is_dead) == (os.getpid(), platform.node(), False)
    assert replace(found, process=2**22 + 1).is_dead
    assert not replace(found, process=2**22 + 1, host="another machine").is_dead
    assert not replace(found, process=2**22 + 1, state="stopped").is_dead
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_epochs_are_written_once_a_second(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    writer = make(tmp_path)
    writer.update(begin())
    for number, epochs in ((0, None), (1, None), (2, 3), (3, 3)):
        now[0] += 0.4
        writer.update(epoch(number, 2.0))
        assert read_status(tmp_path).open.epoch == epochs
    writer.update(subset(1, candidate=0))
    assert read_status(tmp_path).open.num_evaluations is None
    writer.update(STOP)
    assert (read_status(tmp_path).state, read_status(tmp_path).open.phase) == ("stopped", "pruning")


def test_a_status_that_cannot_be_written_does_not_end_a_run(tmp_path):
    writer = make(tmp_path)
    (tmp_path / STATUS).unlink()
    (tmp_path / STATUS).mkdir()
    writer.update(begin())


def test_a_run_of_an_older_version_is_read_from_its_log(tmp_path):
    make(tmp_path)
    (tmp_path / STATUS).unlink()
    lines = [json.dumps(event_to_plain(event)) for event in (begin(), epoch(0, 2.0), FAILURE)]
    (tmp_path / EVENTS).write_text("\n".join([*lines, '{"event": "epo']))
    os.utime(tmp_path / EVENTS, (5.0, 5.0))
    found = read_status(tmp_path)
    assert (found.state, found.epochs_done, found.updated, found.process) == ("failed", 1, 5, None)
    assert read_status(tmp_path / "gone") is None


def test_a_real_run_writes_its_status(tmp_path, small):
    statuses = []

    def note(event):
        statuses.append(read_status(tmp_path / "run"))

    small.run(tmp_path / "run", on_event=note)
    assert [found.open is not None for found in statuses[:2]] == [False, True]
    last = read_status(tmp_path / "run")
    assert (last.state, last.num_tasks, len(last.learned)) == ("finished", 2, 2)
    assert last.epochs_done == last.epochs_of_run == 16
    assert last == replace(
        after(*read_events(tmp_path / "run"), config=replace(small.describe(), recipe=None)),
        **{key: getattr(last, key) for key in ("process", "host", "updated")},
    )


def test_a_resumed_run_has_the_status_of_its_whole_log(tmp_path, small):
    break_off(small, tmp_path / "run", EpochEnded, 3, task="b")
    crashed = read_status(tmp_path / "run")
    assert (crashed.state, crashed.open.task, len(crashed.learned)) == ("running", "b", 1)
    seen = []

    def note(event):
        if isinstance(event, TaskResumed):
            seen.append(read_status(tmp_path / "run"))

    small.run(tmp_path / "run", on_event=note)
    [resumed] = seen
    assert (resumed.open.epoch, resumed.learned) == (2, crashed.learned)


def test_a_status_is_read_back_as_it_was_written():
    found = after(begin(), ended(), evaluated(88.0, math.nan), begin(2), epoch(0, 60.0, task=2))
    assert to_json(read(Status, json.loads(to_json(found)))) == to_json(found)
