import datetime
import tomllib

import pytest
from hypothesis import given, strategies as st

from clnp.errors import RecipeError
from clnp.recipes.toml import Inline, document_text, dotted, key_text, shown, value_text

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SCALARS = (
    st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dates()
    | st.times()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (1e-5, "1e-05"),
        (1e16, "1e+16"),
        (3.0, "3.0"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        ('a "b" \\ c', '"a \\"b\\" \\\\ c"'),
        ("two\nlines\ttab\x00\x7f", '"two\\nlines\\ttab\\u0000\\u007f"'),
        ("Größe 粒", '"Größe 粒"'),
        ([1, [2.5], "x"], '[1, [2.5], "x"]'),
        ({"a": 1, "b.c": {}}, '{ a = 1, "b.c" = {} }'),
        (datetime.date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_a_value_is_written_as_toml(value, text):
    assert value_text(value) == text
    assert tomllib.loads(f"x = {text}") == {"x": value}


@pytest.mark.parametrize("key", ["a", "a-b_3", "0"])
def test_a_plain_key_has_no_quotes(key):
    assert key_text(key) == key


@pytest.mark.parametrize("key", ["", "a.b", "a b", "ä", 'a"b', "a\n"])
def test_any_other_key_has_quotes(key):
    assert tomllib.loads(f"{key_text(key)} = 1") == {key: 1}
    assert key_text(key).startswith('"')


def test_a_path_is_written_with_dots():
    assert dotted(["alpha", "layer1.0", 2]) == 'alpha."layer1.0".2'


def test_a_long_value_is_cut_in_a_message():
    assert shown("x" * 58) == '"' + "x" * 58 + '"'
    assert shown("x" * 59) == '"' + "x" * 56 + "..."


def test_what_toml_has_no_word_for_is_refused():
    with pytest.raises(RecipeError) as caught:
        value_text([None])
    assert str(caught.value) == "a recipe cannot hold a NoneType: None"


def test_a_document_has_plain_keys_first_and_then_tables():
    data = {
        "table": {"x": 1, "inner": {"y": 2}, "z": 3},
        "only": {"tables": {"y": 2}},
        "empty": {},
        "seed": 0,
        "alpha": Inline({"layer1.0": 1e-5}),
        "parts": [{"kind": "a", "inner": {"y": 2}}, {}, {"parts": [{"x": 1}]}],
        "mixed": [{"x": 1}, 3],
        "none": [],
    }
    text = document_text(data, header="What this is.\n\nMore.")
    assert (
        text
        == """\
# What this is.
#
# More.

seed = 0
alpha = { "layer1.0" = 1e-05 }
mixed = [{ x = 1 }, 3]
none = []

[table]
x = 1
z = 3

[table.inner]
y = 2

[only.tables]
y = 2

[empty]

[[parts]]
kind = "a"

[parts.inner]
y = 2

[[parts]]

[[parts]]

[[parts.parts]]
x = 1
"""
    )
    assert tomllib.loads(text) == data


def test_a_document_of_nothing_is_empty():
    assert document_text({}).strip() == ""


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_document_reads_back_equal(data):
    assert tomllib.loads(document_text(data)) == data
