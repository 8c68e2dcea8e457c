import math
import re

import numpy as np
import pytest
import torch

from clnp import FineTuning, LearnerConfig, Training
from clnp.errors import ArgumentError
from clnp.runs.fingerprint import plain
from clnp.training.config import TaskSettings

WHOLE = "It must be a whole number"
FINITE = "It must be a finite number"
FLOAT32 = "It must be a finite float32 number"


def refused(kind, options, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        kind(**options)
    assert [caught.value.argument] == list(options)[-1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, f"epochs is 0. {WHOLE}, 1 or more"),
        ({"lr": 0.0}, f"lr is 0.0. {FLOAT32} above 0"),
        ({"alpha": {"fc1": "1"}}, "alpha of fc1 is '1'. It must be a finite float32"),
        ({"alpha": -1.0}, "alpha is -1.0. It must be a finite float32"),
        ({"alpha": {"fc1": 1e308}}, r"alpha of fc1 is 1e\+308. It must be a finite float32 number"),
        ({"batch_size": 0}, f"batch_size is 0. {WHOLE} from 1"),
        ({"optimizer": "Adm"}, "unknown optimizer 'Adm'. Did you mean 'Adam"),
        ({"optimizer": "Optimizer"}, "unknown optimizer 'Optimizer'.*Known: ((?!Optimizer).)*$"),
        ({"optimizer_options": []}, "optimizer_options is of type list. It must be a dictionary"),
        ({"optimizer_options": {"lr": 0.1}}, "optimizer_options contains lr. Set training.lr"),
        ({"schedule": "cosin"}, "schedule is 'cosin'. It must be 'constant', 'cosine' or"),
        ({"milestones": [1.5]}, f"one of milestones is 1.5. {WHOLE}"),
        ({"milestones": 3}, r"milestones is 3. Give a list, milestones=\[...\]"),
        ({"milestone_factor": 0.0}, f"milestone_factor is 0.0. {FLOAT32} above 0"),
        ({"patience": 0}, f"patience is 0. {WHOLE}, 1 or more"),
        ({"input_dropout": 1.0}, "input_dropout is 1.0. It must be a number from 0 to below 1"),
        ({"clip_norm": "3"}, f"clip_norm is '3'. {FLOAT32} above 0"),
        ({"precision": "float23"}, "precision is 'float23'. It must be 'float32', 'tf32',"),
        ({"initialisation": 3}, "initialisation is 3. It must be a name, or a function"),
        ({"augment": "flop"}, "unknown augment 'flop'. Did you mean 'flip'"),
    ],
)
def test_settings_of_a_training_are_checked(options, message):
    refused(Training, options, message)


def test_milestones_are_needed_by_their_schedule():
    message = "schedule is 'milestones', but there are no milestones. Set them, or choose"
    with pytest.raises(ArgumentError, match=message) as caught:
        Training(schedule="milestones")
    assert caught.value.argument == "milestones"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, f"^fine_tuning: epochs is 0. {WHOLE}, 1 or more"),
        ({"rounds": 2.5}, f"^fine_tuning: rounds is 2.5. {WHOLE}"),
        ({"lr": "1"}, f"^fine_tuning: lr is '1'. {FLOAT32}"),
        ({"alpha": "1"}, "^fine_tuning: alpha is '1'. It must be a finite float32"),
        ({"schedule": "milestones"}, "^fine_tuning: schedule is .*. It must be 'constant' or"),
    ],
)
def test_settings_of_fine_tuning_are_checked(options, message):
    refused(FineTuning, options, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": -1.0}, f"margin is -1.0. {FINITE}, 0 or more"),
        ({"lrs": (-1.0,)}, f"one of lrs is -1.0. {FLOAT32} above 0"),
        ({"epochs": [3]}, rf"epochs is \[3\]. {WHOLE}"),
        ({"alphas": 0.5}, r"alphas is 0.5. Give a list, alphas=\[...\]"),
    ],
)
def test_settings_of_a_task_are_checked(options, message):
    refused(TaskSettings, options, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": -1.0}, f"margin is -1.0. {FINITE}, 0 or more"),
        ({"search_on": "last"}, "search_on is 'last'. It must be 'every' or 'first'"),
        (
            {"importance": "size"},
            "importance is 'size'. It must be 'activity', 'contribution',",
        ),
        ({"importance": "own/file.py:size"}, "importance is 'own/file.py:size'. It must be 'acti"),
        ({"importance": 3}, "importance is 3. It must be .* or a function of the network and its"),
        ({"validation_fraction": 0.0}, "validation_fraction is 0.0. It must be a number between"),
        ({"resolution": 0}, f"resolution is 0. {WHOLE}, 1 or more"),
        ({"calibration_samples": 1}, f"calibration_samples is 1. {WHOLE}, 0, or"),
        ({"num_workers": -1}, f"num_workers is -1. {WHOLE}, 0 or more"),
        ({"candidates_at_once": 0}, f"candidates_at_once is 0. {WHOLE}, 1 or more"),
        ({"alphas": {"fc1": 1.0}}, r"alphas is {'fc1': 1.0}. Give a list, alphas=\[...\]"),
        ({"alphas": [{"fc1": "1"}]}, "one of alphas of fc1 is '1'. It must be a finite float32"),
        ({"lrs": [{"fc1": 1.0}]}, f"one of lrs is {{'fc1': 1.0}}. {FLOAT32}"),
        (
            {"training": {"epochs": 1}},
            r"training is of type dict. It must be a Training, such as Train",
        ),
        (
            {"fine_tuning": True},
            "fine_tuning is of type bool. It must be a FineTuning, such as Fine",
        ),
        (
            {"tasks": ["a"]},
            r'tasks is of type list. It must be such as {"a": TaskSettings\(margin=1\)}',
        ),
        ({"tasks": {"a": {"margin": 1}}}, "tasks contains 'a': {'margin': 1}. Give the settings"),
        ({"tasks": {1: TaskSettings()}}, r"tasks contains 1: TaskSettings\(.*. Give the settings"),
    ],
)
def test_settings_of_the_learner_are_checked(options, message):
    refused(LearnerConfig, options, message)


def test_schedules():
    cosine = Training(epochs=10, lr=0.4, schedule="cosine")
    assert cosine.lr_at(0) == 0.4
    assert math.isclose(cosine.lr_at(5), 0.2)
    assert cosine.lr_at(10) == 0
    steps = Training(
        epochs=10, lr=1.0, schedule="milestones", milestones=(3, 6), milestone_factor=0.5
    )
    assert [steps.lr_at(e) for e in (0, 2.9, 3, 5.9, 6)] == [1, 1, 0.5, 0.5, 0.25]
    assert Training(lr=0.3).lr_at(7) == 0.3


def test_the_grid_is_every_combination():
    training = Training(lr=0.1, alpha=0.2, epochs=7)
    assert LearnerConfig(training=training).candidates() == [training]
    layers = {"fc1": 1e-3}
    config = LearnerConfig(alphas=(1e-4, layers), lrs=(0.1, 0.2), training=training)
    found = [(c.alpha, c.lr, c.epochs) for c in config.candidates()]
    assert found == [(1e-4, 0.1, 7), (1e-4, 0.2, 7), (layers, 0.1, 7), (layers, 0.2, 7)]


def test_a_task_may_have_its_own_settings():
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


def test_choices_replace_the_grid_and_keep_other_settings():
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
    "values",
    [
        [0.5, 0.25],
        np.array([0.5, 0.25], dtype=np.float32),
        tuple(np.array([0.5, 0.25], dtype=np.float32)),
        torch.tensor([0.5, 0.25]),
        "a generator",
    ],
)
def test_a_grid_may_be_any_iterable_of_numbers(values):
    for name in ("alphas", "lrs"):
        given = (2.0**-i for i in (1, 2)) if isinstance(values, str) else values
        found = getattr(LearnerConfig(**{name: given}), name)
        assert found == getattr(TaskSettings(**{name: found}), name) == (0.5, 0.25)
        assert [type(value) for value in found] == [float, float]


def test_numbers_of_numpy_and_of_other_types_become_plain_ones():
    """A run that was started with NumPy's numbers resumes with Python's, and the reverse."""
    half, two = np.float32(0.5), np.int64(2)
    config = LearnerConfig(
        margin=1,
        alphas=[{"fc1": half}, 1],
        lrs=None,
        resolution=two,
        training=Training(
            epochs=two,
            lr=half,
            alpha={"fc1": half},
            clip_norm=half,
            milestones=torch.tensor([1, 2]),
        ),
        tasks={"a": TaskSettings(margin=half, epochs=two, alphas=None)},
        fine_tuning=FineTuning(epochs=two, lr=half),
    )
    same = LearnerConfig(
        margin=1.0,
        alphas=({"fc1": 0.5}, 1.0),
        lrs=None,
        resolution=2,
        training=Training(epochs=2, lr=0.5, alpha={"fc1": 0.5}, clip_norm=0.5, milestones=(1, 2)),
        tasks={"a": TaskSettings(margin=0.5, epochs=2, alphas=None)},
        fine_tuning=FineTuning(epochs=2, lr=0.5),
    )
    assert repr(plain(config)) == repr(plain(same))


def test_a_learning_rate_beyond_float32_is_refused():
    options = {"schedule": "milestones", "milestones": (1, 2), "milestone_factor": 1e38}
    message = "milestone_factor is 1e+38. After 2 milestones, the learning rate would be 1e+73. Use"
    with pytest.raises(ArgumentError, match=re.escape(message)) as caught:
        Training(**options)
    assert caught.value.argument == "milestone_factor"
