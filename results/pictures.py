"""Make the pictures of results in README.md and docs/, and a report for each recipe.

    python results/pictures.py [--reports DIR]

Pictures go to docs/pictures; with `--reports`, whole reports go to a directory for each recipe.
The committed results have no training curves, and the reports say so. docs/pictures/report.png is
not made here: it is a screenshot (1200 x 1190) of the report of `clnp demo`.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from clnp import write_report
from clnp.plain import read, to_json
from clnp.records import FORMAT, Environment, RunConfig, RunResult, SeriesConfig, TaskDescription
from clnp.studies.study import SERIES

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs" / "pictures"
SHOWN = {
    "permuted-mnist": ("capacity",),
    "split-cifar-narrow-best": ("capacity",),
    "split-cifar-wide": ("accuracy", "capacity"),
}
"""The figures of each recipe that README and docs show."""


def restore(recipe: str, directory: Path) -> None:
    """Write the directory of a series again, as far as its results have it."""
    records = [json.loads(path.read_text()) for path in sorted((HERE / recipe).glob("seed*.json"))]
    seeds = tuple(record["result"]["seed"] for record in records)
    directory.mkdir(parents=True)
    (directory / SERIES).write_text(to_json(SeriesConfig(recipe=recipe, seeds=seeds)))
    for record in records:
        result = read(RunResult, record["result"])
        environment = read(Environment, record["environment"])
        folder = directory / f"seed{result.seed}"
        folder.mkdir()
        config = RunConfig(
            format=FORMAT,
            tasks=tuple(
                TaskDescription(task.task, objective=task.objective) for task in result.tasks
            ),
            head=result.head,
            seed=result.seed,
            recipe=recipe,
            learner=record.get("settings", {}).get("learner", {}),
        )
        began = replace(environment, began=record["environment"]["date"])
        (folder / "config.json").write_text(to_json(config))
        (folder / "result.json").write_text(json.dumps(record["result"]))
        (folder / "environment.json").write_text(to_json([began]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=Path, metavar="DIR", help="keep whole reports here")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for recipe, figures in SHOWN.items():
            directory = Path(scratch) / recipe
            restore(recipe, directory)
            out = directory / "report" if options.reports is None else options.reports / recipe
            write_report(directory, out=out)
            for figure in figures:
                shutil.copyfile(
                    out / "figures" / f"{figure}.svg", PICTURES / f"{recipe}-{figure}.svg"
                )


if __name__ == "__main__":
    main()
