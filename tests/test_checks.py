import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from clnp import checks
from clnp.checks import (
    ABOVE_0,
    BETWEEN_0_AND_1,
    COUNT,
    COUNT_FROM_0,
    FLOAT32_FROM_0,
    FROM_0,
    FROM_1,
    SEED,
    available_bytes,
    check_kind,
    check_memory,
    listed,
    number,
    number_of_seconds,
    one_of,
    optional,
    settle,
    several,
    shown,
    strength,
    whole_number,
)
from clnp.errors import ArgumentError
from clnp.methods import ewc, hat, joint, packnet, si
from clnp.runs.fingerprint import plain


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (number, "1", "a number"),
        (number, True, "a number"),
        (number, None, "a number"),
        (whole_number, "a", "a whole number"),
        (whole_number, 1.0, "a whole number"),
        (whole_number, True, "a whole number"),
        (ABOVE_0, 0, "a finite float32 number above 0"),
        (ABOVE_0, math.inf, "a finite float32 number above 0"),
        (ABOVE_0, 1e39, "a finite float32 number above 0"),
        (FROM_0, -1, "a finite number, 0 or more"),
        (FROM_0, math.nan, "a finite number, 0 or more"),
        (FROM_0, "1", "a finite number, 0 or more"),
        (FROM_1, 0.5, "a finite number, 1 or more"),
        (BETWEEN_0_AND_1, 1.0, "a number between 0 and 1"),
        (BETWEEN_0_AND_1, 0.0, "a number between 0 and 1"),
        (COUNT, 0, "a whole number, 1 or more"),
        (COUNT, 2.5, "a whole number, 1 or more"),
        (COUNT_FROM_0, -1, "a whole number, 0 or more"),
        (FLOAT32_FROM_0, -1, "a finite float32 number, 0 or more"),
        (FLOAT32_FROM_0, 1e308, "a finite float32 number, 0 or more"),
        (number, 10**400, "a number below 1.8e308"),
        (FROM_0, 10**400, "a number below 1.8e308"),
        (whole_number, -(2**63) - 1, "a whole number of at most 64 bits"),
        (COUNT, 10**30, "a whole number of at most 64 bits"),
        (one_of("a", "b"), "c" * 61, "'a' or 'b'"),
        (optional(COUNT), 0, "a whole number, 1 or more"),
        (one_of("a", "b", "c"), "d", "'a', 'b' or 'c'"),
        (one_of("a", "b"), None, "'a' or 'b'"),
        (one_of("a", "b"), ["a"], "'a' or 'b'"),
    ],
)
def test_what_a_setting_cannot_be_is_said_by_its_name(kind, value, expected):
    with pytest.raises(ArgumentError) as caught:
        kind("it", value)
    assert str(caught.value) == f"it is {shown(value)}. It must be {expected}"
    assert caught.value.argument == "it"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ab", "'ab'"),
        (10**59, "1" + "0" * 59),
        (10**60, f"1{'0' * 59}... (61 characters)"),
    ],
)
def test_a_long_value_is_not_shown_entirely(value, text):
    assert shown(value) == text
    assert shown(10**5000) == "a number of thousands of digits"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (2, "it is 2. Give a list, it=[...]"),
        ({"fc1": 1}, "it is {'fc1': 1}. Give a list, it=[...]"),
        ("12", "it is '12'. Give a list, it=[...]"),
        (object, f"it is {object!r}. Give a list, it=[...]"),
        ([1, "2"], "one of it is '2'. It must be a number"),
    ],
)
def test_several_are_a_list(values, message):
    with pytest.raises(ArgumentError) as caught:
        several(number)("it", values)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (number, np.float32(2), 2.0),
        (number, np.int64(2), 2.0),
        (number, 2, 2.0),
        (whole_number, np.int64(3), 3),
        (strength, {"fc1": np.float64(1)}, {"fc1": 1.0}),
        (strength, np.float16(1), 1.0),
        (COUNT, np.int32(1), 1),
        (COUNT_FROM_0, 0, 0),
        (FROM_0, 0, 0.0),
        (FROM_1, 1, 1.0),
        (optional(COUNT), None, None),
        (several(number), None, None),
        (several(number), np.array([1.0, 2.0]), (1.0, 2.0)),
        (several(whole_number), torch.tensor([1, 2]), (1, 2)),
        (several(number), (n for n in (1, 2)), (1.0, 2.0)),
        (one_of("a", "b"), "b", "b"),
    ],
)
def test_settings_become_plain(kind, value, expected):
    found = kind("it", value)
    assert found == expected
    assert repr(found) == repr(expected)


@dataclass(frozen=True)
class Two:
    one: int
    other: float

    def __post_init__(self):
        settle(self, {"one": COUNT, "other": number}, where="two")


def test_a_dataclass_holds_what_its_settings_became():
    assert repr(Two(np.int64(1), np.float64(2.5))) == "Two(one=1, other=2.5)"
    with pytest.raises(ArgumentError, match=r"^two: one is 0. It must be a whole number") as caught:
        Two(0, 1.0)
    assert caught.value.argument == "one"


@pytest.mark.parametrize(
    "settings",
    [
        ewc.EWC(strength=np.float32(3), num_samples=np.int64(10)),
        si.SI(strength=np.float16(0.5), damping=np.float32(0.5)),
        hat.HAT(s_max=np.int64(9), strength=np.float32(0.5)),
        packnet.PackNet(prune=np.float32(0.5), retrain_epochs=np.int8(2)),
        joint.Joint(first=np.int64(3)),
    ],
)
def test_settings_of_baselines_are_plain(settings):
    """A run is known again by them, and writes them down."""
    numbers = {
        name: value
        for name, value in plain(settings).items()
        if name not in ("training", "keep_optimizer")
    }
    assert all(type(value) in (int, float, type(None)) for value in numbers.values()), numbers


def is_number(value):
    return isinstance(value, int)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: check_kind("it", [], dict, "a mapping"),
            "it is of type list. It must be a mapping",
        ),
        (
            lambda: listed("it", 3, is_number, what="numbers"),
            "it is of type int. Give a list of numbers",
        ),
        (lambda: listed("it", "3", is_number, what="x"), "it is of type str. Give a list of x"),
        (
            lambda: listed("it", None, is_number, what="x"),
            "it is of type NoneType. Give a list of x",
        ),
        (
            lambda: listed("it", [3, "3"], is_number, what="x"),
            "it holds a value of type str. Give a list of x",
        ),
        (
            lambda: number_of_seconds("it", "x"),
            "it is 'x'. It must be a number of seconds, 0 or more",
        ),
        (
            lambda: number_of_seconds("it", -1),
            "it is -1. It must be a number of seconds, 0 or more",
        ),
        (
            lambda: number_of_seconds("it", math.nan),
            "it is nan. It must be a number of seconds, 0 or more",
        ),
    ],
)
def test_an_argument_of_another_kind_is_refused_by_its_name(call, message):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert caught.value.argument == "it"


def test_arguments_come_back_as_they_are_used():
    check_kind("it", [], list, "a list")
    assert listed("it", (n for n in (1, 2)), is_number, what="numbers") == [1, 2]
    assert number_of_seconds("it", np.float32(2)) == 2.0
    assert number_of_seconds("it", math.inf) == math.inf


def test_what_needs_more_memory_than_is_left_is_refused(monkeypatch):
    device = torch.device("cpu")
    check_memory("it", available_bytes(device) // 2, device, "Use less")
    monkeypatch.setattr(checks, "available_bytes", lambda device: 10**9)
    for num_bytes, size in ((2 * 10**9, "2.0 GB"), (10**30, "1.0e+18 TB")):
        with pytest.raises(ArgumentError) as caught:
            check_memory("it", num_bytes, device, "Use less", argument="size")
        assert str(caught.value) == (
            f"it needs {size} of memory, and cpu has 1.0 GB left. Use less"
        )
        assert caught.value.argument == "size"


def test_memory_that_is_not_known_is_not_checked():
    check_memory("it", 10**30, torch.device("meta"), "Use less")


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_a_seed_may_have_all_64_bits(seed):
    assert SEED("seed", seed) == seed
    with pytest.raises(ArgumentError, match="seed is 18446744073709551616"):
        SEED("seed", 2**64)
