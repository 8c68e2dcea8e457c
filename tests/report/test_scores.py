import math

import pytest

from clnp.report.collection import read_collection
from clnp.report.scores import draw_accuracy, draw_matrix
from support.written_runs import as_text, write_comparison, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")
TOGETHER = [[None], [None, None], [91.0, 92.0, 93.0]]


@pytest.fixture
def run(tmp_path):
    return read_collection([write_run(tmp_path / "run")])


@pytest.fixture
def comparison(tmp_path):
    return read_collection([write_comparison(tmp_path / "compared")])


def lines(axes):
    return [list(line.get_ydata()) for line in axes.lines]


def test_scores_of_a_run(run):
    picture = draw_accuracy(run)
    assert picture.table.header == ("task", "when learned", "now", "average so far")
    assert as_text(picture.table.rows)[1] == ("high", "92.00", "92.00", "91.50")
    scores, average = picture.figure.axes
    assert lines(scores) == [[91.0, 92.0, 93.0], [91.0, 92.0, 93.0]]
    assert lines(average) == [[91.0, 91.5, 92.0]]
    assert picture.description == (
        "3 tasks, now from 91.00 to 93.00, average 92.00; no score has changed."
    )
    assert "standard deviations" not in picture.caption


def test_scores_of_several_methods(comparison):
    picture = draw_accuracy(comparison)
    assert picture.table.header[1:4] == (
        "clnp: when learned",
        "clnp: now",
        "clnp: average so far",
    )
    assert as_text(picture.table.rows)[0][-3:] == ("91.50 ± 0.71", "89.50 ± 0.71", "91.50 ± 0.71")
    assert "; the largest loss is 2.00" in picture.description
    assert "Bars and bands are standard deviations over 2 seeds." in picture.caption
    labels = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert labels == ["when learned", "now", "clnp", "single", "ewc"]
    colours = [line.get_color() for line in picture.figure.axes[1].lines]
    assert len(set(colours)) == 3


def test_tasks_that_are_learned_at_the_same_time_have_no_earlier_score(tmp_path):
    joint = write_run(tmp_path / "joint", method="joint", scores=TOGETHER)
    picture = draw_accuracy(read_collection([joint]))
    assert as_text(picture.table.rows)[0][:3] == ("low", None, "91.00")
    rings, dots = lines(picture.figure.axes[0])
    assert all(map(math.isnan, rings))
    assert dots == [91.0, 92.0, 93.0]
    assert picture.caption.startswith(
        "Test score of each task after the last task (dot). The tasks were learned at the same "
        "time and have no earlier score."
    )
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == ["now"]
    assert "all learned at the same time" in picture.description
    both = read_collection([joint, write_run(tmp_path / "ewc", method="ewc")])
    assert "The tasks of joint were learned at the same time" in draw_accuracy(both).caption


def test_very_many_scores_are_lines(tmp_path):
    names = tuple(f"task {number}" for number in range(30))
    runs = [write_run(tmp_path / f"m{n}", tasks=names, margin=float(n)) for n in range(3)]
    picture = draw_accuracy(read_collection(runs))
    assert "(dashed)" in picture.caption
    assert "ring" not in picture.caption


def test_one_task_has_no_average_over_tasks(tmp_path):
    one = read_collection([write_run(tmp_path / "run", tasks=("only",))])
    assert len(draw_accuracy(one).figure.axes) == 1


@pytest.mark.parametrize(
    ("num_learned", "scores"),
    [(3, []), (3, [["nan"], ["nan", "inf"], ["nan", None, "-inf"]]), (0, [])],
)
def test_nothing_is_drawn_without_scores(tmp_path, num_learned, scores):
    run = write_run(tmp_path / "run", num_learned=num_learned, scores=scores)
    found = read_collection([run])
    assert draw_accuracy(found) is None
    assert draw_matrix(found) is None


def test_the_matrix(run, comparison):
    picture = draw_matrix(run)
    assert as_text(picture.table.rows)[1] == ("high", "91.00", "92.00", None)
    written = [text.get_text() for text in picture.figure.axes[0].texts]
    assert written == ["91.0", "91.0", "92.0", "91.0", "92.0", "93.0"]
    several = draw_matrix(comparison)
    titles = [axes.get_title(loc="left") for axes in several.figure.axes[:3]]
    assert titles == ["clnp", "single", "ewc"]
    assert as_text(several.table.rows)[-1] == ("ewc", "wide", "89.50", "91.50", "93.50")


def test_the_matrix_has_means_over_seeds(tmp_path):
    picture = draw_matrix(read_collection([write_series(tmp_path / "series", seeds=(0, 2))]))
    assert as_text(picture.table.rows)[0] == ("low", "92.00", None, None)


def test_many_runs_and_many_tasks_are_in_the_table_of_the_matrix(tmp_path):
    runs = [write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(11)]
    picture = draw_matrix(read_collection(runs))
    assert "2 more are in the table." in picture.caption
    assert len(picture.table.rows) == 33
    run = write_run(tmp_path / "run", tasks=tuple(f"t{n}" for n in range(20)))
    assert list(draw_matrix(read_collection([run])).figure.axes[0].texts) == []


def test_a_missing_score_is_an_empty_cell(tmp_path):
    picture = draw_matrix(read_collection([write_run(tmp_path / "run", scores=TOGETHER)]))
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["91.0", "92.0", "93.0"]
    assert as_text(picture.table.rows)[1] == ("high", None, None, None)
