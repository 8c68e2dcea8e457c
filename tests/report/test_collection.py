import shutil

import pytest

from clnp.errors import RunError
from clnp.plain import to_plain
from clnp.records import RunFailed, SettingsSource
from clnp.report.collection import read_collection
from clnp.report.measures import members_table
from support.written_runs import (
    change,
    change_tasks,
    write,
    write_comparison,
    write_events,
    write_run,
    write_series,
)


def labels(*paths):
    return [member.label for member in read_collection(paths).members]


def test_one_run(tmp_path):
    found = read_collection([write_run(tmp_path / "run")])
    assert found.title == "by-hand, seed 0"
    assert found.single is not None
    assert found.notes == ()
    assert found.score_name == "accuracy, %"


def test_a_series_is_one_member_with_several_runs(tmp_path):
    found = read_collection([write_series(tmp_path / "series", seeds=(3, 4, 5))])
    assert found.title == "by-hand, 3 seeds"
    assert [run.seed for run in found.members[0].runs] == [3, 4, 5]
    assert found.single is None


def test_a_comparison_has_a_member_for_each_method(tmp_path):
    found = read_collection([write_comparison(tmp_path / "compared")])
    assert found.title == "by-hand: 3 methods compared"
    assert [member.label for member in found.members] == ["clnp", "single", "ewc"]
    assert [member.label for member in found.with_neurons] == ["clnp"]


def test_a_comparison_says_where_settings_come_from(tmp_path):
    path = write_comparison(tmp_path / "compared")
    sources = {"single": SettingsSource("defaults"), "ewc": SettingsSource("validation", 20, (7,))}
    for name, source in sources.items():
        change(path / name, "series.json", settings=to_plain(source))
    table = members_table(read_collection([path]))
    assert table.names == ["clnp", "single [1]", "ewc [2]"]
    assert table.footnotes == [
        "[1] default settings, not tuned.",
        "[2] settings chosen on validation data, 20 trials, seed 7.",
    ]


def test_members_are_told_apart_by_as_little_as_needed(tmp_path):
    one = write_run(tmp_path / "one")
    assert labels(one, write_run(tmp_path / "base", method="ewc")) == ["clnp", "ewc"]
    assert labels(one, write_run(tmp_path / "again")) == ["one", "again"]
    assert labels(one, write_run(tmp_path / "wide", margin=4.0, seed=1)) == ["one", "wide"]
    assert labels(one, write_run(tmp_path / "deep/one", margin=3.0)) == [
        f"{tmp_path.name}/one",
        "deep/one",
    ]


def test_runs_of_recipes_and_of_python_programs_are_called_what_they_are(tmp_path):
    runs = [write_run(tmp_path / name, margin=margin) for name, margin in (("a", 1.0), ("b", 2.0))]

    def called(*names):
        for run, name in zip(runs, names, strict=True):
            change(run, "config.json", recipe=name)
        return read_collection(runs).title

    assert called("one", "two") == "2 recipes: 2 runs compared"
    assert called("one", None) == "2 runs compared"
    assert called(None, None) == "2 runs compared"


def test_runs_that_differ_by_their_seed_alone_are_one_member(tmp_path):
    def made(name, **settings):
        run = write_run(tmp_path / name, **settings)
        change(run, "config.json", recipe=None)
        return run

    own = [made(f"own-{seed}", seed=seed, method="own") for seed in (1, 0, 10)]
    found = read_collection(own)
    assert [run.seed for run in found.members[0].runs] == [0, 1, 10]
    assert found.title == "own, 3 seeds"
    others = [made(f"wide/seed{seed}", seed=seed, margin=4.0, method="own") for seed in (0, 1)]
    found = read_collection([*own, *others])
    assert [(member.label, len(member.runs)) for member in found.members] == [
        ("own", 3),
        ("wide", 2),
    ]
    assert found.title == "2 runs compared"
    odd = [made(name, seed=seed, method="odd") for seed, name in enumerate(("one", "two"))]
    assert read_collection(odd).title == "one and 1 more, 2 seeds"
    # Who names two runs with the same seed wants to see both.
    assert len(read_collection([*own, made("later-0", seed=0, method="own")]).members) == 4
    assert len(read_collection([*own, made("old", seed=None, method="own")]).members) == 4


def test_seeds_in_a_directory_need_no_list_of_them(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path / f"mine/seed{seed}", seed=seed)
    write(tmp_path / "mine/seed1", "result.json", "{")
    found = read_collection([tmp_path / "mine"])
    assert [[run.seed for run in member.runs] for member in found.members] == [[0, 2]]
    assert found.notes[0].startswith("mine: the run with seed 1 is left out. ")


def test_a_directory_of_other_runs_says_what_to_do(tmp_path):
    run = write_run(tmp_path / "runs/one")
    words = f"{tmp_path}/runs is not a run, but it contains runs. .*, {run} for example"
    with pytest.raises(RunError, match=words):
        read_collection([tmp_path / "runs"])
    write_run(tmp_path / "deep/one/seed0")
    with pytest.raises(RunError, match="deep/one for example"):
        read_collection([tmp_path / "deep"])


def test_permutations_drawn_by_the_seed_are_not_a_setting(tmp_path):
    runs = [write_run(tmp_path / f"run{seed}", seed=seed, tasks=("low",)) for seed in (0, 1)]
    for run in runs:
        task = {"name": "low", "objective": "classification", "prepare": f"Prepare {run.name}"}
        change(run, "config.json", tasks=[task])
    assert len(read_collection(runs).members) == 1


def test_a_run_named_twice_counts_once(tmp_path):
    run = write_run(tmp_path / "run")
    assert len(read_collection([run, f"{run}/", tmp_path / "run/../run"]).runs) == 1


def test_the_directory_that_one_is_in_has_a_name(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    other = write_run(tmp_path / "other", margin=3.0)
    monkeypatch.chdir(run)
    assert labels(".", other) == ["run", "other"]


def test_tasks_of_other_names_are_numbered(tmp_path):
    one = write_run(tmp_path / "one")
    other = write_run(tmp_path / "other", tasks=("low", "another"), seed=1)
    assert read_collection([one, other]).names == ["task 1", "task 2", "task 3"]
    shorter = write_run(tmp_path / "shorter", num_learned=1, seed=1)
    assert read_collection([one, shorter]).names == ["low", "high", "wide"]


def test_scores_of_regression_are_no_percentages(tmp_path):
    run = write_run(tmp_path / "run")
    change_tasks(run, 0, objective="regression")
    assert read_collection([run]).score_name == "score"


def test_notes_on_an_unfinished_run_and_its_log(tmp_path):
    run = write_run(tmp_path / "run", num_learned=1)
    with (run / "events.jsonl").open("a") as file:
        file.write("{\n{\n")
    (unfinished, damaged) = read_collection([run]).notes
    assert unfinished == (
        "The run is not finished: 1 of 3 tasks are learned; high is in training. Resume it with "
        "the Python program that started it."
    )
    assert damaged == (
        "Damaged lines of the log events.jsonl are left out: 2. Curves may have gaps."
    )
    (run / "events.jsonl").unlink()
    assert read_collection([run]).notes[1] == (
        "The log events.jsonl is missing, and with it training and pruning curves."
    )


def test_a_note_on_several_runs_is_one(tmp_path):
    series = write_series(tmp_path / "series", seeds=tuple(range(6)), tasks=("only",))
    for seed in range(6):
        (series / f"seed{seed}/events.jsonl").unlink()
    (note,) = read_collection([series]).notes
    assert note == (
        "seed 0; seed 1; seed 2; seed 3 and 2 more: the log events.jsonl is missing, and with it "
        "training and pruning curves."
    )


def test_a_full_network_is_noted(tmp_path):
    (note,) = read_collection([write_run(tmp_path / "run", full="fc1 is full. Widen it")]).notes
    assert note == "The network was full after 3 of 3 tasks: fc1 is full."


def test_a_failure_and_a_change_of_outputs_are_noted(tmp_path):
    run = write_run(tmp_path / "run", num_learned=2)
    write_events(run, [RunFailed(task="wide", reason="it diverged")], append=True)
    change_tasks(run, 0, unchanged=False)
    assert read_collection([run]).notes == (
        "The run failed after 2 of 3 tasks: it diverged.",
        "The OUTPUTS OF AN ENDED TASK HAVE CHANGED, which must not happen. Check it with "
        f"`clnp verify {run}`.",
    )


def test_a_run_of_a_series_that_cannot_be_read_is_left_out(tmp_path):
    series = write_series(tmp_path / "series", seeds=(0, 1, 2))
    write(series / "seed1", "result.json", "{")
    shutil.rmtree(series / "seed2")
    found = read_collection([series])
    assert [run.seed for run in found.runs] == [0]
    assert found.notes[0].startswith("series: the run with seed 1 is left out. ")
    assert found.notes[1] == "series: the run with seed 2 has not started."


def test_a_method_that_has_not_begun_is_left_out(tmp_path):
    compared = write_comparison(tmp_path / "compared")
    shutil.rmtree(compared / "ewc")
    write(compared / "single", "series.json", {"seeds": "abc"})
    found = read_collection([compared])
    assert [member.label for member in found.members] == ["clnp"]
    assert len(found.notes) == 2
    assert sorted("has not started" in note for note in found.notes) == [False, True]
    assert sorted("series.json is damaged" in note for note in found.notes) == [False, True]


def test_a_run_whose_result_is_damaged_is_told_by_its_events(tmp_path):
    run = write_run(tmp_path / "run")
    write(run, "result.json", "{")
    found = read_collection([run])
    assert found.single is not None
    assert found.single.num_events > 0
    assert found.notes[0].startswith("The result is left out. ")
    assert "result.json is damaged: " in found.notes[0]


def test_a_path_without_a_run_is_left_out_of_several(tmp_path):
    found = read_collection([write_run(tmp_path / "good"), tmp_path / "nothing"])
    [reason] = found.left_out
    assert reason.startswith(f"{tmp_path / 'nothing'} does not exist.")
    assert found.notes == (f"Left out: {reason}",)
    assert found.single is not None
    with pytest.raises(RunError, match="nothing does not exist"):
        read_collection([tmp_path / "nothing"])


def test_nothing_to_report_on_is_an_error(tmp_path):
    write(tmp_path, "series.json", {"recipe": "x", "seeds": [0]})
    with pytest.raises(RunError, match=r"nothing to report on in .* Resume it with `clnp resume "):
        read_collection([tmp_path])


def test_a_damaged_checkpoint_is_noted(tmp_path):
    run = write_run(tmp_path / "run")
    assert read_collection([run]).notes == ()
    (run / "checkpoint.safetensors").write_bytes(b"cut")
    [note] = read_collection([run]).notes
    assert note.startswith("The checkpoint.safetensors is damaged: its header cannot be read, and")


def test_a_damaged_result_is_not_called_unfinished(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "result.json").write_text("[")
    notes = " ".join(read_collection([run]).notes)
    assert "The result is left out." in notes
    assert "not finished" not in notes
