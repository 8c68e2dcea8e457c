import math

import pytest

from clnp.core.forecast import Forecast
from clnp.core.layers.ledger import Usage
from clnp.records import CapacityRecord, Environment, LearnerSettings, RunResult, TaskRecord
from clnp.terminal.summary import everything, guesses, neurons, scores, summary
from support.results import made_up, with_task


def task(name, score, unchanged=True):
    return TaskRecord(name, objective="classification", test_score=score, unchanged=unchanged)


def result(**others):
    """Return the result of a run of two tasks."""
    usages = (
        Usage("flowers", "fc1", 12, 0, 88),
        Usage("flowers", "fc2", 3, 0, 17),
        Usage("trees", "fc1", 4, 9, 84),
        Usage("trees", "fc2", 0, None, 17),
    )
    values = {
        "finished": True,
        "tasks": (task("flowers", 97.5), task("trees", 88.125)),
        "scores": ((97.5,), (97.5, 88.125)),
        "capacity": CapacityRecord({"fc1": 100, "fc2": 20}, usages, {"fc1": 84, "fc2": 17}),
        "forecast": Forecast(10, "fc1", like=("a",)),
    }
    return RunResult(**{**values, **others})


def test_a_summary_has_scores_neurons_and_room():
    assert summary(result()) == (
        "Test accuracy in percent\n"
        "task     when learned    now    outputs\n"
        "flowers         97.50  97.50  identical\n"
        "trees           88.12  88.12  identical\n"
        "Average 92.81; nothing was forgotten: all outputs are the same to the last bit.\n"
        "\n"
        "Neurons: new with the task, reused by it, left free\n"
        "task            fc1: new  reused  free  fc2: new  reused  free\n"
        "(at the start)                     100                      20\n"
        "flowers               12       0    88         3       0    17\n"
        "trees                  4       9    84         0       ?    17\n"
        "\n"
        "Room: about 10 more tasks like the last would fit; fc1 fills up first."
    )
    assert "Neurons" not in summary(result(method="ewc"))
    assert "Room" not in summary(result(method="ewc"))


def test_a_summary_of_a_full_network():
    text = summary(result(full="no neuron of fc1 is free. Widen it, net.widen(...)"))
    assert text.split("\n\n")[-2] == (
        "Full: no neuron of fc1 is free. Give the network larger widths, or the tasks more margin."
    )
    empty = summary(result(tasks=(), full="no neuron is free"))
    assert empty.startswith("No task has ended yet.\n\nFull: no neuron is free. Give")


@pytest.mark.parametrize(
    ("method", "verdict"),
    [
        ("clnp", "outputs differ from when their task ended: see clnp verify"),
        ("finetune", "outputs differ from when their task ended, forgetting 1.50"),
        ("joint", "all tasks were learned together, so there was nothing to forget"),
    ],
)
def test_outputs_that_differ(method, verdict):
    different = result(method=method, scores=((97.5,), (96.0, 88.125)))
    assert scores(with_task(different, 0, unchanged=False)).splitlines()[2:] == [
        "flowers         97.50  96.00  DIFFERENT",
        "trees           88.12  88.12  identical",
        f"Average 92.06; {verdict}.",
    ]


def test_tasks_without_test_data_are_left_out_of_the_average():
    half = result(tasks=(task("flowers", None, None), task("trees", 80.0)))
    half = scores(result(tasks=half.tasks, scores=((None,), (None, 80.0)))).splitlines()
    assert half[2].split() == ["flowers", "-", "-", "no", "test", "data"]
    assert half[4] == (
        "Average of 1 of 2 tasks 80.00; nothing was forgotten: the outputs of 1 of 2 tasks are "
        "the same to the last bit."
    )
    none = result(tasks=(task("flowers", None, None),), scores=((None,),))
    assert len(scores(none).splitlines()) == 3


def test_a_score_that_is_not_finite_is_shown():
    odd = result(tasks=(task("flowers", math.nan), task("trees", 80.0)), scores=((math.nan, 80.0),))
    assert scores(odd).splitlines()[2].split() == ["flowers", "nan", "nan", "identical"]


def test_many_layers_are_in_several_tables():
    groups = [f"g{number}" for number in range(4)]
    usages = tuple(Usage("a", group, n, 0, 50 - n) for n, group in enumerate(groups))
    capacity = CapacityRecord(dict.fromkeys(groups, 50), usages)
    first, second = neurons(result(tasks=(task("a", 1.0),), capacity=capacity)).split("\n\n")
    assert first.splitlines()[1].count(": new") == 3
    assert second.splitlines() == [
        "task            g3: new  reused  free",
        "(at the start)                     50",
        "a                     3       0    47",
    ]


def test_tasks_in_which_nothing_was_learned_are_named():
    bad = [TaskRecord(str(number), score=50.0, guess=50.0) for number in range(8)]
    *_, last = scores(result(tasks=tuple(bad[:2]))).splitlines()
    assert last.startswith("NOT LEARNED: 0, 1. Always naming the same class is as good")
    assert guesses(bad)[0].startswith("NOT LEARNED: 0, 1, 2, 3, 4 and 3 more. ")
    assert guesses([TaskRecord("a", score=50.1, guess=50.0), TaskRecord("b", guess=1.0)]) == []


def test_all_details():
    made = made_up(12, {f"layer{number}": 90 for number in range(8)}, names="abcdefghijkl")
    environment = Environment(command=("clnp", "run", "mine.toml"), num_threads=4)
    lines = "\n\n".join(everything(LearnerSettings(margin=2.0), [environment], made)).splitlines()
    for part in ("Candidates", "Forecast", "Pruning, margin 2", "Environment of start 1"):
        assert part in lines
    assert all(f"{digest}  {name}" in lines for name, digest in made.certificates.items())
    assert {"command: clnp run mine.toml", "num_threads: 4"} <= {*lines}
    [head] = [line for line in lines if line.startswith("task") and "alpha" in line]
    assert head.split() == ["task", "chosen", "alpha", "lr", "epochs", "validation"]
    assert "l          *  0.001  0.01       5       93.00" in lines
    assert sum(line.endswith("  0.25") for line in lines) == 12
