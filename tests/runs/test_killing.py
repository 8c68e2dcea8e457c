"""A run that is killed again and again comes to the result of one that is left alone."""

import json
import subprocess
import sys

import pytest

from clnp.runs.directory import read_events
from support.paths import ROOT


def check(folder, seed, num_kills):
    """Kill a run that often; how often it happened when."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/support/killing.py", folder, str(seed), str(num_kills)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    results = {}
    for name in ("whole", "broken"):
        results[name] = json.loads((folder / name / "result.json").read_text())
        timings = results[name].pop("timings")
        assert timings["seconds"] >= sum(timings["tasks"]) > 0
    assert results["whole"] == results["broken"]
    assert results["whole"]["finished"] is True
    assert len(results["whole"]["tasks"]) == 3
    assert events(folder / "whole") == events(folder / "broken")
    assert not list((folder / "broken").glob(".clnp-*"))
    kills: dict[str, int] = json.loads(done.stdout)["kills"]
    return kills


def events(path):
    """What happened, without when and how long; that a run was resumed is no part of it."""
    return [
        {key: value for key, value in event.items() if key not in ("at", "seconds")}
        for event in read_events(path)
        if event["event"] != "resumed"
    ]


def test_a_run_that_is_killed_comes_to_the_same_result(tmp_path):
    kills = check(tmp_path, seed=0, num_kills=12)
    assert sum(kills.values()) >= 5
    assert kills["while writing"] >= 1
    assert kills["at random"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_run_that_is_killed_often_comes_to_the_same_result(tmp_path, seed):
    assert sum(check(tmp_path, seed=seed, num_kills=50).values()) >= 10
