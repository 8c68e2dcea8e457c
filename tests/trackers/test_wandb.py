import json
import os
import struct
import subprocess
import sys

import pytest

from clnp.runs.directory import read_events
from clnp.runs.trackers import recall, track_finished_run
from clnp.trackers import WeightsAndBiases
from clnp.trackers.wandb import key
from support.runs import untimed
from support.terminal import wait_for
from support.tracked import LABELS, break_off_tracked, experiment, points_of

pytest.importorskip("wandb", reason="needs the extra wandb")

# W&B and its dependencies warn about their own changes.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def tracker():
    return WeightsAndBiases(quiet=True)


BLOCK, HEADER = 32768, 7
FULL, LAST = 1, 4


def records(path):
    """The records of a run that has ended, in the file that W&B has written."""

    def is_complete():
        found[:] = written(path)
        return any(record.WhichOneof("record_type") == "exit" for record in found)

    found = []
    wait_for(is_complete)  # W&B writes in a process of its own.
    return found


def written(path):
    """The records in a log in the format of LevelDB so far."""
    from wandb.proto import wandb_internal_pb2

    (file,) = path.glob("wandb/offline-run-*/run-*.wandb")
    data, position, part = file.read_bytes(), HEADER, b""
    while position + HEADER <= len(data):
        if (left := BLOCK - position % BLOCK) < HEADER:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        position += HEADER + length
        part += data[position - length : position]
        if kind in (FULL, LAST) and position <= len(data):
            yield wandb_internal_pb2.Record.FromString(part)
            part = b""


def rows(path):
    """The history of the run, a mapping for each row."""
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
    """The steps and values of all curves, by key."""
    found = {}
    for row in rows(path):
        for name, value in row.items():
            if name.startswith(("_", "candidates/")) or name.endswith(("/epoch", "tasks_learned")):
                continue
            epoch = f"{name.split('/')[0]}/epoch"
            found.setdefault(name, []).append((row.get(epoch, row.get("tasks_learned")), value))
    return found


def expected(path):
    found = {}
    for point in points_of(path):
        name = key(point.section, point.part, point.measure)
        found.setdefault(name, []).append((point.step, point.value))
    return found


def test_a_run_is_a_run_of_weights_and_biases(tmp_path):
    path = tmp_path / "run"
    experiment().run(path, trackers=[tracker()])
    assert curves(path) == expected(path)
    (made,) = [r.run for r in records(path) if r.WhichOneof("record_type") == "run"]
    assert (made.display_name, made.project, made.run_group) == ("run", "clnp", "")
    assert made.run_id == recall(path, "wandb")["id"]
    config = {item.key: json.loads(item.value_json) for item in made.config.update}
    assert config["learner"]["margin"] == 3.0
    assert "torch" in config["environment"]
    assert '"margin": 3.0' in made.notes
    tables = {f"{key('candidates', label)}/_type" for label in LABELS}
    assert tables <= {name for row in rows(path) for name in row}
    (ended,) = [r.exit for r in records(path) if r.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 0
    found = [r.metric for r in records(path) if r.WhichOneof("record_type") == "metric"]
    axes = {metric.glob_name: metric.step_metric for metric in found if metric.glob_name}
    assert axes["task_01_a/*"] == "task_01_a/epoch"
    assert axes["test_score/*"] == "tasks_learned"


def test_names_have_letters_digits_and_underscores():
    assert key("task 02 cats & dogs é", None, "loss") == "task_02_cats___dogs__/loss"


def test_a_run_that_resumes_offline_is_written_again_under_its_id(tmp_path):
    path = tmp_path / "run"
    whole = experiment().run(tmp_path / "whole")
    break_off_tracked(path, 21, tracker())
    before = recall(path, "wandb")["id"]
    (ended,) = [r.exit for r in records(path) if r.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 1
    result = experiment().run(path, trackers=[tracker()])
    assert untimed(result) == untimed(whole)
    assert recall(path, "wandb")["id"] == before
    assert curves(path) == expected(path)


def test_rows_that_exist_are_not_sent_again(tmp_path):
    """Online, a resumed run knows how many rows it has."""
    path = tmp_path / "run"
    experiment("a").run(path)

    class Resumed(WeightsAndBiases):
        def begin(self, run):
            super().begin(run)
            self._num_before = 5

    track_finished_run(path, [Resumed(quiet=True)])
    found = rows(path)
    assert found[0]["_step"] == 5
    whole = expected(path)
    assert curves(path)["task_01_a/candidate_2/loss"] == (whole["task_01_a/candidate_2/loss"][1:])


def test_a_finished_run_can_be_sent_later(tmp_path):
    path = tmp_path / "run"
    experiment().run(path)
    track_finished_run(path, [tracker()])
    track_finished_run(path, [tracker()])
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


def test_a_run_does_not_start_without_a_login(tmp_path):
    # In another process, because W&B reads its settings once.
    (tmp_path / "test.py").write_text(
        "from clnp.trackers import WeightsAndBiases\n"
        "from support.tracked import experiment\n"
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
