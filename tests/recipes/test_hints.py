from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

import pytest

from clnp.recipes.schema import inner_hint, kind_of, recipe_fields


@dataclass(frozen=True)
class Table:
    x: int = 0


@dataclass(frozen=True)
class Permuted:
    kind: Literal["permuted"] = "permuted"


@dataclass(frozen=True)
class Split:
    kind: Literal["split"]


@dataclass(frozen=True)
class Fields:
    whole: int
    number: float
    flag: bool
    text: str
    choice: Literal["a", "b"]
    only: Literal["a"]
    table: Table
    anything: Any
    numbers: tuple[float, ...]
    flags: tuple[bool, ...]
    lists: tuple[tuple[int, ...], ...]
    things: tuple[Any, ...]
    choices: tuple[Literal["a", "b"] | None, ...]
    tables: tuple["Table | Split", ...]
    texts: Mapping[str, str]
    options: Mapping[str, Any]
    layers: dict[str, Table]
    mappings: tuple[Mapping[str, float], ...]
    number_or_table: float | Mapping[str, float]
    three: int | str | tuple[int, ...]
    two_tables: Permuted | Split
    optional: Optional[int]  # noqa: UP045
    optional_flag: bool | None
    optional_text: str | None
    text_or_function: str | Callable[[int], int]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("whole", "a whole number"),
        ("number", "a number"),
        ("flag", "true or false"),
        ("text", "text"),
        ("choice", "one of 'a', 'b'"),
        ("only", "'a'"),
        ("table", "a table"),
        ("anything", "any value"),
        ("numbers", "a list of numbers"),
        ("flags", "a list of true or false"),
        ("lists", "a list of lists of whole numbers"),
        ("things", "a list"),
        ("choices", "a list of one of 'a', 'b' or \"none\""),
        ("tables", "a list of tables"),
        ("texts", "a table of texts"),
        ("options", "a table"),
        ("layers", "a table of tables"),
        ("mappings", "a list of tables of numbers"),
        ("number_or_table", "a number or a table of numbers"),
        ("three", "a whole number, text or a list of whole numbers"),
        ("two_tables", "a table"),
        ("optional", 'a whole number or "none"'),
        ("optional_flag", 'true, false or "none"'),
        ("optional_text", 'text or "none"'),
        ("text_or_function", "text"),
    ],
)
def test_a_hint_is_said_in_words(name, words):
    assert recipe_fields(Fields)[name].hint.words == words


def test_every_hint_above_is_a_key():
    assert list(recipe_fields(Fields)) == list(Fields.__dataclass_fields__)


@dataclass(frozen=True)
class NoKeys:
    function: Callable[[int], int]
    maybe: Callable[[int], int] | None = None
    functions: tuple[Callable[[int], int], ...] = ()
    by_name: Mapping[str, Callable[[int], int]] = field(default_factory=dict)
    by_number: Mapping[int, str] = field(default_factory=dict)
    pair: tuple[int, int] = (0, 0)
    raw: bytes = b""
    derived: int = field(init=False, default=3)


def test_what_toml_cannot_hold_is_no_key():
    assert dict(recipe_fields(NoKeys)) == {}


@dataclass(frozen=True)
class Nones:
    a: int | None = None
    b: int | None = 3
    c: str | None = None
    d: str | None = "x"
    e: str | None = field(default_factory=str)
    f: Literal["none", "some"] | None = None
    g: tuple[str | None, ...] = ()
    h: tuple[int | None, ...] = ()


def test_the_text_none_is_none_unless_it_may_be_a_text():
    reads = {name: known.hint.reads_none for name, known in recipe_fields(Nones).items()}
    assert reads == dict(a=True, b=True, c=False, d=True, e=True, f=False, g=False, h=False)
    assert inner_hint(tuple[str | None, ...]).reads_none is False
    assert inner_hint(Mapping[str, int | None]).reads_none is True


def test_defaults_are_those_of_the_dataclass():
    fields = recipe_fields(Nones)
    assert (fields["b"].required, fields["b"].default) == (False, 3)
    assert (fields["e"].required, fields["e"].default) == (False, "")
    assert recipe_fields(Fields)["whole"].required


def test_a_kind_is_a_literal_of_one_value():
    assert (kind_of(Permuted), kind_of(Split), kind_of(Table)) == ("permuted", "split", None)
    assert recipe_fields(Fields)["two_tables"].hint.kinds == {"permuted": Permuted, "split": Split}
    assert recipe_fields(Fields)["table"].hint.kinds == {}
    assert inner_hint(tuple[Table | Split, ...]).kinds == {}


@pytest.mark.parametrize(
    ("name", "value", "fitting"),
    [
        ("whole", 3, [int]),
        ("whole", True, []),
        ("whole", 3.0, []),
        ("number", 3, [float]),
        ("number", float("inf"), [float]),
        ("number", float("nan"), []),
        ("number", 10**400, []),
        ("number", False, []),
        ("flag", 1, []),
        ("choice", "c", []),
        ("options", {}, [Mapping[str, Any]]),
        ("options", [], []),
        ("numbers", {}, []),
        ("three", [], [tuple[int, ...]]),
        ("anything", [], [Any]),
    ],
)
def test_members_are_told_apart_by_the_type_of_a_value(name, value, fitting):
    assert recipe_fields(Fields)[name].hint.fitting(value) == fitting


def test_a_literal_is_not_any_value_that_equals_it():
    member = Literal[1, "a"]
    hint = inner_hint(tuple[member, ...])
    assert (hint.fitting(1), hint.fitting("a")) == ([member], [member])
    assert (hint.fitting(True), hint.fitting(1.0)) == ([], [])


def test_a_whole_number_stays_one_where_it_may():
    assert inner_hint(tuple[float | int, ...]).fitting(3) == [int]
    assert inner_hint(tuple[float | int, ...]).fitting(3.5) == [float]
