import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.utils.data import TensorDataset

from clnp import Task
from clnp.errors import RunError
from clnp.likeness import check_alike, fingerprint, plain

X, Y = torch.arange(600.0).reshape(200, 3), torch.arange(200) % 3


def test_a_fingerprint_tells_tasks_apart():
    task = Task("a", (X, Y), test=(X, Y))
    one = fingerprint(task)
    assert fingerprint(Task("a", (X.clone(), Y.clone()), test=(X, Y))) == one
    others = [
        Task("a", (X + 1, Y), test=(X, Y)),
        Task("a", (X, Y.flip(0)), test=(X, Y)),
        Task("a", (X[:-1], Y[:-1]), test=(X, Y)),
        Task("a", (X, Y)),
        Task("a", (X, Y), validation=(X, Y), test=(X, Y)),
        Task("a", (X, Y), test=(X, Y), num_outputs=3),
        Task("a", (X, Y), test=(X, Y), objective="multi-label"),
    ]
    found = [fingerprint(other) for other in others]
    assert one not in found


def test_other_data_sets_go_by_their_size():
    assert fingerprint(Task("a", TensorDataset(X, Y)))["train"] == "200 samples"


def test_an_experiment_is_like_itself_and_may_know_less(tmp_path):
    check_alike({"a": (1, {"b": 2.0})}, {"a": [1, {"b": 2.0, "c": 3}], "d": 4}, tmp_path)


@pytest.mark.parametrize(
    ("now", "before", "message"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "its a.b is 2, not 1"),
        ({"a": [1, {"b": 1}]}, {"a": [1, {"b": None}]}, "its a.1.b is None, not 1"),
        ({"a": [1]}, {"a": [1, 2]}, r"its a is \[1, 2\], not \[1\]"),
        ({"a": 1}, {}, "its a is None, not 1"),
        ({"a": {"b": 1}}, {"a": 3}, "its a is 3, not {'b': 1}"),
        ({"a": 1}, [], "is"),
    ],
)
def test_the_first_difference_is_named(tmp_path, now, before, message):
    with pytest.raises(RunError, match=f"holds another experiment: .*{message}"):
        check_alike(now, before, tmp_path)


def test_plain_data_has_functions_by_name():
    assert plain({1: (2, [None, "x"]), "f": torch.nn.functional.relu, "g": Task}) == {
        "1": [2, [None, "x"]],
        "f": "torch.nn.functional.relu",
        "g": "clnp.task.Task",
    }


def made(gain):
    def scale(layer):
        return layer.weight * gain

    return scale


def test_a_function_goes_by_the_same_in_every_process():
    program = (
        "from clnp.likeness import plain\n"
        "print(plain(lambda layer: layer in {'a', 'b', 'c', 'd', 'e', 'f'}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1


def test_functions_of_the_user_go_by_what_they_do():
    same = plain(lambda layer: layer.weight), plain(lambda layer: layer.weight)
    assert same[0] == same[1]
    others = [
        plain(lambda layer: layer.bias),
        plain(lambda layer: layer.weight + 1),
        plain(lambda layer, gain=2: layer.weight),
        plain(lambda layer, gain=3: layer.weight),
        plain(lambda layer: [each for each in layer.weight]),
        plain(lambda layer: [each + 1 for each in layer.weight]),
        plain(made(1.0)),
        plain(made(2.0)),
        plain(partial(made, gain=1.0)),
        plain(partial(made, gain=2.0)),
        plain(partial(made, 2.0)),
    ]
    found = [str(each) for each in (same[0], *others)]
    assert len(set(found)) == len(found)
