"""A small experiment, and events of a run of three tasks with two candidates each."""

import torch
from torch import nn

from clnp.core.pruning.thresholds import PruningPlan
from clnp.plain import to_json
from clnp.records import (
    FORMAT,
    CandidatePruned,
    EpochEnded,
    Evaluated,
    RunConfig,
    RunFailed,
    RunFinished,
    RunStopped,
    SubsetScored,
    TaskDescription,
    TaskEnded,
    TaskStarted,
)
from clnp.runs.directory import CONFIG
from clnp.runs.experiment import Experiment
from clnp.runs.status import StatusWriter
from clnp.training.config import LearnerConfig, Training
from clnp.training.task import Task

SETTINGS = {
    "format": FORMAT,
    "tasks": tuple(TaskDescription(f"task {number}") for number in (1, 2, 3)),
    "head": "multi",
    "seed": 0,
    "recipe": "mine",
}
END = RunFinished(num_tasks=3, at=60.0)
STOP = RunStopped(at=3.0)
FAILURE = RunFailed(task="task 1", reason="every candidate diverged", at=3.0)


def begin(number=1, at=0.0, kind=TaskStarted, **others):
    values = {"num_candidates": 2, "num_epochs": 10, "epochs_of_run": 60}
    values |= {"epochs_before": 20 * (number - 1), **others}
    return kind(task=f"task {number}", number=number, num_tasks=3, at=at, **values)


def epoch(number, at, task=1, **others):
    where = {} if "round" in others else {"candidate": 0}
    loss = 1.0 / (number + 1)
    values = {"num_epochs": 10, "loss": loss, "penalised_loss": loss, "score": 50.0 + number}
    values |= {"seconds": 2.0, **where, **others}
    return EpochEnded(task=f"task {task}", number=number, at=at, **values)


def pruned(at=30.0, candidate=1):
    plan = PruningPlan("task 1", {}, {"fc1": [0, 4, 5], "fc2": []}, {}, {}, score=90.5)
    return CandidatePruned(task="task 1", candidate=candidate, plan=plan, at=at)


def subset(number, **where):
    return SubsetScored(task="task 1", number=number, kept=340, available=800, **where)


def ended(number=1, at=50.0, **others):
    values = {"new": {"fc1": 4, "fc2": 2}, "score": 90.0, "test_score": 88.0, **others}
    return TaskEnded(task=f"task {number}", at=at, **values)


def evaluated(*scores, at=51.0):
    sizes = {"fc1": 40, "fc2": 20}
    return Evaluated(task="task 1", scores=scores, sizes=sizes, at=at)


def make(path, *events, **changes):
    """Write a run that has had these events, and return the writer of its status."""
    path.mkdir(parents=True, exist_ok=True)
    config = RunConfig(**{**SETTINGS, **changes})
    (path / CONFIG).write_text(to_json(config))
    writer = StatusWriter(path, config)
    for event in events:
        writer.update(event)
    writer._write()  # Epochs are written once a second only.
    return writer


def experiment(*names, **options):
    """Return an experiment with small tasks of four epochs each."""
    tasks = []
    for number, name in enumerate(names):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(60, 4, generator=generator)
        y = (x @ torch.randn(4, 3, generator=generator)).argmax(1)
        tasks.append(Task(name, (x[:50], y[:50]), test=(x[50:], y[50:])))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
    training = {"epochs": 4, "lr": 0.02, "batch_size": 16, **options.pop("training", {})}
    config = LearnerConfig(**{"margin": 5.0, "training": Training(**training), **options})
    return Experiment(model, torch.zeros(2, 4), tasks, config)
