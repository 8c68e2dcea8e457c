import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from clnp.palette import MUTED, NEW
from clnp.studies.tables import Mean, Table as Results
from clnp.terminal.tables import Screen, blocks, ends, layers, measure, screen_of, table, tasks
from support.results import made_up, with_task

NAMES = ("a <b> & \"c\" 'd'", "数字の分類" * 6, "x" * 300, "tab\tand\x1b[31m[red]", " ", "é")
WIDE, ASCII = Screen(), Screen(unicode=False)


def lines_of(made, screen=WIDE):
    return screen.text(made).splitlines()


def stream(encoding):
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def test_a_bar_is_stacked_by_task():
    assert WIDE.stacked([4, 2, 2], 16, 16).plain == "████▓▓▒▒········"
    assert WIDE.stacked([4, 2, 2], 16, 8).plain == "██▓▒····"
    assert ASCII.stacked([4, 2, 2], 16, 16).plain == "11112233........"
    assert ASCII.stacked([], 16, 4).plain == "...."
    # Neighbours differ, also if tasks between them claimed nothing.
    assert WIDE.stacked([1, 0, 0, 1, 1, 1], 4, 4).plain == "█▓▒█"


def test_a_curve_goes_from_its_lowest_to_its_highest_value():
    assert WIDE.curve([1, 2, 3, 4, 5, 6, 7, 8], 20) == "▁▂▃▄▅▆▇█"
    assert WIDE.curve([5.0, 5.0], 20) in ("▄▄", "▅▅")
    assert WIDE.curve([], 20) == ""
    assert ASCII.curve([1, math.nan, 2, math.inf], 20) == "_x#x"
    assert ASCII.curve([-1.7e308, 1.7e308], 20) == "_#"
    assert WIDE.curve([0, 0, 4, 4, 8, 8], 3) == "▁▅█"


@given(st.lists(st.floats(), max_size=200), st.integers(1, 60))
def test_any_curve_can_be_drawn(values, width):
    assert len(WIDE.curve(values, width)) == min(len(values), width)


def test_a_text_is_shortened_in_the_middle():
    assert WIDE.short("digits permuted 10", 18) == "digits permuted 10"
    assert WIDE.short("digits permuted 10", 9) == "digi…d 10"
    assert ASCII.short("digits permuted 10", 9) == "dig...10"
    assert ASCII.short("digits", 3) == "dig"
    assert WIDE.short("数字数字", 5) == "数…字"


@given(st.text(), st.integers(1, 30))
def test_a_shortened_text_fits(text, width):
    for screen in (WIDE, ASCII):
        assert cell_len(screen.short(text, width)) <= width


def test_paragraphs_are_wrapped_and_tables_are_aligned():
    narrow = Screen(width=10).text("one two three four")
    assert narrow.split("\n") == ["one two", "  three", "  four"]
    made = table(["task", "score"], [["数字", "9.00"], ["a", "12.00"]])
    assert WIDE.text("[b]", made).split("\n") == [
        "[b]",
        "task  score",
        "数字   9.00",
        "a     12.00",
    ]


def test_other_characters_are_escaped_on_a_terminal_without_them():
    assert ASCII.text("größer").isascii()
    assert ASCII.text(ASCII.bar(0.5)) == "-" * 10
    assert WIDE.text(WIDE.bar(0.5)) == "━" * 10


def test_a_screen_is_the_terminal_or_80_by_40(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    assert screen_of(stream("utf-8")) == Screen(80, 40)
    assert not any(
        screen_of(s).unicode for s in (stream("ascii"), stream("latin-1"), io.StringIO())
    )
    for columns, width in (("20", 40), ("160", 160), ("500", 200)):
        monkeypatch.setenv("COLUMNS", columns)
        assert screen_of(stream("utf-8")).width == width


def test_a_file_and_a_terminal_without_colours_have_no_styles(monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert screen_of(Terminal()).styled
    assert not screen_of(stream("utf-8")).styled
    monkeypatch.setenv("NO_COLOR", "1")
    assert not screen_of(Terminal()).styled
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not screen_of(Terminal()).styled


def test_the_last_task_has_the_colour_of_new_neurons():
    bar = WIDE.stacked([4, 2, 2, 0], 16, 16)
    assert {str(span.style) for span in bar.spans} == {MUTED}
    bar = WIDE.stacked([4, 2, 2], 16, 16)
    assert [bar.plain[s.start] for s in bar.spans if s.style == NEW] == ["▒", "▒"]
    assert WIDE.legend().plain == "█▓▒ neurons of a task, in turn   · free"
    styled = replace(WIDE, styled=True)
    assert styled.legend().plain == "█▓▒ earlier tasks, in turn   █ last task   · free"
    assert "\x1b[" in styled.text(bar)
    assert "\x1b[" not in WIDE.text(bar)


RESULTS = Results(
    ("method", "average", "forgetting", "backward transfer"),
    (("clnp", Mean(99.08), Mean(0.0), Mean(0.0)), ("finetune", Mean(89.5), Mean(1.0), Mean(-1.0))),
    best=frozenset({(0, 1)}),
)


@pytest.mark.parametrize(("width", "num"), [(40, 2), (80, 1), (200, 1)])
def test_columns_that_do_not_fit_are_in_a_table_below(width, num):
    screen = Screen(width)
    found = [screen.text(block).splitlines() for block in blocks(RESULTS, screen)]
    assert len(found) == num
    assert all(block[0].startswith("method") for block in found)
    words = " ".join(" ".join(block) for block in found).split()
    assert {"average", "forgetting", "transfer", "99.08", "89.50", "-1.00"} <= set(words)
    assert max(len(line) for block in found for line in block) <= width


def test_the_best_is_bold_on_a_terminal():
    screen = Screen(styled=True)
    text = screen.text(*blocks(RESULTS, screen))
    assert re.findall(r"\x1b\[1m *([\d.]+)\x1b", text) == ["99.08"]


def test_the_first_and_last_of_many_are_shown():
    assert ends([1, 2, 3], 3) == ([1, 2, 3], [], [])
    assert ends([1, 2, 3, 4, 5], 4) == ([1], [2, 3], [4, 5])


def test_a_line_for_each_task():
    result = made_up(2, {"fc1": 100, "fc2": 40}, claim=4)
    assert lines_of(tasks(result, WIDE)) == [
        "task, accuracy  learned    now    fc1    fc2  threshold",
        "task 1            90.00  90.00  4 + 0  4 + 0       0.25",
        "task 2            91.00  91.00  4 + 1  4 + 1       0.25",
    ]
    # The headline says that all outputs are the same; where one is not, each task does.
    assert "outputs" in lines_of(tasks(with_task(result, 0, unchanged=False), WIDE))[0]


def test_many_tasks_are_summed_up():
    lines = lines_of(tasks(made_up(50, {"fc1": 1000}), Screen(height=10)))
    assert len(lines) == 11
    assert lines[5].split() == ["...", "41", "more,", "mean", "91.02", "91.02"]
    assert lines[6].startswith("task 46")
    assert len(lines_of(tasks(made_up(50, {"fc1": 1000}), Screen(height=90)))) == 51


def test_many_layers_share_a_column():
    result = made_up(2, {f"layer{number}": 50 for number in range(20)}, claim=2)
    lines = lines_of(tasks(result, WIDE))
    assert lines[0].split()[-2:] == ["neurons", "threshold"]
    assert "40 + 20" in lines[2]
    result = with_task(result, 1, reused={**result.tasks[1].reused, "layer3": None})
    assert "40 + ?" in lines_of(tasks(result, WIDE))[2]


def test_a_narrow_screen_has_fewer_columns():
    result, narrow = made_up(2, {"fc1": 100, "fc2": 40}, claim=4), Screen(width=40)
    head = " ".join(lines_of(tasks(result, narrow), narrow)[0].split())
    assert head == "task, accuracy learned now neurons"
    changed = with_task(result, 0, unchanged=False)
    head = " ".join(lines_of(tasks(changed, narrow), narrow)[0].split())
    assert head.endswith("learned now outputs")
    assert "DIFFERENT" in lines_of(tasks(changed, narrow), narrow)[1]


@pytest.mark.parametrize(
    ("thresholds", "shown"),
    [
        ({"fc1": 0.5, "fc2": 0.5}, "0.5"),
        ({"fc1": 0.5, "fc2": 0.125}, "0.125 to 0.5"),
        ({"fc1": -math.inf, "fc2": -math.inf}, "none"),
        ({}, "-"),
    ],
)
def test_thresholds_are_one_or_a_range(thresholds, shown):
    result = made_up(1, {"fc1": 100, "fc2": 40})
    pruning = type(result.tasks[0].pruning)(thresholds=thresholds)
    line = lines_of(tasks(with_task(result, 0, pruning=pruning), WIDE))[1]
    assert line.endswith(f"  {shown}")


def test_scores_that_are_missing_or_not_finite():
    result = made_up(2, {"fc1": 100}, scores=((90.0,), (None, math.nan)))
    result = with_task(result, 0, test_score=None, unchanged=None)
    _, first, second = lines_of(tasks(with_task(result, 1, test_score=math.nan), WIDE))
    assert first.split()[2:5] == ["-", "-", "-"]
    assert second.split()[2:5] == ["nan", "nan", "same"]


def test_a_bar_for_each_layer():
    lines = lines_of(layers(made_up(3, {"fc1": 100, "fc2": 40}, claim=10), WIDE))
    assert lines[0].split() == [
        "layer",
        "free",
        "more",
        "tasks",
        "neurons",
        "by",
        "task,",
        "then",
        "free",
    ]
    assert lines[1].split()[:7] == ["fc1", "70", "of", "100", "70", "%", "7"]
    assert lines[2].split()[6] == "1"
    bar = lines[2].split()[7]
    assert len(lines[2]) == 80
    assert [bar.count(mark) for mark in "█▓▒·"] == pytest.approx([len(bar) / 4] * 4, abs=1)
    unlimited = layers(made_up(1, {"fc1": 100}, claim=0), WIDE)
    assert lines_of(unlimited)[1].split()[6] == "-"


def test_many_layers_are_left_out():
    lines = lines_of(layers(made_up(2, {f"layer{number}": 50 for number in range(40)}), WIDE))
    assert (len(lines), lines[3]) == (7, "... 35 more")


@pytest.mark.parametrize("width", [40, 59, 60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_line_is_wider_than_the_screen(width, unicode):
    screen = Screen(width=width, unicode=unicode)
    for num_layers in (1, 3, 30):
        sizes = {f"{NAMES[number % 3]}{number}": 10**6 + number for number in range(num_layers)}
        result = made_up(6, sizes, claim=99999, names=NAMES)
        for made in (tasks(result, screen), layers(result, screen)):
            # Escapes in place of other characters take more.
            for line in Screen(width=width).text(made).splitlines():
                assert cell_len(line) <= width, line
                assert line.isprintable()


def test_only_classification_is_called_accuracy():
    result = made_up(1, {"fc1": 10})
    assert measure(result) == "test accuracy"
    assert measure(with_task(result, 0, objective="regression")) == "test score"
