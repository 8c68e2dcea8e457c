"""`clnp.verify` of an experiment; `tests/cli` and `test_comparison.py` have the command."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import clnp
from clnp.errors import CheckpointError, ForgettingError, RunError
from clnp.methods.single import Finetune
from clnp.plain import to_json
from clnp.runs.directory import read_result
from clnp.training.objective import accuracy


def task(name, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 6, generator=draw)
    y = (x @ torch.randn(6, 3, generator=draw)).argmax(1)
    return clnp.Task(name, (x[:150], y[:150]), test=(x[150:], y[150:]))


def experiment(names="ab", **options):
    torch.manual_seed(0)
    config = clnp.LearnerConfig(margin=5.0, training=clnp.Training(epochs=2, lr=0.01))
    tasks = [task(name, seed) for seed, name in enumerate(names)]
    model = clnp.models.MLP(6, (16, 16), 3)
    return clnp.Experiment(model, torch.zeros(2, 6), tasks, config, **options)


def changed(run, change):
    """Change the result of a run."""
    result = json.loads((run / "result.json").read_text())
    change(result)
    (run / "result.json").write_text(to_json(result))


def moved(run, by=0.0, *, to=None):
    """Make the run of one task one of another machine, with another score."""

    def change(result):
        record = result["tasks"][0]
        score = record["test_score"] + by if to is None else to
        record |= {"arithmetic": "elsewhere", "outputs": "x", "test_score": score}
        result["scores"][0][0] = score

    changed(run, change)


def of_one_task(**changes):
    made = experiment("a")
    return replace(made, tasks=[replace(made.tasks[0], **changes)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished run."""
    path = tmp_path_factory.mktemp("finished") / "run"
    experiment().run(path)
    return path


def test_a_run_from_python_is_verified(finished):
    result = read_result(finished)
    before = torch.get_rng_state()
    found = clnp.verify(experiment(), finished)
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.verified, found.tasks, found.exact) == (True, ("a", "b"), True)
    assert tuple(found.scores.values()) == result.scores[-1]
    assert json.loads(to_json(found)) == {
        "verified": True,
        "tasks": ["a", "b"],
        "exact": True,
        "scores": dict(found.scores),
    }


def set_score(result):
    record = result["tasks"][0]
    record["test_score"] = result["scores"][0][0] = result["scores"][1][0] = 12.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_score, r"Task 'a' has changed: its test score is .*, and was 12\.5 when it ended\. R"),
        (
            lambda result: result["scores"][1].__setitem__(0, 1.0),
            "Task 'a' has changed: by result.json, its score was .* and 1.0 after 'b'. Restore",
        ),
        (
            lambda result: result["tasks"][0].update(unchanged=False),
            "Task 'a' has changed: by result.json, its outputs after a later task differed.",
        ),
        (lambda result: result["tasks"][1].update(outputs="x"), "Task 'b' .* some bits of its"),
        (lambda result: result["tasks"][1].update(outputs={}), "Task 'b' .* some bits of its"),
        (lambda result: result["certificates"].update(a="x"), "Task 'a' has changed: its cert"),
        (lambda result: result["tasks"][0]["new"].update(fc1=99), "the new neurons of task 'a'"),
        (lambda result: result["tasks"][0].update(reused=[]), "the reused neurons of task 'a'"),
        (lambda result: result["capacity"]["free"].update(fc1=9), "its capacity differs"),
        (lambda result: result["forecast"].update(num_tasks=-1), "its forecast differs"),
        (lambda result: result["stored_bytes"].update(heads=1), "its stored_bytes differs"),
        (lambda result: result.update(seed=7), "its seed differs"),
        (lambda result: result["tasks"].reverse(), r"it has tasks \['b', 'a'\] instead of"),
    ],
)
def test_a_result_that_contradicts_the_network_is_found(finished, tmp_path, change, message):
    run = shutil.copytree(finished, tmp_path / "run")
    changed(run, change)
    with pytest.raises(ForgettingError, match=message):
        clnp.verify(experiment(), run)


def test_single_samples_are_verified_like_tensors(tmp_path):
    x, y = task("a", 0).test
    made = of_one_task(test=[(x[index], int(y[index])) for index in range(len(x))])
    made.run(tmp_path)
    moved(tmp_path, -4.0)
    assert clnp.verify(made, tmp_path).exact is False
    moved(tmp_path, -2.0)
    with pytest.raises(ForgettingError, match="rounding on another machine does not explain"):
        clnp.verify(made, tmp_path)


def test_a_score_from_0_to_1_is_verified(tmp_path):
    share = clnp.Objective("share", F.cross_entropy, lambda o, t: accuracy(o, t) / 100)
    made = of_one_task(objective=share, num_outputs=3)
    training = replace(made.config.training, epochs=20)
    made = replace(made, config=replace(made.config, margin=0.1, training=training))
    made.run(tmp_path)
    moved(tmp_path, -0.03)
    assert clnp.verify(made, tmp_path).exact is False
    moved(tmp_path, -0.3)
    with pytest.raises(ForgettingError, match="Task 'a' has changed: its test score is 0"):
        clnp.verify(made, tmp_path)


def correlation(outputs, targets):
    return float(torch.corrcoef(torch.stack([outputs[:, 0], targets[:, 0]]))[0, 1])


def undefined():
    """Return an experiment whose test data does not vary, so that nothing correlates with it."""
    x = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
    made = of_one_task(
        train=(x, x[:, :1]),
        test=(x[:50], torch.ones(50, 1)),
        objective=clnp.Objective("correlation", F.mse_loss, correlation),
        num_outputs=1,
    )
    return replace(made, config=replace(made.config, margin=0.3))


def test_a_score_that_is_nan_is_unchanged(tmp_path):
    first, again = undefined().run(tmp_path), undefined().run(tmp_path)
    assert math.isnan(first.tasks[0].test_score)
    assert repr(again.scores) == repr(first.scores) == "((nan,),)"
    found = clnp.verify(undefined(), tmp_path)
    assert (found.exact, repr(found.scores)) == (True, "{'a': nan}")
    moved(tmp_path, to=math.nan)
    assert clnp.verify(undefined(), tmp_path).exact is False
    moved(tmp_path, to=0.5)
    with pytest.raises(ForgettingError, match=r"its test score is nan, and was 0\.5 when"):
        clnp.verify(undefined(), tmp_path)


def test_a_run_that_cannot_be_verified_is_refused(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    with pytest.raises(RunError, match=r"run does not exist\."):
        clnp.verify(experiment(), run)
    experiment().run(run)
    with pytest.raises(RunError, match="another experiment"):
        clnp.verify(experiment(seed=1), run)
    with pytest.raises(RunError, match="'b'"):
        clnp.verify(experiment("a"), run)
    experiment(baseline=Finetune()).run(other)
    message = "Nothing to verify in .*other: only clnp guarantees unchanged outputs, and its method"
    with pytest.raises(RunError, match=message):
        clnp.verify(experiment(baseline=Finetune()), other)
    (run / "checkpoint.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has lost its checkpoint"):
        clnp.verify(experiment(), run)
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="has nothing to verify: no task has ended yet"):
        clnp.verify(experiment(), run)


def test_the_tolerance_on_another_machine_is_named(folder, clnp):
    clnp("run small.toml --quiet --set stream.num_tasks=1 --out run")
    moved(folder / "run", -1.0)
    # Two of 48 samples.
    assert "as recorded, to 4.17 points (another machine or device)." in clnp("verify run")
