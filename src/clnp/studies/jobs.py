"""Python programs that run at the same time, each in a process and a session of its own.

A terminal signals all processes of a session at once. A job has another session, so only its parent
gets the signal, and passes it on. The standard input of a job is a pipe that nothing is written to.
It closes when the parent ends, however that happens, and then the job stops.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from clnp.errors import STOPPED

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Job:
    """A name, and the arguments of Python: `("-m", "clnp", "resume", ...)`."""

    name: str
    arguments: tuple[str, ...]


def run_jobs(jobs: Sequence[Job], *, at_most: int) -> dict[str, int]:
    """Run jobs at the same time, and return their exit codes by name.

    A signal to stop is passed on to the jobs that are running, and starts no other one. The code
    of a job that it ended is `STOPPED`; a job that it kept from starting has none.
    """
    waiting, codes = list(jobs), dict[str, int]()
    running: dict[str, subprocess.Popen[bytes]] = {}
    threads, stopped = num_threads(at_most), False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        waiting.clear()
        for process in list(running.values()):
            process.terminate()

    # Signals that are ignored stay ignored: nohup ignores SIGHUP.
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    before = {n: handler for n, handler in handlers.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        while waiting or running:
            while waiting and len(running) < at_most:
                job = waiting.pop(0)
                running[job.name] = process = _start(job, threads)
                if stopped:  # The signal came while the process was started.
                    process.terminate()
            for name, process in list(running.items()):
                if (code := process.poll()) is not None:
                    codes[name] = STOPPED if stopped and code == -signal.SIGTERM else code
                    _close(running.pop(name))
            time.sleep(POLL_SECONDS if running else 0)
    finally:
        for process in running.values():
            _close(process)
        for process in running.values():
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes


def _start(job: Job, threads: int) -> subprocess.Popen[bytes]:
    # Python looks for modules in the working directory first, unless told otherwise by -P.
    safe = [] if os.getcwd() in map(os.path.abspath, sys.path) else ["-P"]
    # As torch.set_num_threads does.
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    limits["MKL_DYNAMIC"] = "FALSE"
    return subprocess.Popen(
        [sys.executable, *safe, *job.arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **limits},
        start_new_session=True,
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of a job, which stops it if it is running."""
    assert process.stdin is not None
    process.stdin.close()


def stop_with_parent() -> None:
    """Make this process a job: it stops quietly when it gets a signal, or when its parent ends."""
    for number in stop_signals():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)  # Until there is something to save first.
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(STOPPED)


def _wait_for_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def stop_signals() -> list[signal.Signals]:
    """Return the signals to stop that this operating system has."""
    return [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]


def num_threads(num_jobs: int) -> int:
    """Return the number of threads of each of several jobs, at most that of this process."""
    import torch  # Importing it takes seconds, and a job imports this module first.

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // num_jobs))
