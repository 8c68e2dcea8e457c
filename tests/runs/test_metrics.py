import pytest

from clnp.runs.metrics import average, backward_transfer, forgetting, forward_transfer

SCORES = [[90.0], [70.0, 80.0], [75.0, 60.0, 95.0]]


def test_the_average_is_that_of_the_last_row():
    assert average(SCORES) == pytest.approx((75 + 60 + 95) / 3)


def test_forgetting_counts_from_the_best_that_a_task_ever_was():
    assert forgetting(SCORES) == pytest.approx(((90 - 75) + (80 - 60)) / 2)
    rising = [[50.0], [70.0, 80.0], [60.0, 80.0, 90.0]]
    assert forgetting(rising) == pytest.approx(((70 - 60) + 0) / 2)
    assert backward_transfer(rising) == pytest.approx(((60 - 50) + 0) / 2)


def test_backward_transfer_counts_from_when_a_task_was_learnt():
    assert backward_transfer(SCORES) == pytest.approx(((75 - 90) + (60 - 80)) / 2)


def test_forward_transfer_is_the_gain_over_learning_alone():
    assert forward_transfer(SCORES, [1.0, 85.0, 90.0]) == pytest.approx(((80 - 85) + (95 - 90)) / 2)


def test_one_task_forgets_and_transfers_nothing():
    for metric in (forgetting, backward_transfer):
        assert metric([[90.0]]) == 0.0
    assert forward_transfer([[90.0]], [80.0]) == 0.0


def test_what_cannot_be_known_is_none():
    joint = [[None], [None, None], [75.0, 60.0, 95.0]]
    assert average(joint) == pytest.approx(230 / 3)
    assert forgetting(joint) is None
    assert backward_transfer(joint) is None
    assert forward_transfer(joint, [1.0, 2.0, 3.0]) is None


def test_of_two_tasks_that_are_learnt_together_none_helps_the_other():
    joint = [[None], [75.0, 60.0]]
    assert forward_transfer(joint, [70.0, 50.0]) is None
    # A first task without test data was learnt all the same.
    assert forward_transfer([[None], [None, 60.0]], [None, 50.0]) == 10.0
