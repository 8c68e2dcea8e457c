import json
import time
from pathlib import Path

import pytest

from clnp.errors import RunError, StoppedError
from clnp.plain import to_json
from clnp.records import (
    EpochEnded,
    Evaluated,
    Event,
    RunConfig,
    RunStarted,
    TaskResumed,
    event_to_plain,
)
from clnp.runs.directory import (
    CONFIG,
    EVENTS,
    Run,
    last_environment,
    read_config,
    read_events,
    read_result,
)
from clnp.runs.experiment import RunLoop
from clnp.runs.trackers import IDENTIFIERS, Trackers, note, recall, track_finished_run
from clnp.trackers import TrackedRun
from support.runs import Crash, break_off, crash_at, untimed
from support.tracked import NAMES, Faulty, Notebook, experiment


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tracker that followed a run, and its result."""
    notebook = Notebook()
    result = experiment().run(tmp_path_factory.mktemp("whole"), trackers=[notebook])
    return notebook, result


def test_a_tracker_gets_the_contents_of_the_directory(whole):
    notebook, result = whole
    (run,) = notebook.begun
    assert run.config == read_config(run.path)
    assert run.environment == last_environment(run.path)
    assert run.num_before == 0
    assert run.began + notebook.events[-1].at <= time.time()
    written = read_events(run.path)
    assert len(written) > 40
    assert notebook.events == written
    assert notebook.ended == [(result, None)]


@pytest.mark.parametrize("moment", [1, 6, 21, 26, 41])
def test_a_tracker_of_a_resumed_run_gets_every_event(tmp_path, whole, moment):
    broken = Notebook()
    with pytest.raises(Crash):
        experiment().run(
            tmp_path / "broken",
            checkpoint_seconds=0,
            on_event=crash_at(Event, moment),
            trackers=[broken],
        )
    ((result, error),) = broken.ended
    assert result is None
    assert isinstance(error, Crash)
    experiment().run(tmp_path / "broken", trackers=[broken])
    assert broken.begun[1].num_before < moment

    def untimed_events(notebook):
        plain = [
            event_to_plain(event)
            for event in notebook.events
            if not isinstance(event, RunStarted | TaskResumed)
        ]
        return [{**event, "seconds": 0, "at": 0} for event in plain]

    assert untimed_events(broken) == untimed_events(whole[0])


def test_a_tracker_can_be_added_to_a_run(tmp_path):
    break_off(experiment(), tmp_path / "run", Event, 26)
    notebook = Notebook()
    experiment().run(tmp_path / "run", trackers=[notebook])
    assert notebook.events == read_events(tmp_path / "run")
    assert notebook.begun[0].num_before > 10
    at = [event.at for event in notebook.events]
    assert at == sorted(at)
    assert notebook.begun[0].began + at[-1] == pytest.approx(time.time(), abs=60)


def test_the_time_of_a_run_is_without_the_start_of_its_trackers(tmp_path, monkeypatch):
    clock, started = time.monotonic, []
    monkeypatch.setattr("clnp.runs.directory.time.monotonic", lambda: clock() + sum(started))

    class Slow(Notebook):
        def begin(self, run):
            super().begin(run)
            started.append(10_000)

    slow = Slow()
    experiment("a").run(tmp_path / "run", trackers=[slow])
    assert slow.events[0].at < 10_000


def test_a_finished_run_can_be_tracked(whole):
    path, result = whole[0].begun[0].path, whole[1]
    before = (path / EVENTS).read_bytes()
    notebook = Notebook()
    assert experiment().run(path, trackers=[notebook]) == result
    assert notebook.events == read_events(path)
    assert notebook.begun[0].num_before == len(notebook.events) > 40
    assert notebook.ended == [(read_result(path), None)]
    assert (path / EVENTS).read_bytes() == before
    end = notebook.begun[0].began + notebook.events[-1].at
    assert end == pytest.approx((path / EVENTS).stat().st_mtime, abs=60)


def test_a_finished_run_without_a_log_can_be_tracked(tmp_path):
    experiment("a").run(tmp_path / "run")
    (tmp_path / "run" / EVENTS).unlink()
    notebook = Notebook()
    track_finished_run(tmp_path / "run", [notebook])
    assert notebook.events == []
    assert len(notebook.ended) == 1
    # An error of one tracker ends the others.
    with pytest.raises(RunError, match="Faulty cannot track the run"):
        track_finished_run(tmp_path / "run", [notebook, Faulty("begin")])
    ((result, error),) = notebook.ended
    assert result is None
    assert isinstance(error, RunError)


@pytest.mark.parametrize("moment", [1, 10, "end"])
def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, whole, moment):
    faulty, notebook = Faulty(moment), Notebook()
    with pytest.warns(RuntimeWarning, match="Faulty failed") as caught:
        result = experiment().run(tmp_path / "run", trackers=[faulty, notebook])
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "The run continues without it. events.jsonl has all events" in text
    assert untimed(result) == untimed(whole[1])
    assert len(notebook.events) == len(read_events(tmp_path / "run")) > 40
    assert notebook.ended == [(result, None)]
    if moment != "end":
        assert "ConnectionError: server gone" in text
        assert len(faulty.events) == moment
    assert len(faulty.ended) == 1
    if moment != "end":
        assert isinstance(faulty.ended[0][1], ConnectionError)


def test_an_error_in_begin_stops_the_start(tmp_path):
    notebook = Notebook()
    message = "^Faulty cannot track the run: ConnectionError: no route to host. Fix that, or run "
    with pytest.raises(RunError, match=message):
        experiment().run(tmp_path / "run", trackers=[notebook, Faulty("begin")])
    assert notebook.events == []
    assert isinstance(notebook.ended[0][1], RunError)
    assert read_events(tmp_path / "run") == []
    assert experiment().run(tmp_path / "run").finished


def test_a_tracker_gets_the_reason_of_a_stop(tmp_path):
    made, notebook = experiment(), Notebook()
    with Run.create(tmp_path / "run", {CONFIG: to_json(made.describe())}) as run:
        loop = RunLoop(made, run, trackers=Trackers([notebook]))
        loop.on_event = lambda event: loop.stop() if isinstance(event, EpochEnded) else None
        with pytest.raises(StoppedError):
            loop.run_all()
    ((result, error),) = notebook.ended
    assert result is None
    assert isinstance(error, StoppedError)


def test_evaluations_have_the_neurons(whole):
    notebook, result = whole
    last = [event for event in notebook.events if isinstance(event, Evaluated)][-1]
    assert last.task == NAMES[-1]
    assert last.scores == result.scores[-1]
    assert (last.sizes, last.free) == (result.capacity.sizes, result.capacity.free)
    assert (last.new, last.reused) == (result.tasks[-1].new, result.tasks[-1].reused)
    assert last.forecast == result.forecast


@pytest.mark.parametrize(
    ("path", "method", "title", "group"),
    [
        ("runs/mine", "clnp", "mine", None),
        ("runs/five/seed3", "clnp", "five/seed3", "five"),
        ("runs/five/seed-3", "clnp", "five/seed-3", "five"),
        ("runs/all/ewc/seed0", "ewc", "all/ewc/seed0", "all/ewc"),
        ("runs/all/clnp/seed0", "clnp", "all/clnp/seed0", "all/clnp"),
        ("runs/seedling", "clnp", "seedling", None),
    ],
)
def test_a_run_has_the_title_of_its_directories(path, method, title, group):
    run = TrackedRun(Path(path), RunConfig(method=method))
    assert (run.title, run.group) == (title, group)


def test_the_working_directory_has_a_name(tmp_path, monkeypatch):
    (tmp_path / "seed1").mkdir()
    monkeypatch.chdir(tmp_path / "seed1")
    assert TrackedRun(Path(".")).title == f"{tmp_path.name}/seed1"


def test_a_run_without_a_recipe_has_its_config(tmp_path):
    run = TrackedRun(tmp_path, RunConfig(seed=3))
    assert json.loads(run.recipe)["seed"] == 3
    (tmp_path / "recipe.toml").write_text("seed = 3\n# é", encoding="utf-8")
    assert run.recipe == "seed = 3\n# é"


def test_identifiers_are_kept_with_the_run(tmp_path):
    assert recall(tmp_path, "one") == {}
    note(tmp_path, "one", {"id": "a"})
    note(tmp_path, "two", {"id": "b"})
    note(tmp_path, "one", {"id": "c"})
    assert recall(tmp_path, "one") == {"id": "c"}
    assert recall(tmp_path, "two") == {"id": "b"}


def test_damaged_identifiers_are_named(tmp_path):
    (tmp_path / IDENTIFIERS).write_text("{")
    with pytest.raises(RunError, match=r"trackers\.json is damaged"):
        recall(tmp_path, "one")
    (tmp_path / IDENTIFIERS).write_text('{"one": 3}')
    assert recall(tmp_path, "one") == {}
