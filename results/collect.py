"""Collect the results of runs in a form that can be committed.

    python results/collect.py RECIPE RUN...        results/RECIPE/seedN.json, and summary.json
    python results/collect.py --comparison RECIPE RUN...
                                                   results/compare-RECIPE/METHOD/seedN.json, and
                                                   the table as comparison.txt, .csv, .md and .tex
    python results/collect.py --tried FILE RECIPE RUN...
                                                   a line for each run in results/FILE, with what
                                                   was set against the recipe

Without a RUN, the summary or table is written again from the results that are there.

RUN is the directory of a run, of a series or of a comparison, or a file with a line of JSON for
each run with its `result`, `environment` and, except for a search, its `config`. `--commit` names
the commit of the source if the environment lacks it; results of uncommitted source are refused.
`--variant` puts a comparison with a changed recipe into results/compare-RECIPE-VARIANT.
"""

import argparse
import itertools
import json
import statistics
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clnp import plain
from clnp.methods.registry import NAMES
from clnp.records import ComparisonRow, RunResult, Spread
from clnp.studies.comparison import TABLE
from clnp.studies.summaries import aggregate, plus_minus, rows_of, texts

HERE = Path(__file__).parent
SETTINGS = ("head", "learner", "baseline")
VERSIONS = ("clnp", "commit", "python", "torch", "gpu", "cpu", "cuda")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the result, the environment and the config of each run at `path`."""
    if path.is_file():
        yield from (json.loads(line) for line in path.read_text().splitlines())
        return
    for file in sorted(path.rglob("result.json")):
        yield {
            "result": json.loads(file.read_text()),
            "environment": json.loads((file.parent / "environment.json").read_text())[-1],
            "config": json.loads((file.parent / "config.json").read_text()),
        }


def ran_on(found: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """Return versions, hardware, commit and date of a run."""
    environment = found["environment"]
    kept = {key: environment[key] for key in VERSIONS}
    kept["commit"] = commit or kept["commit"]
    if not kept["commit"] or kept["commit"].endswith("+"):
        sys.exit(f"The source of a run is {kept['commit']}. Name its commit with --commit HASH.")
    return {**kept, "date": environment["began"][:10]}


def put(folder: Path, recipe: str, found: dict[str, Any], commit: str | None) -> None:
    """Write one run, as the file of its seed."""
    if "config" not in found:
        sys.exit("A run has no config, and its settings would be lost. Collect it with --tried.")
    settings = {key: found["config"][key] for key in SETTINGS}
    record = {
        "recipe": recipe,
        "environment": ran_on(found, commit),
        "settings": settings,
        "result": found["result"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{found['result']['seed']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def collect(recipe: str, runs: list[Path], commit: str | None) -> None:
    """Write one file for each seed, and a summary of all seeds."""
    folder = HERE / recipe
    for run in runs:
        for found in read(run):
            if found.get("recipe", recipe) != recipe and not recipe.startswith(found["recipe"]):
                continue
            put(folder, recipe, found, commit)
    summary = {"recipe": recipe, **summarise(folder)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    average = plain.read(Spread, summary["average"])
    print(f"{folder}: {plus_minus(average)} over seeds {summary['seeds']}")


def collect_comparison(
    recipe: str, runs: list[Path], commit: str | None, variant: str | None = None
) -> None:
    """Write one file for each method and seed, and the table of all of them."""
    folder = HERE / "-".join(("compare", recipe, *([variant] if variant else [])))
    for run in runs:
        for found in read(run):
            put(folder / found["result"]["method"], recipe, found, commit)
    written = texts(compared(folder))
    for ending, text in written.items():
        (folder / f"{TABLE}.{ending}").write_text(text)
    print(written["txt"])


def collect_tried(file: Path, runs: list[Path], commit: str | None) -> None:
    """Append a line for each run, with its settings and its results."""
    lines = [tried(found, commit) for run in runs for found in read(run)]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    for line in lines:
        print(line["average"], line["set"])


def tried(found: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """Return a run as a line of a search; keys of its method have no table."""
    result, command = found["result"], found["environment"]["command"]
    assignments = found.get("set") or [
        value for option, value in itertools.pairwise(command) if option == "--set"
    ]
    settings = {"method": result["method"]}
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key != "method":
            own = key.removeprefix(f"methods.{result['method']}.")
            settings[own] = _value(value)
    test = result["scores"][-1]
    return {
        "set": settings,
        "seed": result["seed"],
        "tasks": [record["task"] for record in result["tasks"]],
        "learned": [record["test_score"] for record in result["tasks"]],
        "test": test,
        "average": round(statistics.fmean(test), 2),
        "new": [record["new"] for record in result["tasks"]],
        "seconds": round(result["timings"]["seconds"], 1),
        "environment": ran_on(found, commit),
    }


def _value(text: str) -> Any:
    """Return a value as `--set` reads it: TOML, or plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def compared(folder: Path) -> list[ComparisonRow]:
    """The rows of a comparison: those methods, in their usual order, that have results."""
    return rows_of({name: _results(folder / name) for name in NAMES})


def _results(folder: Path) -> list[RunResult]:
    paths = sorted(folder.glob("seed*.json"))
    return [plain.read(RunResult, json.loads(path.read_text())["result"]) for path in paths]


def summarise(folder: Path) -> dict[str, Any]:
    """Means and deviations over the seeds in the folder, and on what they ran."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("seed*.json"))]
    environments = {json.dumps(record["environment"]): record["environment"] for record in records}
    summary = aggregate([plain.read(RunResult, record["result"]) for record in records])
    return {**plain.to_plain(summary), "environments": list(environments.values())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("runs", nargs="*", metavar="RUN", type=Path)
    parser.add_argument("--comparison", action="store_true", help="several methods")
    parser.add_argument("--tried", metavar="FILE", help="a search: a line for each run")
    parser.add_argument("--commit")
    parser.add_argument("--variant", help="what a comparison's recipe was changed to")
    options = parser.parse_args()
    if options.tried and not options.runs:
        parser.error("--tried needs runs. Name them after the recipe.")
    if options.tried:
        collect_tried(HERE / options.tried, options.runs, options.commit)
    elif options.comparison:
        collect_comparison(options.recipe, options.runs, options.commit, options.variant)
    else:
        collect(options.recipe, options.runs, options.commit)


if __name__ == "__main__":
    main()
