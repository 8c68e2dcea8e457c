"""What a forward pass must not do beside computing."""

import random

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import clnp
from clnp.core.structure.discover import discover
from clnp.errors import GraphError
from support.assembled import Assembled

VECTORS = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))


def net(run):
    return Assembled(run, first=nn.Linear(12, 8), second=nn.Linear(8, 8), fc=nn.Linear(8, 2))


def only_problem(model, example=VECTORS):
    with pytest.raises(GraphError) as caught:
        discover(model, example)
    [problem] = caught.value.problems
    return problem


RANDOM = {
    "dropout": lambda h: F.dropout(h, 0.5),
    "randn": lambda h: h + 1e-6 * torch.randn(1),
    "rand_like": lambda h: h * torch.rand_like(h),
    "bernoulli": lambda h: h * torch.empty(len(h), 1).bernoulli_(0.5),
    "multinomial": lambda h: h * torch.ones(9).multinomial(1),
}


@pytest.mark.parametrize("name", RANDOM)
def test_operation_that_draws_in_evaluation_mode(name):
    problem = only_problem(net(lambda m, x: m.fc(m.second(RANDOM[name](m.first(x))))))
    assert problem.where == "(model)"
    assert problem.found.startswith(f"'{name}' draws random numbers in evaluation mode, so the")
    assert "(test_purity.py:" in problem.found
    assert "training=self.training" in problem.remedy


BRANCHES = {
    "torch": lambda: bool(torch.rand(()) < 0.5),
    "python": lambda: random.random() < 0.5,
    "numpy": lambda: np.random.rand() < 0.5,
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branch_that_is_taken_by_chance(name):
    def run(m, x):
        h = m.second(m.first(x))
        return m.fc(h if m.training or BRANCHES[name]() else 2 * h)

    assert "draws random numbers in evaluation mode" in only_problem(net(run)).found


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_a_branch_that_is_taken_by_chance_is_one_problem(threshold):
    """The passes that discovery compares draw the same numbers, and so take the same path."""

    def run(m, x):
        h = m.second(m.first(x))
        return m.fc(h if random.random() < threshold else 2 * h)

    assert "draws random numbers in evaluation mode" in only_problem(net(run)).found


def test_dropout_is_found_behind_weights_of_zero():
    model = net(lambda m, x: m.fc(F.dropout(m.second(m.first(x)))))
    nn.init.zeros_(model.fc.weight)
    assert "'dropout' draws random numbers" in only_problem(model).found


def test_model_that_remembers():
    def run(m, x):
        m.seen.append(len(m.seen))
        return m.fc(m.second(m.first(x))) * len(m.seen)

    model = net(run)
    model.seen = []
    problem = only_problem(model)
    assert "the same input has other outputs the second time" in problem.found


def test_numbers_may_be_drawn_in_training_mode_or_to_no_effect():
    def run(m, x):
        torch.rand(3)
        h = F.dropout(m.first(x), 0.5, m.training)
        if m.training and torch.rand(()) < 0.5:
            h = h + torch.randn_like(h)
        return m.fc(m.second(h))

    assert discover(net(run), VECTORS).groups == {"first": 8, "second": 8}
    model = nn.Sequential(nn.Linear(12, 8), nn.Dropout(), nn.RReLU(), nn.Linear(8, 2))
    assert discover(model, VECTORS).groups == {"0": 8}


def test_forward_that_cannot_stand_other_weights():
    def run(m, x):
        y = m.fc(m.second(m.first(x)))
        if y.abs().max() > 0:
            raise OverflowError
        return y

    model = net(run)
    nn.init.zeros_(model.fc.weight)
    nn.init.zeros_(model.fc.bias)
    assert "with fewer neurons the outputs differ" in only_problem(model).found


REENTRANT = pytest.mark.parametrize("use_reentrant", [False, True])


@REENTRANT
@pytest.mark.parametrize("trained", [True, False])
def test_gradient_checkpointing(use_reentrant, trained):
    """Also of a model that is frozen, since a task trains all of its weights."""

    def run(m, x):
        h = m.first(x)
        if m.training and h.requires_grad:
            h = checkpoint_sequential([m.second, nn.ReLU()], 2, h, use_reentrant=use_reentrant)
        else:
            h = m.second(h).relu()
        return m.fc(h)

    problem = only_problem(net(run).requires_grad_(trained))
    assert problem.where == "(model)"
    assert "gradient checkpointing (torch.utils.checkpoint) runs 'second' again" in problem.found
    assert "Call the layers directly" in problem.remedy


@REENTRANT
def test_operations_without_layers_may_run_again(use_reentrant):
    def run(m, x):
        h = m.second(m.first(x))
        return m.fc(checkpoint(lambda h: h.relu().tanh(), h, use_reentrant=use_reentrant))

    assert discover(net(run), VECTORS).groups == {"first": 8, "second": 8}


def test_densenet_that_saves_memory():
    model = torchvision.models.DenseNet(8, (2, 2), 16, memory_efficient=True, num_classes=3)
    problem = only_problem(model, torch.randn(1, 3, 32, 32))
    assert "runs 'features.denseblock1.denselayer1.norm1' and 7 more layers" in problem.found
    model = torchvision.models.DenseNet(8, (2, 2), 16, num_classes=3)
    assert discover(model, torch.randn(1, 3, 32, 32)).classifier == "classifier"


def test_forward_that_fails_with_gradients():
    def run(m, x):
        h = m.second(m.first(x))
        return m.fc(torch.add(h, 1, out=torch.empty(0)) if h.requires_grad else h)

    problem = only_problem(net(run))
    assert "fails in training mode with gradients, with RuntimeError" in problem.found


class Mean:
    """Remembers something, as an object that is no module may."""

    def __init__(self):
        self.value = torch.zeros(())


REMEMBERED = {
    "step": (lambda: 0, lambda was, h: was + 1, lambda was: 1 + was / 10),
    "array": (lambda: np.zeros(1), lambda was, x: was + x.mean().item(), lambda was: was.item()),
    "object": (Mean, lambda was, x: vars(was).update(value=x.mean()) or was, lambda was: was.value),
}


@pytest.mark.parametrize("name", REMEMBERED)
@pytest.mark.parametrize("is_read", [True, False])
def test_what_training_leaves_behind_has_no_part_in_evaluation(name, is_read):
    begin, update, read = REMEMBERED[name]

    def run(m, x):
        h = m.second(m.first(x))
        if m.training:
            m.remembered = update(m.remembered, x)
        return m.fc(h * read(m.remembered) if is_read else h)

    model = net(run)
    model.remembered = begin()
    if not is_read:
        assert discover(model, VECTORS).groups == {"first": 8, "second": 8}
        return
    with pytest.raises(GraphError) as caught:
        discover(model, VECTORS)
    problem = caught.value.problems[-1]  # What the object holds is of unknown origin, too.
    assert problem.found.startswith("after a pass in training mode the same input has other")


@pytest.mark.parametrize("name", BRANCHES)
def test_layers_that_run_by_chance_in_training_mode(name):
    def run(m, x):
        h = torch.relu(m.first(x))
        if not m.training or BRANCHES[name]():
            h = h + torch.relu(m.second(h))
        return m.fc(h)

    problem = only_problem(net(run))
    assert "chance decides whether 'second' runs" in problem.found
    assert "multiply what they add by 0 or 1" in problem.remedy


def test_what_layers_add_may_be_left_out_by_chance():
    depth = torchvision.ops.StochasticDepth(0.5, "row")

    def run(m, x):
        h = torch.relu(m.first(x))
        return m.fc(h + m.depth(torch.relu(m.second(h))))

    layers = {"first": nn.Linear(12, 8), "second": nn.Linear(8, 8), "fc": nn.Linear(8, 2)}
    made = clnp.ContinualNet(Assembled(run, depth=depth, **layers), VECTORS)
    for task in "ab":
        made.begin_task(task)
        made.train()
        made(VECTORS).sum().backward()
        torch.optim.SGD(made.parameters(), lr=0.1).step()
        made.end_task({group: range(3) for group in made.graph.groups})
    made.verify()
