import math

import pytest

from clnp.report.collection import read_collection
from clnp.report.curves import MOST_POINTS, draw_loss, draw_validation
from support.written_runs import write, write_comparison, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


def test_every_candidate_and_the_fine_tuning_after_it(tmp_path):
    picture = draw_validation(read_collection([write_run(tmp_path / "run")]))
    axes = picture.figure.axes[0]
    curves = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert curves == [
        ([1, 2, 3], [81, 82, 83]),
        ([1, 2, 3], [80, 81, 82]),
        ([4], [90]),
    ]
    weak, strong, _ = axes.lines
    assert weak.get_linewidth() < strong.get_linewidth()
    assert weak.get_color() != strong.get_color()
    assert "shaded epochs are fine-tuning" in picture.caption


def test_the_table_sums_up_and_the_file_has_every_epoch(tmp_path):
    picture = draw_loss(read_collection([write_run(tmp_path / "run")]))
    row = ("low", "alpha 0.0001, lr 0.01", 3, "0.1353", "82.00", "82.00")
    assert picture.table.rows[0] == row
    assert len(picture.table.rows) == 6
    assert picture.data.rows[0] == ("run", 0, "low", "alpha 0.0001, lr 0.01", 1, 1.0, 80.0)
    assert len(picture.data.rows) == 3 * (2 * 3 + 1)


def test_a_loss_of_many_sizes_is_shown_by_order(tmp_path):
    long = read_collection([write_run(tmp_path / "long", num_epochs=8)])
    assert draw_loss(long).figure.axes[0].get_yscale() == "log"
    short = read_collection([write_run(tmp_path / "short", num_epochs=2, method="ewc")])
    assert draw_loss(short).figure.axes[0].get_yscale() == "linear"


def test_of_very_many_epochs_some_are_drawn(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), num_epochs=700, method="ewc")
    line = draw_validation(read_collection([run])).figure.axes[0].lines[0]
    assert len(line.get_xdata()) <= MOST_POINTS + 1
    assert line.get_xdata()[-1] == 700


def test_several_methods_are_overlaid(tmp_path):
    picture = draw_loss(read_collection([write_comparison(tmp_path / "compared")]))
    labels = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert labels == ["clnp", "single", "ewc", "fine-tuning"]
    scores = draw_validation(read_collection([tmp_path / "compared"]))
    assert scores.caption.startswith("Mean over seeds of the chosen candidate")
    alone = [write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(2)]
    assert draw_loss(read_collection(alone)).caption.startswith("The chosen candidate of each")


def test_all_methods_are_named_and_candidates_while_they_are_few(tmp_path):
    methods = ("clnp", *(f"method {number}" for number in range(9)))
    compared = read_collection([write_comparison(tmp_path / "compared", methods=methods)])
    for draw in (draw_loss, draw_validation):
        labels = [text.get_text() for text in draw(compared).figure.legends[0].get_texts()]
        assert labels == [*methods, "fine-tuning"]
    grid = read_collection([write_run(tmp_path / "run", num_candidates=9, method="ewc")])
    assert draw_loss(grid).figure.legends == []
    grid = read_collection([write_run(tmp_path / "less", num_candidates=8, method="ewc")])
    assert len(draw_loss(grid).figure.legends[0].get_texts()) == 8


def test_methods_that_do_the_same_can_be_told_apart(tmp_path):
    compared = read_collection([write_comparison(tmp_path / "compared")])
    figure = draw_loss(compared).figure
    styles = {line.get_color(): line._dash_pattern for line in figure.axes[0].lines}
    assert len(styles) == len(set(map(str, styles.values()))) == len(compared.members)
    legend = figure.legends[0]
    patterns = [line._dash_pattern[1] or [0] for line in legend.get_lines()]
    # All of a pattern is in its sample.
    assert legend.handlelength * legend._fontsize >= max(map(sum, patterns)) > 0


def test_seeds_are_averaged(tmp_path):
    series = write_series(tmp_path / "series")
    picture = draw_validation(read_collection([series]))
    assert list(picture.figure.axes[0].lines[0].get_ydata()) == [80, 81, 82]


def test_the_band_of_a_loss_of_many_sizes_has_no_holes(tmp_path):
    series = write_series(tmp_path / "series", num_epochs=8, tasks=("only",))
    text = (series / "seed1/events.jsonl").read_text()
    # exp(-7) in one seed and 100 times as much in the other: the mean is less than its deviation.
    few = text.replace(str(math.exp(-7)), str(100 * math.exp(-7)))
    write(series / "seed1", "events.jsonl", few)
    picture = draw_loss(read_collection([series]))
    (axes,) = picture.figure.axes
    assert axes.get_yscale() == "log"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(10 * math.exp(-7))
    corners = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert min(corners) > 0
    assert "geometric mean over seeds" in picture.caption


def test_a_task_in_training_is_shown(tmp_path):
    picture = draw_loss(read_collection([write_run(tmp_path / "run", num_learnt=0)]))
    assert len(picture.figure.axes) == 1


def test_losses_that_are_not_finite_leave_gaps(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), num_learnt=0)
    line = '{"event": "epoch", "task": "only", "candidate": 0, "loss": "inf", "score": "nan"}\n'
    write(run, "events.jsonl", line)
    assert draw_loss(read_collection([run])) is None
    good = line.replace('"inf"', "1.5")
    write(run, "events.jsonl", line + good)
    assert draw_loss(read_collection([run])) is not None


def test_nothing_is_drawn_without_events(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "events.jsonl").unlink()
    assert draw_loss(read_collection([run])) is None
