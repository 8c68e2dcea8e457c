import csv
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli.test_cli import RECIPE, fails
from clnp.cli import app
from clnp.runs.directory import locked
from clnp.studies import comparison
from clnp.studies.comparison import rows, texts
from clnp.studies.series import finished_results
from support.terminal import start


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def make(path, method, *, seeds=(0, 1), scores=((90.0,), (70.0, 80.0)), num_tasks=2, stored=2e6):
    """The finished runs of a method, of which only what a comparison reads is there."""
    (path / method).mkdir(parents=True, exist_ok=True)
    (path / method / "series.json").write_text(json.dumps({"seeds": list(seeds)}))
    for seed in seeds:
        run = path / method / f"seed{seed}"
        run.mkdir()
        result = {
            "finished": True,
            "seed": seed,
            "num_tasks": num_tasks,
            "scores": [[score + seed for score in row] for row in scores],
            "timings": {"seconds": 10.0 + seed, "peak_bytes": 3e6},
            "stored_bytes": {"network": stored, "heads": 0},
        }
        (run / "result.json").write_text(json.dumps(result))


def duration(run):
    """When the run began and when it was finished."""
    return [(run / file).stat().st_mtime for file in ("config.json", "result.json")]


def test_rows_are_means_over_seeds(tmp_path):
    make(tmp_path, "clnp")
    make(tmp_path, "single", scores=((85.0,), (85.0, 82.0)))
    (tmp_path / "compare.json").write_text(
        json.dumps({"seeds": [], "methods": ["clnp", "single", "ewc"]})
    )
    (tmp_path / "ewc").mkdir()
    (tmp_path / "ewc" / "series.json").write_text(json.dumps({"seeds": [0]}))
    ours, alone = rows(tmp_path)
    assert (ours["method"], alone["method"], ours["seeds"]) == ("clnp", "single", [0, 1])
    assert ours["average"] == {"mean": 75.5, "deviation": pytest.approx(0.5**0.5)}
    assert ours["forgetting"]["mean"] == 20.0
    assert ours["backward_transfer"]["mean"] == -20.0
    assert ours["forward_transfer"]["mean"] == -2.0
    assert alone["forward_transfer"]["mean"] == 0.0
    assert (ours["stored"]["mean"], ours["peak"]["mean"]) == (2.0, 3.0)


def test_forward_transfer_is_unknown_without_tasks_alone(tmp_path):
    make(tmp_path, "clnp")
    (tmp_path / "compare.json").write_text(json.dumps({"seeds": [], "methods": ["clnp"]}))
    [ours] = found = rows(tmp_path)
    assert ours["forward_transfer"] is None
    written = texts(found)
    assert "-20.00 ± 0.00" in written["txt"]
    assert written["md"].splitlines()[2].split(" | ")[4] == "-"
    [line] = csv.DictReader(written["csv"].splitlines())
    assert float(line["average_mean"]) == 75.5
    assert line["forward_transfer_mean"] == ""
    assert r"clnp & $75.50 \pm 0.71$ & $20.00 \pm 0.00$" in written["tex"]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_latex_has_a_minus_before_numbers_and_a_dash_where_there_is_none(tmp_path, seeds):
    make(tmp_path, "clnp", seeds=seeds)
    (tmp_path / "compare.json").write_text(json.dumps({"seeds": [], "methods": ["clnp"]}))
    line = texts(rows(tmp_path))["tex"].splitlines()[4]
    cells = line.removesuffix(r" \\").split(" & ")
    spread = r" \pm 0.00" if len(seeds) > 1 else ""
    assert cells[3:5] == [f"$-20.00{spread}$", "--"]
    assert [cells[0], cells[-1]] == ["clnp", str(len(seeds))]


def test_tasks_are_counted_where_not_all_were_learnt(tmp_path):
    make(tmp_path, "single", seeds=(0,))
    (tmp_path / "compare.json").write_text(json.dumps({"seeds": [], "methods": ["clnp", "single"]}))
    assert "tasks" not in rows(tmp_path)[0]
    make(tmp_path, "clnp", seeds=(0,), scores=((90.0,),))
    found = rows(tmp_path)
    assert [row["tasks"]["mean"] for row in found] == [1, 2]
    written = texts(found)
    assert [line.split()[:3] for line in written["txt"].splitlines()] == [
        ["method", "tasks", "learnt"],
        ["clnp", "1.0", "90.00"],
        ["single", "2.0", "75.00"],
    ]
    assert written["md"].startswith("| method | tasks learnt | average |")
    ours, _ = csv.DictReader(written["csv"].splitlines())
    assert float(ours["tasks_mean"]) == 1
    assert r"clnp & $1.0$ & $90.00$" in written["tex"]
    make(tmp_path, "clnp", seeds=(1,))
    (tmp_path / "clnp" / "series.json").write_text(json.dumps({"seeds": [0, 1]}))
    assert "1.5 ± 0.7" in texts(rows(tmp_path))["txt"]


def test_tasks_are_counted_where_some_were_added(tmp_path):
    make(tmp_path, "single", seeds=(0,), scores=((90.0,),), num_tasks=1)
    make(tmp_path, "clnp", seeds=(0,))
    (tmp_path / "compare.json").write_text(json.dumps({"seeds": [], "methods": ["clnp", "single"]}))
    assert [row["tasks"]["mean"] for row in rows(tmp_path)] == [2, 1]


def test_a_network_that_was_full_from_the_start_has_no_average(tmp_path):
    make(tmp_path, "clnp", scores=())
    make(tmp_path, "single")
    (tmp_path / "compare.json").write_text(json.dumps({"seeds": [], "methods": ["clnp", "single"]}))
    ours, _ = found = rows(tmp_path)
    assert (ours["tasks"]["mean"], ours["average"], ours["forward_transfer"]) == (0, None, None)
    assert (
        texts(found)["md"].splitlines()[2].startswith("| clnp | 0.0 ± 0.0 | - | - | - | - | 2.00")
    )


def test_methods_are_compared_from_the_command_line(folder, capsys):
    compare = ["compare", "small.toml", "--quiet", "--out", "c"]
    assert app.main([*compare, "--methods", "clnp,finetune"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["method", "clnp", "finetune"]
    assert "The runs are in c, the table in c/comparison.*" in out
    assert "±" not in out  # One seed has no deviation.
    # A method more, and one whose run was lost.
    shutil.rmtree(folder / "c" / "finetune" / "seed0")
    assert app.main([*compare, "--methods", "single"]) == 0
    assert not (folder / "c" / "finetune" / "seed0").exists()
    (folder / "small.toml").unlink()  # What has begun does not need it any more.
    assert app.main(["resume", "c", "--quiet"]) == 0
    capsys.readouterr()
    assert app.main(["inspect", "c", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["table"]
    assert [row["method"] for row in table] == ["clnp", "finetune", "single"]
    assert json.loads((folder / "c" / "comparison.json").read_text()) == table
    ours, finetune, single = table
    assert ours["forgetting"]["mean"] == single["forgetting"]["mean"] == 0
    assert finetune["forgetting"]["mean"] > 0
    for ending in ("txt", "csv", "md", "tex"):
        assert (folder / "c" / f"comparison.{ending}").read_text().count("finetune") == 1
    [result] = finished_results(folder / "c" / "single")
    assert result["method"] == "single"
    assert result["stored_bytes"]["further networks"] > 0
    capsys.readouterr()
    assert app.main(["verify", "c"]) == 0
    told = "finetune, single: these promise nothing that could be verified"
    assert capsys.readouterr().out.splitlines()[-1] == told
    assert app.main(["inspect", "c/finetune/seed0"]) == 0
    text = capsys.readouterr().out
    assert "finetune, seed 0" in text
    assert "outputs differ from when their task ended, forgetting " in " ".join(text.split())
    assert "Neurons" not in text
    promise = "c/finetune/seed0 was learnt by finetune, which promises nothing that could be .*"
    fails(capsys, 2, promise, "verify", "c/finetune/seed0")


def test_methods_go_on_at_the_same_time(folder, capsys):
    options = ["--methods", "finetune,ewc", "--jobs", "2", "--quiet", "--out", "c"]
    assert (
        app.main(["compare", "small.toml", *options, "--set", "learner.training.epochs=300"]) == 0
    )
    first, second = (duration(folder / "c" / name / "seed0") for name in ("finetune", "ewc"))
    assert first[0] < second[1]
    assert second[0] < first[1]
    for name in ("finetune", "ewc"):
        assert (folder / "c" / name / "summary.json").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are spawned elsewhere")
@pytest.mark.parametrize("moment", [0.0, 0.3])
def test_a_terminal_that_is_interrupted_while_everything_is_imported(folder, moment):
    process = start("compare", "small.toml", "--jobs", "2", cwd=folder, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:  # The one that jobs are forked from is there.
        time.sleep(0.01)
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert error.startswith("clnp: stopped")
    assert error.count("\n") == 1
    assert process.returncode == 130


def test_runs_of_a_comparison_that_fail_are_named(folder, capsys):
    options = ["--seeds", "2", "--quiet", "--out", "c", "--methods"]
    assert app.main(["compare", "small.toml", *options, "single"]) == 0
    capsys.readouterr()
    for name in ("finetune", "ewc"):
        (folder / "c" / name / "seed1").mkdir(parents=True)
        (folder / "c" / name / "seed1" / "precious").touch()
    failed = "finetune, seed 1, ewc, seed 1 failed, see above; go on with: clnp resume c"
    fails(capsys, 2, failed, "compare", "small.toml", *options, "finetune,ewc,single")
    assert [len(finished_results(folder / "c" / m)) for m in ("finetune", "ewc", "single")] == [
        1,
        1,
        2,
    ]
    table = json.loads((folder / "c" / "comparison.json").read_text())
    assert [(row["method"], row["seeds"]) for row in table] == [
        ("single", [0, 1]),
        ("finetune", [0]),
        ("ewc", [0]),
    ]


def test_the_first_seed_comes_first_where_it_searches_for_all(folder, capsys):
    options = ["--methods", "clnp,finetune", "--seeds", "2", "--jobs", "4", "--search-once"]
    grid = ["--set", "learner.alphas=[1e-4, 1e-3]"]
    assert app.main(["compare", "small.toml", *options, *grid, "--quiet", "--out", "c"]) == 0
    first, second = (duration(folder / "c" / "clnp" / f"seed{seed}") for seed in (0, 1))
    assert first[1] <= second[0]
    searched, taken = (
        [len(task["candidates"]) for task in result["tasks"]]
        for result in finished_results(folder / "c" / "clnp")
    )
    assert max(searched) == 2
    assert max(taken) == 1
    for seed in (0, 1):  # Nobody searches for a baseline, whichever run comes first.
        config = json.loads((folder / "c" / "finetune" / f"seed{seed}" / "config.json").read_text())
        assert config["learner"]["tasks"] == {}


def test_a_comparison_that_has_hardly_begun_can_be_inspected(tmp_path, capsys):
    known = {"recipe": "x", "methods": ["clnp", "ewc"], "seeds": [0, 1]}
    (tmp_path / "compare.json").write_text(json.dumps(known))
    assert rows(tmp_path) == []
    assert app.main(["inspect", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}: x by clnp, ewc, 0 of 4 runs finished\n"
        f"none has begun; clnp resume {tmp_path} goes on\n"
    )
    make(tmp_path, "clnp")
    assert app.main(["inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path}: x by clnp, ewc, 2 of 4 runs finished\n")
    assert "\n\nmethod" in out


def test_a_comparison_of_something_else_is_refused(folder, capsys):
    message = "unknown method 'ewk'; did you mean 'ewc'.*"
    fails(capsys, 2, message, "compare", "small.toml", "--methods", "ewk")
    compare = ["compare", "small.toml", "--quiet", "--out", "c"]
    assert app.main([*compare, "--methods", "finetune"]) == 0
    capsys.readouterr()
    message = "c is another comparison: its seeds are 0, not 1 2; name another directory"
    fails(capsys, 2, message, *compare, "--seeds", "2", "--seed", "1")
    message = "c is another comparison: its recipe is small, not other; name another directory"
    (folder / "other.toml").write_text(RECIPE)
    fails(capsys, 2, message, "compare", "other.toml", *compare[2:])
    message = "c: finetune promise nothing that could be verified"
    fails(capsys, 2, message, "verify", "c")


def test_seeds_are_added_to_a_comparison(folder, capsys):
    compare = ["compare", "small.toml", "--quiet", "--out", "c", "--methods"]
    assert app.main([*compare, "ewc,finetune"]) == 0
    assert capsys.readouterr().out.endswith("\nThe runs are in c, the table in c/comparison.*\n")
    kept = folder / "c" / "ewc" / "seed0" / "result.json"
    before = kept.read_text(), kept.stat().st_mtime_ns
    assert app.main([*compare, "ewc,single", "--seeds", "2"]) == 0
    missing = "\nSeeds of finetune are missing; carry them out with: clnp resume c\n"
    assert capsys.readouterr().out.endswith(missing)
    assert (kept.read_text(), kept.stat().st_mtime_ns) == before
    found = {row["method"]: row["seeds"] for row in rows(folder / "c")}
    assert found == {"ewc": [0, 1], "finetune": [0], "single": [0, 1]}
    assert len(json.loads((folder / "c/ewc/summary.json").read_text())["seeds"]) == 2
    assert app.main(["inspect", "c"]) == 0
    assert "5 of 6 runs finished" in capsys.readouterr().out
    assert app.main(["resume", "c", "--quiet"]) == 0
    assert "missing" not in capsys.readouterr().out
    assert [row["seeds"] for row in rows(folder / "c")] == [[0, 1]] * 3
    # Those that it has, unless it is said how many.
    assert app.main([*compare, "packnet"]) == 0
    assert rows(folder / "c")[-1]["seeds"] == [0, 1]
    capsys.readouterr()
    message = "c is another comparison: its seeds are 0 1, not 0; name another directory"
    fails(capsys, 2, message, *compare, "packnet", "--seeds", "1")


def test_a_recipe_that_was_edited_is_another_comparison(folder, capsys):
    compare = ["compare", "small.toml", "--quiet", "--out", "c", "--methods"]
    assert app.main([*compare, "ewc,finetune"]) == 0
    capsys.readouterr()
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 5", "epochs = 9"))
    message = (
        "c is another comparison: learner.training.epochs of its ewc is 5, not 9; name another "
        "directory"
    )
    fails(capsys, 2, message, *compare, "finetune,single")
    message = 'c is another comparison: stream.num_train of its ewc is "none", not 30; .*'
    (folder / "small.toml").write_text(RECIPE)
    fails(capsys, 2, message, *compare, "single", "--set", "stream.num_train=30")
    (folder / "small.toml").write_text(f"{RECIPE}\n[methods.finetune.training]\nlr = 0.5\n")
    message = '.*: methods.finetune.training.* of its finetune is "none", not .*; name .*'
    fails(capsys, 2, message, *compare, "single")
    assert json.loads((folder / "c" / "compare.json").read_text())["methods"] == ["ewc", "finetune"]


def test_a_method_begins_with_the_recipe_of_the_comparison(folder, capsys):
    """Not with what has become of the user's, whether or not a command was refused for that."""
    compare = ["compare", "small.toml", "--quiet", "--out", "c", "--methods", "ewc,finetune"]
    assert app.main(compare) == 0
    shutil.rmtree(folder / "c" / "finetune")
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 5", "epochs = 9"))
    capsys.readouterr()
    message = "c is another comparison: learner.training.epochs of its ewc is 5, not 9; .*"
    fails(capsys, 2, message, *compare)
    assert app.main(["resume", "c", "--quiet"]) == 0
    for method in ("ewc", "finetune"):
        config = json.loads((folder / "c" / method / "seed0" / "config.json").read_text())
        assert config["learner"]["training"]["epochs"] == 5


def test_data_that_was_corrected_counts_for_methods_that_have_not_begun(folder, capsys):
    write_data(folder / "a", shift=0)
    text = RECIPE.replace('"digits"', '"mine"').replace("num_tasks = 2\n", "")
    (folder / "small.toml").write_text(text)
    compare = ["compare", "small.toml", "--quiet", "--out", "x", "--methods"]
    assert app.main([*compare, "finetune,single", "--data", "nowhere"]) == 2
    assert app.main([*compare, "finetune", "--data", "a"]) == 0
    assert app.main(["resume", "x", "--quiet"]) == 0
    assert {row["method"] for row in rows(folder / "x")} == {"single", "finetune"}


def test_a_setting_that_is_refused_is_refused_again(folder, capsys):
    """Nothing is made of it that could be gone on with."""
    settings = ["--set", "learner.alphas=[1e-4]", "--set", "learner.training.alpha=3"]
    message = ".*learner.training.alpha=3 would change nothing: learner.alphas comes first; set .*"
    for _ in range(2):
        for begin in (["compare", "small.toml", "--methods", "ewc"], ["run", "small.toml"]):
            fails(capsys, 2, message, *begin, "--seeds", "2", "--out", "x", *settings)
    assert not (folder / "x").exists()


def test_two_commands_do_not_work_on_a_comparison_at_the_same_time(folder, capsys):
    compare = ["compare", "small.toml", "--methods", "ewc", "--quiet", "--out", "c"]
    (folder / "c").mkdir()
    with locked(folder / "c"):
        message = "another process is at work on c; wait for it, or stop it"
        fails(capsys, 2, message, *compare)
    assert app.main(compare) == 0
    capsys.readouterr()
    with locked(folder / "c"):
        fails(capsys, 2, message, "resume", "c")


def test_a_comparison_that_is_removed_while_it_goes_on_is_told(folder, capsys, monkeypatch):
    def removed(path, *args, **kwargs):
        shutil.rmtree(path, ignore_errors=True)

    monkeypatch.setattr(comparison, "carry_out_together", removed)
    compare = ["compare", "small.toml", "--methods", "ewc", "--quiet", "--out", "c"]
    fails(capsys, 2, "there is no comparison at c any more", *compare)


def test_what_there_is_of_a_comparison_is_verified(folder, capsys):
    compare = ["compare", "small.toml", "--methods", "clnp", "--seeds", "2", "--quiet"]
    assert app.main([*compare, "--out", "c"]) == 0
    shutil.rmtree(folder / "c" / "clnp" / "seed1")
    capsys.readouterr()
    assert app.main(["verify", "c"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("c/clnp/seed0: verified: ")
    assert out.endswith("c/clnp/seed1: no task has ended yet\n")


def test_methods_are_added_to_a_comparison_that_was_moved(folder, capsys):
    compare = ["compare", "small.toml", "--quiet", "--methods"]
    assert app.main([*compare, "finetune", "--out", "c"]) == 0
    (folder / "elsewhere").mkdir()
    (folder / "c").rename(folder / "elsewhere" / "c")
    # What it is called, what other methods are told, and where it lies does not matter.
    text = RECIPE.replace("a few small tasks", "a few tasks")
    (folder / "small.toml").unlink()
    (folder / "elsewhere" / "small.toml").write_text(f"{text}\n[methods.ewc]\nstrength = 3.0\n")
    compare[1] = "elsewhere/small.toml"
    assert app.main([*compare, "ewc,finetune", "--out", "elsewhere/c"]) == 0
    assert app.main(["resume", "elsewhere/c", "--quiet"]) == 0
    assert [row["method"] for row in rows(folder / "elsewhere" / "c")] == ["finetune", "ewc"]
    config = json.loads((folder / "elsewhere/c/ewc/seed0/config.json").read_text())
    assert config["baseline"]["strength"] == 3.0


def write_data(folder, *, shift):
    """A data set of two classes that is called `mine`, in a directory of its own."""
    folder.mkdir()
    x = np.random.default_rng(0).random((40, 6), dtype=np.float32) + shift
    y = np.arange(40) % 2
    np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def test_a_comparison_has_the_same_data_throughout(folder, capsys):
    for name, shift in (("a", 0), ("b", 1), ("c", 0)):
        write_data(folder / name, shift=shift)
    text = RECIPE.replace('"digits"', '"mine"').replace("num_tasks = 2\n", "")
    (folder / "small.toml").write_text(text)
    compare = ["compare", "small.toml", "--quiet", "--out", "x", "--methods"]
    assert app.main([*compare, "finetune", "--data", "a"]) == 0
    capsys.readouterr()
    message = (
        "x/finetune/seed0 holds another experiment: its task 1, 'mine', has train .*, not .*; "
        "runs that belong together have the same data, say where it is: --data DIR"
    )
    fails(capsys, 2, message, *compare, "single", "--data", "b")
    assert not (folder / "x" / "single").exists()
    assert app.main([*compare, "single", "--data", "c"]) == 0  # The same, somewhere else.
    shutil.rmtree(folder / "x" / "single" / "seed0")
    capsys.readouterr()
    fails(capsys, 2, message, "resume", "x", "--data", "b")
    assert app.main(["resume", "x", "--quiet"]) == 0


def test_a_series_has_the_same_data_throughout(folder, capsys):
    for name, shift in (("a", 0), ("b", 1), ("c", 0)):
        write_data(folder / name, shift=shift)
    text = RECIPE.replace('"digits"', '"mine"').replace("num_tasks = 2\n", "")
    (folder / "small.toml").write_text(text)
    run = ["run", "small.toml", "--quiet", "--seeds", "2", "--out", "x", "--data", "a"]
    assert app.main(run) == 0
    shutil.rmtree(folder / "x" / "seed1")
    capsys.readouterr()
    message = (
        "x/seed0 holds another experiment: its task 1, 'mine', has train .*, not .*; "
        "runs that belong together have the same data, say where it is: --data DIR"
    )
    fails(capsys, 2, message, "resume", "x", "--data", "b")
    assert not (folder / "x" / "seed1").exists()
    assert app.main(["resume", "x", "--quiet", "--data", "c"]) == 0  # The same, somewhere else.


def test_methods_tell_what_they_do(folder, capsys):
    """In lines, without --quiet; how many epochs there will be is a method's own affair."""
    options = ["--methods", "joint,hat", "--out", "c", "--set", "methods.hat.training.epochs=2"]
    process = start("compare", "small.toml", *options, cwd=folder)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 0
    assert "waits for the others, to be learnt with them" in error
    for method, num_epochs in (("joint", 5), ("hat", 4)):
        path = folder / "c" / method / "seed0" / "events.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        first, last = (event for event in events if event["event"] == "begin")
        assert len([event for event in events if event["event"] == "epoch"]) == num_epochs
        assert first["epochs_of_run"] == last["epochs_of_run"] == num_epochs
        assert first["epochs_before"] == 0
        assert last["epochs_before"] == (0 if method == "joint" else 2)
        assert last["num_epochs"] == (5 if method == "joint" else 2)
    assert app.main(["inspect", "c/joint/seed0"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "all were learnt at the same time, so that there was nothing to forget" in text
    assert app.main(["watch", "c", "--once"]) == 0


def test_a_comparison_is_not_written_beside_something_else(folder, capsys):
    compare = ["compare", "small.toml", "--quiet", "--methods", "finetune", "--out"]
    run = ["run", "small.toml", "--quiet", "--set", "learner.training.epochs=1", "--out", "r"]
    assert app.main(run) == 0
    capsys.readouterr()
    message = "r is not empty; give the comparison a directory of its own"
    fails(capsys, 2, message, *compare, "r")
    assert not (folder / "r" / "compare.json").exists()
    (folder / "left").mkdir()
    (folder / "left" / ".clnp-abc").touch()  # A process was killed while it wrote.
    assert app.main([*compare, "left"]) == 0
    (folder / "left" / "single").mkdir()
    (folder / "left" / "single" / ".clnp-abc").touch()
    assert app.main([*compare[:4], "single", *compare[5:], "left"]) == 0


def test_a_comparison_whose_runs_diverge(folder, capsys):
    """All that can be done is done, the exit code is that of a run, and it may be begun anew."""
    options = ["--seeds", "2", "--search-once", "--quiet", "--out", "c"]
    compare = ["compare", "small.toml", "--methods", "clnp,finetune", *options]
    assert app.main([*compare, "--set", "learner.lrs=[1e30]"]) == 1
    assert "clnp, seed 0 failed, see above" in capsys.readouterr().err
    assert [row["seeds"] for row in rows(folder / "c")] == [[0, 1]]  # Those of finetune.
    assert app.main(["resume", "c", "--quiet"]) == 1


def test_a_comparison_that_has_not_begun_may_be_told_otherwise(folder, capsys):
    compare = ["compare", "small.toml", "--methods", "finetune", "--quiet", "--out", "c"]
    wrong = ["--set", "learner.lrs=[1]", "--set", "learner.training.lr=1"]
    assert app.main([*compare[:3], "clnp", *compare[4:], *wrong]) == 2
    assert app.main([*compare[:3], "clnp", *compare[4:]]) == 0


@pytest.mark.parametrize(
    ("file", "key"), [("compare.json", "seeds"), ("finetune/series.json", "seeds")]
)
def test_damaged_files_of_a_comparison_are_told(folder, capsys, file, key):
    compare = ["compare", "small.toml", "--methods", "finetune", "--quiet", "--out", "c"]
    assert app.main(compare) == 0
    (folder / "c" / file).write_text('{"format": 1}')
    capsys.readouterr()
    message = f"c/{file} is damaged: it has no {key}; put a copy of it back, or begin anew .*"
    place = str(Path("c", file).parent)
    for command in ("resume", "verify", "inspect"):
        fails(capsys, 2, message, command, place)


@pytest.mark.parametrize("lost", [["series.json"], ["series.json", "recipe.toml"]])
@pytest.mark.parametrize("command", ["resume", "compare"])
def test_what_a_comparison_has_lost_of_a_method_is_written_anew(folder, capsys, lost, command):
    compare = ["compare", "small.toml", "--methods", "finetune", "--seeds", "2", "--quiet"]
    compare += ["--set", "learner.training.epochs=1", "--out", "c"]
    assert app.main(compare) == 0
    own = folder / "c" / "finetune"
    before = {name: (own / name).read_text() for name in lost}
    for name in lost:
        (own / name).unlink()
    shutil.rmtree(own / "seed1")
    if command == "resume":
        (folder / "small.toml").write_text("")  # What the runs were begun with counts.
        compare = ["resume", "c", "--quiet"]
    assert app.main(compare) == 0
    assert {name: (own / name).read_text() for name in lost} == before
    assert [row["seeds"] for row in rows(folder / "c")] == [[0, 1]]


def test_a_comparison_that_has_only_a_later_seed_left_is_mended(folder):
    compare = ["compare", "small.toml", "--methods", "finetune", "--seeds", "2", "--quiet"]
    assert app.main([*compare, "--set", "learner.training.epochs=1", "--out", "c"]) == 0
    own = folder / "c" / "finetune"
    before = {name: (own / name).read_text() for name in ("series.json", "recipe.toml")}
    for name in before:
        (own / name).unlink()
    shutil.rmtree(own / "seed0")
    assert app.main(["resume", "c", "--quiet"]) == 0
    assert {name: (own / name).read_text() for name in before} == before
    assert [row["seeds"] for row in rows(folder / "c")] == [[0, 1]]


def test_a_comparison_that_lost_the_config_of_a_run_says_so(folder):
    compare = ["compare", "small.toml", "--methods", "finetune", "--quiet"]
    assert app.main([*compare, "--set", "learner.training.epochs=1", "--out", "c"]) == 0
    run = folder / "c" / "finetune" / "seed0"
    (run / "config.json").unlink()
    process = start("resume", "c", "--quiet", cwd=folder)
    error = process.communicate()[1]
    assert process.returncode == 2
    assert "finetune, seed 0: c/finetune/seed0 holds a run whose config.json is missing; " in error
    assert "move the directory away, and it is run again\n" in error
    run.rename(folder / "away")
    assert app.main(["resume", "c", "--quiet"]) == 0
    assert (run / "result.json").exists()
