from argparse import Namespace
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from callables import Scale, Shifted, Slotted, made
from clnp import Objective, Task
from clnp.errors import RunError
from clnp.identity import plain
from clnp.likeness import check_alike, fingerprint

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


def test_a_fingerprint_tells_functions_of_a_task_apart():
    def own(loss, score):
        return Objective("mine", loss, score)

    def of(prepare=None, objective="classification"):
        return fingerprint(Task("a", (X, Y), num_outputs=3, prepare=prepare, objective=objective))

    one = own(lambda o, t: o.sum(), lambda o, t: 0.0)
    same = own(lambda o, t: o.sum(), lambda o, t: 0.0)
    assert of(objective=one) == of(objective=same)
    found = [
        of(),
        of(lambda x: x),
        of(lambda x: -3 * x),
        of(objective=one),
        of(objective=own(lambda o, t: o.mean(), lambda o, t: 0.0)),
        of(objective=own(lambda o, t: o.sum(), lambda o, t: 1.0)),
    ]
    assert all(one not in found[:number] for number, one in enumerate(found))


def test_a_fingerprint_of_more_samples_than_a_float_can_count():
    num = 2**24 + 4
    inputs = torch.zeros(1, dtype=torch.uint8).expand(num, 1)
    found = fingerprint(Task("a", (inputs, torch.zeros(num, dtype=torch.uint8))))
    assert found["train"].startswith(f"{num} samples, ")


def test_a_run_may_say_more_than_an_experiment(tmp_path):
    check_alike({"a": (1, {"b": 2.0})}, {"a": [1, {"b": 2.0}], "recipe": "mine"}, tmp_path)


def named(*names):
    return {"tasks": [{"name": name, "train": "1 sample"} for name in names], "seed": 1}


def test_tasks_may_be_added_at_the_end(tmp_path):
    assert check_alike(named("a", "b"), named("a", "b"), tmp_path) == 0
    assert check_alike(named("a", "b", "c"), named("a"), tmp_path) == 2


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (named("a", "x", "c", "d"), "holds another experiment: its task 2 is 'b', not 'x'"),
        (named("a", "x"), "holds another experiment: its task 2 is 'b', not 'x'"),
        (named("a", "b"), "has a task that is not given: 'c'"),
        ({**named("a"), "seed": 2}, "holds another experiment: its seed is 1, not 2"),
        (
            {**named(), "tasks": [{"name": "a", "train": "2 samples"}]},
            "holds another experiment: its task 1, 'a', has train '1 sample', not '2 samples'",
        ),
    ],
)
def test_the_first_task_that_differs_is_told_in_a_line(tmp_path, now, message):
    with pytest.raises(RunError) as caught:
        check_alike(now, named("a", "b", "c"), tmp_path)
    assert str(caught.value) == f"{tmp_path} {message}"


def test_an_object_that_holds_something_else_is_told_of_and_others_are_refused(tmp_path):
    """It may have changed by being used, as a counter does; a dataclass has not."""

    def check(now, before):
        check_alike({"augment": plain(now)}, {"augment": plain(before)}, tmp_path)

    def within(value):
        return lambda x: Scale(1)(value(x))

    pairs = [(Scale(1), Scale(2)), (Scale(1).halved, Scale(2).halved)]
    pairs += [(partial(Scale(1), 3), partial(Scale(2), 3)), (within(Scale(1)), within(Scale(2)))]
    for now, before in pairs:
        with pytest.warns(UserWarning, match="holds something else than when the run was begun"):
            check(now, before)
    check(torch.nn.Dropout(0.5).eval(), torch.nn.Dropout(0.5))
    others = [(Shifted(1.0), Shifted(2.0)), (Scale(1), Slotted(1)), (made(1), made(2))]
    others += [(made(Namespace(a=1)), made(Namespace(a=2)))]
    others += [(made(np.float32(1)), made(np.float32(2))), (made({1, 2}), made({1, 3}))]
    others += [(made(b"a"), made(b"b")), (made(torch.float32), made(torch.float64))]
    for now, before in others:
        check(now, now)
        with pytest.raises(RunError, match="holds another experiment: its augment is"):
            check(now, before)


@pytest.mark.parametrize(
    ("now", "before", "message"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "its a.b is 2, not 1"),
        ({"a": [1, {"b": 1}]}, {"a": [1, {"b": None}]}, "its a.1.b is None, not 1"),
        ({"a": [1]}, {"a": [1, 2]}, r"its a is \[1, 2\], not \[1\]"),
        ({"a": 1}, {}, "its a is None, not 1"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, "its a.c is 2, not None"),
        ({"a": [{}]}, {"a": [{"c": 2}]}, "its a.0.c is 2, not None"),
        ({"a": {"b": 1}}, {"a": 3}, "its a is 3, not {'b': 1}"),
        ({"a": 1}, [], "is"),
    ],
)
def test_the_first_difference_is_named(tmp_path, now, before, message):
    with pytest.raises(RunError, match=f"holds another experiment: .*{message}"):
        check_alike(now, before, tmp_path)
