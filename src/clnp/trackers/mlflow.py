"""MLflow: on the server of MLFLOW_TRACKING_URI, or in a local database."""

import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from clnp.errors import StoppedError
from clnp.plain import to_plain
from clnp.records import Evaluated, Event, RunFinished, RunResult
from clnp.runs.trackers import TrackedRun, note, recall, require

from .curves import Curves, Point, Table, settings

FLUSH_SECONDS = 5.0
"""Seconds between requests: one for each epoch could take longer than the epoch."""

METRICS_AT_ONCE, PARAMETERS_AT_ONCE = 1000, 100
"""The limits of MLflow for one request."""

ENDED = "clnp.ended"
"""The tag with the reason why a run ended early."""

TEXT_LENGTH = 5000
"""The limit of MLflow for a tag or a parameter, in characters."""


class MLflow:
    """Sends the curves of a run to MLflow, as one run of an experiment.

    A run that resumes continues under its id. Points that MLflow has already are not sent again.

    Args:
        experiment: The name of the experiment. The default is MLFLOW_EXPERIMENT_NAME, or the name
            of the recipe.

    Example:
        >>> experiment.run("runs/mine", trackers=[clnp.trackers.MLflow("digits")])
    """

    def __init__(self, experiment: str | None = None) -> None:
        require("mlflow", "mlflow")
        self._experiment = experiment

    def begin(self, run: TrackedRun) -> None:
        """Create or resume the run in MLflow."""
        mlflow = self._mlflow = importlib.import_module("mlflow")
        self._curves, self._began = Curves(), run.began
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        self._takes_files = True
        known = recall(run.path, "mlflow")
        uri = mlflow.get_tracking_uri()
        if not mlflow.is_tracking_uri_set():
            # The default is a file in the working directory, which may have changed.
            uri = known.get("tracking_uri", uri)
        # Two processes must not create the tables of one database at the same time.
        user = os.getuid() if hasattr(os, "getuid") else ""
        with FileLock(Path(tempfile.gettempdir()) / f"clnp-mlflow-{user}.lock"):
            self._client = mlflow.MlflowClient(tracking_uri=uri)
        found = self._find(known.get("run_id"))
        if found is None:
            found = self._create(run)
            note(run.path, "mlflow", {"run_id": found.info.run_id, "tracking_uri": uri})
        self._id = found.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        if ENDED in found.data.tags:
            self._client.delete_tag(self._id, ENDED)
        # The last step of each existing curve; None until it is needed.
        self._before: dict[str, int | None] = dict.fromkeys(found.data.metrics)

    def event(self, event: Event) -> None:
        """Send the points and tables of an event, or keep them for the next request."""
        points, tables = self._curves.read(event)
        self._keep(points, time.time() if event.at is None else self._began + event.at)
        for table in tables:
            self._attach(table)
        due = time.monotonic() - self._sent > FLUSH_SECONDS
        if due or isinstance(event, Evaluated | RunFinished):
            self._send()

    def end(self, result: RunResult | None, error: BaseException | None) -> None:
        """Send the last points and the status of the run."""
        if result is not None:
            self._keep(self._curves.finish(result), self._began + result.timings.seconds)
        self._send()
        status = "FINISHED"
        if error is not None:
            stopped = isinstance(error, StoppedError | KeyboardInterrupt)
            status = "KILLED" if stopped else "FAILED"
            self._client.set_tag(self._id, ENDED, repr(error)[:TEXT_LENGTH])
        self._client.set_terminated(self._id, status=status)

    def _find(self, number: str | None) -> Any:
        """Return the run that was created before, if it still exists."""
        if number is None:
            return None
        try:
            found = self._client.get_run(number)
        except self._mlflow.exceptions.MlflowException as reason:
            if reason.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return found if found.info.lifecycle_stage == "active" else None

    def _create(self, run: TrackedRun) -> Any:
        """Create a run with hyper-parameters, tags, and the recipe as its description."""
        environment = to_plain(run.environment)
        tags = {
            "clnp.path": str(run.path.absolute()),
            "clnp.method": run.config.method,
            **{f"clnp.{key}": str(value) for key, value in environment.items() if value},
            "mlflow.note.content": f"```\n{run.recipe[: TEXT_LENGTH - 10]}\n```",
        }
        if run.group is not None:
            tags["clnp.group"] = run.group
        created = self._client.create_run(
            self._experiment_of(run),
            run_name=run.title,
            tags={key: value[:TEXT_LENGTH] for key, value in tags.items()},
        )
        parameters = [
            self._mlflow.entities.Param(key, str(value)[:TEXT_LENGTH])
            for key, value in settings(run.config).items()
        ]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            some = parameters[first : first + PARAMETERS_AT_ONCE]
            self._client.log_batch(created.info.run_id, params=some)
        return created

    def _experiment_of(self, run: TrackedRun) -> str:
        """Return the id of the experiment, which another process may create at the same time."""
        if self._experiment is None and (number := os.environ.get("MLFLOW_EXPERIMENT_ID")):
            return number
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        name = name or run.config.recipe or "clnp"
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.exceptions.MlflowException as reason:
                if reason.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def _keep(self, points: list[Point], at: float) -> None:
        """Keep the points that MLflow does not have yet for the next request."""
        for point in points:
            names = (point.section, point.part, point.measure)
            key = "/".join(name for name in names if name is not None)
            if key in self._before:
                last = self._before[key]
                if last is None:
                    history = self._client.get_metric_history(self._id, key)
                    last = self._before[key] = max((m.step for m in history), default=-1)
                if point.step <= last:
                    continue
            metric = self._mlflow.entities.Metric(key, point.value, int(1000 * at), point.step)
            self._waiting.append(metric)

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._id, metrics=self._waiting[:METRICS_AT_ONCE])
            del self._waiting[:METRICS_AT_ONCE]
        self._sent = time.monotonic()

    def _attach(self, table: Table) -> None:
        """Store the table as a file, unless the server has no reachable storage."""
        if self._takes_files:
            try:
                self._client.log_text(self._id, table.markdown(), f"tasks/{table.title}.md")
            except Exception:
                self._takes_files = False
