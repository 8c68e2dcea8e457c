"""The documentation of the keys of a recipe, made from the dataclasses."""

import re

import torch

from clnp.core.structure.kinds import is_mixing

from .recipe import WIDTHS, Network, Recipe
from .schema import Key, keys

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


def sections() -> dict[str, list[Key]]:
    """Return the keys of a recipe by their table, and by its kind."""
    found: dict[str, list[Key]] = {}
    for key in sorted(keys(Recipe), key=lambda key: "." in key.path):
        if OWN_TRAINING.match(key.path):
            continue
        table = key.path.rpartition(".")[0]
        title = f"[{table}]" if table else "At the top"
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
    return [
        {"key": k.path, "kind": k.kind, "type": k.type, "default": k.default, "meaning": k.doc}
        for group in sections().values()
        for k in group
    ]


def reference() -> str:
    """Return the documentation of every key as text for a terminal."""
    blocks = []
    for title, group in sections().items():
        lines = [title]
        for key in group:
            default = f"default {key.default}" if key.default else "required"
            lines.append(f"  {_name(key)}: {_type(key)}; {default}")
            lines.append(f"      {key.doc}")
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
            blocks.append(f"| `{_name(key)}` | {_code(_type(key))} | {default} | {key.doc} |")
        blocks.append("")
        if any(key.kind == "chain" for key in group):
            blocks.append(CHAIN)
    blocks.append(f"## Data sets\n\n{DATA_SETS}")
    blocks.append(f"## Layers\n\n{LAYERS}")
    blocks.append("| model | layers |\n|---|---|")
    blocks += [f"| `{model}` | {', '.join(each)} |" for model, each in layers().items()]
    return "\n".join([*blocks, ""])


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]


def _type(key: Key) -> str:
    """Return the type of the key, with texts in the quotes of TOML."""
    return key.type.replace("'", '"')


def _code(text: str) -> str:
    """Return the text with tables, kinds and quoted texts set as code."""
    return re.sub(r'\[[\w.]+\]|(kind = )?"[^"]*"', lambda found: f"`{found[0]}`", text)
