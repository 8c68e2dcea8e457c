"""What an observer sees of a forward pass."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from clnp.core.structure.trace import Moment, observe
from support.assembled import Assembled


@dataclass
class Notes:
    seen: list = field(default_factory=list)

    def on_operation(self, moment):
        self.seen.append((moment.path, moment.name))
        self.source = moment.source
        return moment.run()

    def on_layer(self, moment, layer):
        self.seen.append((moment.path, moment.name))
        return moment.run()


class Doubled(nn.Linear):
    def forward(self, input):
        return super().forward(input) + 0


def test_layers_are_seen_from_outside_and_operations_with_their_module():
    inner = nn.Sequential(Doubled(4, 4), nn.ReLU())
    model = Assembled(lambda m, x: m.inner(x.tanh()).shape and m.inner(x) * 2, inner=inner)
    notes = Notes()
    out = observe(model, ((torch.ones(1, 4),), {}), observer=notes, opaque=["inner.0"])
    assert torch.equal(out, inner(torch.ones(1, 4)) * 2)
    once = [("inner.0", "Doubled"), ("inner.1", "relu")]
    assert notes.seen == [("", "tanh"), *once, *once, ("", "mul")]
    assert notes.source.startswith("test_observing.py:")
    assert not out.requires_grad
    inputs = ((torch.ones(1, 4),), {})
    assert observe(model, inputs, observer=notes, opaque=["inner.0"], with_grad=True).requires_grad


def test_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    own = lambda x: x  # noqa: E731
    model[1].forward = own

    def fail(moment, layer):
        raise KeyError

    notes = Notes()
    notes.on_layer = fail
    with pytest.raises(KeyError):
        observe(model, ((torch.ones(1, 4),), {}), observer=notes, opaque=["0"])
    assert "forward" not in vars(model[0])
    assert model[1].forward is own


def test_operations_draw_the_same_numbers_whatever_ran_before_them():
    drawn = []

    def run(m, x):
        torch.rand(m.num)
        drawn.append(torch.rand(3))
        return x

    for num in (1, 7):
        model = Assembled(run)
        model.num = num
        observe(model, ((torch.ones(1),), {}), observer=Notes(), opaque=[])
    assert torch.equal(*drawn)


def test_problem_says_where():
    moment = Moment("add", "block.0", "net.py:7", torch.add, (), {})
    problem = moment.problem("this does not go", "Do that")
    assert str(problem) == "block.0: this does not go (add, net.py:7). Do that"
    assert moment.problem("'add' fails", "").found == "'add' fails (net.py:7)"
    layer = Moment("Linear", "", "", torch.add, (), {}, is_layer=True)
    assert str(layer.problem("no", "Yes")) == "(model): no. Yes"
