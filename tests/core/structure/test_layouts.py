"""The arithmetic of neuron axes, against tensors that carry the number of their neuron."""

import pytest
import torch
from hypothesis import given, strategies as st

from clnp.core.structure.axis import Segment
from clnp.core.structure.rules import (
    Groups,
    Mark,
    Neurons,
    Refusal,
    concatenate,
    full_size,
    meet,
    merge_axes,
    reshape,
    spell,
)

A, B = Segment("a", 3), Segment("b", 3)


@pytest.fixture
def groups():
    made = Groups()
    for name in ("a", "b", "c"):
        made.add(name)
    return made


def test_first_layer_gives_the_name(groups):
    groups.join("c", "b")
    assert groups.find("c") == "b"
    groups.join("b", "a")
    assert [groups.find(name) for name in "abc"] == ["a", "a", "a"]
    assert groups.names() == ["a"]
    assert groups.resolve((Segment("c", 2, 4), Segment(None, 1))) == (
        Segment("a", 2, 4), Segment(None, 1),
    )  # fmt: skip
    groups.add("c")
    assert groups.find("c") == "a"


def test_spell():
    axis = (Segment("a", 3, 4), Segment(None, 2))
    assert spell(axis) == "3 x 4 of 'a' + 2 of the input"
    assert full_size(axis) == 14


def test_merge_joins_groups(groups):
    assert merge_axes(groups, (A, Segment(None, 2)), (B, Segment(None, 2))) == (
        A, Segment(None, 2),
    )  # fmt: skip
    assert groups.find("b") == "a"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((Segment("b", 1),), "one neuron is broadcast over many"),
        ((Segment("b", 1), Segment("c", 2)), "boundaries differ"),
        ((Segment("b", 1, 3),), "boundaries differ"),
        ((Segment(None, 3),), "hidden neurons meet the network's input"),
    ],
)
def test_merge_refuses(groups, other, expected):
    with pytest.raises(Refusal) as caught:
        merge_axes(groups, (A,), other)
    assert expected in caught.value.found
    assert caught.value.remedy
    assert groups.names() == ["a", "b", "c"]


def test_meet_counts_dimensions_from_the_right(groups):
    met = meet(
        groups,
        [((2, 3, 4), Neurons(1, (A,))), ((3, 1), Neurons(0, (B,))), ((4,), Mark.INPUT)],
        num_dims=3,
    )
    assert met == Neurons(1, (A,))
    raised = meet(groups, [((3,), Neurons(0, (A,))), ((5, 2, 1), Mark.CONSTANT)], num_dims=3)
    assert raised == Neurons(2, (A,))


@pytest.mark.parametrize(
    ("shape", "state", "expected"),
    [
        ((2, 3, 4), Mark.INPUT, "hidden neurons meet the network's input"),
        ((3, 1), Mark.CONSTANT, "meet a constant tensor of shape (3, 1)"),
        ((3, 1), Mark.UNSEEN, "meet a tensor of unknown origin"),
        ((2, 4, 3), Neurons(2, (B,)), "lie along dimension 1 of one tensor and 2 of another"),
    ],
)
def test_meet_refuses(groups, shape, state, expected):
    with pytest.raises(Refusal) as caught:
        meet(groups, [((2, 3, 4), Neurons(1, (A,))), (shape, state)], num_dims=3)
    assert expected in caught.value.found


def test_concatenate():
    tensors = [
        ((2, 3), Neurons(1, (A,))), ((0,), Mark.CONSTANT), ((2, 5), Mark.INPUT),
        ((2, 3), Neurons(1, (B,))),
    ]  # fmt: skip
    joined = concatenate(tensors, dim=1, neuron_dim=1)
    assert joined == Neurons(1, (A, Segment(None, 5), B))
    with pytest.raises(Refusal) as caught:
        concatenate([*tensors, ((3, 2), Neurons(0, (B,)))], dim=1, neuron_dim=1)
    assert "lie along dimension 1 of one tensor and 0 of another" in caught.value.found


def test_reshape():
    hidden = Neurons(1, (A,))
    assert reshape(hidden, (2, 3, 4, 5), (2, 60)) == Neurons(1, (Segment("a", 3, 20),))
    assert reshape(hidden, (2, 3, 4, 5), (2, 12, 5)) == Neurons(1, (Segment("a", 3, 4),))
    assert reshape(hidden, (2, 3, 4, 5), (2, 1, 3, 20)) == Neurons(2, (A,))
    flat = Neurons(1, (Segment("a", 3, 20), Segment("b", 2, 20)))
    assert reshape(flat, (2, 100), (2, 5, 4, 5)) == Neurons(1, (Segment("a", 3), Segment("b", 2)))
    with pytest.raises(Refusal):
        reshape(Neurons(1, (Segment("a", 3, 4), Segment("b", 4))), (2, 16), (2, 4, 4))
    with pytest.raises(Refusal):
        reshape(hidden, (2, 3, 4), (6, 4))
    with pytest.raises(Refusal):
        reshape(Neurons(2, (A,)), (2, 4, 3), (2, 12))


def label(neurons: Neurons, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor in which every entry holds the number of its neuron."""
    numbers, start = [], 0
    for segment in neurons.axis:
        numbers += [start + neuron for neuron in range(segment.size) for _ in range(segment.span)]
        start += segment.size
    sizes = [-1 if dim == neurons.dim else 1 for dim in range(len(shape))]
    return torch.tensor(numbers).view(sizes).expand(shape)


def factorisations(number: int, length: int) -> st.SearchStrategy[tuple[int, ...]]:
    if length == 1:
        return st.just((number,))
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return st.sampled_from(divisors).flatmap(
        lambda d: factorisations(number // d, length - 1).map(lambda rest: (d, *rest))
    )


@given(st.data())
def test_reshape_is_right_or_refused(data):
    ahead = data.draw(st.lists(st.integers(2, 3), max_size=2))
    behind = data.draw(st.lists(st.integers(1, 3), max_size=2))
    axis = tuple(
        Segment(name, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 4])))
        for name in data.draw(st.sampled_from(["a", "ab"]))
    )
    before = (*ahead, full_size(axis), *behind)
    neurons = Neurons(len(ahead), axis)
    labels = label(neurons, before)
    after = data.draw(factorisations(labels.numel(), data.draw(st.integers(1, 4))))
    try:
        found = reshape(neurons, before, after)
    except Refusal:
        # Refused only if no dimension of the result tells the neurons apart in whole blocks.
        moved = labels.reshape(after)
        for dim in range(len(after)):
            lines = moved.movedim(dim, 0).reshape(after[dim], -1)
            alike = bool((lines == lines[:, :1]).all())
            ordered = bool((lines[1:, 0] >= lines[:-1, 0]).all())
            assert not (alike and ordered and len(labels.unique()) > 1)
        return
    assert torch.equal(labels.reshape(after), label(found, after))
