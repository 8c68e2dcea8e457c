import json
import math
import shutil

import pytest

from clnp.core.forecast import Forecast
from clnp.errors import RunError
from clnp.runs.history import read_run, room_left
from support.written_runs import write, write_run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def test_a_run_is_read_task_by_task(run):
    history = read_run(run)
    assert [task.name for task in history.tasks] == ["low", "high", "wide"]
    assert (history.recipe, history.method, history.seed) == ("by-hand", "clnp", 0)
    assert history.finished
    high = history.tasks[1]
    assert (high.test_score, high.now, high.unchanged) == (92.0, 92.0, True)
    assert high.new == {"fc1": 4, "fc2": 4}
    assert high.reused == {"fc1": 1, "fc2": 1}
    assert high.certificate == f"{1:064x}"
    assert history.used("fc1") == [0, 2, 6, 12]
    assert history.scores[-1] == (91.0, 92.0, 93.0)
    assert history.outlook is not None
    assert "7 more tasks" in history.outlook


def test_candidates_have_their_epochs_and_their_pruning(run):
    task = read_run(run).tasks[0]
    assert [c.name for c in task.candidates] == ["alpha 0.0001, lr 0.01", "alpha 0.001, lr 0.01"]
    assert task.chosen is task.candidates[0]
    assert [epoch.score for epoch in task.candidates[1].epochs] == [81.0, 82.0, 83.0]
    assert len(task.tuning) == 1
    pruning = task.candidates[0].plan
    assert (pruning.theta, pruning.num_kept, pruning.margin) == (0.25, 4, 1.0)
    assert [point.theta for point in pruning.curve] == [0.9, 0.5, 0.25, -1.0]
    assert task.candidates[1].plan is None


def test_a_task_in_training_comes_after_those_that_are_learned(tmp_path):
    history = read_run(write_run(tmp_path / "run", num_learned=1))
    assert [task.learned for task in history.tasks] == [True, False]
    assert not history.finished
    assert history.tasks[1].chosen is None
    assert len(history.tasks[1].candidates[0].epochs) == 3


def test_a_run_without_result_or_events_is_still_a_run(tmp_path):
    run = write_run(tmp_path / "run", num_learned=0)
    (run / "events.jsonl").unlink()
    history = read_run(run)
    assert history.tasks == ()
    assert (history.num_tasks, history.num_events, history.num_damaged) == (3, 0, 0)


def test_damaged_event_lines_are_counted(run):
    events = (run / "events.jsonl").read_text(encoding="utf-8")
    broken = '{"event": "ep\n\n[]\n{"event": "epoch"}\n{"event": "epoch", "task": 3}\n'
    write(run, "events.jsonl", broken + events + '{"half')
    history = read_run(run)
    assert history.num_damaged == 5
    assert [task.name for task in history.tasks] == ["low", "high", "wide"]


def test_a_result_of_another_shape_gives_what_there_is(run):
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result["tasks"] = [{"x": 1}, 7, {"task": "low", "winner": 99, "new": []}]
    result |= {"scores": [[1, 2, 3], None], "capacity": [1], "forecast": {"new key": 2}}
    write(run, "result.json", result | {"certificates": 3, "timings": None, "stored_bytes": "x"})
    history = read_run(run)
    assert history.scores == ((1.0,),)
    assert history.tasks[0].name == "low"
    assert history.tasks[0].chosen is None
    assert history.sizes == {}
    assert (history.outlook, history.seconds, history.stored_bytes) == (None, None, None)


def test_a_forecast_with_keys_of_a_later_version_is_read(run):
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result["forecast"]["from a later version"] = 1
    write(run, "result.json", result)
    assert "7 more tasks" in read_run(run).outlook


def test_long_names_of_groups_are_shortened_in_a_forecast():
    names = [f"backbone.layers.{number}.block.convolution" for number in (1, 11)]
    free = {names[0]: 4, names[1]: 9, "fc": 9}
    expected = "about 2 more tasks like the last would fit; {} fills up first"
    for group, shown in ((names[0], "1 backbone.layers…ck.convolution"), ("fc", "fc")):
        forecast = Forecast(2, group, like=("a",), free=free)
        assert str(forecast) == expected.format(group)
        assert room_left(forecast) == expected.format(shown)


def test_scores_that_are_not_finite_are_numbers(tmp_path):
    history = read_run(write_run(tmp_path / "run", scores=[["nan"], ["inf", None], [1, 2, 3]]))
    assert math.isnan(history.scores[0][0])
    assert history.scores[1] == (math.inf, None)


def test_a_failure_counts_only_if_the_run_has_not_continued(tmp_path):
    run = write_run(tmp_path / "run", num_learned=1)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "failed", "task": "high", "reason": "it diverged"}\n')
    assert read_run(run).failed == "it diverged"
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "stopped"}\n')
    assert read_run(run).failed is None


def test_a_path_without_a_run_is_an_error(tmp_path, run):
    with pytest.raises(RunError, match="nothing does not exist"):
        read_run(tmp_path / "nothing")
    shutil.rmtree(run)
    run.mkdir()
    with pytest.raises(RunError, match="is not a run"):
        read_run(run)
