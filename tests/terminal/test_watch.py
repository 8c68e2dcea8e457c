import fcntl
import io
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from clnp.cli import app
from clnp.errors import RunError
from clnp.plain import to_json
from clnp.records import FORMAT, TaskResumed
from clnp.runs.directory import STATUS, may_become_a_run, read_record
from clnp.runs.status import Status
from clnp.terminal import watch as watch_module
from clnp.terminal.tables import Screen
from clnp.terminal.watch import (
    PATIENCE,
    RESUMING,
    SILENCE,
    Log,
    Scene,
    WatchedRun,
    Watcher,
    closing,
    follow,
    frame,
    line,
    unfinished,
)
from support.progress import (
    END,
    FAILURE,
    STOP,
    begin,
    ended,
    epoch,
    evaluated,
    make,
    pruned,
    subset,
)
from support.terminal import SRC, start, wait_for

ANSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
DEAD = 2**22 + 1
"""A process that no machine has."""


class Clock:
    """Seconds that pass only when a test says so."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def look(path, clock=None):
    return Watcher(Path(path), clock or Clock()).look()


def series(path, num_seeds=3):
    path.mkdir()
    known = {"format": FORMAT, "recipe": "mine", "seeds": list(range(num_seeds))}
    (path / "series.json").write_text(json.dumps(known))
    return path


def kill(path):
    """Change the status of a run to that of a process that has ended."""
    status = replace(read_record(path / STATUS, Status), process=DEAD)
    (path / STATUS).write_text(to_json(status))


def shown(scene, **options):
    screen = Screen(**options)
    return screen.text(frame(scene, screen)).splitlines()


def test_a_run_that_does_not_exist_yet(tmp_path, clock):
    watcher = Watcher(tmp_path / "a" / "run", clock)
    scene = watcher.look()
    assert (scene.kind, scene.state) == (None, "waiting")
    assert line(scene).endswith("a/run: there is no run yet")
    make(tmp_path / "a" / "run")
    scene = watcher.look()
    assert (scene.kind, scene.state, line(scene)) == ("run", "running", "starting")


def test_a_run_continues(tmp_path, clock):
    writer, watcher = make(tmp_path, begin()), Watcher(tmp_path, clock)
    assert watcher.look().runs[0].status.open.task == "task 1"
    writer.update(ended())
    assert len(watcher.look().runs[0].status.learned) == 1
    writer.update(END)
    assert watcher.look().state == "finished"


def test_silence_is_by_the_clock_of_the_reader(tmp_path, clock, monkeypatch):
    writer, watcher = make(tmp_path, begin()), Watcher(tmp_path, clock)
    later = time.time() + 500
    monkeypatch.setattr(time, "time", lambda: later)
    assert watcher.look().silent == pytest.approx(500, abs=5)
    clock.now += 20
    assert watcher.look().silent == pytest.approx(520, abs=5)
    # From now on, the clock of the machine of the run does not matter.
    monkeypatch.setattr(time, "time", lambda: 7.0)
    writer.update(pruned())
    assert watcher.look().silent == 0.0
    clock.now += 7
    assert watcher.look().silent == 7.0


def test_an_epoch_under_way_has_taken_some_of_the_time(tmp_path, clock):
    make(tmp_path, begin(), epoch(0, 20.0, seconds=20.0))
    watcher = Watcher(tmp_path, clock)
    assert watcher.look().runs[0].left == ", about 20 min left"
    clock.now += 19.0
    assert watcher.look().runs[0].left == ", about 19 min left"
    # But no more than an epoch: it may have been stopped.
    clock.now += 40.0
    assert watcher.look().runs[0].left == ", about 19 min left"
    clock.now += 1.0
    assert watcher.look().runs[0].left == ", no news for 60 s"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (STATUS, "{", "status.json is damaged"),
        ("config.json", "{", "config.json is damaged"),
        ("config.json", '{"format": 99}', "has format 99"),
        ("series.json", "{", "series.json is damaged"),
        ("series.json", "{}", "is damaged: it has no seeds"),
        ("compare.json", "[]", "compare.json is damaged"),
        ("compare.json", '{"seeds": [4]}', "is damaged: it has no methods"),
    ],
)
def test_a_file_that_stays_damaged_is_named(tmp_path, clock, file, text, message):
    (tmp_path / file).write_text(text)
    states = []

    def sleep(seconds):
        clock.now += PATIENCE / 2

    watcher = Watcher(tmp_path, clock)
    with pytest.raises(RunError, match=message):
        follow(watcher, lambda scene: states.append(scene.state), seconds=1.0, sleep=sleep)
    assert states == ["waiting", "waiting"]


def test_a_file_that_is_damaged_or_lost_for_a_while_is_no_error(tmp_path, clock):
    path = tmp_path / "run"
    make(path, begin())
    good, seen = (path / STATUS).read_bytes(), []
    steps = iter(
        [
            lambda: (path / STATUS).write_text("{"),
            lambda: (path / STATUS).write_bytes(good),
            lambda: shutil.rmtree(path),
            lambda: make(path, begin(), END),
        ]
    )

    def sleep(seconds):
        clock.now += PATIENCE - 1
        next(steps)()

    follow(Watcher(path, clock), lambda s: seen.append(s.state), seconds=1.0, sleep=sleep)
    assert seen == ["running"] * 4 + ["finished"]


def test_the_states_of_a_series(tmp_path, clock):
    path = series(tmp_path / "series")
    watcher = Watcher(path, clock)
    scene = watcher.look()
    assert (scene.kind, scene.state) == ("series", "waiting")
    assert [run.label for run in scene.runs] == ["seed 0", "seed 1", "seed 2"]
    assert unfinished(scene) == ["No run has started.", f"Resume with `clnp resume {path}`."]
    make(path / "seed0", begin(), END)
    second = make(path / "seed1", begin(), epoch(0, 2.0))
    scene = watcher.look()
    assert [run.state for run in scene.runs] == ["finished", "running", "waiting"]
    assert scene.state == "running"
    assert line(scene).startswith("1 of 3 runs finished; seed 1: task 1 of 3, task 1: candidate 1")
    second.update(STOP)
    assert watcher.look().state == "stopped"
    assert closing(watcher.look()).endswith(f"\nResume with `clnp resume {path}`.")
    second.update(END)
    make(path / "seed2", begin(), END)
    assert watcher.look().state == "finished"
    assert unfinished(watcher.look()) == []


def test_a_series_with_a_failed_run(tmp_path, clock):
    path = series(tmp_path / "series")
    watcher = Watcher(path, clock)
    make(path / "seed0", begin(), FAILURE)
    second = make(path / "seed1", begin())
    watcher.look()
    # The other runs may still be working.
    clock.now += SILENCE / 2
    assert watcher.look().state == "running"
    second.update(pruned())
    clock.now += SILENCE / 2
    assert watcher.look().state == "running"
    clock.now += SILENCE
    scene = watcher.look()
    assert scene.state == "failed"
    assert closing(scene).splitlines() == [
        f"0 of 3 runs finished. `clnp inspect {path}` shows all.",
        "seed 0: failed after 0 of 3 tasks: every candidate diverged",
        "seed 1: task 1 of 3, task 1: candidate 2 of 2, pruning; 33 % done, no news for 60 s",
        f"Resume with `clnp resume {path}`.",
    ]


def test_a_comparison_is_a_series_for_each_method(tmp_path):
    known = {"format": FORMAT, "recipe": "mine", "methods": ["clnp", "ewc"], "seeds": [0, 1]}
    (tmp_path / "compare.json").write_text(json.dumps(known))
    make(tmp_path / "clnp" / "seed1", begin(), END)
    scene = look(tmp_path)
    labels = ["clnp, seed 0", "clnp, seed 1", "ewc, seed 0", "ewc, seed 1"]
    assert (scene.kind, [run.label for run in scene.runs]) == ("comparison", labels)
    assert [run.state for run in scene.runs] == ["waiting", "finished", "waiting", "waiting"]


def test_a_scene_is_plain_data(tmp_path):
    make(tmp_path, begin(), epoch(0, 2.0, loss=math.nan))
    found = look(tmp_path).to_plain()
    assert (found["kind"], found["state"], found["runs"][0]["label"]) == ("run", "running", "run")
    assert found["runs"][0]["status"]["open"]["epoch"] == 1
    assert found["runs"][0]["fraction"] == 1 / 60


def test_a_run_whose_process_has_ended(tmp_path, clock):
    make(tmp_path, begin())
    kill(tmp_path)
    scene = look(tmp_path)
    assert scene.state == "running"  # It may be resumed.
    assert line(scene) == (
        "killed after 0 of 3 tasks: its process has ended. Resume with the Python program that "
        "started it."
    )
    assert shown(scene, width=120)[1] == line(scene)


def test_a_screen_in_training(tmp_path):
    path = tmp_path / "run"
    make(path, begin(), ended(), evaluated(88.0), begin(2, 60.0), epoch(0, 62.0), epoch(1, 64.0))
    assert shown(look(path), width=100) == [
        f"{path}: mine, clnp, seed 0",
        "task 2 of 3: task 2",
        "run  ━━━━━━━━━" + " " * 18 + "epoch 22 of 60, 37 %, about 96 s left",
        "now  ━━━━━" + " " * 22 + "candidate 1 of 2, epoch 2 of 10",
        "loss          0.5  █▁",
        "validation  51.00  ▁█",
        "learned: 1 of 3, last task 1 88.00; average 88.00",
        "fc1  36 of 40 free  " + "████████" + "·" * 72,
        "fc2  18 of 20 free  " + "████████" + "·" * 72,
        "█▓▒ neurons of a task, in turn   · free",
        "Last news 0 s ago.",
    ]


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([begin()], "task 1 of 3, task 1: starting; 0 % done"),
        (
            [begin(), pruned()],
            "task 1 of 3, task 1: candidate 2 of 2, pruning; 33 % done, about 60 s left",
        ),
        (
            [begin(), epoch(0, 30.0), subset(12, candidate=1)],
            "task 1 of 3, task 1: candidate 2 of 2, pruning: 12 evaluations, 340 of 800 neurons; "
            "33 % done, about 60 s left",
        ),
        (
            [begin(), epoch(0, 30.0), subset(1, round=1)],
            "task 1 of 3, task 1: fine-tuning round 2, pruning: 1 evaluation, 340 of 800 neurons; "
            "33 % done, about 60 s left",
        ),
        (
            [begin(), epoch(0, 2.0), epoch(4, 9.0, round=1)],
            "task 1 of 3, task 1: fine-tuning round 2, epoch 1 of 10, loss 0.2, validation 54.00; "
            "33 % done, about 18 s left",
        ),
        ([begin(), ended()], "1 of 3 tasks ended"),
        ([begin(), FAILURE], "failed after 0 of 3 tasks: every candidate diverged"),
        (
            [begin(), STOP],
            "stopped after 0 of 3 tasks. Resume with the Python program that started it.",
        ),
        ([begin(), ended(), evaluated(88.0), END], "finished: 1 of 3 tasks in 60 s, average 88.00"),
    ],
)
def test_a_run_in_one_line(tmp_path, events, text):
    make(tmp_path, *events)
    assert line(look(tmp_path)) == text


def test_names_cannot_harm_a_terminal(tmp_path):
    name = "\x1b[31m[red]größer\x07"
    events = [replace(begin(), task=name), epoch(0, 2.0), replace(ended(new={name: 1}), task=name)]
    make(tmp_path, *events[:2], recipe=name)
    for unicode in (True, False):
        lines = shown(look(tmp_path), unicode=unicode)
        assert all(text.isprintable() for text in lines)
        assert any("[31m[red]gr" in text for text in lines)
    make(tmp_path, *events, replace(evaluated(1.0), sizes={name: 9}))
    assert any("[31m[red]gr" in text for text in shown(look(tmp_path))[2:])


@pytest.mark.parametrize("width", [20, 40, 79])
def test_nothing_is_wider_than_the_screen(tmp_path, width):
    name = "a task with a name that is far too long " * 3
    events = [replace(ended(number), task=f"{name}{number}") for number in range(9)]
    make(tmp_path, *events, evaluated(*[88.0] * 9), begin(), epoch(0, 2.0))
    lines = shown(look(tmp_path), width=width)
    assert all(cell_len(text) <= width for text in lines if str(tmp_path) not in text)
    assert len(lines) < 24


def test_runs_that_are_working_come_first(tmp_path):
    path = series(tmp_path / "many", 30)
    for seed in range(20):
        make(path / f"seed{seed}", begin(), END if seed < 12 else epoch(0, 2.0))
    for width in (40, 100):
        lines = shown(look(path), width=width, height=14)
        assert len(lines) == 12
        assert all(cell_len(text) <= width for text in lines)
        assert [text[:7] for text in lines[1:9]] == [f"seed {seed}" for seed in range(12, 20)]
        assert lines[-2:] == ["... 21 more", "Last news 0 s ago."]
    assert lines[1].endswith("task 1 of 3, task 1: candidate…50.00; 2 % done, about 2 min left")


def test_late_news(tmp_path, clock):
    make(tmp_path, begin())
    watcher = Watcher(tmp_path, clock)
    watcher.look()
    clock.now += 3600
    assert shown(watcher.look(), width=120)[-1] == (
        "No news for 60 min. If it was killed, resume with the Python program that started it."
    )
    # An epoch may be long.
    make(tmp_path, begin(), epoch(0, 9.0, seconds=3000.0))
    watcher.look()
    clock.now += 3600
    assert shown(watcher.look())[-1] == "Last news 60 min ago."


def test_a_log_has_a_line_for_each_change():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    log = Log(stream)
    run = WatchedRun("run", "runs/mine", Status(updated=1.0, num_tasks=3))
    later = replace(run, status=replace(run.status, updated=2.0, recipe="größer"))
    for silent in (0.0, 30.0, 59.0, 61.0, 80.0, 3700.0):
        log.show(Scene(Path("runs/mine"), "run", (replace(run, silent=silent),)))
    log.show(Scene(Path("runs/mine"), "run", (later,)))
    stream.seek(0)
    lines = [text.split(" ", 1)[1] for text in stream.read().splitlines()]
    assert [text.split(".")[0] for text in lines] == [
        "starting",
        "No news for 61 s",
        "starting",
    ]


def test_a_run_is_followed_until_it_ends(tmp_path, clock):
    path, seen, slept = tmp_path / "run", [], []
    steps = iter([lambda: make(path, begin()), lambda: make(path, begin(), ended(), END)])

    def sleep(seconds):
        slept.append(seconds)
        next(steps)()

    watcher = Watcher(path, clock)
    scene = follow(watcher, lambda s: seen.append(s.state), seconds=7.0, sleep=sleep)
    assert (slept, seen) == ([7.0] * 2, ["waiting", "running", "finished"])
    assert scene.state == "finished"


def test_once_shows_the_current_status(folder, capsys):
    writer = make(Path("run"), begin(), epoch(0, 2.0))
    assert app.main(["watch", "run", "--once"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "run: mine, clnp, seed 0",
        "task 1 of 3: task 1",
    ]
    assert app.main(["watch", "run", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["status"]["open"]["epoch"] == 1
    writer.update(FAILURE)
    assert app.main(["watch", "run", "--once"]) == 1
    assert "failed after 0 of 3 tasks: every candidate diverged" in capsys.readouterr().out
    series(Path("many"))
    assert app.main(["watch", "many", "--once"]) == 0
    assert capsys.readouterr().out.startswith("many: 0 of 3 runs finished\nseed 0  ")


@pytest.mark.parametrize(
    ("event", "code", "text"),
    [
        (END, 0, "finished: 0 of 3 tasks in 60 s. `clnp inspect run` shows all.\n"),
        (FAILURE, 1, "failed after 0 of 3 tasks: every candidate diverged\n"),
        (
            STOP,
            130,
            "stopped after 0 of 3 tasks. Resume with the Python program that started it.\n",
        ),
    ],
)
def test_the_exit_code_says_how_the_run_ended(folder, capsys, monkeypatch, event, code, text):
    monkeypatch.setattr(watch_module, "RESUMING", 0.0)
    make(Path("run"), begin(), event)
    assert app.main(["watch", "run", "--json"]) == code
    capsys.readouterr()
    assert app.main(["watch", "run"]) == code
    *waiting, last = capsys.readouterr().out.splitlines(keepends=True)
    assert last == text
    assert len(waiting) == (event is not END)


def test_a_run_that_was_stopped_before_may_be_resuming(tmp_path, clock):
    writer, stream = make(tmp_path, begin(), STOP), io.StringIO()
    steps = iter([lambda: writer.update(begin(2)), lambda: writer.update(STOP)])

    def sleep(seconds):
        clock.now += RESUMING / 2
        next(steps, lambda: None)()

    log = Log(stream)
    scene = follow(Watcher(tmp_path, clock), log.show, seconds=1.0, sleep=sleep)
    first, second = stream.getvalue().splitlines()
    assert "stopped after 0 of 3 tasks. Resume with" in first
    assert first.endswith("Waiting 30 s in case it is resuming.")
    assert "task 2 of 3" in second
    assert scene.state == "stopped"
    assert next(steps, None) is None
    # Nobody resumes it.
    began = clock.now
    assert follow(Watcher(tmp_path, clock), print, seconds=1.0, sleep=sleep).state == "stopped"
    assert clock.now - began == RESUMING


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("notes.txt", "is not a directory"),
        ("/dev/null", "is not a directory"),
        (".", "is not a run: it has no config.json"),
        ("empty/notes.txt", "does not exist"),
    ],
)
def test_what_cannot_become_a_run_is_not_waited_for(folder, capsys, path, message):
    Path("notes.txt").touch()
    Path("empty").mkdir()
    once = ["--once"] if message == "does not exist" else []
    assert app.main(["watch", path, *once]) == 2
    assert message in capsys.readouterr().err
    Path("empty", ".lock").touch()
    assert may_become_a_run(Path("empty"))
    assert may_become_a_run(Path("missing"))


@pytest.mark.parametrize(
    "values",
    [
        {"updated": 0.0},
        {"state": "dancing"},
        {"num_tasks": -1},
        {"seconds": "inf"},
        {"epochs_done": -5},
        {"sizes": {"fc1": 3}, "claimed": {"fc1": [4]}},
    ],
)
def test_a_status_with_odd_values_is_replaced_by_the_log(tmp_path, values):
    make(tmp_path, begin(), epoch(0, 2.0))
    known = json.loads((tmp_path / STATUS).read_text())
    (tmp_path / STATUS).write_text(json.dumps(known | values))
    scene = look(tmp_path)
    assert line(scene).startswith("starting")
    assert scene.silent < 60


@pytest.mark.parametrize("file", [None, "notes.txt", "series.json"])
def test_a_directory_without_a_run_is_refused(folder, capsys, file):
    if file is not None:
        Path("run").mkdir()
        Path("run", file).write_text("{}")
    assert app.main(["watch", "run", "--once"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"clnp: run.*(does not exist|is not a run|no seeds).*\n", error)


def test_a_run_that_is_killed_and_resumed_is_followed_in_a_log(folder):
    writer = make(Path("run"), begin(), epoch(0, 2.0))
    watching = start("watch", "run", "--interval", "0.05")
    assert "task 1 of 3, task 1: candidate 1 of 2, epoch 1" in watching.stdout.readline()
    kill(Path("run"))
    assert "killed after 0 of 3 tasks" in watching.stdout.readline()
    writer.update(begin(2, kind=TaskResumed))
    assert "task 2 of 3, task 2: starting" in watching.stdout.readline()
    writer.update(END)
    out, error = watching.communicate(timeout=120)
    assert (watching.returncode, error) == (0, "")
    assert out.startswith("finished: 0 of 3 tasks in 60 s. ")


def test_a_run_is_followed_on_a_terminal(folder):
    writer = make(Path("run"), begin(), epoch(0, 2.0), epoch(1, 4.0))

    def finish(process):
        writer.update(ended())
        writer.update(evaluated(88.0))
        writer.update(END)

    watched = "watch", "run", "--interval", "0.05"
    sent, code = on_terminal(*watched, width=80, until=b"Last news", then=finish)
    assert code == 0
    lines = [text for text in re.split(r"[\r\n]+", ANSI.sub(b"", sent).decode()) if text]
    assert all(len(text) <= 80 for text in lines)
    assert "task 1 of 3: task 1" in lines
    assert any(text.startswith("loss ") and "▁" in text for text in lines)
    assert any(re.match(r"run  .*\d+ %", text) for text in lines)
    assert any(re.match(r"fc1 +36 of 40 free  █", text) for text in lines)
    assert lines[-1].startswith("finished: 1 of 3 tasks in 60 s, average 88.00. ")
    # It is drawn in place, and the cursor is visible again at the end.
    assert b"\x1b[1A" in sent
    assert sent.rindex(b"\x1b[?25h") > sent.rindex(b"\x1b[?25l")


def test_a_reader_that_ends_is_no_error(folder):
    writer = make(Path("run"), begin())
    watching = start("watch", "run", "--interval", "0.05")
    watching.stdout.readline()
    watching.stdout.close()
    wait_for(lambda: writer.update(pruned()) or watching.poll() is not None)
    assert (watching.returncode, watching.stderr.read()) == (0, "")
    watching.stderr.close()


def on_terminal(*arguments, width, until, then, term="xterm", encoding="utf-8"):
    """Return what the command line sends to a terminal of that width, and its exit code.

    When it has sent `until`, `then` is called with its process.
    """
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "clnp", *arguments],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**environment, "PYTHONPATH": SRC, "TERM": term, "PYTHONIOENCODING": encoding},
    )
    os.close(other)
    sent, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        if select.select([main], [], [], 0.2)[0]:
            try:
                data = os.read(main, 65536)
            except OSError:
                break
            if not data:
                break
            sent += data
        if until is not None and until in sent:
            then(process)
            until = None
    os.close(main)
    return sent, process.wait(30)


def send(number):
    return lambda process: process.send_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_leaving_is_quiet(folder, number):
    make(Path("run"), begin(), epoch(0, 2.0))
    sent, code = on_terminal("watch", "run", width=80, until=b"Last news", then=send(number))
    assert code == 130
    assert b"Traceback" not in sent
    assert b"clnp:" not in sent
    assert sent.rindex(b"\x1b[?25h") > sent.rindex(b"\x1b[?25l")


def test_terminals_without_cursor_or_other_characters(folder):
    make(Path("run"), replace(begin(), task="größer"), epoch(0, 2.0))
    stop = {"until": b"task 1 of 3", "then": send(signal.SIGINT)}
    sent, code = on_terminal("watch", "run", width=80, term="dumb", **stop)
    assert (code, b"\x1b" in sent) == (130, False)
    sent, code = on_terminal("watch", "run", width=80, encoding="ascii", **stop)
    assert (code, sent.isascii(), b"Traceback" in sent) == (130, True, False)


def test_watching_needs_no_torch(folder):
    make(Path("run"), begin(), END)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clnp", "watch", "run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
        check=True,
    )
    assert not re.search(r"\| +(torch|numpy|matplotlib)$", done.stderr, re.MULTILINE)
