from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clnp import Experiment, LearnerConfig, Task, Training
from clnp.errors import ArgumentError, DivergedError
from clnp.methods.joint import Joint, JointHeads, JointNet, Mixed, Validation
from clnp.records import EpochEnded
from clnp.runs.directory import has_progress
from clnp.training.batches import batches_of
from support.forgetting import experiment
from support.runs import break_off, untimed

CPU = torch.device("cpu")


def part(start, size, **options):
    """Samples whose inputs and targets are their own numbers."""
    numbers = torch.arange(start, start + size)
    return batches_of((numbers[:, None].float(), numbers), CPU, **options)


def test_batches_hold_a_fixed_number_of_samples_of_each_task():
    mixed = Mixed([part(0, 50), part(100, 12), part(200, 9)], [5, 2, 2])
    batches = list(mixed.batches(9, seed=0))
    assert len(batches) == 4  # The last task has run out.
    assert len(mixed) == 36
    seen = torch.cat([targets for _, targets in batches])
    assert len(set(seen.tolist())) == 36
    for inputs, targets in batches:
        assert torch.equal(inputs[:, 0], targets.float())
        assert [int(t) // 100 for t in targets] == [0] * 5 + [1] * 2 + [2] * 2
    again = torch.cat([targets for _, targets in mixed.batches(9, seed=1)])
    assert not torch.equal(seen, again)


def test_a_task_that_has_less_than_its_share_of_a_batch_gives_all_it_has():
    mixed = Mixed([part(0, 50), part(100, 3)], [5, 8])
    assert mixed.counts == [5, 3]
    [(_, targets)] = mixed.batches(13, seed=0)
    assert len(mixed) == len(targets) == 8
    assert sorted(targets[5:].tolist()) == [100, 101, 102]


def test_each_task_has_its_samples_prepared_in_its_own_way():
    parts = [part(0, 4, prepare=lambda x: x * 10), part(4, 4), part(8, 4, prepare=lambda x: -x)]
    [(inputs, targets)] = Mixed(parts, [4, 4, 4]).batches(12, seed=0)
    scale = torch.tensor([10.0] * 4 + [1.0] * 4 + [-1.0] * 4)
    assert torch.equal(inputs[:, 0], scale * targets)


def test_samples_are_prepared_once_for_all_where_that_gives_the_same():
    calls = []

    def double(x):
        calls.append(len(x))
        return 2 * x

    mixed = Mixed([part(0, 8, prepare=double), part(8, 8)], [2, 2])
    calls.clear()
    for inputs, targets in mixed.batches(4, seed=0):
        assert torch.equal(inputs[:, 0], torch.tensor([2.0, 2.0, 1.0, 1.0]) * targets)
    assert not calls
    noisy = Mixed([part(0, 8, prepare=lambda x: x + torch.rand(len(x), 1)), part(8, 8)], [2, 2])
    batches = [torch.cat([x for x, _ in noisy.batches(4, seed=0)]) for _ in range(2)]
    assert not torch.equal(*batches)


def test_streamed_data_cannot_be_mixed():
    with pytest.raises(ArgumentError, match="joint training needs all data on the device"):
        Mixed([part(0, 4, resident=False)], [1])


@pytest.mark.parametrize("cut", [True, False])
def test_the_outputs_of_a_task_read_its_part_of_the_last_layer(cut):
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2))
    heads = JointHeads(model[2], [2, 2, 2], [4, 1, 1], cut=cut)
    net = JointNet(model, "2", heads)
    for layer in heads.layers:
        layer.reset_parameters()
    x = torch.randn(6, 3)
    hidden = torch.relu(net.model[0](x))
    parts = [slice(2 * t, 2 * t + 2) if cut else slice(0, 7) for t in range(3)]
    rows = [slice(0, 4), slice(4, 5), slice(5, 6)]
    expected = [heads.layers[t](hidden[rows[t], parts[t]]) for t in range(3)]
    assert torch.equal(net(x), torch.cat(expected))
    net.eval()
    heads.current = 1
    assert torch.equal(net(x), heads.layers[1](hidden[:, parts[1]]))


def test_frozen_parameters_of_the_model_are_trained():
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2)).requires_grad_(False)
    net = JointNet(model, "2", JointHeads(model[2], [2, 2], [1, 1], cut=False))
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_last_layer_that_is_too_small_is_refused():
    with pytest.raises(ArgumentError, match="joint: the last layer has 2 inputs, too few for 3"):
        JointHeads(nn.Linear(2, 2), [2] * 3, [1] * 3, cut=True)


@pytest.mark.parametrize("head", ["single", "multi"])
def test_all_tasks_are_learned_with_the_last_one(tmp_path, head):
    made = experiment(Joint(first=16, others=16), head=head, epochs=12)
    result = made.run(tmp_path / "run")
    assert result.scores[:2] == ((None,), (None, None))
    assert min(result.scores[2]) > 80
    assert tuple(record.test_score for record in result.tasks) == result.scores[2]
    assert all(record.unchanged for record in result.tasks)
    assert [record.candidates[0].num_epochs for record in result.tasks] == [0, 0, 12]
    stored = result.stored_bytes
    assert (stored["heads"] > 0) is (head == "multi")


def test_small_tasks_are_learned_with_a_large_batch(tmp_path):
    made = experiment(Joint(), epochs=80)
    training = replace(made.config.training, batch_size=10_000)
    result = replace(made, config=replace(made.config, training=training)).run(tmp_path / "run")
    assert min(result.scores[-1]) > 80


def test_joint_training_resumes(tmp_path):
    made = experiment(Joint(first=20, others=10), epochs=3)
    whole = made.run(tmp_path / "whole")
    break_off(made, tmp_path / "broken", EpochEnded, 2)
    torch.manual_seed(99)  # Nothing may depend on the state of the generator.
    assert untimed(made.run(tmp_path / "broken")) == untimed(whole)


def test_tasks_with_other_numbers_of_outputs_are_refused(tmp_path):
    x, y = torch.randn(20, 6), torch.arange(20) % 2
    tasks = [Task("a", (x, y), num_outputs=2), Task("b", (x, y), num_outputs=3)]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    config = LearnerConfig(training=Training(1))
    with pytest.raises(ArgumentError, match="joint: the tasks have different numbers of outputs"):
        Experiment(model, x[:2], tasks, config, baseline=Joint()).run(tmp_path / "run")


@pytest.mark.parametrize("num_outputs", [2, 4, 10])
def test_tasks_have_as_many_outputs_as_their_data(tmp_path, num_outputs):
    """As with every other method: whatever the model has."""
    x, y = torch.randn(40, 6), torch.arange(40) % 4
    tasks = [Task(name, (x, y), test=(x, y)) for name in "ab"]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, num_outputs))
    config = LearnerConfig(training=Training(1))
    made = Experiment(model, x[:2], tasks, config, baseline=Joint())
    result = made.run(tmp_path / "run")
    assert result.stored_bytes["heads"] == 2 * 4 * (8 + 1) * 4


def test_tasks_with_other_objectives_are_refused_before_anything_is_trained(tmp_path):
    x = torch.randn(20, 6)
    tasks = [
        Task("a", (x, x[:, :3]), objective="regression"),
        Task("b", (x, (x[:, :3] > 0).float()), objective="multi-label"),
    ]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    config, events = LearnerConfig(training=Training(1)), []
    message = r"joint: the tasks have different objectives, \['regression', 'multi-label'\]"
    with pytest.raises(ArgumentError, match=message):
        Experiment(model, x[:2], tasks, config, baseline=Joint()).run(
            tmp_path / "run", on_event=events.append
        )
    assert events == []
    alike = [replace(task, objective="regression") for task in tasks]
    Experiment(model, x[:2], alike, config, baseline=Joint()).run(tmp_path / "alike")


def test_tasks_share_a_batch_unless_it_is_given():
    assert Joint().counts(3, 256) == [85, 85, 85]
    assert Joint(first=50).counts(3, 30) == [50, 10, 10]
    assert Joint().counts(3, 2) == [1, 1, 1]
    assert Joint(50, 10).counts(3, 256) == [50, 10, 10]


def test_joint_training_without_progress_can_start_again_with_other_settings(tmp_path):
    made = experiment(Joint(), lr=1e30, optimizer="SGD")
    with pytest.raises(DivergedError):
        made.run(tmp_path / "run")
    assert not has_progress(tmp_path / "run")
    result = experiment(Joint(), lr=0.01).run(tmp_path / "run")
    assert result.finished
    assert has_progress(tmp_path / "run")


def test_all_tasks_are_judged_each_by_its_own_head():
    net = SimpleNamespace(heads=SimpleNamespace(current=None))
    sizes = (5, 3)
    parts = [
        batches_of((torch.full((size, 2), float(place)), torch.zeros(size).long()), CPU)
        for place, size in enumerate(sizes)
    ]
    seen = [
        (net.heads.current, x[0, 0].item(), len(x)) for x, _ in Validation(net, parts).batches(4)
    ]
    assert seen == [(0, 0.0, 4), (0, 0.0, 1), (1, 1.0, 3)]
