import json
import shutil
import signal

import pytest
import torch

from cli.test_cli import RECIPE, fails
from clnp.cli import app
from clnp.errors import RunError
from clnp.runs.directory import RESULT, read_json
from clnp.studies import series
from clnp.studies.series import SUMMARY, aggregate, described, finished_results, plus_minus
from support.terminal import start, wait_for


def result(seed, scores, free, *, test_scores=None, unchanged=True, num_tasks=None):
    learnt = test_scores or scores
    return {
        "seed": seed,
        "num_tasks": num_tasks or len(scores),
        "tasks": [
            {"task": f"t{place}", "test_score": score, "unchanged": unchanged}
            for place, score in enumerate(learnt)
        ],
        "scores": [scores[: place + 1] for place in range(len(scores))],
        "capacity": {"sizes": {"fc1": 200}, "free": {"fc1": free}},
        "timings": {"seconds": 10.0 * (seed + 1)},
    }


def test_means_and_deviations_over_the_seeds():
    summary = aggregate([result(0, [90.0, 80.0], 100), result(3, [94.0, 82.0], 140)])
    assert summary["seeds"] == [0, 3]
    assert summary["num_tasks"] == [2, 2]
    assert summary["average"]["mean"] == 86.5
    assert summary["average"]["deviation"] == pytest.approx(2.1213, abs=1e-3)
    assert summary["tasks"][0] == {"task": "t0", "mean": 92.0, "deviation": pytest.approx(2.828427)}
    assert summary["used"]["fc1"] == {"mean": 40.0, "deviation": pytest.approx(14.142136)}
    assert summary["forgetting"] == 0.0
    assert summary["unchanged"] is True
    assert summary["seconds"]["mean"] == 25.0


def test_one_seed_has_no_deviation():
    assert aggregate([result(0, [90.0], 100)])["average"] == {"mean": 90.0, "deviation": 0.0}


def test_runs_of_different_lengths_share_their_first_tasks():
    results = [result(0, [90.0, 80.0], 1, num_tasks=3), result(1, [94.0], 1, num_tasks=3)]
    summary = aggregate(results)
    assert [task["task"] for task in summary["tasks"]] == ["t0"]
    assert (summary["num_tasks"], summary["num_tasks_in_all"]) == ([2, 1], 3)
    told = "deviation\nlearnt: 2, 1 of 3 tasks, the average is theirs\n\n"
    assert told in described(summary)
    added = aggregate([result(0, [94.0], 1), result(1, [90.0, 80.0], 1)])
    assert added["num_tasks_in_all"] == 2
    whole = aggregate([result(0, [90.0, 80.0], 1)])
    assert "num_tasks_in_all" not in whole
    assert "learnt" not in described(whole)


def test_forgetting_is_the_largest_loss():
    forgot = result(0, [90.0, 80.0], 1, test_scores=[93.5, 80.0], unchanged=False)
    summary = aggregate([forgot])
    assert summary["forgetting"] == 3.5
    assert "outputs have changed; the largest loss of a task is 3.50" in described(summary)


def test_without_results_there_is_nothing_to_sum_up():
    with pytest.raises(RunError, match="no run of the series is finished yet"):
        aggregate([])


def test_a_summary_as_text():
    text = described(aggregate([result(0, [90.0, 80.0], 100), result(3, [94.0, 82.0], 140)]))
    assert text.startswith("2 seeds, mean ± standard deviation\n")
    assert "average  86.50 ± 2.12" in text
    assert "fc1        40.0 ± 14.1" in text
    assert text.endswith("to the last bit.")
    one = described(aggregate([result(0, [90.0], 100)]))
    assert one.startswith("1 seed\n")
    assert "±" not in one


def test_a_mean_with_its_spread():
    assert plus_minus({"mean": 98.456, "deviation": 0.0349}) == "98.46 ± 0.03"
    assert plus_minus({"mean": 98.456, "deviation": 0.0349}, 1, sign=None) == "98.5"
    assert plus_minus({"mean": -0.001, "deviation": 0.0}) == "0.00 ± 0.00"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def test_several_seeds_from_the_command_line(folder, capsys):
    assert app.main(["run", "small.toml", "--seeds", "2", "--seed", "5", "--quiet"]) == 0
    out = capsys.readouterr().out
    series = folder / "runs" / "small-2seeds"
    assert "2 seeds, mean ± standard deviation" in out
    assert "The runs are in runs/small-2seeds." in out
    assert [read_json(series / f"seed{seed}", RESULT, {})["seed"] for seed in (5, 6)] == [5, 6]
    summary = json.loads((series / SUMMARY).read_text())
    assert app.main(["inspect", str(series), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"] == summary
    assert app.main(["verify", str(series)]) == 0
    assert capsys.readouterr().out.count("verified: ") == 2
    assert app.main(["run", "small.toml", "--seed", "6", "--out", "alone", "--quiet"]) == 0
    alone = read_json(folder / "alone", RESULT, {})
    assert alone["certificates"] == read_json(series / "seed6", RESULT, {})["certificates"]
    capsys.readouterr()
    fails(
        capsys,
        2,
        r".*2seeds is not empty; go on with it, clnp resume .*",
        "run",
        "small.toml",
        "--seeds",
        "2",
        "--out",
        series,
    )


def test_seeds_are_added_to_a_series(folder, capsys):
    run = ["run", "small.toml", "--quiet", "--seeds"]
    assert app.main([*run, "1", "--out", "s"]) == 0
    kept = folder / "s" / "seed0" / RESULT
    before = kept.read_text(), kept.stat().st_mtime_ns
    assert app.main([*run, "3", "--out", "s", "--jobs", "2"]) == 0
    assert "3 seeds, mean" in capsys.readouterr().out
    assert (kept.read_text(), kept.stat().st_mtime_ns) == before
    assert [result["seed"] for result in finished_results(folder / "s")] == [0, 1, 2]
    assert app.main([*run, "3", "--out", "at-once"]) == 0
    one, two = (finished_results(folder / name) for name in ("s", "at-once"))
    assert [r["certificates"] for r in one[:1]] == [r["certificates"] for r in two[:1]]
    capsys.readouterr()
    message = "s is not empty; go on with it, clnp resume s, or give another directory"
    for count in ("3", "2"):
        fails(capsys, 2, message, *run, count, "--out", "s")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--seed", "1"], "seed is 0, not 1"),
        (["--set", "learner.training.epochs=7"], "learner.training.epochs is 5, not 7"),
        (["--search-once"], "--search-once is False, not True"),
    ],
)
def test_seeds_of_something_else_are_not_added(folder, capsys, options, found):
    assert app.main(["run", "small.toml", "--quiet", "--seeds", "1", "--out", "s"]) == 0
    capsys.readouterr()
    message = f"s is another series: its {found}; name another directory"
    fails(capsys, 2, message, "run", "small.toml", "--seeds", "2", "--out", "s", *options)
    assert [path.name for path in folder.glob("s/seed*")] == ["seed0"]


def test_seeds_are_added_to_a_comparison_as_a_whole(folder, capsys):
    options = ["--quiet", "--methods", "ewc", "--out", "c"]
    assert app.main(["compare", "small.toml", *options]) == 0
    capsys.readouterr()
    run = ["run", "c/ewc/recipe.toml", "--seeds", "2", "--out", "c/ewc"]
    fails(capsys, 2, "c/ewc is not empty; go on with it, clnp resume c/ewc, or .*", *run)


def test_a_series_that_is_stopped_goes_on(folder, capsys):
    assert app.main(["run", "small.toml", "--seeds", "2", "--out", "whole", "--quiet"]) == 0
    process = start("run", "small.toml", "--seeds", "2", "--out", "broken")
    wait_for(lambda: (folder / "broken" / "seed0" / "events.jsonl").exists())
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    if process.returncode != 0:  # It may have been quicker than the signal.
        assert process.returncode == 130
        assert error.endswith("clnp: stopped; go on with: clnp resume broken\n")
    capsys.readouterr()
    assert app.main(["resume", "broken", "--json", "--quiet"]) == 0
    summaries = [json.loads((folder / name / SUMMARY).read_text()) for name in ("whole", "broken")]
    for summary in summaries:
        summary.pop("seconds")
    assert summaries[0] == summaries[1]


def test_a_series_that_was_killed_at_its_start_can_be_begun_again(folder, capsys):
    (folder / "series" / "seed0").mkdir(parents=True)
    (folder / "series" / "series.json").write_text('{"format": 1, "recipe": "x", "seeds": [9]}')
    run = ["run", "small.toml", "--seeds", "1", "--out", "series", "--quiet"]
    assert app.main(run) == 0
    assert "1 seed" in capsys.readouterr().out
    (folder / "other").mkdir()
    (folder / "other" / "thesis.tex").write_text("precious")
    message = "other is not empty; give the series a directory of its own"
    fails(capsys, 2, message, *run[:-2], "other")


def test_the_first_seed_may_search_for_all(folder, capsys):
    grid = ["--set", "learner.alphas=[1e-4, 1e-3]", "--set", "learner.margin=20"]
    run = ["run", "small.toml", "--seeds", "2", "--search-once", "--quiet", *grid]
    assert app.main([*run, "--out", "once"]) == 0
    first, second = (read_json(folder / "once" / f"seed{seed}", RESULT, {}) for seed in (0, 1))
    assert [len(record["candidates"]) for record in first["tasks"]] == [2, 2]
    assert [len(record["candidates"]) for record in second["tasks"]] == [1, 1]
    for one, other in zip(first["tasks"], second["tasks"], strict=True):
        chosen, taken = one["candidates"][one["winner"]], other["candidates"][0]
        assert (chosen["alpha"], chosen["lr"]) == (taken["alpha"], taken["lr"])
    # One whose second run had not begun when it was stopped goes on in the same way.
    shutil.rmtree(folder / "once" / "seed1")
    assert app.main(["resume", "once", "--quiet"]) == 0
    again = read_json(folder / "once" / "seed1", RESULT, {})
    assert again["certificates"] == second["certificates"]
    capsys.readouterr()
    message = "--search-once is for a series: name the number of seeds, --seeds 5"
    fails(capsys, 2, message, "run", "small.toml", "--search-once")


def test_runs_of_a_series_may_be_carried_out_side_by_side(folder):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # As `start` does: another number of threads would round otherwise.
    try:
        assert app.main(["run", "small.toml", "--seeds", "2", "--out", "after", "--quiet"]) == 0
    finally:
        torch.set_num_threads(threads)
    run = ["run", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "beside"]
    # Processes that are forked write where the first of all did: not in a test before this one.
    process = start(*run, cwd=folder)
    out, error = process.communicate()
    assert process.returncode == 0
    assert "2 seeds, mean ± standard deviation" in out
    assert "seed 0: learnt" in error
    assert "seed 1: learnt" in error
    one, two = (finished_results(folder / name) for name in ("after", "beside"))
    assert [r["certificates"] for r in one] == [r["certificates"] for r in two]
    shutil.rmtree(folder / "beside" / "seed0")
    process = start("resume", "beside", "--jobs", "2", "--quiet", cwd=folder)
    assert process.communicate()[1] == ""
    assert [r["seed"] for r in finished_results(folder / "beside")] == [0, 1]


def test_a_run_that_fails_beside_others_is_named(folder):
    run = ["run", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "x", "--quiet"]
    (folder / "x" / "seed1").mkdir(parents=True)
    (folder / "x" / "seed1" / "precious").touch()
    process = start(*run, cwd=folder)
    error = process.communicate()[1]
    assert process.returncode == 2
    assert "clnp: seed 1: x/seed1 is not empty" in error
    assert error.endswith("clnp: seed 1 failed, see above; go on with: clnp resume x\n")
    assert [r["seed"] for r in finished_results(folder / "x")] == [0]


def test_a_run_that_the_system_killed_is_told(folder, capsys, monkeypatch):
    """There is nothing above that could be seen: the system ends what takes too much memory."""
    monkeypatch.setattr(series, "side_by_side", lambda jobs, at_most: {"seed 0": 0, "seed 1": -9})
    run = ["run", "small.toml", "--seeds", "2", "--jobs", "2", "--out", "x", "--quiet"]
    message = (
        r"seed 1 failed, see above; seed 1 \(signal 9\) killed, for want of memory perhaps; go on "
        "with: clnp resume x"
    )
    fails(capsys, 1, message, *run)


def test_jobs_are_for_a_series(folder, capsys):
    message = "--jobs is for a series: name the number of seeds, --seeds 5"
    fails(capsys, 2, message, "run", "small.toml", "--jobs", "2")
    assert app.main(["run", "small.toml", "--out", "one", "--quiet"]) == 0
    capsys.readouterr()
    fails(capsys, 2, "--jobs is for a series, and one is one run", "resume", "one", "--jobs", "2")
