"""Weights & Biases: online, or with WANDB_MODE=offline in the directory of the run."""

import importlib
import os
import re
import secrets
import shutil
from typing import Any

from clnp.plain import to_plain
from clnp.records import Event, RunResult
from clnp.runs.trackers import TrackedRun, note, recall, require

from .curves import Curves, Point, Table


class WeightsAndBiases:
    """Sends the curves of a run to Weights & Biases, as one run of a project.

    The runs of a series are a group. A run that resumes continues under its id. Rows are counted
    from the first event on, so rows that exist already are not sent again.

    Args:
        project: The name of the project. The default is WANDB_PROJECT, or `clnp`.
        quiet: Whether to hide the output of W&B.

    Example:
        >>> experiment.run("runs/mine", trackers=[clnp.trackers.WeightsAndBiases("digits")])
    """

    def __init__(self, project: str | None = None, *, quiet: bool = False) -> None:
        require("wandb", "wandb")
        self._project, self._quiet = project, quiet

    def begin(self, run: TrackedRun) -> None:
        """Create or resume the run in Weights & Biases."""
        wandb = self._wandb = importlib.import_module("wandb")
        self._curves, self._num_rows = Curves(), 0
        self._sections: set[str] = set()
        number = recall(run.path, "wandb").get("id") or secrets.token_hex(4)
        note(run.path, "wandb", {"id": number})
        offline = wandb.setup().settings.mode not in ("online", "shared")
        if offline:
            # Offline files cannot be continued. They are written again from the first event.
            for before in (run.path / "wandb").glob(f"offline-run-*-{number}"):
                shutil.rmtree(before)
        # W&B would capture output a second time, progress bars included.
        settings = wandb.Settings(console="off", silent=self._quiet)
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or "clnp",
            id=number,
            resume=None if offline else "allow",
            name=run.title,
            group=run.group or os.environ.get("WANDB_RUN_GROUP"),
            dir=str(run.path.absolute()),
            config={**to_plain(run.config), "environment": to_plain(run.environment)},
            notes=run.recipe,
            reinit="create_new",  # The user may have a run of their own in this process.
            settings=settings,
        )
        self._num_before = self._run.step

    def event(self, event: Event) -> None:
        """Send the points and tables of an event as a row."""
        points, tables = self._curves.read(event)
        self._log(points, tables)

    def end(self, result: RunResult | None, error: BaseException | None) -> None:
        """Send the last points and the exit code."""
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
        """Return the x axis of the point's section, and define it in W&B once."""
        axis = key("tasks learned") if point.part is None else key(point.section, "epoch")
        if point.section not in self._sections:
            self._sections.add(point.section)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{key(point.section)}/*", step_metric=axis)
        return axis


def key(*names: str | None) -> str:
    """Return the name of a curve, in the letters, digits and `_` that W&B can sort and find."""
    return "/".join(re.sub(r"\W", "_", name, flags=re.ASCII) for name in names if name)
