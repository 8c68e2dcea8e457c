"""A run in Weights & Biases: online, or with WANDB_MODE=offline in the directory of the run."""

import importlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from typing import Any

from clnp.runs.trackers import TrackedRun, note, recall, require
from clnp.training.events import Event

from .curves import Curves, Point, Table


class WeightsAndBiases:
    """Sends the curves of a run to Weights & Biases, as one run of a project.

    The project is the one that is named, that of WANDB_PROJECT, or `clnp`; the runs of a series are
    a group. A run that goes on is taken up under its id. All rows are counted from the first
    event on, so that those which are there already are known by their numbers, and not sent again.
    """

    def __init__(self, project: str | None = None, *, quiet: bool = False) -> None:
        require("wandb", "wandb")
        self._project, self._quiet = project, quiet

    def begin(self, run: TrackedRun) -> None:
        """Create the run in Weights & Biases, or take it up again."""
        wandb = self._wandb = importlib.import_module("wandb")
        self._curves, self._num_rows = Curves(), 0
        self._sections: set[str] = set()
        number = recall(run.path, "wandb").get("id") or secrets.token_hex(4)
        note(run.path, "wandb", {"id": number})
        offline = wandb.setup().settings.mode not in ("online", "shared")
        if offline:
            # Files cannot be gone on with: they are written anew, and whole.
            for before in (run.path / "wandb").glob(f"offline-run-*-{number}"):
                shutil.rmtree(before)
        # Its output would be caught twice, and bars on a terminal with it.
        own = wandb.Settings(console="off", silent=self._quiet)
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or "clnp",
            id=number,
            resume=None if offline else "allow",
            name=run.title,
            group=run.group or os.environ.get("WANDB_RUN_GROUP"),
            dir=str(run.path.absolute()),
            config={**run.config, "environment": dict(run.environment)},
            notes=run.recipe,
            reinit="create_new",  # The user may have a run of their own in this process.
            settings=own,
        )
        self._num_before = self._run.step

    def event(self, event: Event) -> None:
        """Send the points and tables that come with an event, as a row."""
        points, tables = self._curves.read(event)
        self._log(points, tables)

    def end(self, result: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Send what is left, and say how the run ended."""
        if result is not None:
            self._log(self._curves.finish(result), [])
        self._run.finish(exit_code=0 if error is None else 1)

    def _log(self, points: list[Point], tables: list[Table]) -> None:
        row: dict[str, Any] = {}
        for point in points:
            row[key(point.section, point.part, point.measure)] = point.value
            row[self._axis(point)] = point.step
        for table in tables:
            cells = [list(cells) for cells in table.rows]
            made = self._wandb.Table(columns=list(table.columns), data=cells)
            row[key("candidates", table.title)] = made
        if row:
            if self._num_rows >= self._num_before:
                self._run.log(row, step=self._num_rows)
            self._num_rows += 1

    def _axis(self, point: Point) -> str:
        """What the section of the point goes over, which W&B is told once."""
        axis = key("tasks learnt") if point.part is None else key(point.section, "epoch")
        if point.section not in self._sections:
            self._sections.add(point.section)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{key(point.section)}/*", step_metric=axis)
        return axis


def key(*names: str | None) -> str:
    """The name of a curve: W&B sorts and finds those that are made of letters, digits and `_`."""
    return "/".join(re.sub(r"\W", "_", name, flags=re.ASCII) for name in names if name)
