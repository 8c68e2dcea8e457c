"""The recipes that are installed with the package, as text."""

import tomllib
from importlib import resources

from clnp.errors import RecipeError, unknown_name

FOLDER = resources.files(__package__) / "library"


def names() -> list[str]:
    """Return the names of the recipes, sorted."""
    return sorted(
        file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml")
    )


def text(name: str) -> str:
    """Return a recipe as TOML."""
    if name not in names():
        raise RecipeError(unknown_name("recipe", name, names()))
    return (FOLDER / f"{name}.toml").read_text("utf-8")


def description(name: str) -> str:
    """Return the description of a recipe, one line."""
    line: str = tomllib.loads(text(name))["description"]
    return line
