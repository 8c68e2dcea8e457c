import copy

import pytest
import torch
from torch import nn

from clnp import Training
from clnp.errors import ArgumentError
from clnp.training.optimizer import (
    check_optimizers,
    load_optimizer,
    make_optimizer,
    rate_shares,
)

NAMES = ["Adam", "AdamW", "SGD", "RMSprop", "NAdam", "Adamax", "RAdam", "Adadelta", "ASGD", "Rprop"]


def steps(optimizer, weight, num=3):
    """Take steps whose gradients depend on the weight, and return it."""
    for _ in range(num):
        weight.grad = weight.detach() ** 2
        optimizer.step()
    return weight.detach().clone()


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_captured_steps_resumes_on_a_cpu(name):
    options = {"momentum": 0.9} if name == "SGD" else {}
    training = Training(optimizer=name, optimizer_options=options)
    weight = nn.Parameter(torch.linspace(-1, 1, 5))
    optimizer = make_optimizer(training, [weight])
    start = steps(optimizer, weight)
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:  # As in an optimizer for captured steps.
        group.update({key: True for key in ("capturable", "fused") if key in group})
        group["lr"] = torch.tensor(group["lr"])

    other = nn.Parameter(start.clone())
    resumed = make_optimizer(training, [other])
    [made] = [dict(group) for group in resumed.param_groups]
    load_optimizer(resumed, state)
    [group] = resumed.param_groups
    assert type(group["lr"]) is float
    for key in ("capturable", "fused", "foreach"):
        assert group.get(key) == made.get(key)
    assert torch.equal(steps(resumed, other), steps(optimizer, weight))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_sgd_for_captured_steps_takes_the_same_steps(options):
    training = Training(optimizer="SGD", lr=0.1, optimizer_options=options)
    weights = []
    for captured in (False, True):
        weight = nn.Parameter(torch.linspace(-1, 1, 5))
        optimizer = make_optimizer(training, [weight], captured=captured)
        [group] = optimizer.param_groups
        for number in range(4):
            steps(optimizer, weight, 1)
            if captured:
                group["lr"].fill_(0.1 / (number + 2))  # Where a captured step reads it.
            else:
                group["lr"] = 0.1 / (number + 2)
        weights.append(weight.detach())
    assert torch.allclose(*weights, atol=1e-6)


def test_an_optimizer_without_a_rate_has_the_whole_learning_rate():
    def without_rate(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr=lr)
        optimizer.param_groups[0]["lr"] = None
        return optimizer

    training = Training(lr=0.25, optimizer=without_rate)
    optimizer = make_optimizer(training, [nn.Parameter(torch.ones(2))])
    assert rate_shares(optimizer, training) == [1.0]
    load_optimizer(optimizer, optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] is None


def test_unknown_options_are_refused():
    training = Training(optimizer_options={"momentun": 1})
    with pytest.raises(ArgumentError, match="momentun") as caught:
        make_optimizer(training, [nn.Parameter(torch.zeros(1))])
    assert caught.value.argument == "optimizer_options"


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_an_optimizer_must_accept_the_shapes_of_the_model():
    muon = Training(optimizer="Muon")
    check_optimizers([muon], nn.Linear(3, 2, bias=False))
    with pytest.raises(ArgumentError, match="training: Muon: Muon only supports 2D") as caught:
        check_optimizers([Training(), muon], nn.Linear(3, 2))
    assert caught.value.argument == "optimizer_options"


def test_an_optimizer_must_take_a_step():
    with pytest.raises(ArgumentError, match="training: LBFGS cannot be used"):
        check_optimizers([Training(optimizer="LBFGS")], nn.Linear(3, 2))
    check_optimizers([Training(optimizer="LBFGS")], nn.ReLU())
