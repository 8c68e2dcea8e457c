import math

import pytest
from matplotlib.patches import Patch

from clnp.report.accuracy import draw_average, draw_scores
from clnp.report.capacity import draw_usage
from clnp.report.collection import read_collection
from clnp.report.curves import draw_loss
from clnp.report.growth import draw_growth
from clnp.report.picture import (
    add_legend,
    counted,
    finite,
    fit_scores,
    in_words,
    member_colours,
    name_tasks,
    new_figure,
    number_tasks,
    seeds_of,
)
from clnp.report.reuse import draw_reuse
from clnp.report.style import WIDTH
from support.written_runs import write_comparison, write_run, write_series

pytestmark = pytest.mark.usefixtures("style")


def axes():
    return new_figure(2.0).subplots()


def ticks(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def test_tasks_are_named_without_the_words_that_they_share():
    drawn = axes()
    name_tasks(drawn, ["digits permuted 1", "digits permuted 2"])
    assert ticks(drawn) == ["1", "2"]
    assert drawn.get_xlabel() == "task, in the order learnt: digits permuted …"


def test_long_names_are_turned_and_shortened():
    drawn = axes()
    name_tasks(drawn, [f"{number} of many things that have long names" for number in range(12)])
    assert {label.get_rotation() for label in drawn.get_xticklabels()} == {35}
    assert max(map(len, ticks(drawn))) <= 18
    few = axes()
    name_tasks(few, ["cats", "dogs"])
    assert {label.get_rotation() for label in few.get_xticklabels()} == {0}


@pytest.mark.parametrize(("num", "expected"), [(3, [1, 2, 3]), (50, [1, 5, 10]), (400, [1, 50])])
def test_many_tasks_are_numbered(num, expected):
    drawn = axes()
    number_tasks(drawn, num)
    places = list(drawn.get_xticks())
    assert places[: len(expected)] == expected
    assert len(places) <= 15
    named = axes()
    name_tasks(named, [f"task {number}" for number in range(num)])
    assert len(named.get_xticks()) == len(places)


def test_scores_fill_the_axis_and_stay_below_100_percent():
    drawn = axes()
    fit_scores(drawn, [95.0, 99.0, math.nan], [94.0, 103.0], percent=True)
    low, high = drawn.get_ylim()
    assert 93 < low < 94
    assert 100 <= high < 100.5
    fit_scores(drawn, [-0.3, 120.0], percent=True)
    assert drawn.get_ylim()[1] > 120
    before = drawn.get_ylim()
    fit_scores(drawn, [math.nan], percent=True)
    assert drawn.get_ylim() == before


@pytest.mark.parametrize("num", [1, 3, 14, 40])
def test_a_legend_fits_the_width_of_the_figure(num):
    figure = new_figure(4.0)
    figure.subplots()
    add_legend(figure, [Patch(label=f"method number {n}") for n in range(num)], solid=True)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= WIDTH * figure.dpi


def test_a_method_has_the_same_colour_in_every_figure(tmp_path):
    compared = write_comparison(tmp_path / "compared", methods=("ewc", "clnp", "single"))
    write_run(compared / "ewc/seed0", method="ewc", num_learnt=0)
    write_run(compared / "ewc/seed1", method="ewc", seed=1, num_learnt=0)
    write_run(tmp_path / "other", margin=4.0)
    collection = read_collection([compared, tmp_path / "other"])
    colours = member_colours(collection)
    assert len(set(colours.values())) == 4
    drawn = [draw(collection) for draw in (draw_average, draw_loss, draw_reuse)]
    for picture in drawn:
        for handle in picture.figure.legends[0].legend_handles:
            if handle.get_label() in colours:
                assert handle.get_color() == colours[handle.get_label()], picture.name


def test_what_cannot_be_drawn_is_nan():
    assert finite([1, None, 2.5])[::2] == [1.0, 2.5]
    assert all(map(math.isnan, finite([None, math.inf, -math.inf, math.nan])))


def test_captions_say_how_many_seeds_members_have(tmp_path):
    few = write_series(tmp_path / "few", margin=2.0)
    many = write_series(tmp_path / "many", seeds=(0, 1, 2))
    one = write_run(tmp_path / "one", margin=3.0)
    for paths, words in (
        ([few, many], " over 2 to 3 seeds."),
        ([one, many], " over 1 to 3 seeds."),
        ([few], " over 2 seeds."),
    ):
        collection = read_collection(paths)
        for draw in (draw_scores, draw_average, draw_usage, draw_growth, draw_reuse):
            assert words in draw(collection).caption, draw
    assert seeds_of(read_collection([one]).members) == ""
    # What is not in the figure does not count.
    begun = write_run(tmp_path / "begun", num_learnt=0)
    assert " over 3 seeds." in draw_average(read_collection([begun, many])).caption


def test_words():
    assert (counted(1, "task"), counted(0, "task")) == ("1 task", "0 tasks")
    assert in_words(["a", "b", "c"], 2) == "a, b and 1 more"
