import pytest

from clnp.report.collection import read_collection
from clnp.report.matrix import draw_matrix
from support.written_runs import as_text, write_comparison, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


@pytest.fixture
def run(tmp_path):
    return read_collection([write_run(tmp_path / "run")])


@pytest.fixture
def comparison(tmp_path):
    return read_collection([write_comparison(tmp_path / "compared")])


def test_the_matrix(run, comparison):
    picture = draw_matrix(run)
    assert as_text(picture.table.rows)[1] == ("high", "91.00", "92.00", None)
    written = [text.get_text() for text in picture.figure.axes[0].texts]
    assert written == ["91.0", "91.0", "92.0", "91.0", "92.0", "93.0"]
    several = draw_matrix(comparison)
    assert [axes.get_title(loc="left") for axes in several.figure.axes[:3]] == [
        "clnp",
        "single",
        "ewc",
    ]
    assert as_text(several.table.rows)[-1] == ("ewc", "wide", "89.50", "91.50", "93.50")


def test_the_mean_of_seeds_is_in_the_matrix(tmp_path):
    picture = draw_matrix(read_collection([write_series(tmp_path / "series", seeds=(0, 2))]))
    assert as_text(picture.table.rows)[0] == ("low", "92.00", None, None)


def test_the_matrices_of_very_many_runs_are_in_the_table(tmp_path):
    runs = [write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(11)]
    picture = draw_matrix(read_collection(runs))
    assert "2 more are in the table." in picture.caption
    assert len(picture.table.rows) == 33


def test_a_score_that_is_not_there_is_left_open(tmp_path):
    scores = [[None], [None, None], [1.0, 2.0, 3.0]]
    picture = draw_matrix(read_collection([write_run(tmp_path / "run", scores=scores)]))
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["1.0", "2.0", "3.0"]
    assert as_text(picture.table.rows)[1] == ("high", None, None, None)


def test_many_tasks_have_no_numbers(tmp_path):
    run = write_run(tmp_path / "run", tasks=tuple(f"t{n}" for n in range(20)))
    assert list(draw_matrix(read_collection([run])).figure.axes[0].texts) == []


def test_nothing_is_drawn_of_nothing(tmp_path):
    for num_learnt, scores in ((3, []), (3, [["nan"], ["nan", "inf"], [None]]), (0, [])):
        run = write_run(tmp_path / "run", num_learnt=num_learnt, scores=scores)
        assert draw_matrix(read_collection([run])) is None
