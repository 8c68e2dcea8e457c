import pytest

from clnp.errors import RecipeError
from clnp.recipes import bundled
from clnp.recipes.recipe import Recipe
from clnp.recipes.schema import build, to_toml
from clnp.recipes.toml import parse

NAMES = bundled.names()


def test_names_are_those_of_the_files():
    assert "permuted-digits" in NAMES
    assert sorted(NAMES) == NAMES
    files = [file.name for file in bundled.FOLDER.iterdir() if file.name.endswith(".toml")]
    assert sorted(f"{name}.toml" for name in NAMES) == sorted(files)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_valid_and_has_a_description(name):
    recipe = build(Recipe, parse(bundled.text(name), name=f"{name}.toml"))
    assert bundled.description(name) == recipe.description
    assert len(recipe.description.splitlines()) == 1
    assert build(Recipe, parse(to_toml(recipe), name="written.toml")) == recipe


@pytest.mark.parametrize("name", [name for name in NAMES if "-digits" in name or "-small" in name])
def test_small_recipes_run_on_one_thread(name):
    assert build(Recipe, parse(bundled.text(name), name=f"{name}.toml")).threads == 1


@pytest.mark.parametrize("name", ["permuted-digit", "", "../__init__", "permuted-digits.toml"])
def test_an_unknown_recipe_is_named(name):
    for call in (bundled.text, bundled.description):
        with pytest.raises(RecipeError) as caught:
            call(name)
        message = str(caught.value)
        assert message.startswith(f"unknown recipe {name!r}")
        assert message.endswith(f" Known: {', '.join(NAMES)}")
