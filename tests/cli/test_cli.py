import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from clnp.cli import app
from clnp.methods.registry import NAMES
from clnp.runs.directory import CHECKPOINT, EVENTS, RESULT, read_events, read_json
from clnp.runs.experiment import Course
from clnp.version import __version__
from support.terminal import SRC, recipe, start, stopping_in_task, wait_for

COMMANDS = (
    "demo",
    "run",
    "compare",
    "resume",
    "watch",
    "inspect",
    "verify",
    "export",
    "report",
    "recipes",
)
NAME_ONE = "name the directory of a run, a series or a comparison"
RECIPE = recipe()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory of its own to be in, with a recipe in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that has finished, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(RECIPE)
    assert (
        app.main(["run", str(folder / "small.toml"), "--out", str(folder / "run"), "--quiet"]) == 0
    )
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """A finished run of one's own."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in finished.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def fails(capsys, code, message, *arguments):
    """Check that the command ends with this code and exactly one sentence."""
    assert app.main(list(map(str, arguments))) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"clnp: {message}", error.rstrip("\n"), re.DOTALL), error
    assert "Traceback" not in error


def test_help_names_every_command_without_torch():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clnp", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
    )
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n    {command} " in done.stdout
        assert f"\n  clnp {command}" in done.stdout  # An example.
    assert not re.search(r"\| +(torch|rich|sklearn)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_options(command, capsys):
    out = help_of(command, capsys)
    assert "--json" in out
    assert "--debug" in out
    if command in ("demo", "run", "compare"):
        assert all(f"--{option}" in out for option in ("seed", "device", "out", "data", "set"))


@pytest.mark.parametrize(
    ("commands", "device", "data"),
    [
        (("demo", "run", "compare"), "a GPU if there is one", "$CLNP_DATA, or ~/.cache/clnp"),
        (("resume", "verify"), "the one that the run was last on", "where the run had them"),
    ],
)
def test_help_says_where_a_run_is_carried_out_unless_told(commands, device, data, capsys):
    for command in commands:
        out = help_of(command, capsys)
        assert f"(default: {device})" in out
        assert f"(default: {data})" in out


def test_help_names_all_methods(capsys):
    assert f"of {', '.join(NAMES)} (default" in help_of("compare", capsys)


def help_of(command, capsys):
    """What `clnp COMMAND --help` prints, in one line."""
    with pytest.raises(SystemExit) as ended:
        app.main([command, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        app.main(["--version"])
    assert capsys.readouterr().out == f"clnp {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "x", "--seed", "one"],
        ["run", "x", "--checkpoint-every", "nan"],
    ],
)
def test_a_command_that_makes_no_sense_shows_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: clnp")


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "soon"])
def test_seconds_are_told_to_be_seconds(text, capsys):
    with pytest.raises(SystemExit):
        app.main(["run", "x", f"--checkpoint-every={text}"])
    error = capsys.readouterr().err
    assert error.endswith(f"{text!r}; it must be a number of seconds, 0 or more\n")


def test_a_seed_is_given_once(folder, capsys):
    message = "--set seed=4 would change nothing: --seed comes first"
    fails(capsys, 2, message, "run", "small.toml", "--seed", "3", "--set", "seed=4")
    options = ["--methods", "single", "--seed", "3", "--set", "seed=4"]
    fails(capsys, 2, message, "compare", "small.toml", *options)


def test_methods_are_compared_by_their_option(folder, capsys):
    message = "--set method=ewc would change nothing: --methods comes first"
    fails(capsys, 2, message, "compare", "small.toml", "--set", "method=ewc")
    assert not Path("runs").exists()


def test_what_cannot_be_verified_is_not_recommended_to_be(folder, capsys):
    quick = ["--quiet", "--set", "stream.num_tasks=1", "--set", "learner.training.epochs=1"]
    for method, is_recommended in (("clnp", True), ("finetune", False)):
        assert app.main(["run", "small.toml", *quick, "--set", f"method={method}"]) == 0
        assert ("clnp verify" in capsys.readouterr().out) is is_recommended


def test_a_run_prints_its_summary_and_goes_where_it_is_told(folder, capsys):
    assert app.main(["run", "small.toml"]) == 0
    out, error = capsys.readouterr()
    assert "digits 0-1" in out
    assert "nothing was forgotten" in out
    assert "The run is in runs/small-seed0." in out
    assert "task 2 of 2: digits 2-3" in error
    assert app.main(["run", "small.toml", "--seed", "3", "--out", "mine", "--quiet"]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert read_json(folder / "mine", RESULT, {})["seed"] == 3
    assert read_json(folder / "runs" / "small-seed0", RESULT, {})["seed"] == 0


def test_runs_without_a_place_get_one_each(folder, capsys):
    for _ in range(3):
        assert app.main(["run", "small.toml", "--quiet", "--set", "learner.training.epochs=1"]) == 0
    names = sorted(path.name for path in (folder / "runs").iterdir())
    assert names == ["small-seed0", "small-seed0-2", "small-seed0-3"]


@pytest.mark.parametrize(
    ("place", "options", "stem"),
    [
        ("clnp.studies.launch.experiment_of", [], "small-seed0"),
        ("clnp.cli.commands.begin_series", ["--seeds", "1"], "small-1seeds"),
    ],
)
def test_runs_that_are_started_at_the_same_time_get_a_place_each(
    folder, capsys, monkeypatch, place, options, stem
):
    run = ["run", "small.toml", "--quiet", "--set", "learner.training.epochs=1", *options]
    module = sys.modules[place.rpartition(".")[0]]
    function, codes = getattr(module, place.rpartition(".")[2]), []

    def begin_another_first(*arguments, **named):
        monkeypatch.setattr(place, function)
        codes.append(app.main(run))
        return function(*arguments, **named)

    monkeypatch.setattr(place, begin_another_first)
    assert [app.main(run), *codes] == [0, 0]
    names = sorted(path.name for path in (folder / "runs").iterdir())
    assert names == [stem, f"{stem}-2"]


def test_a_run_that_cannot_be_begun_leaves_no_directory(folder, capsys, monkeypatch):
    def interrupted(*arguments, **named):
        assert Path("runs", "small-seed0").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr("clnp.studies.launch.experiment_of", interrupted)
    fails(capsys, 130, "stopped at once; .*", "run", "small.toml", "--quiet")
    assert not (folder / "runs").exists()
    (folder / "runs").mkdir()
    fails(capsys, 130, "stopped at once; .*", "run", "small.toml", "--quiet")
    assert list((folder / "runs").iterdir()) == []


def test_a_directory_that_a_killed_start_left_can_be_named(folder, capsys):
    place = folder / "runs" / "small-seed0"
    place.mkdir(parents=True)
    run = ["run", "small.toml", "--quiet", "--set", "learner.training.epochs=1"]
    assert app.main([*run, "--out", "runs/small-seed0"]) == 0
    assert (place / RESULT).exists()


def test_a_place_for_runs_that_cannot_be_made_is_told(folder, capsys):
    (folder / "runs").symlink_to("nowhere/at/all")
    fails(capsys, 2, "cannot write to runs/small-seed0: .*", "run", "small.toml", "--quiet")
    (folder / "runs").unlink()
    (folder / "runs").touch()
    fails(capsys, 2, "cannot write to runs/small-seed0: .*", "run", "small.toml", "--quiet")


def test_json_is_the_result(folder, capsys):
    assert app.main(["run", "small.toml", "--json", "--out", "run"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == read_json(folder / "run", RESULT, {})
    assert app.main(["inspect", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == printed
    assert app.main(["verify", "run", "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert verified["verified"] is True
    assert verified["scores"] == {t["task"]: t["test_score"] for t in printed["tasks"]}
    assert app.main(["resume", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed


def test_a_recipe_can_be_changed_from_the_command_line(folder, capsys):
    changes = ["--set", "learner.margin=7", "--set", "network.head=single"]
    assert app.main(["run", "small.toml", "--quiet", "--out", "run", *changes]) == 0
    text = (folder / "run" / "recipe.toml").read_text()
    assert "margin = 7.0" in text
    assert 'head = "single"' in text


def test_the_recipe_of_a_run_runs_again(run, tmp_path, capsys):
    again = tmp_path / "again"
    assert app.main(["run", str(run / "recipe.toml"), "--quiet", "--out", str(again)]) == 0
    one, two = read_json(run, RESULT, {}), read_json(again, RESULT, {})
    assert {**one, "timings": None} == {**two, "timings": None}


def test_own_data_from_a_file(folder, capsys):
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (200, 1, 4, 4), dtype=np.uint8)
    y = (x.mean((1, 2, 3)) > 127).astype(int) + 2 * (np.arange(200) % 2)
    (folder / "files").mkdir()
    np.savez(folder / "files" / "mine.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    own = ["--set", "stream.dataset=mine", "--quiet", "--out", "run"]
    assert app.main(["run", "small.toml", *own, "--data", "files"]) == 0
    assert "mine 0-1" in capsys.readouterr().out
    assert app.main(["verify", "run"]) == 0
    os.rename("files", "moved")
    assert app.main(["verify", "run"]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert app.main(["verify", "run", "--data", "moved"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("margin = 2.0", "marginn = 2.0"),
            r"small\.toml, line 13: unknown key 'learner\.marginn'; did you mean 'margin'\? .*",
        ),
        (
            ("margin = 2.0", 'margin = "big"'),
            r'small\.toml, line 13: learner\.margin is "big"; it must be a number',
        ),
        (
            ("epochs = 5", "epochs = 0"),
            r"small\.toml, line 16: training: epochs is 0; it .*",
        ),
        (
            ('kind = "split"', 'kind = "splitt"'),
            r"small\.toml, line 4: .*splitt.*did you mean 'split'\?.*",
        ),
        (("lr = 0.01", "lr = "), r"small\.toml, line 17: this is not TOML: .*"),
        (
            ("num_tasks = 2", "num_tasks = 9"),
            r"small\.toml, line 7: stream\.num_tasks: 9 tasks of 2 classes: digits has only 10",
        ),
        (
            ("lr = 0.01", "lr = 0.01\nalpha = {fc1 = 0.1, fc9 = 0.1}"),
            r"small\.toml, line 18: learner\.training\.alpha: unknown layer 'fc9'; did you .*",
        ),
        (
            ("margin = 2.0", "alphas = [1e-3, -1]"),
            r"small\.toml, line 13: learner\.alphas: alpha is -1\.0; it must be a finite",
        ),
        (('"digits"', '"numbers"'), r"unknown data set 'numbers'.*--data DIRECTORY, or CLNP_DATA"),
        (
            ("widths = [20, 20]", 'widths = [20, 20]\nmodel = "wide-cnn"'),
            r"small\.toml, line 10: widths has 2 entries; a wide-cnn has 5 hidden layers",
        ),
    ],
)
def test_a_mistake_in_a_recipe_is_named(folder, capsys, monkeypatch, change, message):
    monkeypatch.delenv("CLNP_DATA", raising=False)
    (folder / "small.toml").write_text(RECIPE.replace(*change))
    fails(capsys, 2, message, "run", "small.toml")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "permuted-digit"], r"unknown recipe 'permuted-digit'; did you mean .*my\.toml"),
        (["run", "gone.toml"], r"gone\.toml.*"),
        (["run", "small.toml", "--set", "margin"], r"--set margin.*"),
        (["run", "small.toml", "--set", "learner.margn=1"], r"--set learner\.margn=1: unknown .*"),
        (["run", "small.toml", "--device", "tpu9"], r"device 'tpu9' cannot be used here .*"),
        (["run", "small.toml", "--device", "cuda:77"], r"device 'cuda:77' cannot be used here .*"),
        (["run", "small.toml", "--out", "small.toml"], r"small\.toml is a file; give the run .*"),
        (["run", "small.toml", "--out", "."], r"\. is not empty; give the run a directory .*"),
        (["resume", "gone"], f"there is no run at gone; {NAME_ONE}"),
        (["inspect", "gone"], f"there is no run at gone; {NAME_ONE}"),
        (["verify", "gone"], f"there is no run at gone; {NAME_ONE}"),
        (
            ["inspect", "."],
            r"\. is not a run: it has no config\.json; name the directory of a run.*",
        ),
        (["recipes", "gone"], r"unknown recipe 'gone'.*"),
        (["run", "small.toml", "--device", "meta"], r"device 'meta' cannot be used here .*"),
        (["run", "~nosuchuser/x"], "~nosuchuser/x: there is no such file; check the path"),
        (["run", "a" * 300 + ".toml"], "a+.toml: the file cannot be read: File name too long"),
        (["inspect", "a" * 300], f"there is no run at a+; {NAME_ONE}"),
        (["run", "small.toml", "--set", "description=\udcff"], r"--set .*: this is not UTF-8"),
        (["run", "small.toml", "--set", ".".join("a" * 3000) + "=1"], ".*"),
        (
            ["run", "small.toml", "--set", "learner.training.optimizer=LBFGS"],
            r"--set .*: learner\.training\.optimizer: training: LBFGS cannot be used: .*",
        ),
        (
            ["run", "small.toml", "--set", "learner.training.optimizer_options={lr = 1}"],
            r"--set .*: training: optimizer_options contains lr. Set training.lr instead",
        ),
        (
            ["run", "small.toml", "--set", "network.widths=[1000000000000, 1]"],
            r"small\.toml, line 9: network: cannot be built: .*",
        ),
        (["run", "small.toml", "--set", f"learner.training.batch_size={10**30}"], r"--set .*"),
        (["run", "small.toml", "--set", "learner.fine_tuning.lr=inf"], r"--set .*"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(folder, capsys, arguments, message):
    fails(capsys, 2, message, *arguments)


def test_an_error_in_json_is_json_too(folder, capsys):
    assert app.main(["inspect", "gone", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {"error": f"there is no run at gone; {NAME_ONE}"}


def test_a_result_that_is_damaged_is_written_anew_once_it_is_removed(run, capsys):
    before = read_json(run, RESULT, {})
    (run / RESULT).write_text("{")
    damaged = (
        r".*result\.json is damaged: .*; remove it and go on with the run, which writes it anew"
    )
    fails(capsys, 2, damaged, "resume", run)
    (run / RESULT).unlink()
    assert app.main(["resume", str(run), "--quiet"]) == 0
    assert {**read_json(run, RESULT, {}), "timings": None} == {**before, "timings": None}


def test_debug_shows_the_traceback(folder, capsys):
    assert app.main(["inspect", "gone", "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.endswith(f"clnp: there is no run at gone; {NAME_ONE}\n")


def test_a_setting_that_would_change_nothing_is_refused(folder, capsys):
    (folder / "small.toml").write_text(RECIPE.replace("margin = 2.0", "alphas = [1e-3, 1e-4]"))
    setting = ["--set", "learner.training.alpha=1"]
    message = "--set learner.training.alpha=1 would change nothing: learner.alphas comes first; .*"
    fails(capsys, 2, message, "run", "small.toml", *setting)


def test_a_run_is_no_recipe(run, capsys):
    fails(capsys, 2, f"{run} is a run, not a recipe. Resume it with: clnp resume {run}", "run", run)


def test_a_run_that_diverges_fails(folder, capsys):
    wild = ["--set", "learner.training.lr=1e30", "--set", "learner.training.optimizer=SGD"]
    assert app.main(["run", "small.toml", "--quiet", *wild]) == 1
    assert "every candidate of task 'digits 0-1' diverged" in capsys.readouterr().err


def test_recipes_are_listed_and_printed(capsys):
    assert app.main(["recipes"]) == 0
    assert re.search(r"^permuted-digits +Ten permutations", capsys.readouterr().out, re.MULTILINE)
    assert app.main(["recipes", "permuted-digits"]) == 0
    assert "[learner.training]" in capsys.readouterr().out
    assert app.main(["recipes", "--json"]) == 0
    assert "permuted-digits" in json.loads(capsys.readouterr().out)
    assert app.main(["recipes", "--keys"]) == 0
    assert "classes_per_task: a whole number; required" in capsys.readouterr().out


def test_keys_are_those_of_every_recipe(capsys):
    message = "--keys are those of every recipe: leave out permuted-digits"
    fails(capsys, 2, message, "recipes", "--keys", "permuted-digits")


def test_inspect_shows_a_finished_run(run, capsys):
    assert app.main(["inspect", str(run)]) == 0
    out = capsys.readouterr().out
    assert "finished: 2 of 2 tasks" in out
    assert "digits 2-3" in out


def test_a_finished_run_needs_no_resuming(run, capsys):
    before = (run / CHECKPOINT).read_bytes()
    assert app.main(["resume", str(run)]) == 0
    assert "is finished; nothing is left to do" in capsys.readouterr().out
    assert (run / CHECKPOINT).read_bytes() == before


def test_verify_says_what_it_checked(run, capsys):
    assert app.main(["verify", str(run)]) == 0
    assert "verified: all that 2 tasks read is as it was frozen" in capsys.readouterr().out


def frozen_tensor(data, name):
    """Where the bytes of a tensor begin in a safetensors file."""
    (size,) = struct.unpack("<Q", data[:8])
    return 8 + size + json.loads(data[8 : 8 + size])[name]["data_offsets"][0]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("model.fc1.weight_frozen", "task 'digits 0-1' has changed: fc1.weight is no longer"),
        ("model.fc2.bias_frozen", "task 'digits 0-1' has changed: fc2.bias is no longer"),
    ],
)
def test_one_flipped_bit_in_a_checkpoint_is_found(run, capsys, tensor, message):
    data = bytearray((run / CHECKPOINT).read_bytes())
    data[frozen_tensor(data, tensor)] ^= 1
    (run / CHECKPOINT).write_bytes(data)
    fails(capsys, 1, f"{re.escape(message)}.*", "verify", run)


def test_a_flipped_bit_anywhere_is_found(run, capsys):
    good = (run / CHECKPOINT).read_bytes()
    for place in range(9, len(good), len(good) // 40):
        data = bytearray(good)
        data[place] ^= 1
        (run / CHECKPOINT).write_bytes(data)
        assert app.main(["verify", str(run)]) == 1, place
        assert "Traceback" not in capsys.readouterr().err


def test_a_result_that_was_edited_is_found(run, capsys):
    result = read_json(run, RESULT, {})
    result["tasks"][1]["test_score"] += 1
    result["scores"][1][1] += 1
    (run / RESULT).write_text(json.dumps(result))
    fails(
        capsys,
        1,
        "task 'digits 2-3': its test accuracy is .*, and was .* when it ended",
        "verify",
        run,
    )
    result["certificates"]["digits 0-1"] = "0" * 64
    (run / RESULT).write_text(json.dumps(result))
    fails(capsys, 1, "task 'digits 0-1' has changed: its certificate in .*", "verify", run)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("scores", -1, 0), 1.0, "task 'digits 0-1': by .*, its score after 'digits 2-3' is 1.0.*"),
        (("capacity", "usages", 0, "free"), 999, "result.json is not .*: its capacity differs"),
        (("seed",), 8, "result.json is not what the network says: its seed differs"),
        (("tasks", 0, "new", "fc1"), 99, "task 'digits 0-1': .*: its new neurons of fc1 differ"),
        (("tasks",), [], r"result.json has tasks \[\], the network .*"),
        (("tasks", 0, "unchanged"), False, "task 'digits 0-1': by result.json, its outputs .*"),
        (("forecast", "need", "fc1"), 99, "result.json is not .*: its forecast differs"),
        (("forecast", "more"), 1, "result.json is not .*: its forecast differs"),
    ],
)
def test_a_figure_that_was_edited_is_found(run, capsys, path, value, message):
    result = read_json(run, RESULT, {})
    *above, last = path
    part = result
    for key in above:
        part = part[key]
    part[last] = value
    (run / RESULT).write_text(json.dumps(result))
    fails(capsys, 1, message, "verify", run)


OTHER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""What makes a CPU round differently."""


def test_a_run_that_goes_on_on_another_machine_is_verified(folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Course, "_tell", stopping_in_task(2))
        wide = ["--set", "network.widths=[200, 200]"]
        assert app.main(["run", "small.toml", "--out", "run", "--quiet", *wide]) == 130
    there = {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", **OTHER}
    for verb in ("resume", "verify"):
        program = [sys.executable, "-m", "clnp", verb, "run"]
        done = subprocess.run(program, env=there, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "as recorded, to the last bit" in done.stdout
    assert app.main(["verify", "run"]) == 0
    result = read_json(folder / "run", RESULT, {})
    first = result["tasks"][0]
    assert [record["unchanged"] for record in result["tasks"]] == [True, True]
    assert [*first["elsewhere"]] == [result["tasks"][1]["arithmetic"]]
    capsys.readouterr()
    # What rounding does not explain is still found.
    result["scores"][1][0] -= 9.0
    (folder / "run" / RESULT).write_text(json.dumps(result))
    fails(
        capsys, 1, "task 'digits 0-1': by .*, its score after 'digits 2-3' is .*", "verify", "run"
    )
    result["scores"][1][0] += 9.0
    result["tasks"][0]["outputs"] = "0" * 64
    (folder / "run" / RESULT).write_text(json.dumps(result))
    fails(capsys, 1, "task 'digits 0-1': .*; its outputs differ in some bits", "verify", "run")


def test_tasks_can_be_added_to_a_run(run, folder, capsys):
    """`run` is in the folder, and has two of three tasks."""
    more = ["run", "small.toml", "--quiet", "--json", "--set", "stream.num_tasks=3", "--out"]
    assert app.main([*more, "run"]) == 0
    added = json.loads(capsys.readouterr().out)
    assert app.main([*more, "whole"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert added["finished"] is True
    assert len(added["tasks"]) == 3
    assert {**added, "timings": 0} == {**whole, "timings": 0}
    for name in ("recipe.toml", "config.json"):
        assert (run / name).read_text() == (folder / "whole" / name).read_text()
    assert app.main(["resume", "run"]) == 0
    assert "is finished; nothing is left to do" in capsys.readouterr().out
    assert app.main(["verify", "run"]) == 0
    assert "verified: all that 3 tasks read" in capsys.readouterr().out
    more.remove("--json")
    fails(capsys, 2, r"run holds a run; clnp resume run goes on with it; or .*", *more, "run")


def test_a_task_that_was_added_and_failed_can_be_mended_or_left_out(run, folder, capsys):
    """`run` is in the folder, and has two of three tasks."""
    first = read_json(run, RESULT, {})
    more = ["run", "small.toml", "--quiet", "--set", "stream.num_tasks=3", "--set"]
    lr = 'learner.tasks."digits 4-5".lrs=[{}]'
    bad = [*more, lr.format("1e30"), "--out", "run"]
    for _ in range(2):
        fails(capsys, 1, "every candidate of task 'digits 4-5' diverged.*", *bad)
        assert app.main(["inspect", "run"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "or leave it out; clnp run RECIPE --out run goes on" in told
        assert app.main(["run", "small.toml", "--quiet", "--out", "run"]) == 0
        assert {**read_json(run, RESULT, {}), "timings": 0} == {**first, "timings": 0}
        assert app.main(["verify", "run"]) == 0
        capsys.readouterr()
    fails(capsys, 1, "every candidate .*", *bad)
    for name in ("run", "whole"):
        assert app.main([*more, lr.format("0.01"), "--out", name]) == 0
    results = [read_json(folder / name, RESULT, {}) for name in ("run", "whole")]
    assert {**results[0], "timings": 0} == {**results[1], "timings": 0}
    for name in ("recipe.toml", "config.json"):
        assert (run / name).read_text() == (folder / "whole" / name).read_text()


def test_a_run_that_has_learnt_nothing_is_begun_anew(folder, capsys, monkeypatch):
    """Killed at its first event; then by another recipe, as if nothing had been there."""
    other = ["run", "small.toml", "--quiet", "--set", "learner.margin=7.0", "--out"]
    with monkeypatch.context() as patch:
        patch.setattr(Course, "_tell", killed)
        with pytest.raises(Killed):
            app.main(["run", "small.toml", "--quiet", "--out", "begun"])
    assert (folder / "begun" / "config.json").is_file()
    for name in ("begun", "whole"):
        assert app.main([*other, name]) == 0
    for name in ("recipe.toml", "config.json"):
        assert (folder / "begun" / name).read_text() == (folder / "whole" / name).read_text()
    assert app.main(["verify", "begun"]) == 0


class Killed(BaseException):
    """Nothing handles it."""


def killed(*_):
    raise Killed


def test_a_run_is_resumed_with_the_tasks_that_were_added(run, folder, capsys, monkeypatch):
    tell = Course._tell

    def stop(course, event):
        tell(course, event)
        if event["event"] == "epoch":
            course.stop()

    more = ["run", "small.toml", "--quiet", "--set", "stream.num_tasks=3", "--out"]
    with monkeypatch.context() as patch:
        patch.setattr(Course, "_tell", stop)
        assert app.main([*more, "run"]) == 130
    assert app.main(["resume", "run", "--quiet"]) == 0
    assert app.main([*more, "whole"]) == 0
    results = [read_json(folder / name, RESULT, {}) for name in ("run", "whole")]
    assert {**results[0], "timings": 0} == {**results[1], "timings": 0}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("stream.order=[4, 5, 0, 1, 2, 3, 6, 7, 8, 9]", "its task 1 is 'digits 0-1', not .*4-5'"),
        ("stream.num_train=20", "its task 1, 'digits 0-1', has train '.*', not '.*'"),
        ("seed=9", "its seed is 0, not 9"),
    ],
)
def test_tasks_are_not_added_to_another_experiment(run, folder, capsys, setting, message):
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    more = ["run", "small.toml", "--set", "stream.num_tasks=3", "--out", "run", "--set", setting]
    fails(capsys, 2, f"run holds another experiment: {message}", *more)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_a_recipe_that_was_edited_is_found(run, capsys):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("margin = 2.0", "margin = 9.0"))
    message = r".* holds another experiment: its learner\.margin is 2\.0, not 9\.0"
    fails(capsys, 2, message, "verify", run)


def test_a_run_that_lost_its_checkpoint_is_not_begun_again(run, capsys):
    (run / CHECKPOINT).unlink()
    fails(capsys, 2, r".* has lost its checkpoint\.safetensors; its tasks .*", "verify", run)
    result = read_json(run, RESULT, {})
    (run / RESULT).write_text(json.dumps({**result, "finished": False}))
    before = (run / EVENTS).read_bytes()
    fails(capsys, 2, r".* has lost its checkpoint\.safetensors; begin .*", "resume", run, "--quiet")
    assert (run / EVENTS).read_bytes() == before


@pytest.mark.parametrize("name", ["result.json", "environment.json", "config.json", "events.jsonl"])
@pytest.mark.parametrize("text", ["[]", "{}", "null", "[{}]", "3", '{"finished": false}', "", "{"])
def test_damaged_files_are_told_in_a_sentence(run, capsys, name, text):
    (run / name).write_text(text)
    for arguments in (["inspect"], ["verify"], ["resume", "--quiet"]):
        assert app.main([*arguments, str(run)]) in (0, 1, 2)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.count("\n") <= 1


def test_a_run_without_an_ended_task_cannot_be_verified(run, capsys):
    (run / RESULT).unlink()
    fails(capsys, 2, ".*run has no ended task yet; there is nothing to verify", "verify", run)


def test_ctrl_c_finishes_cleanly_and_the_run_can_be_resumed(finished, folder):
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 5", "epochs = 100000"))
    process = start("run", "small.toml", "--out", "run")
    wait_for(lambda: sum(e["event"] == "epoch" for e in read_events("run")) > 3)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this epoch; once more to stop at once" in error
    assert error.endswith("clnp: stopped; go on with: clnp resume run\n")
    assert "Traceback" not in error
    assert out == ""
    num_epochs = sum(event["event"] == "epoch" for event in read_events("run"))
    process = start("resume", "run")
    wait_for(lambda: sum(e["event"] == "epoch" for e in read_events("run")) > num_epochs + 3)
    assert read_events("run")[num_epochs + 2]["event"] == "resumed"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    process.communicate()


def test_ctrl_c_once_too_often_is_not_told_of():
    code = (
        "import atexit, os, signal, clnp.cli as cli\n"
        "cli.main = lambda: app.STOPPED\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "cli.run()"
    )
    environment = {**os.environ, "PYTHONPATH": SRC}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_two_processes_on_one_run(folder, capsys):
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 5", "epochs = 100000"))
    process = start("run", "small.toml", "--out", "run", "--checkpoint-every", "0")
    wait_for(lambda: Path("run", CHECKPOINT).exists())
    fails(capsys, 2, "another process is at work on run; wait for it, or stop it", "resume", "run")
    assert app.main(["inspect", "run"]) == 0
    out = capsys.readouterr().out
    assert "not finished: 0 of 2 tasks; last heard of " in out
    assert "last seen: " in out
    assert "if it is not at work any more, clnp resume run goes on\n" in out
    process.kill()
    process.communicate()


def test_a_reader_that_goes_away_is_no_error(folder):
    process = start("recipes", "--keys")
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(60)
    process.stderr.close()


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_streams_that_are_closed_are_no_error(folder, closed):
    number = {"stdout": 1, "stderr": 2}[closed]
    command = f"exec {sys.executable} -m clnp recipes {number}>&-"
    env = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_progress_that_nobody_reads_does_not_end_a_run(folder):
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-m", "clnp", "run", "small.toml", "--out", "run"],
        stdout=subprocess.PIPE,
        stderr=write,
        env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
    )
    os.close(write)
    process.communicate()
    assert process.returncode == 0
    assert read_json(folder / "run", RESULT, {})["finished"] is True


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_answer_that_cannot_be_printed_is_told(folder):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "clnp", "recipes"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SRC},
        )
    assert done.returncode == 1
    assert done.stderr == "clnp: cannot print the answer: No space left on device\n"


def test_bars_on_a_terminal(folder):
    main, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "clnp", "run", "small.toml", "--out", "run"],
        stdout=subprocess.PIPE,
        stderr=other,
        env={**os.environ, "PYTHONPATH": SRC, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
    )
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # The terminal has been closed.
            break
        if not part:
            break
        shown += part
    process.communicate()
    os.close(main)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "10/10" in text
    assert "validation" in text
    assert "learnt digits 2-3" in text


def test_the_demo_ends_with_ten_tasks_and_nothing_forgotten(tmp_path):
    process = start("demo", "--json", "--out", tmp_path / "demo", cwd=tmp_path)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    result = json.loads(out)
    assert result == read_json(tmp_path / "demo", RESULT, {})
    assert len(result["tasks"]) == 10
    assert result["full"] is None
    learnt = [record["test_score"] for record in result["tasks"]]
    assert result["scores"][-1] == learnt
    assert all(record["unchanged"] for record in result["tasks"])
    assert sum(learnt) / 10 > 94
    assert min(learnt) > 88
    assert result["forecast"]["num_tasks"] >= 1
    first = [u for u in result["capacity"]["usages"] if u["group"] == "fc1"]
    # The first layer is reused more and grows less with every task.
    assert sum(u["new"] for u in first[5:]) < sum(u["new"] for u in first[:5])
    assert sum(event["event"] == "task" for event in read_events(tmp_path / "demo")) == 10
    assert (tmp_path / "demo" / EVENTS).stat().st_size > 1000
