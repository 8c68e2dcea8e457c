from argparse import Namespace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from clnp import Objective, Task
from clnp.data.labelled import Prepare
from clnp.errors import ArgumentError, RunError
from clnp.runs import fingerprint as module
from clnp.runs.fingerprint import check_alike, describe_model, fingerprint, fingerprints, plain
from support.callables import Scale, Shifted, Slotted, made

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


class Squares(Dataset):
    """Samples that are made when they are read."""

    def __len__(self):
        return 200

    def __getitem__(self, place):
        return torch.full((3,), float(place**2)), 0


def test_other_data_sets_go_by_their_size():
    for data in (Squares(), Subset(Squares(), range(200))):
        assert fingerprint(Task("a", data))["train"] == "200 samples"


def samples(x, y):
    return [(a, int(b)) for a, b in zip(x, y, strict=True)]


def some(x, y):
    return Subset(TensorDataset(x, y), range(0, 200, 2))


@pytest.mark.parametrize("kind", [lambda x, y: (x, y), TensorDataset, samples, some])
def test_every_number_of_data_in_tensors_counts(kind):
    def of(x, y):
        return fingerprint(Task("a", kind(x, y)))["train"]

    assert of(X, Y) == of(X.clone(), Y.clone())
    for place in (0, 66, 198):
        x, y = X.clone(), Y.clone()
        x[place, 1] += 1e-3
        y[place] += 1
        assert len({of(X, Y), of(x, Y), of(X, y)}) == 3
    assert of(X, Y) != of(X.double(), Y)
    assert of(X, Y) != of(X.reshape(200, 1, 3), Y)


def test_the_places_of_a_part_count():
    data = TensorDataset(X, Y)
    parts = [Subset(data, [1, 2, 3]), Subset(data, [1, 2, 4])]
    assert len({fingerprint(Task("a", part))["train"] for part in parts}) == 2


def test_a_fingerprint_does_not_depend_on_how_a_tensor_lies_in_memory(monkeypatch):
    one = fingerprint(Task("a", (X, Y)))["train"]
    columns = X.t().contiguous().t()
    assert fingerprint(Task("a", (columns, Y)))["train"] == one
    wide = torch.stack([Y, Y], 1)
    assert fingerprint(Task("a", (X, wide[:, 0])))["train"] == one
    monkeypatch.setattr(module, "CHUNK_BYTES", 50)
    assert fingerprint(Task("a", (columns, Y)))["train"] == one
    single = fingerprint(Task("a", (X[:1], wide[:1, 0])))
    assert single == fingerprint(Task("a", (X[:1], Y[:1])))


def test_what_makes_the_inputs_is_no_part_of_a_fingerprint():
    made = X * torch.ones((), requires_grad=True)
    assert fingerprint(Task("a", (made, Y))) == fingerprint(Task("a", (X, Y)))


def test_samples_that_do_not_fit_together_go_by_their_number():
    ragged = [(torch.zeros(2), 0), (torch.zeros(3), 0), (torch.zeros(2), 1)]
    words = [("one", 0), ("two", 1), ("two", 1)]
    for data in (ragged, words):
        assert fingerprint(Task("a", data))["train"] == "3 samples"


def test_tensors_that_tasks_share_are_read_once_and_as_they_are_stored(monkeypatch):
    read = []
    checksum = module._checksum
    monkeypatch.setattr(module, "_checksum", lambda t: read.append(t) or checksum(t))
    stored = X.to(torch.uint8)
    tasks = [
        Task(name, (stored, Y), test=(stored, Y), prepare=Prepare(255.0)) for name in ("a", "b")
    ]
    found = fingerprints(tasks)
    assert [each.dtype for each in read] == [torch.uint8, torch.int64]
    assert found == [fingerprint(task) for task in tasks]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (None, "task 'a' has no training data. Give a pair of tensors or a map-style Dataset"),
        ((X.numpy(), Y.numpy()), "training data is (ndarray, ndarray). Give a pair of tensors"),
        ([], "task 'a', training data is empty"),
    ],
)
def test_what_is_no_data_has_no_fingerprint(train, message):
    with pytest.raises(ArgumentError) as caught:
        fingerprint(Task("a", train))
    assert message in str(caught.value)


class Own(nn.Module):
    """Settings that nobody is told of, and a tensor of its own."""

    def __init__(self, size):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))


def test_a_model_goes_by_its_layers_their_sizes_and_settings():
    one = describe_model(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(3)))
    assert one == [
        "Sequential()",
        "0 Linear(in_features=2, out_features=3, bias=True)",
        "1 Dropout(p=0.5, inplace=False)",
        "2 Own(), gain [3]",
    ]
    again = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(3))
    assert describe_model(again) == one
    others = [
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.4), Own(3)),
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(4)),
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(3).double()),
        nn.Sequential(nn.Linear(2, 3).double(), nn.Dropout(0.5), Own(3)),
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)),
        nn.Sequential(),
    ]
    found = [describe_model(other) for other in others]
    assert all(each not in [one, *found[:number]] for number, each in enumerate(found))


@pytest.mark.parametrize(
    ("now", "before", "message"),
    [
        (["A()", "b B()"], ["A()", "b C()"], "its model has b C(), not b B()"),
        (["A()"], ["A()", "b C()"], "its model has b C(), not nothing more"),
        (["A()", "b B()"], ["C()"], "its model has C(), not A()"),
        (["A()"], None, "its model has None, not A()"),
    ],
)
def test_the_first_module_that_differs_is_told(tmp_path, now, before, message):
    with pytest.raises(RunError) as caught:
        check_alike({"model": now}, {"model": before}, tmp_path)
    assert str(caught.value) == f"{tmp_path} holds another experiment: {message}"


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


def test_samples_count_unless_they_are_not_there(tmp_path):
    other = {**named("a"), "tasks": [{"name": "a", "train": "2 samples", "test": "1 sample"}]}
    assert check_alike(other, named("a"), tmp_path, data=False) == 1
    with pytest.raises(RunError, match="its task 1, 'a', has "):
        check_alike(other, named("a"), tmp_path)
    with pytest.raises(RunError, match="its task 1 is 'b', not 'a'"):
        check_alike(other, named("b"), tmp_path, data=False)


def test_tasks_may_be_added_at_the_end(tmp_path):
    assert check_alike(named("a", "b"), named("a", "b"), tmp_path) == 2
    assert check_alike(named("a", "b", "c"), named("a"), tmp_path) == 1


def test_tasks_after_those_that_count_may_be_others(tmp_path):
    known = {**named("a", "b", "c"), "learner": {"margin": 1, "tasks": {"b": 1, "c*": 2}}}

    def alike(*names, at_least=1, **settings):
        learner = {"margin": 1, "tasks": settings}
        return check_alike(
            {**named(*names), "learner": learner}, known, tmp_path, at_least=at_least
        )

    own = {"b": 1, "c*": 2}
    assert alike("a", "b", "c", **own) == 3
    assert alike("a", "b", "c", "d", **own) == 3
    assert alike("a", "b", "x", **own) == 2
    assert alike("a", "b", b=1) == 2
    assert alike("a", "b", "c", **{**own, "c*": 3}) == 2
    assert alike("a", "b", "c", **{**own, "b": 3}) == 1
    assert alike("a") == 1
    with pytest.raises(RunError, match=r"its learner\.tasks\.b is 1, not 3"):
        alike("a", "b", "c", at_least=2, **{**own, "b": 3})
    with pytest.raises(RunError, match="has a task that is not given: 'b'"):
        alike("a", at_least=2)


def test_of_patterns_the_first_that_fits_counts(tmp_path):
    def settings(**own):
        return {**named("a1", "a2"), "learner": {"tasks": own}}

    def alike(now, before):
        return check_alike(now, before, tmp_path, at_least=0)

    known = settings(**{"*2": 1, "a*": 2})
    assert alike(known, known) == 2
    assert alike(settings(**{"a*": 2, "*2": 1}), known) == 1
    assert alike(settings(**{"a2": 1, "a*": 2}), known) == 2
    assert alike(settings(**{"a1": 2, "a2": 1, "*": 5}), known) == 2
    assert alike(settings(**{"a1": 3, "a2": 1}), known) == 0


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
