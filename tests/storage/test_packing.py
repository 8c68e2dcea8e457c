import json
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn

from clnp.errors import ArgumentError
from clnp.storage.packing import STORED, pack, unpack


def round_trip(value: Any) -> Any:
    """`value` packed, written as JSON, and read again."""
    tensors: dict[str, Tensor] = {}
    return unpack(json.loads(json.dumps(pack(value, tensors, name="state"))), tensors)


def assert_same(left: Any, right: Any) -> None:
    """Equal in values and types; a tuple is as good as a list."""
    if isinstance(left, Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        assert [type(key) for key in left] == [type(key) for key in right]
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert isinstance(right, list)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert type(left) is type(right)
        assert left == right


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        1,
        -(2**70),
        1.5,
        float("inf"),
        "",
        "tensor:",
        "tensor:state",
        "tensor",
        [],
        {},
        [[], [[1, [None, True]], {}]],
        {0: "a", "0": "b", -3: [1]},
        {"keys": [1], "values": {"keys": 2}},
        {"tensor": "state"},
        {"tensor": {"tensor": "tensor:state"}, "keys": "tensor:keys"},
        (1, (2, [3])),
        OrderedDict(b=1, a=2),
    ],
)
def test_plain_values_survive(value):
    assert_same(value, round_trip(value))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.tensor(3),
        torch.zeros(0, 2, dtype=torch.bool),
        [torch.ones(2), "tensor:state.0", torch.zeros(2)],
        {"a": {0: torch.ones(1), 1: [torch.zeros(1)]}, 5: torch.ones(3, dtype=torch.float16)},
    ],
)
def test_tensors_survive(value):
    assert_same(value, round_trip(value))


def test_tensors_are_named_after_their_place():
    tensors: dict[str, Tensor] = {}
    pack({"a": torch.ones(1), "b": [0, {3: torch.zeros(1)}]}, tensors, name="state")
    assert list(tensors) == ["state.a", "state.b.1.3"]


@pytest.mark.parametrize(
    "value",
    [
        {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
        {1: torch.ones(1), "1": torch.zeros(1)},
        {"a_": torch.ones(1), "a": {"": torch.ones(2)}, "a.": torch.ones(3), "a._": torch.ones(4)},
    ],
)
def test_places_that_spell_alike_keep_their_own_tensors(value):
    assert_same(value, round_trip(value))


def test_tensors_that_are_there_already_are_kept():
    tensors = {"state": torch.ones(1)}
    packed = pack(torch.zeros(1), tensors, name="state")
    assert torch.equal(tensors["state"], torch.ones(1))
    assert torch.equal(unpack(packed, tensors), torch.zeros(1))


def test_a_packed_tensor_is_no_copy_and_has_no_gradient():
    weight = nn.Parameter(torch.ones(2))
    tensors: dict[str, Tensor] = {}
    found = unpack(pack(weight, tensors, name="state"), tensors)
    assert found.data_ptr() == weight.data_ptr()
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "state is of type object, which cannot be stored"),
        ({"a": [1, {2}]}, "state.a.1 is of type set, which cannot be stored"),
        (
            {0: {"f": len}},
            "state.0.f is of type builtin_function_or_method, which cannot be stored",
        ),
        ([b"x"], "state.0 is of type bytes, which cannot be stored"),
        ({"a": {(1, 2): 3}}, "state.a has the key (1, 2), which cannot be stored"),
        ({None: 3}, "state has the key None, which cannot be stored"),
    ],
)
def test_foreign_objects_are_refused_by_their_place(value, message):
    with pytest.raises(ArgumentError) as caught:
        pack(value, {}, name="state")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            torch.zeros(2, dtype=torch.complex128),
            "state.a is a tensor of torch.complex128, which cannot be stored",
        ),
        (
            torch.eye(2).to_sparse(),
            "state.a is a sparse tensor, which cannot be stored. Store its parts, or a dense one",
        ),
        (
            torch.zeros(2, device="meta"),
            "state.a is a tensor on the device meta, which holds no numbers",
        ),
    ],
)
def test_tensors_that_cannot_be_stored_are_refused_by_their_place(value, message):
    with pytest.raises(ArgumentError) as caught:
        pack({"a": value}, {}, name="state")
    assert str(caught.value) == message


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that they may change.
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(ArgumentError, match=r"state\.0 is a nested tensor, which cannot be stored"):
        pack([nested], {}, name="state")


@pytest.mark.parametrize("dtype", sorted(STORED, key=str))
def test_what_is_taken_can_be_written_and_read(dtype):
    found = load(save({"a": torch.ones(3).to(dtype)}))["a"]
    assert found.dtype == dtype
    assert torch.equal(found.to(torch.complex64), torch.ones(3, dtype=torch.complex64))


TEXT = st.sampled_from(["tensor:", "tensor", "keys", "values", "a", "a.b", "", "0", "state"])


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT, st.text(max_size=4)
)


LEAVES |= st.integers(0, 3).map(lambda size: torch.arange(size))


NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXT, st.integers(0, 2)), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(NESTED)
def test_all_nested_state_survives(value):
    assert_same(value, round_trip(value))
