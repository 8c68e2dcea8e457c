"""Settings of baselines that cannot be used are refused, and those that can are easy to reach."""

from dataclasses import dataclass, make_dataclass, replace

import pytest
import torch

import clnp
from clnp.errors import ArgumentError
from clnp.methods.ewc import EWC
from clnp.methods.hat import HAT
from clnp.methods.joint import Joint
from clnp.methods.method import Strategy
from clnp.methods.packnet import PackNet
from clnp.methods.registry import BASELINES, NAMES
from clnp.methods.si import SI
from clnp.methods.single import Finetune
from clnp.records import OURS, RunConfig
from clnp.training.config import Training
from clnp.training.search import Times
from support.networks import mlp

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
        message = f"^{settings.__name__.lower()}: {name} is {value!r}. It must be "
        with pytest.raises(ArgumentError, match=message) as error:
            settings(**{name: value})
        assert error.value.argument == name


@pytest.mark.parametrize("method", BASELINES)
def test_every_value_of_a_space_to_search_can_be_used(method):
    settings = method()
    for key, values in method.space.items():
        parent, _, name = key.rpartition(".")
        table = Training() if parent else settings
        present = getattr(table, name)
        ranges = values.around(present) if isinstance(values, Times) else values
        found = [replace(table, **{name: ranges.at(position)}) for position in (0.0, 0.5, 1.0)]
        assert all(type(getattr(each, name)) is type(present) for each in found)


@pytest.mark.parametrize("baseline", ["si", SI, 3])
def test_a_baseline_is_given_by_its_settings(baseline):
    x = torch.rand(8, 6)
    task = clnp.Task("a", (x, torch.arange(8) % 4))
    with pytest.raises(ArgumentError, match="Give the settings of a baseline, such as"):
        clnp.Experiment(mlp(), x[:2], [task], baseline=baseline)


@dataclass(frozen=True)
class Own(Finetune):
    """A custom method."""


@dataclass(frozen=True)
class Untrained:
    """A method without a field `training`."""

    def strategy(self, net):
        return Strategy()


@dataclass(frozen=True)
class Idle:
    """A method without a strategy."""

    training: clnp.Training | None = None


def test_an_invalid_custom_method_is_refused():
    x = torch.rand(8, 6)
    task = clnp.Task("a", (x, torch.arange(8) % 4))
    for wrong in (Untrained(), Idle(), Own):
        with pytest.raises(ArgumentError, match="a dataclass with `training` and `strategy`"):
            clnp.Experiment(mlp(), x[:2], [task], baseline=wrong)
    for taken in ("Ewc", "CLNP"):
        kind = make_dataclass(taken, [], bases=(Finetune,), frozen=True)
        with pytest.raises(ArgumentError, match=f"called '{taken.lower()}' already exists"):
            clnp.Experiment(mlp(), x[:2], [task], baseline=kind())
    with pytest.raises(ArgumentError, match=r"baseline\.training is of type int"):
        clnp.Experiment(mlp(), x[:2], [task], baseline=Own(training=3))
    assert clnp.Experiment(mlp(), x[:2], [task], baseline=Own()).method == "own"


def test_default_settings_are_those_of_the_authors():
    assert (SI().strength, SI().damping, SI().keep_optimizer) == (0.1, 0.1, False)
    assert (HAT().s_max, HAT().strength) == (400.0, 0.75)
    packnet = PackNet()
    assert (packnet.prune, packnet.retrain_epochs, packnet.retrain_lr_factor) == (0.75, 10, 0.1)


def test_a_record_without_a_method_is_of_neural_pruning():
    assert NAMES[0] == OURS
    assert OURS not in NAMES[1:]
    assert RunConfig().method == OURS
