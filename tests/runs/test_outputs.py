import math

import pytest
import torch

from clnp import LearnerConfig, Objective, Task
from clnp.records import TaskRecord
from clnp.runs.outputs import (
    agree,
    expected,
    is_known,
    score_and_digest,
    tolerance,
    with_outputs,
    with_outputs_elsewhere,
)
from clnp.training.objective import accuracy

CPU = torch.device("cpu")


def digest(predict, task):
    return score_and_digest(predict, task, LearnerConfig(), seed=0, device=CPU)


def test_a_task_has_the_score_and_digest_of_its_test_data():
    x, y = torch.eye(3), torch.tensor([0, 1, 0])
    task = Task("a", (x, y), test=(x, y))
    found = digest(lambda inputs, name: 2 * inputs, task)
    assert found[0] == pytest.approx(200 / 3)
    assert digest(lambda inputs, name: 2 * inputs, task) == found
    other = digest(lambda inputs, name: 3 * inputs, task)
    assert other[0] == found[0]
    assert other[1] != found[1]
    assert digest(lambda inputs, name: inputs, Task("a", (x, y))) is None


def test_outputs_are_compared_in_the_same_arithmetic():
    record = with_outputs(TaskRecord("t"), "a", "1")
    assert (record.outputs, record.arithmetic, record.unchanged) == ("1", "a", True)
    assert with_outputs(record, "a", "2").unchanged is False
    assert is_known(record, "a")
    assert not is_known(record, "b")
    assert expected(record, "b") is None
    record = with_outputs_elsewhere(record, "b", "3")
    assert (expected(record, "a"), expected(record, "b")) == ("1", "3")
    assert with_outputs(record, "b", "3").unchanged is True
    assert with_outputs(record, "b", "1").unchanged is False


def test_outputs_that_changed_before_stay_changed_elsewhere():
    record = TaskRecord("t", outputs="1", arithmetic="a", unchanged=False)
    record = with_outputs_elsewhere(record, "b", "3")
    assert is_known(record, "b")
    assert with_outputs(record, "b", "3").unchanged is False


def test_a_task_that_is_learned_later_has_the_arithmetic_of_that_time():
    record = with_outputs(TaskRecord("t"), "a", None)
    assert (record.outputs, record.arithmetic, record.unchanged) == (None, "a", None)
    assert with_outputs(record, "b", None).arithmetic == "a"
    record = with_outputs(record, "b", "1")
    assert (record.outputs, record.arithmetic, record.unchanged) == ("1", "b", True)


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


def test_two_samples_are_within_the_tolerance():
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
def test_the_tolerance_is_a_share_of_the_full_scale(objective, score, allowed):
    if isinstance(objective, dict):
        objective = Objective("own", torch.nn.functional.mse_loss, accuracy, **objective)
    assert tolerance(of_size(1000, objective), score) == pytest.approx(allowed)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("exact", [True, False])
def test_scores_that_are_not_finite_agree_with_themselves(exact):
    for task in (
        of_size(10),
        of_size(10, Objective("own", torch.nn.functional.mse_loss, accuracy)),
    ):
        for same in (NAN, INF, -INF):
            assert agree(task, same, same, exact=exact)
        for one, other in ((NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF), (INF, -INF), (NAN, INF)):
            assert not agree(task, one, other, exact=exact)
        assert tolerance(task, -INF) == 0.0


def test_a_missing_score_agrees_with_a_missing_one():
    assert agree(of_size(10), None, None, exact=False)
    assert not agree(of_size(10), None, 90.0, exact=False)
    assert not agree(of_size(10), 90.0, None, exact=False)
