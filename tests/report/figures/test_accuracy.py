import math

import pytest

from clnp.report.collection import read_collection
from clnp.report.figures.accuracy import draw_accuracy
from support.written_runs import as_text, write_comparison, write_run

pytestmark = pytest.mark.usefixtures("style")
TOGETHER = [[None], [None, None], [91.0, 92.0, 93.0]]


def lines(axes):
    """Return the heights of the marks: rings, then dots, for each member."""
    return [list(line.get_ydata()) for line in axes.lines]


def test_scores_of_a_run(tmp_path):
    picture = draw_accuracy(read_collection([write_run(tmp_path / "run")]))
    assert picture.table.header == ("task", "when learned", "now", "average so far")
    assert as_text(picture.table.rows)[1] == ("high", "92.00", "92.00", "91.50")
    scores, average = picture.figure.axes
    assert lines(scores) == [[91.0, 92.0, 93.0], [91.0, 92.0, 93.0]]
    assert lines(average) == [[91.0, 91.5, 92.0]]
    assert picture.description == (
        "3 tasks, now from 91.00 to 93.00, average 92.00; no score has changed."
    )
    assert "standard deviations" not in picture.caption
    assert "same time" not in picture.caption


def test_scores_of_several_methods(tmp_path):
    picture = draw_accuracy(read_collection([write_comparison(tmp_path / "compared")]))
    assert picture.table.header[1:4] == ("clnp: when learned", "clnp: now", "clnp: average so far")
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
    assert "Tasks without a ring were learned at the same time." in picture.caption
    assert "all learned at the same time" in picture.description


def test_scores_that_are_unknown_are_left_out(tmp_path):
    run = write_run(tmp_path / "run", scores=[[90.0], [90.0, None], [90.0, None, 94.0]])
    picture = draw_accuracy(read_collection([run]))
    assert picture.description.startswith("2 tasks, now from 90.00 to 94.00; ")
    assert picture.table.rows[1][2:] == (None, None)


def test_very_many_scores_have_smaller_marks(tmp_path):
    def size(num):
        names = tuple(f"task {number}" for number in range(num))
        run = write_run(tmp_path / f"{num}", tasks=names, num_candidates=1, num_epochs=1)
        return draw_accuracy(read_collection([run])).figure.axes[0].lines[0].get_markersize()

    assert size(100) < size(3)


@pytest.mark.parametrize(
    ("num_learned", "scores"),
    [(3, []), (3, [["nan"], ["nan", "inf"], ["nan", None, "-inf"]]), (0, [])],
)
def test_nothing_is_drawn_without_scores(tmp_path, num_learned, scores):
    run = write_run(tmp_path / "run", num_learned=num_learned, scores=scores)
    assert draw_accuracy(read_collection([run])) is None
