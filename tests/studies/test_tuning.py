import json
import tomllib
from dataclasses import replace

import pytest

from clnp.recipes.recipe import load
from clnp.records import SeriesConfig, SettingsSource, TuningRecord
from clnp.runs.directory import read_config, read_result
from clnp.runs.experiment import RunLoop
from clnp.studies.launch import RunOptions
from clnp.studies.study import finished_results, read_comparison, read_series, read_tuning
from clnp.studies.tuning import SEEDS, TUNABLE, tune
from support.terminal import recipe, stopping_in_task

pytestmark = pytest.mark.usefixtures("jobs_here")
TUNE = "compare small.toml --quiet --out c --methods finetune --tune"


@pytest.fixture
def folder(folder):
    (folder / "small.toml").write_text(recipe(epochs=2))
    return folder


def trials_of(path, method):
    return read_tuning(path, method).trials


def settings_of(path, method):
    """The settings that the reported run of a method has."""
    return read_config(path / method / "seed0").baseline


def test_settings_are_chosen_on_validation_data_of_other_seeds(folder, clnp):
    out = clnp(f"{TUNE} ewc --budget 3")
    record = read_tuning(folder / "c", "ewc")
    assert (record.method, record.budget, record.seeds) == ("ewc", 3, SEEDS)
    # The first trial has the settings of the recipe.
    assert record.trials[0].settings == {"strength": 100.0, "training.lr": 0.01}
    scores = []
    for number, trial in enumerate(record.trials):
        runs = finished_results(folder / "c" / "tuning" / "ewc" / f"trial-{number:03}")
        assert tuple(run.seed for run in runs) == SEEDS
        means = [sum(run.validation) / len(run.validation) for run in runs]
        scores.append(sum(means) / len(means))
        assert trial.score == pytest.approx(scores[-1])
        assert trial.status == "finished"
        assert trial.seconds > 0
    assert record.best == scores.index(max(scores))
    assert not {*SEEDS} & {*read_comparison(folder / "c").seeds}
    # The reported run has the chosen settings, and the table says so.
    chosen = record.trials[record.best].settings
    assert settings_of(folder / "c", "ewc")["strength"] == chosen["strength"]
    assert settings_of(folder / "c", "ewc")["training"]["lr"] == chosen["training.lr"]
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["finetune", "[1]"], ["ewc", "[2]"]]
    first = lines.index("[1] default settings, not tuned.")
    note = "[2] settings chosen on validation data, 3 trials, seeds 1000 1001."
    assert lines[first + 1] == note
    [finetune, ewc] = json.loads((folder / "c" / "comparison.json").read_text())
    assert finetune["settings"]["chosen_on"] == "defaults"
    assert (ewc["settings"]["chosen_on"], ewc["settings"]["num_trials"]) == ("validation", 3)
    # Tables for a recipe are printed and written.
    text = (folder / "c" / "tuned.toml").read_text()
    assert text.strip() in out
    (folder / "pasted.toml").write_text(f"{recipe(epochs=2)}\n{text}")
    pasted = load(str(folder / "pasted.toml"), ['method="ewc"']).recipe
    training = pasted.methods.ewc.training or pasted.learner.training
    assert pasted.methods.ewc.strength == chosen["strength"]
    assert training == replace(pasted.learner.training, lr=chosen["training.lr"])
    assert pasted.settings_source == SettingsSource("validation", 3, SEEDS)


def test_every_method_but_clnp_can_be_tuned(folder, clnp):
    clnp(f"{TUNE} {','.join(TUNABLE)} --budget 2 --jobs 2")
    chosen = tomllib.loads((folder / "c" / "tuned.toml").read_text())["chosen"]
    assert chosen.keys() == {*TUNABLE}
    assert all(read_tuning(folder / "c", name).finished for name in TUNABLE)
    message = "clnp cannot be tuned: what a task gives up for free neurons is your choice. Tune .*"
    clnp("compare small.toml --out d --tune clnp", code=2, error=message)
    assert not (folder / "d").exists()


def test_the_search_can_be_exchanged_and_goes_on_when_trials_fail(folder, clnp):
    """A trial fails if its training diverges; so many failures are no error."""
    asked = []

    def search(space, seed):
        def ask(history, count):
            asked.append([trial.score for trial in history])
            return [{"strength": 1.0, "training.lr": 1e30 if n else 0.02} for n in range(count)]

        return ask

    path = folder / "c"
    path.mkdir()
    (path / "recipe.toml").write_text(recipe(epochs=2))
    config = SeriesConfig(seeds=(0,), tuned=("ewc",), budget=10)
    tune(path, config, RunOptions(quiet=True), search)
    record = read_tuning(path, "ewc")
    assert [trial.status for trial in record.trials] == [
        *["finished"] * 2,
        *["failed"] * 6,
        *["finished", "failed"],
    ]
    assert record.best in (0, 1, 8)
    assert all(trial.reason for trial in record.trials if trial.status == "failed")
    first, second = asked  # Eight at a time, with the scores of those before.
    assert first == [None]
    assert second == [trial.score for trial in record.trials[:8]]
    assert "tuning ewc: 10 of 10 trials, 7 failed, best validation score" in record.described


def test_a_network_that_is_full_early_has_no_score_for_the_other_tasks(folder, clnp, monkeypatch):
    clnp(f"{TUNE} finetune --budget 1")
    run = folder / "c" / "tuning" / "finetune" / "trial-000" / "seed1000"
    whole = read_result(run)
    data = json.loads((run / "result.json").read_text())
    data["validation"] = data["validation"][:1]
    (run / "result.json").write_text(json.dumps(data))
    record = (folder / "c" / "tuning" / "finetune" / "tuning.json").read_text()
    reopened = record.replace('"finished"', '"open"')
    (folder / "c" / "tuning" / "finetune" / "tuning.json").write_text(reopened)
    clnp("resume c --quiet")
    lost = whole.validation[1] / 2 / len(SEEDS)
    before = json.loads(record)["trials"][0]["score"]
    assert trials_of(folder / "c", "finetune")[0].score == pytest.approx(before - lost)


def test_a_search_that_is_stopped_resumes_with_the_same_trials(folder, clnp, monkeypatch):
    whole = TUNE.replace("--out c", "--out whole")
    clnp(f"{whole} ewc --budget 3")
    with monkeypatch.context() as context:
        context.setattr(RunLoop, "_log", stopping_in_task(2))
        clnp(f"{TUNE} ewc --budget 3", code=130, error="Stopped. Resume with `clnp resume c`.")
    assert {trial.status for trial in trials_of(folder / "c", "ewc")} == {"open"}
    assert "tuning ewc: 0 of 3 trials" in clnp("inspect c")
    labels = [run["label"] for run in json.loads(clnp("watch c --once --json", code=130))["runs"]]
    assert labels[:2] == ["ewc, trial 0, seed 1000", "ewc, trial 0, seed 1001"]
    clnp("resume c --quiet")
    found, expected = (
        [(trial.settings, trial.score) for trial in trials_of(folder / name, "ewc")]
        for name in ("c", "whole")
    )
    assert found == expected
    assert "tuning ewc: 3 of 3 trials, best validation score" in clnp("inspect c")
    assert json.loads(clnp("inspect c --json"))["tuning"][0]["method"] == "ewc"
    labels = [run["label"] for run in json.loads(clnp("watch c --once --json"))["runs"]]
    assert labels == ["finetune, seed 0", "ewc, seed 0"]


def test_a_larger_budget_keeps_the_trials(folder, clnp):
    with pytest.MonkeyPatch.context() as context:
        # The reported runs must not have started.
        context.setattr("clnp.studies.comparison.begin_series", lambda *_: pytest.skip())
        with pytest.raises(pytest.skip.Exception):
            clnp(f"{TUNE} ewc --budget 1")
    before = trials_of(folder / "c", "ewc")
    clnp(f"{TUNE} ewc --budget 2")
    after = trials_of(folder / "c", "ewc")
    assert (after[:1], len(after)) == (before, 2)
    message = "c contains runs of ewc with settings from 2 trials. Choose another directory .*"
    clnp(f"{TUNE} ewc --budget 3", code=2, error=message)
    message = "c contains runs of finetune with settings from 0 trials. .*"
    clnp(f"{TUNE} finetune", code=2, error=message)
    # More seeds and methods can be added, with what was chosen.
    clnp(f"{TUNE.removesuffix(' --tune')} --seeds 2")
    assert read_series(folder / "c" / "ewc").seeds == (0,)
    clnp("resume c --quiet")


def test_seeds_of_the_search_are_not_reported(folder, clnp):
    message = "seed 1001 is one of those for tuning, 1000 1001. Report other seeds."
    clnp(f"{TUNE} ewc --seed 1001", code=2, error=message)
    message = "--budget is for methods to tune. Name them with --tune, or leave it out."
    clnp("compare small.toml --budget 3", code=2, error=message)


def test_a_usage_error_ends_the_search(folder, clnp):
    clnp(f"{TUNE} ewc --budget 1")
    record = folder / "c" / "tuning" / "ewc" / "tuning.json"
    record.write_text(record.read_text().replace('"finished"', '"open"'))
    trial = folder / "c" / "tuning" / "ewc" / "trial-000" / "seed1000"
    (trial / "result.json").unlink()
    (trial / "checkpoint.safetensors").unlink()
    (trial / "config.json").unlink()
    clnp("resume c --quiet", code=2, error=".*ewc, trial 0, seed 1000 failed, see above. .*")


def test_a_method_without_trials_is_described():
    assert TuningRecord(method="si", budget=20).described == "tuning si: 0 of 20 trials"
