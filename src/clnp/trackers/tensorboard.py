"""TensorBoard: `tensorboard --logdir RUN` shows a run, or all runs in a directory."""

import importlib
import os
from pathlib import Path
from typing import Any

from clnp.plain import to_plain
from clnp.records import Evaluated, Event, RunFinished, RunResult
from clnp.runs.trackers import TrackedRun, require

from .curves import ALL, Curves, Point, settings

DIRECTORY = "tensorboard"
SUFFIX = ".clnp"
"""The ending of the files that this tracker writes. Others are never removed."""

METRICS = ("average test score", "forgetting", "backward transfer", "neurons used percent")
"""The metrics in the tab HParams."""

CHARTS = {
    "test score of every task": "test score/.*",
    "neurons used, percent": "neurons used percent/.*",
    "new neurons": "neurons new/.*",
    "reused neurons": "neurons reused/.*",
}
"""Charts with several curves, in the tab Custom Scalars."""


class TensorBoard:
    """Writes the curves of a run into its directory, under `tensorboard`.

    Every candidate is a run of TensorBoard, and so is fine-tuning. Their curves of a task share a
    tag and so a card, and a task is a section of a few cards. A tag for each candidate would make
    160 cards of one curve each for ten tasks of four candidates.

    Example:
        >>> experiment.run("runs/mine", trackers=[clnp.trackers.TensorBoard()])
    """

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        self._writers: dict[str | None, Any] = {}

    def begin(self, run: TrackedRun) -> None:
        """Start new files; all events follow again."""
        self._directory, self._began = run.path / DIRECTORY, run.began
        self._curves, self._writers = Curves(), {}
        _empty(self._directory)
        writer = self._writer(None)
        writer.add_text("recipe", _code(run.recipe), walltime=run.began)
        facts = "\n".join(f"{key}: {value}" for key, value in to_plain(run.environment).items())
        writer.add_text("environment", _code(facts), walltime=run.began)
        layout = {title: ["Multiline", [pattern]] for title, pattern in CHARTS.items()}
        writer.add_custom_scalars({"over tasks": layout})
        summary: Any = importlib.import_module("torch.utils.tensorboard.summary")
        metrics = {f"{ALL}/{name}": 0.0 for name in METRICS}
        experiment, started, self._ended = summary.hparams(settings(run.config), metrics)
        writer.file_writer.add_summary(experiment)
        writer.file_writer.add_summary(started)

    def event(self, event: Event) -> None:
        """Write the points and tables of an event."""
        points, tables = self._curves.read(event)
        at = None if event.at is None else self._began + event.at
        self._write(points, at)
        for table in tables:
            self._writer(None).add_text(table.title, table.markdown(), walltime=at)
        if isinstance(event, Evaluated | RunFinished):
            for writer in self._writers.values():
                writer.flush()

    def end(self, result: RunResult | None, error: BaseException | None) -> None:
        """Close the files."""
        try:
            if result is not None:
                self._write(self._curves.finish(result), self._began + result.timings.seconds)
                self._writer(None).file_writer.add_summary(self._ended)
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers = {}

    def _write(self, points: list[Point], at: float | None) -> None:
        for point in points:
            writer, tag = self._writer(point.part), f"{point.section}/{point.measure}"
            writer.add_scalar(tag, point.value, point.step, walltime=at)

    def _writer(self, part: str | None) -> Any:
        """Return the writer of a run of TensorBoard."""
        if part not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            directory = self._directory if part is None else self._directory / part
            # An open TensorBoard forgets what it has read of earlier files.
            self._writers[part] = SummaryWriter(
                str(directory), purge_step=0, filename_suffix=SUFFIX, flush_secs=10
            )
        return self._writers[part]


def _empty(directory: Path) -> None:
    """Remove earlier files, and empty the last one of each directory.

    If that one vanished while TensorBoard reads it, the files after it would never be read.
    """
    for folder in [directory, *(each for each in directory.glob("*") if each.is_dir())]:
        files = sorted(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
        for file in files[:-1]:
            file.unlink()
        for file in files[-1:]:
            os.truncate(file, 0)


def _code(text: str) -> str:
    """Return a code block in Markdown."""
    return "".join(f"    {line}\n" for line in text.splitlines())
