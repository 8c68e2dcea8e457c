from dataclasses import replace

import pytest

from clnp.records import CandidatePruned
from clnp.report.collection import read_collection
from clnp.report.pruning import draw_pruning
from clnp.report.render import settle
from clnp.runs.directory import read_events
from support.written_runs import as_text, write_events, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")
FOUR = tuple(f"t{n}" for n in range(4))


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def change_plans(run, changed):
    """Replace the pruning plan of each task; `changed` has its number and the plan."""
    events, number = list(read_events(run)), 0
    for index, event in enumerate(events):
        if isinstance(event, CandidatePruned):
            events[index] = replace(event, plan=changed(number, event.plan))
            number += 1
    write_events(run, events)


def with_point(plan, index, **values):
    curve = list(plan.curve)
    curve[index] = replace(curve[index], **values)
    return replace(plan, curve=tuple(curve))


def test_a_curve_for_each_task_with_the_margin_and_the_chosen_threshold(run):
    picture = draw_pruning(read_collection([run]))
    assert len(picture.figure.axes) == 3
    curve, chosen = picture.figure.axes[0].lines
    # A negative threshold keeps all neurons. Scores are compared with the best candidate.
    points = [(0, -0.5), (0.25, -0.75), (0.5, -5), (0.9, -40)]
    assert list(zip(*curve.get_data(), strict=True)) == points
    assert [list(data) for data in chosen.get_data()] == [[0.25], [-0.75]]
    band = picture.figure.axes[0].patches[0].get_bbox()
    assert (band.y0, band.y1) == (-1.0, 0.0)
    assert picture.figure.get_supxlabel() == "threshold of mean activity"
    assert picture.description == "3 curves; 4 to 12 neurons are kept."
    low, high = picture.figure.axes[0].get_ylim()
    assert -7 < low < -6
    assert 0 < high < 2


def test_the_table_has_all_thresholds(run):
    rows = as_text(draw_pruning(read_collection([run])).table.rows)
    assert rows[0] == ("low", "keep all", 44, "91.00", "")
    assert rows[1] == ("low", "0.25", 4, "90.75", "chosen")
    assert len(rows) == 12


def test_with_a_threshold_for_each_layer_neurons_kept_are_shown(run):
    own = {"fc1": 0.25, "fc2": 0.35}
    change_plans(run, lambda number, plan: with_point(plan, 2, thresholds=own))
    picture = draw_pruning(read_collection([run]))
    assert picture.figure.get_supxlabel() == "neurons kept in all layers"
    curve, chosen = picture.figure.axes[0].lines
    assert list(curve.get_xdata()) == [0, 2, 4, 44]
    assert list(chosen.get_xdata()) == [4]
    assert picture.table.rows[1][1] == "one for each layer"


@pytest.mark.parametrize("smallest", [0.01, 0.0])
def test_thresholds_of_different_magnitudes_have_a_logarithmic_scale(tmp_path, smallest):
    def spread_out(number, plan):
        plan = with_point(plan, 2, thresholds={"fc1": 1.0, "fc2": 1.0})
        plan = with_point(plan, 3, thresholds=dict.fromkeys(plan.keep, smallest))
        return replace(plan, thresholds=dict.fromkeys(plan.keep, 90.0 if number == 3 else 0.02))

    run = write_run(tmp_path / "run", tasks=FOUR)
    change_plans(run, spread_out)
    figure = draw_pruning(read_collection([run])).figure
    settle(figure)  # Warns if a panel has no room left.
    axes = figure.axes[0]
    assert axes.get_xscale() == "symlog"
    [(low, _), (high, _)] = axes.transData.transform([(smallest, 0), (90, 0)])
    box = axes.get_window_extent()
    assert box.x0 - 1e-6 <= low < high <= box.x1


def test_seeds_are_overlaid(tmp_path):
    picture = draw_pruning(read_collection([write_series(tmp_path / "series")]))
    assert len(picture.figure.axes[0].lines) == 4
    assert len(picture.figure.axes[0].patches) == 1
    assert "There is a curve and a star for each of 2 seeds." in picture.caption
    assert picture.table.rows[0][0] == "clnp, seed 0"


def test_nothing_is_drawn_without_pruning(tmp_path):
    assert draw_pruning(read_collection([write_run(tmp_path / "a", method="ewc")])) is None
    run = write_run(tmp_path / "b", num_learned=0)
    assert draw_pruning(read_collection([run])) is None
