"""The public names, explained: makes api.md from the first lines of their docstrings.

python docs/api.py
"""

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

import clnp

PAGE = Path(__file__).with_suffix(".md")
INTRODUCTION = """\
# Public names

All that `import clnp` offers, in one line each; the docstring of each says more:
`help(clnp.Learner)`. This page is made by `make docs`.
"""
SECTIONS = {
    "The network": (
        "For [a training loop of your own](your-own-loop.md).",
        [
            "ContinualNet",
            "discover",
            "save",
            "load",
            "Graph",
            "Activity",
            "PruningPlan",
            "Capacity",
            "Forecast",
            "core.Certificate",
            "core.Ledger",
            "core.OpenState",
            "core.Kind",
            "core.Slot",
            "core.register",
            "storage.attached",
        ],
    ),
    "Learning a task": (
        "Settings have the names and meanings of the [recipe keys](recipe-keys.md).",
        [
            "Learner",
            "LearnerConfig",
            "Training",
            "FineTuning",
            "learner.TaskSettings",
            "Task",
            "Objective",
            "TaskReport",
        ],
    ),
    "Runs": (
        "[From Python](quickstart.md#the-same-from-python), [tracking](tracking.md), "
        "[reports](report.md).",
        ["Experiment", "verify", "write_report", "export", "terminal.Lines"],
    ),
    "Methods": (
        "Other methods on the same tasks, and [one of your own](comparing.md).",
        [f"methods.{name}" for name in clnp.methods.__all__],
    ),
    "Trackers": (
        "[Tracking](tracking.md) a run.",
        [f"trackers.{name}" for name in sorted(clnp.trackers.__all__)],
    ),
    "Networks": ("Those of the paper.", ["models.MLP", "models.NarrowCNN", "models.WideCNN"]),
    "Errors": (
        "All but `Problem` are a `ClnpError`, and also the built-in one in brackets.",
        sorted(
            f"errors.{name}"
            for name, thing in vars(clnp.errors).items()
            if isinstance(thing, type) and thing.__module__ == "clnp.errors"
        ),
    ),
}
"""Sections of the page: what stands above the table, and the names in it."""
WITH_METHODS = ("ContinualNet", "Learner", "Experiment")
"""Classes whose methods are listed too."""


def first_line(thing: Any) -> str:
    """The first paragraph of the docstring, as it can stand in a table."""
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def meaning(name: str) -> str:
    """What a public name is, in a line."""
    thing = named(name)
    line = first_line(thing)
    if inspect.isclass(thing) and issubclass(thing, clnp.errors.ClnpError):
        own = [base.__name__ for base in thing.__bases__ if base.__module__ == "builtins"]
        line += f" (`{', '.join(own)}`)" if own and thing is not clnp.errors.ClnpError else ""
    return line


def named(name: str) -> Any:
    """Return the thing of that name, `learner.TaskSettings` for example."""
    room, _, last = name.rpartition(".")
    where = (
        getattr(clnp, room) if room in clnp.__all__ else import_module(f"clnp.{room}".strip("."))
    )
    return getattr(where, last)


def source(name: str) -> str:
    """The file that the name is in, from docs/."""
    return f"../src/{named(name).__module__.replace('.', '/')}.py"


def methods(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class that are the library's own, in their order."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("clnp."):
            own = {n: getattr(o, "__func__", o) for n, o in vars(base).items() if n[0] != "_"}
            found = {n: o for n, o in own.items() if inspect.getdoc(o)} | found
    # What every module of PyTorch has needs no line, but for `forward`.
    known = set(dir(nn.Module)) - {"forward"} if issubclass(kind, nn.Module) else set()
    return {
        name: thing
        for name, thing in found.items()
        if (inspect.isfunction(thing) or isinstance(thing, property)) and name not in known
    }


def table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {left} | {right} |" for left, right in rows)])


def page() -> str:
    """The page in Markdown."""
    parts = [INTRODUCTION]
    for title, (above, names) in SECTIONS.items():
        parts.append(f"## {title}\n")
        if above:
            parts.append(f"{above}\n")
        parts.append(table([(f"[`{n}`]({source(n)})", meaning(n)) for n in names]) + "\n")
        for name in names:
            if name in WITH_METHODS:
                own = methods(getattr(clnp, name))
                rows = [(f"`{method}`", first_line(thing)) for method, thing in own.items()]
                parts.append(f"### {name}\n\n{table(rows)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
