import re

import pytest
import torch

from clnp import LearnerConfig
from clnp.data.labelled import LabelledData
from clnp.data.streams import Chain, Permuted, Split, tasks_of
from clnp.errors import ArgumentError
from clnp.training.task import load_test


def labelled(name="shapes", *, num_classes=10, num_samples=60, missing=()):
    """Samples of 2 x 3 numbers, all of them different."""
    inputs = torch.arange(num_samples * 6.0).reshape(num_samples, 2, 3)
    labels = torch.arange(num_samples) % num_classes
    present = torch.tensor([label not in missing for label in labels.tolist()])
    test = inputs[:20] + 1000, labels[:20]
    return LabelledData(name, (inputs[present], labels[present]), test, num_classes, largest=4.0)


DATA = labelled()


def tasks(stream, *, seed=0, data=DATA):
    return tasks_of(stream, lambda name: data, seed=seed)


def names(stream, **options):
    return [task.name for task in tasks(stream, **options)]


def split(classes_per_task, **options):
    return Split("split", "shapes", classes_per_task, **options)


def message_of(call, *args, **options):
    """The message of the error and the argument that it names."""
    with pytest.raises(ArgumentError) as caught:
        call(*args, **options)
    return str(caught.value), caught.value.argument


def test_permuted_tasks_have_permuted_inputs_and_share_the_data():
    stream = Permuted("permuted", "shapes", 3)
    assert names(stream) == ["shapes permuted 1", "shapes permuted 2", "shapes permuted 3"]
    assert len(tasks(Permuted("permuted", "shapes"))) == 10
    orders = []
    for task in tasks(stream):
        assert (task.num_outputs, task.classes) == (10, tuple(range(10)))
        assert all(own is given for own, given in zip(task.train, DATA.train, strict=True))
        assert all(own is given for own, given in zip(task.test, DATA.test, strict=True))
        order = task.prepare.order
        assert order.sort().values.tolist() == list(range(6))
        orders.append(tuple(order.tolist()))
        inputs = task.prepare(DATA.train[0])
        assert torch.equal(inputs.flatten(1), DATA.train[0].flatten(1)[:, order] / 4)
    assert len(set(orders)) == 3


def test_permutations_depend_only_on_the_seed_the_task_and_the_data_set():
    def orders(num_tasks=4, **options):
        made = tasks(Permuted("permuted", "shapes", num_tasks), **options)
        return [tuple(task.prepare.order.tolist()) for task in made]

    assert orders(seed=0) == orders(seed=0)
    assert orders(2) == orders(4)[:2]
    several = [*orders(seed=0), *orders(seed=1), *orders(data=labelled("other"))]
    assert len(set(several)) == 12


@pytest.mark.parametrize("order", ["given", "shuffled"])
@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_no_sample_is_lost_or_in_two_tasks(order, size):
    made = tasks(split(size, order=order))
    assert len(made) == 10 // size
    for part in ("train", "test"):
        given = getattr(DATA, part)
        numbers = torch.cat([getattr(task, part)[0][:, 0, 0] for task in made])
        assert torch.equal(numbers.sort().values, given[0][:, 0, 0])


def test_a_task_has_the_samples_of_its_classes_in_the_order_of_its_outputs():
    for first, task in zip((0, 3, 6), tasks(split(3, num_tasks=3)), strict=True):
        assert (task.num_outputs, task.classes) == (3, (first, first + 1, first + 2))
        for (inputs, labels), given in ((task.train, DATA.train), (task.test, DATA.test)):
            chosen = (given[1] >= first) & (given[1] < first + 3)
            assert torch.equal(inputs, given[0][chosen])
            assert torch.equal(labels, given[1][chosen])


def test_the_outputs_of_shuffled_classes_are_in_the_order_that_was_drawn():
    for task in tasks(split(2, order="shuffled")):
        classes = tuple(map(int, re.findall(r"\d+", task.name)))
        assert task.classes == classes
        batches = load_test(task, torch.device("cpu"), LearnerConfig())
        for new, old in enumerate(classes):
            numbers = batches.inputs[batches.targets == new][:, 0, 0]
            assert torch.equal(numbers, DATA.test[0][DATA.test[1] == old][:, 0, 0])


def test_split_tasks_are_named_after_their_classes_unless_these_are_many():
    assert names(split(2)) == [f"shapes {n}-{n + 1}" for n in (0, 2, 4, 6, 8)]
    assert names(split(1, num_tasks=2)) == ["shapes 0", "shapes 1"]
    assert names(split(4, num_tasks=2)) == ["shapes 0-3", "shapes 4-7"]
    assert names(split(10)) == names(split(10, order="shuffled")) == ["shapes"]
    found = names(split(4, num_tasks=2, order="shuffled"))
    classes = [each.removeprefix("shapes ").split(",") for each in found]
    assert [len(each) for each in classes] == [4, 4]
    assert len({int(each) for part in classes for each in part}) == 8
    assert names(split(5, order="shuffled")) == ["shapes part 1", "shapes part 2"]


def test_the_order_of_classes_depends_on_the_seed():
    drawn = {seed: names(split(3, num_tasks=3, order="shuffled"), seed=seed) for seed in range(4)}
    assert len({tuple(each) for each in drawn.values()}) == 4
    assert drawn[2] == names(split(3, num_tasks=3, order="shuffled"), seed=2)
    assert names(split(3, num_tasks=3), seed=0) == names(split(3, num_tasks=3), seed=1)
    other = names(split(3, num_tasks=3, order="shuffled"), data=labelled("other"))
    assert [each.removeprefix("other") for each in other] != [
        each.removeprefix("shapes") for each in drawn[0]
    ]


def test_a_chain_has_the_tasks_of_its_parts_one_after_the_other():
    asked = []

    def find(name):
        asked.append(name)
        return labelled(name)

    inner = Chain("chain", (Split("split", "b", 5), Split("split", "a", 10)))
    stream = Chain("chain", (Permuted("permuted", "a", 2), inner, Permuted("permuted", "b", 1)))
    made = tasks_of(stream, find, seed=3)
    assert [task.name for task in made] == [
        "a permuted 1",
        "a permuted 2",
        "b 0-4",
        "b 5-9",
        "a",
        "b permuted 1",
    ]
    assert asked == ["a", "b", "a", "b"]
    (alone,) = tasks_of(Permuted("permuted", "b", 1), find, seed=3)
    assert torch.equal(made[-1].prepare.order, alone.prepare.order)


def test_two_tasks_of_one_name_are_refused():
    chain = Chain("chain", (split(5), Permuted("permuted", "shapes", 2), split(5, num_tasks=1)))
    message = "two tasks are called 'shapes 0-4'. The names of tasks must be unique"
    assert message_of(tasks, chain) == (message, None)


@pytest.mark.parametrize("value", [0, -2])
def test_numbers_below_1_are_refused(value):
    def expected(name):
        return f"{name} is {value}. It must be a whole number, 1 or more", name

    assert message_of(Permuted, "permuted", "shapes", value) == expected("num_tasks")
    assert message_of(split, value) == expected("classes_per_task")
    assert message_of(split, 2, num_tasks=value) == expected("num_tasks")
    assert message_of(split, 2, num_train=value) == expected("num_train")


def test_an_empty_chain_is_refused():
    assert message_of(Chain, "chain", ()) == ("parts is empty. Give at least one stream", "parts")


MORE = "classes are more than the 10 of shapes. Use fewer tasks, or fewer classes per task"


@pytest.mark.parametrize(
    ("size", "num_tasks", "message", "argument"),
    [
        (4, 3, f"3 x 4 {MORE}", "num_tasks"),
        (11, None, f"1 x 11 {MORE}", "classes_per_task"),
        (11, 1, f"1 x 11 {MORE}", "num_tasks"),
        (
            4,
            None,
            "the 10 classes of shapes do not divide into tasks of 4. Set num_tasks = 2 to leave 2 "
            "of them out",
            "classes_per_task",
        ),
    ],
)
def test_classes_that_do_not_divide_into_tasks_are_refused(size, num_tasks, message, argument):
    assert message_of(tasks, split(size, num_tasks=num_tasks)) == (message, argument)


def test_a_task_without_samples_is_refused():
    data = labelled(missing=(2, 3))
    assert message_of(tasks, split(2), data=data) == (
        "the train data of shapes has no sample of class 2, 3. Leave such classes out",
        None,
    )
    assert len(tasks(split(5), data=data)) == 2
    few = LabelledData("few", DATA.train, (DATA.test[0][:2], DATA.test[1][:2]), 10)
    assert message_of(tasks, split(2), data=few)[0] == (
        "the test data of few has no sample of class 2, 3. Leave such classes out"
    )


def test_inputs_are_normalised_with_the_figures_of_the_data_set():
    x = torch.arange(48, dtype=torch.uint8).reshape(4, 3, 2, 2)
    pair = x, torch.arange(4) % 2
    mean, deviation = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    data = LabelledData("d", pair, pair, 2, 255.0, mean=mean, deviation=deviation)
    shift, scale = (torch.tensor(each).view(3, 1, 1) for each in (mean, deviation))
    expected = (x / 255.0 - shift) / scale
    (task,) = tasks(Split("split", "d", 2, normalise=True), data=data)
    assert torch.equal(task.prepare(task.train[0]), expected)
    (task,) = tasks(Permuted("permuted", "d", 1, normalise=True), data=data)
    permuted = expected.flatten(1)[:, task.prepare.order].reshape(x.shape)
    assert torch.equal(task.prepare(task.train[0]), permuted)


def test_unknown_figures_cannot_normalise():
    message = "the mean and deviation of shapes are not known. Remove normalise"
    assert message_of(tasks, split(5, normalise=True)) == (message, "normalise")


def test_fewer_samples_are_drawn_by_the_seed():
    def drawn(seed, num_train=10):
        stream = split(5, num_train=num_train)
        return [task.train[0][:, 0, 0].tolist() for task in tasks(stream, seed=seed)]

    assert [len(part) for part in drawn(0)] == [10, 10]
    assert drawn(0) == drawn(0) != drawn(1)
    assert all(part == sorted(part) for part in drawn(0))
    assert [len(part) for part in drawn(0, 1000)] == [30, 30]
    (task,) = tasks(Permuted("permuted", "shapes", 1, num_train=7))
    assert (len(task.train[0]), len(task.test[0])) == (7, 20)


def test_classes_can_be_put_in_an_order():
    x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20) % 4
    data = LabelledData("d", (x, y), (x, y), 4)
    tasks = tasks_of(Split("split", "d", 2, order=(3, 1, 0, 2)), lambda name: data)
    assert [task.name for task in tasks] == ["d 3,1", "d 0,2"]
    assert [task.classes for task in tasks] == [(3, 1), (0, 2)]
    for order in ((0, 1, 2), (0, 1, 2, 2), (0, 1, 2, 4)):
        with pytest.raises(ArgumentError, match=r"order is \[0, 1, .*\]. Give each of the 4 "):
            tasks_of(Split("split", "d", 2, order=order), lambda name: data)
