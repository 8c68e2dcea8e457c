import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from clnp.errors import ArgumentError
from clnp.training.objective import CLASSIFICATION, REGRESSION, Objective, accuracy
from clnp.training.task import Task, TaskData, load, load_test

CPU = torch.device("cpu")
OWN = Objective("regression", F.l1_loss, lambda outputs, targets: 0.0)


def labelled(count: int = 20, *, num_labels: int = 4) -> tuple[Tensor, Tensor]:
    return torch.arange(count * 3.0).reshape(count, 3), torch.arange(count) % num_labels


def loaded(train: Any, validation: Any = None, test: Any = None, **options: Any) -> TaskData:
    given = {k: options.pop(k) for k in ("num_outputs", "objective") if k in options}
    return load(Task("flowers", train, validation, test, **given), CPU, **options)


def message_of(*args: Any, **options: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        loaded(*args, **options)
    return str(caught.value)


def with_targets(targets: Any) -> tuple[Tensor, Tensor]:
    targets = torch.as_tensor(targets)
    return torch.zeros(len(targets), 3), targets


class Samples(Dataset):
    """The samples of a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Any:
        return self.samples[place]


class Stream(IterableDataset):
    """Samples without places, though their number is known."""

    def __len__(self) -> int:
        return 1

    def __iter__(self):
        yield torch.zeros(3), 0


def test_given_parts_are_taken_as_they_are():
    train, validation, test = labelled(20), labelled(8), labelled(4)
    data = loaded(train, validation, test)
    assert data.task.name == "flowers"
    assert data.objective is CLASSIFICATION
    assert data.num_outputs == 4
    for found, given in ((data.train, train), (data.validation, validation), (data.test, test)):
        assert torch.equal(found.inputs, given[0])
        assert torch.equal(found.targets, given[1])
        assert found.device == CPU


def test_validation_data_is_split_off_when_there_is_none():
    train = labelled(40)
    data = loaded(train)
    assert (len(data.train), len(data.validation), data.test) == (36, 4, None)
    rows = torch.cat([data.train.inputs, data.validation.inputs])
    assert torch.equal(rows[rows[:, 0].argsort()], train[0])
    assert len(loaded(train, validation_fraction=0.5).validation) == 20


def test_the_split_depends_on_the_seed_and_on_the_task():
    train = labelled(100)

    def apart(name: str, seed: int) -> list[float]:
        return load(Task(name, train), CPU, seed=seed).validation.inputs[:, 0].tolist()

    assert apart("flowers", 0) == apart("flowers", 0)
    assert len({tuple(apart(n, s)) for n in ("flowers", "trees") for s in (0, 1)}) == 4


def test_a_task_too_small_to_split_is_refused():
    assert message_of(labelled(4)) == (
        "task 'flowers': 0.1 of 4 training samples leaves an empty part; "
        "give validation data, or another fraction"
    )


def test_datasets_are_loaded_as_they_are_asked_for():
    dataset = TensorDataset(*labelled(20))
    data = loaded(dataset, labelled(8))
    assert torch.equal(data.train.inputs, labelled(20)[0])
    data = loaded(dataset, dataset, resident=False, num_workers=2)
    assert data.train.inputs is None
    assert data.validation.num_workers == 2
    assert data.validation.inputs is None


def test_labels_may_be_python_numbers():
    dataset = Samples([(torch.zeros(3), label) for label in [0, 1, 2, 1]])
    data = loaded(dataset, labelled(8, num_labels=2))
    assert data.num_outputs == 3
    assert data.train.targets.tolist() == [0, 1, 2, 1]
    dataset = Samples([(np.zeros(3, dtype=np.float32), np.int64(label)) for label in [0, 1]])
    assert loaded(dataset, dataset).num_outputs == 2


@pytest.mark.parametrize(
    ("objective", "targets", "num_outputs"),
    [
        ("classification", [0, 2, 1, 0], 3),
        ("classification", [0, 0, 0, 0], 1),
        ("multi-label", [[0, 1, 1], [1, 1, 0]], 3),
        ("multi-label", [0, 1], 1),
        ("regression", [[0.5, 1.5], [2.5, 3.5]], 2),
        ("regression", [[0.5], [2.5]], 1),
        ("regression", [0.5, 2.5], 1),
        (REGRESSION, [0.5, 2.5], 1),
    ],
)
@pytest.mark.parametrize("resident", [None, False])
def test_the_number_of_outputs_is_found_from_the_targets(objective, targets, num_outputs, resident):
    train = with_targets(targets)
    data = loaded(train, train, objective=objective, resident=resident)
    assert data.num_outputs == num_outputs


def test_a_rare_label_that_was_split_off_counts():
    for place in range(10):
        targets = torch.zeros(10, dtype=torch.int64)
        targets[place] = 6
        assert loaded(with_targets(targets)).num_outputs == 7


def test_the_number_of_outputs_may_be_given():
    assert loaded(labelled(), num_outputs=9).num_outputs == 9
    own = Objective("own", F.cross_entropy, accuracy)
    data = loaded(labelled(), objective=own, num_outputs=7)
    assert data.num_outputs == 7
    assert data.objective is own


@pytest.mark.parametrize("resident", [None, False])
def test_an_own_objective_needs_the_number_of_outputs(resident):
    # Even if it is called like one that is built in.
    assert message_of(labelled(), objective=OWN, resident=resident) == (
        "task 'flowers': give num_outputs, which only you know for an objective of your own"
    )


def test_an_unknown_objective_is_refused():
    assert "did you mean 'regression'?" in message_of(labelled(), objective="regresion")


PARTS = ("training", "validation", "test")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((torch.zeros(0, 3), torch.zeros(0)), " is empty"),
        (Samples([]), " is empty"),
        ((torch.zeros(5, 3), torch.zeros(4)), ": 5 inputs and 4 targets"),
        ((torch.zeros(5, 3),), ": expected a pair of tensors, inputs and targets, not (Tensor)"),
        (
            [torch.zeros(5)] * 3,
            ": expected a pair of tensors, inputs and targets, not (Tensor, Tensor, Tensor)",
        ),
        (
            (torch.zeros(2, 3), [0, 1]),
            ": expected a pair of tensors, inputs and targets, not (Tensor, list)",
        ),
        (
            (torch.tensor(1.0), torch.tensor(1)),
            ": expected a pair of tensors, inputs and targets, not (a tensor without an axis, "
            "a tensor without an axis)",
        ),
        (
            (torch.tensor([[0.0, math.nan, 0.0]]), torch.tensor([0])),
            ": an input is NaN or infinite",
        ),
        (
            (torch.tensor([[0.0, -math.inf, 0.0]]), torch.tensor([0])),
            ": an input is NaN or infinite",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([0.0, 1.0])),
            ": the targets are torch.float32 of shape (2,); "
            "classification needs one whole number for each sample",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([0.0, math.nan])),
            ": the targets are torch.float32 of shape (2,); "
            "classification needs one whole number for each sample",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([[0, 1], [1, 0]])),
            ": the targets are torch.int64 of shape (2, 2); "
            "classification needs one whole number for each sample",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([-1, 1])),
            ": labels go from -1 to 1; a task with {num_outputs} outputs has labels from 0 to "
            "{highest}",
        ),
    ],
)
def test_bad_data_is_refused_by_the_name_of_its_part(bad, message, part):
    parts = {"train": labelled(), "validation": labelled(), "test": labelled()}
    parts["train" if part == "training" else part] = bad
    num_outputs = 2 if part == "training" else 4
    message = message.format(num_outputs=num_outputs, highest=num_outputs - 1)
    # The good parts have two labels where the bad one is to say how many there are.
    if part == "training":
        parts["validation"] = parts["test"] = labelled(num_labels=2)
    assert message_of(**parts) == f"task 'flowers', {part} data{message}"


@pytest.mark.parametrize("part", PARTS)
def test_labels_above_the_number_of_outputs_are_refused(part):
    parts = {"train": labelled(num_labels=3), "validation": labelled(num_labels=3)}
    parts["train" if part == "training" else part] = labelled(num_labels=6)
    assert message_of(**parts, num_outputs=5) == (
        f"task 'flowers', {part} data: labels go from 0 to 5; a task with 5 outputs has labels "
        "from 0 to 4"
    )


def test_labels_that_are_not_in_the_training_data_are_refused():
    assert message_of(labelled(num_labels=3), labelled(num_labels=4)) == (
        "task 'flowers', validation data: labels go from 0 to 3; a task with 3 outputs has labels "
        "from 0 to 2"
    )


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (3, "int"),
        (iter([]), "list_iterator"),
        (torch.zeros(5, 3), "Tensor"),
        (np.zeros((5, 3)), "ndarray"),
        ({"inputs": torch.zeros(5)}, "dict"),
        ("train.pt", "str"),
        (Stream(), "Stream"),
    ],
)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_no_data_is_refused(data, kind, part):
    parts = {"train": labelled(), part.replace("ing", ""): data}
    assert message_of(**parts) == (
        f"task 'flowers', {part} data is a {kind}; "
        "expected a pair of tensors or a map-style Dataset"
    )


def test_a_task_needs_training_data():
    assert message_of(None) == (
        "task 'flowers' has no training data; give a pair of tensors or a map-style Dataset"
    )


@pytest.mark.parametrize("resident", [None, False])
def test_a_list_of_samples_is_a_data_set(resident):
    inputs, targets = labelled()
    samples = [(x, int(y)) for x, y in zip(inputs, targets, strict=True)]
    for given in (samples, tuple(samples), samples[:2]):
        found = loaded(given, given, given, resident=resident)
        num = len(given)
        for batches in (found.train, found.validation, found.test):
            ((x, y),) = batches.batches(100)
            assert torch.equal(x, inputs[:num])
            assert torch.equal(y, targets[:num])
    apart = loaded(samples, resident=resident, validation_fraction=0.5)
    assert len(apart.train) + len(apart.validation) == len(samples)


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        (torch.zeros(2), "a Tensor"),
        ((torch.zeros(3), 0, 1), "(Tensor, int, int)"),
        ((torch.zeros(3), "rose"), "(Tensor, str)"),
        ((object(), 1), "(object, int)"),
        ({"input": 1, "target": 2}, "a dict"),
    ],
)
def test_samples_must_be_pairs(sample, found):
    assert message_of(labelled(), Samples([sample, sample])) == (
        f"task 'flowers', validation data: a sample is {found}; expected a pair, a tensor and its "
        "target, a tensor or a number"
    )


def test_what_is_in_a_list_must_be_pairs():
    assert message_of(labelled(), [(torch.zeros(3), "rose")] * 4) == (
        "task 'flowers', validation data: a sample is (Tensor, str); expected a pair, a tensor and "
        "its target, a tensor or a number"
    )


@pytest.mark.parametrize("targets", [[[0.0, 0.5]], [[0.0, 2.0]], [[0, -1]], [[math.nan, 1.0]]])
def test_multi_label_targets_must_be_0_or_1(targets):
    good = with_targets([[0, 1], [1, 0]])
    assert message_of(good, with_targets(targets), objective="multi-label") == (
        "task 'flowers', validation data: multi-label targets must be 0 or 1"
    )


def test_multi_label_targets_may_be_of_any_type():
    for dtype in (torch.float32, torch.int64, torch.bool):
        train = with_targets(torch.tensor([[0, 1], [1, 1]]).to(dtype))
        assert loaded(train, train, objective="multi-label").num_outputs == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("objective", ["regression", OWN])
def test_targets_that_are_not_finite_are_refused(value, objective):
    good, bad = with_targets([[0.5], [1.5]]), with_targets([[0.5], [value]])
    assert message_of(good, good, bad, objective=objective, num_outputs=1) == (
        "task 'flowers', test data: a target is NaN or infinite"
    )


@pytest.mark.parametrize("objective", ["regression", "multi-label"])
def test_targets_of_another_width_are_refused(objective):
    two, three = with_targets([[0.0, 1.0]]), with_targets([[0.0, 1.0, 1.0]])
    assert message_of(two, three, objective=objective) == (
        f"task 'flowers', validation data: the targets have shape (1, 3); {objective} with "
        "2 outputs needs 2 for each sample"
    )
    assert "training data: the targets have shape (1, 2)" in message_of(
        two, two, objective=objective, num_outputs=1
    )


def test_whole_inputs_are_not_asked_to_be_finite():
    inputs = torch.zeros(4, 3, dtype=torch.int64)
    assert loaded((inputs, torch.arange(4)), (inputs, torch.arange(4))).num_outputs == 4


def test_bad_values_far_down_are_found():
    inputs, targets = labelled(5000)
    inputs[4999, 2] = math.nan
    assert "an input is NaN" in message_of((inputs, targets), labelled())


def test_streamed_values_are_checked_unless_told_not_to():
    train = (torch.full((4, 3), math.nan), torch.arange(4))
    with pytest.raises(ArgumentError, match="training data: an input is NaN or infinite"):
        loaded(train, train, resident=False)
    assert loaded(train, train, resident=False, check=False).train.inputs is None
    labels = (torch.zeros(4, 3), torch.arange(4))
    task = Task("a", labels, labels, num_outputs=3)
    with pytest.raises(ArgumentError, match="labels go from 0 to 3; a task with 3 outputs"):
        load(task, torch.device("cpu"), resident=False)


def test_resident_values_are_checked_always():
    train = (torch.full((4, 3), math.nan), torch.arange(4))
    with pytest.raises(ArgumentError, match="an input is NaN or infinite"):
        loaded(train, train, check=False)


@pytest.mark.parametrize("resident", [True, False])
def test_inputs_are_prepared_batch_by_batch(resident):
    data = (torch.arange(40, dtype=torch.uint8).reshape(20, 2), torch.arange(20) % 2)
    task = Task("a", data, test=data, prepare=lambda x: x.flip(1) / 2)
    found = load(task, torch.device("cpu"), resident=resident)
    for part in (found.train, found.validation, found.test):
        for inputs, _ in part.batches(7, seed=0):
            assert inputs.dtype == torch.float32
            assert torch.equal(inputs[:, 0], inputs[:, 1] + 0.5)
    assert (found.train.inputs is None) is not resident


def test_the_test_data_can_be_loaded_alone():
    data = (torch.ones(5, 2), torch.arange(5) % 2)
    task = Task("a", data, test=data, prepare=lambda x: x + 1)
    cpu = torch.device("cpu")
    ((inputs, targets),) = load_test(task, cpu).batches(9)
    assert torch.equal(inputs, data[0] + 1)
    assert torch.equal(targets, data[1])
    assert load_test(Task("a", data), cpu) is None
    with pytest.raises(ArgumentError, match="task 'a', test data is empty"):
        load_test(Task("a", data, test=(torch.ones(0, 2), torch.ones(0))), cpu)


@pytest.mark.parametrize("num_outputs", [0, -1, "3", 2.5])
def test_a_number_of_outputs_that_makes_no_sense_is_refused(num_outputs):
    task = Task("a", (torch.zeros(20, 2), torch.arange(20) % 2), num_outputs=num_outputs)
    with pytest.raises(ArgumentError, match="it must be a whole number, 1 or more"):
        load(task, torch.device("cpu"))


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_labels_may_be_unsigned(dtype, resident, as_list):
    inputs, targets = labelled()
    given: Any = (inputs, targets.to(dtype))
    data = loaded(list(zip(*given, strict=True)) if as_list else given, resident=resident)
    assert data.num_outputs == 4
    for batches in (data.train, data.validation):
        for x, y in batches.batches(8, seed=0):
            assert y.dtype == torch.int64
            assert torch.equal(y, (x[:, 0] / 3).long() % 4)
    with pytest.raises(ArgumentError, match="labels go from 0 to 3"):
        loaded(given, num_outputs=2)


@pytest.mark.parametrize("resident", [False, True])
def test_prepare_returns_a_tensor(resident):
    task = Task("flowers", labelled(), test=labelled(), prepare=lambda inputs: None)
    message = "task 'flowers': prepare returns a NoneType; it must return the inputs as the network"
    with pytest.raises(ArgumentError, match=message) as caught:
        load(task, CPU, resident=resident)
    assert caught.value.argument == "prepare"
    test = load_test(task, CPU, resident=resident)
    with pytest.raises(ArgumentError, match=message):
        next(test.batches(4))


def test_prepare_is_a_function():
    message = "task 'flowers': prepare is a float; it must be a function of the inputs"
    with pytest.raises(ArgumentError, match=message):
        load(Task("flowers", labelled(), prepare=0.5), CPU)
