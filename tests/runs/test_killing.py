"""A run that is killed many times ends with the same result as one that is not."""

import json
import subprocess
import sys

import pytest

from support.paths import ROOT
from support.runs import log_of


def check(folder, seed, num_kills):
    """Kill a run at most that often, and return how often it was."""
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
    assert len(results["whole"]["tasks"]) == 2
    assert log_of(folder / "whole") == log_of(folder / "broken")
    assert not list((folder / "broken").glob(".clnp-*"))
    return int(done.stdout)


def test_a_run_that_is_killed_ends_with_the_same_result(tmp_path):
    # On a busy machine, some starts get further than they should before they are killed.
    assert check(tmp_path, seed=0, num_kills=8) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_a_run_that_is_killed_often_ends_with_the_same_result(tmp_path, seed):
    assert check(tmp_path, seed=seed, num_kills=50) >= 10
