import math

import pytest

from clnp.terminal.status import DAMAGED, Standing, Tuning, tuning_of


def begin(number=1, at=0.0, event="begin", **others):
    """The beginning of a task of two candidates with ten epochs each, out of three."""
    return {
        "event": event,
        "task": f"task {number}",
        "number": number,
        "num_tasks": 3,
        "num_candidates": 2,
        "num_epochs": 10,
        "epochs_before": 20 * (number - 1),
        "epochs_of_run": 60,
        "at": at,
        **others,
    }


def epoch(number, at, candidate=0, **others):
    where = {} if "round" in others else {"candidate": candidate}
    return {
        "event": "epoch",
        "number": number,
        "num_epochs": 10,
        "loss": 1.0 / (number + 1),
        "score": 50.0 + number,
        "seconds": 2.0,
        "at": at,
        **where,
        **others,
    }


def ended(number=1, at=50.0, **others):
    return {
        "event": "task",
        "task": f"task {number}",
        "new": {"fc1": 4, "fc2": 2},
        "score": 90.0,
        "test_score": 88.0,
        "at": at,
        **others,
    }


def pruning(available, at=30.0):
    plan = {"available": available, "keep": {}, "score": 1.0}
    return {"event": "pruning", "candidate": 1, "plan": plan, "at": at}


def stand(*events):
    standing = Standing()
    for event in events:
        standing.add(event)
    return standing


def test_a_run_without_events():
    found = stand()
    assert (found.phase, found.ended, found.epochs_done, found.epochs_of_run) == (None, None, 0, 0)
    assert found.seconds_left() is None


def test_a_candidate_in_training():
    found = stand(begin(), epoch(0, 2.0), epoch(1, 4.0))
    assert (found.phase, found.candidate, found.round) == ("training", 0, None)
    assert found.curve.losses == [1.0, 0.5]
    assert found.curve.scores == [50.0, 51.0]
    assert (found.epochs_done, found.epochs_of_run) == (2, 60)
    assert found.at == 4.0


def test_a_candidate_that_stopped_early_is_done():
    found = stand(begin(), epoch(0, 2.0), {"event": "candidate", "candidate": 0, "at": 2.5})
    assert found.epochs_done == 10


def test_candidates_that_are_trained_at_the_same_time():
    events = [epoch(0, 1.0, 0), epoch(0, 1.1, 1), epoch(1, 2.0, 0), epoch(1, 2.1, 1)]
    found = stand(begin(), *events)
    assert found.epochs_done == 4
    assert found.candidate == 1
    assert found.curve.losses == [1.0, 0.5]


def test_pruning_and_fine_tuning():
    found = stand(begin(), epoch(0, 2.0), pruning({"fc1": 40, "fc2": 20}))
    assert (found.phase, found.candidate, found.epochs_done) == ("pruning", 1, 20)
    assert found.sizes == {"fc1": 40, "fc2": 20}
    chosen = {"event": "chosen", "candidate": 0, "at": 31.0}
    found = stand(begin(), chosen, epoch(0, 32.0, round=0), epoch(1, 34.0, round=0))
    assert (found.phase, found.round) == ("fine-tuning", 0)
    assert len(found.curve.losses) == 2
    found.add({"event": "round", "round": 0, "score": 1.0, "kept": True, "at": 35.0})
    found.add(epoch(0, 36.0, round=1))
    assert (found.round, len(found.curve.losses)) == (1, 1)


def test_a_task_that_has_ended():
    found = stand(begin(), pruning({"fc1": 40, "fc2": 20}), ended())
    assert found.phase is None
    assert found.claimed == {"fc1": [4], "fc2": [2]}
    assert [(task.task, task.score, task.seconds) for task in found.learnt] == [
        ("task 1", 88.0, 50.0)
    ]
    # The sizes are what is free and what was claimed before.
    found.add(begin(2, 50.0))
    found.add(pruning({"fc1": 36, "fc2": 118}, at=80.0))
    assert found.sizes == {"fc1": 40, "fc2": 120}
    found.add({"event": "evaluation", "scores": [88.0, None, "nan"], "at": 90.0})
    assert found.scores[:2] == [88.0, None]
    assert math.isnan(found.scores[2])


def test_a_baseline_claims_nothing():
    found = stand(begin(), ended(new={}, test_score=None))
    assert (found.claimed, found.sizes, found.learnt[0].score) == ({}, {}, None)


def test_a_task_that_is_taken_up_again_goes_on():
    found = stand(begin(at=5.0), epoch(0, 7.0), epoch(1, 9.0), begin(at=9.5, event="resumed"))
    assert found.epochs_done == 2
    found.add(epoch(2, 12.0))
    assert found.curve.losses == [1.0, 0.5, 1 / 3]
    # Epochs that come again take the place of the old ones.
    found.add(epoch(1, 13.0, loss=9.0))
    assert found.curve.losses == [1.0, 9.0]
    assert stand(begin(2, 9.0, event="resumed"), epoch(0, 11.0)).epochs_done == 21


def test_how_a_run_ends():
    finished = stand(begin(3), ended(3), {"event": "finished", "num_tasks": 3, "at": 60.0})
    assert (finished.ended, finished.epochs_done, finished.seconds_left()) == ("finished", 60, 0.0)
    failed = stand(begin(), {"event": "failed", "reason": "diverged", "at": 1.0})
    assert (failed.ended, failed.reason) == ("failed", "diverged")
    failed.add(begin())
    assert (failed.ended, failed.reason) == (None, None)
    stopped = stand(begin(), epoch(0, 1.0), {"event": "stopped", "at": 1.0})
    assert stopped.ended == "stopped"
    full = stand(begin(), ended(), begin(2), {"event": "full", "reason": "no neuron", "at": 1.0})
    assert (full.full, full.ended) == ("no neuron", None)
    assert full.seconds_left() == 0.0


def test_time_left_in_the_first_task_is_by_its_epochs():
    found = stand(begin(at=10.0), epoch(0, 12.0), epoch(1, 14.0))
    assert found.is_lower_bound
    assert found.seconds_left() == pytest.approx(58 * 2.0)
    assert stand(begin(at=10.0)).seconds_left() is None


def test_time_left_is_by_what_tasks_took_as_a_whole():
    found = stand(begin(), epoch(0, 2.0), ended(at=50.0), begin(2, 50.0))
    assert not found.is_lower_bound
    assert found.seconds_left() == pytest.approx(100.0)
    # Of 50 seconds, 2 are gone; by its epochs alone the task would take less.
    found.add(epoch(0, 52.0))
    assert found.seconds_left() == pytest.approx(48.0 + 50.0)
    # A task that is slower than the others takes as long as its epochs say.
    found.add(epoch(1, 70.0))
    assert found.seconds_left() == pytest.approx(18 * 10.0 + 50.0)


def test_time_left_after_training_is_what_tasks_usually_take():
    found = stand(begin(), ended(at=50.0), begin(2, 50.0), epoch(0, 52.0), pruning({}, at=60.0))
    assert found.seconds_left() == pytest.approx(40.0 + 50.0)
    found.at = 500.0
    assert found.seconds_left() == pytest.approx(50.0)
    first = stand(begin(), epoch(0, 2.0), pruning({}, at=40.0))
    assert first.seconds_left() == pytest.approx(40 * 2.0)


def test_the_first_task_and_those_long_ago_do_not_count():
    events = []
    for number, (start, end) in enumerate([(0, 1000), (1000, 1900), (1900, 1910)], 1):
        events += [begin(number, float(start)), ended(number, float(end))]
    plan = {"epochs_of_run": 140}
    for number in (4, 5):
        start = 1900.0 + 10 * (number - 3)
        events += [begin(number, start, **plan), ended(number, start + 10, **plan)]
    found = stand(*events, begin(6, 1930.0, **plan))
    assert found.seconds_left() == pytest.approx(2 * 10.0)


def test_tasks_without_epochs_of_their_own_say_nothing_about_time():
    # The joint baseline collects all tasks before it trains.
    events = [begin(1, num_candidates=0), ended(1, 0.1), begin(2, 0.1, num_candidates=0)]
    found = stand(*events, ended(2, 0.2), begin(3, 0.2, num_candidates=1, num_epochs=20))
    assert found.seconds_left() is None
    found.add(epoch(0, 10.2, num_epochs=20))
    assert found.seconds_left() == pytest.approx(190.0)
    assert found.epochs_done == 41


def tuned(*events, rounds=2):
    """A run of three tasks with four epochs each, and forty in each round of fine-tuning."""
    found = Standing(tuning=Tuning(rounds, 40))
    for event in events:
        found.add(event)
    return found


def short(number=1, at=0.0):
    plan = {"num_candidates": 1, "num_epochs": 4, "epochs_of_run": 12}
    return begin(number, at, epochs_before=4 * (number - 1), **plan)


def round_ended(number, at, *, kept=True):
    return {"event": "round", "round": number, "score": 1.0, "kept": kept, "at": at}


def test_epochs_of_fine_tuning_count():
    trained = [epoch(number, 2.0 * (number + 1), num_epochs=4) for number in range(4)]
    found = tuned(short())
    assert (found.epochs_done, found.epochs_of_run) == (0, 3 * 84)
    assert tuned().epochs_done == tuned().epochs_of_run == 0
    found = tuned(short(), *trained)
    assert found.epochs_done == 4
    assert found.seconds_left() == pytest.approx((84 * 3 - 4) * 2.0)
    for event in (pruning({}, 8.0), epoch(0, 9.0, round=0, num_epochs=40, seconds=1.0)):
        found.add(event)
    assert found.epochs_done == 5
    # An epoch of the round takes a second, and one of a later task what one has taken here.
    assert found.seconds_left() == pytest.approx(79 * 1.0 + 2 * 84 * 9.0 / 5)
    found.add(round_ended(0, 50.0))
    assert found.epochs_done == 44
    found.add(epoch(9, 60.0, round=1, num_epochs=40))
    assert found.epochs_done == 45
    found.add(round_ended(1, 90.0))
    assert found.epochs_done == 84
    found.add(ended(at=100.0))
    found.add(short(2, 100.0))
    assert (found.epochs_done, found.seconds_left()) == (84, pytest.approx(200.0))
    end = {"event": "finished", "num_tasks": 3, "at": 120.0}
    assert tuned(short(3), ended(3), end).epochs_done == 3 * 84


def test_rounds_that_are_taken_back_are_not_waited_for():
    first = [short(), epoch(39, 40.0, round=0, seconds=1.0), round_ended(0, 40.0, kept=False)]
    found = tuned(*first)
    assert found.epochs_done == 84
    assert found.seconds_left() == pytest.approx(2 * 40.0)
    # The next task is taken to have as many rounds, and those under way to go on to their end.
    found = tuned(*first, ended(at=42.0), short(2, 42.0), epoch(3, 46.0), pruning({}, 46.0))
    assert found.seconds_left() == pytest.approx(40 * 1.0 + 42.0)
    found.add(epoch(0, 47.0, round=0, seconds=2.0))
    assert found.seconds_left() == pytest.approx(39 * 2.0 + 42.0)
    found.add(round_ended(0, 125.0))
    assert found.seconds_left() == pytest.approx(42.0)
    found.add(epoch(0, 127.0, round=1, seconds=2.0))
    assert found.seconds_left() == pytest.approx(39 * 2.0 + 42.0)


def test_time_left_is_a_bound_while_no_task_has_ended():
    def bounds(found):
        return found.is_lower_bound, found.is_upper_bound

    tuning = epoch(0, 9.0, round=0)
    assert bounds(stand(begin())) == (True, False)
    assert bounds(tuned(short())) == (False, False)
    assert bounds(tuned(short(), tuning)) == (False, True)
    assert bounds(tuned(short(), tuning, rounds=1)) == (False, False)
    assert bounds(tuned(short(), ended(), short(2), tuning)) == (False, False)


def test_the_fine_tuning_that_a_config_asks_for():
    learner = {"learner": {"fine_tuning": {"epochs": 40, "rounds": 2, "lr": 0.1}}}
    assert tuning_of(learner) == tuning_of({**learner, "method": "clnp"}) == Tuning(2, 40)
    assert tuning_of(learner).most == 80
    none = ({}, {"learner": {"fine_tuning": None}}, {**learner, "method": "ewc"})
    assert [tuning_of(config).most for config in none] == [0, 0, 0]


def test_the_retraining_of_a_baseline_is_a_round_of_fine_tuning():
    learner = {"learner": {"fine_tuning": {"epochs": 40, "rounds": 2, "lr": 0.1}}}
    packnet = {**learner, "method": "packnet", "baseline": {"prune": 0.5, "retrain_epochs": 7}}
    assert tuning_of(packnet) == Tuning(1, 7)
    # Settings of somebody's own may be anything.
    for settings in (None, "mine.Settings", {"retrain_epochs": 0}, {"retrain_epochs": "few"}):
        assert tuning_of({**packnet, "baseline": settings}) == Tuning()


@pytest.mark.parametrize(
    "event",
    [
        {"event": "epoch"},
        {"event": "epoch", "candidate": "x", "number": 1},
        {"event": "begin", "task": "a"},
        {"event": "task", "task": "a", "test_score": "?", "new": {}},
        {"event": "pruning", "candidate": 0, "plan": None},
        {"event": "chosen", "at": "soon"},
        {"event": "chosen", "candidate": 0, "at": "inf"},
        begin(num_tasks=float("inf")),
        begin(num_candidates=None),
        {"no": "event"},
    ],
)
def test_a_damaged_event_is_an_error_that_leaves_what_was_known(event):
    found = stand(begin(), epoch(0, 2.0))
    with pytest.raises(DAMAGED):
        found.add(event)
    assert (found.phase, found.curve.losses, found.epochs_done) == ("training", [1.0], 1)


def test_events_that_are_not_known_are_passed_over():
    found = stand(begin(), {"event": "sunrise", "at": 3.0}, {"event": ["x"], "at": 4.0})
    assert (found.phase, found.at) == ("training", 4.0)


def test_scores_that_are_not_finite_are_text_in_the_file():
    found = stand(begin(), epoch(0, 1.0, loss="nan", score="-inf"))
    assert math.isnan(found.curve.losses[0])
    assert found.curve.scores == [-math.inf]
