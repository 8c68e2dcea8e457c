"""What a run has come to, as text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .compare import read_comparison, rows, texts
from .console import described
from .ledger import aligned
from .metrics import forgetting
from .outlook import Forecast
from .runs import (
    ENVIRONMENT,
    RESULT,
    command,
    expanded,
    read_config,
    read_events,
    read_json,
    reading,
)
from .series import aggregate, described as series_text, finished_results, read_series

LAYERS_ABREAST = 3
"""Layers that stand beside one another in a table."""


def inspect(path: str) -> tuple[Any, str]:
    """What a run is, how far it has come, and what it has come to."""
    place = expanded(path)
    if comparison := read_comparison(place):
        compared = rows(place)
        methods, seeds = comparison["methods"], comparison["seeds"]
        num_done = sum(len(row["seeds"]) for row in compared)
        text = (
            f"{place}: {comparison['recipe']} by {', '.join(methods)}, "
            f"{num_done} of {len(methods) * len(seeds)} runs finished"
        )
        if compared:
            text += f"\n\n{texts(compared)['txt'].rstrip()}"
        return {"comparison": comparison, "table": compared}, text
    if series := read_series(place):
        results = finished_results(place)
        text = (
            f"{place}: {series['recipe']}, {len(results)} of {len(series['seeds'])} runs finished"
        )
        if not results:
            return {"series": series, "summary": None}, text
        found = aggregate(results)
        return {"series": series, "summary": found}, f"{text}\n\n{series_text(found)}"
    config = read_config(place)
    result = read_json(place, RESULT, {}) or None
    sessions = read_json(place, ENVIRONMENT, [])
    answer = {"config": config, "environment": sessions, "result": result}
    with reading(place):
        text = status(place, config, sessions, result, read_events(place))
        return answer, text if result is None else f"{text}\n\n{summary(result)}"


def summary(result: Mapping[str, Any]) -> str:
    """The result of a run: scores when learnt and now, neurons by task and layer, room left."""
    parts = ["No task has been learnt yet."]
    if result["tasks"]:
        parts = [scores(result)]
    ours = result.get("method", "clnp") == "clnp"
    if result["tasks"] and ours:
        parts.append(neurons(result))
    if result["full"] is not None:
        # What a Python program can do about it follows the first sentence.
        reason = result["full"].partition(". ")[0]
        parts.append(f"Full: {reason}. Give the network larger widths, or the tasks more margin.")
    if result["tasks"] and ours:
        parts.append(f"Room: {Forecast(**result['forecast']).headline}.")
    return "\n\n".join(parts)


def status(
    path: Path,
    config: Mapping[str, Any],
    sessions: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
    events: Sequence[Mapping[str, Any]],
) -> str:
    """What a run is, on what it ran, and how far it has come."""
    num_done = len(result["tasks"]) if result is not None else 0
    num_tasks = len(config["tasks"])
    what = config.get("recipe") or "an experiment"
    name = config.get("method", "clnp")
    method = "" if name == "clnp" else f"{name}, "
    lines = [f"{path}: {what}, {method}seed {config['seed']}, head {config['head']}"]
    if sessions:
        last = sessions[-1]
        times = "once" if len(sessions) == 1 else f"{len(sessions)} times"
        lines.append(
            f"started {times}, last {last['began']} on {last['gpu'] or last['cpu']}, "
            f"torch {last['torch']}, clnp {last['clnp']}"
        )
    if result is not None and result["finished"]:
        seconds = result["timings"]["seconds"]
        lines.append(f"finished: {num_done} of {num_tasks} tasks in {seconds:.1f} s")
    elif events and events[-1]["event"] == "failed":
        lines.append(f"failed after {num_done} of {num_tasks} tasks: {events[-1]['reason']}")
        lines.append("the same would happen again: change the recipe, and begin a new run")
    else:
        again = command("resume", path)
        lines.append(f"not finished: {num_done} of {num_tasks} tasks; {again} goes on")
        plan: Mapping[str, Any] = next(
            (e for e in reversed(events) if e["event"] in ("begin", "resumed")), {}
        )
        last_line = next((t for e in reversed(events) if (t := described(e, plan))), None)
        if last_line is not None:
            lines.append(f"last seen: {last_line.strip()}")
    return "\n".join(lines)


def scores(result: Mapping[str, Any]) -> str:
    """A table of the test score of each task when it was learnt and now, and what that means."""
    tasks, now = result["tasks"], result["scores"][-1]
    rows = [["task", "when learnt", "now", "outputs"]]
    for task, score in zip(tasks, now, strict=True):
        same = {True: "identical", False: "DIFFERENT", None: "no test data"}[task["unchanged"]]
        rows.append([task["task"], _number(task["test_score"]), _number(score), same])
    known = [float(score) for score in now if score is not None]
    objectives = {task["objective"] for task in tasks}
    title = "Test accuracy in percent" if objectives == {"classification"} else "Test score"
    text = f"{title}\n{aligned(rows)}"
    if not known:
        return text
    if all(task["unchanged"] in (True, None) for task in tasks):
        verdict = "nothing was forgotten: all outputs are what they were, to the last bit"
    else:
        amount = forgetting(result["scores"])
        lost = "" if amount is None else f", forgetting {amount:.2f}"
        then = ": see clnp verify" if result.get("method", "clnp") == "clnp" else lost
        verdict = f"outputs differ from when their task ended{then}"
    return f"{text}\nAverage {sum(known) / len(known):.2f}; {verdict}."


def neurons(result: Mapping[str, Any]) -> str:
    """Tables of new, reused and free neurons by task, a few layers abreast."""
    sizes = result["capacity"]["sizes"]
    usages = {(u["task"], u["group"]): u for u in result["capacity"]["usages"]}
    tasks = [task["task"] for task in result["tasks"]]
    groups = list(sizes)
    blocks = [
        _block(groups[start : start + LAYERS_ABREAST], tasks, sizes, usages)
        for start in range(0, len(groups), LAYERS_ABREAST)
    ]
    return "Neurons: new with the task, reused by it, left free\n" + "\n\n".join(blocks)


def _block(
    groups: Sequence[str],
    tasks: Sequence[str],
    sizes: Mapping[str, int],
    usages: Mapping[tuple[str, str], Mapping[str, Any]],
) -> str:
    header = ["task"]
    for group in groups:
        header += [f"{group}: new", "reused", "free"]
    rows = [header]
    start = ["(at the start)"]
    for group in groups:
        start += ["", "", str(sizes[group])]
    rows.append(start)
    for task in tasks:
        row = [task]
        for group in groups:
            usage = usages[task, group]
            reused = "?" if usage["reused"] is None else str(usage["reused"])
            row += [str(usage["new"]), reused, str(usage["free"])]
        rows.append(row)
    return aligned(rows)


def _number(score: float | str | None) -> str:
    """Two decimals; a score that is not finite is text in the file of a run."""
    return "-" if score is None else f"{float(score):.2f}"
