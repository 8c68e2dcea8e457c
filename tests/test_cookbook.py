import tomllib

import pytest

from clnp import cookbook
from clnp.document import parse
from clnp.errors import RecipeError
from clnp.recipe import Recipe
from clnp.schema import build

NAMES = cookbook.names()


def test_names_are_sorted_and_those_of_the_files():
    assert "permuted-digits" in NAMES
    assert sorted(NAMES) == NAMES
    files = [file.name for file in cookbook.FOLDER.iterdir() if file.name.endswith(".toml")]
    assert sorted(f"{name}.toml" for name in NAMES) == sorted(files)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_can_be_read_and_is_described_in_one_line(name):
    text = cookbook.text(name)
    recipe = build(Recipe, parse(text, name=f"{name}.toml"))
    line = cookbook.description(name)
    assert line == recipe.description == tomllib.loads(text)["description"]
    assert line.strip()
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("name", ["permuted-digit", "", "../__init__", "permuted-digits.toml"])
def test_an_unknown_recipe_is_named(name):
    known = ", ".join(NAMES)
    for call in (cookbook.text, cookbook.description):
        with pytest.raises(RecipeError) as caught:
            call(name)
        message = str(caught.value)
        assert message.startswith(f"unknown recipe {name!r}")
        assert message.endswith(f" Known: {known}")
    with pytest.raises(RecipeError, match=r"'permuted-digit'; did you mean 'permuted-digits'\?"):
        cookbook.text("permuted-digit")
