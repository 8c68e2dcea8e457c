import math

import pytest

from clnp.plain import to_plain
from clnp.records import Metrics
from clnp.runs.metrics import (
    average,
    backward_transfer,
    forgetting,
    forward_transfer,
    metrics_of,
)

SCORES = [[90.0], [70.0, 80.0], [75.0, 60.0, 95.0]]


def test_the_average_is_that_of_the_last_row():
    assert average(SCORES) == pytest.approx((75 + 60 + 95) / 3)


def test_forgetting_counts_from_the_best_score_of_a_task():
    assert forgetting(SCORES) == pytest.approx(((90 - 75) + (80 - 60)) / 2)
    rising = [[50.0], [70.0, 80.0], [60.0, 80.0, 90.0]]
    assert forgetting(rising) == pytest.approx(((70 - 60) + 0) / 2)
    assert backward_transfer(rising) == pytest.approx(((60 - 50) + 0) / 2)


def test_backward_transfer_counts_from_the_end_of_a_task():
    assert backward_transfer(SCORES) == pytest.approx(((75 - 90) + (60 - 80)) / 2)


def test_forward_transfer_is_the_gain_over_learning_alone():
    assert forward_transfer(SCORES, [1.0, 85.0, 90.0]) == pytest.approx(((80 - 85) + (95 - 90)) / 2)


def test_one_task_forgets_and_transfers_nothing():
    for metric in (forgetting, backward_transfer):
        assert metric([[90.0]]) == 0.0
    assert forward_transfer([[90.0]], [80.0]) == 0.0


def test_metrics_of_unknown_scores_are_none():
    joint = [[None], [None, None], [75.0, 60.0, 95.0]]
    assert average(joint) == pytest.approx(230 / 3)
    assert forgetting(joint) is None
    assert backward_transfer(joint) is None
    assert forward_transfer(joint, [1.0, 2.0, 3.0]) is None


def test_tasks_that_are_learned_together_have_no_forward_transfer():
    joint = [[None], [75.0, 60.0]]
    assert forward_transfer(joint, [70.0, 50.0]) is None
    # The first task has no test data, but was learned first.
    assert forward_transfer([[None], [None, 60.0]], [None, 50.0]) == 10.0


def test_all_metrics_of_a_run():
    found = metrics_of(SCORES, [1.0, 85.0, 90.0])
    assert found.average == average(SCORES)
    assert found.forgetting == forgetting(SCORES)
    assert found.backward_transfer == backward_transfer(SCORES)
    assert found.forward_transfer == 0.0
    # Nothing is known of tasks that were not learned alone.
    assert list(to_plain(metrics_of(SCORES))) == ["average", "forgetting", "backward_transfer"]
    assert metrics_of(SCORES, [1.0]).forward_transfer is None


@pytest.mark.parametrize("scores", [[], [[]], [[90.0], [70.0]], [[90.0, 80.0]]])
def test_no_scores_or_damaged_ones_have_no_metrics(scores):
    assert metrics_of(scores) == Metrics()


def test_scores_beyond_all_floats_have_no_mean():
    assert math.isnan(average([[math.inf], [math.inf, -math.inf]]))
    assert math.isnan(average([[1e308], [1.7e308, 1.7e308]]))
