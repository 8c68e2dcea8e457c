import json

import pytest
from hypothesis import given, strategies as st

from clnp.core.forecast import Forecast, forecast
from clnp.core.layers.ledger import Ledger
from clnp.errors import ArgumentError
from clnp.plain import read, to_json
from support.networks import example, learn, make


def ledger(*claims, **sizes):
    """A ledger in which the tasks made these claims."""
    made = Ledger(sizes)
    for number, claim in enumerate(claims):
        made = made.claim(f"task {number}", claim)
    return made


def expected(*claims, head=None, head_groups=(), **sizes):
    return forecast(ledger(*claims, **sizes).capacity(), head=head, head_groups=head_groups)


def limit(*claims, **options):
    """How many tasks fit, and what fills up first."""
    found = expected(*claims, **options)
    return found.num_tasks, found.bottleneck


def test_the_group_with_the_least_room_sets_the_number():
    assert limit({"a": 10, "b": 3}, a=100, b=20) == (5, "b")
    assert limit({"a": 10, "b": 1}, a=100, b=20) == (9, "a")


def test_a_part_of_a_task_does_not_fit():
    assert limit({"a": 10}, a=29) == (1, "a")
    assert limit({"a": 10}, a=30) == (2, "a")
    assert limit({"a": 10}, a=19) == (0, "a")
    assert limit({"a": 10}, a=10) == (0, "a")


def test_the_average_of_several_tasks_need_not_be_whole():
    # After the first, 3 neurons in 2 tasks, and 6 are left.
    assert limit({"a": 7}, {"a": 1}, {"a": 2}, a=16) == (4, "a")


def test_only_the_last_three_tasks_count():
    claims = [{"a": 5}, {"a": 50}, {"a": 1}, {"a": 2}, {"a": 3}]
    assert limit(*claims, a=105) == (22, "a")
    assert limit(*claims[:4], a=105) == (47 * 3 // 53, "a")
    assert expected(*claims, a=105).like == ("task 2", "task 3", "task 4")


def test_the_first_task_counts_while_it_is_the_only_one():
    assert limit({"a": 50}, a=100) == (1, "a")
    assert limit({"a": 50}, {"a": 5}, a=100) == (9, "a")


def test_the_group_that_is_fuller_is_named_where_as_many_tasks_fit():
    assert limit({"a": 5, "b": 5}, a=7, b=5) == (0, "b")


def test_a_group_that_was_not_claimed_sets_no_limit():
    claims = [{"a": 10, "b": 1}, *[{"b": 1}] * 3]
    assert limit(*claims, a=20, b=10) == (6, "b")
    assert expected(*claims, a=20, b=10).room == {"a": None, "b": 6.0}


def test_there_is_no_limit_where_nothing_was_claimed():
    assert limit({"a": 5}, {}, {}, {}, a=20) == (None, None)
    assert limit(a=20) == (None, None)


def test_a_group_that_was_full_before_the_last_task_sets_no_limit():
    claims = [{"a": 5, "b": 1}, {"a": 10, "b": 1}, {"a": 5, "b": 1}]
    found = expected(*claims, {"b": 1}, a=20, b=10)
    assert (found.num_tasks, found.bottleneck) == (6, "b")
    assert found.need == {"a": 0.0, "b": 1.0}
    assert "a is full, and the last tasks did without" in str(found)
    # The last task took what was left of it: one more like that does not fit.
    assert limit(*claims, a=20, b=10) == (0, "a")


def test_what_each_group_has_and_needs_is_told():
    found = expected({"a": 50}, {"a": 4, "b": 3}, {"a": 6, "b": 4}, a=90, b=14)
    assert found.free == {"a": 30, "b": 7}
    assert found.need == {"a": 5.0, "b": 3.5}
    assert found.room == {"a": 6.0, "b": 2.0}
    assert found.table().splitlines() == [
        "group  free  a task needs  room, in tasks",
        "a        30           5.0             6.0",
        "b         7           3.5             2.0",
    ]


def test_what_widening_buys():
    found = expected({}, {"a": 10, "b": 5}, a=140, b=25)
    assert (found.num_tasks, found.bottleneck) == (4, "b")
    assert str(found) == (
        "about 4 more tasks like the last would fit; b fills up first; "
        "widening by 5 in b would make room for 5"
    )


def test_groups_that_fill_up_together_are_widened_together():
    found = expected({}, {"a": 10, "b": 5, "c": 1}, a=45, b=24, c=10)
    assert (found.num_tasks, found.bottleneck) == (3, "a")
    assert found.widening(4) == {"a": 5, "b": 1}
    assert found.widening(5) == {"a": 15, "b": 6}
    assert str(found).endswith("; widening by 5 in a and 1 in b would make room for 4")


def test_many_groups_are_counted():
    names = [f"g{number}" for number in range(6)]
    found = expected({}, dict.fromkeys(names, 2), **dict.fromkeys(names, 3))
    assert "widening by 1 in g0, 1 in g1 and 4 in 4 others would make room for 1" in str(found)


def test_widening_is_what_a_number_of_tasks_lacks():
    # Seven neurons in three tasks: 7/3 of a neuron each, rounded only in the end.
    found = expected({}, {"a": 2}, {"a": 2}, {"a": 3}, a=10, b=4)
    assert found.free == {"a": 3, "b": 4}
    assert [found.widening(number) for number in range(5)] == [
        {},
        {},
        {"a": 2},
        {"a": 4},
        {"a": 7},
    ]
    again = read(Forecast, json.loads(to_json(found)))
    assert again.widening(3 * 10**6) == {"a": 7 * 10**6 - 3}


@pytest.mark.parametrize("number", [-1, 1.5, "3", True, None])
def test_a_number_of_tasks_that_makes_no_sense_is_refused(number):
    with pytest.raises(ArgumentError, match=r"num_tasks is .*. It must be a whole number, 0 or"):
        expected({"a": 1}, a=3).widening(number)


def test_before_a_task_has_ended_nothing_is_known():
    found = expected(a=3)
    assert found.like == ()
    assert str(found) == "nothing is known of what a task needs before the first has ended"
    with pytest.raises(ArgumentError, match=r"not known before one has ended\. Ask for a forecast"):
        found.widening(2)


@given(
    claims=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6
    ),
    spare=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)),
)
def test_exactly_so_many_tasks_fit(claims, spare):
    names = ("a", "b", "c")
    sizes = {
        name: sum(claim[place] for claim in claims) + spare[place]
        for place, name in enumerate(names)
    }
    found = expected(*[dict(zip(names, claim, strict=True)) for claim in claims], **sizes)
    if found.num_tasks is None:
        assert found.widening(1000) == {}
        return
    assert found.widening(found.num_tasks) == {}
    assert found.bottleneck in found.widening(found.num_tasks + 1)
    assert found.room[found.bottleneck] == min(r for r in found.room.values() if r is not None)
    assert read(Forecast, json.loads(to_json(found))) == found


@pytest.mark.parametrize(
    ("num_tasks", "bottleneck", "text"),
    [
        (None, None, "no limit in sight: the last tasks claimed no new neuron"),
        (0, "fc2", "no further task like the last would fit; fc2 is all but full"),
        (1, "fc2", "about 1 more task like the last would fit; fc2 fills up first"),
        (7, "fc1", "about 7 more tasks like the last would fit; fc1 fills up first"),
    ],
)
def test_a_forecast_is_a_sentence(num_tasks, bottleneck, text):
    outlook = Forecast(num_tasks, bottleneck, like=("a",))
    assert outlook.headline == str(outlook) == text


def test_a_full_network_goes_on_with_heads_if_it_has_several():
    full = [{"a": 3, "b": 2}, {"a": 1, "b": 2}]
    took = expected(*full, head="multi", a=4, b=4)
    assert str(took) == (
        "no further task like the last would fit; a is full; widening by 1 in a and 2 in b would "
        "make room for 1; tasks still learn a head on what the others have learned and on what "
        "is left"
    )
    heads = "no neuron is free; further tasks learn a head on what the others have learned"
    assert str(expected(*full, {}, head="multi", a=4, b=4)) == heads
    unknown = str(expected(*full, {}, a=4, b=4))
    assert unknown == heads.replace("further tasks", "tasks of a multi-head network")


def test_a_full_network_is_widened_by_what_tasks_took_before_it_was_full():
    claims = [{"a": 3, "b": 1}, {"a": 1, "b": 2}, {"b": 1}, {}, {}]
    took = expected(*claims, head="multi", a=4, b=4)
    assert took.num_tasks is None
    assert took.widening(2) == {"a": 2, "b": 3}
    assert took.room == {"a": 0.0, "b": 0.0}
    # While there is room somewhere, tasks that did without go on to do so.
    assert expected(*claims, head="multi", a=4, b=5).widening(2) == {}


def test_a_single_head_needs_new_neurons_where_it_reads():
    options = {"head": "single", "head_groups": ["b"], "a": 4, "b": 4}
    found = expected({"a": 3, "b": 2}, {"a": 1, "b": 2}, **options)
    assert (found.num_tasks, found.head_groups) == (0, ("b",))
    # Even a task that got along without any cannot be learned once none is left.
    without = expected({"a": 1, "b": 4}, {}, {}, {}, **options)
    assert (without.num_tasks, without.bottleneck) == (0, "b")
    assert without.widening(2) == {"b": 2}
    assert "b is full" in without.headline
    assert str(without).endswith("; a single head needs new neurons there")
    elsewhere = expected({"a": 3, "b": 1}, {"a": 1, "b": 1}, **options)
    assert str(elsewhere).endswith("; tasks can be learned as long as b has free neurons")


@pytest.mark.parametrize("head", ["multi", "single"])
def test_a_network_foretells_and_is_widened_by_it(head):
    net = make(head=head)
    assert net.forecast().like == ()
    x = example("mlp")
    learn(net, "a", x)
    learn(net, "b", x)
    found = net.forecast()
    assert found == forecast(
        net.capacity(), head=head, head_groups=["fc2"] if head == "single" else []
    )
    assert found.num_tasks is not None
    before = net.forecast().num_tasks
    net.widen(found.widening(before + 5))
    assert net.forecast().num_tasks == before + 5
    assert net.forecast().need == found.need
    net.verify()


def test_layers_that_have_numbers_for_names_can_be_told_from_numbers():
    took = expected({"0": 3, "3.1": 1}, {"0": 2, "3.1": 1}, **{"0": 8, "3.1": 5})
    assert str(took) == (
        "about 1 more task like the last would fit; layer 0 fills up first; widening by 1 in "
        "layer 0 would make room for 2"
    )
