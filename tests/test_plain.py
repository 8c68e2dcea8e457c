import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from clnp.plain import Tree, UnreadableError, flat, omitted, read, to_json, to_plain


@dataclass(frozen=True)
class Inner:
    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    number: float = 0.0
    count: int | None = None
    on: bool = False
    parts: tuple[Inner, ...] = ()
    rows: tuple[tuple[float | None, ...], ...] = ()
    names: Sequence[str] = ()
    either: float | Mapping[str, float] = 0.0
    tree: Tree = field(default_factory=dict)
    rare: str | None = omitted()


NUMBERS = st.floats(allow_nan=False)
WHOLE = st.integers(-(2**53) + 1, 2**53 - 1)
INNER = st.builds(Inner, st.text(), st.dictionaries(st.text(), WHOLE))
OUTER = st.builds(
    Outer,
    INNER,
    NUMBERS,
    st.none() | WHOLE,
    st.booleans(),
    st.lists(INNER).map(tuple),
    st.lists(st.lists(st.none() | NUMBERS).map(tuple)).map(tuple),
    st.lists(st.text()).map(tuple),
    NUMBERS | st.dictionaries(st.text(), NUMBERS),
    st.dictionaries(st.text(), st.none() | st.booleans() | st.text()),
    st.none() | st.text(),
)


@given(OUTER)
def test_a_record_is_read_as_it_was_written(record):
    assert read(Outer, json.loads(to_json(record))) == record


def test_a_field_with_its_default_can_be_omitted():
    plain = to_plain(Outer(Inner("a")))
    assert "rare" not in plain
    assert plain["count"] is None
    assert to_plain(Outer(Inner("a"), rare="b"))["rare"] == "b"


def test_numbers_that_are_not_finite_are_text_in_json():
    value = {"a": [1.0, math.inf], 2: (-math.inf, None, "x")}
    assert json.loads(to_json(value)) == {"a": [1.0, "inf"], "2": ["-inf", None, "x"]}
    assert math.isnan(read(Outer, {"inner": {"name": ""}, "number": "nan"}).number)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ({"later version": 1}, {}),
        ({"number": "x"}, {}),
        ({"number": True}, {}),
        ({"number": 10**400}, {}),
        ({"count": 1.5e300}, {}),
        ({"count": 3.0}, {"count": 3}),
        ({"on": 1}, {}),
        ({"tree": [1]}, {}),
        ({"parts": {}}, {}),
        ({"parts": [7, {"name": "b"}, {}]}, {"parts": (Inner("b"),)}),
        (
            {"parts": [{"name": "b", "sizes": {"x": 1, "y": "?"}}]},
            {"parts": (Inner("b", {"x": 1}),)},
        ),
        ({"rows": [[1, "?", None], None]}, {"rows": ((1.0, None, None),)}),
        ({"either": {"a": "2"}}, {"either": {"a": 2.0}}),
    ],
)
def test_damaged_values_are_left_out(damage, expected):
    assert read(Outer, {"inner": {"name": "a"}, **damage}) == Outer(Inner("a"), **expected)


@pytest.mark.parametrize("data", [None, 3, [], {}, {"inner": 3}, {"inner": {"name": None}}])
def test_a_record_without_a_required_field_is_an_error(data):
    with pytest.raises(UnreadableError):
        read(Outer, data)


def test_nested_values_have_dotted_names():
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}
    assert flat({}) == {}


@pytest.mark.parametrize("number", [2**64, -(2**64), 10**400])
def test_integers_that_no_run_writes_are_unreadable(number):
    with pytest.raises(UnreadableError):
        read(Counted, {"count": number})
    assert read(Counted, {"count": 2**64 - 1}).count == 2**64 - 1


@dataclass(frozen=True)
class Counted:
    count: int
