"""Dataclasses from plain data, every wrong key and value named with its place, and back to TOML."""

import ast
import dataclasses
import datetime
import difflib
import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypeVar

from clnp.errors import ArgumentError, RecipeError, unknown_name

from .toml import Document, Inline, KeyPath, document_text, dotted, shown, value_text

SCALARS = {
    int: (["a whole number"], ["whole numbers"]),
    float: (["a number"], ["numbers"]),
    bool: (["true", "false"], ["true", "false"]),
    str: (["text"], ["texts"]),
}
"""What to call a value of the type, and many of them: each a list of alternatives."""


@dataclass(frozen=True)
class Hint:
    """What a recipe may write for a value: any of the `members`.

    A member is int, float, bool, str, Any, a Literal, a `tuple[X, ...]`, a `Mapping[str, X]` or a
    dataclass. `optional` says whether the value may be None, and `reads_none` whether the text
    "none" then stands for it.
    """

    members: tuple[Any, ...]
    optional: bool
    reads_none: bool

    @property
    def words(self) -> str:
        """The hint as a message says it: `a number or a table of numbers`."""
        words = [word for member in self.members for word in _words(member)]
        return _join([*words, '"none"'] if self.reads_none else words)

    @property
    def plural(self) -> str:
        """The hint as a message says it of many: `numbers or tables of numbers`."""
        words = [word for member in self.members for word in _plural(member)]
        return _join([*words, '"none"'] if self.reads_none else words)

    @property
    def literals(self) -> list[Any]:
        """The values that are allowed by name."""
        return [value for m in self.members if _is_literal(m) for value in typing.get_args(m)]

    @property
    def tables(self) -> list[Any]:
        """The dataclasses among the members."""
        return [member for member in self.members if dataclasses.is_dataclass(member)]

    @property
    def kinds(self) -> dict[str, Any]:
        """The dataclasses by their kind; none if there is but one, or if one has no kind."""
        found = {kind_of(table): table for table in self.tables}
        if len(self.tables) < 2 or None in found:
            return {}
        return {str(kind): table for kind, table in found.items()}

    @property
    def inner(self) -> list["Hint"]:
        """The hints of what is in the members that are lists or mappings."""
        return [inner_hint(m) for m in self.members if _is_list(m) or _is_mapping(m)]

    def fitting(self, value: Any) -> list[Any]:
        """The members that the value may be one of, as far as can be seen without looking in it."""
        fitting = [member for member in self.members if _fits(member, value)]
        return [int] if int in fitting else fitting


@dataclass(frozen=True)
class RecipeField:
    """A field of a dataclass that can be written in a recipe."""

    name: str
    hint: Hint
    field: "dataclasses.Field[Any]"

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def default(self) -> Any:
        """The value that the field has if nothing is written; ask only if it has one."""
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


@functools.cache
def recipe_fields(cls: Any) -> Mapping[str, RecipeField]:
    """The fields of the dataclass that a recipe can write, by name.

    A field that can only hold a function, or anything else that TOML has no word for, is none.
    """
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        members, optional = _members(hints[field.name])
        if field.init and members:
            # A text that is None unless it is written has no need of a word for None.
            reads_none = optional and (field.default is not None or not _holds_text(members))
            hint = Hint(members, optional, reads_none)
            found[field.name] = RecipeField(field.name, hint, field)
    return types.MappingProxyType(found)


def inner_hint(member: Any) -> Hint:
    """The hint of the values in a `tuple[X, ...]` or a `Mapping[str, X]`."""
    args = typing.get_args(member)
    members, optional = _members(args[0] if _is_list(member) else args[1])
    return Hint(members, optional, optional and not _holds_text(members))


def kind_of(cls: Any) -> str | None:
    """The one value of the field `kind`, which tells the dataclass from others."""
    field = recipe_fields(cls).get("kind")
    if field is None or len(field.hint.literals) != 1 or len(field.hint.members) != 1:
        return None
    return str(field.hint.literals[0])


def _members(annotation: Any) -> tuple[tuple[Any, ...], bool]:
    """What a recipe can write of the annotation's union, and whether None belongs to it."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if is_union else (annotation,)
    return tuple(part for part in parts if _is_written(part)), types.NoneType in parts


def _is_written(part: Any) -> bool:
    if part is Any or part in SCALARS or _is_literal(part) or dataclasses.is_dataclass(part):
        return True
    return (_is_list(part) or _is_mapping(part)) and bool(inner_hint(part).members)


def _is_literal(part: Any) -> bool:
    return typing.get_origin(part) is Literal


def _is_list(part: Any) -> bool:
    return typing.get_origin(part) is tuple and typing.get_args(part)[1:] == (...,)


def _is_mapping(part: Any) -> bool:
    origin, args = typing.get_origin(part), typing.get_args(part)
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    return is_mapping and len(args) == 2 and args[0] is str


def _holds_text(members: Iterable[Any]) -> bool:
    """Whether the text "none" is a value as good as any other."""
    return any(_fits(member, "none") for member in members)


def _fits(member: Any, value: Any) -> bool:
    if member is Any:
        return True
    if member is float:
        return type(value) in (int, float) and _is_number(value)
    if member in SCALARS:
        return type(value) is member
    if _is_literal(member):
        return any(type(v) is type(value) and v == value for v in typing.get_args(member))
    return isinstance(value, list if _is_list(member) else dict)


def _is_number(value: int | float) -> bool:
    try:
        return not math.isnan(value)
    except OverflowError:  # A whole number beyond what a float can hold.
        return False


def _words(member: Any) -> list[str]:
    if member is Any:
        return ["any value"]
    if member in SCALARS:
        return SCALARS[member][0]
    if _is_literal(member):
        values = [repr(value) for value in typing.get_args(member)]
        return values if len(values) == 1 else [f"one of {', '.join(values)}"]
    if _is_list(member):
        return [f"a list{_of(member)}"]
    return ["a table" if dataclasses.is_dataclass(member) else f"a table{_of(member)}"]


def _plural(member: Any) -> list[str]:
    if member in SCALARS:
        return SCALARS[member][1]
    if _is_list(member):
        return [f"lists{_of(member)}"]
    if _is_mapping(member):
        return [f"tables{_of(member)}"]
    return ["tables"] if dataclasses.is_dataclass(member) else _words(member)


def _of(member: Any) -> str:
    hint = inner_hint(member)
    return "" if hint.members == (Any,) else f" of {hint.plural}"


def _join(words: list[str]) -> str:
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last


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
