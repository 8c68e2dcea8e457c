"""The documentation of the keys of a recipe, made from the dataclasses."""

import ast
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from clnp.core.structure.kinds import is_mixing

from .recipe import WIDTHS, Network, Recipe
from .schema import Hint, recipe_fields

OWN_TRAINING = re.compile(r"methods\.\w+\.training\.")
"""The keys of `learner.training` again, for each baseline."""
INTRODUCTION = """\
# Recipe keys

A recipe is a TOML file. `clnp recipes` lists the bundled ones, `clnp recipes permuted-digits`
prints one, and `clnp run my.toml` runs your own. `clnp recipes --keys` prints the list on this
page. Every key can also be set on the command line:

```sh
clnp run permuted-digits --set learner.margin=1 --set 'learner.alphas=[{fc1 = 1e-4, fc2 = 1e-3}]'
```

Keys that are not marked as required can be left out. `"none"` stands for no value. If a table is
left out, all its keys have their defaults. The exception is `[learner.fine_tuning]`: neurons that
survive pruning are fine-tuned only if the recipe has this table, which may be empty. Wrong keys and
values are reported all at once, each with its line.

The [quickstart](quickstart.md) shows recipes in use. `make docs` makes this page.
"""
CHAIN = """\
```toml
[stream]
kind = "chain"

[[stream.parts]]
kind = "split"
dataset = "digits"
classes_per_task = 5

[[stream.parts]]
kind = "permuted"
dataset = "digits"
num_tasks = 3
```
"""
DATA_SETS = """\
`digits` (1,797 handwritten digits of 8 x 8 pixels, from scikit-learn), `mnist`, `fashion-mnist`,
`cifar10` and `cifar100`: see [data](quickstart.md#data). Any other name is a file of your own,
`NAME.npz`: see [data of your own](quickstart.md#data-of-your-own).
"""
LAYERS = """\
The layers that `alpha` can name, and their default numbers of neurons, which `widths` replaces. A
layer that `alpha` does not name has no penalty. The last layer computes the outputs.
"""


@dataclass(frozen=True)
class Key:
    """A key of a recipe.

    In `key`, the whole path, `*` stands for any index of a list or any key of a table. `kind` is
    the kind of the table that has the key, where there are tables of several kinds. `type` is in
    words, and `default` is TOML, empty if the key is required.
    """

    key: str
    kind: str
    type: str
    default: str
    meaning: str

    @property
    def table(self) -> str:
        """The table that has the key; empty at the top."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The key within its table."""
        return self.key.rpartition(".")[2]


def keys(cls: Any) -> list[Key]:
    """Return every key of a recipe for the dataclass, depth first.

    A table is a key only if it may be absent, or something other than a table. The keys of a table
    inside a table of the same class are left out.
    """
    return list(_keys(cls, "", "", above=frozenset([cls])))


def _keys(cls: Any, prefix: str, kind: str, *, above: frozenset[Any]) -> Iterator[Key]:
    for name, field in recipe_fields(cls).items():
        hint, path = field.hint, f"{prefix}{name}"
        if hint.optional or len(hint.tables) < len(hint.forms) or above & set(hint.tables):
            words = hint.words.replace("'", '"')  # The quotes of TOML.
            yield Key(path, kind, words, field.default_text, _docs(cls).get(name, ""))
        yield from _keys_below(hint, f"{path}.", kind, above=above)
        for inner in (form.inner for form in hint.forms if form.inner):
            yield from _keys_below(inner, f"{path}.*.", kind, above=above)


def _keys_below(hint: Hint, prefix: str, kind: str, *, above: frozenset[Any]) -> Iterator[Key]:
    tables = [table for table in hint.tables if table not in above]
    kinds = {table: own for own, table in hint.kinds.items()}
    for table in tables:
        yield from _keys(table, prefix, kinds.get(table, kind), above=above.union(tables))


@functools.cache
def _docs(cls: Any) -> Mapping[str, str]:
    """Return the string below each field in the source of the class, on one line."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    [definition] = ast.parse(source).body
    docs = {}
    for field, below in itertools.pairwise(getattr(definition, "body", [])):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                docs[name] = " ".join(str(text).split())
    return docs


def sections() -> dict[str, list[Key]]:
    """Return the keys of a recipe by their table, and by its kind."""
    found: dict[str, list[Key]] = {}
    for key in sorted(keys(Recipe), key=lambda key: "." in key.key):
        if OWN_TRAINING.match(key.key):
            continue
        title = f"[{key.table}]" if key.table else "At the top"
        if key.kind:
            title += f' with kind = "{key.kind}"'
        found.setdefault(title, []).append(key)
    return found


def layers() -> dict[str, list[str]]:
    """Return the layers of each model with their neurons: ["fc1 2000", "fc2 2000", "fc3"]."""
    found: dict[str, list[str]] = {}
    for model, widths in WIDTHS.items():
        with torch.device("meta"):
            modules = Network(model).build((3, 32, 32), 10).named_modules()
        *hidden, last = (path for path, m in modules if is_mixing(m))
        found[model] = [*(f"{p} {num}" for p, num in zip(hidden, widths, strict=True)), last]
    return found


def rows() -> list[dict[str, str]]:
    """Return every key with its type, default and meaning, as plain data."""
    return [vars(key) for group in sections().values() for key in group]


def reference() -> str:
    """Return the documentation of every key as text for a terminal."""
    blocks = []
    for title, group in sections().items():
        lines = [title]
        for key in group:
            default = f"default {key.default}" if key.default else "required"
            lines += [f"  {key.name}: {key.type}; {default}", f"      {key.meaning}"]
        blocks.append("\n".join(lines))
    lines = ["Layers, for alpha, with their neurons unless [network] has widths"]
    lines += [f"  {model}: {', '.join(each)}" for model, each in layers().items()]
    return "\n\n".join([*blocks, "\n".join(lines)])


def markdown() -> str:
    """Return the documentation of every key as a Markdown page."""
    blocks = [INTRODUCTION]
    for title, group in sections().items():
        blocks.append(f"## {_code(title)}\n")
        blocks.append("| key | takes | default | meaning |\n|---|---|---|---|")
        for key in group:
            default = f"`{key.default}`" if key.default else "required"
            blocks.append(f"| `{key.name}` | {_code(key.type)} | {default} | {key.meaning} |")
        blocks.append("")
        if any(key.kind == "chain" for key in group):
            blocks.append(CHAIN)
    blocks.append(f"## Data sets\n\n{DATA_SETS}")
    blocks.append(f"## Layers\n\n{LAYERS}")
    blocks.append("| model | layers |\n|---|---|")
    blocks += [f"| `{model}` | {', '.join(each)} |" for model, each in layers().items()]
    return "\n".join([*blocks, ""])


def _code(text: str) -> str:
    """Return the text with tables, kinds and quoted texts set as code."""
    return re.sub(r'\[[\w.]+\]|(kind = )?"[^"]*"', lambda found: f"`{found[0]}`", text)
