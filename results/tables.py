"""Write the tables of results in README.md and docs/, between their marks.

    python results/tables.py

A mark names a table and its recipes:

    <!-- table: capacity permuted-mnist -->
    <!-- end of table -->
"""

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clnp.records import Spread
from clnp.studies.summaries import plus_minus, spread

HERE = Path(__file__).parent
PAGES = ("README.md", "docs/reproduction.md", "docs/baselines.md")
MARK = re.compile(r"(<!-- table: (\w+)([^>]*) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COMMON = (
    "training.precision",
    "training.channels_last",
    "training.cuda_graph",
    "torch.backends.cudnn.benchmark",
    "learner.training.precision",
    "learner.training.channels_last",
)
"""Settings that only change the speed, which a table leaves out."""
PAPER = {
    "permuted-mnist": ("permuted MNIST, 10 tasks, 784-2000-2000-10, single head", "98.42 ± 0.04"),
    "split-cifar-narrow-m1": ("six CIFAR tasks, narrow multi-head CNN, margin 1", "figure only"),
    "split-cifar-narrow-m2": ("the same, margin 2", "figure only"),
    "split-cifar-narrow-m4-finetune": ("the same, margin 4, then fine-tuned", "figure only"),
    "split-cifar-narrow-best": ("the same, pruned by contribution, with flips", "not in the paper"),
    "split-cifar-wide": ("eleven CIFAR tasks, wide single-head CNN", "figure only"),
}

PUBLISHED = {
    "permuted-mnist": {"ewc": 97.0, "si": 97.2, "superposition": 97.6, "hat": 98.6},
    "permuted-mnist-multi-head": {"ewc": 97.0, "si": 97.2, "superposition": 97.6},
    "split-cifar-narrow-m4-finetune": {"si": 73.5},
}
"""Averages over all tasks after the last one, as printed."""
TOLERANCE = 0.5
PRINTED_WIDTH = 2000
"""Neurons of each hidden layer of the paper's network for permuted MNIST."""


def headline() -> list[list[str]]:
    """Return the average of every recipe, and that of the paper."""
    rows = [["experiment", "recipe", "average test accuracy", "the paper", "seeds", "forgetting"]]
    for recipe, (what, paper) in PAPER.items():
        if not (HERE / recipe / "summary.json").is_file():
            continue
        summary = _summary(recipe)
        forgetting = "none, to the bit" if summary["unchanged"] else f"{summary['forgetting']:.2f}"
        average = f"**{_shown(summary['average'])}**"
        seeds = str(len(summary["seeds"]))
        rows.append([what, f"`{recipe}`", average, paper, seeds, forgetting])
    return rows


def _shown(value: dict[str, float], digits: int = 2) -> str:
    """Mean and deviation, as in a summary."""
    return plus_minus(Spread(value["mean"], value["deviation"]), digits)


def accuracy(*recipes: str) -> list[list[str]]:
    """The accuracy of every task after the last one, a row for each recipe."""
    summaries = [_summary(recipe) for recipe in recipes]
    tasks = [f"T{number + 1}" for number in range(len(summaries[0]["tasks"]))]
    return [
        ["", *tasks, "mean"],
        *(
            [f"`{s['recipe']}`", *(_shown(t, 1) for t in s["tasks"]), _shown(s["average"])]
            for s in summaries
        ),
    ]


def capacity(recipe: str) -> list[list[str]]:
    """Return the percentage of claimed neurons after each task, a row for each layer."""
    results = _results(recipe)
    num_tasks = min(len(result["tasks"]) for result in results)
    sizes = results[0]["capacity"]["sizes"]
    rows = [["used, %", *(f"T{number + 1}" for number in range(num_tasks))]]
    for group, size in sizes.items():
        used = [
            statistics.fmean(
                100 * sum(record["new"][group] for record in result["tasks"][: number + 1]) / size
                for result in results
            )
            for number in range(num_tasks)
        ]
        rows.append([f"{group} ({size})", *(f"{value:.1f}" for value in used)])
    return rows


def pruning(*recipes: str) -> list[list[str]]:
    """Return the validation score of the first task before and after pruning and fine-tuning."""
    rows = [["validation score of task 1", "unpruned", "pruned", "in the end"]]
    for recipe in recipes:
        first = [result["tasks"][0] for result in _results(recipe)]
        columns = (
            [task["best_score"] for task in first],
            [task["pruning"]["score"] for task in first],
            [task["score"] for task in first],
        )
        rows.append([f"`{recipe}`", *(plus_minus(spread(column), 1) for column in columns)])
    return rows


def comparison(recipe: str) -> list[list[str]]:
    """Return the table of a comparison."""
    lines = (HERE / f"compare-{recipe}" / "comparison.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def published(recipe: str) -> list[list[str]]:
    """Return the averages of baselines, as published and as measured."""
    rows = [["method", "published", "measured", "difference", f"at most {TOLERANCE} below"]]
    for method, number in PUBLISHED[recipe].items():
        scores = [result["scores"][-1] for result in _results(f"compare-{recipe}/{method}")]
        measured = spread([statistics.fmean(row) for row in scores])
        difference = measured.mean - number
        verdict = "yes" if difference >= -TOLERANCE else "no"
        rows.append(
            [f"`{method}`", f"{number:.1f}", plus_minus(measured), f"{difference:+.2f}", verdict]
        )
    return rows


def search(folder: str, file: str = "baselines.jsonl") -> list[list[str]]:
    """Return the runs of a search with seed 0, the best of each method in bold."""
    lines = (HERE / folder / file).read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["seed"] == 0]
    rows = [["method", "set", "average", "when learned"]]
    for record in records:
        settings = dict(record["set"])
        method = settings.pop("method", "clnp")
        rivals = [
            r["average"]
            for r in records
            if r["set"].get("method", "clnp") == method and _is_of_the_recipe(r["set"])
        ]
        average, learned = f"{record['average']:.2f}", record["learned"]
        best = len(rivals) > 1 and record["average"] == max(rivals)
        known = all(score is not None for score in learned)
        rows.append(
            [
                f"`{method}`",
                ", ".join(_setting(k, v) for k, v in settings.items() if k not in COMMON),
                f"**{average}**" if best else average,
                f"{statistics.fmean(learned):.2f}" if known else "-",
            ]
        )
    return rows


def tried(path: str) -> list[list[str]]:
    """Return the runs of a search for neural pruning, in the order of the averages."""
    records = [json.loads(line) for line in (HERE / path).read_text().splitlines()]
    several = any(record["n"] > 1 for record in records)
    rows = [["set", "validation", "test", "neurons kept, layer 1 and 2"]]
    if several:
        rows = [["set", "tasks learned", "validation", "test", "used, layer 1 and 2"]]
    for record in sorted(records, key=lambda record: float(record["mean"])):
        settings = [text.split("=", 1) for text in record["set"]]
        changed = [_assignment(key, value) for key, value in settings if key != "stream.num_tasks"]
        validation = f"{statistics.fmean(record['val']):.2f}"
        layers = [sum(record[layer]) for layer in ("fc1", "fc2")]
        row = [", ".join(changed) or "as printed", validation, f"{record['mean']:.2f}"]
        if several:
            row.insert(1, f"{record['n']}, then full" if record["full"] else str(record["n"]))
            row.append(", ".join(f"{100 * num / PRINTED_WIDTH:.0f} %" for num in layers))
        else:
            row.append(", ".join(map(str, layers)))
        rows.append(row)
    return rows


def _assignment(key: str, value: str) -> str:
    """Return an assignment of a run, without the common start of all keys."""
    return f"`{key.removeprefix('learner.').removeprefix('training.')} = {value}`"


def _is_of_the_recipe(settings: dict[str, Any]) -> bool:
    """Whether tasks and network are those of the recipe."""
    return not any(key.startswith(("network.", "stream.")) for key in settings)


def _setting(key: str, value: Any) -> str:
    key = key.removeprefix("training.")
    return f"`{key} = {json.dumps(value)}`"


TABLES = {
    "headline": headline,
    "accuracy": accuracy,
    "capacity": capacity,
    "pruning": pruning,
    "comparison": comparison,
    "published": published,
    "search": search,
    "tried": tried,
}


def filled(text: str) -> str:
    """Return the page with the current results in every table."""

    def fill(mark: re.Match[str]) -> str:
        begin, name, recipes, end = mark.groups()
        return f"{begin}{markdown(TABLES[name](*recipes.split()))}\n{end}"

    return MARK.sub(fill, text)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as a Markdown table with the first row as its header."""
    head, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def _summary(recipe: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((HERE / recipe / "summary.json").read_text())
    return summary


def _results(recipe: str) -> list[dict[str, Any]]:
    paths = sorted((HERE / recipe).glob("seed*.json"))
    return [json.loads(path.read_text())["result"] for path in paths]


def main() -> None:
    """Write the tables into the pages."""
    for name in PAGES:
        page = HERE.parent / name
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
