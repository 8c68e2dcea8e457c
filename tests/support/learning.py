"""Small tasks and networks for tests of the learner, and the moments at which it is saved."""

import copy
from dataclasses import replace

import torch
from torch import nn

import clnp
from clnp import LearnerConfig, Task, Training
from clnp.learner.progress import Progress
from clnp.storage.packing import pack, unpack


def task(name="a", *, seed=0, num_samples=160, num_inputs=6):
    """Which of three directions is largest, in inputs that are rotated by the seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples + 60, num_inputs, generator=generator)
    y = (x @ torch.randn(num_inputs, 3, generator=generator)).argmax(1)
    return Task(name, (x[:num_samples], y[:num_samples]), test=(x[num_samples:], y[num_samples:]))


def network(head="multi", *, width=40, device="cpu", layers=None):
    """A network with two hidden layers, or with the given layers."""
    torch.manual_seed(0)
    plain = (
        *(nn.Linear(6, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)),
    )
    model = nn.Sequential(*(layers or plain)).to(device)
    return clnp.ContinualNet(model, torch.zeros(2, 6, device=device), head=head)


def config(*, training=None, **options):
    """Settings with which the task is learned in a second."""
    defaults = Training(epochs=12, lr=0.02, batch_size=32, alpha=1e-3)
    return LearnerConfig(
        **{"margin": 3.0, "training": replace(defaults, **(training or {})), **options}
    )


def moments(learner, task, when=lambda progress: True):
    """Learn a task, and return the progress and open task of every moment that is saved.

    Each is as a checkpoint would have it.
    """
    saved = []

    def save(progress):
        if when(progress):
            tensors = {}
            packed = pack(progress.to_state(), tensors, name="progress")
            is_open = learner.net.open_task is not None
            open_state = learner.net.open_state() if is_open else None
            saved.append(copy.deepcopy((packed, tensors, open_state)))

    learner.on_progress = save
    learner.learn(task)
    return [
        (Progress.from_state(unpack(packed, tensors)), open_state)
        for packed, tensors, open_state in saved
    ]


def reopened(net, open_state):
    """The network with the open task that it had at a moment."""
    if open_state is not None:
        net.begin_task(open_state.task.name, 3)
        net.set_open_state(open_state)
    return net
