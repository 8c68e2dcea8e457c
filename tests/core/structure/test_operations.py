"""Names of operations, however they are spelled, and tensors in nested values."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from clnp.core.structure.axis import Segment
from clnp.core.structure.inputs import imitate, tensors_in
from clnp.core.structure.rules import (
    METADATA,
    Call,
    Groups,
    Neurons,
    Refusal,
    follow,
    operation_name,
)

X = torch.rand(2, 3)


def names_of(run):
    seen = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(operation_name(func))
            return func(*args, **(kwargs or {}))

    with Names():
        run()
    return seen


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("add", [lambda: X + 1, lambda: 1 + X, lambda: X.clone().add_(1), lambda: torch.add(X, 1)]),
        ("sub", [lambda: X - 1, lambda: 1 - X, lambda: X.sub(1)]),
        ("pow", [lambda: X**2, lambda: 2**X, lambda: X.pow(2)]),
        ("relu", [lambda: F.relu(X), lambda: X.relu(), lambda: torch.relu(X), lambda: F.relu_(X)]),
        ("sigmoid", [lambda: X.sigmoid(), lambda: F.sigmoid(X)]),
        ("expit", [lambda: torch.special.expit(X)]),
        ("max_pool2d", [lambda: F.max_pool2d(X[None], 1)]),
        ("getitem", [lambda: X[0]]),
        ("shape", [lambda: X.shape]),
        ("T", [lambda: X.T]),
        ("bool", [lambda: bool(X[0, 0]), lambda: X.bool()]),
        ("invert", [lambda: ~X.bool()]),
        ("and", [lambda: X.bool() & True]),
        ("index", [lambda: range(3)[X[0, 0].long()]]),
        ("and", [lambda: (X > 0).__iand__(X > 1)]),
        ("rand", [lambda: torch.rand(2)]),
    ],
)
def test_operation_name(name, spellings):
    for run in spellings:
        assert names_of(run)[-1] == name


def test_writing_an_attribute_has_a_name_of_its_own():
    def run():
        X.clone().data = X

    assert names_of(run)[-1] == "set data"


def test_classes_hold_no_tensors():
    @dataclass
    class Pair:
        one: torch.Tensor

    assert tensors_in([Pair, Pair(X)])[0] is X


def test_reading_the_form_is_metadata():
    def read():
        return X.shape, X.size(), X.dim(), X.ndim, X.dtype, X.device, X.is_cuda, len(X), X.numel()

    assert set(names_of(read)) <= METADATA
    assert set(names_of(lambda: (X.requires_grad, X.is_floating_point(), repr(X)))) <= METADATA


def test_tensors_in_and_imitate():
    pair = namedtuple("pair", "left right")

    @dataclass
    class Output:
        logits: torch.Tensor
        other: str = "x"

    value = [X, (1, {"a": X}), pair(X, None), Output(X), X.max(0)]
    assert len(tensors_in(value)) == 6
    assert tensors_in(["x", None]) == []
    twice = imitate(value, lambda tensor: tensor * 2)
    assert torch.equal(twice[1][1]["a"], X * 2)
    assert torch.equal(twice[2].left, X * 2)
    assert torch.equal(twice[4].values, X.max(0).values * 2)
    assert twice[3] is value[3]


def call(func, *args, **kwargs):
    tensors = tensors_in((args, kwargs))
    neurons = Neurons(1, (Segment("a", 3),))
    placed = tuple((tensor, tuple(tensor.shape), neurons) for tensor in tensors[:1])
    result = func(*args, **kwargs)
    return Call(operation_name(func), func, args, kwargs, result, placed, Groups())


def test_follow_finds_where_an_axis_goes():
    assert follow(call(torch.Tensor.unsqueeze, X, 0)).dim == 2
    assert follow(call(torch.sum, X, 0)).dim == 0
    assert follow(call(torch.sum, input=X, dim=0)).dim == 0
    assert follow(call(torch.max, X, dim=0)).dim == 0
    assert follow(call(torch.sum, X, 1)) is None
    assert follow(call(torch.Tensor.split, X, 2, 1)) is None
    assert follow(call(torch.Tensor.split, X, 1, 0)).dim == 1
    one = torch.rand(2, 1)
    assert follow(call(torch.Tensor.squeeze, one, 1)) is None


def test_reading_values_is_refused():
    with pytest.raises(Refusal) as caught:
        _ = call(torch.Tensor.tolist, X).shape
    assert "'tolist' reads the values of hidden neurons" in caught.value.found
