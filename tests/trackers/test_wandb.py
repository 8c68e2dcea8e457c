import json
import os
import subprocess
import sys

import pytest

from clnp.errors import RunError
from clnp.runs.directory import read_events, read_json
from clnp.runs.trackers import tell_again
from clnp.trackers import WeightsAndBiases
from clnp.trackers.curves import Curves
from clnp.trackers.wandb import key
from support.forgetting import Crash
from support.tracked import LABELS, crash_after, experiment, without_timings

pytest.importorskip("wandb", reason="needs the extra wandb")

# W&B and what it is made of warn of what they will change.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def tracker():
    return WeightsAndBiases(quiet=True)


def records(path):
    """All that was written for W&B: the one file of the run, record by record."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (file,) = path.glob("wandb/offline-run-*/run-*.wandb")
    store, found = DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        found.append(record)
    return found


def rows(path):
    """The history of the run: one mapping for each row."""
    found = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append(
                {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in items
                }
            )
    return found


def curves(path):
    """All curves: steps and values by their keys."""
    found = {}
    for row in rows(path):
        for name, value in row.items():
            if name.startswith(("_", "candidates/")) or name.endswith(("/epoch", "tasks_learnt")):
                continue
            epoch = f"{name.split('/')[0]}/epoch"
            found.setdefault(name, []).append((row.get(epoch, row.get("tasks_learnt")), value))
    return found


def expected(path):
    """All curves that the events of the run hold."""
    read, found = Curves(), {}
    points = [point for event in read_events(path) for point in read.read(event)[0]]
    for point in [*points, *read.finish(read_json(path, "result.json", {}))]:
        name = key(point.section, point.part, point.measure)
        found.setdefault(name, []).append((point.step, point.value))
    return found


def test_a_run_is_a_run_of_weights_and_biases(tmp_path):
    path = tmp_path / "run"
    experiment().run(path, trackers=[tracker()])
    assert curves(path) == expected(path)
    (made,) = [r.run for r in records(path) if r.WhichOneof("record_type") == "run"]
    assert (made.display_name, made.project, made.run_group) == ("run", "clnp", "")
    assert made.run_id == read_json(path, "trackers.json", {})["wandb"]["id"]
    config = {item.key: json.loads(item.value_json) for item in made.config.update}
    assert config["learner"]["margin"] == 3.0
    assert "torch" in config["environment"]
    assert '"margin": 3.0' in made.notes
    tables = {f"{key('candidates', label)}/_type" for label in LABELS}
    assert tables <= {name for row in rows(path) for name in row}
    (ended,) = [r.exit for r in records(path) if r.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 0


def test_curves_have_epochs_or_tasks_as_their_axis(tmp_path):
    experiment().run(tmp_path / "run", trackers=[tracker()])
    found = [r.metric for r in records(tmp_path / "run") if r.WhichOneof("record_type") == "metric"]
    axes = {metric.glob_name: metric.step_metric for metric in found if metric.glob_name}
    assert axes["task_01_a/*"] == "task_01_a/epoch"
    assert axes["test_score/*"] == "tasks_learnt"


def test_names_are_those_that_can_be_sorted_by():
    assert key("task 02 cats & dogs é", None, "loss") == "task_02_cats___dogs__/loss"


def test_a_run_that_goes_on_offline_is_written_anew_under_its_id(tmp_path):
    path = tmp_path / "run"
    whole = experiment().run(tmp_path / "whole")
    with pytest.raises(Crash):
        experiment().run(path, checkpoint_seconds=0, on_event=crash_after(20), trackers=[tracker()])
    before = read_json(path, "trackers.json", {})["wandb"]["id"]
    (ended,) = [r.exit for r in records(path) if r.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 1
    result = experiment().run(path, trackers=[tracker()])
    assert without_timings(result) == without_timings(whole)
    assert read_json(path, "trackers.json", {})["wandb"]["id"] == before
    assert curves(path) == expected(path)


def test_rows_that_are_there_already_are_not_sent_again(tmp_path):
    """As it is online, where a run that is taken up says how many rows it has."""
    path = tmp_path / "run"
    experiment("a").run(path)

    class TakenUp(WeightsAndBiases):
        def begin(self, run):
            super().begin(run)
            self._num_before = 5

    tell_again(path, [TakenUp(quiet=True)])
    found = rows(path)
    assert found[0]["_step"] == 5
    whole = expected(path)
    assert curves(path)["task_01_a/candidate_2/loss"] == (whole["task_01_a/candidate_2/loss"][1:])


def test_a_finished_run_can_be_sent_later(tmp_path):
    path = tmp_path / "run"
    experiment().run(path)
    tell_again(path, [tracker()])
    tell_again(path, [tracker()])
    assert curves(path) == expected(path)


def test_the_project_can_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "of the environment")
    for name, made in (("one", tracker()), ("two", WeightsAndBiases("mine", quiet=True))):
        experiment("a").run(tmp_path / name, trackers=[made])
    projects = [
        record.run.project
        for name in ("one", "two")
        for record in records(tmp_path / name)
        if record.WhichOneof("record_type") == "run"
    ]
    assert projects == ["of the environment", "mine"]


def test_a_user_who_has_not_logged_in_is_told_before_the_run_starts(tmp_path):
    # In a process of its own: W&B reads its settings once.
    (tmp_path / "test.py").write_text(
        "from clnp import WeightsAndBiases\n"
        "from tracked import experiment\n"
        "experiment().run('run', trackers=[WeightsAndBiases(quiet=True)])\n"
    )
    outside = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    outside["PYTHONPATH"] = os.pathsep.join(sys.path)
    outside |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")}
    outside["WANDB_BASE_URL"] = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "test.py"], env=outside, capture_output=True, text=True, cwd=tmp_path
    )
    assert "RunError: WeightsAndBiases cannot track the run: UsageError" in done.stderr
    assert read_events(tmp_path / "run") == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match=r"^wandb is not installed; .* 'clnp\[wandb\]'$"):
        WeightsAndBiases()
