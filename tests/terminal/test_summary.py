from dataclasses import replace
from pathlib import Path

import pytest

from clnp.core.forecast import Forecast
from clnp.core.layers.ledger import Usage
from clnp.records import (
    CandidateRecord,
    CapacityRecord,
    Environment,
    FineTuningSettings,
    LearnerSettings,
    RunResult,
    TaskRecord,
)
from clnp.runs.directory import RECIPE
from clnp.terminal.summary import (
    FULL,
    choices,
    everything,
    guesses,
    headline,
    proofs,
    room,
    stored,
    summary,
)
from clnp.terminal.tables import UNLIMITED, Screen
from support.results import made_up, with_task

SCREEN = Screen(height=UNLIMITED)
SETTINGS = LearnerSettings(margin=2.0, importance="activity")


def task(name, score, unchanged=True):
    return TaskRecord(
        name,
        objective="classification",
        test_score=score,
        unchanged=unchanged,
        new={"fc1": 12, "fc2": 3},
        reused={"fc1": 9, "fc2": None},
    )


def result(**others):
    """Return the result of a run of two tasks."""
    usages = (Usage("flowers", "fc1", 8, 0, 92), Usage("trees", "fc1", 8, 9, 84))
    values = {
        "finished": True,
        "tasks": (task("flowers", 97.5), task("trees", 88.125)),
        "scores": ((97.5,), (97.5, 88.125)),
        "capacity": CapacityRecord({"fc1": 100, "fc2": 20}, usages, {"fc1": 84, "fc2": 17}),
        "forecast": Forecast(
            10, "fc1", like=("a",), free={"fc1": 84, "fc2": 17}, need={"fc1": 8.0}
        ),
    }
    return RunResult(**{**values, **others})


def test_a_summary_has_scores_neurons_and_room():
    assert summary(result(), SCREEN).splitlines() == [
        "Average test accuracy 92.81, forgetting exactly 0, layers 84 % free on average.",
        "Checked after every task; nothing was forgotten: all outputs are the same to the",
        "  last bit.",
        "",
        "task, accuracy  learned    now     fc1    fc2  threshold",
        "flowers           97.50  97.50  12 + 9  3 + ?          -",
        "trees             88.12  88.12  12 + 9  3 + ?          -",
        "Neurons: new + reused (of earlier tasks, and needed for 99 % of a layer's input)",
        "",
        "layer       free        more tasks  neurons by task, then free",
        "fc1    84 of 100  84 %          10  ████▓▓▓·····································",
        "fc2     17 of 20  85 %           -  ············································",
        "",
        "Room: about 10 more tasks like the last would fit; fc1 fills up first; widening",
        "  by 4 in fc1 would make room for 11.",
    ]
    assert "Room" not in summary(result(method="ewc"), SCREEN)


def test_a_summary_names_every_task_and_layer():
    text = summary(made_up(50, {f"layer{number}": 900 for number in range(9)}), SCREEN)
    assert all(f"\ntask {number + 1} " in text for number in range(50))
    assert all(f"\nlayer{number} " in text for number in range(9))


def test_a_summary_of_a_full_network():
    full = summary(result(full="no neuron of fc1 is free. Widen it, net.widen(...)"), SCREEN)
    remedy = "Give the network larger widths, or the tasks\n  more margin.\nRoom: "
    assert f"Full: no neuron of fc1 is free. {remedy}" in full
    empty = summary(result(tasks=(), full="no neuron is free"), SCREEN)
    assert empty.startswith("No task has ended yet.\n\nFull: no neuron is free. Give")


@pytest.mark.parametrize(
    ("method", "verdict"),
    [
        ("clnp", "outputs differ from when their task ended: see clnp verify"),
        ("finetune", "outputs differ from when their task ended"),
        ("joint", "all tasks were learned together, so there was nothing to forget"),
    ],
)
def test_forgetting_is_in_the_headline(method, verdict):
    scores = ((90.0,), (60.0, 91.0))
    forgot = with_task(made_up(2, {}, method=method, scores=scores), 0, unchanged=False)
    assert headline(forgot) == [
        "Average test accuracy 75.50, forgetting 30.00, backward transfer -30.00.",
        f"Checked after every task; {verdict}.",
    ]


def test_a_headline_without_test_data():
    result = made_up(2, {"fc1": 10}, scores=((None,), (None, None)))
    for index in (0, 1):
        result = with_task(result, index, test_score=None, unchanged=None)
    assert headline(result) == ["Layers 80 % free on average."]
    half = with_task(made_up(2, {"fc1": 10}), 1, test_score=None, unchanged=None)
    first, second = headline(replace(half, scores=((90.0,), (90.0, None))))
    assert first.startswith("Average test accuracy of 1 of 2 tasks 90.00, ")
    assert "the outputs of 1 of 2 tasks are the same" in second
    one = made_up(1, {"fc1": 10}, scores=((float("nan"),),))
    assert headline(one)[0].startswith("Average test accuracy nan, layers")
    assert len(headline(one)) == 1  # There was nothing to forget yet.


def test_the_choices_of_a_grid_are_counted():
    result = made_up(5, {"fc1": 90})
    for index, lr in ((2, 0.02), (3, 0.02), (4, 0.03)):
        result = with_task(result, index, candidates=(CandidateRecord(0.001, lr),))
    result = with_task(result, 1, candidates=(CandidateRecord({"fc1": 0.5, "fc2": 0.25}, 0.01),))
    first = (*result.tasks[0].candidates, CandidateRecord(0.001, 0.1, diverged="NaN"))
    result = with_task(result, 0, candidates=first)
    pruning, grid = choices(replace(SETTINGS, tasks={"a": {}}), result)
    assert grid == (
        "Grid: 6 candidates (1 diverged) in all; chosen: alpha 0.001, lr 0.02 (2 tasks); "
        "alpha 0.001, lr 0.01 (1 task); 2 others."
    )
    assert "margin 2 unless a task has its own" in pruning
    assert choices(SETTINGS, made_up(1, {}, method="ewc")) == []


def test_pruning_and_fine_tuning():
    result = with_task(made_up(3, {"fc1": 90}), 2, num_rounds=2, score=96.0)
    tuning = FineTuningSettings(rounds=2)
    settings = replace(SETTINGS, per_layer=True, importance="contribution", fine_tuning=tuning)
    assert choices(settings, result)[0] == (
        "Pruning: by contribution, one threshold for each layer, margin 2; change in validation "
        "+0.67 on average, -0.50 at worst; fine-tuning rounds kept: 0 by 2 tasks, 2 by 1 task."
    )


def test_a_criterion_of_ones_own_is_named_without_its_hash():
    settings = replace(SETTINGS, importance="own.criteria.size 0123abcd")
    text = choices(settings, made_up(1, {"fc1": 90}))[0]
    assert text.startswith("Pruning: by own.criteria.size, one threshold,")


def test_notes_without_content_are_left_out():
    result = RunResult(method="ewc", tasks=(TaskRecord("a"),))
    assert (room(result), stored(result), proofs(Path("r"), result)) == ([], [], [])


def test_certificates_are_recomputed_by_a_command_or_a_program(tmp_path):
    result = RunResult(certificates={"a": "0123456789abcdef"})
    [text] = proofs(tmp_path, result)
    assert text.endswith(
        ", the last 0123456789ab; `clnp.load` of its checkpoint.safetensors recomputes them."
    )
    (tmp_path / RECIPE).touch()
    [text] = proofs(tmp_path, result)
    assert text.endswith(f"; `clnp verify {tmp_path}` recomputes them.")


def test_tasks_in_which_nothing_was_learned_are_named():
    bad = [TaskRecord(str(number), score=50.0, guess=50.0) for number in range(8)]
    [last] = headline(result(tasks=tuple(bad[:2]), scores=(), capacity=CapacityRecord()))
    assert last.startswith("NOT LEARNED: 0, 1. Always naming the same class is as good")
    assert guesses(bad)[0].startswith("NOT LEARNED: 0, 1, 2, 3, 4 and 3 more. ")
    assert guesses([TaskRecord("a", score=50.1, guess=50.0), TaskRecord("b", guess=1.0)]) == []


def test_all_details():
    made = made_up(12, {f"layer{number}": 90 for number in range(8)}, names="abcdefghijkl")
    environment = Environment(command=("clnp", "run", "mine.toml"), num_threads=4)
    lines = FULL.page(everything(SETTINGS, [environment], made)).splitlines()
    for part in ("Candidates", "Pruning, margin 2", "Environment of start 1"):
        assert part in lines
    assert all(f"{digest}  {name}" in lines for name, digest in made.certificates.items())
    assert {"command: clnp run mine.toml", "num_threads: 4"} <= {*lines}
    [head] = [line for line in lines if line.startswith("task") and "alpha" in line]
    assert head.split() == ["task", "chosen", "alpha", "lr", "epochs", "validation"]
    assert "l          *  0.001  0.01       5       93.00" in lines
    # Every layer has a column.
    assert sum(line.split()[-9:-1] == [*made.capacity.sizes] for line in lines) == 1
