from dataclasses import replace

import pytest

from clnp.records import CandidatePruned
from clnp.report.collection import read_collection
from clnp.report.figures.pruning import draw_pruning
from clnp.runs.directory import read_events
from support.written_runs import as_text, write_events, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def test_a_curve_for_each_task_with_the_margin_and_the_choice(run):
    picture = draw_pruning(read_collection([run]))
    assert len(picture.figure.axes) == 3
    axes = picture.figure.axes[0]
    curve, chosen = axes.lines
    # Scores are compared with the best candidate.
    points = [(0, -40), (2, -5), (4, -0.75), (44, -0.5)]
    assert list(zip(*curve.get_data(), strict=True)) == points
    assert [list(data) for data in chosen.get_data()] == [[4], [-0.75]]
    band = axes.patches[0].get_bbox()
    assert (band.y0, band.y1) == (-1.0, 0.0)
    assert picture.description == "3 curves; 4 to 12 neurons are kept."
    # All of the choice is inside, and not all of what is far away from it.
    low, high = axes.get_ylim()
    assert -7 < low < -6
    assert 0 < high < 2
    assert 12 < axes.get_xlim()[1] < 44


def test_the_table_has_all_thresholds(run):
    rows = as_text(draw_pruning(read_collection([run])).table.rows)
    name = "alpha 0.0001, lr 0.01"
    assert rows[0] == ("low", name, "keep all", 44, "91.00", "")
    assert rows[1] == ("low", name, "0.25", 4, "90.75", "chosen")
    assert len(rows) == 12


def test_layers_may_have_thresholds_of_their_own(run):
    events = list(read_events(run))
    for index, event in enumerate(events):
        if isinstance(event, CandidatePruned):
            first, *others = event.plan.curve
            own = replace(first, thresholds={"fc1": 0.25, "fc2": 0.35})
            events[index] = replace(event, plan=replace(event.plan, curve=(own, *others)))
    write_events(run, events)
    rows = draw_pruning(read_collection([run])).table.rows
    assert "one for each layer" in [row[2] for row in rows]


def test_other_candidates_of_a_run_are_pale(run):
    events = list(read_events(run))
    first = next(event for event in events if isinstance(event, CandidatePruned))
    write_events(run, [*events, replace(first, candidate=1)])
    picture = draw_pruning(read_collection([run]))
    curve, _, other = picture.figure.axes[0].lines
    assert other.get_alpha() < curve.get_alpha() == 1
    assert "Other candidates that were pruned are pale." in picture.caption
    assert [row[-1] for row in picture.table.rows].count("chosen") == 3


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
