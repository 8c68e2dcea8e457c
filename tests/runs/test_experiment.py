import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import clnp
from clnp import Experiment, FineTuning, LearnerConfig, Objective, Task, Training
from clnp.cli import app
from clnp.errors import (
    ArgumentError,
    DivergedError,
    ForgettingError,
    GraphError,
    RunError,
    StoppedError,
)
from clnp.methods.joint import Joint
from clnp.methods.packnet import PackNet
from clnp.methods.registry import BASELINES
from clnp.methods.single import Finetune, Single
from clnp.runs.directory import CHECKPOINT, CONFIG, RESULT, Run, read_events, read_json, to_json
from clnp.runs.experiment import Course
from clnp.terminal.status import Following
from clnp.training.config import TaskSettings
from clnp.training.objective import accuracy
from support.forgetting import Crash
from support.networks import mlp
from support.paths import ROOT
from support.tracked import Notebook


def task(name="a", *, seed=0, test=True):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 6, generator=generator)
    y = (x @ torch.randn(6, 3, generator=generator)).argmax(1)
    return Task(name, (x[:140], y[:140]), test=(x[140:], y[140:]) if test else None)


def experiment(*names, head="multi", width=30, seed=0, test=True, **options):
    torch.manual_seed(0)
    tasks = [task(name, seed=number, test=test) for number, name in enumerate(names or "ab")]
    training = Training(epochs=6, lr=0.02, batch_size=32, alpha=1e-3)
    config = LearnerConfig(**{"margin": 3.0, "training": training, **options})
    model = clnp.models.MLP(6, (width, width), 3)
    return Experiment(model, torch.zeros(2, 6), tasks, config, head=head, seed=seed)


def without_timings(result):
    return {key: value for key, value in result.items() if key != "timings"}


def test_a_result_has_everything(tmp_path):
    result = experiment(*"abc").run(tmp_path / "run")
    assert result == read_json(tmp_path / "run", RESULT, {})
    assert result["finished"] is True
    assert result["full"] is None
    assert [len(row) for row in result["scores"]] == [1, 2, 3]
    for number, row in enumerate(zip(*[r + [None] * 3 for r in result["scores"]], strict=False)):
        known = [score for score in row[number:]]
        assert set(known) == {result["tasks"][number]["test_score"]} if number < 3 else True
    for record in result["tasks"]:
        assert record["unchanged"] is True
        assert record["score"] >= record["best_score"] - 3.0
        assert record["test_score"] > 50
        assert len(record["outputs"]) == 64
    assert set(result["certificates"]) == set("abc")
    sizes = result["capacity"]["sizes"]
    for group, size in sizes.items():
        new = [u["new"] for u in result["capacity"]["usages"] if u["group"] == group]
        assert len(new) == 3
        assert sum(new) + result["capacity"]["free"][group] == size
    assert result["forecast"]["bottleneck"] in sizes
    assert result["timings"]["seconds"] >= sum(result["timings"]["tasks"]) > 0


def test_a_run_directory_has_config_environment_and_events(tmp_path):
    experiment().run(tmp_path / "run")
    config = read_json(tmp_path / "run", CONFIG, {})
    assert [task["name"] for task in config["tasks"]] == ["a", "b"]
    assert config["learner"]["training"]["epochs"] == 6
    (environment,) = read_json(tmp_path / "run", "environment.json", [])
    assert environment["torch"] == torch.__version__
    kinds = [event["event"] for event in read_events(tmp_path / "run")]
    once = ["begin", *["epoch"] * 6, "candidate", "pruning", "chosen", "task", "evaluation"]
    assert kinds == ["run", *once, *once, "finished"]


def test_the_network_of_a_run_can_be_loaded(tmp_path):
    made = experiment()
    result = made.run(tmp_path / "run")
    net = clnp.load(tmp_path / "run" / CHECKPOINT, made.model)
    assert net.tasks == ("a", "b")
    x, y = made.tasks[0].test
    score = 100 * (net(x, task="a").argmax(1) == y).double().mean().item()
    assert score == result["tasks"][0]["test_score"]


def test_the_same_seed_gives_the_same_result_and_another_seed_another(tmp_path):
    one = experiment().run(tmp_path / "one")
    two = experiment().run(tmp_path / "two")
    other = experiment(seed=1).run(tmp_path / "other")
    assert without_timings(one) == without_timings(two)
    assert one["certificates"] != other["certificates"]


def break_off(experiment, path, moment):
    """Let the run crash when it tells of the event after so many others."""
    seen = []

    def crash(event):
        seen.append(event)
        if len(seen) > moment:
            raise Crash

    with pytest.raises(Crash):
        experiment.run(path, checkpoint_seconds=0, on_event=crash)


@pytest.mark.parametrize("moment", [0, 1, 3, 9, 10, 11, 16, 22, 23, 24, 25])
def test_a_run_goes_on_from_any_event(tmp_path, moment):
    options = {"alphas": (1e-3, 5e-3), "search_on": "first", "fine_tuning": FineTuning(2, 1e-3)}
    whole = experiment(**options).run(tmp_path / "whole")
    break_off(experiment(**options), tmp_path / "broken", moment)
    assert experiment(**options).run(tmp_path / "broken") != {}
    broken = read_json(tmp_path / "broken", RESULT, {})
    assert without_timings(broken) == without_timings(whole)


@pytest.mark.parametrize("moment", [1, 2, 3, 5, 10, 14, 15, 17, 21, 28, 37])
def test_candidates_that_are_trained_together_go_on_from_any_event(tmp_path, moment):
    """Every event is there once, also if one of them diverged or stopped before the others."""
    training = Training(epochs=6, batch_size=32, patience=2)
    options = {
        "alphas": (1e-3, 5e-3),
        "lrs": (0.02, 1e25),
        "candidates_at_once": 3,
        "training": training,
    }
    whole = experiment(**options).run(tmp_path / "whole")
    break_off(experiment(**options), tmp_path / "broken", moment)
    broken = experiment(**options).run(tmp_path / "broken")
    assert without_timings(broken) == without_timings(whole)
    assert told(tmp_path / "broken") == told(tmp_path / "whole")


def told(path):
    """What happened, without when and how long; that a run was resumed is no part of it."""
    return [
        {key: value for key, value in event.items() if key not in ("at", "seconds")}
        for event in read_events(path)
        if event["event"] != "resumed"
    ]


def test_a_run_is_finished_when_all_has_been_told(tmp_path):
    """Killed before its last event, it comes to the same events; after it, to no second one."""

    def crash(event):
        if event["event"] == "finished":
            raise Crash

    experiment().run(tmp_path / "whole")
    with pytest.raises(Crash):
        experiment().run(tmp_path / "broken", on_event=crash)
    assert read_json(tmp_path / "broken", RESULT, {})["finished"] is False
    # What was told after the last checkpoint is forgotten, and told again.
    experiment().run(tmp_path / "broken")
    found = [
        [event["event"] for event in read_events(tmp_path / name) if event["event"] != "resumed"]
        for name in ("whole", "broken")
    ]
    assert found[0] == found[1]
    assert found[0].count("finished") == 1
    assert read_json(tmp_path / "broken", RESULT, {})["finished"] is True


def test_a_finished_run_is_left_as_it_is(tmp_path):
    first = experiment().run(tmp_path / "run")
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    assert without_timings(experiment().run(tmp_path / "run")) == without_timings(first)
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before


def test_another_experiment_does_not_go_on_with_a_run(tmp_path):
    experiment().run(tmp_path / "run")
    with pytest.raises(RunError, match=r"run holds another experiment: its seed is 0, not 1"):
        experiment(seed=1).run(tmp_path / "run")
    with pytest.raises(RunError, match=r"another experiment: its task 2 is 'b', not 'c'$"):
        experiment(*"acb").run(tmp_path / "run")
    with pytest.raises(RunError, match=r"run has a task that is not given: 'b'$"):
        experiment("a").run(tmp_path / "run")
    with pytest.raises(RunError, match=r"experiment: its learner\.margin is 3\.0, not 1\.0"):
        experiment(margin=1.0).run(tmp_path / "run")
    other = experiment()
    x, y = other.tasks[1].train
    tasks = [other.tasks[0], replace(other.tasks[1], train=(x + 1, y))]
    with pytest.raises(RunError, match=r"experiment: its task 2, 'b', has train '140 samples, "):
        replace(other, tasks=tasks).run(tmp_path / "run")


def test_what_was_taken_away_from_an_experiment_is_seen(tmp_path):
    training = Training(epochs=2, alpha={"fc1": 1e-3, "fc2": 1e-3}, optimizer_options={"eps": 1e-7})
    whole = {"training": training, "tasks": {"b": TaskSettings(margin=9.0)}}
    experiment(**whole).run(tmp_path / "run")
    experiment(**whole).run(tmp_path / "run")
    changes = {
        "learner.tasks.b": {"tasks": {}},
        "learner.training.alpha.fc2": {"training": replace(training, alpha={"fc1": 1e-3})},
        "learner.training.optimizer_options.eps": {
            "training": replace(training, optimizer_options={})
        },
    }
    for key, change in changes.items():
        with pytest.raises(RunError, match=f"holds another experiment: its {key} is .*, not None"):
            experiment(**{**whole, **change}).run(tmp_path / "run")


def test_another_way_to_prepare_or_to_judge_a_task_is_another_experiment(tmp_path):
    def changed(**change):
        made = experiment()
        return replace(made, tasks=[replace(task, **change) for task in made.tasks])

    def objective(factor):
        return Objective("mine", lambda o, t: factor * F.cross_entropy(o, t), accuracy)

    changed(prepare=lambda x: 2 * x).run(tmp_path / "prepared")
    changed(prepare=lambda x: 2 * x).run(tmp_path / "prepared")
    with pytest.raises(RunError, match=r"its task 1, 'a', has prepare '.*<lambda> \w{8}', not '"):
        changed(prepare=lambda x: 3 * x).run(tmp_path / "prepared")
    changed(objective=objective(1.0), num_outputs=3).run(tmp_path / "judged")
    with pytest.raises(RunError, match=r"its task 1, 'a', has loss '.*<lambda> \w{8}', not '"):
        changed(objective=objective(2.0), num_outputs=3).run(tmp_path / "judged")


def failing(event):
    """A crash, or a mistake, when this is told."""

    def crash(seen):
        if seen["event"] == event:
            raise Crash

    return crash


@pytest.mark.parametrize("event", ["run", "begin"])
def test_a_run_that_has_learnt_nothing_is_begun_anew(tmp_path, event):
    """Killed, it is as it was; by the same or another experiment, it comes to the same result."""
    other = {"margin": 1.0, "width": 20}
    whole = experiment(*"abc", **other).run(tmp_path / "whole")
    with pytest.raises(Crash):
        experiment().run(tmp_path / "run", on_event=failing(event))
    assert (tmp_path / "run" / CONFIG).is_file()
    result = experiment(*"abc", **other).run(tmp_path / "run")
    assert without_timings(result) == without_timings(whole)
    assert told(tmp_path / "run") == told(tmp_path / "whole")
    configs = [read_json(tmp_path / name, CONFIG, {}) for name in ("whole", "run")]
    assert configs[0] == configs[1]


def test_a_mistake_that_is_found_late_leaves_a_directory_that_can_be_used(tmp_path):
    made = experiment()
    x, y = made.tasks[0].train
    path = tmp_path / "run"
    wrong = [
        replace(made, tasks=[replace(made.tasks[0], train=(x / 0, y))]),
        replace(made, example_input=torch.zeros(2, 7)),
        replace(made, tasks=[replace(made.tasks[0], objective=Objective("x", gone, accuracy))]),
    ]
    for each in wrong:
        with pytest.raises((ArgumentError, GraphError)):
            each.run(path, trackers=[Notebook()])
        assert not (path / CONFIG).exists()
    whole = made.run(tmp_path / "whole")
    assert without_timings(made.run(path)) == without_timings(whole)
    assert len(read_json(path, "environment.json", [])) == 1


def gone(outputs, targets):
    return F.cross_entropy(outputs, targets).detach()


def test_a_mistake_after_an_epoch_leaves_the_run_as_it_is(tmp_path):
    def fail(event):
        if event["event"] == "epoch":
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        experiment().run(tmp_path / "run", on_event=fail)
    with pytest.raises(RunError, match=r"its learner\.margin is 3\.0, not 1\.0"):
        experiment(margin=1.0).run(tmp_path / "run")


def test_a_full_disk_does_not_withdraw_a_run(tmp_path):
    """It can be gone on with, as the message says."""

    def fail(event):
        raise RunError("cannot write")

    with pytest.raises(RunError, match="cannot write"):
        experiment().run(tmp_path / "run", on_event=fail)
    assert (tmp_path / "run" / CONFIG).is_file()


RECIPE = """
description = "mine"
[stream]
kind = "permuted"
dataset = "mine"
num_tasks = 1
[network]
model = "mlp"
widths = [8]
[learner]
margin = 20.0
[learner.training]
epochs = 2
"""


def test_the_same_command_begins_anew_when_the_data_is_mended(tmp_path, monkeypatch, capsys):
    def write(value):
        x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        y = (x[:, 0] > 0).astype(int)
        x[7, 1] = value
        np.savez("mine.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    commands = [["--out", "r"], ["--out", "s", "--seeds", "2"]]
    commands = [["run", "mine.toml", "--data", ".", "--quiet", *each] for each in commands]
    write(np.nan)
    for command in commands:
        assert app.main(command) == 2
        assert "an input is NaN or infinite" in capsys.readouterr().err
    assert app.main(["resume", "r", "--quiet"]) == 2
    assert "r is no run any more: it failed before it" in capsys.readouterr().err
    write(0.0)
    for command in commands:
        assert app.main(command) == 0
    assert app.main(["verify", "r", "--data", "."]) == 0


def test_an_optimizer_is_tried_before_a_directory_is_made(tmp_path):
    with pytest.raises(ArgumentError, match="training: LBFGS cannot be used"):
        experiment(training=Training(optimizer="LBFGS"))
    made = experiment()
    with pytest.raises(ArgumentError, match="training: LBFGS cannot be used"):
        replace(made, baseline=Finetune(training=Training(optimizer="LBFGS")))
    with pytest.raises(ArgumentError, match=r"training is a int; it must be a Training, or None"):
        replace(made, baseline=Finetune(training=5))
    replace(
        made,
        baseline=Finetune(training=Training()),
        config=replace(made.config, training=Training(optimizer=torch.optim.SGD)),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": task()}, "tasks is a Task; give a list of tasks"),
        ({"tasks": [task(), "b"]}, "tasks holds a str; give a list of tasks"),
        ({"config": Training()}, "config is a Training; it must be a LearnerConfig"),
        ({"model": "mlp"}, "model is a str; it must be an nn.Module"),
        ({"seed": "a"}, "seed is 'a'; it must be a whole number"),
    ],
)
def test_an_experiment_of_something_else_is_refused_by_the_name_of_the_argument(change, message):
    made = experiment()
    with pytest.raises(ArgumentError) as caught:
        replace(made, **change)
    assert str(caught.value) == message
    assert [caught.value.argument] == list(change)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"trackers": Notebook()}, "trackers is a Notebook; give a list of trackers"),
        ({"trackers": "tensorboard"}, "trackers is a str; give a list of trackers"),
        ({"trackers": [Notebook]}, "trackers holds a type; give a list of trackers"),
        (
            {"checkpoint_seconds": "x"},
            "checkpoint_seconds is 'x'; it must be a number of seconds, 0 or more",
        ),
    ],
)
def test_a_run_is_told_of_arguments_that_make_no_sense_first(tmp_path, option, message):
    with pytest.raises(ArgumentError) as caught:
        experiment().run(tmp_path / "run", **option)
    assert str(caught.value) == message
    assert [caught.value.argument] == list(option)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("event", ["epoch", "task"])
def test_another_experiment_does_not_go_on_with_one_that_broke_off(tmp_path, event):
    def crash(seen):
        if seen["event"] == event:
            raise Crash

    with pytest.raises(Crash):
        experiment().run(tmp_path / "run", on_event=crash)
    with pytest.raises(RunError, match=r"its learner\.margin is 3\.0, not 1\.0"):
        experiment(margin=1.0).run(tmp_path / "run")


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    def crash(seen):
        if seen["event"] == "begin" and seen["number"] == 2:
            raise Crash

    for name, margin in (("one", 3.0), ("two", 9.0)):
        with pytest.raises(Crash):
            experiment(margin=margin).run(tmp_path / name, on_event=crash)
    (tmp_path / "two" / CHECKPOINT).replace(tmp_path / "one" / CHECKPOINT)
    with pytest.raises(RunError, match=r"one holds another experiment: its learner\.margin is 9"):
        experiment(margin=3.0).run(tmp_path / "one")
    with pytest.raises(RunError, match=r"two has lost its checkpoint\.safetensors; begin a"):
        experiment(margin=9.0).run(tmp_path / "two")


def test_every_task_is_checked_before_the_first_is_learnt(tmp_path):
    made = experiment()
    x, y = made.tasks[1].train
    bad = replace(made, tasks=[made.tasks[0], replace(made.tasks[1], train=(x / 0, y))])
    with pytest.raises(ArgumentError, match="task 'b', training data: an input is NaN"):
        bad.run(tmp_path / "run")
    assert [event["event"] for event in read_events(tmp_path / "run")] == ["run", "failed"]


def test_what_a_task_took_is_told_as_the_ledger_has_it(tmp_path):
    tuning = FineTuning(8, 0.01, rounds=3)
    result = experiment(margin=15.0, fine_tuning=tuning).run(tmp_path / "run")
    for record in result["tasks"]:
        for usage in result["capacity"]["usages"]:
            if usage["task"] == record["task"]:
                assert record["new"][usage["group"]] == usage["new"]
                assert record["reused"][usage["group"]] == usage["reused"]
    # Where a task was pruned once more, neurons count by the thresholds of that.
    often = [record for record in result["tasks"] if record["num_rounds"] > 1]
    assert often
    plans = [e for e in read_events(tmp_path / "run") if e["event"] == "pruning"]
    for record in often:
        first = next(e["plan"] for e in plans if e["task"] == record["task"])
        assert record["pruning"]["kept"] != record["new"]
        assert record["pruning"]["thresholds"] != first["thresholds"]


def test_tasks_may_come_from_a_generator():
    made = experiment()
    again = Experiment(made.model, made.example_input, (task for task in made.tasks), made.config)
    assert [task.name for task in again.tasks] == ["a", "b"]


def test_another_model_does_not_go_on_with_a_run(tmp_path):
    def crash(event):
        if event["event"] == "task":
            raise Crash

    with pytest.raises(Crash):
        experiment().run(tmp_path / "run", checkpoint_seconds=0, on_event=crash)
    message = r"experiment: its model has fc1 Linear\(in_features=6, out_features=30, .*31"
    with pytest.raises(RunError, match=message):
        experiment(width=31).run(tmp_path / "run")


@pytest.mark.parametrize("baseline", [None, Finetune()])
def test_another_model_is_not_given_the_result_of_a_finished_run(tmp_path, baseline):
    made = replace(experiment(), baseline=baseline)
    first = made.run(tmp_path / "run")
    for model, found in (
        (clnp.models.MLP(6, (30, 31), 3), "fc2 Linear"),
        (nn.Sequential(), "MLP"),
    ):
        with pytest.raises(RunError, match=rf"holds another experiment: its model has {found}\("):
            replace(made, model=model).run(tmp_path / "run")
    torch.manual_seed(1)  # Weights of a model are where it begins, no part of what it is.
    again = replace(made, model=clnp.models.MLP(6, (30, 30), 3)).run(tmp_path / "run")
    assert without_timings(again) == without_timings(first)


def test_other_data_in_a_data_set_is_another_experiment(tmp_path):
    made = experiment("a")
    x, y = made.tasks[0].train
    sets = [TensorDataset(x, y), TensorDataset(x + 1, y)]
    tasks = [[replace(made.tasks[0], train=data)] for data in sets]
    replace(made, tasks=tasks[0]).run(tmp_path / "run")
    with pytest.raises(RunError, match=r"its task 1, 'a', has train '140 samples, .*', not '140 s"):
        replace(made, tasks=tasks[1]).run(tmp_path / "run")


@pytest.mark.parametrize(
    "train", [None, (np.zeros((9, 6)), np.zeros(9)), "train.pt", (torch.zeros(9, 6),)]
)
def test_what_is_no_data_is_refused_before_a_directory_is_made(tmp_path, train):
    made = replace(experiment(), tasks=[Task("a", train)])
    with pytest.raises(ArgumentError, match=r"^task 'a'.* a pair of tensors"):
        made.run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_task_may_be_a_list_of_samples_or_features_of_another_network(tmp_path):
    """The samples are the same as in tensors, and what made them is not trained."""
    made = experiment("a")
    (x, y), test = made.tasks[0].train, made.tasks[0].test
    scale = torch.ones((), requires_grad=True)
    kinds = {
        "list": [(each, int(label)) for each, label in zip(x, y, strict=True)],
        "features": (scale * x, y),
        "set": TensorDataset(scale * x, y),
    }
    for resident in (None, False):
        streamed = replace(made, config=replace(made.config, resident=resident))
        whole = streamed.run(tmp_path / f"tensors{resident}")
        for name, train in kinds.items():
            task = Task("a", train, test=(test[0] * scale, test[1]))
            found = replace(streamed, tasks=[task]).run(tmp_path / f"{name}{resident}")
            assert found["certificates"] == whole["certificates"]
    assert scale.grad is None


def test_functions_in_a_config_go_by_their_names_and_by_what_they_do(tmp_path):
    def sgd(parameters, lr):
        return torch.optim.SGD(parameters, lr)

    training = Training(epochs=2, optimizer=sgd)
    experiment(training=training).run(tmp_path / "run")
    experiment(training=training).run(tmp_path / "run")
    stored = read_json(tmp_path / "run", CONFIG, {})["learner"]["training"]["optimizer"]
    assert "<locals>.sgd" in stored
    other = Training(epochs=2, optimizer=lambda parameters, lr: torch.optim.Adam(parameters, lr))
    with pytest.raises(RunError, match=r"holds another experiment: its learner.training.optimizer"):
        experiment(training=other).run(tmp_path / "run")


def test_tasks_without_test_data_have_no_test_scores(tmp_path):
    result = experiment(test=False).run(tmp_path / "run")
    assert result["scores"] == [[None], [None, None]]
    assert [record["unchanged"] for record in result["tasks"]] == [None, None]


def test_a_full_network_ends_a_run_well(tmp_path):
    keep_most = {
        "margin": 0.0,
        "training": Training(epochs=30, alpha=0.0, lr=0.02, batch_size=32),
    }
    result = experiment(*"abcdefgh", head="single", width=6, **keep_most).run(tmp_path / "run")
    assert result["finished"] is True
    assert "no neuron of fc2 is free" in result["full"]
    assert 1 <= len(result["tasks"]) < 8
    assert read_events(tmp_path / "run")[-2]["event"] == "full"
    again = experiment(*"abcdefgh", head="single", width=6, **keep_most).run(tmp_path / "run")
    assert without_timings(again) == without_timings(result)


def test_an_experiment_needs_tasks_with_names_of_their_own():
    with pytest.raises(ArgumentError, match="an experiment needs at least one task"):
        Experiment(mlp(), torch.zeros(2, 6), [])
    stray = clnp.LearnerConfig(tasks={"aa": clnp.training.optimizer.TaskSettings(margin=1.0)})
    message = "config.tasks: unknown task 'aa'; did you mean 'a'. Known: a"
    with pytest.raises(ArgumentError, match=message):
        Experiment(mlp(), torch.zeros(2, 6), [Task("a", None)], stray)
    with pytest.raises(ArgumentError, match="two tasks are called 'a'"):
        experiment("a", "a")


def test_a_run_that_is_asked_to_stop_saves_and_goes_on_later(tmp_path):
    whole = experiment().run(tmp_path / "whole")
    made = experiment()
    files = {CONFIG: to_json(made.to_json())}
    with Run.create(tmp_path / "run", files) as run:
        course = Course(made, run, 1e9, lambda event: event["event"] == "epoch" and course.stop())
        with pytest.raises(StoppedError, match=r"stopped; go on with: clnp resume .*run"):
            course.follow()
    assert [e["event"] for e in read_events(tmp_path / "run")[-2:]] == ["epoch", "stopped"]
    result = experiment().run(tmp_path / "run")
    assert without_timings(result) == without_timings(whole)
    assert "stopped" not in [event["event"] for event in read_events(tmp_path / "run")]
    assert read_events(tmp_path / "run")[3]["event"] == "resumed"


GROWN = {"alphas": (1e-3, 5e-3), "search_on": "first", "fine_tuning": FineTuning(2, 1e-3)}


def without_counts(events):
    """The events without the first, and without how many tasks there are to come."""
    unlike = ("num_tasks", "epochs_of_run")
    return [{k: v for k, v in event.items() if k not in unlike} for event in events[1:]]


@pytest.mark.parametrize("head", ["multi", "single"])
def test_tasks_can_be_added_to_a_finished_run(tmp_path, head):
    whole = experiment(*"abcd", head=head, width=60, **GROWN).run(tmp_path / "whole")
    for names in ("ab", "abc", "abcd"):
        result = experiment(*names, head=head, width=60, **GROWN).run(tmp_path / "run")
        assert result["finished"] is True
        assert result["num_tasks"] == len(names)
    assert without_timings(result) == without_timings(whole)
    assert without_timings(read_json(tmp_path / "run", RESULT, {})) == without_timings(whole)
    assert read_json(tmp_path / "run", CONFIG, {}) == read_json(tmp_path / "whole", CONFIG, {})
    found = [without_counts(told(tmp_path / name)) for name in ("run", "whole")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("begin", 1), ("epoch", 3)),
        (("epoch", 4), ("epoch", 1)),
        (("task", 1), ("begin", 1)),
        (("epoch", 17), ("evaluation", 1)),
        (("finished", 1), ("round", 1)),
    ],
)
def test_tasks_can_be_added_to_a_run_that_broke_off(tmp_path, first, then):
    whole = experiment(*"abc", **GROWN).run(tmp_path / "whole")
    broken_off(experiment(*"ab", **GROWN), tmp_path / "run", *first)
    broken_off(experiment(*"abc", **GROWN), tmp_path / "run", *then)
    result = experiment(*"abc", **GROWN).run(tmp_path / "run")
    assert without_timings(result) == without_timings(whole)


def untimed(events):
    """The events without when and how long."""
    return [{k: v for k, v in e.items() if k not in ("at", "seconds")} for e in events]


def with_task(*names, **others):
    """An experiment with tasks of these names; the last one is trained in another way."""
    own = {names[-1]: TaskSettings(**others)} if others else {}
    return experiment(*names, tasks=own, **GROWN)


@pytest.mark.parametrize("then", ["settings", "data", "name", "fewer"])
@pytest.mark.parametrize("moment", [("begin", 3), ("epoch", 25), ("round", 3), ("candidate", 4)])
def test_a_task_that_has_not_ended_may_be_exchanged(tmp_path, moment, then):
    """What was told of it before is told no more, and the result is that of a run without it."""
    broken_off(with_task(*"abc", margin=1.0), tmp_path / "run", *moment)
    other = with_task(*{"fewer": "ab", "name": "abx"}.get(then, "abc"))
    if then == "data":
        x, y = other.tasks[-1].train
        other = replace(
            other, tasks=[*other.tasks[:-1], replace(other.tasks[-1], train=(x, 2 - y))]
        )
    whole, result = (other.run(tmp_path / name) for name in ("whole", "run"))
    assert without_timings(result) == without_timings(whole)
    told = [without_counts(read_events(tmp_path / name)) for name in ("whole", "run")]
    assert untimed(told[0]) == untimed(told[1])
    assert read_json(tmp_path / "run", CONFIG, {})["tasks"] == other.to_json()["tasks"]
    assert clnp.verify(other, tmp_path / "run")["verified"] is True


def test_a_task_that_cannot_be_learnt_can_be_mended_or_left_out(tmp_path):
    first = experiment(*"ab").run(tmp_path / "run")
    whole = experiment(*"abc", tasks={"c": TaskSettings(lrs=(0.01,))}).run(tmp_path / "whole")
    for _ in range(2):
        with pytest.raises(DivergedError):
            experiment(*"abc", tasks={"c": TaskSettings(lrs=(1e30,))}).run(tmp_path / "run")
        assert clnp.verify(experiment(*"ab"), tmp_path / "run")["verified"] is True
        again = experiment(*"ab").run(tmp_path / "run")
        assert without_timings(again) == without_timings(first)
        assert again["finished"] is True
    with pytest.raises(DivergedError):
        experiment(*"abc", tasks={"c": TaskSettings(lrs=(1e30,))}).run(tmp_path / "run")
    mended = experiment(*"abc", tasks={"c": TaskSettings(lrs=(0.01,))})
    assert without_timings(mended.run(tmp_path / "run")) == without_timings(whole)


@pytest.mark.parametrize("moment", [("begin", 3), ("epoch", 25), ("round", 3)])
def test_one_can_come_back_to_a_task_that_was_exchanged(tmp_path, moment):
    """Left out, and added again; and exchanged for another that breaks off before it is saved."""
    whole = with_task(*"abc").run(tmp_path / "whole")
    events = untimed(without_counts(read_events(tmp_path / "whole")))
    broken_off(with_task(*"abc"), tmp_path / "left", *moment)
    with_task(*"ab").run(tmp_path / "left")
    broken_off(with_task(*"abc"), tmp_path / "other", *moment)

    def crash(event):
        if event["event"] == "pruning" and event["task"] == "c":
            raise Crash

    with pytest.raises(Crash):
        with_task(*"abc", epochs=3).run(tmp_path / "other", checkpoint_seconds=1e9, on_event=crash)
    for name in ("left", "other"):
        assert without_timings(with_task(*"abc").run(tmp_path / name)) == without_timings(whole)
        assert untimed(without_counts(read_events(tmp_path / name))) == events


@pytest.mark.parametrize("moment", [("epoch", 8), ("round", 2), ("task", 2)])
def test_a_run_with_batchnorm_and_an_open_task_can_be_verified(tmp_path, moment):
    torch.manual_seed(0)
    layers = (nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
    made = replace(
        experiment(fine_tuning=FineTuning(1)), model=nn.Sequential(*layers, nn.Linear(12, 3))
    )
    broken_off(made, tmp_path / "run", *moment)
    assert clnp.verify(made, tmp_path / "run")["verified"] is True
    fewer = replace(made, tasks=made.tasks[:1])
    assert fewer.run(tmp_path / "run")["finished"] is True
    assert clnp.verify(fewer, tmp_path / "run")["verified"] is True


def test_a_task_that_does_not_fit_may_be_left_out_or_exchanged(tmp_path):
    """What a run that was full says is what one without that task says."""

    def made(*names):
        training = Training(epochs=30, alpha=0.0, lr=0.02, batch_size=32)
        return experiment(*names, head="single", width=10, margin=0.0, training=training)

    full = made(*"abcdefgh").run(tmp_path / "run")
    num = len(full["tasks"])
    assert "no neuron of fc2 is free" in full["full"]
    assert made(*"abcdefgh").run(tmp_path / "run") == full
    whole = made(*"abcdefgh"[:num]).run(tmp_path / "whole")
    fewer = made(*"abcdefgh"[:num]).run(tmp_path / "run")
    assert fewer["full"] is None
    assert without_timings(fewer) == without_timings(whole)
    again = made(*"abcdefgh").run(tmp_path / "run")
    assert without_timings(again) == without_timings(full)
    with pytest.raises(RunError, match="has a task that is not given"):
        made(*"abcdefgh"[: num - 1]).run(tmp_path / "run")


@pytest.mark.parametrize("baseline", [None, Finetune()])
def test_tasks_may_be_others_before_anything_is_saved(tmp_path, baseline):
    made = [replace(experiment(*names), baseline=baseline) for names in ("ab", "xb")]

    def crash(event):
        if event["event"] == "epoch":
            raise Crash

    with pytest.raises(Crash):
        made[0].run(tmp_path / "run", checkpoint_seconds=1e9, on_event=crash)
    whole, result = (made[1].run(tmp_path / name) for name in ("whole", "run"))
    assert without_timings(result) == without_timings(whole)


def test_trackers_are_told_of_a_new_run_when_a_task_was_exchanged(tmp_path):
    broken_off(with_task(*"abc"), tmp_path / "run", "epoch", 25)
    (tmp_path / "run" / "trackers.json").write_text('{"mlflow": {"run": "1"}}')
    broken_off(with_task(*"abc"), tmp_path / "run", "epoch", 1)
    assert (tmp_path / "run" / "trackers.json").exists()
    with_task(*"abx").run(tmp_path / "run")
    assert not (tmp_path / "run" / "trackers.json").exists()


def test_trackers_are_told_of_a_new_run_when_it_is_begun_anew_with_others(tmp_path):
    def crash(event):
        if event["event"] == "epoch":
            raise Crash

    for names, kept in (("ab", False), ("ab", True), ("ax", False)):
        with pytest.raises(Crash):
            experiment(*names).run(tmp_path / "run", checkpoint_seconds=1e9, on_event=crash)
        assert (tmp_path / "run" / "trackers.json").exists() == kept
        (tmp_path / "run" / "trackers.json").write_text('{"mlflow": {"run": "1"}}')


@pytest.mark.parametrize("baseline", [Finetune(), Joint()])
def test_a_task_that_a_baseline_has_begun_stays(tmp_path, baseline):
    def made(**others):
        return replace(experiment(*"abc", tasks={"b": TaskSettings(**others)}), baseline=baseline)

    broken_off(made(margin=1.0), tmp_path / "run", "epoch", 2 if baseline == Joint() else 8)
    with pytest.raises(RunError, match=r"its learner\.tasks\.b\.margin is 1\.0, not 2\.0"):
        made(margin=2.0).run(tmp_path / "run")


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("file", [RESULT, CONFIG])
def test_a_run_that_is_killed_while_tasks_are_added_goes_on(tmp_path, monkeypatch, names, file):
    whole = experiment(*names).run(tmp_path / "whole")
    experiment(*"ab").run(tmp_path / "run")
    replace_file = clnp.runs.directory.replace_file

    def crash(path, data):
        if path.name == file:
            raise Crash
        replace_file(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("clnp.runs.directory.replace_file", crash)
        with pytest.raises(Crash):
            experiment(*"abc").run(tmp_path / "run")
    result = experiment(*names).run(tmp_path / "run")
    assert without_timings(result) == without_timings(whole)


def test_a_task_that_does_not_fit_is_not_added(tmp_path):
    first = experiment(*"ab").run(tmp_path / "run")
    made = experiment(*"abc")
    x, y = made.tasks[2].train
    bad = replace(made, tasks=[*made.tasks[:2], replace(made.tasks[2], train=(x / 0, y))])
    with pytest.raises(ArgumentError, match="task 'c', training data: an input is NaN"):
        bad.run(tmp_path / "run")
    assert experiment(*"ab").run(tmp_path / "run") == first
    with pytest.raises(RunError, match=r"its learner\.margin is 3\.0, not 1\.0"):
        experiment(*"abc", margin=1.0).run(tmp_path / "run")
    assert experiment(*"ab").run(tmp_path / "run") == first


@pytest.mark.parametrize("baseline", [None, Finetune()])
def test_tasks_are_not_added_to_a_run_of_another_network(tmp_path, baseline):
    path = tmp_path / "run"
    replace(experiment(*"ab"), baseline=baseline).run(path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(RunError, match="holds another experiment: its model has fc1"):
        replace(experiment(*"abc", width=20), baseline=baseline).run(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_task_that_is_added_may_have_settings_of_its_own(tmp_path):
    own = {"c": TaskSettings(margin=9.0)}
    whole = experiment(*"abc", tasks=own).run(tmp_path / "whole")
    experiment(*"ab").run(tmp_path / "run")
    added = experiment(*"abc", tasks=own).run(tmp_path / "run")
    assert without_timings(added) == without_timings(whole)
    other = experiment(*"abcd", tasks={**own, "a": TaskSettings(margin=9.0)})
    with pytest.raises(RunError, match=r"its learner\.tasks\.a is None, not"):
        other.run(tmp_path / "run")


@pytest.mark.parametrize("settings", [each for each in BASELINES if each is not Joint])
def test_tasks_can_be_added_to_a_run_of_a_baseline(tmp_path, settings):
    made = [replace(experiment(*names), baseline=settings()) for names in ("ab", "abc")]
    whole = made[1].run(tmp_path / "whole")
    made[0].run(tmp_path / "run")
    assert without_timings(made[1].run(tmp_path / "run")) == without_timings(whole)


def test_tasks_cannot_be_added_to_joint_training(tmp_path):
    made = [replace(experiment(*names), baseline=Joint()) for names in ("ab", "abc")]
    first = made[0].run(tmp_path / "run")
    with pytest.raises(RunError, match="run: joint learns all tasks at the same time"):
        made[1].run(tmp_path / "run")
    assert made[0].run(tmp_path / "run") == first


@pytest.fixture
def elsewhere(monkeypatch):
    """Moves to another machine, which rounds differently, and back."""
    describe, digest_of = clnp.runs.experiment.describe, clnp.runs.outputs.digest_of

    def move(name):
        monkeypatch.setattr(
            "clnp.runs.experiment.describe", lambda device: {**describe(device), "cpu": name}
        )
        monkeypatch.setattr(
            "clnp.runs.outputs.digest_of", lambda tensor: f"{name} {digest_of(tensor)}"
        )

    move("here")
    return move


def broken_off(made, path, event, number):
    """Let the run break off at the event of that number."""
    seen = []

    def crash(told):
        seen.append(told["event"])
        if seen.count(event) == number:
            raise Crash

    with pytest.raises(Crash):
        made.run(path, checkpoint_seconds=0, on_event=crash)


@pytest.mark.parametrize("moment", [("begin", 2), ("epoch", 9), ("begin", 3), ("epoch", 15)])
def test_a_run_that_goes_on_on_another_machine_has_forgotten_nothing(tmp_path, elsewhere, moment):
    whole = experiment(*"abc").run(tmp_path / "whole")
    broken_off(experiment(*"abc"), tmp_path / "run", *moment)
    elsewhere("there")
    broken_off(experiment(*"abc"), tmp_path / "run", "task", 1)
    elsewhere("here")
    result = experiment(*"abc").run(tmp_path / "run")
    assert result["certificates"] == whole["certificates"]
    assert result["scores"] == whole["scores"]
    assert [record["unchanged"] for record in result["tasks"]] == [True] * 3
    first = result["tasks"][0]
    assert first["outputs"] == whole["tasks"][0]["outputs"]
    assert "cpu here" in first["arithmetic"]


def test_what_changes_on_another_machine_is_found(tmp_path, elsewhere):
    broken_off(experiment(*"abc"), tmp_path / "run", "begin", 2)
    elsewhere("there")

    def damage(event):
        if event["event"] == "task" and event["task"] == "b":
            course.method.net.model.fc1.weight_frozen[0, 0] += 1

    with Run.open(tmp_path / "run") as run:
        course = Course(experiment(*"abc"), run, on_event=damage)
        with pytest.raises(ForgettingError, match=r"task 'a' has changed: fc1\.weight"):
            course.follow()
    first = course.tally.done[0]
    assert first["unchanged"] is False
    assert [*first["elsewhere"]] == [course._arithmetic]


@pytest.mark.parametrize("baseline", [Single(), PackNet(), Finetune()])
@pytest.mark.parametrize("moment", [("begin", 2), ("epoch", 9), ("begin", 3)])
def test_a_baseline_goes_on_on_another_machine(tmp_path, elsewhere, baseline, moment):
    made = replace(experiment(*"abc"), baseline=baseline)
    whole = made.run(tmp_path / "whole")
    broken_off(made, tmp_path / "run", *moment)
    elsewhere("there")
    result = made.run(tmp_path / "run")
    assert result["scores"] == whole["scores"]
    unchanged = [record["unchanged"] for record in result["tasks"]]
    assert unchanged == [record["unchanged"] for record in whole["tasks"]]


def test_a_task_that_cannot_be_learnt_leaves_the_others(tmp_path):
    training = Training(epochs=2, optimizer="SGD", lr=1e30)
    with pytest.raises(DivergedError, match="every candidate of task 'a' diverged"):
        experiment(training=training).run(tmp_path / "run")
    assert not (tmp_path / "run" / RESULT).exists()
    last = read_events(tmp_path / "run")[-1]
    assert (last["event"], last["task"]) == ("failed", "a")
    assert last["reason"].startswith("every candidate of task 'a' diverged")


class Fragile(torch.utils.data.Dataset):
    """Samples of a task; while `broken` is an error, that is raised instead of the last one."""

    broken: BaseException | None = None

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.broken is not None and index == len(self) - 1:
            raise self.broken
        return self.x[index], self.y[index]


def fragile(part):
    """An experiment whose second task has such training or test data, and that data."""
    made = experiment()
    data = Fragile(*getattr(made.tasks[1], part))
    tasks = [made.tasks[0], replace(made.tasks[1], **{part: data})]
    # The samples of a data set are read anew for every epoch only where they are not kept.
    return replace(made, tasks=tasks, config=replace(made.config, resident=False)), data


@pytest.mark.parametrize("part", ["train", "test"])
def test_what_a_users_code_breaks_off_with_is_told_and_can_be_mended(tmp_path, part):
    made, data = fragile(part)
    whole = made.run(tmp_path / "whole")

    def tear(event):
        if event["event"] == "begin" and event["number"] == 2:
            data.broken = ZeroDivisionError("a file of mine\nis torn")

    told = []
    with pytest.raises(ZeroDivisionError, match="a file of mine"):
        made.run(tmp_path / "run", on_event=lambda event: (told.append(event), tear(event)))
    last = read_events(tmp_path / "run")[-1]
    reason = "ZeroDivisionError: a file of mine"
    assert told[-1] == {"event": "failed", "task": "b", "reason": reason, "mendable": True}
    assert {**told[-1], "at": last["at"]} == last
    assert Following(tmp_path / "run").look().status == "failed"
    data.broken = None
    assert without_timings(made.run(tmp_path / "run")) == without_timings(whole)
    assert [e["event"] for e in read_events(tmp_path / "run")].count("failed") == 0


def test_a_run_that_ctrl_c_breaks_off_is_said_to_be_stopped(tmp_path):
    made, data = fragile("test")
    data.broken = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        made.run(tmp_path / "run")
    assert read_events(tmp_path / "run")[-1]["event"] == "stopped"
    assert Following(tmp_path / "run").look().status == "stopped"


def test_a_failure_that_cannot_be_written_down_is_raised_all_the_same(tmp_path, monkeypatch):
    made, data = fragile("test")
    data.broken = ZeroDivisionError("torn")
    log = Run.log

    def full(run, event):
        if event["event"] == "failed":
            raise RunError("no space left")
        return log(run, event)

    monkeypatch.setattr(Run, "log", full)
    with pytest.raises(ZeroDivisionError, match="torn"):
        made.run(tmp_path / "run")


@pytest.mark.parametrize("error", [ZeroDivisionError("torn"), KeyboardInterrupt()])
def test_one_who_cannot_be_told_of_a_failure_does_not_hide_it(tmp_path, error):
    made, data = fragile("test")
    data.broken = error

    def tell(event):
        if event["event"] in ("failed", "stopped"):
            raise KeyError("epoch")

    with pytest.raises(type(error)):
        made.run(tmp_path / "run", on_event=tell)
    assert read_events(tmp_path / "run")[-1]["event"] in ("failed", "stopped")


FULL = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from runs.test_experiment import experiment
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def limit(event):
    if event["event"] == "begin" and event["number"] == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))

try:
    experiment().run(sys.argv[1], checkpoint_seconds=0, on_event=limit)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_disk_that_is_full_loses_nothing(tmp_path):
    whole = experiment().run(tmp_path / "whole")
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "run", ROOT / "tests"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(f"RunError cannot write to {tmp_path / 'run'}: File too large")
    assert "free some space; the Python program that began it goes on" in done.stdout
    assert not list((tmp_path / "run").glob(".clnp-*"))
    assert len(read_json(tmp_path / "run", RESULT, {})["tasks"]) == 1
    result = experiment().run(tmp_path / "run")
    assert without_timings(result) == without_timings(whole)


class Noisy(torch.utils.data.Dataset):
    """Samples that are never twice the same."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return self.x[place] + torch.randn(6), int(self.y[place])


def test_test_data_that_draws_random_numbers_is_the_same_every_time(tmp_path):
    made = experiment(*"abc")
    tasks = [replace(task, test=Noisy(*task.test)) for task in made.tasks]
    result = replace(made, tasks=tasks).run(tmp_path / "run")
    for number, record in enumerate(result["tasks"]):
        assert record["unchanged"] is True
        assert {row[number] for row in result["scores"][number:]} == {record["test_score"]}
