import io
import math

import pytest
from hypothesis import given, strategies as st

from clnp.terminal.tables import (
    ASCII,
    BLOCKS,
    Screen,
    cells,
    columns,
    glyphs_for,
    plain,
    progress,
    screen_of,
    shortened,
    sparkline,
    stacked,
)


def stream(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def test_a_bar_is_stacked_by_task():
    assert stacked([4, 2, 2], 16, width=16, glyphs=BLOCKS) == "████▓▓▒▒········"
    assert stacked([4, 2, 2], 16, width=8, glyphs=BLOCKS) == "██▓▒····"
    assert stacked([4, 2, 2], 16, width=16, glyphs=ASCII) == "11112233........"
    assert stacked([], 16, width=4, glyphs=ASCII) == "...."
    assert stacked([16], 16, width=4, glyphs=ASCII) == "1111"


def test_neighbours_in_a_bar_differ_and_numbers_are_those_of_tasks():
    assert stacked([1, 0, 0, 1, 1, 1], 4, width=4, glyphs=BLOCKS) == "█▓▒█"
    assert stacked([1, 0, 0, 1, 1, 1], 4, width=4, glyphs=ASCII) == "1456"
    assert stacked([1] * 63, 63, width=63, glyphs=ASCII).endswith("YZ12")


def test_a_bar_of_what_is_done_is_full_only_at_the_end():
    assert progress(0.0, width=4, glyphs=ASCII) == "----"
    assert progress(0.999, width=4, glyphs=ASCII) == "###-"
    assert progress(1.0, width=4, glyphs=ASCII) == "####"
    assert progress(7.0, width=4, glyphs=ASCII) == "####"
    assert progress(-1.0, width=4, glyphs=ASCII) == "----"


def test_a_curve_goes_from_its_lowest_to_its_highest_value():
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], width=20, glyphs=BLOCKS) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0], width=20, glyphs=BLOCKS) in ("▄▄", "▅▅")
    assert sparkline([], width=20, glyphs=BLOCKS) == ""
    assert sparkline([1, math.nan, 2, math.inf], width=20, glyphs=ASCII) == "_x#x"
    assert sparkline([math.nan], width=20, glyphs=ASCII) == "x"
    assert sparkline([-1.7e308, 1.7e308], width=20, glyphs=ASCII) == "_#"


def test_a_long_curve_is_averaged():
    assert sparkline([0, 0, 4, 4, 8, 8], width=3, glyphs=BLOCKS) == "▁▅█"
    assert len(sparkline(list(range(1000)), width=33, glyphs=BLOCKS)) == 33


@given(st.lists(st.floats(), max_size=200), st.integers(1, 60))
def test_any_curve_can_be_drawn(values, width):
    assert len(sparkline(values, width=width, glyphs=BLOCKS)) == min(len(values), width)


def test_wide_and_combining_characters_are_counted():
    assert cells("abc") == 3
    assert cells("数字") == 4
    assert cells("e\N{COMBINING ACUTE ACCENT}") == 1


def test_a_text_is_shortened_in_the_middle():
    assert shortened("digits permuted 10", 18, glyphs=BLOCKS) == "digits permuted 10"
    assert shortened("digits permuted 10", 9, glyphs=BLOCKS) == "digi…d 10"
    assert shortened("digits permuted 10", 9, glyphs=ASCII) == "dig... 10"
    assert shortened("digits", 3, glyphs=ASCII) == "dig"
    assert shortened("数字数字", 5, glyphs=BLOCKS) == "数…字"


@given(st.text(), st.integers(1, 30))
def test_a_shortened_text_fits_and_moves_no_cursor(text, width):
    for glyphs in (BLOCKS, ASCII):
        short = shortened(text, width, glyphs=glyphs)
        assert cells(short) <= width
        assert short.isprintable()


def test_what_is_not_printable_is_a_question_mark():
    assert plain("a\x1b[2Jb\n\udc80") == "a?[2Jb??"


def test_columns_are_aligned_by_what_they_take_on_a_terminal():
    assert columns([["task", "score"], ["数字", "9.00"], ["a", "12.00"]]) == [
        "task  score",
        "数字   9.00",
        "a     12.00",
    ]


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII)]
)
def test_a_stream_that_cannot_encode_blocks_gets_plain_characters(encoding, expected):
    assert glyphs_for(stream(encoding)) is expected


def test_a_stream_without_an_encoding_gets_plain_characters():
    assert glyphs_for(io.StringIO()) is ASCII


def test_plain_characters_are_plain():
    assert "".join(str(part) for part in vars(ASCII).values()).isascii()


def test_a_screen_is_the_terminal_or_80_by_40(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    assert screen_of(stream("utf-8")) == Screen(80, 40, BLOCKS)
    monkeypatch.setenv("COLUMNS", "20")
    assert screen_of(stream("utf-8")).width == 40
    monkeypatch.setenv("COLUMNS", "500")
    assert screen_of(stream("utf-8")).width == 120


def test_text_is_wrapped():
    screen = Screen(width=10)
    assert screen.wrapped("one two three four", indent=2) == ["one two", "  three", "  four"]
    assert screen.short("one two three", 5) == "on…ee"
