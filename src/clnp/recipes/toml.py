"""TOML with the place of every key, values that override it, and plain data written as TOML."""

import datetime
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clnp.errors import RecipeError
from clnp.plain import json_reason

Table = dict[str, Any]
"""A table of TOML, as `tomllib` reads it."""
KeyPath = tuple[str | int, ...]
"""The keys from the top of a document to a value. An integer is an index into an array."""


MOST_BYTES = 2**20
"""A recipe has some kilobytes."""
MOST_LEVELS = 100
"""Nested brackets, and parts of a dotted key: tomllib takes quadratic time for them."""


@dataclass(frozen=True)
class Document:
    """The `data` of a TOML text, and the `places` where its keys are written.

    A place is `recipe.toml, line 12` or `--set learner.margin=3`. The place of the empty path is
    the name of the file.
    """

    data: Table
    places: Mapping[KeyPath, str]

    def place(self, path: KeyPath) -> str:
        """Return the place of the key, or of the nearest table around it that is written."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def set(self, assignment: str) -> "Document":
        """Return the document with one value changed or added, as in `learner.margin=3`.

        The key is a TOML key, in which an integer is an index into an array. The value is a TOML
        value, or else plain text.
        """
        place = f"--set {assignment}"
        keys, value = _parsed(assignment)
        data, path = _put(self.data, keys, value, above=(), place=place)
        places = {p: where for p, where in self.places.items() if p[: len(path)] != path}
        for num in range(1, len(path) + 1):
            places.setdefault(path[:num], place)
        return Document(data, places)


def read(path: str | os.PathLike[str]) -> Document:
    """Return the document in the file. Messages use the path as it was given."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{name} cannot be read: {error.strerror}. Check the path.") from error
    if len(raw) > MOST_BYTES:
        raise RecipeError(f"{name} has more than {MOST_BYTES} bytes. Give the file of a recipe.")
    try:
        text = raw.decode("utf-8-sig")  # Some editors put a mark before the first character.
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise RecipeError(f"{name}, line {line}: {found}. Save the file as UTF-8.") from error
    return parse(text, name=name)


def parse(text: str, *, name: str) -> Document:
    """Return the document in the text. Messages use the `name`."""
    lines = text.replace("\r\n", "\n").split("\n")
    if _is_too_deep(text):
        raise RecipeError(
            f"{name}: its values are nested too deeply. A recipe needs a few levels of brackets "
            "and keys."
        )
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line, reason = _reason(error, lines)
        where = name if line is None else f"{name}, line {line}"
        raise RecipeError(f"{where}: this is not TOML: {reason}") from error
    return Document(data, _places(lines, name))


_APART = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'{3}.*?\'{3}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*''', re.DOTALL
)
"""Texts and comments."""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_LEVELS}}}")


def _is_too_deep(text: str) -> bool:
    """Whether brackets or dotted keys have more levels than a recipe ever needs."""
    rest, depth = _APART.sub("text", text), 0
    for bracket in re.findall(r"[][{}]", rest):
        depth += 1 if bracket in "[{" else -1
        if depth > MOST_LEVELS:
            return True
    return _LONG_KEY.search(rest) is not None


def _reason(error: Exception, lines: list[str]) -> tuple[int | None, str]:
    """Return the line of the error, if it is known, and its reason."""
    pattern = r"(.*) \(at (?:line (\d+), column \d+|end of document)\)"
    match = re.fullmatch(pattern, str(error), re.DOTALL)
    if match is None:  # An integer of thousands of digits, for which there is no line.
        return None, json_reason(error)
    reason = match[1][:1].lower() + match[1][1:]
    if match[2] is not None:
        return int(match[2]), reason
    # Something is not closed. The line where it begins helps more than the last one.
    unclosed = [line for line, statement in _statements(lines) if not statement]
    return (unclosed[0] if unclosed else len(lines)), reason


def _places(lines: list[str], name: str) -> dict[KeyPath, str]:
    """Return the place of every key, and of every table where it is first mentioned."""
    places: dict[KeyPath, str] = {(): name}
    num_tables: dict[KeyPath, int] = {}  # by array of tables, so far
    table: KeyPath = ()
    for line, statement in _statements(lines):
        title = lines[line - 1].lstrip()
        if title.startswith("["):
            *parents, last = _chain(statement)
            table = ()
            for key in parents:
                table = (*table, key)
                if table in num_tables:
                    table = (*table, num_tables[table] - 1)
            table = (*table, last)
            if title.startswith("[["):
                num_tables[table] = num_tables.get(table, 0) + 1
                table = (*table, num_tables[table] - 1)
            written = [table]
        else:
            written = [(*table, *path) for path in _leaves(statement)]
        for path in written:
            for num in range(1, len(path) + 1):
                places.setdefault(path[:num], f"{name}, line {line}")
    return places


def _statements(lines: list[str]) -> Iterator[tuple[int, Table]]:
    """Yield the first line and the data of each statement; no data for one without an end.

    A statement is the shortest run of lines that is valid TOML. So tomllib decides what is a key,
    and what only looks like a key inside a text of several lines.
    """
    start = 0
    while start < len(lines):
        if not lines[start].strip() or lines[start].lstrip().startswith("#"):
            start += 1
            continue
        for end in range(start + 1, len(lines) + 1):
            # Trying every line would take quadratic time for a long array.
            if end > start + 1 and not _may_end(lines[end - 1]):
                continue
            try:
                statement = tomllib.loads("\n".join(lines[start:end]))
            except (ValueError, RecursionError):
                continue
            yield start + 1, statement
            start = end
            break
        else:
            yield start + 1, {}
            return


def _may_end(line: str) -> bool:
    """Whether a statement of several lines may end with this one."""
    closes = any(mark in line for mark in ("]", "}", '"""', "'''"))
    return closes and ("#" in line or not line.rstrip().endswith(","))


def _chain(statement: Any) -> list[str]:
    """Return the keys of a statement with one key at every level."""
    keys = []
    while isinstance(statement, dict) and statement:
        [(key, statement)] = statement.items()
        keys.append(key)
    return keys


def _leaves(statement: Table) -> Iterator[KeyPath]:
    for key, value in statement.items():
        if isinstance(value, dict) and value:
            yield from ((key, *path) for path in _leaves(value))
        else:
            yield (key,)


_PART = r"""[ \t]*(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*"""
_ASSIGNMENT = re.compile(rf"({_PART}(?:\.{_PART})*)=(.*)", re.DOTALL)


def _parsed(assignment: str) -> tuple[list[str], Any]:
    """Return the keys and the value of `key.sub=value`."""
    match = _ASSIGNMENT.fullmatch(assignment)
    try:
        assignment.encode()
        keys = _chain(tomllib.loads(f"{match[1]} = 0")) if match else []
    except UnicodeEncodeError:
        raise RecipeError(f"--set {assignment!r}: this is not UTF-8") from None
    except tomllib.TOMLDecodeError:
        keys = []
    if match is None or not keys:
        raise RecipeError(
            f"--set {assignment}: this is not KEY=VALUE with a key as in TOML. Write for example "
            "--set learner.margin=1."
        )
    try:
        statements = tomllib.loads(f"value = {match[2]}")
    except (ValueError, RecursionError):
        return keys, match[2].strip()
    # There is more than one statement if the value has a line break and another key after it.
    return keys, statements["value"] if len(statements) == 1 else match[2].strip()


def _put(
    node: Any, keys: list[str], value: Any, *, above: KeyPath, place: str
) -> tuple[Any, KeyPath]:
    """Return a copy of the node with the value in it, and the path of the value from the top."""
    if not keys:
        return value, above
    key, rest = keys[0], keys[1:]
    if isinstance(node, dict):
        inner = node.get(key, {})
        put, path = _put(inner, rest, value, above=(*above, key), place=place)
        return {**node, key: put}, path
    if not isinstance(node, list):
        raise RecipeError(
            f"{place}: {dotted(above)} is {shown(node)}, not a table. Set {dotted(above)} itself."
        )
    if not (key.isascii() and key.isdigit() and int(key) < len(node)):
        expected = f"an index from 0 to {len(node) - 1}" if node else "the whole list"
        raise RecipeError(
            f"{place}: {dotted(above)} is a list of {len(node)}, which has no {key!r}. "
            f"Give {expected}."
        )
    index = int(key)
    put, path = _put(node[index], rest, value, above=(*above, index), place=place)
    return [*node[:index], put, *node[index + 1 :]], path


LONGEST_SHOWN = 60


class Inline(Table):
    """A table that is written in braces, on the line of its key."""


def key_text(key: str) -> str:
    """Return the key, in quotes where TOML needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else value_text(key)


def dotted(path: Iterable[str | int]) -> str:
    """Join the keys with dots: dotted(["alpha", "layer1.0", 2]) == 'alpha."layer1.0".2'."""
    return ".".join(key_text(str(part)) for part in path)


def value_text(value: Any) -> str:
    """Return the value as TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON escapes the same characters as TOML, except for "delete".
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime.date | datetime.time):  # A datetime is a date.
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, dict):
        items = ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    raise RecipeError(f"{value!r} is of type {type(value).__name__}, which TOML does not have.")


def shown(value: Any) -> str:
    """Return the value as TOML for a message, shortened where it is long."""
    text = value_text(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def document_text(data: Table, *, header: str = "") -> str:
    """Return the data as a document: a comment, plain keys, tables, arrays of tables."""
    comment = [f"# {line}".rstrip() for line in header.splitlines()]
    parts = ["\n".join(comment)] if comment else []
    return "\n\n".join([*parts, *_sections(data, (), "")]) + "\n"


def _sections(data: Table, path: tuple[str, ...], title: str) -> Iterator[str]:
    """Yield the lines of the table, and then those of the tables in it."""
    own = [f"{key_text(k)} = {value_text(v)}" for k, v in data.items() if not _has_section(v)]
    # A table that only contains other tables needs no title.
    if title and (own or not data or title.startswith("[[")):
        own = [title, *own]
    if own:
        yield "\n".join(own)
    for key, value in data.items():
        inner = (*path, key)
        if _has_section(value) and isinstance(value, dict):
            yield from _sections(value, inner, f"[{dotted(inner)}]")
        elif _has_section(value):
            for table in value:
                yield from _sections(table, inner, f"[[{dotted(inner)}]]")


def _has_section(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(v, dict) and _has_section(v) for v in value)
    return isinstance(value, dict) and not isinstance(value, Inline)
