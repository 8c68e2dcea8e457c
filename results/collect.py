"""Puts the results of runs where they can be committed.

    python results/collect.py RECIPE RUN...        results/RECIPE/seedN.json, and summary.json
    python results/collect.py --comparison RECIPE RUN...
                                                   results/compare-RECIPE/METHOD/seedN.json, and
                                                   the table as comparison.txt, .csv, .md and .tex

RUN is the directory of a run, of a series or of a comparison, or a file with a line of JSON for
each run that has its `result` and `environment`. `--commit` names the source where the environment
does not know it, or knows it wrongly. `--variant` puts a comparison whose recipe was changed into
results/compare-RECIPE-VARIANT.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clnp.baselines.methods import NAMES
from clnp.compare import TABLE, rows_of, texts
from clnp.series import aggregate, plus_minus

HERE = Path(__file__).parent
VERSIONS = ("clnp", "commit", "python", "torch", "gpu", "cpu", "cuda")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """What there is of each run at `path`: its result and its environment."""
    if path.is_file():
        yield from (json.loads(line) for line in path.read_text().splitlines())
        return
    for file in sorted(path.rglob("result.json")):
        yield {
            "result": json.loads(file.read_text()),
            "environment": json.loads((file.parent / "environment.json").read_text())[-1],
        }


def put(folder: Path, recipe: str, found: dict[str, Any], commit: str | None) -> None:
    """Write one run, as the file of its seed."""
    environment = found["environment"]
    kept = {key: environment[key] for key in VERSIONS}
    kept["commit"] = commit or kept["commit"]
    kept["date"] = environment["began"][:10]
    record = {"recipe": recipe, "environment": kept, "result": found["result"]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed{found['result']['seed']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def collect(recipe: str, runs: list[Path], commit: str | None) -> None:
    """Write one file for each seed, and a summary over all that are there."""
    folder = HERE / recipe
    for run in runs:
        for found in read(run):
            if found.get("recipe", recipe) != recipe and not recipe.startswith(found["recipe"]):
                continue
            put(folder, recipe, found, commit)
    summary = {"recipe": recipe, **summarise(folder)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{folder}: {plus_minus(summary['average'])} over seeds {summary['seeds']}")


def collect_comparison(
    recipe: str, runs: list[Path], commit: str | None, variant: str | None = None
) -> None:
    """Write one file for each method and seed, and the table of all that are there."""
    folder = HERE / "-".join(("compare", recipe, *([variant] if variant else [])))
    for run in runs:
        for found in read(run):
            put(folder / found["result"]["method"], recipe, found, commit)
    written = texts(compared(folder))
    for ending, text in written.items():
        (folder / f"{TABLE}.{ending}").write_text(text)
    print(written["txt"])


def compared(folder: Path) -> list[dict[str, Any]]:
    """The rows of a comparison: those methods, in their usual order, that have results."""
    return rows_of({name: _results(folder / name) for name in NAMES})


def _results(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("seed*.json"))
    return [json.loads(path.read_text())["result"] for path in paths]


def summarise(folder: Path) -> dict[str, Any]:
    """Means and deviations over the seeds in the folder, and on what they ran."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("seed*.json"))]
    environments = {json.dumps(record["environment"]): record["environment"] for record in records}
    summary = aggregate([record["result"] for record in records])
    return {**summary, "environments": list(environments.values())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path)
    parser.add_argument("--comparison", action="store_true", help="several methods")
    parser.add_argument("--commit")
    parser.add_argument("--variant", help="what a comparison's recipe was changed to")
    options = parser.parse_args()
    if options.comparison:
        collect_comparison(options.recipe, options.runs, options.commit, options.variant)
    else:
        collect(options.recipe, options.runs, options.commit)


if __name__ == "__main__":
    main()
