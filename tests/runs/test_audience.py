import json
import time

import pytest

from clnp.errors import RunError, StoppedError
from clnp.runs.directory import CONFIG, EVENTS, RESULT, Run, read_events, read_json, to_json
from clnp.runs.experiment import Course
from clnp.runs.trackers import Audience, tell_again
from support.tracked import (
    NAMES,
    Crash,
    Faulty,
    Notebook,
    crash_after,
    experiment,
    without_timings,
)


def test_a_tracker_is_told_what_is_in_the_directory(tmp_path):
    notebook = Notebook()
    before = time.time()
    result = experiment().run(tmp_path / "run", trackers=[notebook])
    (run,) = notebook.begun
    assert run.path == tmp_path / "run"
    assert run.config == read_json(run.path, CONFIG, {})
    assert run.environment == read_json(run.path, "environment.json", [])[-1]
    assert run.num_before == 0
    assert before <= run.began <= time.time()
    written = read_events(run.path)
    assert len(written) > 40
    assert notebook.events == written
    assert notebook.ended == [(result, None)]


def test_what_is_told_is_plain_data(tmp_path):
    notebook = Notebook()
    experiment().run(tmp_path / "run", trackers=[notebook])
    for event in notebook.events:
        assert json.loads(json.dumps(event, allow_nan=False)) == event


@pytest.mark.parametrize("moment", [0, 1, 5, 9, 12, 18, 20, 25, 40])
def test_a_run_that_goes_on_is_told_from_its_first_event(tmp_path, moment):
    whole, broken = Notebook(), Notebook()
    experiment().run(tmp_path / "whole", trackers=[whole])
    with pytest.raises(Crash):
        experiment().run(
            tmp_path / "broken",
            checkpoint_seconds=0,
            on_event=crash_after(moment),
            trackers=[broken],
        )
    ((result, error),) = broken.ended
    assert result is None
    assert isinstance(error, Crash)
    experiment().run(tmp_path / "broken", trackers=[broken])
    assert broken.begun[1].num_before <= moment

    def told(notebook):
        kept = [event for event in notebook.events if event["event"] not in ("run", "resumed")]
        return [{**event, "seconds": 0, "at": 0} for event in kept]

    assert told(broken) == told(whole)


def test_a_tracker_may_come_to_a_run_later(tmp_path):
    with pytest.raises(Crash):
        experiment().run(tmp_path / "run", checkpoint_seconds=0, on_event=crash_after(25))
    notebook = Notebook()
    experiment().run(tmp_path / "run", trackers=[notebook])
    assert notebook.events == read_events(tmp_path / "run")
    assert notebook.begun[0].num_before > 10


def test_times_go_on_where_the_run_broke_off(tmp_path):
    with pytest.raises(Crash):
        experiment().run(tmp_path / "run", checkpoint_seconds=0, on_event=crash_after(25))
    notebook = Notebook()
    experiment().run(tmp_path / "run", trackers=[notebook])
    at = [event["at"] for event in notebook.events]
    assert at == sorted(at)
    assert notebook.begun[0].began + at[-1] == pytest.approx(time.time(), abs=5)


def test_a_tracker_that_takes_its_time_to_begin_is_not_part_of_the_run(tmp_path):
    class Slow(Notebook):
        def begin(self, run):
            super().begin(run)
            time.sleep(3)

    slow = Slow()
    experiment("a").run(tmp_path / "run", trackers=[slow])
    assert slow.events[0]["at"] < 3


def test_a_finished_run_is_told_again(tmp_path):
    result = experiment().run(tmp_path / "run")
    before = (tmp_path / "run" / EVENTS).read_bytes()
    notebook = Notebook()
    assert without_timings(experiment().run(tmp_path / "run", trackers=[notebook])) == (
        without_timings(result)
    )
    assert notebook.events == read_events(tmp_path / "run")
    assert notebook.begun[0].num_before == len(notebook.events) > 40
    assert notebook.ended == [(read_json(tmp_path / "run", RESULT, {}), None)]
    assert (tmp_path / "run" / EVENTS).read_bytes() == before
    end = notebook.begun[0].began + notebook.events[-1]["at"]
    assert end == pytest.approx((tmp_path / "run" / EVENTS).stat().st_mtime, abs=0.01)


def test_a_finished_run_whose_events_are_lost_is_told_without_them(tmp_path):
    experiment("a").run(tmp_path / "run")
    (tmp_path / "run" / EVENTS).unlink()
    notebook = Notebook()
    tell_again(tmp_path / "run", [notebook])
    assert notebook.events == []
    assert len(notebook.ended) == 1


def test_a_finished_run_that_cannot_be_told_to_all_is_ended_for_the_others(tmp_path):
    experiment("a").run(tmp_path / "run")
    notebook = Notebook()
    with pytest.raises(RunError, match="Faulty cannot track the run"):
        tell_again(tmp_path / "run", [notebook, Faulty("begin")])
    ((result, error),) = notebook.ended
    assert result is None
    assert isinstance(error, RunError)


@pytest.mark.parametrize("moment", [1, 10, "end"])
def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, moment):
    alone = experiment().run(tmp_path / "alone")
    faulty, notebook = Faulty(moment), Notebook()
    with pytest.warns(RuntimeWarning, match="Faulty failed and is told nothing more") as caught:
        result = experiment().run(tmp_path / "run", trackers=[faulty, notebook])
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "the run goes on, events.jsonl has it all, and going on with the run tells it" in text
    assert without_timings(result) == without_timings(alone)
    assert len(notebook.events) == len(read_events(tmp_path / "run")) > 40
    assert notebook.ended == [(result, None)]
    if moment != "end":
        assert "ConnectionError: server gone" in text
        assert len(faulty.events) == moment
    assert len(faulty.ended) == 1
    if moment != "end":
        assert isinstance(faulty.ended[0][1], ConnectionError)


def test_a_tracker_that_cannot_begin_keeps_the_run_from_starting(tmp_path):
    notebook = Notebook()
    message = "Faulty cannot track the run: ConnectionError: no route to host; mend that, or go on "
    with pytest.raises(RunError, match=f"^{message}without it$"):
        experiment().run(tmp_path / "run", trackers=[notebook, Faulty("begin")])
    assert notebook.events == []
    assert isinstance(notebook.ended[0][1], RunError)
    assert read_events(tmp_path / "run") == []
    assert experiment().run(tmp_path / "run")["finished"]


def test_a_run_that_is_stopped_says_why_it_ended(tmp_path):
    made, notebook = experiment(), Notebook()
    with Run.create(tmp_path / "run", {CONFIG: to_json(made.to_json())}) as run:
        course = Course(made, run, audience=Audience([notebook]))
        course.on_event = lambda event: course.stop() if event["event"] == "epoch" else None
        with pytest.raises(StoppedError):
            course.follow()
    ((result, error),) = notebook.ended
    assert result is None
    assert isinstance(error, StoppedError)


def test_evaluations_tell_of_neurons(tmp_path):
    notebook = Notebook()
    result = experiment().run(tmp_path / "run", trackers=[notebook])
    last = [event for event in notebook.events if event["event"] == "evaluation"][-1]
    assert last["task"] == NAMES[-1]
    assert last["scores"] == result["scores"][-1]
    assert (last["sizes"], last["free"]) == (
        result["capacity"]["sizes"],
        result["capacity"]["free"],
    )
    assert (last["new"], last["reused"]) == (
        result["tasks"][-1]["new"],
        result["tasks"][-1]["reused"],
    )
    assert last["forecast"] == result["forecast"]
