"""Every method resumes in the middle of a task, with the same result bit for bit."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from clnp import Experiment, FineTuning, LearnerConfig, Task, Training
from clnp.methods.ewc import EWC
from clnp.methods.hat import HAT
from clnp.methods.joint import Joint
from clnp.methods.packnet import PackNet
from clnp.methods.si import SI
from clnp.methods.single import Finetune, Single
from clnp.methods.superposition import Superposition
from clnp.records import EpochEnded
from clnp.runs.directory import CHECKPOINT
from support.runs import break_off, untimed

METHODS = {
    "clnp": None,
    "single": Single(),
    "finetune": Finetune(),
    "joint": Joint(first=8, others=8),
    "ewc": EWC(),
    "packnet": PackNet(retrain_epochs=2),
    "hat": HAT(),
    "si": SI(keep_optimizer=True),
    "superposition": Superposition(),
}
NUM_EPOCHS = 4
# Steps are captured on a GPU, each optimizer's in another way.
CASES = [
    ("Adam", "cpu"),
    *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ("Adam", "SGD")),
]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


def task(name, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(160, 3, 8, 8, generator=generator)
    y = (x.mean((2, 3)) @ torch.randn(3, 3, generator=generator)).argmax(1)
    return Task(name, (x[:96], y[:96]), test=(x[96:], y[96:]))


def experiment(method, device, optimizer):
    training = Training(
        epochs=NUM_EPOCHS,
        lr=0.01 if optimizer == "Adam" else 0.1,
        batch_size=16,
        alpha=1e-4,
        optimizer=optimizer,
        schedule="cosine",
        channels_last=True,
        cuda_graph=True,
    )
    config = LearnerConfig(margin=20.0, training=training, fine_tuning=FineTuning(epochs=2))
    tasks = [task(name, seed) for seed, name in enumerate("ab")]
    model, inputs = network().to(device), torch.zeros(2, 3, 8, 8, device=device)
    return Experiment(model, inputs, tasks, config, head="single", baseline=METHODS[method])


@pytest.mark.parametrize(("optimizer", "device"), CASES)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_any_method_resumes_within_a_task(
    tmp_path, monkeypatch, method, optimizer, device
):
    """In the third epoch of the second task; joint training has one task in all."""
    # With other batches than the rest, joint training meets algorithms that add in any order.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    whole = experiment(method, device, optimizer).run(tmp_path / "whole")
    number = 3 if method == "joint" else NUM_EPOCHS + 3
    break_off(experiment(method, device, optimizer), tmp_path / "broken", EpochEnded, number)
    result = experiment(method, device, optimizer).run(tmp_path / "broken")
    found = [load_file(tmp_path / name / CHECKPOINT) for name in ("whole", "broken")]
    assert untimed(result) == untimed(whole)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
