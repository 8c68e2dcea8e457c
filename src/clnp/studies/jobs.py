"""Python programs that run at the same time, each in a separate process and session.

A terminal signals all processes of a session at once. A job has another session, so only its parent
gets the signal, and passes it on. The standard input of a job is a pipe that nothing is written to.
It closes when the parent ends, however that happens, and then the job stops.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from clnp.errors import STOPPED

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
COMMAND = "CLNP_COMMAND"
"""The environment variable of a job with the command line of its parent, which a run records."""
POLL_SECONDS = 0.05


def run_jobs(jobs: Mapping[str, Sequence[str]], *, at_most: int) -> dict[str, int]:
    """Run jobs at the same time, and return their exit codes by name.

    `jobs` has the arguments of Python by the name of the job: `["-m", "clnp", "resume", ...]`.

    A signal to stop is passed on to the jobs that are running, and starts no other one. The code
    of a job that it ended is `STOPPED`; a job that it kept from starting has none.
    """
    waiting, codes = list(jobs.items()), dict[str, int]()
    running: dict[str, subprocess.Popen[bytes]] = {}
    threads, num_signals, num_passed_on = num_threads(at_most), 0, 0

    def stop() -> None:
        # A handler runs anywhere in the loop below, also inside `Popen`. It only takes note.
        nonlocal num_signals
        num_signals += 1

    try:
        with on_stop(stop):
            while running or (waiting and not num_signals):
                while waiting and len(running) < at_most and not num_signals:
                    name, arguments = waiting.pop(0)
                    running[name] = _start(arguments, threads)
                if num_passed_on < num_signals:
                    num_passed_on = num_signals
                    for process in running.values():
                        process.terminate()
                for name, process in list(running.items()):
                    if (code := process.poll()) is not None:
                        codes[name] = STOPPED if num_signals and code == -signal.SIGTERM else code
                        _close(running.pop(name))
                time.sleep(POLL_SECONDS if running else 0)
    finally:
        for process in running.values():
            _close(process)
        for process in running.values():
            process.wait()
    return codes


def _start(arguments: Sequence[str], threads: int) -> subprocess.Popen[bytes]:
    # Without -P, Python looks for modules in the working directory first.
    safe = [] if os.getcwd() in map(os.path.abspath, sys.path) else ["-P"]
    # As torch.set_num_threads does.
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    limits["MKL_DYNAMIC"] = "FALSE"
    variables = {**os.environ, **limits, COMMAND: json.dumps(sys.argv)}
    return subprocess.Popen(
        [sys.executable, *safe, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=variables,
        start_new_session=True,
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of a job, which stops it if it is running."""
    assert process.stdin is not None
    process.stdin.close()


def stop_with_parent() -> None:
    """Make this process a job: it stops quietly when it gets a signal, or when its parent ends."""
    sys.argv = json.loads(os.environ[COMMAND]) if COMMAND in os.environ else sys.argv
    for number in _signals():
        signal.signal(number, _leave)  # Until there is something to save first.
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(STOPPED)


def _wait_for_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def on_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function when this process gets a signal to stop."""
    before = {number: signal.getsignal(number) for number in _signals()}
    for number in before:
        signal.signal(number, lambda number, frame: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    """Return the signals to stop. Signals that are ignored stay so: nohup ignores SIGHUP."""
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) != signal.SIG_IGN]


def interrupt_at_once() -> None:
    """Raise a `KeyboardInterrupt` at the next signal to stop."""
    for number in _signals():
        signal.signal(number, signal.default_int_handler)


def end_at_once() -> None:
    """End without a word at the next signal to stop: nothing is left to do."""
    for number in _signals():
        signal.signal(number, signal.SIG_DFL)


def num_threads(num_jobs: int) -> int:
    """Return the number of threads of each of several jobs, at most that of this process."""
    import torch  # Importing it takes seconds, and a job imports this module first.

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // num_jobs))
