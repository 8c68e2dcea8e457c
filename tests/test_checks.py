"""Settings of baselines that cannot be used are refused, and those that can are easy to reach."""

import subprocess
import sys

import pytest
import torch

import clnp
from clnp.baselines.ewc import EWC
from clnp.baselines.hat import HAT
from clnp.baselines.joint import Joint
from clnp.baselines.packnet import PackNet
from clnp.baselines.si import SI
from clnp.errors import ArgumentError
from networks import mlp

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("settings", "name", "wrong"),
    [
        (EWC, "strength", (0, -1, INF, NAN, "1", True, None)),
        (EWC, "num_samples", (0, -1, INF, 10.5, 10.0)),
        (SI, "strength", (0, -1, INF, NAN, "1", True, None)),
        (SI, "damping", (0, INF)),
        (HAT, "strength", (-1, INF)),
        (HAT, "s_max", (0.5, INF)),
        (PackNet, "prune", (0, 1, NAN)),
        (PackNet, "retrain_epochs", (-1, INF, 0.5)),
        (PackNet, "retrain_lr_factor", (0, INF)),
        (Joint, "first", (0, INF, "1", 2.5)),
        (Joint, "others", (0, INF, 2.5)),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(settings, name, wrong):
    for value in wrong:
        if settings is Joint and value is None:
            continue
        with pytest.raises(ArgumentError, match=f": {name} is .*; it must be ") as error:
            settings(**{name: value})
        assert error.value.argument == name


def test_baselines_are_there_when_the_package_is():
    program = "import clnp; print(clnp.baselines.ewc.EWC(strength=100).strength)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "100\n"


@pytest.mark.parametrize("baseline", ["si", SI, 3])
def test_a_baseline_is_given_by_its_settings(baseline):
    x = torch.rand(8, 6)
    task = clnp.Task("a", (x, torch.arange(8) % 4))
    with pytest.raises(ArgumentError, match="it must be settings of one, such as"):
        clnp.Experiment(mlp(), x[:2], [task], baseline=baseline)
