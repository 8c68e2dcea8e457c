import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from clnp import LearnerConfig
from clnp.errors import ArgumentError
from clnp.training.objective import CLASSIFICATION, REGRESSION, Objective, accuracy
from clnp.training.task import Task, TaskData, load, load_test

CPU = torch.device("cpu")
PAIR = "Give a pair of tensors, inputs and targets, with one target for each input"
OWN = Objective("regression", F.l1_loss, lambda outputs, targets: 0.0)


def labelled(count: int = 20, *, num_labels: int = 4) -> tuple[Tensor, Tensor]:
    return torch.arange(count * 3.0).reshape(count, 3), torch.arange(count) % num_labels


def loaded(train: Any, validation: Any = None, test: Any = None, **options: Any) -> TaskData:
    given = {k: options.pop(k) for k in ("num_outputs", "objective") if k in options}
    return load(Task("flowers", train, validation, test, **given), CPU, LearnerConfig(**options))


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

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Stream(IterableDataset):
    """Samples without an index, though their number is known."""

    def __len__(self) -> int:
        return 1

    def __iter__(self):
        yield torch.zeros(3), 0


def test_given_parts_are_used_as_they_are():
    train, validation, test = labelled(20), labelled(8), labelled(4)
    data = loaded(train, validation, test)
    assert data.task.name == "flowers"
    assert data.objective is CLASSIFICATION
    assert data.num_outputs == 4
    for found, given in ((data.train, train), (data.validation, validation), (data.test, test)):
        assert torch.equal(found.inputs, given[0])
        assert torch.equal(found.targets, given[1])
        assert found.device == CPU


def test_validation_data_is_held_out_by_seed_and_task():
    train = labelled(100)
    data = loaded(train)
    assert (len(data.train), len(data.validation), data.test) == (90, 10, None)
    rows = torch.cat([data.train.inputs, data.validation.inputs])
    assert torch.equal(rows[rows[:, 0].argsort()], train[0])
    assert len(loaded(train, validation_fraction=0.5).validation) == 50

    def apart(name: str, seed: int) -> list[float]:
        return load(Task(name, train), CPU, seed=seed).validation.inputs[:, 0].tolist()

    assert apart("flowers", 0) == apart("flowers", 0)
    assert len({tuple(apart(n, s)) for n in ("flowers", "trees") for s in (0, 1)}) == 4
    assert message_of(labelled(4)).startswith("task 'flowers': holding out 0.1 of 4 training samp")


def test_data_is_read_by_workers_as_the_config_says():
    config = LearnerConfig(resident=False, num_workers=2, check_data=False)
    data = load(Task("a", labelled(40), num_outputs=4), CPU, config)
    assert (data.train.inputs, data.train.num_workers) == (None, 2)


def test_targets_of_a_dataset_may_be_python_or_numpy_numbers():
    dataset = Samples([(torch.zeros(3), label) for label in [0, 1, 2, 1]])
    data = loaded(dataset, labelled(8, num_labels=2))
    assert data.num_outputs == 3
    assert data.train.targets.tolist() == [0, 1, 2, 1]
    dataset = Samples([(np.zeros(3, dtype=np.float32), np.int64(label)) for label in [0, 1]])
    assert loaded(dataset, dataset).num_outputs == 2
    assert torch.equal(
        loaded(TensorDataset(*labelled())).train.inputs, loaded(labelled()).train.inputs
    )


@pytest.mark.parametrize(
    ("objective", "targets", "num_outputs"),
    [
        ("classification", [0, 2, 1, 0], 3),
        ("classification", [0, 0, 0, 0], 1),
        ("multi-label", [[0, 1, 1], [1, 1, 0]], 3),
        ("multi-label", [0, 1], 1),
        ("multi-label", [[False, True]], 2),
        ("regression", [[0.5, 1.5], [2.5, 3.5]], 2),
        ("regression", [[0.5], [2.5]], 1),
        (REGRESSION, [0.5, 2.5], 1),
    ],
)
@pytest.mark.parametrize("resident", [None, False])
def test_the_number_of_outputs_is_found_from_the_targets(objective, targets, num_outputs, resident):
    train = with_targets(targets)
    data = loaded(train, train, objective=objective, resident=resident)
    assert data.num_outputs == num_outputs


def test_a_rare_label_that_was_held_out_counts():
    for index in range(10):
        targets = torch.zeros(10, dtype=torch.int64)
        targets[index] = 1
        assert loaded(with_targets(targets)).num_outputs == 2


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(
    ("labels", "words", "classes"),
    [
        ([4, 5, 6, 7], "4, 5, 6 and 7", "(4, 5, 6, 7)"),
        ([0, 1, 3], "0, 1 and 3", "(0, 1, 3)"),
        ([-1, 1], "-1 and 1", "(-1, 1)"),
        ([10**12], "1000000000000", "(1000000000000,)"),
        (
            range(0, 40, 2),
            "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, ... (20)",
            "(0, 2, 4, 6, ...)",
        ),
    ],
)
def test_labels_with_gaps_need_classes(labels, words, classes, resident):
    train = with_targets(list(labels) * 5)
    assert message_of(train, train, resident=resident) == (
        f"task 'flowers', training data: the labels are {words}. Labels count from 0, and each has "
        "an output. Give the task the classes in the order of the outputs, such as "
        f"classes={classes}, or num_outputs if some labels have no samples"
    )


def test_labels_with_gaps_are_used_as_they_are_with_num_outputs():
    data = loaded(with_targets([4, 5, 6, 7] * 5), num_outputs=8)
    assert data.num_outputs == 8
    assert set(data.train.targets.tolist()) <= {4, 5, 6, 7}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("classes", [(9, 4, 200), [9, 4, 200], np.array([9, 4, 200])])
@pytest.mark.parametrize("form", ["tensors", "streamed tensors", "data set", "streamed data set"])
def test_labels_are_mapped_to_their_place_among_the_classes(form, classes, dtype):
    inputs, labels = torch.arange(12.0)[:, None], torch.tensor([4, 9, 200, 9] * 3, dtype=dtype)
    part = TensorDataset(inputs, labels) if "set" in form else (inputs, labels)
    task = Task("flowers", part, part, part, classes=tuple(classes))
    config = LearnerConfig(resident=None if form in ("tensors", "data set") else False)
    data = load(task, CPU, config)
    assert data.num_outputs == 3
    for batches in (data.train, data.validation, data.test, load_test(task, CPU, config)):
        ((x, y),) = batches.batches(100)
        assert torch.equal(x, inputs)
        assert y.tolist() == [1, 0, 2, 0] * 3


@pytest.mark.parametrize("resident", [None, False])
def test_labels_that_are_not_among_the_classes_are_refused(resident):
    good, bad = with_targets([4, 5] * 5), with_targets([5, 6] * 5)
    for part, parts in {"training": (bad, good), "test": (good, good, bad)}.items():
        task = Task("flowers", *parts, classes=(4, 5))
        with pytest.raises(ArgumentError) as caught:
            load(task, CPU, LearnerConfig(resident=resident))
        assert str(caught.value) == (
            f"task 'flowers', {part} data: the label 6 is not in classes, 4 and 5. Add it there, "
            "or leave its samples out"
        )


def test_classes_that_are_texts_name_the_outputs():
    train = with_targets([0, 1] * 5)
    data = load(Task("flowers", train, classes=("rose", "tulip", "daisy")), CPU)
    assert data.num_outputs == 3
    assert set(data.train.targets.tolist()) == {0, 1}


@pytest.mark.parametrize("objective", ["multi-label", OWN])
def test_classes_of_another_objective_change_no_targets(objective):
    train = with_targets(torch.tensor([[0.0, 1.0]]).repeat(10, 1))
    task = Task("flowers", train, objective=objective, classes=(7, 8), num_outputs=2)
    assert torch.equal(load(task, CPU).train.targets[:1], train[1][:1])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (classes, f"task 'flowers': classes is {classes!r}. It must be a list of labels, whole "
         "numbers of 64 bits, or of texts")
        for classes in ("ab", 3, (), (1.0, 2.0), (1, "a"), (True, False), (2**63, 1), {1, 2})
    ]
    + [((1, 1), "task 'flowers': classes contains 1 twice. Give each class once")],
)  # fmt: skip
def test_classes_are_distinct_labels_or_distinct_texts(classes, message):
    with pytest.raises(ArgumentError) as caught:
        load(Task("flowers", labelled(), classes=classes), CPU)
    assert (str(caught.value), caught.value.argument) == (message, "classes")


def test_each_output_has_a_class():
    with pytest.raises(
        ArgumentError, match=r"has 4 outputs and 2 classes. Give one class for each"
    ):
        load(Task("flowers", labelled(), num_outputs=4, classes=(0, 1)), CPU)


def test_the_number_of_outputs_may_be_given():
    assert loaded(labelled(), num_outputs=9).num_outputs == 9
    own = Objective("own", F.cross_entropy, accuracy)
    data = loaded(labelled(), objective=own, num_outputs=7)
    assert data.num_outputs == 7
    assert data.objective is own
    for wrong in (0, "3", 2.5):
        assert "It must be a whole number, 1 or more" in message_of(labelled(), num_outputs=wrong)


def test_objectives_are_checked():
    # Even if it is named like a built-in one.
    assert message_of(labelled(), objective=OWN) == (
        "task 'flowers' has a custom objective and no num_outputs. Set num_outputs"
    )
    assert "Did you mean 'regression'?" in message_of(labelled(), objective="regresion")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Samples([]), " is empty. Give at least one sample"),
        ((torch.zeros(0, 3), torch.zeros(0)), " is empty. Give at least one sample"),
        (
            (torch.zeros(5, 3), torch.zeros(4)),
            f" is (Tensor [5, 3], Tensor [4]). {PAIR}",
        ),
        ((torch.zeros(5, 3),), f" is (Tensor [5, 3]). {PAIR}"),
        ([torch.zeros(5)] * 4, f" is (Tensor [5], Tensor [5], Tensor [5], ...). {PAIR}"),
        ((torch.tensor(1.0), [0]), f" is (Tensor [], list). {PAIR}"),
        (
            (torch.tensor([[0.0, math.nan, 0.0]]), torch.tensor([0])),
            ": an input is NaN or infinite. Remove or replace it",
        ),
        (
            (torch.tensor([[0.0, -math.inf, 0.0]]), torch.tensor([0])),
            ": an input is NaN or infinite. Remove or replace it",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([0.0, 1.0])),
            ": the targets are torch.float32 of shape (2,). "
            "Classification needs one whole number for each sample",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([[0, 1], [1, 0]])),
            ": the targets are torch.int64 of shape (2, 2). "
            "Classification needs one whole number for each sample",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([-1, 1])),
            ": labels go from -1 to 1. A task with 2 outputs has labels from 0 to 1",
        ),
        (
            (torch.zeros(2, 3), torch.tensor([0, 2])),
            ": labels go from 0 to 2. A task with 2 outputs has labels from 0 to 1",
        ),
        *(
            (data, f" is of type {kind}. Give a pair of tensors or a map-style Dataset")
            for data, kind in [
                (3, "int"),
                (iter([]), "list_iterator"),
                (torch.zeros(5, 3), "Tensor"),
                (np.zeros((5, 3)), "ndarray"),
                ({"inputs": torch.zeros(5)}, "dict"),
                ("train.pt", "str"),
                (Stream(), "Stream"),
            ]
        ),
        *(
            (
                data,
                f": a sample is {found}. It must be a pair of an input, a tensor, and a target, a "
                "tensor or a number",
            )
            for data, found in [
                (Samples([torch.zeros(2)]), "a Tensor"),
                (Samples([(torch.zeros(3), 0, 1)]), "(Tensor [3], int, int)"),
                (Samples([{"input": 1, "target": 2}]), "a dict"),
                ([(torch.zeros(3), "rose")] * 4, "(Tensor [3], str)"),
                ([(object(), 1)], "(object, int)"),
            ]
        ),
    ],
)
def test_bad_data_is_refused_with_the_name_of_its_part(bad, message):
    good = labelled(num_labels=2)
    for part, parts in {
        "training": (bad, good, good),
        "validation": (good, bad, good),
        "test": (good, good, bad),
    }.items():
        assert message_of(*parts, num_outputs=2) == f"task 'flowers', {part} data{message}"


def test_labels_that_are_not_in_the_training_data_are_refused():
    assert message_of(labelled(num_labels=3), labelled(num_labels=4)) == (
        "task 'flowers', validation data: labels go from 0 to 3. A task with 3 outputs has labels "
        "from 0 to 2"
    )


def test_a_task_needs_training_data():
    assert message_of(None) == (
        "task 'flowers' has no training data. Give a pair of tensors or a map-style Dataset"
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


@pytest.mark.parametrize("targets", [[[0.0, 0.5]], [[0.0, 2.0]], [[0, -1]]])
def test_multi_label_targets_must_be_0_or_1(targets):
    good = with_targets([[0, 1], [1, 0]])
    message = message_of(good, with_targets(targets), objective="multi-label")
    assert message.startswith("task 'flowers', validation data: a target is neither 0 nor 1. ")


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("objective", ["regression", OWN])
def test_targets_that_are_not_finite_are_refused(value, objective):
    good, bad = with_targets([[0.5], [1.5]]), with_targets([[0.5], [value]])
    message = message_of(good, good, bad, objective=objective, num_outputs=1)
    assert message.startswith("task 'flowers', test data: a target is NaN or infinite. ")


@pytest.mark.parametrize("objective", ["regression", "multi-label"])
def test_targets_of_another_width_are_refused(objective):
    two, three = with_targets([[0.0, 1.0]]), with_targets([[0.0, 1.0, 1.0]])
    assert message_of(two, three, objective=objective) == (
        "task 'flowers', validation data: the targets have shape (1, 3). With 2 outputs, "
        f"{objective} needs 2 for each sample"
    )
    assert "training data: the targets have shape (1, 2)" in message_of(
        two, two, objective=objective, num_outputs=1
    )


def test_integer_inputs_are_not_checked_for_nan():
    inputs = torch.zeros(4, 3, dtype=torch.int64)
    assert loaded((inputs, torch.arange(4)), (inputs, torch.arange(4))).num_outputs == 4


def test_all_values_are_checked_unless_they_are_streamed_without_check():
    inputs, targets = labelled(5000)
    inputs[4999, 2] = math.nan
    bad = inputs, targets
    assert "an input is NaN" in message_of(bad, labelled())
    assert "an input is NaN" in message_of(bad, labelled(), check_data=False)
    assert "an input is NaN" in message_of(bad, labelled(), resident=False)
    assert loaded(bad, labelled(), resident=False, check_data=False).train.inputs is None
    assert "labels go from 0 to 3" in message_of(labelled(), num_outputs=3, resident=False)


@pytest.mark.parametrize("resident", [True, False])
def test_inputs_are_prepared_batch_by_batch(resident):
    data = (torch.arange(40, dtype=torch.uint8).reshape(20, 2), torch.arange(20) % 2)
    task = Task("a", data, test=data, prepare=lambda x: x.flip(1) / 2)
    config = LearnerConfig(resident=resident)
    found = load(task, CPU, config)
    for part in (found.train, found.validation, found.test, load_test(task, CPU, config)):
        for inputs, _ in part.batches(7, seed=0):
            assert inputs.dtype == torch.float32
            assert torch.equal(inputs[:, 0], inputs[:, 1] + 0.5)
    assert (found.train.inputs is None) is not resident


@pytest.mark.parametrize("resident", [False, True])
def test_prepare_must_return_a_tensor(resident):
    task = Task("flowers", labelled(), test=labelled(), prepare=lambda inputs: None)
    message = "task 'flowers', training data: prepare returns a NoneType. It must return the inputs"
    with pytest.raises(ArgumentError, match=message) as caught:
        load(task, CPU, LearnerConfig(resident=resident))
    assert caught.value.argument == "prepare"
    message = "task 'flowers': prepare is of type float. It must be a function of the inputs"
    with pytest.raises(ArgumentError, match=message):
        load(Task("flowers", labelled(), prepare=0.5), CPU)


def test_the_test_data_can_be_loaded_alone():
    data = labelled()
    ((inputs, targets),) = load_test(Task("a", data, test=data), CPU, LearnerConfig()).batches(99)
    assert torch.equal(inputs, data[0])
    assert torch.equal(targets, data[1])
    assert load_test(Task("a", data), CPU, LearnerConfig()) is None


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("resident", [False, True])
def test_labels_may_be_unsigned(resident, as_list):
    inputs, targets = labelled()
    given: Any = (inputs, targets.to(torch.uint16))
    data = loaded(list(zip(*given, strict=True)) if as_list else given, resident=resident)
    assert data.num_outputs == 4
    for batches in (data.train, data.validation):
        for x, y in batches.batches(8, seed=0):
            assert y.dtype == torch.int64
            assert torch.equal(y, (x[:, 0] / 3).long() % 4)
    assert "labels go from 0 to 3" in message_of(given, num_outputs=2)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("check_data", [True, False])
@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            lambda x: None,
            ": prepare returns a NoneType. It must return the inputs of the network, ",
        ),
        (
            lambda x: x[:-1],
            ": prepare returns a tensor of shape [17, 3] for 18 samples. Its first ",
        ),
        (lambda x: x.sum(), ": prepare returns a tensor of shape [] for 18 samples. Its first dim"),
        (lambda x: x.to("meta"), ", prepared: a tensor is on the meta device, without data. Give "),
    ],
)
def test_prepare_returns_an_input_for_each_sample(prepare, message, check_data, resident):
    config = LearnerConfig(check_data=check_data, resident=resident)
    task = Task("flowers", labelled(), prepare=prepare, num_outputs=4)
    with pytest.raises(ArgumentError) as caught:
        [*load(task, CPU, config).train.batches(18, seed=0)]
    assert str(caught.value).startswith(f"task 'flowers', training data{message}")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x: x.to_sparse(), "sparse"),
        (lambda x: x.to("meta"), "on the meta device, without data"),
    ],
)
def test_tensors_are_dense_and_have_data(change, fault):
    x, y = labelled()
    assert message_of((change(x), y)) == (
        f"task 'flowers', training data: a tensor is {fault}. Give dense tensors with data"
    )


def test_a_sample_is_dense_and_has_data():
    for resident in (None, True, False):
        for row in (torch.zeros(3).to_sparse(), torch.zeros(3, device="meta")):
            message = message_of([(row, 0)] * 8, resident=resident)
            assert message.endswith("Give dense tensors with data")


class Long(Samples):
    """A data set of another length than it has samples."""

    def __init__(self, length: Any) -> None:
        super().__init__([(torch.zeros(3), index % 2) for index in range(8)])
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("resident", [None, True, False])
def test_a_data_set_has_as_many_samples_as_it_says(resident):
    for length in (-1, 2.5, 10**30):
        message = message_of(Long(length), resident=resident)
        assert re.fullmatch(
            r"task 'flowers', training data has no length: .*\. Its __len__ must return the number "
            "of samples",
            message,
        )
    assert re.fullmatch(
        r"task 'flowers', training data: reading a sample raises an IndexError, .*\. Its __len__, "
        r"\d+, must be the number of samples",
        message_of(Long(80), resident=resident),
    )
    assert "an order of 1000000000000000 samples needs" in message_of(Long(10**15))


@pytest.mark.parametrize("resident", [None, True, False])
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (None, "a sample is a NoneType. It must be a pair"),
        ((torch.zeros(3), 0, 1), "a sample is (Tensor [3], int, int). It must be a pair"),
        ((torch.zeros(3), "rose"), "a sample is (Tensor [3], str). It must be a pair"),
        ((torch.zeros(2), 0), "samples do not fit into one batch: stack expects each tensor to"),
        ((np.array(["a"]), 0), "a sample is (ndarray, int). It must be a pair"),
    ],
)
def test_every_sample_is_a_pair_of_the_same_shapes(odd, message, resident):
    train = Samples([(torch.zeros(3), index % 2) for index in range(7)] + [odd])
    found = message_of(train, labelled(), resident=resident)
    assert f"task 'flowers', training data: {message}" in found


@pytest.mark.parametrize("objective", ["classification", "regression", "multi-label"])
def test_complex_targets_are_refused(objective):
    train = with_targets(torch.zeros(10, dtype=torch.complex64))
    assert "the targets are torch.complex64" in message_of(train, objective=objective)


def test_the_name_of_an_objective_is_a_text():
    assert message_of(labelled(), objective=["regression"]).startswith("unknown objective ['regr")
