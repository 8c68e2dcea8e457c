import json
import shutil
import signal

import pytest

from clnp.errors import RunError
from clnp.plain import to_plain
from clnp.records import (
    CapacityRecord,
    EpochEnded,
    RunResult,
    RunStopped,
    Spread,
    TaskRecord,
    TaskSummary,
    Timings,
)
from clnp.runs.directory import RESULT, last_environment, read_events, read_result
from clnp.studies import series
from clnp.studies.series import SUMMARY, aggregate, described, finished_results, plus_minus
from support.terminal import start, wait_for

RUN = "run small.toml --quiet --seeds"


def result(seed, scores, free=1, *, test_scores=None, unchanged=True, num_tasks=None):
    return RunResult(
        finished=True,
        seed=seed,
        num_tasks=num_tasks or len(scores),
        tasks=tuple(
            TaskRecord(f"t{index}", test_score=score, unchanged=unchanged)
            for index, score in enumerate(test_scores or scores)
        ),
        scores=tuple(tuple(scores[: index + 1]) for index in range(len(scores))),
        capacity=CapacityRecord(sizes={"fc1": 200}, free={"fc1": free}),
        timings=Timings(seconds=10.0 * (seed + 1)),
    )


def test_means_and_deviations_over_the_seeds():
    summary = aggregate([result(0, [90.0, 80.0], 100), result(3, [94.0, 82.0], 140)])
    assert (summary.seeds, summary.num_tasks) == ((0, 3), (2, 2))
    assert summary.average == Spread(86.5, pytest.approx(2.1213, abs=1e-3))
    assert summary.tasks[0] == TaskSummary("t0", 92.0, pytest.approx(2.828427))
    assert summary.used["fc1"] == Spread(40.0, pytest.approx(14.142136))
    assert (summary.forgetting, summary.unchanged, summary.seconds.mean) == (0.0, True, 25.0)
    text = described(summary)
    assert text.startswith("2 seeds, mean ± standard deviation\n")
    assert "average  86.50 ± 2.12" in text
    assert "fc1        40.0 ± 14.1" in text
    assert text.endswith("to the last bit.")


def test_one_seed_has_no_deviation():
    summary = aggregate([result(0, [90.0], 100)])
    assert summary.average == Spread(90.0, 0.0)
    assert described(summary).startswith("1 seed\n")
    assert "±" not in described(summary)


def test_runs_of_different_lengths_share_their_first_tasks():
    runs = [result(0, [90.0, 80.0], num_tasks=3), result(1, [94.0], num_tasks=3)]
    summary = aggregate(runs)
    assert [task.task for task in summary.tasks] == ["t0"]
    assert (summary.num_tasks, summary.num_tasks_in_all) == ((2, 1), 3)
    assert "deviation\nlearned: 2, 1 of 3 tasks, averaged over these\n\n" in described(summary)
    assert list(to_plain(summary))[1:4] == ["num_tasks", "num_tasks_in_all", "average"]
    assert aggregate([result(0, [94.0]), result(1, [90.0, 80.0])]).num_tasks_in_all == 2
    whole = aggregate([result(0, [90.0, 80.0])])
    assert "num_tasks_in_all" not in to_plain(whole)
    assert "learned" not in described(whole)


def test_forgetting_is_the_largest_loss():
    summary = aggregate([result(0, [90.0, 80.0], test_scores=[93.5, 80.0], unchanged=False)])
    assert summary.forgetting == 3.5
    assert "outputs have changed, and a task lost 3.50 at most" in described(summary)


def test_a_summary_needs_results():
    with pytest.raises(RunError, match=r"No run of the series is finished\."):
        aggregate([])
    with pytest.raises(RunError, match=r"ended no task\."):
        aggregate([result(0, [90.0]), result(1, [])])


def test_a_mean_with_its_deviation():
    assert plus_minus(Spread(98.456, 0.0349)) == "98.46 ± 0.03"
    assert plus_minus(Spread(98.456, 0.0349), 1, sign=None) == "98.5"
    assert plus_minus(Spread(-0.001)) == "0.00 ± 0.00"


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


def test_a_series_that_was_stopped_resumes(folder, clnp):
    clnp(f"{RUN} 2 --out whole")
    process = start("run", "small.toml", "--seeds", "2", "--out", "broken")
    wait_for((folder / "broken" / "seed0" / "events.jsonl").exists)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    if process.returncode != 0:  # It may finish before the signal.
        assert process.returncode == 130
        assert error.endswith("clnp: Stopped. Resume with `clnp resume broken`.\n")
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


def test_runs_at_the_same_time_are_those_one_after_the_other(folder, clnp):
    clnp(f"{RUN} 2 --out after")
    command = ("run", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "beside")
    process = start(*command)
    out, error = process.communicate()
    assert process.returncode == 0
    assert "2 seeds, mean ± standard deviation" in out
    assert "] seed 0: " in error
    assert "] seed 1: " in error
    one, two = (finished_results(folder / name) for name in ("after", "beside"))
    assert [each.certificates for each in one] == [each.certificates for each in two]
    recipes = [(folder / n / "seed1" / "recipe.toml").read_text() for n in ("after", "beside")]
    assert recipes[0] == recipes[1]
    assert last_environment(folder / "beside" / "seed1").command == ("clnp", *command)


def test_a_run_that_fails_is_named_and_the_others_finish(folder):
    (folder / "x" / "seed1").mkdir(parents=True)
    (folder / "x" / "seed1" / "precious").touch()
    process = start(*f"{RUN} 2 --jobs 2 --out x".split())
    error = process.communicate()[1]
    assert process.returncode == 2
    assert error == (
        "clnp: seed 1: x/seed1 is not empty. Choose another directory.\n"
        "clnp: seed 1 failed, see above. Resume with `clnp resume x`.\n"
    )
    assert [each.seed for each in finished_results(folder / "x")] == [0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_runs_at_the_same_time_stop_after_an_epoch(folder, number):
    """Also if the process that started them is killed."""
    endless = ["--set", "learner.training.epochs=100000", "--out", "x"]
    process = start("run", "small.toml", "--seeds", "2", "--jobs", "2", *endless)
    events = [lambda seed=seed: read_events(folder / "x" / f"seed{seed}") for seed in (0, 1)]
    wait_for(lambda: all(any(isinstance(e, EpochEnded) for e in each()) for each in events))
    process.send_signal(number)
    process.wait()
    wait_for(lambda: all(isinstance(each()[-1], RunStopped) for each in events))
    error = process.communicate()[1]
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert error.endswith("clnp: Stopped. Resume with `clnp resume x`.\n")
    assert "Traceback" not in error


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
