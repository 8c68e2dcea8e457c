import threading

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from clnp.palette import CLNP, DARK, EARLIER, INK, NEW, OTHERS, PAPER, REUSED
from clnp.report.collection import read_collection
from clnp.report.draw import (
    PHONE,
    THEMED,
    WIDTH,
    add_legend,
    add_panels,
    categories,
    drawing,
    fit_scores,
    for_a_phone,
    left_out,
    member_colours,
    name_tasks,
    new_figure,
    panels_height,
    seeds_of,
    task_titles,
)
from support.written_runs import write_run, write_series


@pytest.fixture
def axes(style):
    return new_figure(2.0).subplots()


def ticks(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def test_the_style_is_independent_of_the_settings_of_the_user_and_leaves_them():
    with mpl.rc_context({"axes.facecolor": "red", "lines.linewidth": 9}):
        before = dict(mpl.rcParams)
        with drawing():
            assert mpl.rcParams["text.color"] == INK
            assert mpl.rcParams["axes.facecolor"] == "none"
            assert mpl.rcParams["lines.linewidth"] == 1.3
        assert dict(mpl.rcParams) == before


def test_threads_draw_one_after_the_other():
    inside, most = [], []

    def draw():
        with drawing():
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_task_names_are_written_without_their_common_words(axes):
    name_tasks(axes, ["digits permuted 1", "digits permuted 2"])
    assert ticks(axes) == ["1", "2"]
    assert axes.get_xlabel() == "task, in the order learned: digits permuted …"


def test_only_long_names_are_rotated_and_shortened(axes):
    name_tasks(axes, ["cats", "dogs"])
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}
    name_tasks(axes, [f"{number} of many things that have long names" for number in range(12)])
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {35}
    assert max(map(len, ticks(axes))) <= 18


@pytest.mark.parametrize("num", [21, 50, 400])
def test_many_tasks_are_numbered(axes, num):
    name_tasks(axes, [f"name {number}" for number in range(num)])
    assert 5 <= len(axes.get_xticks()) <= 16
    assert all(tick == int(tick) for tick in axes.get_xticks())
    assert axes.get_xlabel() == "task, in the order learned"


def test_scores_stay_below_100_percent(axes):
    axes.set_ylim(94, 103)
    fit_scores(axes, percent=False)
    assert axes.get_ylim() == (94, 103)
    fit_scores(axes, percent=True)
    assert axes.get_ylim() == (93.5, pytest.approx(100.195))
    axes.set_ylim(80, 80.1)
    fit_scores(axes, percent=True)
    assert axes.get_ylim() == (79.5, 80.6)


@pytest.mark.parametrize("num", [1, 14, 40])
def test_a_legend_fits_the_width_of_the_figure(style, num):
    figure = new_figure(4.0)
    figure.subplots()
    add_legend(figure, [Patch(label=f"method number {n}") for n in range(num)])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= WIDTH * figure.dpi


@pytest.mark.parametrize(("num", "last_row"), [(1, 1), (5, 5), (7, 3), (12, 4), (21, 7)])
def test_panels_fill_their_rows(style, num, last_row):
    figure = new_figure(3.0)
    panels = add_panels(figure, [f"t{n}" for n in range(num)])
    assert len(figure.axes) == len(panels) == num
    assert panels[-1].get_title(loc="left") == f"t{num - 1}"
    columns = panels[0].get_gridspec().ncols
    assert num - columns * (panels[0].get_gridspec().nrows - 1) == last_row
    for axes in panels[-columns:]:
        assert any(label.get_visible() for label in axes.get_xticklabels())


def test_titles_have_numbers_and_names():
    assert task_titles(["digits 1", "digits 2"]) == ["task 1", "task 2"]
    assert task_titles(["low", "high"]) == ["1: low", "2: high"]
    assert left_out(50, 40, "tasks") == " Only the first 40 of 50 tasks are shown."
    assert left_out(40, 40, "tasks") == ""


def test_captions_have_the_number_of_seeds(tmp_path):
    one = write_run(tmp_path / "one", margin=3.0)
    few = write_series(tmp_path / "few", margin=2.0)
    many = write_series(tmp_path / "many", seeds=(0, 1, 2))
    for paths, words in (([few, many], "2 to 3 seeds"), ([few], "2 seeds"), ([one], "")):
        assert seeds_of(read_collection(paths).members) == words


@pytest.mark.parametrize("num", [1, 11, 12, 50])
def test_there_is_a_colour_for_everything(num):
    colours = categories(num)
    assert len(set(colours)) == num
    assert not set(colours) & (set(THEMED) - {*OTHERS})
    assert not set(colours) & {CLNP, NEW, REUSED, EARLIER}


VISIONS = {
    "all colours": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""Simulated colour vision deficiency (Machado, Oliveira and Fernandes, 2009)."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colours):
    light = np.array([to_rgb(colour) for colour in colours])
    return np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)


def smallest_difference(colours, vision):
    """Return the distance in CIELAB of the two colours that are most alike."""
    seen = np.clip(linear(colours) @ np.transpose(VISIONS[vision]), 0, 1)
    x, y, z = np.cbrt(seen @ XYZ.T / XYZ.sum(1)).T
    lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], 1)
    distance = np.linalg.norm(lab[:, None] - lab, axis=-1)
    return distance[np.triu_indices(len(colours), 1)].min()


METHODS, ROLES = [CLNP, *OTHERS], [CLNP, *OTHERS[:6], NEW, REUSED, EARLIER]


def in_the_dark(colours):
    """Return the colours of a dark page, and its background."""
    return [DARK[THEMED[c]] if c in THEMED else c for c in colours], DARK["--paper"]


@pytest.mark.parametrize(
    ("vision", "least"), [("all colours", 20), ("no red", 15), ("no green", 7.5), ("no blue", 14)]
)
def test_all_colours_can_be_distinguished_light_and_dark(vision, least):
    for colours in (METHODS, ROLES):
        assert smallest_difference(colours, vision) > least
        assert smallest_difference(in_the_dark(colours)[0], vision) > least


def contrasts(colours, paper):
    """Return the contrast of each colour with the paper, as defined by the WCAG."""
    *light, ground = linear([*colours, paper]) @ [0.2126, 0.7152, 0.0722]
    return [(max(each, ground) + 0.05) / (min(each, ground) + 0.05) for each in light]


def test_colours_contrast_with_the_page():
    assert min(contrasts(*in_the_dark([*METHODS, NEW, REUSED]))) >= 3
    assert min(contrasts([CLNP, NEW, REUSED], PAPER)) >= 3


def test_neural_pruning_has_its_own_colour_wherever_it_stands(tmp_path):
    base, ours = write_run(tmp_path / "base", method="ewc"), write_run(tmp_path / "ours")
    colours = member_colours(read_collection([base, ours]))
    assert colours == {"ewc": OTHERS[0], "clnp": CLNP}
    two = [write_run(tmp_path / "one", margin=3.0), ours]
    assert list(member_colours(read_collection(two)).values()) == [CLNP, OTHERS[0]]


def test_a_phone_has_narrow_figures_with_fewer_panels_in_a_row(style):
    with for_a_phone():
        figure = new_figure(panels_height(10))
        panels = add_panels(figure, [f"t{n}" for n in range(10)])
    assert figure.get_figwidth() == PHONE
    assert panels[0].get_gridspec().ncols == 2
    assert new_figure(2.0).get_figwidth() == WIDTH
