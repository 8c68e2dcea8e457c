import pytest

from clnp.report.collection import read_collection
from clnp.report.reuse import draw_reuse
from support.written_runs import as_text, write_run

pytestmark = pytest.mark.usefixtures("style")


def test_new_neurons_stand_on_those_that_are_reused(tmp_path):
    picture = draw_reuse(read_collection([write_run(tmp_path / "run")]))
    axes = picture.figure.axes[0]
    assert [patch.get_height() for patch in axes.patches] == [0, 1, 3, 2, 4, 6]
    assert [patch.get_y() for patch in axes.patches[3:]] == [0, 1, 3]
    # Task 2 reuses 1 of 5, task 3 reuses 3 of 9.
    assert axes.get_title(loc="left") == "fc1: 27 % reused"
    assert as_text(picture.table.rows)[2] == ("high", "fc1", "4", "1", "20")


def test_many_layers_are_a_map(tmp_path):
    sizes = {f"layer{number}": 100 for number in range(12)}
    picture = draw_reuse(read_collection([write_run(tmp_path / "run", sizes=sizes)]))
    assert picture.figure.axes[0].get_title(loc="left") == "reused, % of active"
    assert picture.figure.axes[0].collections[0].get_array().shape == (12, 3)
    assert len(picture.table.rows) == 36


def test_several_runs_are_overlaid(tmp_path):
    runs = [write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(2)]
    picture = draw_reuse(read_collection(runs))
    assert [line.get_label() for line in picture.figure.axes[0].lines] == ["m0", "m1"]
    assert picture.table.header[0] == "run"


def test_where_no_neuron_was_claimed_the_axis_begins_at_nothing(tmp_path):
    usages = [{"task": "low", "group": "fc1", "new": 0, "reused": 0, "free": 100}]
    capacity = {"sizes": {"fc1": 100}, "usages": usages}
    run = write_run(tmp_path / "run", tasks=("low",), sizes={"fc1": 100}, capacity=capacity)
    axes = draw_reuse(read_collection([run])).figure.axes[0]
    assert axes.get_ylim() == (0, 1)


def test_one_task_has_nothing_to_reuse(tmp_path):
    picture = draw_reuse(read_collection([write_run(tmp_path / "run", tasks=("only",))]))
    assert picture.figure.axes[0].get_title(loc="left") == "fc1"
    assert picture.description == "nothing is known about reuse before the second task."


def test_reuse_that_is_not_known_is_left_open(tmp_path):
    usages = [{"task": "low", "group": "fc1", "new": 2, "reused": None, "free": 98}]
    capacity = {"sizes": {"fc1": 100}, "usages": usages}
    run = write_run(tmp_path / "run", tasks=("low",), capacity=capacity)
    picture = draw_reuse(read_collection([run]))
    assert as_text(picture.table.rows)[0] == ("low", "fc1", "2", None, None)


def test_baselines_have_no_neurons(tmp_path):
    assert draw_reuse(read_collection([write_run(tmp_path / "run", method="ewc")])) is None
