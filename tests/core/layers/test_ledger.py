import json

import pytest

from clnp.core.layers.ledger import Capacity, Ledger, Row, Usage, aligned
from clnp.errors import ArgumentError, TaskError
from clnp.plain import read, to_json


@pytest.fixture
def ledger() -> Ledger:
    empty = Ledger({"fc1": 20, "fc2": 10})
    after_a = empty.claim("a", {"fc1": 12, "fc2": 3}, {"fc1": 0, "fc2": 0})
    return after_a.claim("b", {"fc1": 4}, {"fc1": 9})


def test_a_new_ledger_owns_nothing():
    ledger = Ledger({"fc1": 20})
    assert ledger.tasks == ()
    assert ledger.claimed() == {"fc1": 0}
    assert ledger.free() == {"fc1": 20}


def test_claims_add_up(ledger):
    assert ledger.tasks == ("a", "b")
    assert ledger.claimed() == {"fc1": 16, "fc2": 3}
    assert ledger.free() == {"fc1": 4, "fc2": 7}
    assert ledger.row("a") == Row("a", {"fc1": 12, "fc2": 3}, {"fc1": 0, "fc2": 0})
    assert ledger.row("b") == Row("b", {"fc1": 16, "fc2": 3}, {"fc1": 9, "fc2": None})


def test_widths_before_and_after_a_task(ledger):
    assert ledger.widths("a") == ({"fc1": 0, "fc2": 0}, {"fc1": 12, "fc2": 3})
    assert ledger.widths("b") == ({"fc1": 12, "fc2": 3}, {"fc1": 16, "fc2": 3})


def test_a_claim_gives_a_new_ledger():
    old = Ledger({"fc1": 20})
    new = old.claim("a", {"fc1": 20})
    assert old.tasks == ()
    assert new.free() == {"fc1": 0}
    assert new.row("a").reused == {"fc1": 0}


def test_nothing_is_reused_where_nothing_was_frozen():
    ledger = Ledger({"fc1": 4, "fc2": 4}).claim("a", {"fc1": 2}, {"fc1": 3, "fc2": 3})
    assert ledger.row("a").reused == {"fc1": 0, "fc2": 0}
    assert ledger.claim("b", {"fc2": 1}).row("b").reused == {"fc1": None, "fc2": 0}
    assert ledger.claim("b", {}, {"fc1": 1, "fc2": 1}).row("b").reused == {"fc1": 1, "fc2": 0}


def test_an_unknown_task_is_named(ledger):
    with pytest.raises(TaskError, match=r"unknown task 'c'\. Known: a, b"):
        ledger.row("c")
    with pytest.raises(TaskError, match="Known: none yet"):
        Ledger({}).index("c")
    assert ledger.index("b") == 1


def test_widening_adds_free_neurons_and_moves_nothing(ledger):
    wider = ledger.widen({"fc2": 5})
    assert wider.sizes == {"fc1": 20, "fc2": 15}
    assert wider.rows == ledger.rows
    assert wider.free() == {"fc1": 4, "fc2": 12}
    assert ledger.sizes == {"fc1": 20, "fc2": 10}


def test_a_ledger_goes_through_json(ledger):
    assert read(Ledger, json.loads(to_json(ledger))) == ledger


def test_capacity_has_new_reused_and_free_neurons(ledger):
    capacity = ledger.capacity()
    assert capacity.usages == (
        Usage("a", "fc1", new=12, reused=0, free=8),
        Usage("a", "fc2", new=3, reused=0, free=7),
        Usage("b", "fc1", new=4, reused=9, free=4),
        Usage("b", "fc2", new=0, reused=None, free=7),
    )
    assert capacity.of("b", "fc1").reused == 9
    assert capacity.free == ledger.free()
    assert capacity.free_fraction == (4 / 20 + 7 / 10) / 2


@pytest.mark.parametrize(("task", "group"), [("c", "fc1"), ("a", "fc9")])
def test_capacity_of_something_unknown_is_an_error(ledger, task, group):
    expected = f"nothing is known about task '{task}' in group '{group}'"
    with pytest.raises(ArgumentError, match=expected):
        ledger.capacity().of(task, group)


def test_capacity_prints_a_table(ledger):
    assert str(ledger.capacity()).splitlines() == [
        "group  neurons       a      b      free",
        "fc1         20  12 + 0  4 + 9  4 (20 %)",
        "fc2         10   3 + 0  0 + ?  7 (70 %)",
        "(each task: new + reused neurons)",
    ]


def test_capacity_of_no_task_prints_what_is_free():
    assert str(Capacity({"fc1": 20})).splitlines() == [
        "group  neurons        free",
        "fc1         20  20 (100 %)",
        "(no task has ended yet)",
    ]


def test_columns_are_aligned():
    assert aligned([["a", "10"], ["bcd", "1"]]) == "a    10\nbcd   1"
