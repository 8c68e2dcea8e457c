"""Make the pictures of results in README.md and docs/, and a report for each recipe.

    python results/pictures.py [--reports DIR]

Pictures go to docs/pictures; with `--reports`, whole reports go to a directory for each recipe.
What is committed of a run has no curves of its training, and the reports say that.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from clnp import write_report
from clnp.studies.series import SERIES

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs" / "pictures"
SHOWN = {
    "permuted-mnist": ("reuse",),
    "split-cifar-narrow-best": ("reuse",),
    "split-cifar-wide": ("accuracy", "capacity", "reuse"),
}
"""The figures of each recipe that README and docs show."""


def restore(recipe: str, place: Path) -> None:
    """Write the directory of a series again, as far as its results have it."""
    records = [json.loads(path.read_text()) for path in sorted((HERE / recipe).glob("seed*.json"))]
    seeds = [record["result"]["seed"] for record in records]
    place.mkdir(parents=True)
    (place / SERIES).write_text(json.dumps({"recipe": recipe, "seeds": seeds}))
    for record in records:
        result, environment = record["result"], record["environment"]
        folder = place / f"seed{result['seed']}"
        folder.mkdir()
        config = {
            "format": 1,
            "recipe": recipe,
            "seed": result["seed"],
            "head": result["head"],
            "tasks": [task["task"] for task in result["tasks"]],
        }
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "result.json").write_text(json.dumps(result))
        began = {"began": environment["date"]}
        (folder / "environment.json").write_text(json.dumps([{**environment, **began}]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=Path, metavar="DIR", help="keep whole reports here")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for recipe, figures in SHOWN.items():
            place = Path(scratch) / recipe
            restore(recipe, place)
            out = place / "report" if options.reports is None else options.reports / recipe
            write_report(place, out=out)
            for figure in figures:
                shutil.copyfile(
                    out / "figures" / f"{figure}.svg", PICTURES / f"{recipe}-{figure}.svg"
                )


if __name__ == "__main__":
    main()
