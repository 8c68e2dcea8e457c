"""Trackers by name, and what the command line does with them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clnp.cli import app
from clnp.cli.app import TRACKERS
from clnp.errors import RunError
from clnp.runs.directory import read_events
from clnp.trackers import TensorBoard
from clnp.trackers.named import NAMES, check_installed, trackers_named
from support.terminal import recipe

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

from support.paths import ROOT

RECIPE = recipe(epochs=3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory of its own to be in, with a recipe in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def steps(path, part, tag):
    """The steps of a curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loaded = EventAccumulator(str(Path(path, "tensorboard", part)), {"scalars": 0})
    loaded.Reload()
    return [event.step for event in loaded.Scalars(tag)]


def test_every_name_is_an_option_and_an_extra():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(NAMES) == set(TRACKERS)
    assert set(NAMES) <= set(extras["optional-dependencies"])


def test_trackers_by_name():
    (made,) = trackers_named(("tensorboard",))
    assert isinstance(made, TensorBoard)
    assert trackers_named(()) == []


def test_a_run_is_not_kept_waiting_by_a_server_that_is_gone(monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    monkeypatch.delenv(name, raising=False)
    trackers_named(("mlflow",))
    assert os.environ[name] == "2"
    monkeypatch.setenv(name, "9")
    trackers_named(("mlflow",))
    assert os.environ[name] == "9"


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_told_before_anything_begins(folder, capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    message = f"{name} is not installed; install it: pip install 'clnp[{name}]'"
    with pytest.raises(RunError) as caught:
        check_installed((name,))
    assert str(caught.value) == message
    for command in (["run", "small.toml"], ["compare", "small.toml"], ["demo"], ["resume", "x"]):
        assert app.main([*command, f"--{name}"]) == 2
        assert capsys.readouterr().err == f"clnp: {message}\n"
    assert not Path("runs").exists()


def test_files_for_tensorboard_are_no_hindrance_to_other_commands(folder, capsys):
    assert app.main(["run", "small.toml", "--out", "run", "--tensorboard", "--quiet"]) == 0
    assert steps("run", "candidate 1", "task 01 digits 0-1/loss") == [1, 2, 3]
    assert app.main(["verify", "run"]) == 0
    assert app.main(["inspect", "run"]) == 0
    assert app.main(["resume", "run"]) == 0
    assert "run is finished; nothing is left to do" in capsys.readouterr().out
    assert app.main(["run", "small.toml", "--out", "run", "--tensorboard"]) == 2
    assert "run holds a run; clnp resume run goes on with it" in capsys.readouterr().err


def test_a_finished_run_is_told_again_from_the_command_line(folder, capsys):
    assert app.main(["run", "small.toml", "--out", "run", "--quiet"]) == 0
    assert not Path("run", "tensorboard").exists()
    capsys.readouterr()
    for _ in range(2):
        assert app.main(["resume", "run", "--tensorboard", "--tensorboard"]) == 0
        assert "run is finished; it was told to tensorboard." in capsys.readouterr().out
        assert steps("run", "candidate 1", "task 02 digits 2-3/loss") == [1, 2, 3]
    assert app.main(["resume", "run", "--tensorboard", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finished"]


def test_a_run_that_is_stopped_goes_on_in_the_same_curves(folder):
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 3", "epochs = 2000"))
    outside = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    for command in (["run", "small.toml", "--out", "run"], ["resume", "run"]):
        before = len(read_events("run"))
        process = subprocess.Popen(
            [sys.executable, "-m", "clnp", *command, "--tensorboard", "--quiet"],
            env=outside,
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + 60
        while len(read_events("run")) < before + 10:
            assert time.monotonic() < end
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert error == "clnp: stopped; go on with: clnp resume run\n"
        told = [event["number"] + 1 for event in read_events("run") if event["event"] == "epoch"]
        assert steps("run", "candidate 1", "task 01 digits 0-1/loss") == told
        assert told == list(range(1, len(told) + 1))


def test_a_series_side_by_side_is_tracked(folder, capfd):
    command = ["run", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "two", "--quiet"]
    assert app.main([*command, "--tensorboard"]) == 0
    for seed in (0, 1):
        path = Path("two", f"seed{seed}")
        assert steps(path, "candidate 1", "task 02 digits 2-3/loss") == [1, 2, 3]
    assert app.main(["resume", "two", "--tensorboard", "--quiet"]) == 0
    assert app.main(["inspect", "two"]) == 0
    assert app.main(["verify", "two"]) == 0


def test_a_tracker_that_fails_is_told_of_without_progress_too(folder, capsys, monkeypatch):
    def fail(self, event):
        raise OSError("disk full")

    monkeypatch.setattr(TensorBoard, "event", fail)
    for quiet in ([], ["--quiet"]):
        out = f"run{len(quiet)}"
        assert app.main(["run", "small.toml", "--out", out, "--tensorboard", *quiet]) == 0
        error = capsys.readouterr().err
        message = "TensorBoard failed and is told nothing more: OSError: disk full; the run goes on"
        assert error.count(message) == 1
    assert app.main(["resume", "run1", "--tensorboard", "--quiet"]) == 0
    out, error = capsys.readouterr()
    assert "run1 is finished; not all of it could be told to tensorboard." in out
    assert "TensorBoard failed and is told nothing more: OSError: disk full" in error
