"""The command line in a process of its own, and a recipe that takes a second."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from clnp.records import Event, TaskStarted
from clnp.runs.experiment import RunLoop
from support.paths import ROOT

SRC = str(ROOT / "src")


def recipe(*, num_tasks: int = 2, epochs: int = 5) -> str:
    """A small network and tasks of two digits each."""
    return f"""\
description = "a few small tasks"

[stream]
kind = "split"
dataset = "digits"
classes_per_task = 2
num_tasks = {num_tasks}

[network]
widths = [20, 20]

[learner]
margin = 2.0

[learner.training]
epochs = {epochs}
lr = 0.01
"""


def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """A command of `clnp`; what it prints goes into pipes."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "clnp", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
        **options,
    )


def stopping_in_task(number: int) -> Callable[[RunLoop, Event], None]:
    """Return a replacement of `RunLoop._log` that stops the run when this task starts."""
    log = RunLoop._log

    def stop(loop: RunLoop, event: Event) -> None:
        log(loop, event)
        if isinstance(event, TaskStarted) and event.number == number:
            loop.stop()

    return stop


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, for two minutes at most."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
