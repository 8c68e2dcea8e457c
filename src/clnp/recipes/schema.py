"""Dataclasses from a TOML document, with all errors and their places at once, and back to TOML."""

import dataclasses
import difflib
import functools
import math
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, TypeVar

from clnp.errors import ArgumentError, RecipeError, unknown_name
from clnp.plain import alternatives, is_required

from .toml import Document, Inline, KeyPath, Table, document_text, dotted, shown, value_text

T = TypeVar("T")


@dataclass(frozen=True)
class Form:
    """One form of a value: a scalar, one of several texts, a list, a mapping or a dataclass.

    `words` and `plural` are alternatives that describe it. `kind` is the type that `tomllib` gives
    it, or `object` for any. `inner` is the hint of the items of a list or mapping.
    """

    words: tuple[str, ...]
    plural: tuple[str, ...]
    kind: type
    texts: tuple[str, ...] = ()
    inner: "Hint | None" = None
    table: Any = None

    def fits(self, value: Any) -> bool:
        """Whether the value has the form; the items of a list or table may not."""
        if self.kind is float and type(value) in (int, float):
            # Not nan, and no integer beyond the largest float.
            return bool(abs(value) <= sys.float_info.max or abs(value) == math.inf)
        if self.texts and value not in self.texts:
            return False
        return self.kind is object or type(value) is self.kind


@dataclass(frozen=True)
class Hint:
    """The forms that a value may have. If it is `optional`, the text "none" stands for None."""

    forms: tuple[Form, ...]
    optional: bool = False

    @property
    def words(self) -> str:
        """The hint in words: `a number or a table of numbers`."""
        return self._joined(word for form in self.forms for word in form.words)

    @property
    def plural(self) -> str:
        """The hint in words, of many values: `numbers or tables of numbers`."""
        return self._joined(word for form in self.forms for word in form.plural)

    def _joined(self, words: Iterator[str]) -> str:
        *first, last = dict.fromkeys([*words, *(['"none"'] if self.optional else [])])
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def tables(self) -> list[Any]:
        """The dataclasses among the forms."""
        return [form.table for form in self.forms if form.table is not None]

    @property
    def kinds(self) -> dict[str, Any]:
        """The dataclasses by the value of their field `kind`, if there are several."""
        tables = self.tables if len(self.tables) > 1 else []
        return {recipe_fields(t)["kind"].hint.forms[0].texts[0]: t for t in tables}


FORMS = {
    Any: Form(("any value",), (), object),
    int: Form(("a whole number",), ("whole numbers",), int),
    float: Form(("a number",), ("numbers",), float),
    bool: Form(("true", "false"), ("true", "false"), bool),
    str: Form(("text",), ("texts",), str),
}


def hint_of(annotation: Any) -> Hint:
    """Return the hint of a type; without forms if TOML cannot hold it, such as a function."""
    parts, optional = alternatives(annotation)
    forms = [form for part in parts if (form := _form(part)) is not None]
    return Hint(tuple(forms), optional)


def _form(part: Any) -> Form | None:
    origin, args = typing.get_origin(part), typing.get_args(part)
    if part in FORMS:
        return FORMS[part]
    if dataclasses.is_dataclass(part):
        return Form(("a table",), ("tables",), dict, table=part)
    if origin is Literal:
        return _choice(args)
    kind: type
    if origin is tuple and args[1:] == (...,):
        name, kind, item = "list", list, args[0]
    elif isinstance(origin, type) and issubclass(origin, Mapping) and args[:1] == (str,):
        name, kind, item = "table", dict, args[1]
    else:
        return None
    inner = hint_of(item)
    if not inner.forms:
        return None
    of = "" if inner.forms == (FORMS[Any],) else f" of {inner.plural}"
    return Form((f"a {name}{of}",), (f"{name}s{of}",), kind, inner=inner)


def _choice(texts: tuple[str, ...]) -> Form:
    listed = ", ".join(map(repr, texts))
    words = (listed if len(texts) == 1 else f"one of {listed}",)
    return Form(words, words, str, texts=texts)


@dataclass(frozen=True)
class RecipeField:
    """A field of a dataclass that can be written in a recipe."""

    hint: Hint
    field: "dataclasses.Field[Any]"

    @property
    def default_text(self) -> str:
        """The default as TOML; empty if the field is required."""
        if is_required(self.field):
            return ""
        factory = self.field.default_factory
        default = self.field.default if factory is MISSING else factory()
        return value_text(_plain(default))


@functools.cache
def recipe_fields(cls: Any) -> Mapping[str, RecipeField]:
    """Return the fields of the dataclass that a recipe can contain, by name."""
    hints = typing.get_type_hints(cls)
    found = {f.name: RecipeField(hint_of(hints[f.name]), f) for f in dataclasses.fields(cls)}
    return {name: each for name, each in found.items() if each.field.init and each.hint.forms}


def build(cls: type[T], document: Document) -> T:
    """Return the dataclass that the document describes.

    Raises:
        RecipeError: Names everything that is wrong in the document, with its place.
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
    """Makes values from a document and collects the `problems`, without which they are valid."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[str] = []

    def wrong(self, path: KeyPath, message: str) -> None:
        self.problems.append(f"{self.document.place(path)}: {message}")

    def table(self, cls: Any, data: Table, path: KeyPath) -> Any:
        known, num_before, values = recipe_fields(cls), len(self.problems), {}
        for key, value in data.items():
            here, num = (*path, key), len(self.problems)
            if key in known:
                found = self.value(known[key].hint, value, here)
                if len(self.problems) == num:
                    values[key] = found
            else:
                # The nearest key is one of this table, and the message has the whole path.
                sentence = unknown_name("key", key, known).removeprefix(f"unknown key {key!r}")
                self.wrong(here, f"unknown key {dotted(here)!r}{sentence}")
        for name, field in known.items():
            if is_required(field.field) and name not in data:
                missing = dotted((*path, name))
                self.wrong(path, f"{missing} is missing. It must be {field.hint.words}")
        built = self.made(cls, values, path, num_before)
        return None if len(self.problems) > num_before else built

    def made(self, cls: Any, values: dict[str, object], path: KeyPath, num_before: int) -> Any:
        """Return the dataclass of these values; without those that are wrong, look for others."""
        required = {name for name, each in recipe_fields(cls).items() if is_required(each.field)}
        while required <= values.keys():
            try:
                return cls(**values)
            except ArgumentError as error:
                errors = [error, *error.further]
            found = [each for each in errors if each.argument in values]
            if not found and len(self.problems) == num_before:
                found = errors  # About a default. After another error, it may only follow from it.
            for each in found:
                self.wrong(path if each.argument is None else (*path, each.argument), str(each))
            rest = values.keys() - {each.argument for each in found}
            if len(rest) == len(values):
                break
            values = {name: value for name, value in values.items() if name in rest}
        return None

    def value(self, hint: Hint, value: Any, path: KeyPath) -> Any:
        if hint.optional and value == "none":
            return None
        form = next((form for form in hint.forms if form.fits(value)), None)
        if form is None:
            texts = [text for form in hint.forms for text in form.texts]
            near = difflib.get_close_matches(str(value), texts, n=1, cutoff=0.5)
            ask = f". Did you mean {near[0]!r}?" if near else ""
            # Of numbers, only nan and integers beyond the largest float do not fit.
            is_odd = type(value) in (int, float) and FORMS[float] in hint.forms
            words = f"{hint.words}, not nan and not beyond 1e308" if is_odd else hint.words
            self.wrong(path, f"{dotted(path)} is {shown(value)}. It must be {words}{ask}")
            return None
        if form.table is not None:
            table = self.table_of_kind(hint.kinds, value, path) if hint.kinds else form.table
            return None if table is None else self.table(table, value, path)
        if form.inner is not None and isinstance(value, list):
            return tuple(self.value(form.inner, v, (*path, i)) for i, v in enumerate(value))
        if form.inner is not None:
            return {key: self.value(form.inner, v, (*path, key)) for key, v in value.items()}
        return float(value) if form.kind is float else value

    def table_of_kind(self, kinds: dict[str, Any], data: Table, path: KeyPath) -> Any:
        kind, here, choice = data.get("kind"), (*path, "kind"), _choice(tuple(kinds))
        if "kind" not in data:
            self.wrong(path, f"{dotted(here)} is missing. It must be {choice.words[0]}")
        elif not choice.fits(kind):
            self.value(Hint((choice,)), kind, here)
        return kinds.get(kind) if isinstance(kind, str) else None


def to_toml(value: Any, *, header: str = "") -> str:
    """Return the dataclass as TOML, with the header as a comment. `build` reads it back."""
    return document_text(to_data(value), header=header)


def to_data(value: Any) -> Table:
    """Return the dataclass as plain data with every field, also those that have their default.

    None is the text "none". A table that is None by default is left out, so that it can get keys.
    """
    cls: Any = type(value)
    found = {}
    for name, each in recipe_fields(cls).items():
        item = getattr(value, name)
        if item is not None or each.field.default is not None or not each.hint.tables:
            found[name] = _plain(item)
    return found


def _plain(value: Any) -> Any:
    if value is None:
        return "none"
    if dataclasses.is_dataclass(value):
        return to_data(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        data = {key: _plain(item) for key, item in value.items()}
        tables = data and all(map(dataclasses.is_dataclass, value.values()))
        return data if tables else Inline(data)
    return value
