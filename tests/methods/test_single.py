from dataclasses import replace

import pytest

from clnp.methods.joint import Joint
from clnp.methods.single import Single
from clnp.terminal.summary import guesses
from support.forgetting import check_resumes, experiment


@pytest.mark.parametrize("head", ["single", "multi"])
def test_nothing_is_forgotten_and_every_task_has_a_network(tmp_path, head):
    result = experiment(Single(), head=head).run(tmp_path / "run")
    for number, record in enumerate(result.tasks):
        assert record.unchanged
        assert {row[number] for row in result.scores[number:]} == {record.test_score}
    stored = result.stored_bytes
    size = 4 * ((20 + 1) * 64 + (64 + 1) * 64 + (64 + 1) * 4)
    assert sum(stored.values()) == 3 * size
    assert stored["further networks"] == 2 * stored["network"]


def test_a_task_is_learned_as_if_there_were_no_other(tmp_path):
    several = experiment(Single())
    first = several.run(tmp_path / "several")
    for number, task in enumerate(several.tasks):
        alone = replace(several, tasks=[task]).run(tmp_path / f"alone {number}")
        assert alone.tasks[0].outputs == first.tasks[number].outputs


@pytest.mark.parametrize("head", ["single", "multi"])
def test_single_resumes(tmp_path, head):
    check_resumes(Single(), tmp_path, head=head)


@pytest.mark.parametrize("baseline", [Single(), Joint()])
def test_a_task_in_which_a_baseline_learned_nothing_is_reported(tmp_path, baseline):
    learned = experiment(baseline).run(tmp_path / "learned").tasks
    assert guesses(learned) == []
    last = learned[-1]
    assert 20 < last.guess < 40
    assert guesses([replace(last, score=last.guess)])[0].startswith(f"NOT LEARNED: {last.task}")
