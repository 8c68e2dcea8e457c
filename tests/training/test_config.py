import math

import numpy as np
import pytest
import torch

from clnp import FineTuning, LearnerConfig, Training
from clnp.errors import ArgumentError
from clnp.runs.fingerprint import plain
from clnp.training.config import TaskSettings


def test_one_candidate_is_a_grid_of_one():
    training = Training(lr=0.1, alpha=0.2)
    assert LearnerConfig(training=training).candidates() == [training]


def test_the_grid_is_every_combination():
    config = LearnerConfig(
        alphas=(1e-4, {"fc1": 1e-3}), lrs=(0.1, 0.2), training=Training(epochs=7)
    )
    found = [(c.alpha, c.lr, c.epochs) for c in config.candidates()]
    per_layer = {"fc1": 1e-3}
    assert found == [(1e-4, 0.1, 7), (1e-4, 0.2, 7), (per_layer, 0.1, 7), (per_layer, 0.2, 7)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": -1.0}, "margin is -1.0; it must be a finite number, 0 or more"),
        ({"margin": float("nan")}, "margin is nan; it must be a finite number"),
        ({"margin": float("inf")}, "margin is inf; it must be a finite number"),
        ({"margin": "1"}, "margin is '1'; it must be a finite number"),
        ({"margin": None}, "margin is None; it must be a finite number"),
        ({"search_on": "last"}, "search_on is 'last'; it must be 'every' or 'first'"),
        ({"importance": "size"}, "importance is 'size'; it must be 'activity' or 'contribution'"),
        (
            {"validation_fraction": 0.0},
            "validation_fraction is 0.0; it must be a number between",
        ),
        (
            {"validation_fraction": 1.0},
            "validation_fraction is 1.0; it must be a number between",
        ),
        ({"lrs": (0.1, -1.0)}, "one of lrs is -1.0; it must be a finite number above 0"),
        ({"resolution": 0}, "resolution is 0; it must be a whole number, 1 or more"),
        (
            {"calibration_samples": -1},
            "calibration_samples is -1; it must be a whole number, 0, or",
        ),
        (
            {"calibration_samples": 1},
            "calibration_samples is 1; it must be a whole number, 0, or",
        ),
        ({"calibration_samples": True}, "calibration_samples is True; it must be a whole"),
        ({"calibration_samples": math.inf}, "calibration_samples is inf; it must be a whole"),
        ({"num_workers": -1}, "num_workers is -1; it must be a whole number, 0 or more"),
        ({"num_workers": "2"}, "num_workers is '2'; it must be a whole number"),
        ({"resolution": "2"}, "resolution is '2'; it must be a whole number"),
        ({"validation_fraction": None}, "validation_fraction is None; it must be a number"),
        ({"candidates_at_once": 1.0}, "candidates_at_once is 1.0; it must be a whole number"),
        ({"alphas": 1e-4}, r"alphas is 0.0001; give a list, alphas=\[0.0001\]"),
        ({"alphas": {"fc1": 1.0}}, r"alphas is {'fc1': 1.0}; give a list, alphas=\[{'fc1': 1.0}\]"),
        ({"alphas": ["1"]}, "one of alphas is '1'; it must be a number"),
        ({"alphas": [{"fc1": "1"}]}, "one of alphas of fc1 is '1'; it must be a number"),
        ({"alphas": "1e-4"}, "alphas is '1e-4'; give a list of numbers"),
        ({"lrs": 1e-3}, r"lrs is 0.001; give a list, lrs=\[0.001\]"),
        ({"lrs": np.float64(1e-3)}, "lrs is .*0.001.*; give a list"),
        ({"lrs": torch.tensor(0.5)}, r"lrs is 0.5; give a list, lrs=\[0.5\]"),
        ({"lrs": [{"fc1": 1.0}]}, "one of lrs is {'fc1': 1.0}; it must be a finite number"),
        ({"lrs": [None]}, "one of lrs is None; it must be a finite number"),
        ({"training": {"epochs": 1}}, r"training is a dict; it must be a Training, such as Train"),
        ({"fine_tuning": True}, "fine_tuning is a bool; it must be a FineTuning, such as FineTuni"),
        ({"tasks": ["a"]}, r'tasks is a list; it must be such as {"a": TaskSettings\(margin=1\)}'),
        ({"tasks": {"a": {"margin": 1}}}, "tasks holds 'a': {'margin': 1}; give the settings of a"),
        ({"tasks": {1: TaskSettings()}}, r"tasks holds 1: TaskSettings\(.*; give the settings of"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        LearnerConfig(**options)
    assert [caught.value.argument] == list(options)


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("rounds", 0), ("lr", 0.0)])
def test_fine_tuning_needs_something_to_do(name, value):
    message = f"fine_tuning: {name} is {value}; it must be a "
    with pytest.raises(ArgumentError, match=message) as caught:
        FineTuning(**{name: value})
    assert caught.value.argument == name


def test_fine_tuning_has_two_schedules():
    message = "fine_tuning: schedule is 'milestones'; it must be 'constant' or 'cosine'"
    with pytest.raises(ArgumentError, match=message) as caught:
        FineTuning(schedule="milestones")
    assert caught.value.argument == "schedule"


def test_a_task_may_have_settings_of_its_own():
    config = LearnerConfig(
        margin=1.0,
        alphas=(1e-4, 1e-3),
        training=Training(epochs=5, lr=0.1),
        tasks={
            "b *": TaskSettings(margin=4.0, epochs=9),
            "b 2": TaskSettings(alphas=({"fc1": 1e-2},), lrs=(0.2, 0.3)),
        },
    )
    assert config.of("a").candidates() == config.candidates()
    one, two = config.of("b 1"), config.of("b 2")
    assert (one.margin, one.alphas, one.training.epochs) == (4.0, config.alphas, 9)
    assert [(c.alpha, c.lr, c.epochs) for c in two.candidates()] == [
        ({"fc1": 1e-2}, 0.2, 5),
        ({"fc1": 1e-2}, 0.3, 5),
    ]
    assert two.margin == 1.0
    assert [config.has_own_grid(name) for name in ("a", "b 1", "b 2")] == [False, False, True]
    assert config.unused(["a", "b 2"]) == []
    assert config.unused(["a", "b"]) == ["b *", "b 2"]


def test_choices_replace_the_grid_and_leave_other_settings():
    config = LearnerConfig(
        alphas=(1e-4, 1e-3), tasks={"b*": TaskSettings(margin=4.0, alphas=(1.0, 2.0))}
    )
    chosen = config.with_choices({"a": (1e-3, 0.1), "b1": ({"fc1": 2.0}, 0.2)})
    assert [(c.alpha, c.lr) for c in chosen.of("a").candidates()] == [(1e-3, 0.1)]
    assert [(c.alpha, c.lr) for c in chosen.of("b1").candidates()] == [({"fc1": 2.0}, 0.2)]
    assert (chosen.of("a").margin, chosen.of("b1").margin) == (config.margin, 4.0)
    assert chosen.of("b2") == config.of("b2")
    assert config.with_choices({}) == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": "1"}, "margin is '1'; it must be a finite number"),
        ({"margin": -1.0}, "margin is -1.0; it must be a finite number, 0 or more"),
        ({"lrs": (-1.0,)}, "one of lrs is -1.0; it must be a finite number above 0"),
        ({"epochs": 0}, "epochs is 0; it must be a whole number, 1 or more"),
        ({"epochs": [3]}, r"epochs is \[3\]; it must be a whole number"),
        ({"epochs": 2.5}, "epochs is 2.5; it must be a whole number"),
        ({"alphas": 0.5}, r"alphas is 0.5; give a list, alphas=\[0.5\]"),
        ({"lrs": 0.5}, r"lrs is 0.5; give a list, lrs=\[0.5\]"),
    ],
)
def test_settings_of_a_task_are_of_their_kinds(options, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        TaskSettings(**options)
    assert [caught.value.argument] == list(options)


@pytest.mark.parametrize("name", ["epochs", "lr", "rounds", "alpha"])
def test_settings_of_fine_tuning_are_numbers(name):
    with pytest.raises(ArgumentError, match=f"^fine_tuning: {name} is '1'; it must be") as caught:
        FineTuning(**{name: "1"})
    assert caught.value.argument == name


@pytest.mark.parametrize("name", ["epochs", "rounds"])
def test_epochs_and_rounds_of_fine_tuning_are_whole(name):
    message = f"^fine_tuning: {name} is 2.5; it must be a whole number"
    with pytest.raises(ArgumentError, match=message):
        FineTuning(**{name: 2.5})


@pytest.mark.parametrize(
    "values",
    [
        [0.5, 0.25],
        np.array([0.5, 0.25]),
        np.array([0.5, 0.25], dtype=np.float32),
        tuple(np.array([0.5, 0.25], dtype=np.float32)),
        torch.tensor([0.5, 0.25]),
        "a generator",
    ],
)
@pytest.mark.parametrize("kind", [LearnerConfig, TaskSettings])
@pytest.mark.parametrize("name", ["alphas", "lrs"])
def test_whatever_holds_numbers_is_a_grid(kind, name, values):
    if isinstance(values, str):
        values = (2.0**-i for i in (1, 2))
    found = getattr(kind(**{name: values}), name)
    assert found == (0.5, 0.25)
    assert [type(value) for value in found] == [float, float]


def test_numbers_of_numpy_become_plain_ones():
    config = LearnerConfig(
        margin=np.float32(0.5),
        alphas=[{"fc1": np.float32(0.25)}],
        training=Training(epochs=np.int64(3), lr=np.float32(0.5), alpha={"fc1": np.float32(0.5)}),
        tasks={"a": TaskSettings(margin=np.float32(0.5), epochs=np.int64(2))},
        fine_tuning=FineTuning(epochs=np.int64(2), lr=np.float32(0.5)),
    )
    assert plain(config) == plain(
        LearnerConfig(
            margin=0.5,
            alphas=({"fc1": 0.25},),
            training=Training(epochs=3, lr=0.5, alpha={"fc1": 0.5}),
            tasks={"a": TaskSettings(margin=0.5, epochs=2)},
            fine_tuning=FineTuning(epochs=2, lr=0.5),
        )
    )


def test_settings_are_known_by_plain_numbers():
    """A run that was begun with NumPy's goes on with those of Python, and the other way round."""
    config = LearnerConfig(
        margin=1,
        alphas=[1, 1e-3],
        lrs=None,
        resolution=np.int64(3),
        training=Training(epochs=np.int32(2), clip_norm=np.float32(1)),
        tasks={"a": TaskSettings(margin=2, alphas=None)},
    )
    found = plain(config)
    assert (
        repr([found[name] for name in ("margin", "alphas", "lrs")]) == "[1.0, [1.0, 0.001], None]"
    )
    assert repr(found["resolution"]) == "3"
    assert repr(found["training"]["epochs"]) == "2"
    assert repr(found["training"]["clip_norm"]) == "1.0"
    assert (repr(found["tasks"]["a"]["margin"]), found["tasks"]["a"]["alphas"]) == ("2.0", None)
