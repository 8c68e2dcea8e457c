"""An experiment as a TOML file, and those in `library`, which are installed with the package.

`toml` reads a text with the line of each key, `schema` makes dataclasses of it, `recipe` finds and
loads recipes, `build` makes an experiment of one, and `reference` documents the keys.
"""
