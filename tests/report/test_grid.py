import json

import pytest

from clnp.report.collection import read_collection
from clnp.report.grid import draw_grid
from support.written_runs import write, write_comparison, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


def texts(picture):
    return [text.get_text() for text in picture.figure.axes[0].texts]


def test_every_candidate_has_its_score_and_what_it_keeps(tmp_path):
    picture = draw_grid(read_collection([write_run(tmp_path / "run")]))
    # The second candidate is better, but was not pruned: the first is sparser.
    assert texts(picture) == ["91.0\n4", "92.0\n8", "93.0\n12", "91.5", "92.5", "93.5"]
    assert picture.table.rows[0] == ("low", "0.0001", "0.01", "91.00", 4, "chosen")
    assert picture.table.rows[1] == ("low", "0.001", "0.01", "91.50", None, "")
    values = picture.figure.axes[0].collections[0].get_array()
    assert values.tolist() == [[-0.5, -0.5, -0.5], [0, 0, 0]]


def test_the_chosen_one_has_a_frame(tmp_path):
    picture = draw_grid(read_collection([write_run(tmp_path / "run")]))
    frames = [patch.get_xy() for patch in picture.figure.axes[0].patches]
    assert [(round(x), round(y)) for x, y in frames] == [(1, 0), (2, 0), (3, 0)]


def test_one_that_diverged_has_a_cross(tmp_path):
    run = write_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result["tasks"][0]["candidates"][1] |= {"score": None, "diverged": "the loss is nan"}
    write(run, "result.json", result)
    picture = draw_grid(read_collection([run]))
    assert texts(picture).count("\u00d7") == 1
    assert picture.table.rows[1][-1] == "diverged: the loss is nan"


def test_many_tasks_have_dots(tmp_path):
    run = write_run(tmp_path / "run", tasks=tuple(f"t{n}" for n in range(20)))
    picture = draw_grid(read_collection([run]))
    assert texts(picture) == []
    assert len(picture.figure.axes[0].lines) == 20
    assert "has a dot" in picture.caption


def test_seeds_are_averaged(tmp_path):
    picture = draw_grid(read_collection([write_series(tmp_path / "series")]))
    assert "Means over 2 seeds." in picture.caption
    assert picture.table.rows[0][0] == "seed 0"


def test_there_is_no_grid_of_one_candidate_or_of_several_methods(tmp_path):
    assert draw_grid(read_collection([write_run(tmp_path / "one", num_candidates=1)])) is None
    assert draw_grid(read_collection([write_comparison(tmp_path / "compared")])) is None
