"""The keys of a recipe, explained: made from the dataclasses, so that it cannot go stale."""

import re
from typing import Any

import torch

from clnp.core.structure.kinds import is_mixing

from .recipe import MODELS, Network, Recipe
from .schema import Key, keys

OWN_TRAINING = re.compile(r"methods\.\w+\.training\.")
"""The keys of `learner.training` once more, for each baseline."""
INTRODUCTION = """\
# Recipe keys

A recipe is a TOML file. `clnp recipes` lists those that come with the package,
`clnp recipes permuted-digits` prints one, and `clnp run my.toml` runs your own. The same list as
here is in `clnp recipes --keys`. Every key can also be set on the command line:

```sh
clnp run permuted-digits --set learner.margin=1 --set 'learner.alphas=[{fc1 = 1e-4, fc2 = 1e-3}]'
```

Only what is marked as required must be written. `"none"` stands for no value. A table that is
left out has the defaults of all its keys; `[learner.fine_tuning]` must be written, if only as an
empty table, for survivors to be fine-tuned. A wrong key or value is reported with its line.

How the parts play together is in the [quickstart](quickstart.md). This page is made by
`make docs`.
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
What `alpha` may name, with the neurons that each layer has where `widths` says nothing. A layer
that `alpha` leaves out has no penalty. The last layer makes the outputs.
"""


def sections() -> dict[str, list[Key]]:
    """The keys of a recipe by the table that they are in; of a union, by its kind too."""
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


def layers(model: Any) -> dict[str, int | None]:
    """The neurons of each layer of one of the `MODELS`, by path; None for the one of the outputs.

    layers("mlp") == {"fc1": 2000, "fc2": 2000, "fc3": None}
    """
    with torch.device("meta"):
        built = Network(model).build((3, 32, 32), 10)
    mixing = [(p, m) for p, m in built.named_modules() if is_mixing(m)]
    *hidden, (last, _) = ((path, len(module.weight)) for path, module in mixing)
    return {**dict(hidden), last: None}


def rows() -> list[dict[str, Any]]:
    """Every key with its type, default and meaning, in plain data."""
    return [
        {"key": k.path, "kind": k.kind, "type": k.type, "default": k.default, "meaning": k.doc}
        for group in sections().values()
        for k in group
    ]


def reference() -> str:
    """Every key in text for a terminal."""
    blocks = []
    for title, group in sections().items():
        lines = [title]
        for key in group:
            default = f"default {key.default}" if key.default else "required"
            lines.append(f"  {_name(key)}: {_type(key)}; {default}")
            lines.append(f"      {key.doc}")
        blocks.append("\n".join(lines))
    lines = ["Layers, for alpha, with their neurons unless [network] has widths"]
    lines += [f"  {model}: {', '.join(_layers(model))}" for model in MODELS]
    return "\n\n".join([*blocks, "\n".join(lines)])


def markdown() -> str:
    """Every key as a page of the documentation."""
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
    blocks += [f"| `{model}` | {', '.join(_layers(model))} |" for model in MODELS]
    return "\n".join([*blocks, ""])


def _layers(model: str) -> list[str]:
    return [p if size is None else f"{p} {size}" for p, size in layers(model).items()]


def _name(key: Key) -> str:
    return key.path.rpartition(".")[2]


def _type(key: Key) -> str:
    """What the key takes, text in the quotes of TOML."""
    return key.type.replace("'", '"')


def _code(text: str) -> str:
    """The text with all that one would type set as code."""
    return re.sub(r'\[[\w.]+\]|(kind = )?"[^"]*"', lambda found: f"`{found[0]}`", text)
