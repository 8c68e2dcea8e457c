import sys
import time

import pytest
import torch

import clnp
from clnp.errors import RunError
from clnp.runs.directory import read_events, read_json
from clnp.runs.trackers import tell_again
from clnp.trackers import TensorBoard
from clnp.trackers.curves import Curves
from support.forgetting import Crash
from support.tracked import LABELS, crash_after, experiment, without_timings

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

PARTS = [".", "candidate 1", "candidate 2", "fine-tuning"]


def load(path):
    """What TensorBoard reads, by the names of its runs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for folder in sorted({file.parent for file in path.rglob("events.out.tfevents.*")}):
        guidance = {"scalars": 0, "tensors": 0}
        found[str(folder.relative_to(path))] = loaded = EventAccumulator(str(folder), guidance)
        loaded.Reload()
    return found


def scalars(path):
    """All curves: steps and values by the names of run and tag."""
    return {
        (name, tag): [(event.step, event.value) for event in loaded.Scalars(tag)]
        for name, loaded in load(path).items()
        for tag in loaded.Tags()["scalars"]
    }


def expected(path):
    """All curves that the events of the run hold."""
    curves, found = Curves(), {}
    points = [point for event in read_events(path) for point in curves.read(event)[0]]
    for point in [*points, *curves.finish(read_json(path, "result.json", {}))]:
        name = (point.part or ".", f"{point.section}/{point.measure}")
        found.setdefault(name, []).append((point.step, pytest.approx(point.value, rel=1e-5)))
    return found


def texts(loaded):
    """All texts of a run of TensorBoard, by tag."""
    tags = [tag for tag in loaded.Tags()["tensors"] if tag.endswith("/text_summary")]
    return {
        tag.removesuffix("/text_summary"): loaded.Tensors(tag)[-1]
        .tensor_proto.string_val[0]
        .decode()
        for tag in tags
    }


def test_all_curves_can_be_read(tmp_path):
    experiment().run(tmp_path / "run", trackers=[TensorBoard()])
    found = scalars(tmp_path / "run" / "tensorboard")
    assert sorted({name for name, _ in found}) == PARTS
    assert found == expected(tmp_path / "run")
    assert found["candidate 2", f"{LABELS[1]}/validation"][-1][0] == 4


def test_recipe_environment_and_candidates_are_texts(tmp_path):
    experiment().run(tmp_path / "run", trackers=[TensorBoard()])
    found = texts(load(tmp_path / "run" / "tensorboard")["."])
    assert '"margin": 3.0' in found["recipe"]
    assert f"torch: {torch.__version__}" in found["environment"]
    assert found[LABELS[0]].startswith("| candidate | alpha | lr |")


def test_hyper_parameters_stand_beside_what_they_led_to(tmp_path):
    from tensorboard.plugins.hparams import metadata

    experiment().run(tmp_path / "run", trackers=[TensorBoard()])
    loaded = load(tmp_path / "run" / "tensorboard")["."]

    def content(tag):
        return loaded.summary_metadata[tag].plugin_data.content

    started = metadata.parse_session_start_info_plugin_data(
        content(metadata.SESSION_START_INFO_TAG)
    )
    assert started.hparams["learner.margin"].number_value == 3.0
    assert started.hparams["num_tasks"].number_value == 2
    described = metadata.parse_experiment_plugin_data(content(metadata.EXPERIMENT_TAG))
    tags = [metric.name.tag for metric in described.metric_infos]
    assert "all tasks/average test score" in tags
    assert set(tags) <= set(loaded.Tags()["scalars"])
    assert metadata.SESSION_END_INFO_TAG in loaded.summary_metadata


def test_tasks_over_tasks_are_drawn_into_one_picture(tmp_path):
    experiment().run(tmp_path / "run", trackers=[TensorBoard()])
    loaded = load(tmp_path / "run" / "tensorboard")["."]
    (tag,) = [tag for tag in loaded.Tags()["tensors"] if "custom_scalars" in tag]
    assert b"test score/.*" in loaded.Tensors(tag)[0].tensor_proto.string_val[0]


@pytest.mark.parametrize("moment", [0, 3, 8, 12, 20, 25, 40])
def test_a_run_that_goes_on_has_no_point_twice(tmp_path, moment):
    whole = experiment().run(tmp_path / "whole")
    path = tmp_path / "run"
    with pytest.raises(Crash):
        experiment().run(
            path, checkpoint_seconds=0, on_event=crash_after(moment), trackers=[TensorBoard()]
        )
    result = experiment().run(path, trackers=[TensorBoard()])
    assert without_timings(result) == without_timings(whole)
    assert scalars(path / "tensorboard") == expected(path)


def test_one_that_is_open_in_a_browser_has_no_point_twice(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Crash):
        experiment().run(
            path, checkpoint_seconds=1e9, on_event=crash_after(7), trackers=[TensorBoard()]
        )
    watched = load(path / "tensorboard")
    assert len(watched["candidate 1"].Scalars("task 01 a/loss")) == 4
    time.sleep(1.1)  # Files are read in the order of the seconds in their names.
    experiment().run(path, trackers=[TensorBoard()])
    for loaded in watched.values():
        loaded.Reload()
    steps = [event.step for event in watched["candidate 1"].Scalars("task 01 a/loss")]
    assert steps == [1, 2, 3, 4]
    assert len(watched["."].Scalars("test score/task 01 a")) == 2


def test_a_finished_run_can_be_shown_later_and_again(tmp_path):
    path = tmp_path / "run"
    experiment().run(path)
    assert not (path / "tensorboard").exists()
    for _ in range(4):
        tell_again(path, [TensorBoard()])
        assert scalars(path / "tensorboard") == expected(path)
    files = list((path / "tensorboard").rglob("events*"))
    assert len([file for file in files if file.stat().st_size]) == len(PARTS)
    assert len(files) == 2 * len(PARTS)


def test_files_of_others_stay(tmp_path):
    path = tmp_path / "run"
    experiment("a").run(path, trackers=[TensorBoard()])
    own = path / "tensorboard" / "events.out.tfevents.1.mine"
    own.write_bytes(b"")
    tell_again(path, [TensorBoard()])
    assert own.exists()


def test_times_are_those_of_the_run(tmp_path):
    path = tmp_path / "run"
    result = experiment("a").run(path)
    tell_again(path, [TensorBoard()])
    loaded = load(path / "tensorboard")["."]
    first = loaded.Scalars("test score/task 01 a")[0].wall_time
    last = loaded.Scalars("run/seconds")[0].wall_time
    assert last == pytest.approx((path / "events.jsonl").stat().st_mtime, abs=1)
    assert 0 <= last - first <= result["timings"]["seconds"]


def test_a_run_that_ends_badly_leaves_whole_files(tmp_path):
    with pytest.raises(Crash):
        experiment().run(tmp_path / "run", on_event=crash_after(12), trackers=[TensorBoard()])
    assert scalars(tmp_path / "run" / "tensorboard")["candidate 1", "task 01 a/loss"][-1][0] == 4


def test_a_directory_that_cannot_be_written_keeps_the_run_from_starting(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Crash):
        experiment().run(path, on_event=crash_after(0))
    (path / "tensorboard").write_text("a file")
    with pytest.raises(RunError, match="TensorBoard cannot track the run"):
        experiment().run(path, trackers=[TensorBoard()])


def test_a_learner_in_a_loop_of_ones_own_can_be_tracked(tmp_path):
    made, tracker = experiment(), TensorBoard()
    net = clnp.ContinualNet(made.model, made.example_input, head="multi")
    learner = clnp.Learner(net, made.config, on_event=tracker.event)
    tracker.begin(clnp.trackers.TrackedRun(tmp_path))
    for task in made.tasks:
        learner.learn(task)
    tracker.end(None, None)
    found = scalars(tmp_path / "tensorboard")
    assert [step for step, _ in found["candidate 1", f"{LABELS[1]}/loss"]] == [1, 2, 3, 4]
    assert len(found[".", "all tasks/test score when learnt"]) == 2


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    message = r"^tensorboard is not installed; install it: pip install 'clnp\[tensorboard\]'$"
    with pytest.raises(RunError, match=message):
        TensorBoard()
