import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from clnp.runs.directory import locked, read_config
from clnp.runs.experiment import RunLoop
from clnp.studies import series
from clnp.studies.comparison import rows
from clnp.studies.study import finished_results, read_comparison
from support.terminal import recipe, stopping_in_task

pytestmark = pytest.mark.usefixtures("jobs_here")
RECIPE = recipe()
MINE = RECIPE.replace('"digits"', '"mine"').replace("num_tasks = 2\n", "")
COMPARE = "compare small.toml --quiet --out c --methods"
QUICK = ("--set", "learner.training.epochs=1")


def table_of(path):
    """The table of a comparison, as in its file."""
    return json.loads((path / "comparison.json").read_text())


def seeds_of(path):
    """The finished seeds of each method."""
    return {row.method: row.seeds for row in rows(path, read_comparison(path).methods)}


def duration(run):
    """When the run started and when it finished."""
    return [(run / file).stat().st_mtime for file in ("config.json", "result.json")]


def test_methods_are_compared(folder, clnp):
    out = clnp(f"{COMPARE} clnp,finetune")
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["method", "clnp", "finetune"]
    assert "The runs are in c, the table in c/comparison.*" in out
    assert "±" not in out  # One seed has no deviation.
    # Another method, and one whose run was lost.
    shutil.rmtree(folder / "c" / "finetune" / "seed0")
    clnp(f"{COMPARE} single")
    assert not (folder / "c" / "finetune" / "seed0").exists()
    (folder / "small.toml").unlink()  # The comparison has its own copy.
    table = json.loads(clnp("resume c --quiet --json"))
    assert table == table_of(folder / "c")
    assert [row["method"] for row in table] == ["clnp", "finetune", "single"]
    ours, finetune, single = (row["forgetting"]["mean"] for row in table)
    assert ours == single == 0 < finetune
    for suffix in ("txt", "csv", "md", "tex"):
        assert (folder / "c" / f"comparison.{suffix}").read_text().count("finetune") == 1
    [result] = finished_results(folder / "c" / "single")
    assert result.stored_bytes["further networks"] > 0
    assert json.loads((folder / "c" / "compare.json").read_text()) == {
        "format": 1,
        "recipe": "small",
        "seeds": [0],
        "search_once": False,
        "data": None,
        "methods": ["clnp", "finetune", "single"],
    }
    # Only one of the methods can be verified.
    note = "Not verified: finetune, single. Only clnp guarantees unchanged outputs."
    assert clnp("verify c").splitlines()[-1] == note
    assert list(json.loads(clnp("verify c --json"))) == ["seed0"]
    message = r"Nothing to verify in c/finetune/seed0: only clnp guarantees unchanged outputs.*"
    clnp("verify c/finetune/seed0", code=2, error=message)


def test_a_comparison_that_is_stopped_has_a_table(folder, clnp, monkeypatch):
    monkeypatch.setattr(RunLoop, "_log", stopping_in_task(2))
    clnp(f"{COMPARE} ewc", code=130, error="Stopped. Resume with `clnp resume c`.")
    assert table_of(folder / "c") == []


def test_runs_that_fail_are_named_and_the_others_finish(folder, clnp):
    clnp(f"{COMPARE} single --seeds 2")
    for name in ("finetune", "ewc"):
        (folder / "c" / name / "seed1").mkdir(parents=True)
        (folder / "c" / name / "seed1" / "precious").touch()
    message = ".*ewc, seed 1, finetune, seed 1 failed, see above. Resume with `clnp resume c`."
    clnp(f"{COMPARE} finetune,ewc,single --seeds 2", code=2, error=message)
    assert [(row["method"], row["seeds"]) for row in table_of(folder / "c")] == [
        ("single", [0, 1]),
        ("finetune", [0]),
        ("ewc", [0]),
    ]


def test_the_first_seed_comes_first_if_it_searches_for_all(folder, clnp):
    grid = ["--set", "learner.alphas=[1e-4, 1e-3]"]
    clnp(f"{COMPARE} clnp,finetune --seeds 2 --jobs 4 --search-once", *grid)
    first, second = (duration(folder / "c" / "clnp" / f"seed{seed}") for seed in (0, 1))
    assert first[1] <= second[0]
    searched, taken = finished_results(folder / "c" / "clnp")
    assert {len(task.candidates) for task in searched.tasks} == {2}
    assert {len(task.candidates) for task in taken.tasks} == {1}
    for seed in (0, 1):  # Baselines have no grid.
        assert read_config(folder / "c" / "finetune" / f"seed{seed}").learner["tasks"] == {}


def test_a_run_that_diverges_does_not_keep_baselines_from_running(folder, clnp):
    options = ["--seeds", "2", "--search-once", "--set", "learner.lrs=[1e30]"]
    message = ".*clnp, seed 0 failed, see above. .*"
    clnp(f"{COMPARE} clnp,finetune", *options, code=1, error=message)
    assert seeds_of(folder / "c") == {"finetune": (0, 1)}
    clnp("resume c --quiet", code=1)


def test_another_comparison_is_refused(folder, clnp):
    message = "unknown method 'ewk'.*Did you mean 'ewc'.*"
    clnp(f"{COMPARE} ewk", code=2, error=message)
    clnp(f"{COMPARE} finetune")
    other = "c contains another comparison: {}. Choose another directory."
    message = other.format("its seeds are 0, not 1 2")
    clnp(f"{COMPARE} finetune --seeds 2 --seed 1", code=2, error=message)
    message = other.format("its --search-once is False, not True")
    clnp(f"{COMPARE} finetune --search-once", code=2, error=message)
    message = other.format("its recipe is small, not other")
    (folder / "other.toml").write_text(RECIPE)
    compare = COMPARE.replace("small", "other")
    clnp(f"{compare} finetune", code=2, error=message)
    message = "Nothing to verify in c: only clnp guarantees unchanged outputs. .*"
    clnp("verify c", code=2, error=message)


def test_a_recipe_that_was_edited_is_another_comparison(folder, clnp):
    clnp(f"{COMPARE} ewc,finetune")
    other = "c contains another comparison: {}. Choose another directory."
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 5", "epochs = 9"))
    message = other.format("learner.training.epochs of its ewc is 5, not 9")
    clnp(f"{COMPARE} finetune,single", code=2, error=message)
    (folder / "small.toml").write_text(f"{RECIPE}\n[methods.finetune.training]\nlr = 0.5\n")
    message = other.format('methods.finetune.training.* of its finetune is "none", not .*')
    clnp(f"{COMPARE} single", code=2, error=message)
    assert json.loads((folder / "c" / "compare.json").read_text())["methods"] == ["ewc", "finetune"]


def test_seeds_are_added_to_a_comparison(folder, clnp):
    out = clnp(f"{COMPARE} ewc,finetune")
    assert out.endswith("\nThe runs are in c, the table in c/comparison.*\n")
    kept = folder / "c" / "ewc" / "seed0" / "result.json"
    before = kept.read_text(), kept.stat().st_mtime_ns
    out = clnp(f"{COMPARE} ewc,single --seeds 2")
    assert out.endswith("\nSome seeds of finetune are missing. Run them with `clnp resume c`.\n")
    assert (kept.read_text(), kept.stat().st_mtime_ns) == before
    assert seeds_of(folder / "c") == {"ewc": (0, 1), "finetune": (0,), "single": (0, 1)}
    assert len(json.loads((folder / "c/ewc/summary.json").read_text())["seeds"]) == 2
    assert "missing" not in clnp("resume c --quiet")
    # Without a number, the seeds are those that the comparison has.
    clnp(f"{COMPARE} packnet")
    assert set(seeds_of(folder / "c").values()) == {(0, 1)}
    message = ".*its seeds are 0 1, not 0. Choose another directory."
    clnp(f"{COMPARE} packnet --seeds 1", code=2, error=message)
    # All methods have the same seeds.
    message = "c/ewc is not empty. Resume its series with `clnp resume c/ewc`, or .*"
    clnp("run c/ewc/recipe.toml --seeds 3 --out c/ewc", code=2, error=message)


def test_a_method_starts_with_the_recipe_of_the_comparison(folder, clnp):
    """The recipe of the user may have changed, and a command may have been refused for it."""
    clnp(f"{COMPARE} ewc,finetune")
    shutil.rmtree(folder / "c" / "finetune")
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 5", "epochs = 9"))
    clnp(f"{COMPARE} ewc,finetune", code=2)
    clnp("resume c --quiet")
    for method in ("ewc", "finetune"):
        learner = read_config(folder / "c" / method / "seed0").learner
        assert learner["training"]["epochs"] == 5


def test_a_comparison_that_was_moved_gets_more_methods(folder, clnp):
    clnp(f"{COMPARE} finetune")
    (folder / "elsewhere").mkdir()
    (folder / "c").rename(folder / "elsewhere" / "c")
    # The description, the settings of other methods and the place of the recipe may differ.
    text = RECIPE.replace("a few small tasks", "a few tasks")
    (folder / "elsewhere" / "small.toml").write_text(f"{text}\n[methods.ewc]\nstrength = 3.0\n")
    compare = COMPARE.replace("small.toml", "elsewhere/small.toml").replace(
        "c --m", "elsewhere/c --m"
    )
    clnp(f"{compare} ewc,finetune")
    assert seeds_of(folder / "elsewhere" / "c") == {"finetune": (0,), "ewc": (0,)}
    assert read_config(folder / "elsewhere/c/ewc/seed0").baseline["strength"] == 3.0


def write_data(folder, *, shift=0):
    """Write a data set of two classes with the name `mine`."""
    folder.mkdir()
    x = np.random.default_rng(0).random((40, 6), dtype=np.float32) + shift
    y = np.arange(40) % 2
    np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)


OTHER_DATA = (
    "{} .*another experiment.* its task 1, 'mine', has train .*, not .*. All runs of a series or "
    "comparison need the same data: give its directory with --data."
)


def test_all_runs_of_a_comparison_have_the_same_data(folder, clnp):
    for name, shift in (("a", 0), ("b", 1), ("c", 0)):
        write_data(folder / name, shift=shift)
    (folder / "small.toml").write_text(MINE)
    compare = COMPARE.replace("--out c", "--out x")
    # A directory that was corrected counts for methods that have not started.
    (folder / "empty").mkdir()
    clnp(f"{compare} single --data empty", code=2)
    clnp(f"{compare} finetune --data a")
    message = OTHER_DATA.format("x/finetune/seed0")
    clnp(f"{compare} ewc --data b", code=2, error=message)
    assert not (folder / "x" / "ewc").exists()
    clnp("resume x --quiet")
    clnp(f"{compare} ewc --data c")  # The same data in another directory.
    assert seeds_of(folder / "x") == dict.fromkeys(("single", "finetune", "ewc"), (0,))
    shutil.rmtree(folder / "x" / "ewc" / "seed0")
    clnp("resume x --data b", code=2, error=message.replace("finetune", "single"))


def test_all_runs_of_a_series_have_the_same_data(folder, clnp):
    for name, shift in (("a", 0), ("b", 1), ("c", 0)):
        write_data(folder / name, shift=shift)
    (folder / "small.toml").write_text(MINE)
    clnp("run small.toml --quiet --seeds 2 --out x --data a")
    shutil.rmtree(folder / "x" / "seed1")
    clnp("resume x --data b", code=2, error=OTHER_DATA.format("x/seed0"))
    assert not (folder / "x" / "seed1").exists()
    clnp("resume x --quiet --data c")  # The same data in another directory.


def test_a_setting_that_is_refused_leaves_no_directory(folder, clnp):
    settings = ["--set", "learner.alphas=[1e-4]", "--set", "learner.training.alpha=3"]
    for _ in range(2):
        for command in (COMPARE + " ewc", "run small.toml --out c"):
            clnp(command, "--seeds", "2", *settings, code=2, error=".*learner.training.alpha=3.*")
    assert not (folder / "c").exists()


def test_a_comparison_is_locked(folder, clnp):
    message = "c is in use by another process. Wait for it, or stop it."
    (folder / "c").mkdir()
    with locked(folder / "c"):
        clnp(f"{COMPARE} ewc", code=2, error=message)
    clnp(f"{COMPARE} ewc")
    with locked(folder / "c"):
        clnp("resume c", code=2, error=message)


def test_the_finished_seeds_of_a_comparison_are_verified(folder, clnp):
    clnp(f"{COMPARE} clnp --seeds 2")
    shutil.rmtree(folder / "c" / "clnp" / "seed1")
    out = clnp("verify c")
    assert out.startswith("c/clnp/seed0: Verified: ")
    assert out.endswith("c/clnp/seed1: no task has ended yet\n")


def test_a_comparison_needs_an_empty_directory(folder, clnp):
    (folder / "c").mkdir()
    (folder / "c" / "thesis.tex").touch()
    message = "c is not empty. Choose another directory for the comparison."
    clnp(f"{COMPARE} finetune", code=2, error=message)
    assert not (folder / "c" / "compare.json").exists()
    (folder / "c" / "thesis.tex").rename(folder / "c" / ".clnp-abc")  # A killed process left it.
    clnp(f"{COMPARE} finetune")
    (folder / "c" / "single").mkdir()
    (folder / "c" / "single" / ".clnp-abc").touch()
    clnp(f"{COMPARE} single")


def test_a_comparison_without_a_run_may_change(folder, clnp):
    wrong = ["--set", "learner.lrs=[1]", "--set", "learner.training.lr=1"]
    clnp(f"{COMPARE} clnp", *wrong, code=2)
    clnp(f"{COMPARE} clnp")


@pytest.mark.parametrize("file", ["compare.json", "finetune/series.json"])
def test_damaged_files_of_a_comparison_are_named(folder, clnp, file):
    clnp(f"{COMPARE} finetune", *QUICK)
    (folder / "c" / file).write_text('{"format": 1}')
    message = f"c/{file} is damaged: it has no seeds. Restore a copy of it, or start again .*"
    for command in ("resume", "verify"):
        clnp(command, Path("c", file).parent, code=2, error=message)


def test_a_lost_config_of_a_run_is_named(folder, clnp):
    clnp(f"{COMPARE} finetune", *QUICK)
    run = folder / "c" / "finetune" / "seed0"
    (run / "config.json").unlink()
    message = "finetune, seed 0: c/finetune/seed0 contains a run without its config.json. .*"
    clnp("resume c --quiet", code=2, error=message)
    run.rename(folder / "away")
    clnp("resume c --quiet")
    assert (run / "result.json").exists()


def test_methods_log_their_own_numbers_of_epochs(folder, clnp):
    clnp(f"{COMPARE} joint,hat --set methods.hat.training.epochs=2")
    for method, num_epochs in (("joint", 5), ("hat", 4)):
        path = folder / "c" / method / "seed0" / "events.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        first, last = (event for event in events if event["event"] == "begin")
        assert len([event for event in events if event["event"] == "epoch"]) == num_epochs
        assert first["epochs_of_run"] == last["epochs_of_run"] == num_epochs
        assert first["epochs_before"] == 0
        assert last["epochs_before"] == (0 if method == "joint" else 2)
        assert last["num_epochs"] == (5 if method == "joint" else 2)


def test_files_that_disappear_while_runs_work_are_written_again(folder, clnp, monkeypatch):
    started = RunLoop.run_all

    def remove(loop):
        for file in (folder / "c").glob("*/series.json"):
            file.unlink()
        (folder / "c" / "compare.json").unlink(missing_ok=True)
        return started(loop)

    monkeypatch.setattr(RunLoop, "run_all", remove)
    lost = r"compare\.json, .*series\.json of c disappeared while it was in use"
    with pytest.warns(RuntimeWarning, match=lost):
        clnp(f"{COMPARE} clnp,single", *QUICK, code=2, error=".*single, seed 0 failed, see above.*")
    monkeypatch.undo()
    assert clnp("resume c --quiet").count("single") >= 1
    assert seeds_of(folder / "c") == {"clnp": (0,), "single": (0,)}


def test_a_comparison_that_is_removed_while_it_works_says_so(folder, clnp, monkeypatch):
    monkeypatch.setattr(series, "run_jobs", lambda jobs, at_most: shutil.rmtree(folder / "c") or {})
    clnp(f"{COMPARE} clnp", code=2, error="c was removed or replaced while the run was working.*")
    assert not (folder / "c").exists()
