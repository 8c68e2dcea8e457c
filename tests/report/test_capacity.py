import pytest

from clnp.report.capacity import draw_capacity, draw_reuse
from clnp.report.collection import read_collection
from support.written_runs import as_text, change_tasks, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


@pytest.fixture
def run(tmp_path):
    return read_collection([write_run(tmp_path / "run")])


@pytest.fixture
def eight(tmp_path):
    return read_collection([write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(8)])


def test_a_bar_has_a_segment_for_each_task_and_the_free_rest(run):
    picture = draw_capacity(run)
    filled = [patch for patch in picture.figure.axes[0].patches if patch.get_facecolor()[3]]
    widths = [round(patch.get_width(), 6) for patch in filled]
    assert widths == [2, 4, 6, 88, 4, 8, 12, 76]
    assert picture.table.header == ("layer", "neurons", "low", "high", "wide", "free", "free, %")
    assert as_text(picture.table.rows)[1] == ("fc2", 50, "2", "4", "6", "38", "76.0")
    assert picture.description == "after 3 tasks, fc1 88 % free, fc2 76 % free."


def test_segments_are_numbered_if_they_are_wide_enough(run, tmp_path):
    texts = [text.get_text() for text in draw_capacity(run).figure.axes[0].texts]
    assert texts == ["1", "2", "3", "88 % free", "1", "2", "3", "76 % free"]
    narrow = draw_capacity(read_collection([write_run(tmp_path / "narrow", sizes={"fc": 1000})]))
    assert [text.get_text() for text in narrow.figure.axes[0].texts] == ["99 % free"]


def test_capacity_is_averaged_over_seeds(tmp_path):
    picture = draw_capacity(read_collection([write_series(tmp_path / "series")]))
    assert "Means over 2 seeds." in picture.caption
    cells = ("2.0 ± 0.0", "4.0 ± 0.0", "6.0 ± 0.0", "88.0 ± 0.0", "88.0 ± 0.0")
    assert as_text(picture.table.rows)[0] == ("fc1", 100, *cells)


def test_several_runs_are_below_one_another(eight):
    picture = draw_capacity(eight)
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == [f"m{n}" for n in range(6)]
    assert "2 more are in the table." in picture.caption
    assert len(picture.table.rows) == 16


def test_many_tasks_have_a_scale_instead_of_a_legend(tmp_path):
    tasks = tuple(f"t{number}" for number in range(30))
    large = write_run(tmp_path / "run", tasks=tasks, sizes={"fc": 5000})
    picture = draw_capacity(read_collection([large]))
    assert picture.figure.legends == []
    assert picture.figure.axes[1].get_xlabel() == "claimed by task"


def test_baselines_have_no_neurons(tmp_path):
    baseline = read_collection([write_run(tmp_path / "run", method="ewc")])
    assert draw_capacity(baseline) is None
    assert draw_reuse(baseline) is None


def test_new_neurons_are_above_those_of_earlier_tasks(run):
    picture = draw_reuse(run)
    reused, unused, new = (picture.figure.axes[0].patches[i : i + 3] for i in (0, 3, 6))
    assert [bar.get_height() for bar in reused] == [0, 1, 3]
    assert [bar.get_height() for bar in unused] == pytest.approx([0, 1, 3])
    assert [bar.get_height() for bar in new] == pytest.approx([2, 4, 6])
    assert [bar.get_y() for bar in new] == [0, 2, 6]
    # Task 2 reuses 1 of 5 active neurons, task 3 reuses 3 of 9.
    assert as_text(picture.table.rows)[2] == ("high", "fc1", "4", "1", "20.0", "6.0")
    words = "after the first task, reused among active neurons: fc1 27 %, fc2 27 %."
    assert picture.description == words


def test_reuse_of_seeds_is_averaged(tmp_path):
    series = write_series(tmp_path / "series")
    write_run(series / "seed1", seed=1, num_learned=1)
    picture = draw_reuse(read_collection([series]))
    claimed = [bar.get_y() + bar.get_height() for bar in picture.figure.axes[0].patches[6:9]]
    assert claimed == pytest.approx([2, 4, 7])  # One run has claimed nothing for tasks 2 and 3.
    assert "Means over 2 seeds." in picture.caption


def test_lines_compare_runs_layer_by_layer(tmp_path):
    one = write_series(tmp_path / "one")
    write_run(one / "seed1", seed=1, sizes={"fc1": 50, "fc2": 50})
    other = write_run(tmp_path / "other", sizes={"fc1": 50}, margin=2.0)
    picture = draw_reuse(read_collection([one, other]))
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["fc1", "fc2"]
    claimed, reused, *others = picture.figure.axes[0].lines
    assert list(claimed.get_ydata()) == [3, 9, 18]
    assert list(reused.get_ydata()) == [0, 1.5, 4.5]
    assert [list(line.get_ydata()) for line in others] == [[4, 12, 24], [0, 2, 6]]
    assert len(picture.figure.axes[0].collections) == 2  # Bands.
    assert len(picture.figure.axes[1].lines) == 2  # The other network has no such layer.
    labels = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert labels == ["claimed", "reused", "one", "other"]
    assert picture.table.header[0] == "run"


def test_of_many_layers_the_first_and_the_last_have_panels(tmp_path):
    sizes = {f"layer{number}": 100 for number in range(50)}
    picture = draw_reuse(read_collection([write_run(tmp_path / "run", sizes=sizes)]))
    assert len(picture.figure.axes) == 40
    assert "Only the first 20 and the last 20 layers are shown." in picture.caption
    assert len(picture.table.rows) == 150


def test_one_task_has_nothing_to_reuse(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), sizes={"fc1": 100})
    change_tasks(run, new={"fc1": 0}, reused={"fc1": None})
    picture = draw_reuse(read_collection([run]))
    assert picture.description == "the first task has nothing to reuse."
    assert as_text(picture.table.rows)[0] == ("only", "fc1", "0", None, None, "0.0")
    assert picture.figure.axes[0].get_ylim() == (0, 100)
