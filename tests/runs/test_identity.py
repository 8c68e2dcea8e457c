import os
import subprocess
import sys
from functools import partial

import numpy as np
import torch

from clnp import Task
from clnp.data.labelled import Prepare
from clnp.runs.fingerprint import plain
from support.callables import Scale, Shifted, Slotted, made


def test_what_turns_stored_samples_into_inputs_is_the_same_after_use():
    prepare = Prepare(2.0, torch.tensor([2, 1, 0]), mean=(1.0,), deviation=(2.0,))
    before = plain(prepare)
    prepare(torch.ones(4, 3))
    assert plain(prepare) == before
    assert plain(Prepare(2.0, torch.tensor([2, 1, 0]), mean=(1.0,), deviation=(2.0,))) == before
    others = [Prepare(2.0), Prepare(2.0, torch.tensor([2, 0, 1]), mean=(1.0,), deviation=(2.0,))]
    assert before not in [plain(other) for other in others]


def test_what_a_function_refers_to_need_not_be_there_yet():
    def outer(fill):
        def inner(x):
            return later(x)

        if fill:
            later = abs
        return inner

    assert plain(outer(False)) != plain(outer(True))


def test_slots_are_found_by_any_name():
    class One:
        __slots__ = "factor"

        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return x

    class Private:
        __slots__ = ("__factor",)

        def __init__(self, factor):
            self.__factor = factor

        def __call__(self, x):
            return x

    for kind in (One, Private):
        assert plain(kind(1)) == plain(kind(1)) != plain(kind(2))


def test_plain_data_has_functions_by_name():
    assert plain({1: (2, [None, "x"]), "f": torch.nn.functional.relu, "g": Task}) == {
        "1": [2, [None, "x"]],
        "f": "torch.nn.functional.relu",
        "g": "clnp.training.task.Task",
    }


def test_objects_go_by_what_they_hold():
    makers = [
        Scale,
        Slotted,
        Shifted,
        lambda value: Scale(torch.tensor([value])),
        lambda value: Scale(np.array([value])),
        lambda value: Scale({"a": [Scale(value)]}),
        lambda value: Scale(value).halved,
        lambda value: {"a": value}.get,
        lambda value: torch.nn.Sequential(torch.nn.Dropout(value), torch.nn.Linear(2, 2)),
        lambda value: partial(Scale(value).halved, 3),
    ]
    found = []
    for make in makers:
        for value in (0.25, 0.5):
            torch.manual_seed(0)
            one = plain(make(value))
            torch.manual_seed(0)
            assert plain(make(value)) == one
            found.append(str(one))
    torch.manual_seed(1)
    found.append(str(plain(makers[-2](0.25))))
    assert len(set(found)) == len(found)


def test_what_an_object_does_counts_too():
    def made(double):
        class Same:
            def __call__(self, x):
                return x * 2 if double else x

        class Other:
            def __call__(self, x):
                return x * 3

        Other.__qualname__ = Same.__qualname__
        return Same(), Other()

    found = [plain(each) for double in (True, False) for each in made(double)]
    assert len(set(found)) == 3


def test_a_function_may_refer_to_itself():
    def made(num):
        def again(x, n=num):
            return other(x, n - 1) if n else x

        def other(x, n):
            return again(x, n)

        return again

    assert plain(made(2)) == plain(made(2)) != plain(made(3))
    ring = Scale(1)
    ring.ring = [ring, ring.halved]
    assert plain(ring) != plain(Scale(1))


def test_a_function_goes_by_the_same_in_every_process():
    program = (
        "from clnp.identity import plain\n"
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
