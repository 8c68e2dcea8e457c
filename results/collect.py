"""Puts the results of runs where they can be committed.

    python results/collect.py RECIPE RUN...        results/RECIPE/seedN.json, and summary.json

RUN is the directory of a run or of a series, or a file with a line of JSON for each run that has
its `result` and `environment`. `--commit` names the source where the environment does not know it.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clnp.series import aggregate, plus_minus

HERE = Path(__file__).parent
VERSIONS = ("clnp", "commit", "python", "torch", "gpu", "cpu", "cuda")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """What there is of each run at `path`: its result and its environment."""
    if path.is_file():
        yield from (json.loads(line) for line in path.read_text().splitlines())
        return
    for folder in [path] if (path / "result.json").is_file() else sorted(path.glob("seed*")):
        yield {
            "result": json.loads((folder / "result.json").read_text()),
            "environment": json.loads((folder / "environment.json").read_text())[-1],
        }


def collect(recipe: str, runs: list[Path], commit: str | None) -> None:
    """Write one file for each seed, and a summary over all that are there."""
    folder = HERE / recipe
    folder.mkdir(exist_ok=True)
    for run in runs:
        for found in read(run):
            if found.get("recipe", recipe) != recipe and not recipe.startswith(found["recipe"]):
                continue
            environment = found["environment"]
            kept = {key: environment[key] for key in VERSIONS}
            kept["commit"] = kept["commit"] or commit
            kept["date"] = environment["began"][:10]
            record = {"recipe": recipe, "environment": kept, "result": found["result"]}
            path = folder / f"seed{found['result']['seed']}.json"
            path.write_text(json.dumps(record, indent=1) + "\n")
    summary = {"recipe": recipe, **summarise(folder)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{folder}: {plus_minus(summary['average'])} over seeds {summary['seeds']}")


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
    parser.add_argument("--commit")
    options = parser.parse_args()
    collect(options.recipe, options.runs, options.commit)


if __name__ == "__main__":
    main()
