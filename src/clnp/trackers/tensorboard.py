"""A run in TensorBoard: `tensorboard --logdir RUN`, or a directory with many runs in it."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clnp.runs.trackers import TrackedRun, require
from clnp.training.events import Event

from .curves import ALL, Curves, Point, settings

DIRECTORY = "tensorboard"
SUFFIX = ".clnp"
"""How the names of our files end; no others are ever removed."""

METRICS = ("average test score", "forgetting", "backward transfer", "neurons used percent")
"""What stands beside the hyper-parameters."""

CHARTS = {
    "test score of every task": "test score/.*",
    "neurons used, percent": "neurons used percent/.*",
    "new neurons": "neurons new/.*",
    "reused neurons": "neurons reused/.*",
}
"""Curves that are drawn into one picture, in the tab Custom Scalars."""


class TensorBoard:
    """Writes the curves of a run into its directory, under `tensorboard`.

    Every candidate is a run of TensorBoard, and so is fine-tuning: their curves of one task have
    the same tag, so that they lie over one another in one card, and a task is a section of a few
    cards. With a tag for each candidate, ten tasks of four candidates would make 160 cards with one
    curve each; with a run for each task, the list of runs would be as long.
    """

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        self._writers: dict[str | None, Any] = {}

    def begin(self, run: TrackedRun) -> None:
        """Begin the files anew: all that was in them is told again."""
        self._place, self._began = run.path / DIRECTORY, run.began
        self._curves, self._writers = Curves(), {}
        _empty(self._place)
        writer = self._writer(None)
        writer.add_text("recipe", _code(run.recipe), walltime=run.began)
        facts = "\n".join(f"{key}: {value}" for key, value in run.environment.items())
        writer.add_text("environment", _code(facts), walltime=run.began)
        layout = {title: ["Multiline", [pattern]] for title, pattern in CHARTS.items()}
        writer.add_custom_scalars({"over tasks": layout})
        self._begin_settings(run)

    def event(self, event: Event) -> None:
        """Write the points and tables that come with an event."""
        points, tables = self._curves.read(event)
        at = self._began + event["at"] if "at" in event else None
        self._write(points, at)
        for table in tables:
            self._writer(None).add_text(table.title, table.markdown(), walltime=at)
        if event.get("event") in ("evaluation", "finished"):
            self._flush()

    def end(self, result: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Close the files."""
        try:
            if result is not None:
                seconds = result.get("timings", {}).get("seconds", 0.0)
                self._write(self._curves.finish(result), self._began + seconds)
                self._writer(None).file_writer.add_summary(self._ended)
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers = {}

    def _begin_settings(self, run: TrackedRun) -> None:
        """The hyper-parameters, for the tab HParams; what they led to is read from the curves."""
        made: Any = importlib.import_module("torch.utils.tensorboard.summary").hparams
        metrics = {f"{ALL}/{name}": 0.0 for name in METRICS}
        experiment, started, self._ended = made(settings(run.config), metrics)
        for summary in (experiment, started):
            self._writer(None).file_writer.add_summary(summary)

    def _write(self, points: list[Point], at: float | None) -> None:
        for point in points:
            writer, tag = self._writer(point.part), f"{point.section}/{point.measure}"
            writer.add_scalar(tag, point.value, point.step, walltime=at)

    def _flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def _writer(self, part: str | None) -> Any:
        """The writer of a run of TensorBoard."""
        if part not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            place = self._place if part is None else self._place / part
            # One that is open in a browser forgets what it has read of the files before.
            self._writers[part] = SummaryWriter(
                str(place), purge_step=0, filename_suffix=SUFFIX, flush_secs=10
            )
        return self._writers[part]


def _empty(place: Path) -> None:
    """Take away all that earlier files hold.

    The last file of a directory stays, without a byte in it: one that is being read by a
    TensorBoard must not vanish, or the ones that follow are never looked at.
    """
    for folder in [place, *(each for each in place.glob("*") if each.is_dir())]:
        files = sorted(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
        for file in files[:-1]:
            file.unlink()
        for file in files[-1:]:
            os.truncate(file, 0)


def _code(text: str) -> str:
    """A block of code in Markdown."""
    return "".join(f"    {line}\n" for line in text.splitlines())
