import math

import pytest

from clnp.text import (
    NAMELESS,
    all_shortened,
    clean,
    duration,
    one_line,
    printable,
    shortened,
    without_common_start,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("two\nlines\tand  more", "two lines and more"),
        ("bell\x07 escape\x1b[31m", "bell escape[31m"),
        ("half \ud800 a character", "half  a character"),
        ("turned \u202e round", "turned  round"),
        ("family \U0001f468\u200d\U0001f469", "family \U0001f468\u200d\U0001f469"),
        ("", NAMELESS),
        (" \x00 ", NAMELESS),
        (7, "7"),
    ],
)
def test_a_name_is_one_line_that_a_page_can_hold(value, expected):
    assert clean(value) == expected
    assert clean(value).encode("utf-8")


def test_a_long_name_loses_its_middle():
    assert shortened("features.12.block.conv", 11) == "featu….conv"
    assert len(shortened("x" * 100, 24)) == 24
    assert shortened("short", 24) == "short"


def test_names_that_would_become_alike_are_numbered():
    names = ["a" * 30 + "1" + "b" * 30, "a" * 30 + "2" + "b" * 30]
    short = all_shortened(names, 12)
    assert short[0].startswith("1 a")
    assert short[1].startswith("2 a")
    assert max(map(len, short)) <= 12


def test_words_that_all_names_begin_with_are_said_once():
    names = ["digits permuted 1", "digits permuted 2"]
    assert without_common_start(names) == ("digits permuted", ["1", "2"])
    assert without_common_start(["alone"]) == ("", ["alone"])
    assert without_common_start(["a", "a b"]) == ("", ["a", "a b"])
    assert without_common_start([]) == ("", [])


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


def test_what_would_control_a_terminal_is_escaped():
    assert printable("a\x1b[31m\n\u202eb\u2028\x9b\udcff\tc") == (
        "a\\x1b[31m\n\\u202eb\\u2028\\x9b\\udcff\\tc"
    )
    assert printable("ä 日本 👩\u200d👩") == "ä 日本 👩\u200d👩"
    assert one_line("a\nb\rc") == "a\\nb\\rc"
