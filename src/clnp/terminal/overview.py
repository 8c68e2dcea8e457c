"""What a run is and has come to, in a screenful: scores, capacity, choices, room."""

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from clnp.core.forecast import Forecast
from clnp.core.layers.ledger import free_fraction
from clnp.methods.method import is_ours
from clnp.runs.directory import (
    CHECKPOINT,
    ENVIRONMENT,
    RECIPE,
    command,
    expanded,
    read_config,
    read_events,
    read_json,
    read_result,
    reading,
    silence,
)
from clnp.runs.metrics import backward_transfer, forgetting
from clnp.studies.comparison import read_comparison, rows, texts
from clnp.studies.series import aggregate, described as series_text, finished_results, read_series

from .progress import alpha_told
from .status import Following
from .summary import everything, floats, guesses, part_of, status, verdict
from .tables import Screen, layers, measure, plain, screen_of, tasks
from .watch import unfinished

MOST_CHOICES = 2
"""Winners of the grid that are spelt out."""

Result = Mapping[str, Any]


def inspect(path: str, *, in_full: bool = False, screen: Screen | None = None) -> tuple[Any, str]:
    """What a run is, how far it has come, and what it has come to; in full, or in a screenful."""
    place = expanded(path)
    if comparison := read_comparison(place):
        with reading(place):
            return _comparison(place, comparison)
    if series := read_series(place):
        with reading(place):
            return _series(place, series)
    config = read_config(place)
    result = read_result(place) or None
    sessions = read_json(place, ENVIRONMENT, [])
    answer = {"config": config, "environment": sessions, "result": result}
    with reading(place):
        told = status(place, config, sessions, result, read_events(place), silence(place))
        if in_full:
            parts = [told, *([] if result is None else everything(config, sessions, result))]
            return answer, "\n".join(map(plain, "\n\n".join(parts).splitlines()))
        screen = screen or screen_of(sys.stdout)
        return answer, overview(place, config, sessions, result, told, screen=screen)


def _comparison(place: Path, comparison: Mapping[str, Any]) -> tuple[Any, str]:
    compared = rows(place)
    methods, seeds = comparison["methods"], comparison["seeds"]
    num_done = sum(len(row["seeds"]) for row in compared)
    text = (
        f"{place}: {comparison['recipe']} by {', '.join(methods)}, "
        f"{num_done} of {len(methods) * len(seeds)} runs finished"
    )
    text = "\n".join([text, *unfinished(Following(place).look())])
    if compared:
        text += f"\n\n{texts(compared)['txt'].rstrip()}"
    return {"comparison": comparison, "table": compared}, text


def _series(place: Path, series: Mapping[str, Any]) -> tuple[Any, str]:
    results = finished_results(place)
    text = f"{place}: {series['recipe']}, {len(results)} of {len(series['seeds'])} runs finished"
    text = "\n".join([text, *unfinished(Following(place).look())])
    if not results:
        return {"series": series, "summary": None}, text
    found = aggregate(results)
    return {"series": series, "summary": found}, f"{text}\n\n{series_text(found)}"


def overview(
    place: Path,
    config: Mapping[str, Any],
    sessions: Sequence[Mapping[str, Any]],
    result: Result | None,
    told: str,
    *,
    screen: Screen,
) -> str:
    """A screenful: what was `told` of how far the run has come, and what it has come to."""
    parts = [[line for text in told.splitlines() for line in screen.wrapped(text, indent=2)]]
    notes: list[str] = []
    if result is not None and result["tasks"]:
        parts.append([line for text in headline(result) for line in screen.wrapped(text, indent=2)])
        parts.append(tasks(result, screen=screen))
        if result["capacity"]["sizes"]:
            parts.append(layers(result, screen=screen))
        notes = [*choices(config, result), *room(result), *stored(result), *proofs(place, result)]
    elif result is not None:
        parts.append(["No task has been learnt yet."])
        notes = room(result)
    notes += environment(sessions)
    parts.append([line for text in notes for line in screen.wrapped(text, indent=2)])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def headline(result: Result) -> list[str]:
    """Average, forgetting and free neurons, and whether that has been verified."""
    known = [float(score) for score in result["scores"][-1] if score is not None]
    words = []
    if known:
        which = part_of(known, result["tasks"])
        words.append(f"average {measure(result)}{which} {fmean(known):.2f}")
    lost = forgetting(floats(result["scores"]))
    same = all(task["unchanged"] in (True, None) for task in result["tasks"])
    if same and lost is not None and math.isfinite(lost):
        words.append("forgetting exactly 0" if lost == 0 else f"forgetting {lost:.2f}")
    elif lost is not None:
        words.append(f"forgetting {lost:.2f}")
        change = backward_transfer(floats(result["scores"]))
        words.append("" if change is None else f"backward transfer {change:.2f}")
    sizes, free = result["capacity"]["sizes"], result["capacity"]["free"]
    if sizes:
        words.append(f"layers {100 * free_fraction(free, sizes):.0f} % free on average")
    text = ", ".join(word for word in words if word)
    lines = [f"{text[:1].upper()}{text[1:]}."] if text else []
    if any(task["unchanged"] is not None for task in result["tasks"]):
        lines.append(f"Checked after every task; {verdict(result)}.")
    return [*lines, *guesses(result["tasks"])]


def choices(config: Mapping[str, Any], result: Result) -> list[str]:
    """What pruning gave up, and what was chosen from the grid."""
    learner, records = config["learner"], result["tasks"]
    if not is_ours(result):
        return []
    given = [
        float(record["best_score"]) - float(record["score"])
        for record in records
        if record["best_score"] is not None and record["score"] is not None
    ]
    how = "one threshold for each layer" if learner["per_layer"] else "one threshold"
    text = f"Pruning: by {learner['importance']}, {how}, margin {learner['margin']:g}"
    if learner["tasks"]:
        text += " unless a task has its own"
    if given:
        text += f"; {_given_up(fmean(given), max(given))}"
    if learner["fine_tuning"] is not None:
        rounds = Counter(record["num_rounds"] for record in records)
        kept = ", ".join(
            f"{count} by {times} task{'' if times == 1 else 's'}"
            for count, times in sorted(rounds.items())
        )
        text += f"; fine-tuning rounds kept: {kept}"
    return [f"{text}.", _grid(records)]


def _given_up(mean: float, most: float) -> str:
    """What the validation score lost, or gained, as with fine-tuning it may."""
    # Adding nothing turns a zero with a sign into one without.
    mean, most = round(mean, 2) + 0.0, round(most, 2) + 0.0
    if mean < 0 < most:
        return f"validation gained: {-mean:.2f} on average; given up: {most:.2f} at most"
    if mean < 0:
        return f"validation gained: {-mean:.2f} on average, {abs(most):.2f} at least"
    return f"validation given up: {mean:.2f} on average, {most:.2f} at most"


def _grid(records: Sequence[Mapping[str, Any]]) -> str:
    winners: Counter[str] = Counter()
    tried = [len(record["candidates"]) for record in records]
    diverged = sum(c["diverged"] is not None for record in records for c in record["candidates"])
    for record in records:
        winner = record["candidates"][record["winner"]]
        winners[f"alpha {alpha_told(winner['alpha'])}, lr {winner['lr']:g}"] += 1
    sizes = f"{tried[0]}" if len(set(tried)) == 1 else f"{tried[0]} for the first task, "
    if len(set(tried)) > 1:
        rest = sorted(set(tried[1:]))
        sizes += f"{' or '.join(map(str, rest))} for the others"
    most = [
        f"{choice} ({count} of {len(records)} tasks)"
        for choice, count in winners.most_common(MOST_CHOICES)
    ]
    if len(winners) > MOST_CHOICES:
        most.append(f"{len(winners) - MOST_CHOICES} others")
    end = f"; {diverged} diverged" if diverged else ""
    return f"Grid: candidates {sizes}; chosen: {'; '.join(most)}{end}."


def room(result: Result) -> list[str]:
    """Why the network is full, if it is, and the forecast."""
    found = []
    if result["full"] is not None:
        found.append(f"Full: {result['full'].partition('. ')[0]}.")
    if result["tasks"] and is_ours(result):
        found.append(f"Room: {Forecast(**result['forecast'])}.")
    return found


def stored(result: Result) -> list[str]:
    """What ended tasks take on a disk, and how much memory the run took."""
    sizes = {name: count for name, count in result.get("stored_bytes", {}).items() if count}
    parts = [f"{name.replace('_', ' ')} {count / 1e6:.2f} MB" for name, count in sizes.items()]
    peak = result["timings"].get("peak_bytes")
    if peak:
        parts.append(f"peak memory of the run {peak / 1e6:.0f} MB")
    return [f"Size: {', '.join(parts)}."] if parts else []


def proofs(place: Path, result: Result) -> list[str]:
    """How many tasks have a certificate, and how to recompute them."""
    certificates = result.get("certificates", {})
    if not certificates:
        return []
    last = list(certificates.values())[-1]
    tasks = "1 task" if len(certificates) == 1 else f"{len(certificates)} tasks"
    from_recipe = (place / RECIPE).is_file()
    how = command("verify", place) if from_recipe else f"ContinualNet.load of its {CHECKPOINT}"
    return [
        f"Certificates: SHA-256 of what {tasks} read, the last {last[:12]}; {how} recomputes them."
    ]


def environment(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """On what the run was last started, less what its status says."""
    if not sessions:
        return []
    last = sessions[-1]
    parts = [f"Python {last.get('python', '?')}", f"NumPy {last.get('numpy', '?')}"]
    parts += [f"CUDA {last['cuda']}"] if last.get("cuda") else []
    threads = last.get("num_threads", "?")
    parts.append(f"{last.get('platform', '?')}, {threads} thread{'' if threads == 1 else 's'}")
    commit = str(last.get("commit") or "not known")
    # A commit that ends with a plus has files that differ from it.
    parts.append(f"commit {commit[:12]}{'+' if commit.endswith('+') else ''}")
    return [f"Environment: {', '.join(parts)}."]
