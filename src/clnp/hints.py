"""What a type hint lets a recipe write, and how to say so in words."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

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
