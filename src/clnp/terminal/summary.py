"""The results of a run as text: the summary after it, and all the details."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from clnp.records import (
    OURS,
    CandidateRecord,
    Environment,
    LearnerSettings,
    RunResult,
    TaskRecord,
    alpha_text,
)
from clnp.runs.metrics import forgetting
from clnp.text import clean

from .tables import full_text, measure, number, table

MOST_TASKS = 5
"""Tasks that a sentence names."""
AS_GOOD = (
    "Always naming the same class is as good: train longer, at another learning rate, or with a "
    "smaller alpha."
)
"""The remedy for tasks in which nothing was learned."""
LAYERS_ABREAST = 3
"""Layers beside one another in a table."""


def summary(result: RunResult) -> str:
    """Return the result of a run: scores then and now, neurons by task and layer, room left."""
    ours = bool(result.tasks) and result.method == OURS
    parts = [scores(result) if result.tasks else "No task has ended yet."]
    if ours:
        parts.append(neurons(result))
    if result.full is not None:
        # The remedy after the first sentence is for Python programs.
        reason = result.full.partition(". ")[0]
        parts.append(f"Full: {reason}. Give the network larger widths, or the tasks more margin.")
    if ours and result.forecast:
        parts.append(f"Room: {result.forecast.headline}.")
    return "\n\n".join(parts)


def scores(result: RunResult) -> str:
    """Return a table of the test score of each task when it ended and now, and the verdict."""
    same = {True: "identical", False: "DIFFERENT", None: "no test data"}
    now = result.scores[-1] if result.scores else ()
    rows = [
        [task.task, number(task.test_score), number(score), same[task.unchanged]]
        for task, score in zip(result.tasks, now, strict=False)
    ]
    percent = measure(result) == "test accuracy"
    title = "Test accuracy in percent" if percent else "Test score"
    text = f"{title}\n{full_text(table(['task', 'when learned', 'now', 'outputs'], rows))}"
    known = [score for score in now if score is not None]
    if not known:
        return text
    average = f"Average{part_of(known, now)} {sum(known) / len(known):.2f}"
    return "\n".join([text, f"{average}; {verdict(result)}.", *guesses(result.tasks)])


def guesses(tasks: Iterable[TaskRecord]) -> list[str]:
    """Return a sentence about the tasks in which nothing was learned, if there are any."""
    found = [task.task for task in tasks if task.is_guess]
    if not found:
        return []
    more = f" and {len(found) - MOST_TASKS} more" if len(found) > MOST_TASKS else ""
    return [f"NOT LEARNED: {', '.join(found[:MOST_TASKS])}{more}. {AS_GOOD}"]


def part_of(known: Sequence[object], tasks: Sequence[object]) -> str:
    """Return of how many tasks something is known, if it is not all of them."""
    return "" if len(known) == len(tasks) else f" of {len(known)} of {len(tasks)} tasks"


def verdict(result: RunResult) -> str:
    """Return whether the outputs of all tasks are the same as when those ended."""
    if result.method == "joint":
        return "all tasks were learned together, so there was nothing to forget"
    judged = [task.unchanged for task in result.tasks if task.unchanged is not None]
    if all(judged):
        which = part_of(judged, result.tasks)
        outputs = f"the outputs{which}" if which else "all outputs"
        return f"nothing was forgotten: {outputs} are the same to the last bit"
    lost = forgetting(result.scores)
    end = "" if lost is None else f", forgetting {lost:.2f}"
    if result.method == OURS:
        end = ": see clnp verify"
    return f"outputs differ from when their task ended{end}"


def neurons(result: RunResult) -> str:
    """Return tables of new, reused and free neurons by task, a few layers abreast."""
    sizes = result.capacity.sizes
    usages = {(usage.task, usage.group): usage for usage in result.capacity.usages}
    groups, parts = list(sizes), ["Neurons: new with the task, reused by it, left free"]
    for start in range(0, len(groups), LAYERS_ABREAST):
        block = groups[start : start + LAYERS_ABREAST]
        head, rows = ["task"], [["(at the start)"]]
        for group in block:
            head += [f"{group}: new", "reused", "free"]
            rows[0] += ["", "", str(sizes[group])]
        for task in result.tasks:
            row = [task.task]
            for group in block:
                usage = usages.get((task.task, group))
                counts = (usage.new, usage.reused, usage.free) if usage else (None, None, None)
                row += ["?" if count is None else str(count) for count in counts]
            rows.append(row)
        parts += [full_text(table(head, rows)), ""]
    return "\n".join(parts).rstrip()


def everything(
    settings: LearnerSettings, environments: Sequence[Environment], result: RunResult | None
) -> list[str]:
    """Return all details of a run: every task, candidate, threshold and certificate."""
    parts = [] if result is None else [summary(result)]
    if result is not None and result.tasks:
        parts.append(f"Candidates\n{candidates(result)}")
    if result is not None and result.tasks and result.method == OURS:
        parts.append(f"Pruning, margin {settings.margin:g}\n{thresholds(result)}")
        if result.forecast and result.forecast.free:
            # A sentence that begins with the name of a layer keeps its case.
            advice = "\n".join(
                f"{text}." if text.startswith(tuple(result.forecast.free)) else sentence(text)
                for text in result.forecast.advice
            )
            parts.append(f"Forecast\n{result.forecast.table()}\n{advice}".rstrip())
        digests = [f"{digest}  {clean(task)}" for task, digest in result.certificates.items()]
        parts.append("\n".join(["Certificates, SHA-256 of what each task reads", *digests]))
    for index, environment in enumerate(environments):
        values = {**asdict(environment), "command": " ".join(environment.command)}
        rows = [f"{name}: {value}" for name, value in values.items() if value is not None]
        parts.append("\n".join([f"Environment of start {index + 1}", *rows]))
    return parts


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def candidates(result: RunResult) -> str:
    """Return a table of every candidate of every task; a star marks the chosen one."""

    def row(record: TaskRecord, index: int, candidate: CandidateRecord) -> list[str]:
        score = "diverged" if candidate.diverged else number(candidate.score)
        chosen = "*" if index == record.winner else ""
        settings = [alpha_text(candidate.alpha), f"{candidate.lr:g}", str(candidate.num_epochs)]
        return [record.task, chosen, *settings, score]

    head = ["task", "chosen", "alpha", "lr", "epochs", "validation"]
    rows = [row(r, i, each) for r in result.tasks for i, each in enumerate(r.candidates)]
    return full_text(table(head, rows))


def thresholds(result: RunResult) -> str:
    """Return a table of the scores before and after pruning and at the end, and thresholds."""
    groups = list(result.capacity.sizes)

    def threshold(values: Mapping[str, float], group: str) -> str:
        return f"{values[group]:.4g}" if group in values else "-"

    rows = [
        [
            record.task,
            number(record.best_score),
            number(record.pruning.score),
            number(record.score),
            str(record.num_rounds),
            *(threshold(record.pruning.thresholds, group) for group in groups),
        ]
        for record in result.tasks
    ]
    return full_text(table(["task", "best", "pruned", "at the end", "rounds", *groups], rows))
