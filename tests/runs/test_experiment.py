import json
import shutil
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
    CheckpointError,
    DivergedError,
    ForgettingError,
    GraphError,
    RunError,
    StoppedError,
)
from clnp.methods.joint import Joint
from clnp.methods.neural_pruning import NeuralPruning
from clnp.methods.packnet import PackNet
from clnp.methods.registry import BASELINES, NAMES, Methods, baseline_of
from clnp.methods.single import Finetune, Single
from clnp.plain import to_json
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateTrained,
    EpochEnded,
    Evaluated,
    Event,
    NetworkFull,
    RoundEnded,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SubsetScored,
    TaskEnded,
    TaskResumed,
    TasksChecked,
    TaskStarted,
    Warned,
)
from clnp.runs import experiment as module
from clnp.runs.directory import (
    CHECKPOINT,
    CONFIG,
    LOCK,
    RESULT,
    Run,
    read_config,
    read_environments,
    read_events,
    read_result,
)
from clnp.runs.experiment import RunLoop
from clnp.training.config import TaskSettings
from clnp.training.objective import accuracy
from support.runs import Crash, break_off, log_of, untimed
from support.tracked import Notebook, task


def experiment(*names, head="multi", width=30, seed=0, test=True, **options):
    torch.manual_seed(0)
    tasks = [task(name, seed=number) for number, name in enumerate(names or "ab")]
    if not test:
        tasks = [replace(task, test=None) for task in tasks]
    training = Training(epochs=6, lr=0.02, batch_size=32, alpha=1e-3)
    config = LearnerConfig(**{"margin": 3.0, "training": training, **options})
    model = clnp.models.MLP(6, (width, width), 3)
    return Experiment(model, torch.zeros(2, 6), tasks, config, head=head, seed=seed)


GROWN = {"alphas": (1e-3, 5e-3), "search_on": "first", "fine_tuning": FineTuning(2, 1e-3)}
"""Settings of a run that does everything: a grid for the first task, and fine-tuning."""


def another_width():
    return replace(experiment(), model=clnp.models.MLP(6, (30, 31), 3))


def changed_task(made, index, **changes):
    """Return the experiment with other fields of the task at that index."""
    tasks = list(made.tasks)
    tasks[index] = replace(tasks[index], **changes)
    return replace(made, tasks=tasks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that runs an experiment once for all tests, and returns its directory."""
    known = {}

    def run(made):
        name = to_json(made.describe())
        if name not in known:
            known[name] = tmp_path_factory.mktemp("whole")
            made.run(known[name])
        return known[name]

    return run


# Results


def test_a_result_is_complete(whole):
    result = read_result(whole(experiment(*"abc")))
    assert (result.finished, result.full, result.num_tasks) == (True, None, 3)
    assert [len(row) for row in result.scores] == [1, 2, 3]
    written = json.loads((whole(experiment(*"abc")) / "result.json").read_text())
    assert written["metrics"] == {
        "average": pytest.approx(sum(result.scores[-1]) / 3),
        "forgetting": 0.0,
        "backward_transfer": 0.0,
    }
    for number, record in enumerate(result.tasks):
        assert {row[number] for row in result.scores[number:]} == {record.test_score}
        assert record.unchanged is True
        assert record.score >= record.best_score - 3.0
        assert record.test_score > 50
        assert len(record.outputs) == 64
    assert set(result.certificates) == set("abc")
    sizes = result.capacity.sizes
    for group, size in sizes.items():
        new = [usage.new for usage in result.capacity.usages if usage.group == group]
        assert len(new) == 3
        assert sum(new) + result.capacity.free[group] == size
    assert result.forecast.bottleneck in sizes
    assert result.timings.seconds >= sum(result.timings.tasks) > 0


@pytest.mark.parametrize("method", NAMES)
def test_a_finished_run_has_validation_scores_from_after_the_last_task(tmp_path, method):
    made = experiment(*"abc", head="single")
    made = replace(made, baseline=baseline_of(Methods(), method))
    result = made.run(tmp_path / "run")
    assert len(result.validation) == 3
    assert all(score > 0 for score in result.validation)
    ended = [record.score for record in result.tasks]
    if method in ("clnp", "single", "packnet"):
        assert list(result.validation) == ended
    else:
        assert result.validation[2] == ended[2]
    if method == "finetune":
        assert result.validation[0] < ended[0]


def test_an_unfinished_run_has_no_validation_scores(tmp_path):
    made = replace(experiment(*"ab"), baseline=Finetune())

    def stop(event):
        if event.kind == "begin" and event.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(tmp_path / "run", on_event=stop)
    assert read_result(tmp_path / "run").validation == ()
    assert made.run(tmp_path / "run").validation == made.run(tmp_path / "whole").validation


def test_a_run_directory_has_config_environment_log_and_network(whole):
    made = experiment()
    path = whole(made)
    result, config = read_result(path), read_config(path)
    assert config == made.describe()
    assert [task.name for task in config.tasks] == ["a", "b"]
    assert config.learner["training"]["epochs"] == 6
    (environment,) = read_environments(path)
    assert environment.torch == torch.__version__
    kinds = [type(event) for event in read_events(path)]
    once = [TaskStarted, *[EpochEnded] * 6, CandidateTrained, CandidatePruned, CandidateChosen]
    once += [TaskEnded, Evaluated]
    assert kinds == [RunStarted, *once, *once, RunFinished]
    net = clnp.load(path / CHECKPOINT, made.model)
    assert net.tasks == ("a", "b")
    x, y = made.tasks[0].test
    score = 100 * (net(x, task="a").argmax(1) == y).double().mean().item()
    assert score == result.tasks[0].test_score


def test_equal_seeds_give_equal_results(tmp_path, whole):
    result, other = (read_result(whole(experiment(seed=seed))) for seed in (0, 1))
    assert untimed(experiment().run(tmp_path / "run")) == untimed(result)
    assert result.certificates != other.certificates


def test_records_of_tasks_agree_with_the_ledger(tmp_path):
    tuning = FineTuning(8, 0.01, rounds=3)
    result = experiment(margin=15.0, fine_tuning=tuning).run(tmp_path / "run")
    for record in result.tasks:
        for usage in result.capacity.usages:
            if usage.task == record.task:
                assert record.new[usage.group] == usage.new
                assert record.reused[usage.group] == usage.reused
    # The thresholds are those of the last pruning, the kept neurons those of the first.
    often = [record for record in result.tasks if record.num_rounds > 1]
    assert often
    plans = [e for e in read_events(tmp_path / "run") if isinstance(e, CandidatePruned)]
    for record in often:
        first = next(event.plan for event in plans if event.task == record.task)
        assert record.pruning.kept != record.new
        assert record.pruning.thresholds != first.thresholds


def test_tasks_without_test_data_have_no_test_scores(tmp_path):
    result = experiment(test=False).run(tmp_path / "run")
    assert result.scores == ((None,), (None, None))
    assert [record.unchanged for record in result.tasks] == [None, None]


class Noisy(torch.utils.data.Dataset):
    """Samples that are never the same twice."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + torch.randn(6), int(self.y[index])


def test_random_test_data_is_the_same_every_time(tmp_path):
    made = experiment(*"abc")
    tasks = [replace(task, test=Noisy(*task.test)) for task in made.tasks]
    result = replace(made, tasks=tasks).run(tmp_path / "run")
    for number, record in enumerate(result.tasks):
        assert record.unchanged is True
        assert {row[number] for row in result.scores[number:]} == {record.test_score}


def test_lists_of_samples_and_outputs_of_another_network_can_be_learned(tmp_path):
    """They give the same result as tensors, and the other network is not trained."""
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
            assert found.certificates == whole.certificates
    assert scale.grad is None


# Arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": task("a")}, "tasks is of type Task"),
        ({"tasks": [task("a"), "b"]}, "tasks .* of type str"),
        ({"tasks": []}, "at least one task"),
        ({"tasks": [task("a"), task("a")]}, "two tasks are called 'a'"),
        ({"config": Training()}, "config is of type Training. It must be a LearnerConfig"),
        ({"model": "mlp"}, "model is of type str. It must be an nn.Module"),
        ({"seed": "a"}, "seed is 'a'. It must be a whole number"),
        ({"config": LearnerConfig(tasks={"aa": TaskSettings(margin=1.0)})}, "Did you mean 'a'"),
    ],
)
def test_a_wrong_argument_of_an_experiment_is_named(change, message):
    made = experiment("a")
    with pytest.raises(ArgumentError, match=message) as caught:
        replace(made, **change)
    assert caught.value.argument in (None, *change)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"trackers": Notebook()}, "trackers is of type Notebook"),
        ({"trackers": "tensorboard"}, "trackers is of type str"),
        ({"trackers": [Notebook]}, "trackers .* of type type"),
        ({"checkpoint_seconds": "x"}, "checkpoint_seconds is 'x'. It must be a number of seconds"),
    ],
)
def test_a_wrong_argument_of_a_run_is_named_before_the_directory_is_created(
    tmp_path, option, message
):
    with pytest.raises(ArgumentError, match=message) as caught:
        experiment().run(tmp_path / "run", **option)
    assert [caught.value.argument] == list(option)
    assert not (tmp_path / "run").exists()


def test_tasks_may_come_from_a_generator():
    made = experiment()
    again = Experiment(made.model, made.example_input, (task for task in made.tasks), made.config)
    assert [task.name for task in again.tasks] == ["a", "b"]


def test_an_optimizer_is_tried_before_the_directory_is_created():
    with pytest.raises(ArgumentError, match="training: LBFGS cannot be used"):
        experiment(training=Training(optimizer="LBFGS"))
    made = experiment()
    with pytest.raises(ArgumentError, match="training: LBFGS cannot be used"):
        replace(made, baseline=Finetune(training=Training(optimizer="LBFGS")))
    with pytest.raises(
        ArgumentError, match=r"training is of type int. It must be a Training, or None"
    ):
        replace(made, baseline=Finetune(training=5))
    config = replace(made.config, training=Training(optimizer=torch.optim.SGD))
    replace(made, baseline=Finetune(training=Training()), config=config)


@pytest.mark.parametrize(
    "train", [None, (np.zeros((9, 6)), np.zeros(9)), "train.pt", (torch.zeros(9, 6),)]
)
def test_wrong_data_is_refused_before_the_directory_is_created(tmp_path, train):
    made = replace(experiment(), tasks=[Task("a", train)])
    with pytest.raises(ArgumentError, match=r"^task 'a'.* a pair of tensors"):
        made.run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_task_is_checked_before_the_first_is_learned(tmp_path):
    made = experiment()
    x, y = made.tasks[1].train
    with pytest.raises(ArgumentError, match="task 'b', training data: an input is NaN"):
        changed_task(made, 1, train=(x / 0, y)).run(tmp_path / "run")
    assert [type(event) for event in read_events(tmp_path / "run")] == [RunStarted, RunFailed]


# Resuming


@pytest.mark.parametrize("moment", [1, 2, 4, 12, 17, 22, 24, 26])
def test_a_run_resumes_from_any_event(tmp_path, whole, moment):
    made = experiment(**GROWN)
    break_off(made, tmp_path / "broken", Event, moment)
    result = made.run(tmp_path / "broken")
    assert untimed(result) == untimed(read_result(whole(made)))
    assert read_result(tmp_path / "broken") == result


@pytest.mark.parametrize("moment", [3, 6, 11, 16, 22, 38])
def test_candidates_that_are_trained_together_resume_from_any_event(tmp_path, whole, moment):
    """Every event is logged once, also if a candidate diverges or stops early."""
    options = {
        "alphas": (1e-3, 5e-3),
        "lrs": (0.02, 1e25),
        "candidates_at_once": 3,
        "training": Training(epochs=6, batch_size=32, patience=2),
    }
    made = experiment(**options)
    break_off(made, tmp_path / "broken", Event, moment)
    assert same_as_whole(made, tmp_path / "broken", whole)


def test_a_run_is_finished_once_everything_is_logged(tmp_path, whole):
    break_off(experiment(), tmp_path / "broken", RunFinished, checkpoint_seconds=60)
    assert read_result(tmp_path / "broken").finished is False
    assert same_as_whole(experiment(), tmp_path / "broken", whole)


def test_a_finished_run_is_not_changed(tmp_path):
    first = experiment().run(tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    assert experiment().run(tmp_path / "run") == first
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize("moment", [EpochEnded, TaskEnded])
def test_files_that_disappear_while_a_run_works_are_written_again(tmp_path, whole, moment):
    """All that a user removes with `rm RUN/*`, which leaves the lock."""

    def remove(event):
        if isinstance(event, moment) and event.task == "b":
            for file in tmp_path.iterdir():
                if file.name != LOCK:
                    file.unlink(missing_ok=True)

    (tmp_path / "recipe.toml").write_text("seed = 0")  # As a run of a recipe has it.
    with pytest.warns(RuntimeWarning, match=r"config\.json, .*events\.jsonl of .* disappeared"):
        result = experiment(**GROWN).run(tmp_path, checkpoint_seconds=0, on_event=remove)
    expected = whole(experiment(**GROWN))
    assert untimed(result) == untimed(read_result(expected))
    found = [event for event in log_of(tmp_path) if event["event"] != "warning"]
    assert found == log_of(expected)
    assert (tmp_path / "recipe.toml").read_text() == "seed = 0"
    assert len(read_environments(tmp_path)) == 1
    assert clnp.verify(experiment(**GROWN), tmp_path).verified


def test_a_checkpoint_that_disappears_after_the_last_task_is_written_again(tmp_path, monkeypatch):
    verify = NeuralPruning.verify

    def remove(method):
        verify(method)
        (tmp_path / CHECKPOINT).unlink()

    monkeypatch.setattr(NeuralPruning, "verify", remove)
    experiment("a").run(tmp_path)
    monkeypatch.undo()
    assert clnp.verify(experiment("a"), tmp_path).verified


@pytest.mark.parametrize("again", [True, False])
def test_a_directory_that_is_removed_while_a_run_works_ends_it(tmp_path, again):
    """Also if another run is in its place by then, which must not be overwritten."""
    path = tmp_path / "run"

    def remove(event):
        if isinstance(event, TaskEnded):
            shutil.rmtree(path)
            if again:
                Run.create(path, {CONFIG: "{}"}).close()

    with pytest.raises(RunError, match=r"run was removed or replaced while the run was working"):
        experiment("a").run(path, on_event=remove)
    assert path.exists() == again
    assert not (path / RESULT).exists()


def test_a_run_that_is_stopped_saves_and_resumes(tmp_path, whole):
    made = experiment()
    with Run.create(tmp_path / "run", {CONFIG: to_json(made.describe())}) as run:

        def stop(event):
            if isinstance(event, EpochEnded):
                loop.stop()

        loop = RunLoop(made, run, 1e9, stop)
        with pytest.raises(StoppedError, match=r"Stopped\. Resume with the Python program"):
            loop.run_all()
    assert [type(e) for e in read_events(tmp_path / "run")[-2:]] == [EpochEnded, RunStopped]
    assert same_as_whole(made, tmp_path / "run", whole)
    kinds = [type(event) for event in read_events(tmp_path / "run")]
    assert RunStopped not in kinds
    assert kinds[3] is TaskResumed


@pytest.mark.parametrize("round", [None, 1])
def test_a_run_stops_while_it_prunes_and_resumes(tmp_path, whole, round):
    """Not only at the end of a plan, which may take minutes."""
    made = experiment(margin=15.0, fine_tuning=FineTuning(8, 0.01, rounds=2))
    told = []
    with Run.create(tmp_path / "run", {CONFIG: to_json(made.describe())}) as run:

        def stop(event):
            told.append(event)
            if isinstance(event, SubsetScored) and event.round == round:
                loop.stop()

        loop = RunLoop(made, run, 1e9, stop)
        with pytest.raises(StoppedError, match=r"Stopped\. Resume with the Python program"):
            loop.run_all()
    assert [type(event) for event in told[-2:]] == [SubsetScored, RunStopped]
    assert told[-2].number == 1
    assert same_as_whole(made, tmp_path / "run", whole)


@pytest.mark.parametrize("kind", [RunStarted, TaskStarted])
def test_a_run_without_progress_starts_again(tmp_path, whole, kind):
    """The same or another experiment gives the same result as in an empty directory."""
    break_off(experiment(), tmp_path / "run", kind, checkpoint_seconds=60)
    assert (tmp_path / "run" / CONFIG).is_file()
    other = experiment(*"abc", margin=1.0, width=20)
    assert same_as_whole(other, tmp_path / "run", whole)
    assert log_of(tmp_path / "run") == log_of(whole(other))


def gone(outputs, targets):
    return F.cross_entropy(outputs, targets).detach()


def test_after_an_early_error_the_directory_can_be_used_again(tmp_path, whole):
    made = experiment()
    x, y = made.tasks[0].train
    path = tmp_path / "run"
    wrong = [
        changed_task(made, 0, train=(x / 0, y)),
        replace(made, example_input=torch.zeros(2, 7)),
        changed_task(made, 0, objective=Objective("x", gone, accuracy)),
    ]
    for each in wrong:
        with pytest.raises((ArgumentError, GraphError)):
            each.run(path, trackers=[Notebook()])
        assert not (path / CONFIG).exists()
    assert same_as_whole(made, path, whole)
    assert len(read_environments(path)) == 1


def test_an_error_after_an_epoch_leaves_the_run_as_it_is(tmp_path):
    def fail(event):
        if isinstance(event, EpochEnded):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        experiment().run(tmp_path / "run", on_event=fail)
    with pytest.raises(RunError, match=r"its learner\.margin is 3\.0, not 1\.0"):
        experiment(margin=1.0).run(tmp_path / "run")


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


def test_the_same_command_starts_again_when_the_data_is_corrected(tmp_path, monkeypatch, capsys):
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
    assert "failed before its first epoch" in capsys.readouterr().err
    write(0.0)
    for command in commands:
        assert app.main(command) == 0
    assert app.main(["verify", "r", "--data", "."]) == 0


# Another experiment


def objective(factor):
    return Objective("mine", lambda o, t: factor * F.cross_entropy(o, t), accuracy)


def test_a_run_of_another_experiment_is_refused(tmp_path):
    training = Training(epochs=2, alpha={"fc1": 1e-3, "fc2": 1e-3}, optimizer_options={"eps": 1e-7})
    options = {"training": training, "tasks": {"*": TaskSettings(margin=9.0)}}
    made = changed_task(experiment(**options), 0, prepare=lambda x: 2 * x)
    first = made.run(tmp_path / "run")
    x, y = made.tasks[1].train
    one_alpha = replace(training, alpha={"fc1": 1e-3})
    no_options = replace(training, optimizer_options={})
    mine = {"objective": objective(1.0), "num_outputs": 3}
    for other, message in (
        (replace(made, seed=1), "its seed is 0, not 1"),
        (changed_task(made, 1, name="c"), "its task 2 is 'b', not 'c'"),
        (replace(made, tasks=made.tasks[:1]), "'b'"),
        (changed_task(made, 1, train=(x + 1, y)), "its task 2, 'b', has train '140 samples, "),
        (changed_task(made, 0, prepare=lambda x: 3 * x), "its task 1, 'a', has prepare '.*<lambda"),
        (changed_task(made, 0, **mine), "its task 1, 'a', has "),
        (replace(made, config=replace(made.config, margin=1.0)), "margin is 3.0, not 1.0"),
        (replace(made, config=replace(made.config, tasks={})), "tasks.a is {'margin': 9.0"),
        (replace(made, config=replace(made.config, training=one_alpha)), "fc2 is .*, not None"),
        (replace(made, config=replace(made.config, training=no_options)), "eps is .*, not None"),
        (replace(made, model=another_width().model), "its model has fc2 Linear"),
        (replace(made, model=nn.Sequential()), "its model has MLP"),
    ):
        with pytest.raises(RunError, match=message):
            other.run(tmp_path / "run")
    torch.manual_seed(1)  # The weights of a model are a start, and not part of the experiment.
    again = replace(made, model=clnp.models.MLP(6, (30, 30), 3))
    assert again.run(tmp_path / "run") == first


@pytest.mark.parametrize("kind", [EpochEnded, TaskEnded])
def test_an_unfinished_run_of_another_experiment_is_refused(tmp_path, kind):
    break_off(experiment(), tmp_path / "run", kind, checkpoint_seconds=60)
    with pytest.raises(RunError, match=r"its learner\.margin is 3\.0, not 1\.0"):
        experiment(margin=1.0).run(tmp_path / "run")
    with pytest.raises(RunError, match=r"its model has fc2 Linear\(in_features=30, out_features"):
        another_width().run(tmp_path / "run")


def test_the_checkpoint_of_another_run_is_refused(tmp_path):
    for name, margin in (("one", 3.0), ("two", 9.0)):
        break_off(experiment(margin=margin), tmp_path / name, TaskStarted, number=2)
    (tmp_path / "two" / CHECKPOINT).replace(tmp_path / "one" / CHECKPOINT)
    with pytest.raises(RunError, match=r"another experiment: its learner\.margin is 9"):
        experiment(margin=3.0).run(tmp_path / "one")
    with pytest.raises(
        CheckpointError, match=r"two has lost its checkpoint\.safetensors\. Restore"
    ):
        experiment(margin=9.0).run(tmp_path / "two")


# Adding and exchanging tasks


def without_counts(path):
    """Return the log without its first event, and without the number of tasks to come."""
    unlike = ("num_tasks", "epochs_of_run")
    return [{k: v for k, v in event.items() if k not in unlike} for event in log_of(path)[1:]]


def same_as_whole(made, path, whole):
    """Whether the run at `path` ends like one that had the tasks from the start."""
    expected, found = whole(made), made.run(path)
    assert read_result(path) == found
    assert read_config(path) == read_config(expected)
    assert without_counts(path) == without_counts(expected)
    return untimed(found) == untimed(read_result(expected))


@pytest.mark.parametrize("head", ["multi", "single"])
def test_tasks_can_be_added_to_a_finished_run(tmp_path, whole, head):
    for names in ("ab", "abc"):
        result = experiment(*names, head=head, width=60, **GROWN).run(tmp_path / "run")
        assert (result.finished, result.num_tasks) == (True, len(names))
    made = experiment(*"abcd", head=head, width=60, **GROWN)
    assert same_as_whole(made, tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((TaskStarted, 1), (EpochEnded, 3)),
        ((TaskEnded, 1), (TaskStarted, 1)),
        ((EpochEnded, 17), (Evaluated, 1)),
        ((RunFinished, 1), (RoundEnded, 1)),
    ],
)
def test_tasks_can_be_added_to_an_unfinished_run(tmp_path, whole, first, then):
    break_off(experiment(*"ab", **GROWN), tmp_path / "run", *first)
    break_off(experiment(*"abc", **GROWN), tmp_path / "run", *then)
    assert same_as_whole(experiment(*"abc", **GROWN), tmp_path / "run", whole)


def test_an_added_task_may_have_its_own_settings(tmp_path, whole):
    own = {"c": TaskSettings(margin=9.0)}
    experiment(*"ab").run(tmp_path / "run")
    assert same_as_whole(experiment(*"abc", tasks=own), tmp_path / "run", whole)
    other = experiment(*"abcd", tasks={**own, "a": TaskSettings(margin=9.0)})
    with pytest.raises(RunError, match=r"its learner\.tasks\.a\.margin is None, not"):
        other.run(tmp_path / "run")


@pytest.mark.parametrize("settings", [each for each in BASELINES if each is not Joint])
def test_tasks_can_be_added_to_a_run_of_a_baseline(tmp_path, whole, settings):
    made = [replace(experiment(*names), baseline=settings()) for names in ("ab", "abc")]
    made[0].run(tmp_path / "run")
    assert same_as_whole(made[1], tmp_path / "run", whole)


def test_tasks_cannot_be_added_to_joint_training(tmp_path):
    made = [replace(experiment(*names), baseline=Joint()) for names in ("ab", "abc")]
    first = made[0].run(tmp_path / "run")
    with pytest.raises(RunError, match="run: joint learns all tasks at the same time"):
        made[1].run(tmp_path / "run")
    assert made[0].run(tmp_path / "run") == first


def test_an_impossible_task_is_not_added(tmp_path):
    first = experiment(*"ab").run(tmp_path / "run")
    made = experiment(*"abc")
    x, y = made.tasks[2].train
    with pytest.raises(ArgumentError, match="task 'c', training data: an input is NaN"):
        changed_task(made, 2, train=(x / 0, y)).run(tmp_path / "run")
    assert experiment(*"ab").run(tmp_path / "run") == first
    with pytest.raises(RunError, match=r"its learner\.margin is 3\.0, not 1\.0"):
        experiment(*"abc", margin=1.0).run(tmp_path / "run")
    assert experiment(*"ab").run(tmp_path / "run") == first


def test_tasks_are_not_added_to_a_run_of_another_network(tmp_path, whole):
    path = whole(experiment(*"ab"))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(RunError, match="another experiment: its model has fc1"):
        experiment(*"abc", width=20).run(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def with_task(*names, **others):
    """Return an experiment with these tasks; the last one has other settings."""
    own = {names[-1]: TaskSettings(**others)} if others else {}
    return experiment(*names, tasks=own, **GROWN)


@pytest.mark.parametrize(
    ("moment", "then"),
    [
        ((TaskStarted, 3), "name"),
        ((EpochEnded, 25), "fewer"),
        ((EpochEnded, 25), "settings"),
        ((RoundEnded, 3), "data"),
        ((RoundEnded, 3), "fewer"),
        ((CandidateTrained, 4), "settings"),
    ],
)
def test_a_task_that_has_not_ended_may_be_exchanged(tmp_path, whole, moment, then):
    """Its events disappear, and the result is that of a run without it."""
    break_off(with_task(*"abc", margin=1.0), tmp_path / "run", *moment)
    other = with_task(*{"fewer": "ab", "name": "abx"}.get(then, "abc"))
    if then == "data":
        x, y = other.tasks[-1].train
        other = changed_task(other, -1, train=(x, 2 - y))
    assert same_as_whole(other, tmp_path / "run", whole)
    assert clnp.verify(other, tmp_path / "run").verified is True


def test_a_task_that_diverges_can_be_changed_or_left_out(tmp_path, whole):
    first = experiment(*"ab").run(tmp_path / "run")
    diverging = experiment(*"abc", tasks={"c": TaskSettings(lrs=(1e30,))})
    for _ in range(2):
        with pytest.raises(DivergedError):
            diverging.run(tmp_path / "run")
        assert clnp.verify(experiment(*"ab"), tmp_path / "run").verified is True
        again = experiment(*"ab").run(tmp_path / "run")
        assert untimed(again) == untimed(first)
        assert again.finished is True
    with pytest.raises(DivergedError):
        diverging.run(tmp_path / "run")
    better = experiment(*"abc", tasks={"c": TaskSettings(lrs=(0.01,))})
    assert same_as_whole(better, tmp_path / "run", whole)


@pytest.mark.parametrize("moment", [(TaskStarted, 3), (RoundEnded, 3)])
def test_an_exchanged_task_can_be_added_again(tmp_path, whole, moment):
    """Left out and added, or exchanged for another that crashes before it is saved."""
    break_off(with_task(*"abc"), tmp_path / "left", *moment)
    with_task(*"ab").run(tmp_path / "left")
    break_off(with_task(*"abc"), tmp_path / "other", *moment)
    other = with_task(*"abc", epochs=3)
    break_off(other, tmp_path / "other", CandidatePruned, task="c", checkpoint_seconds=1e9)
    for name in ("left", "other"):
        assert same_as_whole(with_task(*"abc"), tmp_path / name, whole)


@pytest.mark.parametrize("moment", [(EpochEnded, 8), (RoundEnded, 2)])
def test_a_run_with_batchnorm_and_an_open_task_can_be_verified(tmp_path, moment):
    torch.manual_seed(0)
    layers = (nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
    made = replace(experiment(fine_tuning=FineTuning(1)), model=nn.Sequential(*layers))
    break_off(made, tmp_path / "run", *moment)
    assert clnp.verify(made, tmp_path / "run").verified is True
    fewer = replace(made, tasks=made.tasks[:1])
    assert fewer.run(tmp_path / "run").finished is True
    assert clnp.verify(fewer, tmp_path / "run").verified is True


def test_a_full_network_ends_a_run_and_its_last_task_may_be_left_out_or_exchanged(tmp_path):
    """The result of a run that was full does not depend on that task."""

    def made(*names):
        training = Training(epochs=30, alpha=0.0, lr=0.02, batch_size=32)
        return experiment(*names, head="single", width=10, margin=0.0, training=training)

    full = made(*"abcdefgh").run(tmp_path / "run")
    num = len(full.tasks)
    assert full.finished is True
    assert 1 <= num < 8
    assert "no neuron of fc2 is free" in full.full
    assert isinstance(read_events(tmp_path / "run")[-2], NetworkFull)
    assert made(*"abcdefgh").run(tmp_path / "run") == full
    whole = made(*"abcdefgh"[:num]).run(tmp_path / "whole")
    fewer = made(*"abcdefgh"[:num]).run(tmp_path / "run")
    assert fewer.full is None
    assert untimed(fewer) == untimed(whole)
    assert untimed(made(*"abcdefgh").run(tmp_path / "run")) == untimed(full)
    with pytest.raises(RunError, match=f"'{full.tasks[-1].task}'"):
        made(*"abcdefgh"[: num - 1]).run(tmp_path / "run")


@pytest.mark.parametrize("baseline", [None, Finetune()])
def test_tasks_may_be_others_before_the_first_checkpoint(tmp_path, whole, baseline):
    made = [replace(experiment(*names), baseline=baseline) for names in ("ab", "xb")]
    break_off(made[0], tmp_path / "run", EpochEnded, checkpoint_seconds=1e9)
    assert same_as_whole(made[1], tmp_path / "run", whole)


def test_a_run_with_an_exchanged_task_is_a_new_run_for_trackers(tmp_path):
    identifiers = tmp_path / "run" / "trackers.json"
    break_off(with_task(*"abc"), tmp_path / "run", EpochEnded, 25)
    identifiers.write_text('{"mlflow": {"run": "1"}}')
    break_off(with_task(*"abc"), tmp_path / "run", EpochEnded)
    assert identifiers.exists()
    with_task(*"abx").run(tmp_path / "run")
    assert not identifiers.exists()


def test_a_run_that_starts_again_with_other_tasks_is_a_new_run_for_trackers(tmp_path):
    identifiers = tmp_path / "run" / "trackers.json"
    for names, kept in (("ab", False), ("ab", True), ("ax", False)):
        break_off(experiment(*names), tmp_path / "run", EpochEnded, checkpoint_seconds=1e9)
        assert identifiers.exists() == kept
        identifiers.write_text('{"mlflow": {"run": "1"}}')


@pytest.mark.parametrize("baseline", [Finetune(), Joint()])
def test_a_task_that_a_baseline_has_started_cannot_be_exchanged(tmp_path, baseline):
    def made(**others):
        return replace(experiment(*"abc", tasks={"b": TaskSettings(**others)}), baseline=baseline)

    break_off(made(margin=1.0), tmp_path / "run", EpochEnded, 2 if baseline == Joint() else 8)
    with pytest.raises(RunError, match=r"its learner\.tasks\.b\.margin is 1\.0, not 2\.0"):
        made(margin=2.0).run(tmp_path / "run")


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("file", [RESULT, CONFIG])
def test_a_run_that_is_killed_while_tasks_are_added_resumes(
    tmp_path, whole, monkeypatch, names, file
):
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
    assert same_as_whole(experiment(*names), tmp_path / "run", whole)


# Another machine


@pytest.fixture
def elsewhere(monkeypatch):
    """Return a function that moves to another machine, with other rounding."""
    describe, digest_of = clnp.runs.experiment.describe, clnp.runs.outputs.digest_of

    def move(name):
        monkeypatch.setattr(
            "clnp.runs.experiment.describe", lambda device: replace(describe(device), cpu=name)
        )
        monkeypatch.setattr(
            "clnp.runs.outputs.digest_of", lambda tensor: f"{name} {digest_of(tensor)}"
        )

    move("here")
    return move


@pytest.mark.parametrize("moment", [(EpochEnded, 9), (TaskStarted, 3)])
def test_a_run_resumes_on_another_machine_and_back(tmp_path, elsewhere, moment):
    whole = experiment(*"abc").run(tmp_path / "whole")
    break_off(experiment(*"abc"), tmp_path / "run", *moment)
    elsewhere("there")
    break_off(experiment(*"abc"), tmp_path / "run", TaskEnded)
    elsewhere("here")
    result = experiment(*"abc").run(tmp_path / "run")
    assert result.certificates == whole.certificates
    assert result.scores == whole.scores
    assert [record.unchanged for record in result.tasks] == [True] * 3
    assert result.tasks[0].outputs == whole.tasks[0].outputs
    assert "cpu here" in result.tasks[0].arithmetic


def test_a_change_on_another_machine_is_found(tmp_path, elsewhere):
    break_off(experiment(*"abc"), tmp_path / "run", TaskStarted, 2)
    elsewhere("there")

    def damage(event):
        if isinstance(event, TaskEnded) and event.task == "b":
            loop.method.net.model.fc1.weight_frozen[0, 0] += 1

    with Run.open(tmp_path / "run") as run:
        loop = RunLoop(experiment(*"abc"), run, on_event=damage)
        with pytest.raises(ForgettingError, match=r"task 'a' has changed: fc1\.weight"):
            loop.run_all()
    first = loop.state.done[0]
    assert first.unchanged is False
    assert [*first.elsewhere] == [loop._arithmetic]


@pytest.mark.parametrize(
    ("baseline", "moment"),
    [
        (Single(), (EpochEnded, 9)),
        (PackNet(), (EpochEnded, 9)),
        (PackNet(), (TaskStarted, 3)),
        (Finetune(), (TaskStarted, 2)),
    ],
)
def test_a_baseline_resumes_on_another_machine(tmp_path, elsewhere, baseline, moment):
    made = replace(experiment(*"abc"), baseline=baseline)
    whole = made.run(tmp_path / "whole")
    break_off(made, tmp_path / "run", *moment)
    elsewhere("there")
    result = made.run(tmp_path / "run")
    assert result.scores == whole.scores
    assert [r.unchanged for r in result.tasks] == [r.unchanged for r in whole.tasks]


# Failures


class Fragile(torch.utils.data.Dataset):
    """Samples of a task; while `broken` is an error, it is raised instead of the last one."""

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
    """Return an experiment whose second task has such training or test data, and the data."""
    made = experiment()
    data = Fragile(*getattr(made.tasks[1], part))
    # Samples are read again in every epoch only if they are not resident.
    made = replace(made, config=replace(made.config, resident=False))
    return changed_task(made, 1, **{part: data}), data


def test_a_task_that_diverges_is_logged(tmp_path):
    training = Training(epochs=2, optimizer="SGD", lr=1e30)
    with pytest.raises(DivergedError, match="every candidate of task 'a' diverged"):
        experiment(training=training).run(tmp_path / "run")
    assert not (tmp_path / "run" / RESULT).exists()
    last = read_events(tmp_path / "run")[-1]
    assert isinstance(last, RunFailed)
    assert last.task == "a"
    assert last.reason.startswith("every candidate of task 'a' diverged")


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_error_in_the_users_data_is_logged_and_the_run_resumes(tmp_path, part):
    made, data = fragile(part)
    whole = made.run(tmp_path / "whole")
    events = []

    def tear(event):
        events.append(event)
        if isinstance(event, TaskStarted) and event.number == 2:
            data.broken = ZeroDivisionError("a file of mine\nis torn")

    with pytest.raises(ZeroDivisionError, match="a file of mine"):
        made.run(tmp_path / "run", on_event=tear)
    last = read_events(tmp_path / "run")[-1]
    reason = "ZeroDivisionError: a file of mine"
    assert last == RunFailed(task="b", reason=reason, mendable=True, at=last.at)
    assert events[-1] == last
    data.broken = None
    assert untimed(made.run(tmp_path / "run")) == untimed(whole)
    assert not any(isinstance(e, RunFailed) for e in read_events(tmp_path / "run"))


def test_an_error_that_cannot_be_logged_is_raised(tmp_path, monkeypatch):
    made, data = fragile("test")
    data.broken = ZeroDivisionError("torn")
    log = Run.log

    def full(run, event):
        if isinstance(event, RunFailed):
            raise RunError("no space left")
        return log(run, event)

    monkeypatch.setattr(Run, "log", full)
    with pytest.raises(ZeroDivisionError, match="torn"):
        made.run(tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "logged"),
    [(ZeroDivisionError("torn"), RunFailed), (KeyboardInterrupt(), RunStopped)],
)
def test_an_error_of_on_event_does_not_hide_the_first_one(tmp_path, error, logged):
    made, data = fragile("test")
    data.broken = error

    def fail(event):
        if isinstance(event, RunFailed | RunStopped):
            raise KeyError("epoch")

    with pytest.raises(type(error)):
        made.run(tmp_path / "run", on_event=fail)
    assert isinstance(read_events(tmp_path / "run")[-1], logged)


def test_a_full_disk_does_not_withdraw_a_run(tmp_path):
    def fail(event):
        raise RunError("cannot write")

    with pytest.raises(RunError, match="cannot write"):
        experiment().run(tmp_path / "run", on_event=fail)
    assert (tmp_path / "run" / CONFIG).is_file()


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of files")
def test_a_full_disk_loses_nothing(tmp_path, whole):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(event):
        if isinstance(event, TaskStarted) and event.number == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))

    message = "^cannot write to .*run: File too large. Free some disk space, and resume with the P"
    try:
        with pytest.raises(RunError, match=message):
            experiment().run(tmp_path / "run", checkpoint_seconds=0, on_event=limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "run").glob(".clnp-*"))
    assert len(read_result(tmp_path / "run").tasks) == 1
    assert same_as_whole(experiment(), tmp_path / "run", whole)


def test_warnings_are_logged_and_shown(tmp_path):
    made = experiment("a")
    (given,) = made.tasks
    nothing = replace(given, train=(torch.zeros_like(given.train[0]), given.train[1]))
    with pytest.warns(UserWarning, match="no better than always naming the same class") as caught:
        replace(made, tasks=[nothing]).run(tmp_path / "run")
    (event,) = [each for each in read_events(tmp_path / "run") if isinstance(each, Warned)]
    assert (event.task, event.text) == ("a", str(caught[0].message))


def test_a_run_can_be_stopped_while_its_tasks_are_checked(tmp_path, monkeypatch):
    made, loops, events = experiment("a", "b", "c"), [], []
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
    check = NeuralPruning.check

    def checked(method, given):
        check(method, given)
        if given.name == "b":
            loops[0].stop()

    monkeypatch.setattr(NeuralPruning, "check", checked)
    with Run.create(tmp_path / "run", {"config.json": to_json(made.describe())}) as run:
        loops.append(RunLoop(made, run, on_event=events.append))
        with pytest.raises(StoppedError, match=r"^Stopped before the first task"):
            loops[0].run_all()
    told = [each.number for each in events if isinstance(each, TasksChecked)]
    assert told == [0, 1]
    assert not (tmp_path / "run" / CONFIG).exists()
