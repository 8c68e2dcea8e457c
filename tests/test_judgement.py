import pytest
import torch

from clnp import LearnerConfig, Task
from clnp.judgement import expected, is_known, judge, note, note_elsewhere

CPU = torch.device("cpu")


def test_a_task_is_judged_by_its_test_data():
    x, y = torch.eye(3), torch.tensor([0, 1, 0])
    task = Task("a", (x, y), test=(x, y))
    found = judge(lambda inputs, name: 2 * inputs, task, LearnerConfig(), seed=0, device=CPU)
    score, digest = found
    assert score == pytest.approx(200 / 3)
    again = judge(lambda inputs, name: 2 * inputs, task, LearnerConfig(), seed=0, device=CPU)
    other = judge(lambda inputs, name: 3 * inputs, task, LearnerConfig(), seed=0, device=CPU)
    assert again == found
    assert other == (score, other[1])
    assert other[1] != digest
    without = Task("a", (x, y))
    assert judge(lambda inputs, name: inputs, without, LearnerConfig(), seed=0, device=CPU) is None


def test_outputs_are_held_against_those_of_the_same_arithmetic():
    record = {}
    note(record, "a", "1")
    assert record == {"outputs": "1", "arithmetic": "a", "unchanged": True}
    note(record, "a", "2")
    assert record["unchanged"] is False
    note(record, "a", "1")
    assert record["unchanged"] is True
    assert is_known(record, "a")
    assert not is_known(record, "b")
    assert expected(record, "b") is None
    note_elsewhere(record, "b", "3")
    assert (expected(record, "a"), expected(record, "b")) == ("1", "3")
    note(record, "b", "3")
    assert record["unchanged"] is True
    note(record, "b", "1")
    assert record["unchanged"] is False


def test_what_had_changed_before_stays_so_elsewhere():
    record = {"outputs": "1", "arithmetic": "a", "unchanged": False}
    note_elsewhere(record, "b", "3")
    assert is_known(record, "b")
    note(record, "b", "3")
    assert record["unchanged"] is False


def test_a_task_that_is_learnt_later_has_the_arithmetic_of_then():
    record = {}
    note(record, "a", None)
    assert record == {"outputs": None, "arithmetic": "a", "unchanged": None}
    note(record, "b", None)
    assert record["arithmetic"] == "a"
    note(record, "b", "1")
    assert record == {"outputs": "1", "arithmetic": "b", "unchanged": True}
