import json

import pytest

from clnp.report.collection import read_collection
from clnp.report.rendering import settle
from clnp.report.thresholds import draw_pruning, draw_thresholds
from support.written_runs import write, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def test_a_curve_for_each_task_with_the_margin_and_what_was_chosen(run):
    picture = draw_pruning(read_collection([run]))
    assert len(picture.figure.axes) == 3
    curve, chosen = picture.figure.axes[0].lines
    # Neurons kept of both layers, and points behind the best candidate.
    assert list(zip(*curve.get_data(), strict=True)) == [(0, -40), (2, -5), (4, -0.75), (44, -0.5)]
    assert [list(data) for data in chosen.get_data()] == [[4], [-0.75]]
    assert "seed" not in picture.caption
    band = picture.figure.axes[0].patches[0].get_bbox()
    assert (band.y0, band.y1) == (-1.0, 0.0)
    assert picture.description == "3 curves; the chosen thresholds keep 4 to 12 neurons."


def test_the_table_says_which_threshold_was_chosen(run):
    table = draw_pruning(read_collection([run])).table
    assert table.rows[0] == ("low", "keep all", 44, "91.00", "")
    assert table.rows[1] == ("low", "0.25", 4, "90.75", "chosen")
    assert len(table.rows) == 12


def test_the_depths_of_a_curve_are_below_the_frame(run):
    low, high = draw_pruning(read_collection([run])).figure.axes[0].get_ylim()
    assert -7 < low < -6
    assert 0 < high < 2


def test_scores_against_thresholds(run):
    picture = draw_thresholds(read_collection([run]))
    curve = picture.figure.axes[0].lines[0]
    # The threshold that keeps all is below zero.
    assert list(curve.get_xdata()) == [0, 0.25, 0.5, 0.9]


def test_layers_with_thresholds_of_their_own_have_no_common_one(run):
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    for event in events:
        if event["event"] == "pruning":
            for point in event["plan"]["curve"]:
                point["thresholds"]["fc2"] += 0.1
    write(run, "events.jsonl", "\n".join(map(json.dumps, events)))
    assert draw_thresholds(read_collection([run])) is None
    assert draw_pruning(read_collection([run])).table.rows[0][1] == "own for each layer"


def test_sizes_that_differ_by_orders_are_shown_by_order(tmp_path):
    run = write_run(tmp_path / "run", tasks=tuple(f"t{n}" for n in range(4)))
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    plan = next(event["plan"] for event in events if event["event"] == "pruning")
    plan["curve"][3]["kept"] = {"fc1": 4000}
    write(run, "events.jsonl", "\n".join(map(json.dumps, events)))
    assert draw_pruning(read_collection([run])).figure.axes[0].get_xscale() == "log"


def keep_nothing(run):
    """Let the first task keep far more neurons than the others, and the second one none."""
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    first, second, *_ = (event["plan"] for event in events if event["event"] == "pruning")
    first["curve"][3]["kept"] = {"fc1": 4000}
    second["keep"] = {"fc1": [], "fc2": []}
    second["curve"][2]["kept"] = {"fc1": 0, "fc2": 0}
    write(run, "events.jsonl", "\n".join(map(json.dumps, events)))
    return run


def test_a_task_that_keeps_nothing_is_shown_beside_large_ones(tmp_path):
    run = keep_nothing(write_run(tmp_path / "run", tasks=tuple(f"t{n}" for n in range(4))))
    figure = draw_pruning(read_collection([run])).figure
    settle(figure)  # Warns where a panel has no room left.
    axes = figure.axes[1]
    chosen = axes.lines[1]
    assert list(chosen.get_xdata()) == [0]
    [(x, _)] = axes.transData.transform(chosen.get_xydata())
    assert x == pytest.approx(axes.get_window_extent().x0)
    [(x, _)] = axes.transData.transform([(4000, 0)])
    assert axes.get_window_extent().x0 + 20 < x < axes.get_window_extent().x1


def test_seeds_are_overlaid(tmp_path):
    picture = draw_pruning(read_collection([write_series(tmp_path / "series")]))
    assert len(picture.figure.axes[0].lines) == 4
    assert len(picture.figure.axes[0].patches) == 1
    assert "There are a curve and a star for each of 2 seeds." in picture.caption
    assert picture.table.rows[0][0] == "clnp, seed 0"


def test_nothing_is_drawn_where_nothing_was_pruned(tmp_path):
    assert draw_pruning(read_collection([write_run(tmp_path / "a", method="ewc")])) is None
    run = write_run(tmp_path / "b", num_learnt=0)
    assert draw_pruning(read_collection([run])) is None
