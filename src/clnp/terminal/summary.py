"""What a run has come to, as text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clnp.core.forecast import Forecast
from clnp.core.layers.ledger import aligned
from clnp.methods.method import is_ours, method_of
from clnp.runs.directory import RESULT, again, command
from clnp.runs.metrics import forgetting
from clnp.text import duration
from clnp.training.events import is_a_guess

from .progress import alpha_told, described

MOST_TASKS = 5
"""Tasks that a sentence names."""
AS_GOOD = (
    "Always naming the same class is as good: train longer, at another learning rate, or with a "
    "smaller alpha."
)
"""What to do about tasks in which nothing was learnt."""
LAYERS_ABREAST = 3
"""Layers that stand beside one another in a table."""


def summary(result: Mapping[str, Any]) -> str:
    """The result of a run: scores when learnt and now, neurons by task and layer, room left."""
    parts = ["No task has been learnt yet."]
    if result["tasks"]:
        parts = [scores(result)]
    ours = is_ours(result)
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
    silent: float,
) -> str:
    """What a run is, on what it ran, and how far it has come.

    `silent` is for how many seconds nothing has been heard of it.
    """
    num_done = len(result["tasks"]) if result is not None else 0
    num_tasks = len(config["tasks"])
    what = config.get("recipe") or "an experiment"
    method = "" if is_ours(config) else f"{method_of(config)}, "
    lines = [f"{path}: {what}, {method}seed {config['seed']}, head {config['head']}"]
    if sessions:
        last = sessions[-1]
        times = "once" if len(sessions) == 1 else f"{len(sessions)} times"
        lines.append(
            f"started {times}, last {last['began']} on {last['gpu'] or last['cpu']}, "
            f"torch {last['torch']}, clnp {last['clnp']}"
        )
    if result is not None and result["finished"]:
        took = duration(result["timings"]["seconds"])
        lines.append(f"finished: {num_done} of {num_tasks} tasks in {took}")
    elif events and events[-1]["event"] == "failed":
        lines.append(f"failed after {num_done} of {num_tasks} tasks: {events[-1]['reason']}")
        if not events[-1].get("mendable"):
            remedy = "change the recipe, and begin a new run"
            if num_done and is_ours(config):
                onward = command("run RECIPE --out", path) if config.get("recipe") else again(path)
                remedy = f"change that task or its settings, or leave it out; {onward} goes on"
            lines.append(f"the same would happen again: {remedy}")
        elif again(path) not in events[-1]["reason"]:
            lines.append(f"once that is mended, {again(path)} goes on")
    elif events and events[-1]["event"] == "finished":
        lines.append(f"finished, but its {RESULT} is missing; {again(path)} writes it anew")
    else:
        stopped = bool(events) and events[-1]["event"] == "stopped"
        if stopped:
            lines.append(f"stopped after {num_done} of {num_tasks} tasks; {again(path)} goes on")
        else:
            heard = f"last heard of {duration(silent)} ago"
            lines.append(f"not finished: {num_done} of {num_tasks} tasks; {heard}")
        plan: Mapping[str, Any] = next(
            (e for e in reversed(events) if e["event"] in ("begin", "resumed")), {}
        )
        last_line = next((t for e in reversed(events) if (t := described(e, plan))), None)
        if last_line is not None:
            lines.append(f"last seen: {last_line.strip()}")
        if not stopped:
            lines.append(f"if it is not at work any more, {again(path)} goes on")
    return "\n".join(lines)


def scores(result: Mapping[str, Any]) -> str:
    """A table of the test score of each task when it was learnt and now, and what that means."""
    tasks, now = result["tasks"], result["scores"][-1]
    rows = [["task", "when learnt", "now", "outputs"]]
    for task, score in zip(tasks, now, strict=True):
        same = {True: "identical", False: "DIFFERENT", None: "no test data"}[task["unchanged"]]
        rows.append([task["task"], number(task["test_score"]), number(score), same])
    known = [float(score) for score in now if score is not None]
    objectives = {task["objective"] for task in tasks}
    title = "Test accuracy in percent" if objectives == {"classification"} else "Test score"
    text = f"{title}\n{aligned(rows)}"
    if not known:
        return text
    average = f"Average{part_of(known, now)} {sum(known) / len(known):.2f}"
    return "\n".join([text, f"{average}; {verdict(result)}.", *guesses(tasks)])


def guesses(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tasks in which nothing was learnt, in a sentence; none if that is not known of any."""
    # Not of an objective of one's own, and not while joint training waits for other tasks.
    known = [task for task in tasks if task.get("guess") is not None]
    found = [task["task"] for task in known if is_a_guess(float(task["score"]), task["guess"])]
    if not found:
        return []
    more = f" and {len(found) - MOST_TASKS} more" if len(found) > MOST_TASKS else ""
    names = ", ".join(found[:MOST_TASKS])
    return [f"NOT LEARNT: {names}{more}. {AS_GOOD}"]


def part_of(known: Sequence[Any], tasks: Sequence[Any]) -> str:
    """Of how many tasks something is known, where it is not all of them."""
    return "" if len(known) == len(tasks) else f" of {len(known)} of {len(tasks)} tasks"


def verdict(result: Mapping[str, Any]) -> str:
    """Whether the outputs of all tasks are what they were when those ended."""
    if method_of(result) == "joint":
        return "all were learnt at the same time, so that there was nothing to forget"
    judged = [task["unchanged"] for task in result["tasks"] if task["unchanged"] is not None]
    if all(judged):
        which = part_of(judged, result["tasks"])
        outputs = f"the outputs{which} are" if which else "all outputs are"
        return f"nothing was forgotten: {outputs} what they were, to the last bit"
    amount = forgetting(floats(result["scores"]))
    lost = "" if amount is None else f", forgetting {amount:.2f}"
    then = ": see clnp verify" if is_ours(result) else lost
    return f"outputs differ from when their task ended{then}"


def floats(scores: Sequence[Sequence[Any]]) -> list[list[float | None]]:
    """The scores as numbers, where a file has text for those that are not finite."""
    return [[None if score is None else float(score) for score in row] for row in scores]


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


def number(score: float | str | None) -> str:
    """Two decimals; a score that is not finite is text in the file of a run."""
    return "-" if score is None else f"{float(score):.2f}"


def everything(
    config: Mapping[str, Any], sessions: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> list[str]:
    """All that is known of a run, in parts: every task, candidate, threshold and certificate."""
    parts = [summary(result)]
    if result["tasks"]:
        parts.append(f"Candidates\n{candidates(result)}")
    if result["tasks"] and is_ours(result):
        parts.append(f"Pruning, margin {config['learner']['margin']:g}\n{thresholds(result)}")
        foretold = Forecast(**result["forecast"])
        # A sentence may begin with the name of a layer, which is as it is.
        advice = "\n".join(
            f"{text}."
            if text.startswith(tuple(foretold.free))
            else f"{text[:1].upper()}{text[1:]}."
            for text in foretold.advice
        )
        if foretold.free:
            parts.append(f"Forecast\n{foretold.table()}\n{advice}".rstrip())
        digests = [f"{digest}  {task}" for task, digest in result["certificates"].items()]
        parts.append("\n".join(["Certificates, SHA-256 of what each task reads", *digests]))
    for place, session in enumerate(sessions):
        rows = [f"{name}: {_plainly(value)}" for name, value in session.items()]
        parts.append("\n".join([f"Environment of start {place + 1}", *rows]))
    return parts


def candidates(result: Mapping[str, Any]) -> str:
    """A table of every candidate of every task; a star marks the one that was chosen."""
    rows = [["task", "chosen", "alpha", "lr", "epochs", "validation"]]
    for record in result["tasks"]:
        for place, candidate in enumerate(record["candidates"]):
            rows.append(
                [
                    record["task"],
                    "*" if place == record["winner"] else "",
                    alpha_told(candidate["alpha"]),
                    f"{candidate['lr']:g}",
                    str(candidate["num_epochs"]),
                    "diverged" if candidate["diverged"] else number(candidate["score"]),
                ]
            )
    return aligned(rows)


def thresholds(result: Mapping[str, Any]) -> str:
    """A table of what pruning did: best score, score after it and in the end, thresholds."""
    groups = list(result["capacity"]["sizes"])
    rows = [["task", "best", "pruned", "in the end", "rounds", *groups]]
    for record in result["tasks"]:
        pruning = record["pruning"]
        rows.append(
            [
                record["task"],
                number(record["best_score"]),
                number(pruning["score"]),
                number(record["score"]),
                str(record["num_rounds"]),
                *(f"{float(pruning['thresholds'][group]):.4g}" for group in groups),
            ]
        )
    return aligned(rows)


def _plainly(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
