import math

import pytest

from clnp.report.collection import read_collection
from clnp.report.figures.training import draw_training
from support.written_runs import (
    as_text,
    change_tasks,
    epoch,
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


@pytest.fixture
def picture(tmp_path):
    return draw_training(read_collection([write_run(tmp_path / "run")]))


def test_every_candidate_and_the_fine_tuning_after_it(picture):
    losses, scores = panels(picture)
    assert len(losses) == len(scores) == 3
    other, chosen, tuning = losses[0].lines
    for line in (other, chosen):
        assert list(line.get_ydata()) == pytest.approx([1, math.exp(-1), math.exp(-2)])
    curves = [(list(line.get_xdata()), list(line.get_ydata())) for line in scores[0].lines]
    assert curves == [([1, 2, 3], [81, 82, 83]), ([1, 2, 3], [80, 81, 82]), ([4], [90])]
    assert other.get_linewidth() < chosen.get_linewidth() == tuning.get_linewidth()
    assert other.get_color() != chosen.get_color() == tuning.get_color()
    assert losses[0].get_yscale() == "log"
    assert "shaded epochs are fine-tuning" in picture.caption


def test_the_table_has_candidates_and_the_file_every_epoch(picture):
    rows = as_text(picture.table.rows)
    # The second candidate is better but was not pruned: the first is sparser.
    assert rows[:2] == (
        ("low", "alpha 0.0001, lr 0.01", 3, "0.1353", "91.00", 4, "chosen"),
        ("low", "alpha 0.001, lr 0.01", 3, "0.1353", "91.50", None, ""),
    )
    assert len(rows) == 6
    assert picture.data.rows[0] == ("run", 0, "low", "alpha 0.0001, lr 0.01", 1, 1.0, 80.0)
    assert len(picture.data.rows) == 3 * (2 * 3 + 1)


def test_a_candidate_that_diverged_is_in_the_table(tmp_path):
    run = write_run(tmp_path / "run")
    good = {"alpha": 1e-4, "lr": 0.01, "score": 91.0}
    change_tasks(run, 0, candidates=[good, {"alpha": 1e-3, "lr": 0.01, "diverged": "nan"}])
    assert draw_training(read_collection([run])).table.rows[1][-1] == "diverged: nan"


def test_methods_are_overlaid_and_can_be_distinguished(tmp_path):
    methods = ("clnp", *(f"method {number}" for number in range(9)))
    compared = read_collection([write_comparison(tmp_path / "compared", methods=methods)])
    picture = draw_training(compared)
    legend = picture.figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [*methods, "fine-tuning"]
    assert picture.caption.startswith(
        "The chosen candidate of each task. There is a line for each of 2 seeds."
    )
    lines = [line for line in panels(picture)[0][0].lines if len(line.get_xdata()) > 1]
    assert len(lines) == 2 * len(methods)
    styles = [(line.get_color(), line.get_linestyle()) for line in lines]
    assert len(set(styles)) == len(methods)
    assert picture.table.rows[0][0] == "clnp, seed 0"


def test_a_method_without_a_log_has_no_curve(tmp_path):
    runs = [write_run(tmp_path / method, method=method) for method in ("ewc", "si", "hat")]
    (runs[1] / "events.jsonl").unlink()
    legend = draw_training(read_collection(runs)).figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["ewc", "hat"]


def test_only_a_few_candidates_are_named(tmp_path):
    def legends(num):
        run = write_run(tmp_path / str(num), tasks=("a",), num_candidates=num, method="ewc")
        return draw_training(read_collection([run])).figure.legends

    assert legends(9) == []
    assert len(legends(8)[0].get_texts()) == 8


@pytest.mark.parametrize(
    ("losses", "scale"), [([1.0, 0.5], "log"), ([1.0, 0.0], "log"), ([1.0, -0.5], "linear")]
)
def test_losses_have_a_logarithmic_scale_unless_one_is_negative(tmp_path, losses, scale):
    series = write_series(tmp_path / "series", tasks=("only",), method="ewc")
    epochs = [epoch("only", n, loss, 80.0, candidate=0) for n, loss in enumerate(losses)]
    write_events(series / "seed1", epochs)
    losses, _ = panels(draw_training(read_collection([series])))
    assert losses[0].get_yscale() == scale


def test_a_task_in_training_is_shown(tmp_path):
    picture = draw_training(read_collection([write_run(tmp_path / "run", num_learned=0)]))
    assert len(picture.figure.axes) == 2


def test_values_that_are_not_finite_leave_gaps(tmp_path):
    run = write_run(tmp_path / "run", tasks=("only",), num_learned=0)
    bad = epoch("only", 0, math.inf, math.nan, candidate=0)
    write_events(run, [bad, epoch("only", 1, 1.5, math.nan, candidate=0)])
    [losses], [scores] = panels(draw_training(read_collection([run])))
    assert losses.lines[0].get_ydata().tolist() == [pytest.approx(math.nan, nan_ok=True), 1.5]
    assert all(map(math.isnan, scores.lines[0].get_ydata()))


def test_nothing_is_drawn_without_a_log(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "events.jsonl").unlink()
    assert draw_training(read_collection([run])) is None
