"""Functions that run side by side, each in a process of its own.

On Linux such a process is forked from one that has imported what all of them need, and has done
nothing else: importing takes seconds, and forking from here would take along the locks of this
process's threads, and no GPU.
"""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from clnp.errors import STOPPED

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@dataclass(frozen=True)
class Job:
    """A function to call in a process of its own: one that can be found by its name."""

    name: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]


def side_by_side(jobs: Sequence[Job], *, at_most: int) -> dict[str, int]:
    """The exit code of every job, by its name; those that a signal kept from starting are missing.

    Signals to stop are handed on to the processes that are running, and no other one is started.
    """
    get_ready()
    context = _context()
    environment = dict(os.environ)
    waiting, codes = list(jobs), dict[str, int]()
    running: dict[str, BaseProcess] = {}
    untold: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        waiting.clear()
        for process in running.values():
            if process.pid is None:
                untold.append(number)  # It is being started, which may take seconds.
            elif process.is_alive():
                os.kill(process.pid, number)

    # What is ignored stays so: nohup ignores SIGHUP.
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    before = {n: handler for n, handler in handlers.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, hand_on)
    try:
        while waiting or running:
            while waiting and len(running) < at_most:
                job = waiting.pop(0)
                work = (job, environment)
                started = context.Process(target=_work, args=work, name=job.name)
                running[job.name] = started
                started.start()
                while untold and started.pid is not None:
                    os.kill(started.pid, untold.pop())
            wait([process.sentinel for process in running.values()])
            for name, process in list(running.items()):
                if process.exitcode is not None:
                    codes[name] = process.exitcode
                    del running[name]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes


def get_ready() -> None:
    """Begin to import what jobs need, in the background, where they can be forked from that."""
    if not isinstance(_context(), ForkServerContext):
        return
    multiprocessing.resource_tracker.ensure_running()  # It would undo what is blocked now.
    # A terminal signals all processes at once. What is blocked here stays so in the new one, which
    # ends when this one does.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context() -> SpawnContext | ForkServerContext:
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clnp.studies.preloaded"])
    return context


def stop_signals() -> list[signal.Signals]:
    """The signals to stop that there are here."""
    return [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]


def _work(job: Job, environment: dict[str, str]) -> None:
    """What the process of a job does."""
    for number in stop_signals():
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)  # Until there is something to save before.
    if isinstance(_context(), ForkServerContext):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals())
        # It has the environment of when the one that it is forked from was started.
        os.environ.clear()
        os.environ.update(environment)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # A terminal signals a whole group; here the parent hands signals on.
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    job.function(*job.arguments)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(STOPPED)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def num_threads(num_jobs: int) -> int:
    """How many threads each of so many processes can have; never more than one alone would."""
    import torch  # Not before the processes that import it side by side are on their way.

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores // num_jobs))
