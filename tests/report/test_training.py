import math

import pytest

from clnp.report.collection import read_collection
from clnp.report.training import MOST_POINTS, draw_grid, draw_training
from support.written_runs import (
    as_text,
    change_tasks,
    epoch,
    write,
    write_comparison,
    write_events,
    write_run,
    write_series,
)

pytestmark = pytest.mark.usefixtures("style")


def panels(picture):
    """Return the panels of the losses, and those of the scores."""
    axes = picture.figure.axes
    return axes[: len(axes) // 2], axes[len(axes) // 2 :]


def test_every_candidate_and_the_fine_tuning_after_it(tmp_path):
    picture = draw_training(read_collection([write_run(tmp_path / "run")]))
    losses, scores = panels(picture)
    assert len(losses) == len(scores) == 3
    assert list(losses[0].lines[0].get_ydata()) == pytest.approx([1, math.exp(-1), math.exp(-2)])
    curves = [(list(line.get_xdata()), list(line.get_ydata())) for line in scores[0].lines]
    assert curves == [([1, 2, 3], [81, 82, 83]), ([1, 2, 3], [80, 81, 82]), ([4], [90])]
    other, chosen, _ = scores[0].lines
    assert other.get_linewidth() < chosen.get_linewidth()
    assert other.get_color() != chosen.get_color()
    assert "shaded epochs are fine-tuning" in picture.caption


def test_the_table_has_candidates_and_the_file_every_epoch(tmp_path):
    picture = draw_training(read_collection([write_run(tmp_path / "run")]))
    row = ("low", "alpha 0.0001, lr 0.01", 3, "0.1353", "82.00", "82.00")
    assert picture.table.rows[0] == row
    assert len(picture.table.rows) == 6
    assert picture.data.rows[0] == ("run", 0, "low", "alpha 0.0001, lr 0.01", 1, 1.0, 80.0)
    assert len(picture.data.rows) == 3 * (2 * 3 + 1)


def test_losses_of_many_magnitudes_have_a_logarithmic_scale(tmp_path):
    long = read_collection([write_run(tmp_path / "long", num_epochs=8)])
    assert panels(draw_training(long))[0][0].get_yscale() == "log"
    short = read_collection([write_run(tmp_path / "short", num_epochs=2, method="ewc")])
    assert panels(draw_training(short))[0][0].get_yscale() == "linear"


def test_of_very_many_epochs_some_are_drawn(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), num_epochs=700, method="ewc")
    (line, *_) = panels(draw_training(read_collection([run])))[1][0].lines
    assert len(line.get_xdata()) <= MOST_POINTS + 1
    assert line.get_xdata()[-1] == 700


def test_methods_are_overlaid_and_can_be_distinguished(tmp_path):
    methods = ("clnp", *(f"method {number}" for number in range(9)))
    compared = read_collection([write_comparison(tmp_path / "compared", methods=methods)])
    picture = draw_training(compared)
    legend = picture.figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [*methods, "fine-tuning"]
    assert picture.caption.startswith("The chosen candidate of each task: means over seeds")
    lines = [line for line in panels(picture)[0][0].lines if len(line.get_xdata()) > 1]
    styles = [(line.get_color(), str(line._dash_pattern)) for line in lines]
    assert len(set(styles)) == len(methods)
    # The sample in the legend is long enough for a whole pattern.
    patterns = [line._dash_pattern[1] or [0] for line in legend.get_lines()]
    assert legend.handlelength * legend._fontsize >= max(map(sum, patterns)) > 0


def test_only_a_few_candidates_are_named(tmp_path):
    grid = read_collection([write_run(tmp_path / "run", num_candidates=9, method="ewc")])
    assert draw_training(grid).figure.legends == []
    grid = read_collection([write_run(tmp_path / "less", num_candidates=8, method="ewc")])
    assert len(draw_training(grid).figure.legends[0].get_texts()) == 8


def test_means_on_a_logarithmic_scale_are_geometric(tmp_path):
    series = write_series(tmp_path / "series", num_epochs=8, tasks=("only",))
    text = (series / "seed1/events.jsonl").read_text()
    # exp(-7) in one seed and 100 times as much in the other: the mean is less than its deviation.
    changed = text.replace(str(math.exp(-7)), str(100 * math.exp(-7)))
    write(series / "seed1", "events.jsonl", changed)
    [axes], [scores] = panels(draw_training(read_collection([series])))
    assert axes.get_yscale() == "log"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(10 * math.exp(-7))
    assert min(axes.collections[0].get_paths()[0].vertices[:, 1]) > 0
    assert list(scores.lines[0].get_ydata()) == [80.0 + number for number in range(8)]


def test_a_task_in_training_is_shown(tmp_path):
    picture = draw_training(read_collection([write_run(tmp_path / "run", num_learned=0)]))
    assert len(picture.figure.axes) == 2


def test_values_that_are_not_finite_leave_gaps(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), num_learned=0)
    bad = epoch("only", 0, math.inf, math.nan, candidate=0)
    write_events(run, [bad])
    assert draw_training(read_collection([run])) is None
    write_events(run, [bad, epoch("only", 1, 1.5, math.nan, candidate=0)])
    (axes,) = draw_training(read_collection([run])).figure.axes  # No score, no panel for it.
    assert list(axes.lines[0].get_ydata())[1] == 1.5


def test_nothing_is_drawn_without_a_log(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "events.jsonl").unlink()
    assert draw_training(read_collection([run])) is None


def cells(picture):
    return [text.get_text() for text in picture.figure.axes[0].texts]


def test_every_candidate_has_its_score_and_neurons(tmp_path):
    picture = draw_grid(read_collection([write_run(tmp_path / "run")]))
    # The second candidate is better but was not pruned: the first is sparser.
    assert cells(picture) == ["91.0\n4", "91.5", "92.0\n8", "92.5", "93.0\n12", "93.5"]
    rows = as_text(picture.table.rows)
    assert rows[0] == ("low", "0.0001", "0.01", "91.00", 4, "chosen")
    assert rows[1] == ("low", "0.001", "0.01", "91.50", None, "")
    values = picture.figure.axes[0].collections[0].get_array()
    assert values.tolist() == [[-0.5, -0.5, -0.5], [0, 0, 0]]
    frames = [patch.get_xy() for patch in picture.figure.axes[0].patches]
    assert [(round(x), round(y)) for x, y in frames] == [(1, 0), (2, 0), (3, 0)]


def test_a_candidate_that_diverged_has_a_cross(tmp_path):
    run = write_run(tmp_path / "run")
    good = {"alpha": 1e-4, "lr": 0.01, "score": 91.0}
    change_tasks(run, 0, candidates=[good, {"alpha": 1e-3, "lr": 0.01, "diverged": "nan"}])
    picture = draw_grid(read_collection([run]))
    assert cells(picture).count("\u00d7") == 1
    assert picture.table.rows[1][-1] == "diverged: nan"


def test_the_grid_of_many_tasks_has_dots(tmp_path):
    run = write_run(tmp_path / "run", tasks=tuple(f"t{n}" for n in range(20)))
    picture = draw_grid(read_collection([run]))
    assert cells(picture) == []
    assert len(picture.figure.axes[0].lines) == 20
    assert "has a dot" in picture.caption


def test_the_grid_is_averaged_over_seeds(tmp_path):
    picture = draw_grid(read_collection([write_series(tmp_path / "series")]))
    assert "Means over 2 seeds." in picture.caption
    assert picture.table.rows[0][0] == "seed 0"


def test_one_candidate_and_several_methods_have_no_grid(tmp_path):
    assert draw_grid(read_collection([write_run(tmp_path / "one", num_candidates=1)])) is None
    assert draw_grid(read_collection([write_comparison(tmp_path / "compared")])) is None
