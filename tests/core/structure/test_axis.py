import numpy as np
import pytest
from hypothesis import given, strategies as st

from clnp.core.structure.axis import (
    STAND_IN,
    Segment,
    groups_of,
    has_input,
    num_entries,
    occupied,
    positions,
)

A, B, WIDE, INPUT = Segment("a", 4), Segment("b", 3), Segment("a", 4, span=2), Segment(None, 2)


def test_groups_are_listed_once_and_without_input():
    assert groups_of((A, INPUT, B, A)) == ["a", "b"]
    assert groups_of((INPUT,)) == []
    assert groups_of(()) == []


def test_input_is_seen():
    assert has_input((A, INPUT))
    assert not has_input((A, B))


def test_entries_count_the_neurons_stored_and_the_whole_input():
    assert num_entries((WIDE, INPUT, B), {"a": 3, "b": 1}) == 3 * 2 + 2 + 1
    assert num_entries((Segment(None, 3, span=4),), {}) == 12
    assert num_entries((), {"a": 3}) == 0


@pytest.mark.parametrize(
    ("axis", "layout", "view", "expected"),
    [
        ((A,), {"a": 4}, {"a": [2, 0]}, [2, 0]),
        ((WIDE, B), {"a": 2, "b": 3}, {"a": [1], "b": [0, 2]}, [2, 3, 4, 6]),
        ((A, INPUT, B), {"a": 2, "b": 3}, {"a": [0], "b": [1]}, [0, 2, 3, 5]),
        ((A, B, A), {"a": 2, "b": 1}, {"a": [1], "b": []}, [1, 4]),
        ((), {}, {}, []),
    ],
)
def test_positions_are_those_of_the_wanted_neurons(axis, layout, view, expected):
    found = positions(axis, layout, view)
    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_input_that_is_not_wanted_is_left_out_and_still_takes_room():
    axis, layout, view = (INPUT, A), {"a": 2}, {"a": [1]}
    assert positions(axis, layout, view, wants_input=False).tolist() == [3]


def test_input_that_is_not_stored_takes_no_room():
    axis, layout, view = (INPUT, A), {"a": 2}, {"a": [1]}
    found = positions(axis, layout, view, stores_input=False, wants_input=False)
    assert found.tolist() == [1]


def test_a_group_without_neurons_has_a_stand_in_where_that_is_asked_for():
    axis, layout, view = (WIDE, B), {"a": 0, "b": 2}, {"a": [], "b": [1]}
    assert positions(axis, layout, view).tolist() == [1]
    assert positions(axis, layout, view, stand_in=True).tolist() == [STAND_IN, STAND_IN, 1]


def test_input_that_is_not_wanted_has_no_stand_in():
    found = positions((INPUT, A), {"a": 1}, {"a": [0]}, wants_input=False, stand_in=True)
    assert found.tolist() == [2]


def test_a_negative_neuron_is_a_stand_in():
    assert positions((WIDE,), {"a": 2}, {"a": [-1, 1]}).tolist() == [STAND_IN, STAND_IN, 2, 3]


@pytest.mark.parametrize(
    ("layout", "counts_input", "expected"),
    [
        ({"a": 1, "b": 2}, True, None),
        ({"a": 0, "b": 2}, True, [(2, 4)]),
        ({"a": 1, "b": 0}, True, [(0, 4)]),
        ({"a": 0, "b": 0}, True, [(2, 2)]),
        ({"a": 1, "b": 2}, False, [(0, 2), (4, 2)]),
        ({"a": 0, "b": 0}, False, []),
    ],
)
def test_occupied_stretches_leave_out_stand_ins(layout, counts_input, expected):
    axis = (WIDE, INPUT, B)
    assert occupied(axis, layout, counts_input=counts_input) == expected


segments = st.builds(
    Segment, st.sampled_from(["a", "b", None]), st.integers(1, 3), st.integers(1, 3)
)
layouts = st.fixed_dictionaries({"a": st.integers(0, 4), "b": st.integers(0, 4)})


@given(st.lists(segments, max_size=4).map(tuple), layouts)
def test_all_neurons_of_a_layout_lie_at_all_positions(axis, layout):
    view = {group: range(count) for group, count in layout.items()}
    found = positions(axis, layout, view)
    assert found.tolist() == list(range(num_entries(axis, layout)))


@given(st.lists(segments, max_size=4).map(tuple), layouts)
def test_what_is_occupied_is_what_is_no_stand_in(axis, layout):
    view = {group: range(count) for group, count in layout.items()}
    shown = positions(axis, layout, view, stand_in=True)
    stretches = occupied(axis, layout)
    if stretches is None:
        stretches = [(0, len(shown))]
    real = [place for start, length in stretches for place in range(start, start + length)]
    assert np.flatnonzero(shown != STAND_IN).tolist() == real
