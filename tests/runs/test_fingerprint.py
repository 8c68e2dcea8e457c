from argparse import Namespace
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from clnp import Objective, Task
from clnp.data.labelled import Prepare
from clnp.errors import ArgumentError, RunError
from clnp.records import RunConfig, TaskDescription
from clnp.runs import fingerprint as module
from clnp.runs.fingerprint import check_alike, describe_model, fingerprints, plain
from support.callables import Scale, Shifted, made

X, Y = torch.arange(600.0).reshape(200, 3), torch.arange(200) % 3


def texts(values):
    return [str(plain(value)) for value in values]


def test_settings_are_described_by_their_values_and_functions_by_name():
    assert plain({1: (2, [None, "x"]), "f": nn.functional.relu, "g": Task}) == {
        "1": [2, [None, "x"]],
        "f": "torch.nn.functional.relu",
        "g": "clnp.task.Task",
    }
    assert plain({"b", "a"}) == ['"a"', '"b"']


def test_the_description_of_a_recipe_is_that_of_earlier_versions():
    """A run that was started by one of them must be resumed."""
    tasks = [
        Task("a", (X, Y), test=(X[:9], Y[:9]), prepare=Prepare(16.0, torch.arange(2, -1, -1))),
        Task("b", (X, Y), prepare=Prepare(255.0, mean=(0.5,), deviation=(0.25,))),
    ]
    one, two = fingerprints(tasks)
    assert one == TaskDescription(
        name="a",
        objective="classification",
        prepare="clnp.labelled.Prepare 865a2168",
        train="200 samples, dcfe75e4a4a1924b",
        test="9 samples, 6288b338d8a5c2c3",
    )
    assert two.prepare == "clnp.labelled.Prepare d0733499"
    assert plain(Prepare.__call__) == "clnp.labelled.Prepare.__call__"


def test_the_description_of_a_function_is_that_of_earlier_versions():
    def scaled(x, k=3):
        return x * k

    text = f"{module._code(scaled.__code__)} [[3], {{}}, {{}}]"
    name = f"{__name__}.{scaled.__qualname__}"
    assert plain(scaled) == f"{name} {module._hash(text)}"


MAKERS = [
    Shifted,
    lambda value: Shifted(torch.tensor([value])),
    lambda value: Shifted(np.array([value])),
    lambda value: Shifted({"a": [Shifted(value)]}),
    lambda value: Shifted(value).__call__,
    lambda value: nn.Sequential(nn.Dropout(value), nn.ReLU()),
    lambda value: nn.CrossEntropyLoss(torch.tensor([value, 1.0])),
    lambda value: partial(Shifted(value), 3),
    made,
    lambda value: partial(made, gain=value),
    lambda value: made({1, value}),
    lambda value: made(Namespace(a=value)),
    lambda value: made(np.float32(value)),
    lambda value: made(str(value).encode()),
]


def test_objects_are_described_by_their_settings():
    found = []
    for make in MAKERS:
        for value in (0.25, 0.5):
            one = str(plain(make(value)))
            assert str(plain(make(value))) == one
            found.append(one)
    assert len(set(found)) == len(found)
    assert not any("unknown" in each for each in found)


def test_functions_and_objects_are_described_by_their_code():
    def other(scale):
        return type("Scale", (Scale,), {"__call__": scale})(1)

    one, again = texts([lambda x: x.weight, lambda x: x.weight])
    others = [
        lambda x: x.bias,
        lambda x: x.weight + 1,
        lambda x, gain=2: x.weight,
        lambda x, gain=3: x.weight,
        lambda x, *, gain=3: x.weight,
        lambda x: [each for each in x.weight],
        lambda x: [each + 1 for each in x.weight],
        other(lambda self, x: x * 2),
        other(lambda self, x: x * 3),
    ]
    assert one == again
    assert len({one, *texts(others)}) == len(others) + 1


def test_functions_may_refer_to_themselves_and_to_variables_that_are_not_assigned():
    def recursive(num):
        def again(x, n=num):
            return other(x, n - 1) if n else x

        def other(x, n):
            return again(x, n)

        return again

    def early(fill):
        def inner(x):
            return later(x)

        if fill:
            later = abs
        return inner

    assert plain(recursive(2)) == plain(recursive(2)) != plain(recursive(3))
    assert plain(early(False)) != plain(early(True))
    ring = [1]
    ring.append(ring)
    assert plain(ring) == [1, "..."]


def test_each_of_many_functions_that_refer_to_each_other_is_described_once(monkeypatch):
    def mutual(num, last):
        def calling(gain):
            return lambda x: sum(each(x) for each in functions) * gain

        functions = [calling(gain) for gain in [*range(num - 1), last]]
        return functions[0]

    described = []
    describe = module._describe_function
    monkeypatch.setattr(
        module, "_describe_function", lambda *args: described.append(args[0]) or describe(*args)
    )
    plain(mutual(12, last=1))
    assert len(described) == 12
    assert plain(mutual(12, last=1)) == plain(mutual(12, last=1)) != plain(mutual(12, last=2))


def test_what_functions_share_does_not_change_their_descriptions():
    def adding(num):
        return lambda x: x + num

    def both(one, other):
        return lambda x: one(x) * other(x)

    one = adding(1)
    assert plain(both(one, one)) == plain(both(one, adding(1)))
    assert plain([one, one]) == [plain(one)] * 2


def test_a_set_in_the_code_of_a_function_has_the_same_description_in_every_process():
    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert repr(one) != repr(other)  # As with texts in processes with other hashes.
    assert module._code((one,)) == module._code((other,))


def test_using_a_preparation_does_not_change_its_description():
    prepare = Prepare(2.0, torch.tensor([2, 1, 0]), mean=(1.0,), deviation=(2.0,))
    before = plain(prepare)
    prepare(torch.ones(4, 3))
    assert plain(prepare) == before
    assert before not in texts([Prepare(2.0), replace(prepare, order=torch.tensor([2, 0, 1]))])


def fingerprint(task):
    return fingerprints([task])[0]


def test_tasks_are_told_apart():
    def custom(loss, score):
        return Objective("mine", loss, score)

    one = custom(lambda o, t: o.sum(), lambda o, t: 0.0)
    same = custom(lambda o, t: o.sum(), lambda o, t: 0.0)
    tasks = [
        Task("a", (X, Y), test=(X, Y)),
        Task("a", (X + 1, Y), test=(X, Y)),
        Task("a", (X, Y.flip(0)), test=(X, Y)),
        Task("a", (X[:-1], Y[:-1]), test=(X, Y)),
        Task("a", (X, Y)),
        Task("a", (X, Y), validation=(X, Y), test=(X, Y)),
        Task("a", (X, Y), test=(X, Y), num_outputs=3),
        Task("a", (X, Y), test=(X, Y), objective="multi-label"),
        Task("a", (X, Y), prepare=lambda x: x),
        Task("a", (X, Y), prepare=lambda x: -3 * x),
        Task("a", Subset(TensorDataset(X, Y), [1, 2, 3])),
        Task("a", Subset(TensorDataset(X, Y), [1, 2, 4])),
        Task("a", (X, Y), objective=one),
        Task("a", (X, Y), objective=custom(lambda o, t: o.mean(), lambda o, t: 0.0)),
        Task("a", (X, Y), objective=custom(lambda o, t: o.sum(), lambda o, t: 1.0)),
    ]
    found = list(map(str, fingerprints(tasks)))
    assert len(set(found)) == len(found)
    assert fingerprint(Task("a", (X.clone(), Y.clone()), test=(X, Y))) == fingerprint(tasks[0])
    assert fingerprint(Task("a", (X, Y), objective=same)) == fingerprint(tasks[12])


@pytest.mark.parametrize(
    "kind",
    [
        lambda x, y: (x, y),
        TensorDataset,
        lambda x, y: [(a, int(b)) for a, b in zip(x, y, strict=True)],
        lambda x, y: Subset(TensorDataset(x, y), range(0, 200, 2)),
    ],
)
def test_every_number_of_data_in_tensors_counts(kind):
    def of(x, y):
        return fingerprint(Task("a", kind(x, y))).train

    one = of(X, Y)
    assert of(X.clone(), Y.clone()) == one
    for index in (0, 66, 198):
        x, y = X.clone(), Y.clone()
        x[index, 1] += 1e-3
        y[index] += 1
        assert len({one, of(x, Y), of(X, y)}) == 3
    assert one not in (of(X.double(), Y), of(X.reshape(200, 1, 3), Y))


class Squares(Dataset):
    """Samples that are made when they are read."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.full((3,), float(index**2)), 0


@pytest.mark.parametrize(
    "train",
    [
        Squares(),
        Subset(Squares(), range(3)),
        [(torch.zeros(2), 0), (torch.zeros(3), 0), (torch.zeros(2), 1)],
        [("one", 0), ("two", 1), ("two", 1)],
    ],
)
def test_other_data_is_described_by_its_size(train):
    assert fingerprint(Task("a", train)).train == "3 samples"


def test_the_memory_format_of_a_tensor_does_not_count(monkeypatch):
    def of(x, y):
        return fingerprint(Task("a", (x, y))).train

    columns, wide = X.t().contiguous().t(), torch.stack([Y, Y], 1)
    one = of(X, Y)
    assert of(columns, Y) == of(X, wide[:, 0]) == of(X.clone().requires_grad_(), Y) == one
    assert of(X[:1], wide[:1, 0]) == of(X[:1], Y[:1])
    monkeypatch.setattr(module, "CHUNK_BYTES", 50)
    assert of(columns, Y) == one


def test_tensors_that_tasks_share_are_read_once_and_as_they_are_stored(monkeypatch):
    read = []
    checksum = module._checksum
    monkeypatch.setattr(module, "_checksum", lambda t: read.append(t) or checksum(t))
    stored = X.to(torch.uint8)
    pair = (stored, Y)
    tasks = [Task(name, pair, test=pair, prepare=Prepare(255.0)) for name in ("a", "b")]
    found = fingerprints(tasks)
    assert [each.dtype for each in read] == [torch.uint8, torch.int64]
    assert found == tuple(fingerprint(task) for task in tasks)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (None, "task 'a' has no training data"),
        ((X.numpy(), Y.numpy()), r"training data is \(ndarray, ndarray\). Give a pair of tensors"),
        ([], "task 'a', training data is empty"),
    ],
)
def test_data_of_other_kinds_is_refused(train, message):
    with pytest.raises(ArgumentError, match=message):
        fingerprint(Task("a", train))


class Own(nn.Module):
    """A module with a tensor, whose settings are not shown."""

    def __init__(self, size):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))


def test_a_model_is_described_by_its_layers_their_sizes_and_settings():
    one = describe_model(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(3)))
    assert one == [
        "Sequential()",
        "0 Linear(in_features=2, out_features=3, bias=True)",
        "1 Dropout(p=0.5, inplace=False)",
        "2 Own(), gain [3]",
    ]
    others = [
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.4), Own(3)),
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(4)),
        nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Own(3).double()),
        nn.Sequential(nn.Linear(2, 3).double(), nn.Dropout(0.5), Own(3)),
    ]
    assert len({str(one), *(str(describe_model(other)) for other in others)}) == 5


def config(*names, **changes):
    """The config of an experiment with tasks of these names."""
    tasks = tuple(TaskDescription(name, train="1 sample") for name in names)
    return replace(RunConfig(format=1, tasks=tasks, model=("A()", "b B()"), seed=1), **changes)


KNOWN = config("a", "b", "c", learner={"a": {"b": 2}})


def test_a_run_may_have_a_recipe_and_fewer_tasks(tmp_path):
    assert check_alike(KNOWN, replace(KNOWN, recipe="mine", data="here"), tmp_path) == 3
    assert check_alike(KNOWN, replace(KNOWN, tasks=KNOWN.tasks[:1]), tmp_path) == 1
    tuples = config("a", learner={"alphas": (1.0, float("nan"))})
    assert check_alike(tuples, config("a", learner={"alphas": [1.0, "nan"]}), tmp_path) == 1


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (config("a", "x", "c", "d"), "its task 2 is 'b', not 'x'. Restore"),
        (replace(KNOWN, seed=2), "its seed is 1, not 2"),
        (replace(KNOWN, tasks=(TaskDescription("a"),)), "its task 1, 'a', has train '1 sample', n"),
        (replace(KNOWN, model=("A()", "b C()")), r"its model has b B\(\), not b C\(\)"),
        (replace(KNOWN, model=("A()",)), r"its model also has b B\(\)"),
        (replace(KNOWN, model=(*KNOWN.model, "c C()")), r"its model does not have c C\(\)"),
        (replace(KNOWN, model=("C()",)), r"its model has A\(\), not C\(\)"),
        (replace(KNOWN, learner={"a": {"b": 1}}), "its learner.a.b is 2, not 1"),
        (replace(KNOWN, learner={"a": {"b": 2, "c": 3}}), "its learner.a.c is None, not 3"),
        (replace(KNOWN, learner={"a": [1]}), r"its learner.a is {'b': 2}, not \[1\]"),
        (replace(KNOWN, baseline={"c": 1}), r"its baseline.c is None, not 1"),
    ],
)
def test_the_first_difference_is_named(now, message, tmp_path):
    with pytest.raises(RunError, match=f"contains another experiment: {message}"):
        check_alike(now, KNOWN, tmp_path)


def test_samples_count_unless_data_is_missing(tmp_path):
    other = config(tasks=(TaskDescription("a", train="2 samples", test="1 sample"),))
    assert check_alike(other, config("a"), tmp_path, data=False) == 1
    with pytest.raises(RunError, match="its task 1, 'a', has "):
        check_alike(other, config("a"), tmp_path)
    with pytest.raises(RunError, match="its task 1 is 'b', not 'a'"):
        check_alike(other, config("b"), tmp_path, data=False)


def test_only_the_first_tasks_must_be_the_same_with_their_settings(tmp_path):
    known = replace(KNOWN, learner={"margin": 1, "tasks": {"b": 1, "c*": 2}})

    def alike(*names, at_least=1, **settings):
        now = config(*names, learner={"margin": 1, "tasks": settings})
        return check_alike(now, known, tmp_path, at_least=at_least)

    own = {"b": 1, "c*": 2}
    assert alike("a", "b", "c", **own) == 3
    assert alike("a", "b", "x", **own) == 2
    assert alike("a", "b", b=1) == 2
    assert alike("a", "b", "c", **{**own, "c*": 3}) == 2
    assert alike("a", "b", "c", **{**own, "b": 3}) == 1
    assert alike("a") == 1
    with pytest.raises(RunError, match=r"its learner\.tasks\.b is 1, not 3"):
        alike("a", "b", "c", at_least=2, **{**own, "b": 3})
    with pytest.raises(RunError, match="has a task that the experiment does not have: 'b'"):
        alike("a", at_least=2)


@pytest.mark.parametrize(
    ("now", "num"),
    [
        ({"*2": 1, "a*": 2}, 2),
        ({"a*": 2, "*2": 1}, 1),
        ({"a1": 2, "a2": 1, "*": 5}, 2),
        ({"a1": 3, "a2": 1}, 0),
    ],
)
def test_the_first_pattern_that_fits_a_task_counts(now, num, tmp_path):
    here, there = (config("a1", "a2", learner={"tasks": own}) for own in (now, {"*2": 1, "a*": 2}))
    assert check_alike(here, there, tmp_path, at_least=0) == num


def check(now, before, path):
    here, there = (config("a", learner={"augment": plain(value)}) for value in (now, before))
    check_alike(here, there, path)


class Jitter(nn.Module):
    """A module whose settings are not shown."""

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    "value",
    [
        Scale(1),
        Scale(1).halved,
        partial(Scale(1), 3),
        made(Scale(1)),
        [Scale(1)],
        nn.Sequential(Jitter()),
        nn.BatchNorm1d(2),
    ],
)
def test_resuming_warns_of_objects_that_cannot_be_compared(value, tmp_path):
    with pytest.warns(UserWarning, match=r"^learner\.augment.*: objects whose state is unknown"):
        check(value, value, tmp_path)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (Shifted(1.0), Shifted(2.0)),
        (nn.Dropout(0.5), nn.Dropout(0.4)),
        (made(1), made(2)),
        (made(torch.float32), made(torch.float64)),
        (lambda x: x, lambda x: x + 1),
    ],
)
def test_other_code_and_settings_are_refused(now, before, tmp_path):
    check(now, now, tmp_path)
    with pytest.raises(RunError, match=r"another experiment: its learner\.augment is"):
        check(now, before, tmp_path)


def test_labels_count_as_the_outputs_that_they_stand_for():
    x, y = torch.arange(6.0)[:, None], torch.tensor([0, 1, 0, 1, 1, 0])
    (alike,) = fingerprints([Task("a", (x, y), num_outputs=2)])
    for classes, equal in (((4, 7), True), ((7, 4), False)):
        task = Task("a", (x, y * 3 + 4), num_outputs=2, classes=classes)
        assert (fingerprints([task]) == (alike,)) == equal


def test_the_classes_of_a_data_set_count():
    samples = TensorDataset(torch.zeros(6, 1), torch.tensor([4, 7] * 3))
    texts = {fingerprints([Task("a", samples, classes=c)])[0].train for c in ((4, 7), (7, 4))}
    assert len(texts) == 2
