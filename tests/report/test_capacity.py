import pytest

from clnp.report.capacity import draw_usage
from clnp.report.collection import read_collection
from support.written_runs import as_text, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


def test_a_bar_has_a_segment_for_each_task_and_the_free_rest(tmp_path):
    picture = draw_usage(read_collection([write_run(tmp_path / "run")]))
    filled = [patch for patch in picture.figure.axes[0].patches if patch.get_facecolor()[3]]
    widths = [round(patch.get_width(), 6) for patch in filled]
    assert widths == [2, 4, 6, 88, 4, 8, 12, 76]
    assert picture.table.header == ("layer", "neurons", "low", "high", "wide", "free", "free, %")
    assert as_text(picture.table.rows)[1] == ("fc2", 50, "2", "4", "6", "38", "76.0")
    assert picture.description == "after 3 tasks, fc1 88 % free, fc2 76 % free."


def test_segments_are_numbered_where_they_are_wide_enough(tmp_path):
    picture = draw_usage(read_collection([write_run(tmp_path / "run")]))
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    assert texts == ["1", "2", "3", "88 % free", "1", "2", "3", "76 % free"]
    narrow = draw_usage(read_collection([write_run(tmp_path / "narrow", sizes={"fc": 1000})]))
    assert [text.get_text() for text in narrow.figure.axes[0].texts] == ["99 % free"]


def test_seeds_are_averaged(tmp_path):
    picture = draw_usage(read_collection([write_series(tmp_path / "series")]))
    assert "Means over 2 seeds." in picture.caption
    assert as_text(picture.table.rows)[0] == (
        "fc1",
        100,
        "2.0 ± 0.0",
        "4.0 ± 0.0",
        "6.0 ± 0.0",
        "88.0 ± 0.0",
        "88.0 ± 0.0",
    )


def test_several_runs_stand_below_one_another(tmp_path):
    runs = [write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(8)]
    picture = draw_usage(read_collection(runs))
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == [f"m{n}" for n in range(6)]
    assert "2 more are in the table." in picture.caption
    assert len(picture.table.rows) == 16


def test_many_tasks_have_a_scale_in_the_place_of_a_legend(tmp_path):
    tasks = tuple(f"t{number}" for number in range(30))
    large = write_run(tmp_path / "run", tasks=tasks, sizes={"fc": 5000})
    picture = draw_usage(read_collection([large]))
    assert picture.figure.legends == []
    assert picture.figure.axes[1].get_xlabel() == "task that claimed them"


def test_baselines_have_no_neurons(tmp_path):
    assert draw_usage(read_collection([write_run(tmp_path / "run", method="ewc")])) is None
