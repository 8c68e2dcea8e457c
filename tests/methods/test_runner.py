import pytest
import torch
from torch import nn

from clnp import Training
from clnp.methods.ewc import EWC
from clnp.methods.hat import HAT
from clnp.methods.packnet import PackNet
from clnp.methods.runner import TaskStatistics
from clnp.methods.si import SI
from clnp.methods.single import Finetune
from clnp.methods.superposition import Superposition
from support.forgetting import labelled, method_of
from support.networks import copied_state, example, same_state

NAME = "bn1.running_mean"


TRAINING = Training(epochs=2, lr=0.1, batch_size=16, optimizer="SGD")


def learned(settings):
    """The method after two tasks, the statistics of the first in the network, and an input."""
    made = method_of(settings(training=TRAINING), "conv", head="multi", device="cpu")
    made.learn(labelled("a", network="conv"))
    of_a = made.net.model.state_dict()[NAME].clone()
    made.learn(labelled("b", network="conv", seed=1))
    return made, of_a, example("conv", num=20, seed=9)


@pytest.mark.parametrize("settings", [Superposition, HAT])
def test_a_task_is_answered_with_the_statistics_that_it_was_learned_with(settings):
    made, of_a, x = learned(settings)
    now = copied_state(made.net.model)
    assert not torch.equal(now[NAME], of_a)
    with made.statistics.running(0):
        assert torch.equal(made.net.model.state_dict()[NAME], of_a)
    outputs = made.predict(x, "a")
    made.statistics.learned[0][NAME] += 1
    assert not torch.equal(made.predict(x, "a"), outputs)
    with pytest.raises(ZeroDivisionError), made.statistics.running(0):
        _ = 1 / 0
    assert same_state(made.net.model.state_dict(), now)
    assert made.figures().stored_bytes["statistics"] == 2 * (6 + 5) * 4


@pytest.mark.parametrize("settings", [Finetune, EWC, SI, PackNet])
def test_others_have_those_of_the_network(settings):
    made, _, _ = learned(settings)
    before = copied_state(made.net.model)
    with made.statistics.running(0):
        assert same_state(made.net.model.state_dict(), before)
    assert "statistics" not in made.figures().stored_bytes


def test_a_task_begins_with_none_and_the_open_one_has_its_own():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    kept = TaskStatistics(model)
    kept.begin()
    model(torch.randn(8, 3))
    kept.end()
    own = model[1].running_mean
    kept.begin()
    assert (own == 0).all()
    assert (kept.learned[0]["1.running_mean"] != 0).all()
    with kept.running(1):
        assert model[1].running_mean is own
    with kept.running(0):
        assert torch.equal(model[1].running_mean, kept.learned[0]["1.running_mean"])
    assert model[1].running_mean is own


def test_a_method_is_restored_from_its_state():
    made, _, x = learned(HAT)
    chosen = HAT(training=TRAINING)
    other = method_of(chosen, "conv", head="multi", device="cpu", state=made.state())
    for task in ("a", "b"):
        assert torch.equal(other.predict(x, task), made.predict(x, task))
    other.learn(labelled("c", network="conv", seed=2))
    assert len(other.statistics.learned) == 3
