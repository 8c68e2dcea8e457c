import json
import os
import signal
import sys
import tomllib
from pathlib import Path

import pytest

from clnp import extras
from clnp.cli import app
from clnp.cli.app import TRACKERS
from clnp.errors import RunError
from clnp.records import EpochEnded
from clnp.runs.experiment import RunLoop
from clnp.studies.launch import RunOptions
from clnp.trackers import MLflow, TensorBoard, WeightsAndBiases
from clnp.trackers.named import trackers_named
from support.paths import ROOT
from support.terminal import recipe

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(recipe(epochs=3))
    return tmp_path


def steps(path, tag):
    """The steps of a curve of the first candidate."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path(path, "tensorboard", "candidate 1")
    loaded = EventAccumulator(str(folder), {"scalars": 0})
    loaded.Reload()
    return [event.step for event in loaded.Scalars(tag)]


def test_every_name_is_an_option_and_an_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(TRACKERS) <= set(extras["optional-dependencies"])


def test_trackers_by_name():
    (made,) = trackers_named(("tensorboard",))
    assert isinstance(made, TensorBoard)
    assert trackers_named(()) == []
    assert "--tensorboard" in RunOptions(trackers=("tensorboard",)).arguments()  # Of a series.


def test_a_run_does_not_wait_for_a_server_that_is_gone(monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    monkeypatch.delenv(name, raising=False)
    trackers_named(("mlflow",))
    assert os.environ[name] == "2"
    monkeypatch.setenv(name, "9")
    trackers_named(("mlflow",))
    assert os.environ[name] == "9"


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_reported_before_anything_starts(capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    message = f"{name} is not installed. Install it with {extras.command(name)}."
    made = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}[name]
    for missing in (made, lambda: RunOptions(trackers=(name,))):
        with pytest.raises(RunError) as caught:
            missing()
        assert str(caught.value) == message
    for command in (["run", "small.toml"], ["compare", "small.toml"], ["demo"], ["resume", "x"]):
        assert app.main([*command, f"--{name}"]) == 2
        assert capsys.readouterr().err == f"clnp: {message}\n"
    assert not Path("runs").exists()


def test_the_files_of_tensorboard_do_not_disturb_other_commands():
    assert app.main(["run", "small.toml", "--out", "run", "--tensorboard", "--quiet"]) == 0
    assert steps("run", "task 01 digits 0-1/loss") == [1, 2, 3]
    for command in ("verify", "inspect", "resume"):
        assert app.main([command, "run"]) == 0
    assert app.main(["run", "small.toml", "--out", "run", "--tensorboard"]) == 2


def test_a_finished_run_is_sent_again(capsys):
    assert app.main(["run", "small.toml", "--out", "run", "--quiet"]) == 0
    assert not Path("run", "tensorboard").exists()
    capsys.readouterr()
    for _ in range(2):
        assert app.main(["resume", "run", "--tensorboard", "--tensorboard"]) == 0
        assert "It was sent to tensorboard." in capsys.readouterr().out
        assert steps("run", "task 02 digits 2-3/loss") == [1, 2, 3]
    assert app.main(["resume", "run", "--tensorboard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"]


def test_a_run_that_is_stopped_resumes_in_the_same_curves(folder, monkeypatch, capsys):
    (folder / "small.toml").write_text(recipe(epochs=9))
    log, stops = RunLoop._log, [3, 6]

    def stop(loop, event):
        log(loop, event)
        if isinstance(event, EpochEnded) and stops and event.number + 1 == stops[0]:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunLoop, "_log", stop)
    for command in (["run", "small.toml", "--out", "run"], ["resume", "run"]):
        assert app.main([*command, "--tensorboard", "--quiet"]) == 130
        assert "Stopped" in capsys.readouterr().err
        assert steps("run", "task 01 digits 0-1/loss") == list(range(1, stops.pop(0) + 1))
    assert app.main(["resume", "run", "--tensorboard", "--quiet"]) == 0
    assert steps("run", "task 01 digits 0-1/loss") == list(range(1, 10))


def test_the_runs_of_a_series_are_tracked():
    assert app.main(["run", "small.toml", "--seeds", "2", "--out", "two", "--tensorboard"]) == 0
    for seed in (0, 1):
        assert steps(Path("two", f"seed{seed}"), "task 02 digits 2-3/loss") == [1, 2, 3]
    assert app.main(["resume", "two", "--tensorboard", "--quiet"]) == 0


def test_a_tracker_that_fails_is_reported_without_progress_too(capsys, monkeypatch):
    def fail(self, event):
        raise OSError("disk full")

    monkeypatch.setattr(TensorBoard, "event", fail)
    message = "TensorBoard failed: OSError: disk full. The run continues without it."
    for quiet in ([], ["--quiet"]):
        out = f"run{len(quiet)}"
        assert app.main(["run", "small.toml", "--out", out, "--tensorboard", *quiet]) == 0
        assert capsys.readouterr().err.count(message) == 1
    assert app.main(["resume", "run1", "--tensorboard", "--quiet"]) == 0
    out, error = capsys.readouterr()
    assert "Not all of it was sent to tensorboard." in out
    assert message in error
