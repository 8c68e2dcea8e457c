import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clnp.cli import app
from clnp.runs.directory import CHECKPOINT, EVENTS, read_events
from clnp.terminal.status import Following, Scene
from clnp.terminal.watch import Log, Quiet, follow, watch
from support.terminal import SRC, recipe, start, wait_for
from terminal.test_following import END, FAILURE, Clock, make, series, tell
from terminal.test_frames import START, VIEW
from terminal.test_standing import begin, ended, epoch

RECIPE = recipe(num_tasks=3, epochs=40)
ANSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)
    (tmp_path / "long.toml").write_text(RECIPE.replace("epochs = 40", "epochs = 100000"))
    return tmp_path


def test_it_is_looked_at_until_it_ends(tmp_path):
    path, clock, seen = tmp_path / "run", Clock(), []
    steps = iter(
        [
            lambda: make(path, begin()),
            lambda: tell(path, epoch(0, 2.0)),
            lambda: tell(path, ended(), END),
        ]
    )
    following = Following(path, clock=clock)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        next(steps)()

    scene = follow(following, lambda s: seen.append(s.status), seconds=7.0, sleep=sleep)
    assert slept == [7.0] * 3
    assert seen == ["waiting", "running", "running", "finished"]
    assert scene.status == "finished"


def test_a_log_has_a_line_for_each_change():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    log = Log(stream)
    for view in (START, START, VIEW, VIEW, VIEW):
        log.show(Scene("runs/mine", "run", [view], ["run"]))
    stream.seek(0)
    lines = stream.read().splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", text)[:12] for text in lines] == [
        "starting",
        "task 3 of 10",
    ]


def test_a_log_tells_of_silence_less_and_less_often():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    log = Log(stream)
    for silent in (0, 30, 59, 61, 80, 119, 121, 200, 230, 250, 3600, 3700):
        view = replace(VIEW, silent=float(silent), task="größer", seconds_left=None)
        log.show(Scene("runs/mine", "run", [view], ["run"]))
    stream.seek(0)
    lines = [text.split(" ", 1)[1] for text in stream.read().splitlines()]
    assert [text.split(";")[0] for text in lines[1:]] == [
        "no news for 61 s",
        "no news for 2 min",
        "no news for 4 min",
        "no news for 60 min",
    ]
    assert "gr\\xf6\\xdfer" in lines[0]


def test_quiet_shows_nothing(tmp_path, capsys):
    path = make(tmp_path / "run", begin(), END)
    scene, text = watch(str(path), quiet=True)
    assert capsys.readouterr().out == ""
    assert scene.status == "finished"
    assert text.startswith("finished: 0 of 3 tasks")
    Quiet().close()


def test_once_shows_how_it_stands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(Path("run"), begin(), epoch(0, 2.0))
    assert app.main(["watch", "run", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["run: mine, clnp, seed 0", "task 1 of 3: task 1"]
    assert app.main(["watch", "run", "--once", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["runs"][0]["epoch"]) == ("running", 1)
    tell(Path("run"), FAILURE)
    assert app.main(["watch", "run", "--once"]) == 1
    assert "failed after 0 of 3 tasks: every candidate diverged" in capsys.readouterr().out
    assert app.main(["watch", "run", "--once", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["reason"] == "every candidate diverged"
    series(Path("many"))
    assert app.main(["watch", "many", "--once"]) == 0
    assert capsys.readouterr().out.startswith("many: 0 of 3 runs finished\nseed 0  ")


def test_the_exit_code_tells_how_it_ended(tmp_path, capsys):
    good = make(tmp_path / "good", begin(), END)
    assert app.main(["watch", str(good)]) == 0
    assert capsys.readouterr().out.startswith("finished: 0 of 3 tasks; clnp inspect ")
    bad = make(tmp_path / "bad", begin(), FAILURE)
    assert app.main(["watch", str(bad)]) == 1
    out, error = capsys.readouterr()
    assert out == "failed after 0 of 3 tasks: every candidate diverged\n"
    assert error == ""
    stopped = make(tmp_path / "stopped", begin(), {"event": "stopped", "at": 1.0})
    assert app.main(["watch", str(stopped)]) == 130
    assert capsys.readouterr().out.startswith("stopped after 0 of 3 tasks; the Python program ")
    assert app.main(["watch", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "finished"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (None, None, "there is no run at run; name the directory of a run"),
        ("config.json", "{", "config.json is damaged"),
        ("series.json", "{}", "run/series.json is damaged: it has no seeds"),
        ("notes.txt", "x", "there is no run at run; name the directory of a run"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, capsys, monkeypatch, file, text, message):
    monkeypatch.chdir(tmp_path)
    if file is not None:
        Path("run").mkdir()
        Path("run", file).write_text(text)
    assert app.main(["watch", "run", "--once"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert re.search(message, error)


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon"])
def test_an_interval_that_makes_no_sense_shows_the_usage(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        app.main(["watch", "run", "--interval", seconds])
    assert ended.value.code == 2


def test_a_run_in_another_process_is_followed_to_its_end(folder):
    # A task has to last for some intervals: an epoch takes a millisecond.
    (folder / "small.toml").write_text(RECIPE.replace("epochs = 40", "epochs = 600"))
    watching = start("watch", "run", "--interval", "0.05")
    running = start("run", "small.toml", "--out", "run", "--quiet")
    out, error = watching.communicate(timeout=120)
    assert (watching.returncode, error) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("waiting for run, where there is no run yet")
    assert any("task 2 of 3, digits 2-3: candidate 1 of 1, epoch " in text for text in lines)
    assert lines[-1].startswith("finished: 3 of 3 tasks, average ")
    running.communicate(timeout=60)
    assert running.returncode == 0


def test_a_run_that_is_killed_and_resumed_is_followed(folder):
    running = start("run", "long.toml", "--out", "run", "--quiet", "--checkpoint-every", "1")
    wait_for(lambda: Path("run", CHECKPOINT).exists())
    watching = start("watch", "run", "--interval", "0.05")
    following = Following("run")
    wait_for(lambda: (following.look().views[0].epoch or 0) > 30)
    running.kill()
    running.communicate()
    last = following.look().views[0].epoch
    size = Path("run", EVENTS).stat().st_size
    again = start("resume", "run", "--quiet", "--checkpoint-every", "1000")
    wait_for(lambda: any(e["event"] == "resumed" for e in read_events("run")))
    # What is younger than the checkpoint was cut off, and comes again.
    numbers = [e["number"] for e in read_events("run") if e["event"] == "epoch"]
    assert numbers == list(range(len(numbers)))
    wait_for(lambda: Path("run", EVENTS).stat().st_size > size + 2000)
    view = following.look().views[0]
    told = [e for e in read_events("run") if e["event"] == "epoch"]
    assert view.epoch > last
    assert view.losses == [e["loss"] for e in told[: view.epoch]]
    again.kill()
    again.communicate()
    assert watching.poll() is None
    watching.send_signal(signal.SIGINT)
    out, error = watching.communicate(timeout=30)
    assert (watching.returncode, error) == (130, "")
    assert "Traceback" not in out


def test_a_reader_that_has_seen_enough_ends_it(folder):
    make(folder / "run", begin())
    watching = start("watch", "run", "--interval", "0.05")
    watching.stdout.readline()
    watching.stdout.close()
    wait_for(lambda: tell(folder / "run", epoch(0, time.time())) or watching.poll() is not None)
    assert watching.returncode == 0
    assert watching.stderr.read() == ""
    watching.stderr.close()


def on_terminal(*arguments, width, until=None, term="xterm", encoding="utf-8", stop=None):
    """What the command line sends to a terminal of that width, and its exit code."""
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
        if until is not None and until(sent):
            process.send_signal(stop)
            until = None
    os.close(main)
    return sent, process.wait(30)


def rows(sent):
    """All lines that were drawn, without what moves the cursor."""
    return [line for line in re.split(r"[\r\n]+", ANSI.sub(b"", sent).decode()) if line]


@pytest.mark.parametrize("width", [80, 40])
def test_a_terminal_shows_a_run_that_goes_on(folder, width):
    running = start("run", "small.toml", "--out", "run", "--quiet")
    sent, code = on_terminal("watch", "run", "--interval", "0.05", width=width)
    running.communicate(timeout=60)
    assert code == 0
    lines = rows(sent)
    assert all(len(text) <= width for text in lines if "shows all" not in text)
    assert "task 2 of 3: digits 2-3" in lines
    assert any(text.startswith("loss ") and "▁" in text for text in lines)
    assert any(re.match(r"run  .*\d+ %", text) for text in lines)
    assert any(re.match(r"fc1 +\d+ of 20 free  █", text) for text in lines)
    assert "last heard of 0 s ago" in lines
    assert lines[-1].startswith("finished: 3 of 3 tasks, average ")
    # It is drawn in place, and the cursor is visible again in the end.
    assert b"\x1b[1A" in sent
    assert sent.rindex(b"\x1b[?25h") > sent.rindex(b"\x1b[?25l")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_leaving_is_quiet(folder, number):
    make(folder / "run", begin(), epoch(0, 2.0))
    sent, code = on_terminal(
        "watch", "run", width=80, until=lambda sent: b"last heard" in sent, stop=number
    )
    assert code == 130
    assert b"Traceback" not in sent
    assert b"clnp:" not in sent
    assert sent.rindex(b"\x1b[?25h") > sent.rindex(b"\x1b[?25l")


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(folder):
    make(folder / "run", begin(), epoch(0, 2.0))
    sent, code = on_terminal(
        "watch",
        "run",
        width=80,
        term="dumb",
        until=lambda sent: b"task 1 of 3" in sent,
        stop=signal.SIGINT,
    )
    assert code == 130
    assert b"\x1b" not in sent


def test_a_terminal_that_knows_no_blocks_gets_plain_characters(folder):
    make(folder / "run", begin(), epoch(0, 2.0), END)
    sent, code = on_terminal("watch", "run", width=80, encoding="ascii")
    assert code == 0
    assert sent.isascii()


def test_a_series_is_followed_run_by_run(folder):
    running = start("run", "small.toml", "--seeds", "2", "--out", "many", "--quiet")
    watching = start("watch", "many", "--interval", "0.05")
    out, error = watching.communicate(timeout=120)
    running.communicate(timeout=60)
    assert (watching.returncode, error) == (0, "")
    assert re.search(r"0 of 2 runs finished; seed 0 \d+ % \(task 2 of 3\)", out)
    assert re.search(r"1 of 2 runs finished; seed 1 \d+ % \(task", out)
    assert out.splitlines()[-1] == "2 of 2 runs finished; clnp inspect many shows all"


def test_watching_needs_no_torch(folder):
    make(folder / "run", begin(), epoch(0, 2.0), END)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clnp", "watch", "run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SRC},
        check=True,
    )
    assert not re.search(r"\| +(torch|rich|matplotlib)$", done.stderr, re.MULTILINE)
