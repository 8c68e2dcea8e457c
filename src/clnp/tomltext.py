"""Plain data as TOML text: keys, values and whole documents."""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import RecipeError

LONGEST_SHOWN = 60


class Inline(dict[str, Any]):
    """A table that a document holds in braces, on the line of its key."""


def key_text(key: str) -> str:
    """The key, in quotes where TOML asks for them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else value_text(key)


def dotted(path: Iterable[str | int]) -> str:
    """The keys with dots between them.

    dotted(["alpha", "layer1.0", 2]) == 'alpha."layer1.0".2'
    """
    return ".".join(key_text(str(part)) for part in path)


def value_text(value: Any) -> str:
    """The value on one line, such that it reads back equal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON escapes what TOML wants escaped, but for the character "delete".
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, datetime.date | datetime.time):  # A datetime is a date.
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        items = ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    raise RecipeError(f"a recipe cannot hold a {type(value).__name__}: {value!r}")


def shown(value: Any) -> str:
    """The value as a message shows it: as TOML text, cut where it is long."""
    text = value_text(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def document_text(data: Mapping[str, Any], *, header: str = "") -> str:
    """The data as a document: the header as a comment, plain keys, tables, arrays of tables."""
    comment = [f"# {line}".rstrip() for line in header.splitlines()]
    parts = ["\n".join(comment)] if comment else []
    return "\n\n".join([*parts, *_sections(data, (), "")]) + "\n"


def _sections(data: Mapping[str, Any], path: tuple[str, ...], title: str) -> Iterator[str]:
    """The table's own lines, and then those of the tables in it."""
    own = [f"{key_text(k)} = {value_text(v)}" for k, v in data.items() if not _has_section(v)]
    # The title of a table that holds only other tables says nothing that theirs do not.
    if title and (own or not data or title.startswith("[[")):
        own = [title, *own]
    if own:
        yield "\n".join(own)
    for key, value in data.items():
        inner = (*path, key)
        if _has_section(value) and isinstance(value, Mapping):
            yield from _sections(value, inner, f"[{dotted(inner)}]")
        elif _has_section(value):
            for table in value:
                yield from _sections(table, inner, f"[[{dotted(inner)}]]")


def _has_section(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(v, Mapping) and _has_section(v) for v in value)
    return isinstance(value, Mapping) and not isinstance(value, Inline)
