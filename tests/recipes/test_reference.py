from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from clnp.recipes.recipe import WIDTHS, Network, Recipe
from clnp.recipes.reference import (
    CHAIN,
    OWN_TRAINING,
    Key,
    keys,
    layers,
    markdown,
    reference,
    rows,
    sections,
)
from clnp.recipes.schema import build
from clnp.recipes.toml import parse
from clnp.training.config import LearnerConfig


@dataclass(frozen=True)
class Inner:
    choice: Literal["a", "b"] = "a"
    """One of
    two."""
    function: Callable[[int], int] | None = None


@dataclass(frozen=True)
class One:
    kind: Literal["one"]
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Many:
    kind: Literal["many"]
    parts: tuple["One | Many", ...]
    """The parts."""


@dataclass(frozen=True)
class Table:
    margin: float
    """A number."""
    patience: int | None = None
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    stream: One | Many = field(default_factory=lambda: One("one"))
    layers: Mapping[str, Inner] = field(default_factory=dict)


def test_keys_are_listed_depth_first_with_their_documentation():
    choice = ("", 'one of "a", "b"', '"a"', "One of two.")
    assert keys(Table) == [
        Key("margin", "", "a number", "", "A number."),
        Key("patience", "", 'a whole number or "none"', '"none"', ""),
        Key("inner.choice", *choice),
        Key("maybe", "", 'a table or "none"', '"none"', ""),
        Key("maybe.choice", *choice),
        Key("stream.kind", "one", '"one"', "", ""),
        Key("stream.classes", "one", "a list of whole numbers", "[]", ""),
        Key("stream.kind", "many", '"many"', "", ""),
        # Without the keys of a table inside a table of its class.
        Key("stream.parts", "many", "a list of tables", "", "The parts."),
        Key("layers", "", "a table of tables", "{}", ""),
        Key("layers.*.choice", *choice),
    ]


def test_a_class_without_source_has_no_documentation():
    names: dict[str, Any] = {"__name__": __name__, "dataclass": dataclass}
    exec("@dataclass\nclass Made:\n    x: int = 1\n    'lost'\n", names)
    assert keys(names["Made"]) == [Key("x", "", "a whole number", "1", "")]


def test_every_key_of_a_recipe_is_there_once_for_each_kind():
    listed = [(row["key"], row["kind"]) for row in rows()]
    # The training of a baseline has the keys of `learner.training`.
    repeated = {key.key for key in keys(Recipe) if OWN_TRAINING.match(key.key)}
    assert "methods.ewc.training.lr" in repeated
    own = [(key.key, key.kind) for key in keys(Recipe) if key.key not in repeated]
    assert sorted(listed) == sorted(own)
    assert len(set(listed)) == len(listed)
    assert {("seed", ""), ("stream.classes_per_task", "split"), ("network.widths", "")} < set(own)


def test_every_key_has_a_type_and_a_meaning_that_is_a_sentence():
    for row in rows():
        assert row["type"], row
        assert row["meaning"].endswith("."), row
        assert row["meaning"][0].isupper(), row
        assert "\n" not in row["meaning"], row


def test_defaults_are_those_of_the_dataclasses():
    found = {row["key"]: row["default"] for row in rows() if not row["kind"]}
    learner = LearnerConfig()
    assert found["learner.margin"] == str(learner.margin)
    assert found["learner.training.optimizer"] == f'"{learner.training.optimizer}"'
    assert found["learner.fine_tuning"] == '"none"'


def test_sections_are_the_tables_in_the_order_of_a_recipe():
    titles = list(sections())
    assert titles[:2] == ["At the top", '[stream] with kind = "permuted"']
    own = [title for title in titles if title.startswith("[learner.")]
    assert own == ["[learner.training]", "[learner.tasks.*]", "[learner.fine_tuning]"]
    assert titles.index("[learner.fine_tuning]") < titles.index("[methods.single]")
    assert {key.table for key in sections()["[learner]"]} == {"learner"}


@pytest.mark.parametrize("text", [reference(), markdown()], ids=["text", "markdown"])
def test_text_and_markdown_have_every_key_with_default_and_meaning(text):
    lines = iter(text.splitlines())
    for group in sections().values():
        for key in group:
            start = f"`{key.name}` |" if text.startswith("#") else f"{key.name}: "
            line = next(line for line in lines if line.strip("| ").startswith(start))
            assert (key.default or "required") in line
            assert key.meaning in (line if "|" in line else next(lines))


def test_texts_have_the_quotes_of_toml():
    for text in (reference(), markdown()):
        assert "'mlp'" not in text
    assert 'model: one of "mlp", "narrow-cnn", "wide-cnn"; default "mlp"' in reference()
    assert '| `model` | one of `"mlp"`, `"narrow-cnn"`, `"wide-cnn"` | `"mlp"` |' in markdown()
    assert '## `[stream]` with `kind = "split"`\n' in markdown()


def test_all_rows_of_a_table_on_the_page_have_as_many_cells():
    for line in markdown().splitlines():
        if line.startswith("|"):
            assert line.count("|") in (3, 5), line


def test_the_chain_on_the_page_is_a_recipe():
    text = CHAIN.removeprefix("```toml\n").removesuffix("```\n")
    stream = build(Recipe, parse(text, name="chain.toml")).stream
    assert [part.kind for part in stream.parts] == ["split", "permuted"]
    assert CHAIN in markdown()


def test_layers_are_those_that_alpha_can_name():
    found = layers()
    assert found["mlp"] == ["fc1 2000", "fc2 2000", "fc3"]
    assert list(found) == list(WIDTHS)
    for model, listed in found.items():
        built = dict(Network(model, widths=(1,) * 5).build((1, 32, 32), 2).named_modules())
        assert {each.split()[0] for each in listed} <= set(built)
        assert f"  {model}: {', '.join(listed)}" in reference()
        assert f"| `{model}` | {', '.join(listed)} |" in markdown()
