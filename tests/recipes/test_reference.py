import json
from collections import Counter

import pytest

from clnp.cli import app
from clnp.recipes.recipe import MODELS, Network, Recipe
from clnp.recipes.reference import CHAIN, OWN_TRAINING, layers, markdown, reference, rows, sections
from clnp.recipes.schema import build, keys
from clnp.recipes.toml import parse


def test_every_key_of_a_recipe_is_there_once_for_each_kind():
    listed = Counter((row["key"], row["kind"]) for row in rows())
    # What a baseline's own training may have is said once, for `learner.training`.
    repeated = {key.path for key in keys(Recipe) if OWN_TRAINING.match(key.path)}
    assert "methods.ewc.training.lr" in repeated
    assert set(listed) == {(key.path, key.kind) for key in keys(Recipe) if key.path not in repeated}
    assert set(listed.values()) == {1}


def test_the_keys_that_everybody_needs_are_there():
    found = {(row["key"], row["kind"]) for row in rows()}
    assert found >= {
        ("seed", ""),
        ("stream.dataset", "permuted"),
        ("stream.classes_per_task", "split"),
        ("stream.parts", "chain"),
        ("network.widths", ""),
        ("learner.margin", ""),
        ("learner.training.alpha", ""),
        ("learner.fine_tuning.rounds", ""),
    }


def test_every_key_has_a_type_and_a_meaning_that_is_a_sentence():
    for row in rows():
        assert row["type"], row
        assert row["meaning"].endswith("."), row
        assert row["meaning"][0].isupper(), row
        assert "\n" not in row["meaning"], row


def test_defaults_are_those_of_the_dataclasses():
    found = {row["key"]: row["default"] for row in rows() if not row["kind"]}
    learner = Recipe.__dataclass_fields__["learner"].default_factory()
    assert found["learner.margin"] == str(learner.margin)
    assert found["learner.training.epochs"] == str(learner.training.epochs)
    assert found["learner.training.optimizer"] == f'"{learner.training.optimizer}"'
    assert found["learner.fine_tuning"] == '"none"'


def test_sections_are_the_tables_in_the_order_of_a_recipe():
    titles = list(sections())
    assert titles[:2] == ["At the top", '[stream] with kind = "permuted"']
    own = [title for title in titles if title.startswith("[learner.")]
    assert own == ["[learner.training]", "[learner.tasks.*]", "[learner.fine_tuning]"]
    assert titles.index("[learner.fine_tuning]") < titles.index("[methods.single]")
    assert {key.path.rpartition(".")[0] for key in sections()["[learner]"]} == {"learner"}


@pytest.mark.parametrize("text", [reference(), markdown()], ids=["text", "markdown"])
def test_text_and_markdown_have_every_key_with_default_and_meaning(text):
    lines = iter(text.splitlines())
    for group in sections().values():
        for key in group:
            # In order, and each on a line of its own.
            line = next(line for line in lines if line.strip("| ").startswith(named(text, key)))
            assert (key.default or "required") in line
            assert key.doc in (line if "|" in line else next(lines))


def named(text, key):
    name = key.path.rpartition(".")[2]
    return f"`{name}` |" if text.startswith("#") else f"{name}: "


def test_text_is_quoted_as_in_toml():
    for text in (reference(), markdown()):
        assert "'mlp'" not in text
    assert 'model: one of "mlp", "narrow-cnn", "wide-cnn"; default "mlp"' in reference()
    assert '| `model` | one of `"mlp"`, `"narrow-cnn"`, `"wide-cnn"` | `"mlp"` |' in markdown()
    assert '## `[stream]` with `kind = "split"`\n' in markdown()


def test_tables_of_the_page_have_as_many_cells_in_every_row():
    for line in markdown().splitlines():
        if line.startswith("|"):
            assert line.count("|") in (3, 5), line


def test_the_chain_on_the_page_is_a_recipe():
    text = CHAIN.removeprefix("```toml\n").removesuffix("```\n")
    stream = build(Recipe, parse(text, name="chain.toml")).stream
    assert [part.kind for part in stream.parts] == ["split", "permuted"]
    assert CHAIN in markdown()


def test_layers_are_those_that_alpha_may_name():
    assert layers("mlp") == {"fc1": 2000, "fc2": 2000, "fc3": None}
    assert list(layers("narrow-cnn")) == ["conv1", "conv2", "conv3", "conv4", "fc1", "fc2"]
    for model in MODELS:
        built = dict(Network(model, widths=(1,) * 5).build((1, 32, 32), 2).named_modules())
        assert set(layers(model)) <= set(built)
        assert "bn1" not in layers(model)
        assert f"{model}: {', '.join(list(layers(model))[:1])} " in reference()
        assert f"| `{model}` | {next(iter(layers(model)))} " in markdown()


def test_the_command_line_shows_it(capsys):
    assert app.main(["recipes", "--keys"]) == 0
    assert capsys.readouterr().out == reference() + "\n"
    assert app.main(["recipes", "--keys", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows()
