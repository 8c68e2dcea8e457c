"""The recipes that come with the package, as text."""

import tomllib
from importlib import resources

from clnp.errors import RecipeError, unknown_name

FOLDER = resources.files(__package__) / "library"


def names() -> list[str]:
    """Their names, sorted."""
    return sorted(
        file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml")
    )


def text(name: str) -> str:
    """The TOML text of one of them."""
    if name not in names():
        raise RecipeError(unknown_name("recipe", name, names()))
    return (FOLDER / f"{name}.toml").read_text("utf-8")


def description(name: str) -> str:
    """What one of them is, in one line."""
    line: str = tomllib.loads(text(name))["description"]
    return line
