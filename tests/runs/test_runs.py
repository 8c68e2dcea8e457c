import errno
import json
import math
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clnp.errors import RunError
from clnp.runs.directory import (
    CHECKPOINT,
    CONFIG,
    EVENTS,
    RECIPE,
    RESULT,
    Run,
    again,
    command,
    expanded,
    has_learnt,
    read_config,
    read_events,
    read_json,
    read_result,
    reading,
    to_json,
    writing,
)

FILES = {CONFIG: '{"format": 1, "tasks": []}', "recipe.toml": "seed = 0"}
HOLD = """
import sys
from clnp.runs import Run
run = Run.open(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_new_run_holds_its_files(tmp_path):
    with Run.create(tmp_path / "deep" / "run", FILES) as run:
        assert read_config(run.path)["tasks"] == []
        assert (run.path / "recipe.toml").read_text() == "seed = 0"


def test_a_finished_run_can_be_described_anew(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.reopen({CONFIG: '{"format": 1, "tasks": [1]}'})
        assert not (run.path / RESULT).exists()
        run.write(RESULT, {"finished": True, "tasks": [1]})
        run.reopen({"recipe.toml": "seed = 1", CONFIG: '{"format": 1, "tasks": [2]}'})
        assert read_json(run.path, RESULT, {}) == {"finished": False, "tasks": [1]}
        assert read_config(run.path)["tasks"] == [2]
        assert (run.path / "recipe.toml").read_text() == "seed = 1"


def test_an_empty_directory_can_become_a_run(tmp_path):
    Run.create(tmp_path, FILES).close()
    assert read_config(tmp_path)["tasks"] == []


def test_a_directory_that_holds_something_cannot_become_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="is not empty; give the run a directory of its own"):
        Run.create(tmp_path, FILES)
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    Run.create(tmp_path / "a", FILES).close()
    with pytest.raises(RunError, match=r"a holds a run; clnp resume .* goes on"):
        Run.create(tmp_path / "a", FILES)
    with pytest.raises(RunError, match=r"thesis.tex is a file; give the run a directory"):
        Run.create(tmp_path / "thesis.tex", FILES)


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match=r"there is no run at .*nowhere; name the directory of"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run: it has no config\.json"):
        Run.open(tmp_path)


def test_only_one_process_is_at_work_on_a_run(tmp_path):
    Run.create(tmp_path / "run", FILES).close()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=r"another process is at work on .*run; wait for it"):
        Run.open(tmp_path / "run")
    other.kill()
    other.wait()
    other.stdin.close()
    other.stdout.close()
    Run.open(tmp_path / "run").close()


def test_events_are_appended_with_the_time(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.go_on_from(None)
        run.log({"event": "one", "score": 1.5})
        run.log({"event": "two", "score": float("nan")})
    one, two = read_events(tmp_path / "run")
    assert (one["event"], one["score"]) == ("one", 1.5)
    assert two["score"] == "nan"
    assert 0 <= one["at"] <= two["at"]


def test_events_after_the_checkpoint_are_cut_off(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.go_on_from(None)
        run.log({"event": "kept"})
        state = run.state()
        run.log({"event": "lost"})
    with (tmp_path / "run" / EVENTS).open("a") as file:
        file.write('{"event": "half wri')
    with Run.open(tmp_path / "run") as run:
        run.go_on_from(state)
        run.log({"event": "again"})
    assert [event["event"] for event in read_events(tmp_path / "run")] == ["kept", "again"]
    with Run.open(tmp_path / "run") as run:
        run.go_on_from(None)
    assert read_events(tmp_path / "run") == []


def test_events_that_went_missing_are_not_made_up(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.go_on_from({"num_event_bytes": 1000, "seconds": 1.0})
        run.log({"event": "one"})
    assert (tmp_path / "run" / EVENTS).read_bytes().startswith(b'{"event": "one"')


def test_time_adds_up_over_several_starts(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.go_on_from({"num_event_bytes": 0, "seconds": 100.0})
        time.sleep(0.01)
        assert 100.0 < run.seconds < 130.0
        assert run.state()["seconds"] > 100.0


def test_damaged_lines_of_events_are_left_out(tmp_path):
    assert read_events(tmp_path) == []
    (tmp_path / EVENTS).write_bytes(b'{"event": "a"}\n\xff\xfe\n[1]\n{"event": "b"}\n{"eve')
    assert [event["event"] for event in read_events(tmp_path)] == ["a", "b"]
    (tmp_path / EVENTS).write_bytes(b'{"event": "a"}\n{}\n{"event": 5}\n' + b"[" * 100_000 + b"\n")
    assert [event["event"] for event in read_events(tmp_path)] == ["a"]


def test_files_left_over_by_a_crash_are_removed(tmp_path):
    Run.create(tmp_path / "run", FILES).close()
    (tmp_path / "run" / ".clnp-abc").write_text("half")
    Run.open(tmp_path / "run").close()
    assert not (tmp_path / "run" / ".clnp-abc").exists()


def test_environments_are_collected(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.add_environment({"torch": "1"})
        run.add_environment({"torch": "2"})
    assert read_json(tmp_path / "run", "environment.json", []) == [{"torch": "1"}, {"torch": "2"}]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / CONFIG).write_text('{"tasks": ')
    remedy = "; put a copy of it back, or begin a new run"
    with pytest.raises(RunError, match=rf"config\.json is damaged: Expecting value.*{remedy}"):
        read_config(tmp_path)
    (tmp_path / "result.json").mkdir()
    with pytest.raises(RunError, match=r"result\.json cannot be read: Is a directory"):
        read_json(tmp_path, "result.json", {})
    for text, kind in (("[]", "list"), ("null", "NoneType"), ('"x"', "str")):
        (tmp_path / "some.json").write_text(text)
        with pytest.raises(RunError, match=rf"some\.json is damaged: it holds a {kind}{remedy}"):
            read_json(tmp_path, "some.json", {})
    (tmp_path / "some.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match=r"some\.json is damaged"):
        read_json(tmp_path, "some.json", {})


def test_files_of_another_form_are_refused(tmp_path):
    (tmp_path / CONFIG).write_text('{"format": 99}')
    with pytest.raises(RunError, match="has format 99, this clnp reads 1; use the clnp that wrote"):
        read_config(tmp_path)
    message = "are damaged, or of another version of clnp: KeyError.*; use the clnp that wrote them"
    with pytest.raises(RunError, match=message), reading(tmp_path):
        {}["gone"]
    with pytest.raises(RunError, match="mine"), reading(tmp_path):
        raise RunError("mine")


def test_what_a_killed_start_left_does_not_hinder_another(tmp_path):
    (tmp_path / "recipe.toml").write_text("half")
    (tmp_path / ".clnp-abc").write_text("half")
    (tmp_path / ".lock").write_text("")
    Run.create(tmp_path, FILES).close()
    assert (tmp_path / "recipe.toml").read_text() == "seed = 0"


def test_a_run_has_learnt_something_after_an_epoch(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.go_on_from(None)
        run.log({"event": "begin"})
        assert not has_learnt(run.path)
        run.log({"event": "epoch"})
        assert has_learnt(run.path)
    for name in (CHECKPOINT, RESULT):
        Run.create(tmp_path / name, FILES).close()
        assert not has_learnt(tmp_path / name)
        (tmp_path / name / name).write_text("{}")
        assert has_learnt(tmp_path / name)


def test_a_run_that_was_withdrawn_can_be_begun_anew(tmp_path):
    with Run.create(tmp_path, FILES) as run:
        run.add_environment({"torch": "1"})
        run.go_on_from(None)
        run.log({"event": "run"})
        run.withdraw()
    (tmp_path / "tensorboard").mkdir()
    message = "is no run any more: it failed before it had learnt anything; begin it again"
    with pytest.raises(RunError, match=message):
        read_config(tmp_path)
    with Run.create(tmp_path, {CONFIG: '{"format": 1, "tasks": [1]}'}) as run:
        run.add_environment({"torch": "2"})
        run.go_on_from(None)
    assert read_config(tmp_path)["tasks"] == [1]
    assert read_json(tmp_path, "environment.json", []) == [{"torch": "2"}]
    assert read_events(tmp_path) == []


@pytest.mark.parametrize("name", [CHECKPOINT, RESULT])
def test_what_a_run_without_a_config_has_learnt_is_not_written_over(tmp_path, name):
    (tmp_path / EVENTS).write_text("")
    (tmp_path / name).write_text("{}")
    message = r"holds a run whose config\.json is missing; .* move the directory away, and"
    with pytest.raises(RunError, match=message):
        Run.create(tmp_path, FILES)
    with pytest.raises(RunError, match=r"is not a run: it has no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("runs/a", "clnp resume runs/a"),
        ("it's; a dir", """clnp resume 'it'"'"'s; a dir'"""),
        ("-x", "clnp resume ./-x"),
    ],
)
def test_commands_are_safe_in_a_shell(path, text):
    assert command("resume", path) == text


def test_a_home_that_is_not_there_is_left_as_it_is():
    assert str(expanded("~nosuchuser/x")) == "~nosuchuser/x"
    with pytest.raises(RunError, match="there is no run at ~nosuchuser/x"):
        read_config("~nosuchuser/x")
    with pytest.raises(RunError, match="there is no run at aaa"):
        read_config("a" * 300)


def test_scores_that_are_not_finite_are_numbers_again_when_a_result_is_read(tmp_path):
    record = {"task": "nan", "test_score": math.inf, "thresholds": {"score": -math.inf, "fc": 0.5}}
    result = {"full": "inf", "scores": [[math.inf], [None, -math.inf]], "tasks": [record]}
    with Run.create(tmp_path / "run", FILES) as run:
        run.write(RESULT, result)
    found = read_result(tmp_path / "run")
    assert found == result
    with Run.open(tmp_path / "run") as run:
        run.write(RESULT, {"scores": [[math.nan]]})
    assert math.isnan(read_result(tmp_path / "run")["scores"][0][0])
    assert read_result(tmp_path) == {}


def test_json_holds_finite_numbers_only():
    value = {"a": [1.0, float("inf")], 2: (float("-inf"), None, "x")}
    assert json.loads(to_json(value)) == {"a": [1.0, "inf"], "2": ["-inf", None, "x"]}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_with_what_to_do(tmp_path, number):
    message = f"cannot write to {tmp_path}: {os.strerror(number)}; free some space"
    with pytest.raises(RunError, match=f"{message}, and begin again"), writing(tmp_path):
        raise OSError(number, os.strerror(number))
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(RunError, match=f"{message}; the Python program"), writing(tmp_path):
        raise OSError(number, os.strerror(number))


def test_what_goes_on_with_a_run(tmp_path):
    """A program that is not ours cannot be named."""
    assert again(tmp_path) == f"clnp resume {tmp_path}"
    (tmp_path / CONFIG).write_text("{}")
    assert again(tmp_path) == "the Python program that began it"
    (tmp_path / RECIPE).write_text("")
    assert again(tmp_path) == f"clnp resume {tmp_path}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_events_on_a_full_disk(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        (run.path / EVENTS).symlink_to("/dev/full")
        run.go_on_from(None)
        with pytest.raises(RunError, match="No space left on device; free some space; "):
            run.log({"event": "one"})


def test_a_read_only_directory_is_told(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # Nothing is read-only to root.
    try:
        with pytest.raises(RunError, match="Permission denied; give the run another directory"):
            Run.create(closed / "run", FILES)
        with pytest.raises(RunError, match="Permission denied; give the run another directory"):
            Run.create(closed, FILES)
    finally:
        if root:
            os.seteuid(0)
        closed.chmod(stat.S_IRWXU)


def test_a_run_that_is_begun_anew_has_no_event_of_the_one_before(tmp_path):
    with Run.create(tmp_path, FILES) as run:
        run.go_on_from(None)
        run.log({"event": "failed", "reason": "inf"})
        run.withdraw()
    with Run.create(tmp_path, FILES):
        assert read_events(tmp_path) == []
