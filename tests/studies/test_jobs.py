import io
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from clnp.errors import STOPPED
from clnp.studies import jobs
from clnp.studies.jobs import num_threads, run_jobs
from support.terminal import SRC, wait_for

LINGER = """
import pathlib, sys, time
from clnp.studies.jobs import stop_with_parent
stop_with_parent()
pathlib.Path("started").touch()
try:
    time.sleep(100)
except SystemExit:
    pathlib.Path("stopped").touch()
    raise
"""
"""Waits to be stopped."""
MEET = """
import pathlib, sys, time
own, other = map(pathlib.Path, sys.argv[1:])
own.touch()
end = time.monotonic() + 60
while not other.exists():
    assert time.monotonic() < end
    time.sleep(0.01)
"""
"""Waits for a file that another job writes, which needs both to run at the same time."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", SRC)
    return tmp_path


def test_jobs_return_their_exit_codes(capfd):
    programs = {"a": "print('hello')", "b": "exit(3)", "c": "import os; os.abort()"}
    ended = {name: ["-c", program] for name, program in programs.items()}
    assert run_jobs(ended, at_most=2) == {"a": 0, "b": 3, "c": -signal.SIGABRT}
    assert capfd.readouterr().out == ""


def test_jobs_run_at_the_same_time():
    both = {"one": ["-c", MEET, "one", "two"], "two": ["-c", MEET, "two", "one"]}
    assert run_jobs(both, at_most=2) == {"one": 0, "two": 0}


def test_at_most_so_many_jobs_run():
    program = "import os, time; os.mkdir('x'); time.sleep(0.1); os.rmdir('x')"
    assert set(run_jobs({key: ["-c", program] for key in "abc"}, at_most=1).values()) == {0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_jobs_and_starts_no_other(folder, number, capfd):
    def interrupt():
        wait_for((folder / "started").exists)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=interrupt).start()
    both = {"a": ["-c", LINGER], "b": ["-c", "open('never', 'w')"]}
    found = run_jobs(both, at_most=1)
    assert found == {"a": STOPPED}
    assert (folder / "stopped").exists()
    assert not (folder / "never").exists()
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == ""


def test_a_signal_while_a_job_is_started_stops_it(monkeypatch):
    started = jobs._start

    def signalled(*arguments):
        process = started(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(jobs, "_start", signalled)
    # It has no handler for signals yet.
    both = {key: ["-c", "import time; time.sleep(100)"] for key in "ab"}
    assert run_jobs(both, at_most=2) == {"a": STOPPED}


def test_jobs_stop_when_their_parent_is_killed(folder):
    program = (
        "import sys\n"
        "from clnp.studies.jobs import run_jobs\n"
        "run_jobs({'a': ['-c', sys.argv[1]]}, at_most=1)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, LINGER])
    wait_for((folder / "started").exists)
    parent.kill()
    parent.wait()
    wait_for((folder / "stopped").exists)


def test_jobs_stop_when_their_parent_has_an_error(folder, monkeypatch):
    def sleep(seconds):
        if (folder / "started").exists():
            raise KeyError

    monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(KeyError):
        run_jobs({"a": ["-c", LINGER]}, at_most=1)
    assert (folder / "stopped").exists()


def test_a_job_has_a_session_and_its_share_of_threads(folder, monkeypatch):
    program = (
        "import os\n"
        "assert os.getsid(0) == os.getpid()\n"
        "assert os.environ['OMP_NUM_THREADS'] == os.environ['MKL_NUM_THREADS'] == '3'\n"
    )
    monkeypatch.setattr(jobs, "num_threads", lambda at_most: 3)
    assert run_jobs({"a": ["-c", program]}, at_most=1) == {"a": 0}


def test_modules_in_the_working_directory_are_not_imported(folder):
    (folder / "json.py").write_text("raise SystemExit(1)")
    (folder / "this.py").write_text("raise SystemExit(1)")
    assert run_jobs({"a": ["-m", "this"], "b": ["-c", "import json"]}, at_most=2) == {
        "a": 0,
        "b": 0,
    }


def test_threads_are_shared_out():
    assert num_threads(10**6) == 1
    assert num_threads(1) >= num_threads(2) >= 1
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # As OMP_NUM_THREADS=1 does.
    try:
        assert num_threads(1) == 1
    finally:
        torch.set_num_threads(before)


def test_a_signal_never_interrupts_the_handling_of_a_process(monkeypatch):
    """While `Popen.poll` waits for a process that has ended, nothing may be sent to that."""
    poll, terminate, inside = subprocess.Popen.poll, subprocess.Popen.terminate, []

    def interrupted(process):
        inside.append(process)
        os.kill(os.getpid(), signal.SIGTERM)
        code = poll(process)
        inside.clear()
        return code

    def checked(process):
        if inside:
            raise ProcessLookupError
        terminate(process)

    monkeypatch.setattr(subprocess.Popen, "poll", interrupted)
    monkeypatch.setattr(subprocess.Popen, "terminate", checked)
    assert run_jobs({"a": ["-c", LINGER], "b": ["-c", "exit(3)"]}, at_most=1) == {"a": STOPPED}


def test_every_signal_is_passed_on_once(monkeypatch):
    class Job:
        """A job that ends when it has been told twice."""

        stdin = io.BytesIO()
        told = 0

        def terminate(self):
            self.told += 1

        def poll(self):
            return STOPPED if self.told == 2 else None

        def wait(self):
            pass

    job, rounds = Job(), []

    def sleep(seconds):
        rounds.append(job.told)
        if len(rounds) in (2, 5):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(jobs, "_start", lambda *_: job)
    monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=sleep))
    assert run_jobs({"a": []}, at_most=1) == {"a": STOPPED}
    assert rounds == [0, 0, 1, 1, 1, 2]
