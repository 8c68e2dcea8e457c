"""Custom methods: what they may use, and the errors if they are wrong."""

import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clnp import Training
from clnp.errors import ArgumentError
from clnp.methods.method import Retraining, Strategy
from clnp.methods.single import Finetune
from clnp.records import EpochEnded, RoundEnded
from clnp.runs.directory import has_progress
from clnp.storage.packing import pack, unpack
from clnp.training.fit import StepRule
from support.forgetting import (
    check_captured,
    check_resumes,
    experiment,
    labelled,
    method_of,
    remaining,
)


@dataclass(frozen=True)
class Replay:
    """Some samples of every task, of which a batch is drawn in every step."""

    num: int = 100
    training: Training | None = None

    def strategy(self, net):
        return Replaying(self.num, net)


class Replaying(Strategy):
    saved = ("memory",)

    def __init__(self, num, net):
        self.num, self.net, self.memory = num, net, []

    def rule(self):
        def loss(inputs, targets):
            total = 0.0
            for index, (x, y) in enumerate(self.memory):
                chosen = torch.randint(len(x), (len(inputs),), device=x.device)
                total += F.cross_entropy(self.net.answer(x[chosen], index), y[chosen])
            return total

        return StepRule(loss=loss)

    def end(self, index, data):
        self.memory.append(next(data.train.batches(self.num, seed=index)))


@dataclass(frozen=True)
class Distil:
    """Answers for earlier tasks stay where they were before this one."""

    training: Training | None = None

    def strategy(self, net):
        return Distilling(net)


class Distilling(Strategy):
    def __init__(self, net):
        self.net = net

    def begin(self, index, data):
        self.teacher = copy.deepcopy(self.net).eval()

    def rule(self):
        def loss(inputs, targets):
            total = 0.0
            for index in range(len(self.net.tasks)):
                with torch.no_grad():
                    wanted = self.teacher.answer(inputs, index).softmax(1)
                total += F.cross_entropy(self.net.answer(inputs, index), wanted)
            return total

        return StepRule(loss=loss)

    def state(self):
        return {"teacher": self.teacher.model.state_dict()}

    def restore(self, state):
        self.teacher = copy.deepcopy(self.net).eval()
        self.teacher.model.load_state_dict(state["teacher"])


def test_replay_forgets_less(tmp_path, score_of_finetuning):
    assert remaining(Replay(), tmp_path) > score_of_finetuning + 15


@pytest.mark.parametrize(("settings", "head"), [(Replay(), "single"), (Distil(), "multi")])
def test_a_strategy_that_needs_the_batch_resumes(tmp_path, settings, head):
    check_resumes(settings, tmp_path, head=head)


def test_attributes_that_are_saved_are_restored_as_copies():
    strategy = Replaying(2, SimpleNamespace(device=torch.device("cpu")))
    strategy.memory = [(torch.ones(2), torch.zeros(2))]
    state = unpack(pack(strategy.state(), tensors := {}, name="strategy"), tensors)
    other = Replaying(2, strategy.net)
    other.restore(state)
    [[ones, zeros]] = other.memory
    assert torch.equal(ones, torch.ones(2))
    assert torch.equal(zeros, torch.zeros(2))
    ones.zero_()
    assert torch.equal(state["memory"][0][0], torch.ones(2))


class Anchored(Strategy):
    """The example of the class."""

    saved = ("anchor",)

    def begin(self, index, data):
        self.anchor = {name: w.detach().clone() for name, w in self.net.trunk().items()}

    def rule(self):
        pairs = [(w, self.anchor[name]) for name, w in self.net.trunk().items()]
        return StepRule(loss=lambda x, y: 0.01 * sum((w - a).square().sum() for w, a in pairs))


@dataclass(frozen=True)
class L2:
    training: Training | None = None

    def strategy(self, net):
        return Anchored()


def test_a_strategy_without_a_constructor_has_the_network_and_resumes(tmp_path):
    check_resumes(L2(), tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [Replay(), Distil()], ids=["replay", "distil"])
def test_steps_that_need_the_batch_are_captured(tmp_path, settings):
    check_captured(settings, tmp_path)


def test_a_task_begins_and_ends_with_its_data():
    seen = []

    class Looking(Strategy):
        def begin(self, index, data):
            seen.append((index, data))

        end = begin

    @dataclass(frozen=True)
    class Look:
        training: Training | None = None

        def strategy(self, net):
            return Looking()

    made = method_of(Look(Training(epochs=1)), "mlp", head="multi", device="cpu")
    for name in "ab":
        made.learn(labelled(name))
    assert [(index, data.task.name) for index, data in seen] == [
        *((0, "a"), (0, "a")),
        *((1, "b"), (1, "b")),
    ]
    assert seen[0][1] is seen[1][1]


@dataclass(frozen=True)
class Mine:
    """A custom method whose strategy is `made`."""

    made: object = None
    training: Training | None = None

    def strategy(self, net):
        return self.made


class Forgetful(Strategy):
    def rule(self):
        StepRule()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            None,
            r"baseline: Mine\.strategy\(net\) returns nothing\. Return a clnp\.methods\.Strategy",
        ),
        (3, r"baseline: Mine\.strategy\(net\) returns an object of type int\. Return a"),
        (
            Forgetful(),
            r"baseline: Forgetful\.rule\(\) returns nothing\. Return a clnp\.methods\.StepRule",
        ),
    ],
)
def test_a_method_that_returns_something_else_is_refused(tmp_path, made, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        replace(experiment(Finetune()), baseline=Mine(made)).run(tmp_path / "run")
    assert caught.value.argument == "baseline"
    assert not has_progress(tmp_path / "run")


class Storing(Strategy):
    def __init__(self, stored):
        self.stored = stored

    def stored_bytes(self):
        return self.stored


@pytest.mark.parametrize("stored", [3, None, {"a": "b"}, {1: 2}, [("a", 1)]])
def test_stored_bytes_of_another_type_are_refused_before_training(tmp_path, stored):
    made = replace(experiment(Finetune()), baseline=Mine(Storing(stored)))
    with pytest.raises(ArgumentError) as caught:
        made.run(tmp_path / "run")
    assert str(caught.value) == (
        f"baseline: Storing.stored_bytes() returns {stored!r}. Return the bytes by kind, such as "
        '{"weights": 1024}.'
    )
    assert not has_progress(tmp_path / "run")


def test_stored_bytes_may_need_what_the_end_of_a_task_computes(tmp_path):
    class Late(Strategy):
        kept = ()

        def end(self, index, data):
            self.kept = [torch.zeros(2)]

        def stored_bytes(self):
            return {"own": np.int64(torch.cat(list(self.kept)).nbytes)}

    made = replace(experiment(Finetune(), epochs=1), baseline=Mine(Late()))
    assert made.run(tmp_path / "run").stored_bytes["own"] == 8


class Twice(Strategy):
    """Trains every task once more."""

    def __init__(self, again):
        self.again = again

    def retraining(self):
        return self.again


def test_a_task_can_be_trained_once_more(tmp_path):
    again, events = Retraining(Training(epochs=2), StepRule()), []
    made = replace(experiment(Finetune(), epochs=1), baseline=Mine(Twice(again)))
    made.run(tmp_path / "run", on_event=events.append)
    rounds = [event for event in events if getattr(event, "round", None) is not None]
    assert [type(event) for event in rounds] == [EpochEnded, EpochEnded, RoundEnded] * 3


def test_a_second_training_of_another_type_is_refused(tmp_path):
    made = replace(experiment(Finetune(), epochs=1), baseline=Mine(Twice(Training())))
    message = r"Twice\.retraining\(\) returns an object of type Training\. Return a clnp\.m"
    with pytest.raises(ArgumentError, match=message):
        made.run(tmp_path / "run")
