import time

import pytest
import torch

import clnp
from clnp.errors import RunError
from clnp.runs.directory import read_result
from clnp.runs.trackers import track_finished_run
from clnp.trackers import TensorBoard
from support.runs import untimed
from support.tracked import LABELS, break_off_tracked, experiment, points_of

pytest.importorskip("tensorboard", reason="needs the extra tensorboard")

PARTS = [".", "candidate 1", "candidate 2", "fine-tuning"]


def load(path):
    """The runs of TensorBoard by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for folder in sorted({file.parent for file in path.rglob("events.out.tfevents.*")}):
        guidance = {"scalars": 0, "tensors": 0}
        found[str(folder.relative_to(path))] = loaded = EventAccumulator(str(folder), guidance)
        loaded.Reload()
    return found


def scalars(path):
    """The steps and values of all curves, by run and tag."""
    return {
        (name, tag): [(event.step, event.value) for event in loaded.Scalars(tag)]
        for name, loaded in load(path / "tensorboard").items()
        for tag in loaded.Tags()["scalars"]
    }


def expected(path):
    found = {}
    for point in points_of(path):
        name = (point.part or ".", f"{point.section}/{point.measure}")
        found.setdefault(name, []).append((point.step, pytest.approx(point.value, rel=1e-5)))
    return found


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """The directory of a run, and what TensorBoard reads of the run as a whole."""
    path = tmp_path_factory.mktemp("runs") / "run"
    experiment().run(path, trackers=[TensorBoard()])
    return path, load(path / "tensorboard")["."]


def test_all_curves_can_be_read(tracked):
    path, _ = tracked
    found = scalars(path)
    assert sorted({name for name, _ in found}) == PARTS
    assert found == expected(path)
    assert found["candidate 2", f"{LABELS[1]}/validation"][-1][0] == 4


def test_config_environment_and_candidates_are_texts(tracked):
    def text(tag):
        return loaded.Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()

    _, loaded = tracked
    assert '"margin": 3.0' in text("recipe")
    assert f"torch: {torch.__version__}" in text("environment")
    assert text(LABELS[0]).startswith("| candidate | alpha | lr |")


def test_hyper_parameters_have_their_metrics(tracked):
    from tensorboard.plugins.hparams import metadata

    def content(tag):
        return loaded.summary_metadata[tag].plugin_data.content

    _, loaded = tracked
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


def test_the_scores_of_all_tasks_are_in_one_chart(tracked):
    _, loaded = tracked
    (tag,) = [tag for tag in loaded.Tags()["tensors"] if "custom_scalars" in tag]
    assert b"test score/.*" in loaded.Tensors(tag)[0].tensor_proto.string_val[0]


@pytest.mark.parametrize("count", [1, 21, 41])
def test_a_resumed_run_has_no_point_twice(tmp_path, count, tracked):
    path = tmp_path / "run"
    break_off_tracked(path, count, TensorBoard())
    result = experiment().run(path, trackers=[TensorBoard()])
    assert untimed(result) == untimed(read_result(tracked[0]))
    assert scalars(path) == expected(path)


def test_a_crashed_run_leaves_whole_files_and_is_followed_when_it_resumes(tmp_path, monkeypatch):
    path, now = tmp_path / "run", time.time()
    with monkeypatch.context() as patch:
        # The names of files have the second, by which TensorBoard sorts them.
        patch.setattr(time, "time", lambda: now - 60)
        break_off_tracked(path, 8, TensorBoard(), checkpoint_seconds=1e9)
    watched = load(path / "tensorboard")
    assert len(watched["candidate 1"].Scalars("task 01 a/loss")) == 4
    experiment().run(path, trackers=[TensorBoard()])
    for loaded in watched.values():
        loaded.Reload()
    steps = [event.step for event in watched["candidate 1"].Scalars("task 01 a/loss")]
    assert steps == [1, 2, 3, 4]
    assert len(watched["."].Scalars("test score/task 01 a")) == 2


def test_a_finished_run_can_be_shown_later_and_again(tmp_path):
    path = tmp_path / "run"
    result = experiment().run(path)
    assert not (path / "tensorboard").exists()
    for _ in range(3):
        track_finished_run(path, [TensorBoard()])
        assert scalars(path) == expected(path)
    files = list((path / "tensorboard").rglob("events*"))
    assert len([file for file in files if file.stat().st_size]) == len(PARTS)
    assert len(files) == 2 * len(PARTS)
    loaded = load(path / "tensorboard")["."]
    first = loaded.Scalars("test score/task 01 a")[0].wall_time
    last = loaded.Scalars("run/seconds")[0].wall_time
    assert last == pytest.approx((path / "events.jsonl").stat().st_mtime, abs=1)
    assert 0 <= last - first <= result.timings.seconds


def test_other_files_stay(tmp_path):
    path = tmp_path / "run"
    experiment("a").run(path, trackers=[TensorBoard()])
    own = path / "tensorboard" / "events.out.tfevents.1.mine"
    own.write_bytes(b"")
    track_finished_run(path, [TensorBoard()])
    assert own.exists()


def test_a_run_does_not_start_if_its_files_cannot_be_written(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "events.jsonl").touch()
    (path / "tensorboard").write_text("a file")
    with pytest.raises(RunError, match="TensorBoard cannot track the run"):
        experiment().run(path, trackers=[TensorBoard()])


def test_a_learner_can_be_tracked_without_a_run(tmp_path):
    made, tracker = experiment(), TensorBoard()
    net = clnp.ContinualNet(made.model, made.example_input, head="multi")
    learner = clnp.Learner(net, made.config, on_event=tracker.event)
    tracker.begin(clnp.trackers.TrackedRun(tmp_path))
    for task in made.tasks:
        learner.learn(task)
    tracker.end(None, None)
    found = scalars(tmp_path)
    assert [step for step, _ in found["candidate 1", f"{LABELS[1]}/loss"]] == [1, 2, 3, 4]
    assert len(found[".", "all tasks/test score when learned"]) == 2
