import json
from pathlib import Path

import pytest
import torch
from torch import nn

from clnp.runs.directory import again, read_config, read_events
from clnp.runs.experiment import Experiment
from clnp.terminal.summary import guesses, neurons, scores, status, summary
from clnp.training.config import LearnerConfig, Training
from clnp.training.task import Task

PLACE = Path("runs/mine")
CONFIG = {"recipe": "permuted-digits", "seed": 4, "head": "single", "tasks": ["a", "b", "c"]}
BEGIN = {
    "event": "begin",
    "task": "b",
    "number": 2,
    "num_tasks": 3,
    "num_candidates": 2,
    "num_epochs": 30,
}


def result(**others):
    """What a run of two tasks came to, as it is in its file."""
    usages = [
        ("flowers", "fc1", 12, 0, 88),
        ("flowers", "fc2", 3, 0, 17),
        ("trees", "fc1", 4, 9, 84),
        ("trees", "fc2", 0, None, 17),
    ]
    keys = ("task", "group", "new", "reused", "free")
    return {
        "finished": True,
        "full": None,
        "tasks": [
            {
                "task": "flowers",
                "objective": "classification",
                "test_score": 97.5,
                "unchanged": True,
            },
            {
                "task": "trees",
                "objective": "classification",
                "test_score": 88.125,
                "unchanged": True,
            },
        ],
        "scores": [[97.5], [97.5, 88.125]],
        "capacity": {
            "sizes": {"fc1": 100, "fc2": 20},
            "usages": [dict(zip(keys, usage, strict=True)) for usage in usages],
            "free": {"fc1": 84, "fc2": 17},
        },
        "forecast": {"num_tasks": 10, "bottleneck": "fc1", "like": ["a"]},
        "timings": {"seconds": 12.345, "tasks": [6.0, 6.0]},
        **others,
    }


def tasks(*unchanged, scored=(97.5, 88.125)):
    pairs = zip(("flowers", "trees"), scored, unchanged, strict=True)
    return [
        {"task": name, "objective": "classification", "test_score": score, "unchanged": same}
        for name, score, same in pairs
    ]


def environment(**others):
    return {
        "began": "2030-01-02T03:04:05+00:00",
        "gpu": None,
        "cpu": "Fast CPU",
        "torch": "2.11.0",
        "clnp": "0.3",
        **others,
    }


def test_a_summary_has_scores_neurons_and_room():
    assert summary(result()) == (
        "Test accuracy in percent\n"
        "task     when learnt    now    outputs\n"
        "flowers        97.50  97.50  identical\n"
        "trees          88.12  88.12  identical\n"
        "Average 92.81; nothing was forgotten: all outputs are what they were, to the last bit.\n"
        "\n"
        "Neurons: new with the task, reused by it, left free\n"
        "task            fc1: new  reused  free  fc2: new  reused  free\n"
        "(at the start)                     100                      20\n"
        "flowers               12       0    88         3       0    17\n"
        "trees                  4       9    84         0       ?    17\n"
        "\n"
        "Room: about 10 more tasks like the last would fit; fc1 fills up first."
    )


def test_a_summary_says_why_no_task_fits_any_more():
    text = summary(result(full="no neuron of fc1 is free. Widen it, net.widen(...)"))
    assert text.split("\n\n")[-2] == (
        "Full: no neuron of fc1 is free. Give the network larger widths, or the tasks more margin."
    )
    assert "Full" not in summary(result())


def test_a_summary_says_that_there_is_no_limit():
    text = summary(result(forecast={"num_tasks": None, "bottleneck": None, "like": ["a"]}))
    assert text.endswith("Room: no limit in sight: the last tasks claimed no new neuron.")


def test_without_a_task_there_is_nothing_to_sum_up():
    assert summary(result(tasks=[])) == "No task has been learnt yet."
    full = summary(result(tasks=[], full="no neuron is free"))
    assert full.startswith("No task has been learnt yet.\n\nFull: no neuron is free. Give")


def test_outputs_that_differ_are_not_called_remembered():
    different = result(tasks=tasks(False, True), scores=[[97.5], [96.0, 88.125]])
    assert scores(different).splitlines()[2:] == [
        "flowers        97.50  96.00  DIFFERENT",
        "trees          88.12  88.12  identical",
        "Average 92.06; outputs differ from when their task ended: see clnp verify.",
    ]


def test_tasks_without_test_data_are_left_out_of_the_average():
    half = result(tasks=tasks(None, True, scored=(None, 80.0)), scores=[[None], [None, 80.0]])
    assert scores(half).splitlines()[2:] == [
        "flowers            -      -  no test data",
        "trees          80.00  80.00     identical",
        "Average of 1 of 2 tasks 80.00; nothing was forgotten: the outputs of 1 of 2 tasks are "
        "what they were, to the last bit.",
    ]
    none = result(tasks=tasks(None, None, scored=(None, None)), scores=[[None], [None, None]])
    assert scores(none).splitlines()[1:] == [
        "task     when learnt  now       outputs",
        "flowers            -    -  no test data",
        "trees              -    -  no test data",
    ]


def test_a_score_that_is_not_finite_is_shown():
    # It is text in the file, which JSON has no number for.
    odd = result(tasks=tasks(True, True, scored=("nan", 80.0)), scores=[["nan"], ["nan", 80.0]])
    assert "flowers          nan    nan  identical" in scores(odd)
    assert "Average nan;" in scores(odd)


def test_many_layers_stand_in_several_tables():
    groups = [f"g{number}" for number in range(6)]
    usages = [
        {"task": "a", "group": group, "new": number, "reused": 0, "free": 50 - number}
        for number, group in enumerate(groups)
    ]
    capacity = {"sizes": dict.fromkeys(groups, 50), "usages": usages}
    text = neurons({"tasks": [{"task": "a"}], "capacity": capacity})
    title, *blocks = text.split("\n", 1)
    first, second = blocks[0].split("\n\n")
    assert title == "Neurons: new with the task, reused by it, left free"
    assert first.splitlines()[0].split() == [
        "task",
        *[word for group in groups[:3] for word in (f"{group}:", "new", "reused", "free")],
    ]
    assert second.splitlines() == [
        "task            g3: new  reused  free  g4: new  reused  free  g5: new  reused  free",
        "(at the start)                     50                     50                     50",
        "a                     3       0    47        4       0    46        5       0    45",
    ]


def test_the_status_of_a_finished_run():
    assert status(PLACE, CONFIG, [environment()], result(), [], 0.0).splitlines() == [
        "runs/mine: permuted-digits, seed 4, head single",
        "started once, last 2030-01-02T03:04:05+00:00 on Fast CPU, torch 2.11.0, clnp 0.3",
        "finished: 2 of 3 tasks in 12 s",
    ]


def test_the_status_names_the_gpu_and_the_last_start():
    sessions = [environment(), environment(began="later", gpu="Faster GPU", torch="2.12")]
    line = status(PLACE, CONFIG, sessions, result(), [], 0.0).splitlines()[1]
    assert line == "started 2 times, last later on Faster GPU, torch 2.12, clnp 0.3"


def test_the_status_of_a_run_that_has_not_begun():
    config = {key: value for key, value in CONFIG.items() if key != "recipe"}
    assert status(PLACE, config, [], None, [], 7.0).splitlines() == [
        "runs/mine: an experiment, seed 4, head single",
        "not finished: 0 of 3 tasks; last heard of 7 s ago",
        "if it is not at work any more, clnp resume runs/mine goes on",
    ]


@pytest.mark.parametrize("kind", ["begin", "resumed"])
def test_the_status_of_a_run_that_broke_off_says_what_was_last_seen(kind):
    candidate = {
        "event": "candidate",
        "task": "b",
        "candidate": 0,
        "alpha": 0.001,
        "lr": 0.01,
        "num_epochs": 30,
        "score": 75.0,
        "diverged": None,
    }
    earlier = {**BEGIN, "number": 1, "num_candidates": 9}
    events = [
        {"event": "run"},
        earlier,
        {**BEGIN, "event": kind},
        candidate,
        {"event": "chosen", "task": "b"},
    ]
    half = result(finished=False, tasks=tasks(True, True)[:1])
    assert status(PLACE, CONFIG, [], half, events, 90.0).splitlines()[1:] == [
        "not finished: 1 of 3 tasks; last heard of 90 s ago",
        "last seen: candidate 1 of 2, alpha 0.001, lr 0.01: validation 75.00 after 30 epochs",
        "if it is not at work any more, clnp resume runs/mine goes on",
    ]
    # What is not worth a line is not the last thing seen, and may be all there is.
    assert len(status(PLACE, CONFIG, [], half, [{"event": "run"}], 0.0).splitlines()) == 3
    assert len(status(PLACE, CONFIG, [], result(), events, 0.0).splitlines()) == 2


def test_the_status_of_a_run_that_was_stopped():
    half = result(finished=False, tasks=tasks(True, True)[:1])
    events = [{"event": "run"}, {"event": "stopped"}]
    assert status(PLACE, CONFIG, [], half, events, 5.0).splitlines()[1:] == [
        "stopped after 1 of 3 tasks; clnp resume runs/mine goes on",
    ]


def test_a_real_run_is_summed_up_from_its_files(tmp_path):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    config = LearnerConfig(margin=5.0, training=Training(epochs=3, lr=0.05, batch_size=16))
    tried = [Task("x", (x, y), test=(x, y)), Task("y", (x, 1 - y))]
    path = tmp_path / "run"
    experiment = Experiment(model, x[:2], tried, config)
    experiment.run(path)
    found = json.loads((path / "result.json").read_text())
    lines = summary(found).splitlines()
    score = f"{found['tasks'][0]['test_score']:.2f}"
    assert lines[2].split() == ["x", score, score, "identical"]
    assert lines[3].split() == ["y", "-", "-", "no", "test", "data"]
    assert lines[4].startswith(f"Average of 1 of 2 tasks {score}; nothing was forgotten")
    assert lines[8].split() == ["(at", "the", "start)", "8"]
    sessions = json.loads((path / "environment.json").read_text())
    told = status(path, read_config(path), sessions, found, read_events(path), 0.0)
    assert told.startswith(f"{path}: an experiment, seed 0, head multi\nstarted once, last ")
    assert "\nfinished: 2 of 2 tasks in " in told
    events = read_events(path)
    assert events[-1]["event"] == "finished"
    broken_off = status(path, read_config(path), sessions, None, events[:-1], 0.0)
    assert broken_off.splitlines()[-2].startswith("last seen: learnt y: validation ")
    lost = status(path, read_config(path), sessions, None, events, 0.0)
    assert lost.endswith(
        "finished, but its result.json is missing; the Python program that began it writes it anew"
    )
    (path / "result.json").unlink()
    again_found = experiment.run(path)
    assert {**again_found, "timings": None} == {**found, "timings": None}
    assert (path / "result.json").exists()


def test_only_classification_is_called_accuracy():
    tasks = [{**task, "objective": "regression"} for task in result()["tasks"]]
    assert summary(result()).startswith("Test accuracy in percent\n")
    assert summary(result(tasks=tasks)).startswith("Test score\n")


def test_the_status_of_a_run_that_failed(tmp_path):
    config = {"tasks": ["a", "b"], "seed": 0, "head": "multi"}
    failed = {"event": "failed", "task": "a", "reason": "every candidate diverged"}
    text = status(tmp_path, config, [], None, [failed], 0.0)
    assert "failed after 0 of 2 tasks: every candidate diverged" in text
    assert "change the recipe, and begin a new run" in text
    assert "clnp resume" not in text
    some = {**result(), "finished": False}
    for recipe, onward in (("mine", f"clnp run RECIPE --out {tmp_path}"), (None, again(tmp_path))):
        text = status(tmp_path, {**config, "recipe": recipe}, [], some, [failed], 0.0)
        assert text.endswith(f"change that task or its settings, or leave it out; {onward} goes on")
    text = status(tmp_path, {**config, "method": "ewc"}, [], some, [failed], 0.0)
    assert text.endswith("the same would happen again: change the recipe, and begin a new run")
    full = f"no space left; {again(tmp_path)} goes on"
    for reason, remedy in [
        (full, ""),
        ("ValueError: no", f"\nonce that is mended, {again(tmp_path)} goes on"),
    ]:
        mendable = {**failed, "reason": reason, "mendable": True}
        text = status(tmp_path, config, [], None, [mendable], 0.0)
        assert text.endswith(f"failed after 0 of 2 tasks: {reason}{remedy}")


def test_tasks_that_were_not_learnt_are_named():
    guess = [{**task, "score": 50.0, "guess": 50.0} for task in result()["tasks"]]
    *_, last = scores(result(tasks=guess)).splitlines()
    names = ", ".join(task["task"] for task in guess)
    assert last.startswith(f"NOT LEARNT: {names}. Always naming the same class is as good")
    many = [{**guess[0], "task": str(number)} for number in range(8)]
    assert guesses(many)[0].startswith("NOT LEARNT: 0, 1, 2, 3, 4 and 3 more. ")
    assert guesses([{**task, "score": 50.1} for task in guess]) == []
