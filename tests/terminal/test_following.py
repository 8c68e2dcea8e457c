import json
import os
import shutil
import time
from dataclasses import replace

import pytest
import torch

import clnp
from clnp.errors import ArgumentError, RunError
from clnp.runs.directory import FORMAT
from clnp.terminal.status import GRACE, PATIENCE, Follower, Following, Scene, View
from terminal.test_standing import begin, ended, epoch, pruning

STOP = {"event": "stopped", "at": 9.0}
FAILURE = {"event": "failed", "task": "task 1", "reason": "every candidate diverged", "at": 9.0}
END = {"event": "finished", "num_tasks": 3, "at": 60.0}


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def make(path, *events, seed=0, method="clnp", **others):
    """A run with these events."""
    path.mkdir(parents=True, exist_ok=True)
    tasks = [{"name": f"task {number}"} for number in (1, 2, 3)]
    config = {"format": FORMAT, "recipe": "mine", "seed": seed, "head": "multi", "tasks": tasks}
    (path / "config.json").write_text(json.dumps({**config, "method": method, **others}))
    if events:
        tell(path, *events)
    return path


def tell(path, *events):
    with (path / "events.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps(event) + "\n")


def test_a_run_that_is_not_there_yet(tmp_path, clock):
    following = Following(tmp_path / "a" / "run", clock=clock)
    assert following.look() == Scene(str(tmp_path / "a" / "run"), None, [], [])
    assert following.look().status == "waiting"
    (tmp_path / "a" / "run").mkdir(parents=True)
    assert following.look().kind is None
    make(tmp_path / "a" / "run")
    scene = following.look()
    assert (scene.kind, scene.status) == ("run", "running")
    view = scene.views[0]
    assert (view.recipe, view.method, view.seed, view.num_tasks) == ("mine", "clnp", 0, 3)
    assert (view.task, view.fraction, view.seconds_left) == (None, 0.0, None)


def test_a_run_goes_on(tmp_path, clock):
    path = make(tmp_path / "run", {"event": "run"}, begin())
    follower = Follower(path, clock=clock)
    view = follower.look()
    assert (view.task, view.number, view.phase, view.candidate) == ("task 1", 1, "training", None)
    tell(path, epoch(0, 2.0), epoch(1, 4.0))
    view = follower.look()
    assert (view.candidate, view.num_candidates, view.epoch, view.num_epochs) == (1, 2, 2, 10)
    assert (view.losses, view.scores) == ([1.0, 0.5], [50.0, 51.0])
    assert view.fraction == 2 / 60
    assert view.at_least
    tell(path, pruning({"fc1": 40, "fc2": 20}), epoch(0, 40.0, round=1, num_epochs=5), ended())
    view = follower.look()
    assert (view.task, view.phase, view.num_learnt, view.epoch) == (None, None, 1, None)
    assert replace(view, epochs_done=60).fraction == 0.99
    assert view.tasks == [{"task": "task 1", "test_score": 88.0}]
    assert view.sizes == {"fc1": 40, "fc2": 20}
    assert view.claimed == {"fc1": [4], "fc2": [2]}
    assert not view.at_least
    tell(path, {"event": "evaluation", "scores": [88.0, None], "at": 51.0}, END)
    view = follower.look()
    assert (view.status, view.average, view.fraction) == ("finished", 88.0, 1.0)
    assert (view.seconds, view.seconds_left) == (60.0, 0.0)


def test_fine_tuning_is_a_part_of_the_run(tmp_path, clock):
    learner = {"fine_tuning": {"epochs": 40, "rounds": 2}}
    tuning = epoch(0, 30.0, round=0, num_epochs=40)
    path = make(tmp_path / "run", begin(), tuning, learner=learner)
    follower = Follower(path, clock=clock)
    view = follower.look()
    assert (view.epochs_done, view.epochs_of_run) == (21, 60 + 3 * 80)
    assert (view.fraction, view.at_least, view.at_most) == (21 / 300, False, True)
    assert view.seconds_left == pytest.approx(79 * 2.0 + 200 * 30.0 / 21, abs=1.0)
    # It is not forgotten when the events are read from the beginning.
    (path / "events.jsonl").write_text(json.dumps(begin()) + "\n")
    assert follower.look().epochs_of_run == 300
    other = make(tmp_path / "other", begin(), learner=learner, method="ewc")
    assert Follower(other, clock=clock).look().epochs_of_run == 60


def test_what_was_cut_off_is_forgotten(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    follower = Follower(path, clock=clock)
    size = (path / "events.jsonl").stat().st_size
    tell(path, epoch(1, 4.0), epoch(2, 6.0))
    assert follower.look().epoch == 3
    os.truncate(path / "events.jsonl", size)
    assert follower.look().epoch == 1
    tell(path, begin(at=2.5, event="resumed"), epoch(1, 5.0))
    assert follower.look().losses == [1.0, 0.5]
    # All at once, so that the file is longer than before when it is next looked at.
    os.truncate(path / "events.jsonl", size)
    tell(path, begin(at=2.7, event="resumed"), *(epoch(n, 9.0 + n, loss=7.0) for n in range(1, 9)))
    assert follower.look().losses == [1.0, *[7.0] * 8]


def test_a_failure_that_was_resumed_is_none(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    size = (path / "events.jsonl").stat().st_size
    tell(path, FAILURE)
    follower = Follower(path, clock=clock)
    view = follower.look()
    assert (view.status, view.reason) == ("failed", "every candidate diverged")
    os.truncate(path / "events.jsonl", size)
    tell(path, begin(at=2.5, event="resumed"))
    assert (follower.look().status, follower.look().reason) == ("running", None)


def test_half_written_and_damaged_lines(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    follower = Follower(path, clock=clock)
    with (path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "epoch"}\n[1]\n\xff\xfe\n"text"\n\n' + b"[" * 10**5 + b"\n")
        file.write(json.dumps(epoch(1, 4.0)).encode()[:40])
    assert follower.look().epoch == 1
    with (path / "events.jsonl").open("ab") as file:
        file.write(json.dumps(epoch(1, 4.0)).encode()[40:] + b"\n")
    assert follower.look().epoch == 2


def test_silence_is_by_the_clock_of_who_looks(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    old = time.time() - 500
    os.utime(path / "events.jsonl", (old, old))
    follower = Follower(path, clock=clock)
    assert follower.look().silent == pytest.approx(500, abs=5)
    clock.now += 20
    assert follower.look().silent == pytest.approx(520, abs=5)
    # The other machine's clock is an hour ahead, or behind.
    tell(path, epoch(1, 4.0))
    os.utime(path / "events.jsonl", (old - 3600, old - 3600))
    assert follower.look().silent == 0.0
    clock.now += 7
    assert follower.look().silent == 7.0
    ahead = time.time() + 3600
    os.utime(path / "events.jsonl", (ahead, ahead))
    assert Follower(path, clock=clock).look().silent == 0.0


def test_an_epoch_under_way_has_taken_some_of_the_time(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    follower = Follower(path, clock=clock)
    before = follower.look().seconds_left
    clock.now += 1.0
    assert follower.look().seconds_left == pytest.approx(before - 1.0, abs=0.1)
    # But no more than an epoch: it may have been stopped.
    clock.now += 1000.0
    assert follower.look().seconds_left == pytest.approx(before - 2.0, abs=0.1)


def test_a_result_tells_of_an_end_that_events_lack(tmp_path, clock):
    path = make(tmp_path / "run", begin())
    follower = Follower(path, clock=clock)
    (path / "result.json").write_text("{")
    follower.look()
    clock.now += 2 * PATIENCE
    assert follower.look().status == "running"
    (path / "result.json").write_text('{"finished": true}')
    assert follower.look().status == "finished"
    tell(path, epoch(0, 2.0))
    # There was news just now: the event that it is finished may be on its way.
    assert follower.look().status == "running"


def test_a_result_tells_what_damaged_events_do_not(tmp_path, clock):
    path = make(tmp_path / "run", begin(), ended(), begin(2), ended(2), END)
    data = (path / "events.jsonl").read_bytes()
    (path / "events.jsonl").write_bytes(data.replace(b'"test_score": 88.0', b"\0", 1))
    assert Follower(path, clock=clock).look().num_learnt == 1
    records = [{"task": f"task {number}", "test_score": 70.0 + number} for number in (1, 2)]
    result = {"tasks": [*records, {"task": "task 3", "test_score": "nan"}]}
    result["scores"] = [[71.0], [71.0, 73.0], [72.0, 74.0, None]]
    (path / "result.json").write_text(json.dumps({"finished": False, **result}))
    assert Follower(path, clock=clock).look().num_learnt == 1
    (path / "result.json").write_text(json.dumps({"finished": True, **result}))
    view = Follower(path, clock=clock).look()
    assert (view.status, view.num_learnt, view.average) == ("finished", 3, 73.0)
    assert view.tasks[:2] == records


def test_a_config_may_be_damaged_for_a_moment(tmp_path, clock):
    path = make(tmp_path / "run", begin())
    whole = (path / "config.json").read_text()
    (path / "config.json").write_text(whole[:20])
    following = Following(path, clock=clock)
    assert following.look().status == "waiting"
    (path / "config.json").write_text(whole)
    assert following.look().status == "running"


def look_for_long(following, clock):
    for _ in range(3):
        following.look()
        clock.now += PATIENCE


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", '{"format": 99}', "has format 99, this clnp reads 1"),
        ("config.json", f'{{"format": {FORMAT}}}', "are damaged, or of another version"),
        ("series.json", "{", "series.json is damaged"),
        ("series.json", "{}", "is damaged: it has no seeds"),
        ("compare.json", "[]", "compare.json is damaged"),
        ("compare.json", '{"methods": 3, "seeds": 4}', "is damaged: it has no seeds"),
    ],
)
def test_a_file_that_stays_damaged_is_named(tmp_path, clock, file, text, message):
    (tmp_path / file).write_text(text)
    with pytest.raises(RunError, match=message):
        look_for_long(Following(tmp_path, clock=clock), clock)


def series(path, num_seeds=3):
    path.mkdir()
    (path / "series.json").write_text(
        json.dumps({"recipe": "mine", "seeds": list(range(num_seeds))})
    )
    return path


def test_a_series_is_all_of_its_runs(tmp_path, clock):
    path = series(tmp_path / "series")
    following = Following(path, clock=clock)
    scene = following.look()
    assert (scene.kind, scene.labels) == ("series", ["seed 0", "seed 1", "seed 2"])
    assert (scene.status, {view.status for view in scene.views}) == ("waiting", {"waiting"})
    make(path / "seed0", begin(), END)
    make(path / "seed1", begin(), epoch(0, 2.0), seed=1)
    scene = following.look()
    assert [view.status for view in scene.views] == ["finished", "running", "waiting"]
    assert scene.status == "running"
    tell(path / "seed1", END)
    make(path / "seed2", begin(), END, seed=2)
    assert following.look().status == "finished"


def test_a_series_in_which_a_run_failed(tmp_path, clock):
    path = series(tmp_path / "series")
    following = Following(path, clock=clock)
    make(path / "seed0", begin(), FAILURE)
    make(path / "seed1", begin(), epoch(0, 2.0), seed=1)
    # The others may be under way.
    assert following.look().status == "running"
    clock.now += GRACE / 2
    assert following.look().status == "running"
    tell(path / "seed1", epoch(1, 4.0))
    assert following.look().status == "running"
    clock.now += GRACE / 2
    assert following.look().status == "running"
    clock.now += GRACE
    assert following.look().status == "failed"


def test_a_series_that_was_stopped(tmp_path, clock):
    path = series(tmp_path / "series")
    following = Following(path, clock=clock)
    make(path / "seed0", begin(), STOP)
    make(path / "seed1", begin(), epoch(0, 2.0), seed=1)
    assert following.look().status == "running"
    tell(path / "seed1", STOP)
    scene = following.look()
    assert [view.status for view in scene.views] == ["stopped", "stopped", "waiting"]
    assert [view.seconds_left for view in scene.views] == [0.0, 0.0, None]
    assert scene.status == "stopped"


def test_a_comparison_is_a_series_for_each_method(tmp_path, clock):
    path = tmp_path / "compared"
    path.mkdir()
    known = {"recipe": "mine", "methods": ["clnp", "ewc"], "seeds": [0, 1]}
    (path / "compare.json").write_text(json.dumps(known))
    make(path / "clnp" / "seed1", begin(), END)
    following = Following(path, clock=clock)
    scene = following.look()
    assert scene.kind == "comparison"
    assert scene.labels == ["clnp, seed 0", "clnp, seed 1", "ewc, seed 0", "ewc, seed 1"]
    assert [view.status for view in scene.views] == ["waiting", "finished", "waiting", "waiting"]
    # A method may be added later.
    (path / "compare.json").write_text(json.dumps({**known, "methods": ["clnp", "ewc", "si"]}))
    assert len(following.look().views) == 6


def test_a_directory_that_vanishes_is_no_news(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    following = Following(path, clock=clock)
    following.look()
    shutil.rmtree(path)
    clock.now += 30
    view = following.look().views[0]
    assert (view.status, view.epoch) == ("running", 1)
    assert view.silent >= 30


def test_a_scene_is_plain_data(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0, loss="nan"))
    scene = Following(path, clock=clock).look()
    found = json.loads(json.dumps(scene.to_json(), allow_nan=False))
    assert (found["kind"], found["status"]) == ("run", "running")
    assert found["runs"][0]["losses"] == ["nan"]
    assert found["runs"][0]["fraction"] == 1 / 60
    assert found["runs"][0]["label"] == "run"
    assert {*vars(View("x"))} <= {*found["runs"][0]}


def test_nothing_is_written(tmp_path, clock):
    path = make(tmp_path / "run", begin(), epoch(0, 2.0))
    before = {each.name: each.stat().st_mtime_ns for each in path.iterdir()}
    for _ in range(3):
        Following(path, clock=clock).look()
    assert {each.name: each.stat().st_mtime_ns for each in path.iterdir()} == before


def test_a_run_that_failed_before_it_had_learnt_anything(tmp_path, clock):
    """It has no config any more; begun anew, it is a run like any other."""
    (tmp_path / "events.jsonl").write_text('{"event": "failed", "task": "a", "reason": "inf"}\n')
    scene = Following(tmp_path, clock=clock).look()
    assert (scene.kind, scene.status, scene.views[0].reason) == ("run", "failed", "inf")
    tell(tmp_path, epoch(0, 2.0), FAILURE)
    assert Following(tmp_path, clock=clock).look().kind is None  # Its config is lost.
    (tmp_path / "events.jsonl").unlink()
    make(tmp_path, begin(1))
    assert Following(tmp_path, clock=clock).look().status == "running"


def test_a_run_whose_data_do_not_fit_has_failed(tmp_path, clock):
    """It is told before the first task begins."""
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    tasks = [clnp.Task("a", (x, y)), clnp.Task("b", (x[:, :3], y))]
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    with pytest.raises(ArgumentError, match="do not fit the network"):
        clnp.Experiment(model, x[:2], tasks).run(tmp_path / "run")
    view = Following(tmp_path / "run", clock=clock).look().views[0]
    assert view.status == "failed"
    assert "do not fit the network" in view.reason
