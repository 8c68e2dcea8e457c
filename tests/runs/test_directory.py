import errno
import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from clnp.errors import ArgumentError, RunError
from clnp.plain import to_json
from clnp.records import (
    CandidateRecord,
    Environment,
    Metrics,
    PruningRecord,
    RunConfig,
    RunFailed,
    RunFinished,
    RunResult,
    RunStopped,
    TaskDescription,
    TaskRecord,
    TaskStarted,
)
from clnp.runs.directory import (
    CHECKPOINT,
    CONFIG,
    EVENTS,
    RECIPE,
    RESULT,
    Run,
    command,
    expanded,
    has_progress,
    last_environment,
    read_config,
    read_environments,
    read_events,
    read_json,
    read_record,
    read_result,
    reading,
    resume_command,
    writing,
)
from support.progress import begin, epoch

FILES = {CONFIG: '{"format": 1, "tasks": []}', "recipe.toml": "seed = 0"}
STARTED = begin()


def one_task(name):
    return to_json(RunConfig(1, (TaskDescription(name),)))


def kinds(path):
    return [type(event) for event in read_events(path)]


def test_a_new_run_has_its_files(tmp_path):
    with Run.create(tmp_path / "deep" / "run", FILES) as run:
        assert read_config(run.path).tasks == ()
        assert (run.path / RECIPE).read_text() == "seed = 0"


def test_a_finished_run_can_be_reopened(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.reopen({CONFIG: one_task("a")})
        assert not (run.path / RESULT).exists()
        run.write(RESULT, RunResult(finished=True, num_tasks=1))
        run.reopen({RECIPE: "seed = 1", CONFIG: one_task("b")})
        assert read_result(run.path) == RunResult(finished=False, num_tasks=1)
        assert read_config(run.path).tasks == (TaskDescription("b"),)
        assert (run.path / RECIPE).read_text() == "seed = 1"


def test_a_directory_with_other_files_cannot_become_a_run(tmp_path):
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "empty", FILES).close()
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r"is not empty\. Choose another directory"):
        Run.create(tmp_path, FILES)
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    Run.create(tmp_path / "a", FILES).close()
    with pytest.raises(RunError, match=r"a already contains a run\. Resume it with `clnp resume"):
        Run.create(tmp_path / "a", FILES)
    with pytest.raises(RunError, match=r"thesis.tex is a file\. Choose a directory"):
        Run.create(tmp_path / "thesis.tex", FILES)


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(RunError, match=r"nowhere does not exist\. Give the directory of a run"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run: it has no config\.json"):
        Run.open(tmp_path)


def test_a_run_can_be_open_only_once(tmp_path):
    with (
        Run.create(tmp_path / "run", FILES),
        pytest.raises(RunError, match=r"run is in use by another process\. Wait for it"),
    ):
        Run.open(tmp_path / "run")
    Run.open(tmp_path / "run").close()


def test_events_are_logged_with_the_time(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.resume_log()
        logged = [run.log(STARTED), run.log(epoch(0, 1.0, score=math.nan))]
    one, two = read_events(tmp_path / "run")
    assert one == logged[0] == replace(STARTED, at=one.at)
    assert math.isnan(two.score)
    assert 0 <= one.at <= two.at


def test_events_after_the_checkpoint_are_removed(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.resume_log()
        run.log(STARTED)
        num_bytes = run.flush_log()
        run.log(epoch(0, 1.0))
    with (tmp_path / "run" / EVENTS).open("a") as file:
        file.write('{"event": "half wri')
    with Run.open(tmp_path / "run") as run:
        run.resume_log(num_bytes)
        run.log(RunStopped())
    assert kinds(tmp_path / "run") == [TaskStarted, RunStopped]
    assert read_events(tmp_path / "run", num_bytes) == read_events(tmp_path / "run")[:1]
    with Run.open(tmp_path / "run") as run:
        run.resume_log()
    assert kinds(tmp_path / "run") == []


def test_a_log_that_lost_events_is_not_padded(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.resume_log(1000, 1.0)
        run.log(RunStopped())
    assert (tmp_path / "run" / EVENTS).read_bytes().startswith(b'{"event": "stopped"')


def test_seconds_add_up_over_several_starts(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.resume_log(0, 1e6)
        assert 1e6 <= run.seconds < 2e6


def test_damaged_lines_of_the_log_are_left_out(tmp_path):
    assert read_events(tmp_path) == []
    stopped, finished = b'{"event": "stopped"}\n', b'{"event": "finished", "num_tasks": 1}\n'
    (tmp_path / EVENTS).write_bytes(stopped + b"\xff\xfe\n[1]\n" + finished + b'{"eve')
    assert read_events(tmp_path) == [RunStopped(), RunFinished(num_tasks=1)]
    bad = b'{}\n{"event": 5}\n{"event": "epoch"}\n' + b"[" * 100_000 + b"\n"
    (tmp_path / EVENTS).write_bytes(stopped + bad)
    assert read_events(tmp_path) == [RunStopped()]


def test_files_left_by_a_crash_are_removed(tmp_path):
    for name in (RECIPE, ".clnp-abc", ".lock"):
        (tmp_path / name).write_text("half")
    Run.create(tmp_path, FILES).close()
    assert (tmp_path / RECIPE).read_text() == "seed = 0"
    Run.open(tmp_path).close()
    assert not (tmp_path / ".clnp-abc").exists()


def test_every_start_has_an_environment(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        assert last_environment(run.path) == Environment()
        run.add_environment(Environment(torch="1"))
        run.add_environment(Environment(torch="2"))
    assert [each.torch for each in read_environments(tmp_path / "run")] == ["1", "2"]
    assert last_environment(tmp_path / "run").torch == "2"


def test_a_damaged_file_is_named(tmp_path):
    remedy = r"\. Restore a copy of it, or start a new run"
    (tmp_path / CONFIG).write_text('{"tasks": ')
    with pytest.raises(RunError, match=rf"config\.json is damaged: Expecting value.*{remedy}"):
        read_config(tmp_path)
    (tmp_path / "some.json").mkdir()
    with pytest.raises(RunError, match=r"some\.json cannot be read: Is a directory"):
        read_json(tmp_path / "some.json", dict)
    for text, kind in (("[]", "list"), ("null", "NoneType"), ('"x"', "str")):
        (tmp_path / CONFIG).write_text(text)
        with pytest.raises(
            RunError, match=rf"config\.json is damaged: it contains a {kind}{remedy}"
        ):
            read_record(tmp_path / CONFIG, RunConfig)
    (tmp_path / RESULT).write_text("[" * 100_000)
    with pytest.raises(RunError, match=r"result\.json is damaged: .*Remove it and resume the run"):
        read_result(tmp_path)


def test_files_of_another_format_are_refused(tmp_path):
    (tmp_path / CONFIG).write_text('{"format": 99}')
    message = r"has format 99, but this version of clnp reads format 1\. Use the version"
    with pytest.raises(RunError, match=message):
        read_config(tmp_path)
    message = "are damaged, or from another version of clnp: KeyError.*Use the version that wrote"
    with pytest.raises(RunError, match=message), reading(tmp_path):
        {}["gone"]
    with pytest.raises(RunError, match="mine"), reading(tmp_path):
        raise RunError("mine")


def test_a_run_has_progress_after_an_epoch(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.resume_log()
        run.log(STARTED)
        assert not has_progress(run.path)
        run.log(epoch(0, 1.0))
        assert has_progress(run.path)
    for name in (CHECKPOINT, RESULT):
        Run.create(tmp_path / name, FILES).close()
        assert not has_progress(tmp_path / name)
        (tmp_path / name / name).write_text("{}")
        assert has_progress(tmp_path / name)


def test_a_withdrawn_run_can_be_started_again(tmp_path):
    with Run.create(tmp_path, FILES) as run:
        run.add_environment(Environment(torch="1"))
        run.resume_log()
        run.log(RunFailed(task="a", reason="inf"))
        run.withdraw()
    (tmp_path / "tensorboard").mkdir()
    message = r"has no run: it failed before its first epoch\. Start it again"
    with pytest.raises(RunError, match=message):
        read_config(tmp_path)
    with Run.create(tmp_path, {CONFIG: one_task("a")}) as run:
        assert read_events(tmp_path) == []
        run.add_environment(Environment(torch="2"))
    assert read_config(tmp_path).tasks == (TaskDescription("a"),)
    assert read_environments(tmp_path) == (Environment(torch="2"),)


@pytest.mark.parametrize("name", [CHECKPOINT, RESULT])
def test_progress_without_a_config_is_not_overwritten(tmp_path, name):
    (tmp_path / EVENTS).write_text("")
    (tmp_path / name).write_text("{}")
    message = r"contains a run without its config\.json.* move the directory away"
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


def test_only_a_run_with_a_recipe_is_resumed_by_a_command(tmp_path):
    assert resume_command(tmp_path) == f"`clnp resume {tmp_path}`"
    (tmp_path / CONFIG).write_text("{}")
    assert resume_command(tmp_path) == "the Python program that started it"
    (tmp_path / RECIPE).write_text("")
    assert resume_command(tmp_path) == f"`clnp resume {tmp_path}`"


@pytest.mark.parametrize("path", [None, 3, b"runs"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ArgumentError, match=r"^the path is .*\. It must be a path, as text"):
        expanded(path)


def test_an_unknown_home_is_not_expanded():
    assert str(expanded("~nosuchuser/x")) == "~nosuchuser/x"
    with pytest.raises(RunError, match=r"^~nosuchuser/x does not exist\."):
        read_config("~nosuchuser/x")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a" * 300, "^a{30}…a{29} is too long for a path, with 300 characters. Choose"),
        ("a/" * 2500, "is too long for a path, with 5000 characters"),
        ("a\0b", r"^'a\\x00b' is not a path. Leave out"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(path, message):
    with pytest.raises(RunError, match=message):
        expanded(path)


def test_a_result_of_an_older_version_has_metrics(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        run.write(RESULT, RunResult(scores=((90.0,), (80.0, 70.0))))
        plain = json.loads((run.path / RESULT).read_text())
        del plain["metrics"]
        (run.path / RESULT).write_text(json.dumps(plain))
        assert read_result(run.path).metrics == Metrics(75.0, 10.0, -10.0)


def test_numbers_that_are_not_finite_are_read_back(tmp_path):
    task = TaskRecord(
        "nan",
        candidates=(CandidateRecord(1.0, 1.0, score=math.inf),),
        pruning=PruningRecord(thresholds={"score": -math.inf, "fc": 0.5}),
        test_score=math.inf,
    )
    result = RunResult(full="inf", scores=((math.inf,), (None, -math.inf)), tasks=(task,))
    with Run.create(tmp_path / "run", FILES) as run:
        run.write(RESULT, result)
        assert read_result(run.path) == result
        run.write(RESULT, RunResult(scores=((math.nan,),)))
        assert math.isnan(read_result(run.path).scores[0][0])
    assert read_result(tmp_path) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_an_error_with_a_remedy(tmp_path, number):
    message = rf"cannot write to {tmp_path}: {os.strerror(number)}\. Free some disk space"
    with pytest.raises(RunError, match=f"{message} and start again"), writing(tmp_path):
        raise OSError(number, os.strerror(number))
    (tmp_path / CONFIG).write_text("{}")
    with pytest.raises(RunError, match=f"{message}, and resume with the Python"), writing(tmp_path):
        raise OSError(number, os.strerror(number))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_events_on_a_full_disk(tmp_path):
    with Run.create(tmp_path / "run", FILES) as run:
        (run.path / EVENTS).symlink_to("/dev/full")
        run.resume_log()
        with pytest.raises(RunError, match=r"No space left on device\. Free some disk space"):
            run.log(RunStopped())


def test_a_read_only_directory_is_an_error(tmp_path):
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
        for path in (closed / "run", closed):
            with pytest.raises(RunError, match=r"Permission denied\. Make the directory writable"):
                Run.create(path, FILES)
    finally:
        if root:
            os.seteuid(0)
        closed.chmod(stat.S_IRWXU)
