import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clnp.cli import app
from clnp.methods.registry import NAMES
from clnp.records import EpochEnded, TaskEnded, TaskResumed
from clnp.runs.directory import (
    CHECKPOINT,
    CONFIG,
    RECIPE,
    RESULT,
    last_environment,
    locked,
    read_events,
)
from clnp.runs.experiment import RunLoop
from clnp.studies import launch
from clnp.version import __version__
from support.terminal import SRC, recipe, start, stopping_in_task

COMMANDS = ("demo", "run", "compare", "resume", "watch", "inspect", "verify", "export", "report")
COMMANDS += ("recipes",)
SMALL = recipe()
QUICK = ["--quiet", "--set", "learner.training.epochs=1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory with a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLNP_DATA", raising=False)
    Path("small.toml").write_text(SMALL)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(SMALL)
    assert app.main(["run", f"{folder}/small.toml", "--out", f"{folder}/run", "--quiet"]) == 0
    return folder / "run"


@pytest.fixture
def run(finished, folder):
    """The path of a copy of a finished run, in the working directory."""
    Path("run").mkdir()
    for file in finished.iterdir():
        Path("run", file.name).write_bytes(file.read_bytes())
    return Path("run")


def python(*arguments, **environment):
    """Run Python in another process, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


def result_of(path):
    return json.loads(Path(path, RESULT).read_text())


def untimed(path):
    return {**result_of(path), "timings": None}


def fails(capsys, code, message, *arguments):
    """Check that the command ends with this code and a line with this message."""
    assert app.main(list(map(str, arguments))) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"clnp: {message}", error.rstrip("\n"), re.DOTALL), error
    assert "Traceback" not in error


def help_of(command, capsys):
    """Return what `clnp COMMAND --help` prints, in one line."""
    with pytest.raises(SystemExit) as ended:
        app.main([command, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_names_every_command_without_torch():
    done = python("-m", "clnp", "--help", PYTHONPROFILEIMPORTTIME="1")
    for command in COMMANDS:
        assert f"\n    {command} " in done.stdout
        assert f"\n  clnp {command}" in done.stdout  # An example.
    assert "exit codes: 0 success, 1 failure, 2 usage error" in done.stdout
    assert not re.search(r"\| +(torch|rich|sklearn)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_options(command, capsys):
    out = help_of(command, capsys)
    options = ["json", "debug"]
    if command in ("demo", "run", "compare"):
        options += ["seed", "device", "out", "data", "set"]
        assert "(default: a GPU if there is one)" in out
        assert "(default: $CLNP_DATA, or ~/.cache/clnp)" in out
    if command in ("resume", "verify"):
        assert out.count("(default: that of the run)") == 2
    if command == "compare":
        assert f"of {', '.join(NAMES)} (default" in out
    assert all(f"--{option} " in out for option in options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "required: RECIPE"),
        *(
            (["run", "x", f"--seed={text}"], f"{text!r} is not a whole number from 0 to 2**64 - 1")
            for text in ("one", "-1", str(2**64), "9" * 5000)
        ),
        (["run", "x", "--\x1b[31m\nb"], "unrecognized arguments: --\\x1b[31m\\nb"),
        (["run", "x", "--jobs", "0"], "'0' is not a whole number, 1 or more"),
        (["compare", "x", "--methods", ","], "expected names separated by commas"),
        *(
            (["run", "x", f"--checkpoint-every={text}"], f"{text!r} is not a number of seconds")
            for text in ("nan", "-1", "inf", "soon")
        ),
    ],
)
def test_wrong_usage_is_explained(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: clnp")
    assert message in error


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        app.main(["--version"])
    assert capsys.readouterr().out == f"clnp {__version__}\n"


@pytest.mark.parametrize(
    ("setting", "option", "arguments"),
    [
        ("seed=4", "--seed", ["run", "small.toml", "--seed", "3"]),
        ("seed=4", "--seed", ["compare", "small.toml", "--seed", "3"]),
        ("threads=4", "--threads", ["run", "small.toml", "--threads", "3"]),
        ("method=ewc", "--methods", ["compare", "small.toml"]),
    ],
)
def test_a_setting_with_an_option_is_refused(folder, capsys, setting, option, arguments):
    message = f"--set {setting} would have no effect. Use {option} instead."
    fails(capsys, 2, message, *arguments, "--set", setting)
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_too_many_threads_name_their_option(folder, capsys, command):
    message = "--threads is 9999. It must be a whole number, 1 to 1024"
    fails(capsys, 2, message, command, "small.toml", "--threads", "9999")


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], 1), (["--threads", "2"], 2), (["--set", "threads=2"], 2)]
)
def test_the_number_of_threads(folder, capsys, arguments, expected):
    assert app.main(["run", "small.toml", "--quiet", "--out", "run", *arguments]) == 0
    assert last_environment(folder / "run").num_threads == expected
    assert torch.get_num_threads() == 1
    capsys.readouterr()
    assert app.main(["inspect", "run"]) == 0
    assert f", {expected} thread{'s' * (expected > 1)}," in capsys.readouterr().out


def test_a_run_prints_its_summary(folder, capsys):
    assert app.main(["run", "small.toml"]) == 0
    out, error = capsys.readouterr()
    assert "nothing was forgotten" in out
    assert "runs/small-seed0" in out
    assert "clnp verify" in out
    assert "task 2 of 2: digits 2-3" in error
    other = ["--seed", "3", "--out", "mine", "--set", "method=finetune"]
    assert app.main(["run", "small.toml", *other, *QUICK]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert "clnp verify" not in out  # It promises nothing.
    assert (result_of("mine")["seed"], result_of("runs/small-seed0")["seed"]) == (3, 0)


def test_each_run_has_its_own_directory(folder):
    for name in ("small-seed0", "small-seed0-2"):
        Path("runs", name).mkdir(parents=True)
    assert app.main(["run", "small.toml", *QUICK]) == 0
    names = sorted(path.name for path in Path("runs").iterdir() if any(path.iterdir()))
    assert names == ["small-seed0-3"]


def test_runs_that_start_at_the_same_time_have_their_own_directories(folder, monkeypatch):
    start, taken = launch.start_run, []

    def meanwhile(loaded, path, options):
        taken.append(path)
        if len(taken) == 1:  # Before the first one has written anything.
            assert app.main(["run", "small.toml", *QUICK]) == 0
        return start(loaded, path, options)

    monkeypatch.setattr(launch, "start_run", meanwhile)
    assert app.main(["run", "small.toml", *QUICK]) == 0
    assert [path.name for path in taken] == ["small-seed0", "small-seed0-2"]
    assert all((path / "result.json").is_file() for path in taken)


def test_a_run_that_cannot_start_leaves_no_directory(folder, capsys, monkeypatch):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("clnp.studies.launch.experiment_of", interrupted)
    fails(capsys, 130, r"Stopped\. .*", "run", "small.toml", "--quiet")
    assert not Path("runs").exists()


def test_a_directory_that_cannot_be_made_is_an_error(folder, capsys):
    Path("runs").symlink_to("nowhere/at/all")
    fails(capsys, 2, "cannot write to runs/small-seed0: .*", "run", "small.toml", "--quiet")
    Path("runs").unlink()
    Path("runs").touch()
    fails(capsys, 2, "cannot write to runs/small-seed0: .*", "run", "small.toml", "--quiet")


def test_json_is_the_result(run, capsys):
    result = result_of(run)
    for command, key in (("inspect", "result"), ("resume", None), ("verify", "scores")):
        assert app.main([command, "run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        scores = {task["task"]: task["test_score"] for task in result["tasks"]}
        assert (found if key is None else found[key]) == (scores if key == "scores" else result)
    assert app.main(["inspect", "gone", "--json", "--debug"]) == 2
    out, error = capsys.readouterr()
    assert json.loads(out)["error"].startswith("gone does not exist. ")
    assert error.startswith("Traceback")


def test_the_recipe_of_a_run_runs_again(run):
    assert app.main(["run", str(run / RECIPE), "--quiet", "--out", "again"]) == 0
    assert untimed(run) == untimed("again")


def test_own_data_from_a_file(folder, capsys):
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (200, 1, 4, 4), dtype=np.uint8)
    y = (x.mean((1, 2, 3)) > 127).astype(int) + 2 * (np.arange(200) % 2)
    Path("files").mkdir()
    np.savez("files/mine.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    own = ["--set", "stream.dataset=mine", *QUICK, "--out", "run"]
    assert app.main(["run", "small.toml", *own, "--data", "files"]) == 0
    assert "mine 0-1" in capsys.readouterr().out
    assert app.main(["verify", "run"]) == 0
    os.rename("files", "moved")
    assert app.main(["verify", "run"]) == 2
    assert "files" in capsys.readouterr().err
    assert app.main(["verify", "run", "--data", "moved"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("margin = 2.0", "marginn = 2.0", r"small\.toml, line 13: .*marginn.*'margin'\?.*"),
        ("margin = 2.0", 'margin = "big"', r"small\.toml, line 13: .*margin.*big.*"),
        ("epochs = 5", "epochs = 0", r"small\.toml, line 16: .*epochs.*0.*"),
        ("lr = 0.01", "lr = ", r"small\.toml, line 17: .*TOML.*"),
        ("num_tasks = 2", "num_tasks = 9", r"small\.toml, line 7: .*num_tasks.* 10.*"),
        (
            "lr = 0.01",
            "lr = 0.01\nalpha = {fc1 = 0.1, fc9 = 0.1}",
            r"small\.toml, line 18: .*alpha.*'fc9'.*",
        ),
        ('"digits"', '"numbers"', r".*'numbers'.*--data.*CLNP_DATA.*"),
    ],
)
def test_an_error_in_a_recipe_is_named(folder, capsys, old, new, message):
    Path("small.toml").write_text(SMALL.replace(old, new))
    fails(capsys, 2, message, "run", "small.toml")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "permuted-digit"], r".*'permuted-digit'.*'permuted-digits'.*"),
        (["run", "gone.toml"], r"gone\.toml.*"),
        (["run", "small.toml", "--set", "margin"], r"--set margin.*"),
        (["run", "small.toml", "--set", "learner.margn=1"], r"--set learner\.margn=1: .*"),
        (["run", "small.toml", "--set", "a", "--set", "b"], r"2 problems:\n  - --set a: .*set b.*"),
        (
            ["run", "small.toml", "--set", "learner.margin=nan"],
            r"--set .*margin is nan\. It must be a number, not nan and not beyond 1e308",
        ),
        (["run", "small.toml", "--set", "seed=-1"], r".*seed is -1\. It must be .* 0 to 2.*"),
        (["run", "small.toml", "--data", "gone"], r"--data gone is not a directory\. Create .*"),
        (
            ["compare", "small.toml", "--methods", "foo,clnp,ewx"],
            r"unknown method 'foo'; unknown method 'ewx'\. Did you mean 'ewc'\? Known: clnp, .*",
        ),
        (["inspect", "small.toml"], r"small\.toml is not a directory\. Give the directory .*"),
        (["inspect", "a\n\x1b[31m\u202e[red]"], r"a\\n\\x1b\[31m\\u202e\[red\] does not exist.*"),
        (["run", "small.toml", "--set", "learner.training.lr=-1"], r"--set .*"),
        (["run", "small.toml", "--set", ".".join("a" * 3000) + "=1"], ".*"),
        (["run", "small.toml", "--set", "description=\udcff"], r"--set .*UTF-8.*"),
        (["run", "small.toml", "--device", "tpu9"], r".*'tpu9'.*"),
        (["run", "small.toml", "--device", "cuda:77"], r".*'cuda:77'.*"),
        (["run", "small.toml", "--out", "small.toml"], r"small\.toml is a file\. .*"),
        (["run", "small.toml", "--out", "."], r"\. is not empty\. .*"),
        (["run", "~nosuchuser/x"], "~nosuchuser/x.*"),
        (["run", "a" * 300 + ".toml"], r"a+…a+\.toml is too long for a path, .*"),
        (["inspect", "gone"], r"gone does not exist\. Give the directory of a run.*"),
        (["inspect", "."], r"\. is not a run: it has no config\.json\. .*"),
        (["inspect", "a" * 300], r"a+…a+ is too long for a path, with 300 characters\. .*"),
        (["resume", "gone"], r"gone .*"),
        (["verify", "gone"], r"gone .*"),
        (["recipes", "gone"], r".*'gone'.*"),
        (["recipes", "--keys", "gone"], r"--keys explains .*\. Leave out gone\."),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(folder, capsys, arguments, message):
    fails(capsys, 2, message, *arguments)


def test_a_failure_of_a_run_is_exit_code_1(folder, capsys):
    wild = ["--set", "learner.training.lr=1e30", "--set", "learner.training.optimizer=SGD"]
    fails(capsys, 1, ".*'digits 0-1' diverged.*", "run", "small.toml", *QUICK, *wild)


def test_recipes_are_listed_and_printed(capsys):
    assert app.main(["recipes"]) == 0
    assert re.search(r"^permuted-digits +Ten permutations", capsys.readouterr().out, re.MULTILINE)
    assert app.main(["recipes", "permuted-digits"]) == 0
    assert "[learner.training]" in capsys.readouterr().out
    assert app.main(["recipes", "--json"]) == 0
    assert "permuted-digits" in json.loads(capsys.readouterr().out)
    assert app.main(["recipes", "--keys"]) == 0
    assert "classes_per_task: " in capsys.readouterr().out


def test_a_finished_run_is_inspected_verified_and_not_resumed(run, capsys):
    before = (run / CHECKPOINT).read_bytes()
    for command, text in (
        ("inspect", "finished: 2 of 2 tasks"),
        ("watch", "finished: 2 of 2 tasks"),
        ("verify", "2 tasks"),
        ("resume", "finished"),
    ):
        assert app.main([command, "run"]) == 0
        assert text in capsys.readouterr().out
    assert (run / CHECKPOINT).read_bytes() == before
    (run / RESULT).write_text("{")
    fails(capsys, 2, r"run/result\.json is damaged: .*Remove it and resume.*", "resume", "run")
    (run / RESULT).unlink()
    assert app.main(["resume", "run", "--quiet"]) == 0
    assert result_of(run)["finished"]


def test_a_flipped_bit_anywhere_is_found(run, capsys):
    good = (run / CHECKPOINT).read_bytes()
    for place in range(9, len(good), len(good) // 20):
        data = bytearray(good)
        data[place] ^= 1
        (run / CHECKPOINT).write_bytes(data)
        fails(capsys, 1, ".*", "verify", "run")


def test_a_run_that_resumes_on_another_machine_is_verified(folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "_log", stopping_in_task(2))
        wide = ["--set", "network.widths=[200, 200]"]
        assert app.main(["run", "small.toml", "--out", "run", "--quiet", *wide]) == 130
    other = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}  # It rounds differently.
    both = (
        "from clnp.cli import app\n"
        "assert app.main(['resume', 'run', '--quiet']) == 0\n"
        "assert app.main(['verify', 'run']) == 0\n"
    )
    assert "to the last bit" in python("-c", both, **other).stdout
    assert app.main(["verify", "run"]) == 0
    capsys.readouterr()
    first, second = result_of("run")["tasks"]
    assert (first["unchanged"], second["unchanged"]) == (True, True)
    assert [*first["elsewhere"]] == [second["arithmetic"]]
    # A difference that rounding does not explain is still found.
    result = result_of("run")
    result["scores"][1][0] -= 9.0
    Path("run", RESULT).write_text(json.dumps(result))
    fails(capsys, 1, ".*'digits 0-1'.*", "verify", "run")


def test_tasks_are_added_to_a_run_and_exchanged_if_they_fail(run, capsys):
    first = untimed(run)
    more = ["run", "small.toml", "--quiet", "--set", "stream.num_tasks=3", "--out"]
    bad = [*more, "run", "--set", 'learner.tasks."digits 4-5".lrs=[1e30]']
    fails(capsys, 1, ".*'digits 4-5' diverged.*", *bad)
    assert app.main(["inspect", "run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "or leave it out, and resume with `clnp run RECIPE --out run`." in out
    assert app.main(["run", "small.toml", "--quiet", "--out", "run"]) == 0
    assert untimed(run) == first
    for name in ("run", "whole"):
        assert app.main([*more, name]) == 0
    assert untimed(run) == untimed("whole")
    for name in (RECIPE, CONFIG):
        assert (run / name).read_text() == Path("whole", name).read_text()
    assert app.main(["verify", "run"]) == 0
    capsys.readouterr()
    fails(capsys, 2, "run already contains a run. Resume it with `clnp resume run`.*", *more, "run")


class Killed(BaseException):
    """Nothing handles it."""


def killed(*_):
    raise Killed


def test_a_run_without_progress_starts_again_with_another_recipe(folder, monkeypatch):
    other = ["run", "small.toml", "--quiet", "--set", "learner.margin=7.0", "--out"]
    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "_log", killed)
        with pytest.raises(Killed):
            app.main(["run", "small.toml", "--quiet", "--out", "started"])
    assert Path("started", CONFIG).is_file()
    for name in ("started", "whole"):
        assert app.main([*other, name]) == 0
    for name in (RECIPE, CONFIG):
        assert Path("started", name).read_text() == Path("whole", name).read_text()


@pytest.mark.parametrize(
    "name", ["result.json", "environment.json", "config.json", "events.jsonl", "status.json"]
)
@pytest.mark.parametrize("text", ["[]", "{}", '{"finished": false}', "{"])
def test_damaged_files_are_named_in_one_line(run, capsys, name, text):
    (run / name).write_text(text)
    for arguments in (["inspect"], ["verify"], ["resume", "--quiet"]):
        assert app.main([*arguments, "run"]) in (0, 1, 2)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.count("\n") <= 1


def num_epochs(path):
    return sum(isinstance(event, EpochEnded) for event in read_events(path))


def signal_at_epoch(count, number):
    """Return a replacement of `RunLoop._log` that sends this process a signal after so many."""
    log, left = RunLoop._log, count

    def send(loop, event):
        nonlocal left
        log(loop, event)
        if isinstance(event, EpochEnded):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    return send


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_run_which_can_be_resumed(folder, capsys, monkeypatch, number):
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "_log", signal_at_epoch(3, number))
        assert app.main(["run", "small.toml", "--out", "run"]) == 130
    out, error = capsys.readouterr()
    assert out == ""
    assert "] Stopping after this epoch. Press Ctrl-C again to stop now.\n" in error
    assert error.endswith("clnp: Stopped. Resume with `clnp resume run`.\n")
    assert num_epochs("run") == 3
    assert signal.getsignal(number) is before
    assert app.main(["resume", "run", "--quiet"]) == 0
    assert (num_epochs("run"), result_of("run")["finished"]) == (10, True)
    assert sum(isinstance(event, TaskResumed) for event in read_events("run")) == 1


def test_another_signal_at_the_exit_shows_no_traceback():
    code = (
        "import atexit, os, signal\n"
        "from clnp.cli import app\n"
        "app.main = lambda: app.STOPPED\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "app.run()"
    )
    environment = {**os.environ, "PYTHONPATH": SRC}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_run_in_use_is_not_resumed(run, capsys):
    (run / RESULT).unlink()
    with locked(run):
        message = "run is in use by another process. Wait for it, or stop it."
        fails(capsys, 2, message, "resume", "run")


def test_a_reader_that_ends_is_no_error(folder):
    process = start("recipes", "permuted-digits")
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(60)
    process.stderr.close()


def test_another_broken_pipe_is_an_error(folder, monkeypatch):
    def broken(*arguments, **named):
        raise BrokenPipeError

    monkeypatch.setattr("clnp.studies.launch.experiment_of", broken)
    with pytest.raises(BrokenPipeError):
        app.main(["run", "small.toml", "--quiet"])


@pytest.mark.parametrize("closed", ["1", "2"])
def test_closed_streams_are_no_error(closed):
    command = f"exec {sys.executable} -m clnp recipes {closed}>&-"
    env = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_answer_that_cannot_be_printed_is_an_error():
    with open("/dev/full", "w") as full:
        process = start("recipes", stdout=full)
        _, error = process.communicate()
    assert process.returncode == 1
    assert error.startswith("clnp: The answer cannot be printed: No space left on device.")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_screen_of_a_run_on_a_terminal(folder, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert app.main(["run", "small.toml", "--out", "run"]) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert re.search(r"run: small.*task 2 of 2: .*epoch 5 of 10, 50 %", text, re.DOTALL)
    assert "learned digits 2-3" in text


@pytest.mark.parametrize("num_tasks", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_the_demo_learns_and_forgets_nothing(folder, capsys, num_tasks):
    changes = [f"stream.num_tasks={num_tasks}"]
    if num_tasks < 10:
        changes.append("learner.training.epochs=15")
    options = [f"--set={change}" for change in changes]
    assert app.main(["demo", "--quiet", "--json", "--out", "demo", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == result_of("demo")
    assert (len(result["tasks"]), result["full"]) == (num_tasks, None)
    scores = [record["test_score"] for record in result["tasks"]]
    assert result["scores"][-1] == scores
    assert all(record["unchanged"] for record in result["tasks"])
    assert sum(scores) / num_tasks > 94
    assert min(scores) > 88
    assert result["forecast"]["num_tasks"] >= 1
    first = [u["new"] for u in result["capacity"]["usages"] if u["group"] == "fc1"]
    # The first layer is reused more and grows less with every task.
    assert num_tasks < 10 or sum(first[5:]) < sum(first[:5])
    assert sum(isinstance(event, TaskEnded) for event in read_events("demo")) == num_tasks


def test_answers_cannot_control_a_terminal(folder, capsys):
    Path("a\n\x1b[31m").mkdir()
    arguments = ["run", "small.toml", "--out", "a\n\x1b[31m/run", "--set", "stream.num_tasks=1"]
    assert app.main([*arguments, *QUICK]) == 0
    out = capsys.readouterr().out
    assert "The run is in a\\n\\x1b[31m/run." in out
    assert "\x1b" not in out


def test_a_run_in_use_is_not_to_be_resumed(run, capsys):
    with locked(run):
        fails(capsys, 2, "run is in use by another process.*", "run", run / RECIPE, "--out", run)
    fails(capsys, 2, "run already contains a run.*", "run", run / RECIPE, "--out", run)


def test_a_lost_checkpoint_is_a_failure(run, capsys):
    (run / CHECKPOINT).unlink()
    fails(capsys, 1, r"run has lost its checkpoint\.safetensors.*", "verify", "run")


def test_every_signal_to_stop_is_the_same_exit_code(monkeypatch, capsys):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def interrupted():
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(app, "main", interrupted)
    try:
        with pytest.raises(SystemExit) as ended:
            app.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 130


@pytest.mark.parametrize("out", ["deployed/", "gone/deployed/"])
def test_an_export_to_a_missing_directory_says_so(run, capsys, out):
    message = f"--out {out} does not exist. Create the directory, or give a file."
    fails(capsys, 2, re.escape(message), "export", "run", "--task", "digits 0-1", "--out", out)


def test_an_export_asks_for_a_run(folder, capsys):
    for path, message in (("gone", "does not exist"), ("small.toml", "is not a directory")):
        end = f"{message}. Give the directory of a run."
        fails(capsys, 2, re.escape(f"{path} {end}"), "export", path, "--all")
