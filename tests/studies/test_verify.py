"""The run of an experiment, checked from Python; `tests/test_cli.py` has the command."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import clnp
from clnp.cli import app
from clnp.errors import ForgettingError, RunError
from clnp.methods.single import Finetune
from clnp.runs.directory import to_json
from clnp.training.objective import accuracy
from support.terminal import recipe


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


def test_a_run_from_python_is_verified(tmp_path):
    result = experiment().run(tmp_path / "run")
    before = torch.get_rng_state()
    found = clnp.verify(experiment(), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
    assert (found["tasks"], found["exact"]) == (["a", "b"], True)
    assert list(found["scores"].values()) == result["scores"][-1]


def test_what_has_changed_is_named(tmp_path):
    experiment().run(tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    result = json.loads(path.read_text())
    result["tasks"][0]["outputs"] = {}
    result["tasks"][0]["test_score"] = result["scores"][0][0] = result["scores"][1][0] = 12.5
    path.write_text(json.dumps(result))
    with pytest.raises(ForgettingError, match="task 'a'"):
        clnp.verify(experiment(), tmp_path / "run")


def moved(run, by=0.0, *, to=None):
    """Let the run of one task be one of another machine, with a score that was moved."""
    result = json.loads((run / "result.json").read_text())
    record = result["tasks"][0]
    score = record["test_score"] + by if to is None else to
    result["tasks"][0] = {**record, "arithmetic": "elsewhere", "outputs": "x", "test_score": score}
    result["scores"][0][0] = score
    (run / "result.json").write_text(to_json(result))


def of_one_task(**changes):
    made = experiment("a")
    return replace(made, tasks=[replace(made.tasks[0], **changes)])


def test_samples_one_by_one_are_verified_as_tensors_are(tmp_path):
    x, y = task("a", 0).test
    made = of_one_task(test=[(x[place], int(y[place])) for place in range(len(x))])
    made.run(tmp_path)
    moved(tmp_path, -4.0)
    assert clnp.verify(made, tmp_path)["exact"] is False
    moved(tmp_path, -2.0)
    with pytest.raises(ForgettingError, match="which rounding on another machine does not explain"):
        clnp.verify(made, tmp_path)


def test_what_rounding_may_have_moved_is_told_as_it_is(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(recipe(num_tasks=1, epochs=1))
    run = tmp_path / "run"
    assert app.main(["run", str(tmp_path / "small.toml"), "--quiet", "--out", str(run)]) == 0
    moved(run, -1.0)
    capsys.readouterr()
    assert app.main(["verify", str(run)]) == 0
    # Two of 48 samples.
    assert "as recorded, to 4.17 points (another machine or device)." in capsys.readouterr().out


def test_a_score_from_0_to_1_is_verified(tmp_path):
    share = clnp.Objective("share", F.cross_entropy, lambda o, t: accuracy(o, t) / 100)
    made = of_one_task(objective=share, num_outputs=3)
    made = replace(made, config=replace(made.config, margin=0.1))
    made.run(tmp_path)
    moved(tmp_path, -0.03)
    assert clnp.verify(made, tmp_path)["exact"] is False
    moved(tmp_path, -0.3)
    with pytest.raises(ForgettingError, match="task 'a': its test accuracy is 0"):
        clnp.verify(made, tmp_path)


def correlation(outputs, targets):
    return float(torch.corrcoef(torch.stack([outputs[:, 0], targets[:, 0]]))[0, 1])


def undefined():
    """An experiment whose test data do not vary, so that nothing correlates with them."""
    x = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
    made = of_one_task(
        train=(x, x[:, :1]),
        test=(x[:50], torch.ones(50, 1)),
        objective=clnp.Objective("correlation", F.mse_loss, correlation),
        num_outputs=1,
    )
    return replace(made, config=replace(made.config, margin=0.5))


def test_a_score_that_is_not_defined_is_the_same_again(tmp_path):
    run = tmp_path / "run"
    first, again = undefined().run(run), undefined().run(run)
    for result in (first, again):
        score = result["tasks"][0]["test_score"]
        assert isinstance(score, float)
        assert math.isnan(score)
    assert repr(again["scores"]) == repr(first["scores"]) == "[[nan]]"
    found = clnp.verify(undefined(), run)
    assert (found["exact"], repr(found["scores"])) == (True, "{'a': nan}")
    moved(run, to=math.nan)
    assert clnp.verify(undefined(), run)["exact"] is False
    moved(run, to=0.5)
    with pytest.raises(ForgettingError, match=r"its test accuracy is nan, and was 0\.5 when"):
        clnp.verify(undefined(), run)


def test_a_score_that_is_not_defined_is_shown(tmp_path, capsys):
    run = str(tmp_path / "run")
    undefined().run(run)
    assert app.main(["inspect", run]) == 0
    assert "Average test score nan" in capsys.readouterr().out
    assert app.main(["watch", run, "--once"]) == 0
    assert "learnt: a nan" in capsys.readouterr().out
    assert app.main(["inspect", run, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["result"]["scores"] == [["nan"]]
    pytest.importorskip("matplotlib")
    assert app.main(["report", run]) == 0


def test_what_cannot_be_verified_is_told(tmp_path):
    with pytest.raises(RunError, match="there is no run at"):
        clnp.verify(experiment(), tmp_path / "run")
    experiment().run(tmp_path / "run")
    with pytest.raises(RunError, match="holds another experiment"):
        clnp.verify(experiment(seed=1), tmp_path / "run")
    with pytest.raises(RunError, match="has a task that is not given: 'b'"):
        clnp.verify(experiment("a"), tmp_path / "run")
    experiment(baseline=Finetune()).run(tmp_path / "other")
    with pytest.raises(RunError, match="finetune, which promises nothing that could be verified"):
        clnp.verify(experiment(baseline=Finetune()), tmp_path / "other")


def test_lines_tell_of_an_experiment_and_of_a_learner(tmp_path, capsys):
    experiment().run(tmp_path / "run", on_event=clnp.terminal.Lines().show)
    told = capsys.readouterr().err
    assert "task 1 of 2: a\n" in told
    assert "  candidate 1 of 1, alpha 1e-05, lr 0.01: validation " in told
    made = experiment()
    net = clnp.ContinualNet(made.model, made.example_input)
    clnp.Learner(net, made.config, on_event=clnp.terminal.Lines().show).learn(made.tasks[0])
    assert "  candidate 1, alpha 1e-05, lr 0.01: validation " in capsys.readouterr().err
