import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from clnp.errors import STOPPED
from clnp.studies.jobs import Job, get_ready, num_threads, side_by_side


def write(path, text):
    Path(path).write_text(text)


def leave(code):
    sys.exit(code)


def meet(own, other):
    """Wait for a file that another job writes, which it can only do at the same time."""
    Path(own).touch()
    for _ in range(600):
        if Path(other).exists():
            return
        time.sleep(0.05)
    sys.exit(9)


def occupy(place):
    """Be at a place for a moment; fail if somebody is there."""
    Path(place).touch(exist_ok=False)
    time.sleep(0.2)
    Path(place).unlink()


def linger(started, stopped):
    """Wait to be told to stop."""

    def stop(number, frame):
        written = Path(f"{stopped}.written")
        written.write_text(signal.Signals(number).name)
        written.rename(stopped)  # Whoever waits for it finds all of it.
        sys.exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    Path(started).touch()
    time.sleep(60)


def wait_for(path, seconds=30.0):
    end = time.monotonic() + seconds
    while not Path(path).exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def in_a_process_of_its_own(program):
    """Python that finds what is here and what is imported here."""
    found = [Path(__file__).parents[1], *(Path(each).absolute() for each in sys.path)]
    path = os.pathsep.join(map(str, found))
    return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path})


def test_jobs_run_and_leave_their_exit_codes(tmp_path):
    jobs = [Job("a", write, (tmp_path / "a", "hello")), Job("b", leave, (3,))]
    assert side_by_side(jobs, at_most=2) == {"a": 0, "b": 3}
    assert (tmp_path / "a").read_text() == "hello"


def test_jobs_run_at_the_same_time(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    jobs = [Job("one", meet, (one, two)), Job("two", meet, (two, one))]
    assert side_by_side(jobs, at_most=2) == {"one": 0, "two": 0}


def test_no_more_jobs_run_than_wanted(tmp_path):
    jobs = [Job(name, occupy, (tmp_path / "place",)) for name in ("a", "b", "c")]
    assert side_by_side(jobs, at_most=1) == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on_and_nothing_more_is_started(tmp_path, number):
    started, stopped, never = (tmp_path / name for name in ("started", "stopped", "never"))
    jobs = [Job("one", linger, (started, stopped)), Job("two", write, (never, ""))]

    def interrupt():
        wait_for(started)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=interrupt).start()
    assert side_by_side(jobs, at_most=1) == {"one": 130}
    assert stopped.read_text() == number.name
    assert not never.exists()
    assert signal.getsignal(number) is before


def dawdle(started):
    """Be far from ready to save anything."""
    Path(started).touch()
    time.sleep(60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_has_nothing_to_save_yet_is_stopped_without_a_word(tmp_path, number, capfd):
    def interrupt():
        wait_for(tmp_path / "started")
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    assert side_by_side([Job("a", dawdle, (tmp_path / "started",))], at_most=1) == {"a": STOPPED}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_being_started_is_stopped_too(tmp_path, number, monkeypatch):
    """What it is forked from may still be importing."""
    start = BaseProcess.start

    def signalled(process):
        os.kill(os.getpid(), number)
        start(process)

    monkeypatch.setattr(BaseProcess, "start", signalled)
    jobs = [Job(name, dawdle, (tmp_path / name,)) for name in "ab"]
    began = time.monotonic()
    assert side_by_side(jobs, at_most=2) == {"a": STOPPED}
    assert time.monotonic() - began < 40


def test_jobs_stop_when_their_parent_is_killed(tmp_path):
    started, stopped = tmp_path / "started", tmp_path / "stopped"
    program = (
        "from clnp.jobs import Job, side_by_side; from studies.test_jobs import linger\n"
        f"side_by_side([Job('a', linger, ({str(started)!r}, {str(stopped)!r}))], at_most=1)"
    )
    parent = in_a_process_of_its_own(program)
    wait_for(started)
    parent.kill()
    parent.wait()
    wait_for(stopped)
    assert stopped.read_text() == "SIGTERM"


def test_threads_are_shared_out():
    assert num_threads(10**6) == 1
    assert num_threads(1) >= num_threads(2) >= 1
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # As OMP_NUM_THREADS=1 does.
    try:
        assert num_threads(1) == 1
    finally:
        torch.set_num_threads(before)


def imported(path):
    """Tell whether the process began with torch imported, and what its environment is."""
    ready = "torch._dynamo" in sys.modules
    Path(path).write_text(f"{ready} {os.environ.get('MOOD')} {os.environ.get('OTHER')}")


def check_beginnings(folder):
    """Two jobs of a process that has begun no other ones, in different environments."""
    get_ready()
    os.environ["MOOD"] = "good"
    assert side_by_side([Job("a", imported, (folder / "a",))], at_most=1) == {"a": 0}
    assert (folder / "a").read_text() == "True good None"
    os.environ["OTHER"] = "worse"
    del os.environ["MOOD"]
    assert side_by_side([Job("b", imported, (folder / "b",))], at_most=1) == {"b": 0}
    assert (folder / "b").read_text() == "True None worse"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are spawned elsewhere")
def test_jobs_begin_with_everything_imported_and_with_the_environment_of_the_moment(tmp_path):
    program = (
        "from pathlib import Path; from studies.test_jobs import check_beginnings\n"
        f"check_beginnings(Path({str(tmp_path)!r}))"
    )
    done = in_a_process_of_its_own(program)
    assert done.wait() == 0
