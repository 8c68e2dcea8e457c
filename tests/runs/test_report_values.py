import math

import pytest
from clnp.runs.records import count, counts, flag, flat, mapping, mappings, number, sequence


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (2.5, 2.5), ("3", 3.0), ("inf", math.inf), (None, None), (True, None), ("x", None)],
)
def test_a_number_is_read_wherever_there_is_one(value, expected):
    assert number(value) == expected


def test_what_is_not_finite_is_text_in_a_file_and_still_a_number():
    assert math.isnan(number("nan"))
    assert number(10**400) is None
    assert number([1]) is None


@pytest.mark.parametrize(
    ("value", "expected"), [(3, 3), (0, 0), (-1, None), ("nan", None), (1e300, None), ({}, None)]
)
def test_a_count_is_whole_and_not_negative(value, expected):
    assert count(value) == expected


def test_what_is_of_another_type_is_empty():
    assert mapping([1]) == {}
    assert sequence("abc") == ()
    assert mappings([{"a": 1}, 2, None]) == [{"a": 1}]
    assert counts({"a": 1, "b": "x", "c": -1}) == {"a": 1}
    assert flag("true") is None
    assert flag(False) is False


def test_nested_objects_become_dotted_names():
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}
    assert flat({}) == {}
