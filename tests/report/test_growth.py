from itertools import pairwise

import pytest
from matplotlib.text import Text

from clnp.report.collection import read_collection
from clnp.report.growth import draw_growth
from support.written_runs import as_text, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


def test_a_line_for_each_layer(tmp_path):
    picture = draw_growth(read_collection([write_run(tmp_path / "run")]))
    lines = [list(line.get_ydata()) for line in picture.figure.axes[0].lines]
    assert lines == [[0, 2, 6, 12], [0, 4, 12, 24]]
    assert [text.get_text() for text in picture.figure.axes[0].texts] == ["fc1  12 %", "fc2  24 %"]
    assert as_text(picture.table.rows)[0] == ("fc1", "0.0", "2.0", "6.0", "12.0")
    assert picture.description == "Claimed after 3 tasks: fc1 12 %, fc2 24 %."


def test_the_names_of_many_layers_do_not_overlap(tmp_path):
    sizes = {f"layer{number}": 100 for number in range(20)}
    picture = draw_growth(read_collection([write_run(tmp_path / "run", sizes=sizes)]))
    picture.figure.draw_without_rendering()
    # Without the lines that lead to them.
    extents = (Text.get_window_extent(text) for text in picture.figure.axes[0].texts)
    boxes = sorted(extents, key=lambda box: box.y0)
    assert len(boxes) == 20
    assert all(a.y1 <= b.y0 + 1 for a, b in pairwise(boxes))
    assert boxes[-1].y1 <= picture.figure.bbox.y1


def test_several_runs_are_overlaid_layer_by_layer(tmp_path):
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", sizes={"fc1": 50})
    picture = draw_growth(read_collection([one, other]))
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["fc1", "fc2"]
    assert [len(axes.lines) for axes in picture.figure.axes] == [2, 1]
    assert as_text(picture.table.rows)[2] == ("other", "fc1", "0.0", "4.0", "12.0", "24.0")
    picture.figure.draw_without_rendering()
    assert picture.figure.axes[0].get_position().width > 0.3


def test_layers_beyond_the_limit_are_in_the_table(tmp_path):
    sizes = {f"layer{number}": 100 for number in range(14)}
    runs = [write_run(tmp_path / f"m{n}", margin=float(n), sizes=sizes) for n in range(2)]
    picture = draw_growth(read_collection(runs))
    assert len(picture.figure.axes) == 12
    assert "2 more layers in the table." in picture.caption
    assert len(picture.table.rows) == 28


def test_seeds_have_bands(tmp_path):
    series = write_series(tmp_path / "series")
    write_run(series / "seed1", seed=1, sizes={"fc1": 50, "fc2": 50})
    picture = draw_growth(read_collection([series]))
    assert "Bands are standard deviations over 2 seeds." in picture.caption
    assert len(picture.figure.axes[0].collections) == 1


def test_baselines_have_no_neurons(tmp_path):
    assert draw_growth(read_collection([write_run(tmp_path / "run", method="ewc")])) is None
