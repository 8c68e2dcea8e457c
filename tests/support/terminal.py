"""The command line in a process of its own, and a recipe that it is done with soon."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from clnp.training.events import Event

from clnp.runs.experiment import Course
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


def stopping_in_task(number: int) -> Callable[[Course, Event], None]:
    """To be put in the place of `Course._tell`: asks the run to stop when that task begins."""
    tell = Course._tell

    def stop(course: Course, event: Event) -> None:
        tell(course, event)
        if event["event"] == "begin" and event["number"] == number:
            course.stop()

    return stop


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, a minute at most."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")
