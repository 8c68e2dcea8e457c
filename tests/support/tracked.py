"""A small experiment for tests of trackers, its points, and two trackers."""

import pytest
import torch

from clnp import Experiment, FineTuning, LearnerConfig, Task, Training
from clnp.data.models import MLP
from clnp.records import Event
from clnp.runs.directory import read_events, read_result
from clnp.trackers.curves import Curves
from support.runs import Crash, crash_at

NAMES = ("a", "cats & <dogs>/é")
LABELS = ("task 01 a", "task 02 cats _ _dogs__é")


def task(name, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 6, generator=generator)
    y = (x @ torch.randn(6, 3, generator=generator)).argmax(1)
    return Task(name, (x[:140], y[:140]), test=(x[140:], y[140:]))


def experiment(*names):
    """Two tasks by default: two candidates of four epochs, two rounds of two epochs."""
    torch.manual_seed(0)
    tasks = [task(name, seed=number) for number, name in enumerate(names or NAMES)]
    config = LearnerConfig(
        margin=3.0,
        training=Training(epochs=4, lr=0.02, batch_size=32),
        alphas=(1e-3, 5e-3),
        fine_tuning=FineTuning(epochs=2, lr=1e-3, rounds=2),
    )
    return Experiment(MLP(6, (20, 20), 3), torch.zeros(2, 6), tasks, config)


def break_off_tracked(path, count, tracker, *, checkpoint_seconds=0):
    """Run the experiment with a tracker until it crashes at the `count`-th event."""
    crash = crash_at(Event, count)
    with pytest.raises(Crash):
        experiment().run(
            path, checkpoint_seconds=checkpoint_seconds, on_event=crash, trackers=[tracker]
        )


def points_of(path):
    """Return the points of all events of a finished run, and of its result."""
    curves = Curves()
    points = [point for event in read_events(path) for point in curves.read(event)[0]]
    return [*points, *curves.finish(read_result(path))]


class Notebook:
    """A tracker that keeps all events since it last began."""

    def __init__(self):
        self.begun, self.events, self.ended = [], [], []

    def begin(self, run):
        self.begun.append(run)
        self.events, self.ended = [], []

    def event(self, event):
        self.events.append(event)

    def end(self, result, error):
        self.ended.append((result, error))


class Faulty(Notebook):
    """A tracker that fails at a moment: when it `begin`s, after some events, or at the `end`."""

    def __init__(self, moment):
        super().__init__()
        self.moment, self.num_calls = moment, 0

    def begin(self, run):
        super().begin(run)
        if self.moment == "begin":
            raise ConnectionError("no route to host\nand a page of details")

    def event(self, event):
        super().event(event)
        self.num_calls += 1
        if self.num_calls == self.moment:
            raise ConnectionError("server gone")

    def end(self, result, error):
        super().end(result, error)
        if self.moment == "end":
            raise ConnectionError
