import pytest

from clnp.ledger import Ledger
from clnp.outlook import Forecast, forecast


def ledger(*claims, **sizes):
    """A ledger in which the tasks made these claims."""
    made = Ledger(sizes)
    for number, claim in enumerate(claims):
        made = made.claim(f"task {number}", claim)
    return made


def expected(*claims, **sizes):
    return forecast(ledger(*claims, **sizes).capacity())


def test_the_group_with_the_least_room_sets_the_number():
    assert expected({"a": 10, "b": 3}, a=100, b=20) == Forecast(5, "b")
    assert expected({"a": 10, "b": 1}, a=100, b=20) == Forecast(9, "a")


def test_a_part_of_a_task_does_not_fit():
    assert expected({"a": 10}, a=29) == Forecast(1, "a")
    assert expected({"a": 10}, a=30) == Forecast(2, "a")
    assert expected({"a": 10}, a=19) == Forecast(0, "a")
    assert expected({"a": 10}, a=10) == Forecast(0, "a")


def test_the_average_of_several_tasks_need_not_be_whole():
    # After the first, 3 neurons in 2 tasks, and 6 are left.
    assert expected({"a": 7}, {"a": 1}, {"a": 2}, a=16) == Forecast(4, "a")


def test_only_the_last_three_tasks_count():
    claims = [{"a": 5}, {"a": 50}, {"a": 1}, {"a": 2}, {"a": 3}]
    assert expected(*claims, a=105) == Forecast(22, "a")
    assert expected(*claims[:4], a=105) == Forecast(47 * 3 // 53, "a")


def test_the_first_task_counts_while_it_is_the_only_one():
    assert expected({"a": 50}, a=100) == Forecast(1, "a")
    assert expected({"a": 50}, {"a": 5}, a=100) == Forecast(9, "a")


def test_the_group_that_is_fuller_is_named_where_as_many_tasks_fit():
    assert expected({"a": 5, "b": 5}, a=7, b=5) == Forecast(0, "b")


def test_a_group_that_was_not_claimed_sets_no_limit():
    assert expected({"a": 20, "b": 1}, *[{"b": 1}] * 3, a=20, b=10) == Forecast(6, "b")


def test_there_is_no_limit_where_nothing_was_claimed():
    assert expected({"a": 5}, {}, {}, {}, a=20) == Forecast(None, None)
    assert expected(a=20) == Forecast(None, None)


def test_the_first_of_two_equal_groups_is_named():
    assert expected({"b": 2, "a": 2}, b=10, a=10) == Forecast(4, "b")


@pytest.mark.parametrize(
    ("outlook", "text"),
    [
        (Forecast(None, None), "no limit in sight: the last tasks claimed no new neuron"),
        (Forecast(0, "fc2"), "no further task like the last would fit; fc2 is all but full"),
        (Forecast(1, "fc2"), "about 1 more task like the last would fit; fc2 fills up first"),
        (Forecast(7, "fc1"), "about 7 more tasks like the last would fit; fc1 fills up first"),
    ],
)
def test_a_forecast_is_a_sentence(outlook, text):
    assert str(outlook) == text
