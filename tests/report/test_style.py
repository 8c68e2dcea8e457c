import re
import threading

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from clnp.report.style import (
    CATEGORIES,
    INK,
    MORE,
    THEMED,
    apart,
    categories,
    drawing,
    in_order,
    on,
    ordered,
)
from clnp.report.stylesheet import STYLE


def test_drawing_changes_nothing_for_anybody_else():
    before = dict(mpl.rcParams)
    with drawing():
        assert mpl.rcParams["text.color"] == INK
        assert mpl.rcParams["text.parse_math"] is False
    assert dict(mpl.rcParams) == before


def test_drawing_does_not_take_over_the_settings_of_the_user():
    with mpl.rc_context({"axes.facecolor": "red", "lines.linewidth": 9}), drawing():
        assert mpl.rcParams["axes.facecolor"] == "none"
        assert mpl.rcParams["lines.linewidth"] == 1.3


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


@pytest.mark.parametrize("num", [1, 2, 7, 8, 50])
def test_there_is_a_colour_for_everything(num):
    for colours in (categories(num), ordered(num), in_order(num)):
        assert len(set(colours)) == num
        assert not set(colours) & (set(THEMED) - {*CATEGORIES, *MORE})


def test_many_things_in_order_go_from_dark_to_light():
    brightness = [sum(to_rgb(colour)) for colour in ordered(20)]
    assert brightness == sorted(brightness)


def test_text_can_be_read_on_a_colour():
    assert on("#000000") == "#ffffff"
    assert on("#ffffff") == "#000000"
    assert on("#fde725") == "#000000"


def test_labels_are_moved_apart_and_stay_in_order():
    placed = apart([5.0, 5.0, 5.1, 0.0], 2.0, low=0.0, high=10.0)
    assert sorted(placed) == [placed[3], placed[0], placed[1], placed[2]]
    gaps = [b - a for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False)]
    assert min(gaps) >= 2.0
    assert max(placed) <= 10.0
    assert apart([1.0, 9.0], 2.0, low=0.0, high=10.0) == [1.0, 9.0]


VISIONS = {
    "all colours": np.eye(3),
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""What eyes make of red, green and blue light (Machado, Oliveira and Fernandes, 2009)."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def nearest(colours, vision):
    """How far apart the two colours are that are most alike, in CIELAB."""
    light = np.array([to_rgb(colour) for colour in colours])
    light = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    seen = np.clip(light @ np.transpose(VISIONS[vision]), 0, 1)
    x, y, z = np.cbrt(seen @ XYZ.T / XYZ.sum(1)).T
    lab = np.stack([116 * y, 500 * (x - y), 200 * (y - z)], 1)
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1)
    return apart[np.triu_indices(len(colours), 1)].min()


@pytest.mark.parametrize(
    ("vision", "least"), [("all colours", 20), ("no red", 15), ("no green", 7.5), ("no blue", 15)]
)
def test_twelve_things_can_be_told_apart(vision, least):
    assert nearest(categories(12), vision) > least


def in_the_dark(colours):
    """The colours that a dark page has in their place, and its ground."""
    dark = STYLE[STYLE.index("prefers-color-scheme: dark") :]
    values = dict(reversed(re.findall(r"(--[a-z-]+): (#[0-9a-f]{6});", dark)))
    return [values[THEMED[c]] if c in THEMED else c for c in colours], values["--paper"]


def light(colour):
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize(
    ("vision", "least"), [("all colours", 20), ("no red", 15), ("no green", 7.5), ("no blue", 14)]
)
def test_twelve_things_can_be_told_apart_in_the_dark(vision, least):
    assert nearest(in_the_dark(categories(12))[0], vision) > least


def test_twelve_things_stand_out_from_the_dark():
    colours, paper = in_the_dark(categories(12))
    assert min((light(colour) + 0.05) / (light(paper) + 0.05) for colour in colours) >= 3
