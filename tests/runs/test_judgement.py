import math

import pytest
import torch

from clnp import LearnerConfig, Objective, Task
from clnp.runs.outputs import agree, expected, is_known, judge, note, note_elsewhere, tolerance
from clnp.training.objective import accuracy

CPU = torch.device("cpu")


def test_a_task_is_judged_by_its_test_data():
    x, y = torch.eye(3), torch.tensor([0, 1, 0])
    task = Task("a", (x, y), test=(x, y))
    found = judge(lambda inputs, name: 2 * inputs, task, LearnerConfig(), seed=0, device=CPU)
    score, digest = found
    assert score == pytest.approx(200 / 3)
    again = judge(lambda inputs, name: 2 * inputs, task, LearnerConfig(), seed=0, device=CPU)
    other = judge(lambda inputs, name: 3 * inputs, task, LearnerConfig(), seed=0, device=CPU)
    assert again == found
    assert other == (score, other[1])
    assert other[1] != digest
    without = Task("a", (x, y))
    assert judge(lambda inputs, name: inputs, without, LearnerConfig(), seed=0, device=CPU) is None


def test_outputs_are_held_against_those_of_the_same_arithmetic():
    record = {}
    note(record, "a", "1")
    assert record == {"outputs": "1", "arithmetic": "a", "unchanged": True}
    note(record, "a", "2")
    assert record["unchanged"] is False
    note(record, "a", "1")
    assert record["unchanged"] is True
    assert is_known(record, "a")
    assert not is_known(record, "b")
    assert expected(record, "b") is None
    note_elsewhere(record, "b", "3")
    assert (expected(record, "a"), expected(record, "b")) == ("1", "3")
    note(record, "b", "3")
    assert record["unchanged"] is True
    note(record, "b", "1")
    assert record["unchanged"] is False


def test_what_had_changed_before_stays_so_elsewhere():
    record = {"outputs": "1", "arithmetic": "a", "unchanged": False}
    note_elsewhere(record, "b", "3")
    assert is_known(record, "b")
    note(record, "b", "3")
    assert record["unchanged"] is False


def test_a_task_that_is_learnt_later_has_the_arithmetic_of_then():
    record = {}
    note(record, "a", None)
    assert record == {"outputs": None, "arithmetic": "a", "unchanged": None}
    note(record, "b", None)
    assert record["arithmetic"] == "a"
    note(record, "b", "1")
    assert record == {"outputs": "1", "arithmetic": "b", "unchanged": True}


def of_size(num_samples, objective="classification", *, one_by_one=False):
    x, y = torch.zeros(num_samples, 2), torch.zeros(num_samples)
    test = list(zip(x, y, strict=True)) if one_by_one else (x, y)
    return Task("a", (x, y), test=test, objective=objective)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_rounding_may_move_a_score_by_half_a_point_or_two_samples(one_by_one):
    assert tolerance(of_size(1000, one_by_one=one_by_one), 98.0) == 0.5
    few = of_size(40, one_by_one=one_by_one)
    assert tolerance(few, 98.0) == 5.0
    assert agree(few, 95.0, 90.0, exact=False)
    assert not agree(few, 95.0, 90.0, exact=True)
    assert not agree(few, 95.0, 89.9, exact=False)
    assert tolerance(Task("a", few.train), 98.0) == 0.5


def test_two_samples_are_within_what_two_samples_may_move():
    for count in range(3, 200):
        task = of_size(count)
        for right in range(count - 1):
            one, other = (100 * torch.tensor((right, right + 2)).double() / count).tolist()
            assert agree(task, one, other, exact=False)


@pytest.mark.parametrize(
    ("objective", "score", "allowed"),
    [
        ("regression", -3e6, 15000.0),
        ("multi-label", 0.4, 0.5),
        ({}, 0.9, 0.005),
        ({}, -0.2, 0.005),
        ({}, 80.0, 0.5),
        ({}, -4.0, 0.02),
        ({"highest": 1.0}, 0.1, 0.005),
        ({"highest": 0.0}, -0.01, 0.00005),
        ({"highest": 10.0}, 0.5, 0.05),
    ],
)
def test_rounding_may_move_a_score_by_a_share_of_what_it_is_a_part_of(objective, score, allowed):
    if isinstance(objective, dict):
        objective = Objective("own", torch.nn.functional.mse_loss, accuracy, **objective)
    assert tolerance(of_size(1000, objective), score) == pytest.approx(allowed)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("exact", [True, False])
def test_a_score_that_is_not_finite_stays_what_it_is(exact):
    for task in (
        of_size(10),
        of_size(10, Objective("own", torch.nn.functional.mse_loss, accuracy)),
    ):
        for same in (NAN, INF, -INF):
            assert agree(task, same, same, exact=exact)
        for one, other in ((NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF), (INF, -INF), (NAN, INF)):
            assert not agree(task, one, other, exact=exact)
        assert tolerance(task, -INF) == 0.0


def test_a_score_that_is_not_there_is_not_there_later_either():
    assert agree(of_size(10), None, None, exact=False)
    assert not agree(of_size(10), None, 90.0, exact=False)
    assert not agree(of_size(10), 90.0, None, exact=False)
