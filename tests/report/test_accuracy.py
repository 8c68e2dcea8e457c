import math

import pytest

from clnp.report.accuracy import draw_average, draw_scores
from clnp.report.collection import read_collection
from support.written_runs import as_text, write_comparison, write_run

pytestmark = pytest.mark.usefixtures("style")


@pytest.fixture
def run(tmp_path):
    return read_collection([write_run(tmp_path / "run")])


@pytest.fixture
def comparison(tmp_path):
    return read_collection([write_comparison(tmp_path / "compared")])


def test_scores_of_a_run(run):
    picture = draw_scores(run)
    assert picture.table.header == ("task", "when learnt", "now")
    assert as_text(picture.table.rows)[1] == ("high", "92.00", "92.00")
    drawn = [list(line.get_ydata()) for line in picture.figure.axes[0].lines]
    assert drawn.count([91.0, 92.0, 93.0]) == 2
    assert picture.description == "run: 3 tasks, now from 91.00 to 93.00, no score has changed."
    assert "Bars" not in picture.caption


def test_scores_of_several_methods(comparison):
    picture = draw_scores(comparison)
    assert picture.table.header[:3] == ("task", "clnp: when learnt", "clnp: now")
    assert as_text(picture.table.rows)[0][-2:] == ("91.50 ± 0.71", "89.50 ± 0.71")
    assert "ewc: 3 tasks, now from 89.50 to 93.50, the largest loss is 2.00" in picture.description
    assert "Bars are standard deviations over 2 seeds." in picture.caption


def test_tasks_that_are_learnt_at_the_same_time_have_no_score_of_before(tmp_path):
    scores = [[None], [None, None], [91.0, 92.0, 93.0]]
    joint = write_run(tmp_path / "joint", method="joint", scores=scores)
    picture = draw_scores(read_collection([joint]))
    assert as_text(picture.table.rows)[0] == ("low", None, "91.00")
    rings, dots, _ = (list(line.get_ydata()) for line in picture.figure.axes[0].lines)
    assert all(map(math.isnan, rings))
    assert dots == [91.0, 92.0, 93.0]
    assert picture.caption == (
        "Test score of every task after the last task (dot). The tasks were learnt at the same "
        "time: they have no score of before."
    )
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == ["now"]
    assert "now from 91.00 to 93.00, all learnt at the same time" in picture.description
    both = read_collection([joint, write_run(tmp_path / "ewc", method="ewc")])
    assert "The tasks of joint were learnt at the same time" in draw_scores(both).caption


def test_very_many_scores_are_lines(tmp_path):
    names = tuple(f"task {number}" for number in range(30))
    runs = [write_run(tmp_path / f"m{n}", tasks=names, margin=float(n)) for n in range(3)]
    picture = draw_scores(read_collection(runs))
    assert "dashed" in picture.caption
    assert "ring" not in picture.caption


def test_the_average_over_tasks(run, comparison):
    assert as_text(draw_average(run).table.rows) == ((1, "91.00"), (2, "91.50"), (3, "92.00"))
    picture = draw_average(comparison)
    assert picture.table.header == ("tasks learnt", "clnp", "single", "ewc")
    assert "clnp 92.50 ± 0.71" in picture.description


def test_one_task_has_no_average_over_time(tmp_path):
    one = read_collection([write_run(tmp_path / "run", tasks=("only",))])
    assert draw_average(one) is None
    assert draw_scores(one) is not None


@pytest.mark.parametrize("scores", [[], [["nan"], ["nan", "inf"], ["nan", None, "-inf"]]])
def test_nothing_is_drawn_of_nothing(tmp_path, scores):
    found = read_collection([write_run(tmp_path / "run", scores=scores)])
    assert draw_average(found) is None
    assert draw_scores(found) is None
    none = read_collection([write_run(tmp_path / "none", num_learnt=0)])
    assert (draw_scores(none), draw_average(none)) == (None, None)
