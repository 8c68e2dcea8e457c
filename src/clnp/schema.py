"""Dataclasses from plain data, every wrong key and value named with its place, and back to TOML."""

import ast
import dataclasses
import datetime
import difflib
import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .document import Document, KeyPath
from .errors import ArgumentError, RecipeError, unknown_name
from .hints import Hint, RecipeField, inner_hint, recipe_fields
from .tomltext import Inline, document_text, dotted, shown, value_text

T = TypeVar("T")
ANYTHING = Hint((Any,), optional=False, reads_none=False)


def build(cls: type[T], document: Document) -> T:
    """The dataclass that the document describes; an error names everything wrong with it.

    A table that is written starts from the defaults of its own class.
    """
    reader = _Reader(document)
    built: T = reader.table(cls, document.data, ())
    if len(reader.problems) > 1:
        lines = "".join(f"\n  - {problem}" for problem in reader.problems)
        raise RecipeError(f"{document.place(())}: {len(reader.problems)} problems:{lines}")
    if reader.problems:
        raise RecipeError(reader.problems[0])
    return built


class _Reader:
    """Makes values of what a document holds; what is wrong with it goes to `problems`.

    A value is of use only if there are no problems.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[str] = []

    def wrong(self, path: KeyPath, message: str) -> None:
        self.problems.append(f"{self.document.place(path)}: {message}")

    def table(self, cls: Any, data: Mapping[str, Any], path: KeyPath) -> Any:
        known, num_before, values = recipe_fields(cls), len(self.problems), {}
        for key, value in data.items():
            here = (*path, key)
            if key in known:
                values[key] = self.value(known[key].hint, value, here)
            else:
                # The nearest name is sought in this table, and the message has the whole path.
                sentence = unknown_name("key", key, known).removeprefix(f"unknown key {key!r}")
                self.wrong(here, f"unknown key {dotted(here)!r}{sentence}")
        for name, field in known.items():
            if field.required and name not in data:
                missing = dotted((*path, name))
                self.wrong(path, f"{missing} is missing; it must be {field.hint.words}")
        if len(self.problems) > num_before:
            return None
        try:
            return cls(**values)
        except ArgumentError as error:
            argument = getattr(error, "argument", None)
            self.wrong(path if argument is None else (*path, argument), str(error))
            return None

    def value(self, hint: Hint, value: Any, path: KeyPath) -> Any:
        if hint.reads_none and value == "none":
            return None
        if hint.kinds and isinstance(value, dict):
            return self.table_of_kind(hint.kinds, value, path)
        fitting = hint.fitting(value)
        if not fitting:
            must = f"{dotted(path)} is {shown(value)}; it must be {hint.words}"
            self.wrong(path, f"{must}{_did_you_mean(value, hint.literals)}")
            return None
        for member in fitting[:-1]:
            attempt = _Reader(self.document)
            made = attempt.member(member, value, path)
            if not attempt.problems:
                return made
        return self.member(fitting[-1], value, path)

    def table_of_kind(self, kinds: dict[str, Any], data: dict[str, Any], path: KeyPath) -> Any:
        key = dotted((*path, "kind"))
        choices = f"it must be one of {', '.join(map(repr, kinds))}"
        if "kind" not in data:
            self.wrong(path, f"{key} is missing; {choices}")
            return None
        kind = data["kind"]
        if not isinstance(kind, str):
            self.wrong((*path, "kind"), f"{key} is {shown(kind)}; {choices}")
        elif kind not in kinds:
            self.wrong((*path, "kind"), f"{key}: {unknown_name('kind', kind, kinds)}")
        else:
            return self.table(kinds[kind], data, path)
        return None

    def member(self, member: Any, value: Any, path: KeyPath) -> Any:
        if dataclasses.is_dataclass(member):
            return self.table(member, value, path)
        if member is float:
            return float(value)
        if member is Any or not isinstance(value, list | dict):
            return value
        hint = inner_hint(member)
        if isinstance(value, list):
            return tuple(self.value(hint, item, (*path, i)) for i, item in enumerate(value))
        return {key: self.value(hint, item, (*path, key)) for key, item in value.items()}


def _did_you_mean(value: Any, choices: list[Any]) -> str:
    names = [choice for choice in choices if isinstance(choice, str)]
    near = difflib.get_close_matches(value, names, 1, 0.5) if isinstance(value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def to_toml(value: Any, *, header: str = "") -> str:
    """The dataclass as a TOML text with the header as a comment, from which `build` makes it."""
    return document_text(to_data(value), header=header)


def to_data(value: Any) -> dict[str, Any]:
    """The dataclass as plain data: every field, also those that equal their default.

    None is the text "none". It is left out only where that is the default and there is nothing to
    be filled in: a table, or a text that is not read as none.
    """
    return _table_data(value, ())


def _table_data(table: Any, path: KeyPath) -> dict[str, Any]:
    cls: Any = type(table)
    known, data = recipe_fields(cls), {}
    for field in dataclasses.fields(table):
        value, here = getattr(table, field.name), (*path, field.name)
        if not field.init or (value is None and _may_be_left_out(field, known.get(field.name))):
            continue
        if field.name in known:
            data[field.name] = _plain(known[field.name].hint, value, here)
        elif value is not None and value is not field.default:
            raise _cannot_be_written(value, here)
    return data


def _may_be_left_out(field: "dataclasses.Field[Any]", known: RecipeField | None) -> bool:
    """Whether a document without the key, or one that inherits it, still says none."""
    if field.default is not None:
        return False
    return known is None or bool(known.hint.tables) or not known.hint.reads_none


def _plain(hint: Hint, value: Any, path: KeyPath) -> Any:
    if value is None and hint.reads_none:
        return "none"
    if isinstance(value, str) and value == "none" and hint.reads_none:
        raise RecipeError(f'{dotted(path)} is the text "none", which a recipe reads as no value')
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _table_data(value, path)
    if isinstance(value, list | tuple):
        inner = _inner(hint, list(value))
        return [_plain(inner, item, (*path, i)) for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        inner = _inner(hint, dict(value))
        data = {key: _plain(inner, item, (*path, key)) for key, item in value.items()}
        tables = [v for v in data.values() if isinstance(v, dict) and not isinstance(v, Inline)]
        return data if data and len(tables) == len(data) else Inline(data)
    if type(value) is int and float in hint.members and int not in hint.members:
        return float(value)
    if isinstance(value, str | int | float | datetime.date | datetime.time):
        return value
    raise _cannot_be_written(value, path)


def _inner(hint: Hint, value: list[Any] | dict[str, Any]) -> Hint:
    """The hint of what is in the value."""
    inner = dataclasses.replace(hint, members=tuple(hint.fitting(value))).inner
    return inner[0] if inner else ANYTHING


def _cannot_be_written(value: Any, path: KeyPath) -> RecipeError:
    what = "a function" if callable(value) else f"{value!r}"
    return RecipeError(f"{dotted(path)} is {what}, which cannot be written into a recipe")


@dataclass(frozen=True)
class Key:
    """A key that a recipe may hold: where, what it takes, and what it is if it is not written.

    In `path`, `*` stands for any place in a list or any key of a table. `type` is in words, and
    `default` is TOML text, or empty where the key is required. `kind` says in which kind of table
    the key is found, if tables of several kinds may stand there.
    """

    path: str
    type: str
    default: str
    doc: str
    kind: str = ""


def keys(cls: Any) -> list[Key]:
    """Every key of a recipe for the dataclass, depth first.

    A table has a key of its own only if it may be absent, or something else than a table. One
    inside a table of the same class is not gone into.
    """
    return list(_keys(cls, "", "", above=frozenset([cls])))


def _keys(cls: Any, prefix: str, kind: str, *, above: frozenset[Any]) -> Iterator[Key]:
    for name, field in recipe_fields(cls).items():
        hint, path = field.hint, f"{prefix}{name}"
        if hint.optional or len(hint.tables) < len(hint.members) or above & set(hint.tables):
            yield Key(path, hint.words, _default_text(field), _docs(cls).get(name, ""), kind)
        yield from _keys_below(hint, f"{path}.", kind, above=above)
        for inner in hint.inner:
            yield from _keys_below(inner, f"{path}.*.", kind, above=above)


def _keys_below(hint: Hint, prefix: str, kind: str, *, above: frozenset[Any]) -> Iterator[Key]:
    """The keys of the dataclasses of the hint."""
    tables = [table for table in hint.tables if table not in above]
    above = above.union(tables)
    kinds = {table: own for own, table in hint.kinds.items()}
    for table in tables:
        for key in _keys(table, prefix, kinds.get(table, kind), above=above):
            # What tells the tables apart has to be written, whatever its default.
            is_kind = kinds and key.path == f"{prefix}kind"
            yield dataclasses.replace(key, default="") if is_kind else key


def _default_text(field: RecipeField) -> str:
    if field.required:
        return ""
    if field.default is None:
        return '"none"' if field.hint.reads_none else "none"
    return value_text(_plain(field.hint, field.default, (field.name,)))


@functools.cache
def _docs(cls: Any) -> Mapping[str, str]:
    """The text that follows each field in the source of the class, on one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        body = _body(base) if dataclasses.is_dataclass(base) else []
        for field, after in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(after.value.value).split())
    return docs


def _body(cls: Any) -> list[ast.stmt]:
    """The statements of the class, if its source is at hand."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return []
    # The source of a class inside another is indented; under an `if` it may be.
    module = ast.parse(f"if True:\n{source}" if source[0].isspace() else source)
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    return classes[0].body
