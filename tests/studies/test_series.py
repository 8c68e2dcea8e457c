import json
import shutil
import subprocess
import sys

import pytest

from clnp.cli import app
from clnp.records import EpochEnded, RunStopped
from clnp.runs.directory import RESULT, last_environment, locked, read_events, read_result
from clnp.runs.experiment import RunLoop
from clnp.studies import series
from clnp.studies.series import SUMMARY
from clnp.studies.study import finished_results
from support.terminal import SRC, start, stopping_in_task, wait_for

RUN = "run small.toml --quiet --seeds"


def test_a_series(folder, clnp):
    out = clnp(f"{RUN} 2 --seed 5")
    path = folder / "runs" / "small-2seeds"
    assert "2 seeds, mean ± standard deviation" in out
    assert "The runs are in runs/small-2seeds." in out
    assert [each.seed for each in finished_results(path)] == [5, 6]
    assert json.loads((path / "series.json").read_text()) == {
        "format": 1,
        "recipe": "small",
        "seeds": [5, 6],
        "search_once": False,
        "data": None,
    }
    summary = json.loads((path / SUMMARY).read_text())
    assert summary["seeds"] == [5, 6]
    assert json.loads(clnp(f"resume {path} --json")) == summary
    assert clnp(f"verify {path}").count("Verified: ") == 2
    verified = json.loads(clnp(f"verify {path} --json"))
    assert [verified[name]["exact"] for name in ("seed5", "seed6")] == [True, True]
    clnp("run small.toml --seed 6 --out alone --quiet")
    one, two = read_result(folder / "alone"), read_result(path / "seed6")
    assert one.certificates == two.certificates


def test_seeds_are_added_to_a_series(folder, clnp, jobs_here):
    clnp(f"{RUN} 1 --out s")
    kept = folder / "s" / "seed0" / RESULT
    before = kept.read_text(), kept.stat().st_mtime_ns
    assert "3 seeds, mean" in clnp(f"{RUN} 3 --out s --jobs 2")
    assert (kept.read_text(), kept.stat().st_mtime_ns) == before
    assert [each.seed for each in finished_results(folder / "s")] == [0, 1, 2]
    message = "s is not empty. Resume its series with `clnp resume s`, or choose another one."
    for count in ("3", "2"):
        clnp(f"{RUN} {count} --out s", code=2, error=message)


def test_a_series_that_is_being_started_is_not_replaced(folder, clnp):
    (folder / "s").mkdir()
    with locked(folder / "s"):
        clnp(f"{RUN} 2 --out s", code=2, error="s is in use by another process. .*")
    assert [file.name for file in (folder / "s").iterdir()] == [".lock"]
    clnp(f"{RUN} 1 --out s")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("--seed 1", "seed is 0, not 1"),
        ("--set learner.training.epochs=7", "learner.training.epochs is 5, not 7"),
        ("--search-once", "--search-once is False, not True"),
    ],
)
def test_seeds_of_another_series_are_refused(folder, clnp, options, found):
    clnp(f"{RUN} 1 --out s")
    message = f"s contains another series: its {found}. Choose another directory."
    clnp(f"{RUN} 2 --out s {options}", code=2, error=message)
    assert [path.name for path in folder.glob("s/seed*")] == ["seed0"]


@pytest.mark.parametrize("options", ["", "--jobs 2"])
def test_a_series_that_was_stopped_resumes(folder, clnp, jobs_here, monkeypatch, options):
    clnp(f"{RUN} 2 --out whole")
    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "_log", stopping_in_task(2))
        message = "Stopped. Resume with `clnp resume broken`."
        clnp(f"{RUN} 2 --out broken {options}", code=130, error=message)
    clnp("resume broken --quiet")
    summaries = [json.loads((folder / name / SUMMARY).read_text()) for name in ("whole", "broken")]
    assert {**summaries[0], "seconds": None} == {**summaries[1], "seconds": None}


def test_a_directory_without_a_run_becomes_a_series(folder, clnp):
    """A series that was killed before its first run started leaves one."""
    (folder / "s" / "seed0").mkdir(parents=True)
    (folder / "s" / "series.json").write_text('{"format": 1, "recipe": "x", "seeds": [9]}')
    assert "1 seed" in clnp(f"{RUN} 1 --out s")
    (folder / "other").mkdir()
    (folder / "other" / "thesis.tex").write_text("precious")
    message = "other is not empty. Choose another directory."
    clnp(f"{RUN} 1 --out other", code=2, error=message)


def test_the_first_seed_may_search_for_all(folder, clnp):
    grid = ["--set", "learner.alphas=[1e-4, 1e-3]", "--set", "learner.margin=20"]
    clnp(f"{RUN} 2 --search-once --out once", *grid)
    first, second = finished_results(folder / "once")
    assert [len(record.candidates) for record in first.tasks] == [2, 2]
    assert [len(record.candidates) for record in second.tasks] == [1, 1]
    for one, other in zip(first.tasks, second.tasks, strict=True):
        chosen, taken = one.candidates[one.winner], other.candidates[0]
        assert (chosen.alpha, chosen.lr) == (taken.alpha, taken.lr)
    # A second run that had not started resumes in the same way.
    shutil.rmtree(folder / "once" / "seed1")
    clnp("resume once --quiet")
    assert finished_results(folder / "once")[1].certificates == second.certificates
    message = "--search-once needs several runs. Give the number of seeds, for example --seeds 5."
    clnp("run small.toml --search-once", code=2, error=message)


def test_runs_at_the_same_time_are_those_one_after_the_other(folder, capfd, monkeypatch):
    assert app.main(f"{RUN} 2 --out after".split()) == 0
    arguments = ["run", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "beside"]
    monkeypatch.setattr(sys, "argv", ["clnp", *arguments])
    monkeypatch.setenv("PYTHONPATH", SRC)
    assert app.main(arguments) == 0
    out, error = capfd.readouterr()
    assert "2 seeds, mean ± standard deviation" in out
    assert "] seed 0: " in error
    assert "] seed 1: " in error
    one, two = (finished_results(folder / name) for name in ("after", "beside"))
    assert [each.certificates for each in one] == [each.certificates for each in two]
    recipes = [(folder / n / "seed1" / "recipe.toml").read_text() for n in ("after", "beside")]
    assert recipes[0] == recipes[1]
    assert last_environment(folder / "beside" / "seed1").command == ("clnp", *arguments)


def test_a_run_that_fails_is_named_and_the_others_finish(folder, clnp, jobs_here):
    (folder / "x" / "seed1").mkdir(parents=True)
    (folder / "x" / "seed1" / "precious").touch()
    message = (
        "seed 1: x/seed1 is not empty. Choose another directory.\n"
        "clnp: seed 1 failed, see above. Resume with `clnp resume x`."
    )
    clnp(f"{RUN} 2 --jobs 2 --out x", code=2, error=message)
    assert [each.seed for each in finished_results(folder / "x")] == [0]


def test_a_job_stops_after_an_epoch_if_its_parent_ends(folder, clnp, monkeypatch):
    path = folder / "x" / "seed0"
    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "_log", stopping_in_task(1))
        clnp(f"{RUN} 1 --out x --set learner.training.epochs=100000", code=130)
    job = start("resume", "--job=seed 0", path, stdin=subprocess.PIPE)
    wait_for(lambda: isinstance(read_events(path)[-1], EpochEnded))
    job.stdin.close()
    assert job.wait(120) == 130
    assert isinstance(read_events(path)[-1], RunStopped)
    assert "Stopped" not in job.stderr.read()
    job.stderr.close()
    job.stdout.close()


def test_a_run_that_the_system_killed_is_named(folder, clnp, monkeypatch):
    """Out of memory, a run has no message."""
    monkeypatch.setattr(series, "run_jobs", lambda jobs, at_most: {"seed 0": 0, "seed 1": -9})
    message = (
        r"seed 1 failed, see above. Killed, probably for lack of memory: seed 1 \(signal 9\). "
        "Resume with `clnp resume x`."
    )
    clnp(f"{RUN} 2 --jobs 2 --out x", code=1, error=message)


def test_jobs_need_several_runs(folder, clnp):
    message = "--jobs needs several runs. Give the number of seeds, for example --seeds 5."
    clnp("run small.toml --jobs 2", code=2, error=message)
    clnp("run small.toml --out one --quiet")
    message = "--jobs needs several runs, and one is one. Resume it without --jobs."
    clnp("resume one --jobs 2", code=2, error=message)
