import pytest

from clnp.report.collection import read_collection
from clnp.report.draw import MOST_PANELS
from clnp.report.figures.capacity import draw_capacity
from support.written_runs import as_text, change_tasks, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


def bars(axes, *, column):
    """Return the heights of the reused, unused and new neurons of a task."""
    return [bar.get_height() for bar in axes.patches[3 * column : 3 * column + 3]]


def test_new_neurons_are_above_those_of_earlier_tasks(tmp_path):
    picture = draw_capacity(read_collection([write_run(tmp_path / "run")]))
    axes = picture.figure.axes[0]
    assert axes.get_title(loc="left") == "fc1: 88 % free"
    assert axes.get_ylim() == (0, 100)
    assert [bars(axes, column=column) for column in range(3)] == [[0, 0, 2], [1, 1, 4], [3, 3, 6]]
    assert [bar.get_y() for bar in axes.patches[-3:]] == [0, 3, 6]
    assert picture.table.header[:3] == ("task", "layer", "new")
    # Task 2 reuses 1 of 5 active neurons, task 3 reuses 3 of 9.
    assert as_text(picture.table.rows)[2] == ("high", "fc1", "4", "1", "20.0", "6.0")
    words = "after 3 tasks, fc1 88 % free (27 % reused), fc2 76 % free (27 % reused)."
    assert picture.description == words


def test_seeds_are_averaged(tmp_path):
    series = write_series(tmp_path / "series")
    write_run(series / "seed1", seed=1, num_learned=1)
    picture = draw_capacity(read_collection([series]))
    axes = picture.figure.axes[0]
    # One run has claimed nothing for tasks 2 and 3.
    assert [bars(axes, column=column)[2] for column in range(3)] == pytest.approx([2, 2, 3])
    assert "Means over 2 seeds." in picture.caption
    assert as_text(picture.table.rows)[0][2] == "2.0 ± 0.0"


def test_every_layer_of_every_run_has_a_panel(tmp_path):
    runs = [write_run(tmp_path / name, margin=margin) for name, margin in (("a", 1.0), ("b", 2.0))]
    picture = draw_capacity(read_collection(runs))
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == [
        "a\nfc1: 88 % free",
        "a\nfc2: 76 % free",
        "b\nfc1: 88 % free",
        "b\nfc2: 76 % free",
    ]
    assert picture.table.header[0] == "run"


def test_a_very_deep_network_has_panels_for_its_first_layers(tmp_path):
    sizes = {f"layer{number}": 100 for number in range(MOST_PANELS + 10)}
    run = write_run(tmp_path / "run", tasks=("only",), sizes=sizes)
    picture = draw_capacity(read_collection([run]))
    assert len(picture.figure.axes) == MOST_PANELS
    assert "Only the first 40 of 50 layers are shown." in picture.caption
    assert len(picture.table.rows) == 50


def test_baselines_have_no_neurons(tmp_path):
    run = write_run(tmp_path / "run", method="ewc")
    assert draw_capacity(read_collection([run])) is None


def test_a_task_that_claims_nothing(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), sizes={"fc1": 100})
    change_tasks(run, new={"fc1": 0}, reused={"fc1": None})
    picture = draw_capacity(read_collection([run]))
    assert picture.description == "after 1 task, fc1 100 % free."
    assert as_text(picture.table.rows)[0] == ("only", "fc1", "0", None, None, "0.0")
