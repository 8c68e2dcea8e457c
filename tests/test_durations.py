import math

import pytest

from clnp.text import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (math.inf, "an unknown time"),
        (99.4, "99 s"),
        (100, "2 min"),
        (5400, "90 min"),
        (6000, "1 h 40 min"),
        (7200, "2 h"),
        (86400 * 2, "2 d"),
        (86400 * 3 + 3600 * 4, "3 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
