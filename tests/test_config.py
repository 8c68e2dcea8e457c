import math

import pytest

from clnp import FineTuning, LearnerConfig, TaskSettings, Training
from clnp.errors import ArgumentError


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
        ({"margin": -1.0}, "margin is -1.0; it must be 0 or more"),
        ({"margin": float("nan")}, "margin is nan; it must be 0 or more"),
        ({"margin": float("inf")}, "margin is inf; it must be 0 or more"),
        ({"search_on": "last"}, "search_on is 'last'; it must be 'every' or 'first'"),
        ({"importance": "size"}, "importance is 'size'; it must be 'activity' or 'contribution'"),
        ({"validation_fraction": 0.0}, "validation_fraction is 0.0; it must be between 0 and 1"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0; it must be between 0 and 1"),
        ({"lrs": (0.1, -1.0)}, "training: lr cannot be -1.0"),
        ({"resolution": 0}, "resolution is 0; it must be 1 or more"),
        ({"calibration_samples": -1}, "calibration_samples is -1; it must be 0, or a whole"),
        ({"calibration_samples": 1}, "calibration_samples is 1; it must be 0, or a whole number"),
        ({"calibration_samples": True}, "calibration_samples is True; it must be 0, or a whole"),
        ({"calibration_samples": math.inf}, "calibration_samples is inf; it must be 0, or a"),
        ({"num_workers": -1}, "num_workers is -1; it must be 0 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        LearnerConfig(**options)
    assert [caught.value.argument] == list(options)


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("rounds", 0), ("lr", 0.0)])
def test_fine_tuning_needs_something_to_do(name, value):
    message = f"fine_tuning: {name} is {value}; it must be above 0"
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
    ("settings", "message"),
    [
        (TaskSettings(margin=-1.0), "tasks: 'b': margin is -1.0; it must be 0 or more"),
        (TaskSettings(lrs=(-1.0,)), "tasks: 'b': training: lr cannot be -1.0"),
        (TaskSettings(epochs=0), "tasks: 'b': training: epochs cannot be 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        LearnerConfig(tasks={"b": settings})
    assert caught.value.argument == "tasks"
