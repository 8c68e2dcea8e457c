import pytest

from clnp.core.forecast import forecast
from clnp.core.layers.ledger import Ledger
from clnp.terminal.tables import ASCII, BLOCKS, Screen, cells, ends, layers, measure, tasks
from support.results_made_up import made_up

NAMES = ("a <b> & \"c\" 'd'", "数字の分類" * 6, "x" * 300, "tab\tand\x1b[31mcolour", " ", "é")


def test_the_first_and_last_of_many_are_shown():
    assert ends([1, 2, 3], 3) == ([1, 2, 3], [], [])
    assert ends([1, 2, 3, 4, 5], 4) == ([1], [2, 3], [4, 5])
    assert ends(list(range(50)), 10) == ([0, 1, 2, 3], list(range(4, 45)), [45, 46, 47, 48, 49])


def test_a_line_for_each_task():
    result = made_up(2, {"fc1": 100, "fc2": 40}, claim=4)
    assert tasks(result, screen=Screen()) == [
        "task, accuracy  learnt    now  outputs    fc1    fc2  threshold",
        "task 1           90.00  90.00     same  4 + 0  4 + 0       0.25",
        "task 2           91.00  91.00     same  4 + 1  4 + 1       0.25",
        "Neurons: new ones that the task claimed + those of earlier tasks that it reuses",
    ]


def test_many_tasks_are_summed_up():
    lines = tasks(made_up(50, {"fc1": 1000}), screen=Screen(height=10))
    assert len(lines) == 12
    assert lines[5].split() == ["...", "41", "more,", "mean", "91.02", "91.02"]
    assert lines[6].startswith("task 46")
    assert len(tasks(made_up(50, {"fc1": 1000}), screen=Screen(height=90))) == 52


def test_many_layers_share_a_column():
    result = made_up(2, {f"layer{number}": 50 for number in range(20)}, claim=2)
    lines = tasks(result, screen=Screen())
    assert lines[0].split()[-2:] == ["neurons", "threshold"]
    assert "40 + 20" in lines[2]
    result["tasks"][1]["reused"]["layer3"] = None
    assert "40 + ?" in tasks(result, screen=Screen())[2]


def test_a_narrow_screen_has_fewer_columns():
    result = made_up(2, {"fc1": 100, "fc2": 40}, claim=4)
    lines = tasks(result, screen=Screen(width=40))
    assert lines[0].split() == ["task,", "accuracy", "learnt", "now", "neurons"]
    # What should not be is shown however narrow it is.
    result["tasks"][0]["unchanged"] = False
    assert "DIFFERENT" in tasks(result, screen=Screen(width=40))[1]


@pytest.mark.parametrize(
    ("thresholds", "told"),
    [
        ({"fc1": 0.5, "fc2": 0.5}, "0.5"),
        ({"fc1": 0.5, "fc2": 0.125}, "0.125 to 0.5"),
        ({"fc1": "-inf", "fc2": "-inf"}, "none"),
        ({}, "-"),
    ],
)
def test_thresholds_are_one_or_a_range(thresholds, told):
    result = made_up(1, {"fc1": 100, "fc2": 40})
    result["tasks"][0]["pruning"]["thresholds"] = thresholds
    assert tasks(result, screen=Screen())[1].endswith(f"  {told}")


def test_scores_that_are_not_there_or_not_finite():
    result = made_up(2, {"fc1": 100})
    result["tasks"][0].update(test_score=None, unchanged=None)
    result["tasks"][1].update(test_score="nan")
    result["scores"][-1] = [None, "nan"]
    _, first, second, _ = tasks(result, screen=Screen())
    assert first.split()[2:5] == ["-", "-", "-"]
    assert second.split()[2:5] == ["nan", "nan", "same"]


def test_a_bar_for_each_layer():
    result = made_up(3, {"fc1": 100, "fc2": 40}, claim=10)
    found = layers(result, screen=Screen(width=80))
    assert found[0].split() == [
        "layer",
        "free",
        "more",
        "tasks",
        "neurons",
        "by",
        "task,",
        "then",
        "free",
    ]
    assert found[1].split()[:6] == ["fc1", "70", "of", "100", "70", "%"]
    assert found[1].split()[6] == "7.0"
    assert found[2].split()[6] == "1.0"
    bar = found[2].split()[7]
    assert len(found[2]) == 80
    assert [bar.count(mark) for mark in "█▓▒·"] == pytest.approx([len(bar) / 4] * 4, abs=1)


def test_a_layer_that_sets_no_limit():
    result = made_up(1, {"fc1": 100}, claim=0)
    assert layers(result, screen=Screen())[1].split()[6] == "-"


def test_many_layers_are_left_out():
    result = made_up(2, {f"layer{number}": 50 for number in range(40)})
    found = layers(result, screen=Screen())
    assert len(found) == 7
    assert found[3] == "... 35 more"


@pytest.mark.parametrize("width", [40, 59, 60, 80, 120])
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_no_line_is_wider_than_the_screen(width, glyphs):
    screen = Screen(width=width, glyphs=glyphs)
    for num_layers in (1, 3, 30):
        sizes = {f"{NAMES[place % 3]}{place}": 10**6 + place for place in range(num_layers)}
        result = made_up(6, sizes, claim=99999, names=NAMES)
        for line in (*tasks(result, screen=screen), *layers(result, screen=screen)):
            assert cells(line) <= width, line
            assert line.isprintable()


def test_only_classification_is_called_accuracy():
    result = made_up(1, {"fc1": 10})
    assert measure(result) == "test accuracy"
    result["tasks"][0]["objective"] = "regression"
    assert measure(result) == "test score"


def test_made_up_results_are_like_real_ones():
    result = made_up(3, {"fc1": 30}, claim=3)
    ledger = Ledger({"fc1": 30})
    for number in range(3):
        ledger = ledger.claim(f"task {number + 1}", {"fc1": 3})
    assert result["forecast"]["num_tasks"] == forecast(ledger.capacity()).num_tasks == 7
