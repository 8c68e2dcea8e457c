import pytest
import torch
from torch import nn

from clnp import LearnerConfig, Task
from clnp.errors import ArgumentError
from clnp.methods.method import Setting
from clnp.training.task import load_task

CPU = torch.device("cpu")
X, Y = torch.arange(80.0).reshape(40, 2), torch.arange(40) % 4
QUARTER = LearnerConfig(validation_fraction=0.25)


def held_out(data):
    """The inputs that are held out."""
    return next(data.validation.batches(40))[0]


def test_a_method_is_given_the_same_data_as_the_learner():
    setting = Setting(
        nn.Linear(2, 4),
        X[:2],
        (),
        QUARTER,
        head="multi",
        classifier=None,
        seed=3,
        on_event=lambda event: None,
        on_progress=lambda: None,
    )
    task = Task("a", (X, Y))
    own = held_out(load_task(task, CPU, QUARTER, seed=3))
    assert len(own) == 10
    assert torch.equal(held_out(setting.load(task, CPU)), own)
    assert not torch.equal(held_out(load_task(task, CPU, QUARTER, seed=4)), own)


@pytest.mark.parametrize("check", [True, False])
def test_data_is_loaded_as_the_settings_say(check):
    config = LearnerConfig(resident=False, check_data=check)
    damaged = Task("a", (torch.full((40, 2), torch.nan), Y))
    if check:
        with pytest.raises(ArgumentError, match="an input is NaN or infinite"):
            load_task(damaged, CPU, config, seed=0)
    else:
        assert load_task(damaged, CPU, config, seed=0).train.inputs is None
