"""How the runs of a report were made: their configs, environments and certificates."""

import json
from typing import Any

from clnp.runs.records import RunHistory, flat
from clnp.text import clean, duration

from . import markup
from .collection import Collection, Member, settings_of
from .picture import Cell, Table

MOST_CONFIGS = 12


def particulars(collection: Collection) -> str:
    """Runs, settings, recipe, environment and certificates, each in a table or on request."""
    parts = []
    if collection.single is None:
        parts += [markup.heading(3, "Runs"), markup.table(_runs(collection), label="Runs")]
    if len(collection.members) > 1:
        parts.append(markup.heading(3, "What differs"))
        differences = _differences(collection)
        parts.append(
            markup.table(differences, label="Settings that differ", kind="wide")
            if differences.rows
            else markup.paragraph("The settings are the same but for the seeds.")
        )
    parts.append(markup.heading(3, "Settings"))
    for member in collection.members[:MOST_CONFIGS]:
        parts += _settings(member, several=len(collection.members) > 1)
    if len(collection.members) > MOST_CONFIGS:
        left_out = len(collection.members) - MOST_CONFIGS
        parts.append(markup.paragraph(f"Those of {left_out} more are in their config.json."))
    parts += [markup.heading(3, "Environment"), _environments(collection)]
    parts += [markup.heading(3, "Certificates"), *_certificates(collection)]
    return "\n".join(parts)


def _runs(collection: Collection) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for member in collection.members:
        for run in member.runs:
            state = "finished" if run.finished else "not finished"
            rows.append(
                (
                    clean(run.path),
                    run.method,
                    run.seed,
                    f"{len(run.learnt)} of {run.num_tasks}",
                    "failed" if run.failed is not None else state,
                    None if run.seconds is None else duration(run.seconds),
                )
            )
    return Table(("run", "method", "seed", "tasks", "state", "time"), tuple(rows))


def _differences(collection: Collection) -> Table:
    """The keys of the configs in which members differ, but for the seed."""
    configs = [settings_of(member.runs[0]) for member in collection.members]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    rows: list[tuple[Cell, ...]] = []
    for key in keys:
        values = [_plain(config[key])[:200] if key in config else None for config in configs]
        # A key that is none says no more than one that is not there.
        if len({None if value == "none" else value for value in values}) > 1:
            rows.append((key, *values))
    return Table(("key", *(clean(m.label) for m in collection.members)), tuple(rows))


def _plain(value: Any) -> str:
    """The value as it stands in a file; text as it is."""
    if value is None:
        return "none"
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _settings(member: Member, *, several: bool) -> list[str]:
    run = member.runs[0]
    rows = [
        (key, _plain(value))
        for key, value in flat({**run.config, "tasks": None}).items()
        if key != "tasks"
    ]
    who = f" of {clean(member.label)}" if several else ""
    content = markup.table(Table(("key", "value"), tuple(rows)), label=f"Config{who}", kind="wide")
    parts = [markup.folded(f"Every setting{who}", content)]
    if run.text:
        # Line by line: the text of a recipe may hold anything.
        lines = "\n".join(
            markup.text(line) if line.strip() else "" for line in run.text.splitlines()[:2000]
        )
        parts.append(
            markup.folded(f"The recipe{who}", f'<pre tabindex="0"><code>{lines}</code></pre>')
        )
    return parts


def _environments(collection: Collection) -> str:
    """Each environment once, with how often a run was started in it."""
    found: dict[str, tuple[dict[str, str], list[RunHistory]]] = {}
    for run in collection.runs:
        for session in run.sessions:
            plain = {str(k): _plain(v) for k, v in session.items() if k not in ("began", "command")}
            found.setdefault(json.dumps(plain, sort_keys=True), (plain, []))[1].append(run)
    if not found:
        return markup.paragraph("There is no environment.json.")
    environments = list(found.values())[:8]
    keys = list(dict.fromkeys(key for plain, _ in environments for key in plain))
    rows: list[tuple[Cell, ...]] = [
        (key, *(plain.get(key) for plain, _ in environments)) for key in keys
    ]
    began = [
        str(session["began"])
        for run in collection.runs
        for session in run.sessions
        if "began" in session
    ]
    if began:
        rows.insert(0, ("began", *([min(began)] + [None] * (len(environments) - 1))))
    rows.append(("starts", *(len(runs) for _, runs in environments)))
    header = ("", *(["value"] if len(environments) == 1 else _numbered(len(environments))))
    return markup.table(Table(header, tuple(rows)), label="Environment", kind="wide")


def _numbered(num: int) -> list[str]:
    return [f"environment {number}" for number in range(1, num + 1)]


def _certificates(collection: Collection) -> list[str]:
    """The SHA-256 of what each task reads, run by run."""
    several = collection.single is None
    parts = []
    for run in collection.runs:
        rows = tuple((clean(t.name), t.certificate) for t in run.learnt if t.certificate)
        if not rows:
            continue
        table = markup.table(
            Table(("task", "SHA-256"), rows),
            label=f"Certificates of {run.path}",
            kind="wide digests",
        )
        title = f"Certificates of {clean(run.path)}" if several else "Certificates"
        parts.append(markup.folded(title, table) if several else table)
    if not parts:
        return [markup.paragraph("There are none: only neural pruning freezes what it has learnt.")]
    words = (
        "What each ended task reads, hashed when it ended. clnp verify recomputes all of them from "
        "the checkpoint, and every test score."
    )
    return [markup.paragraph(words), *parts]
