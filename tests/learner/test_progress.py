from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from clnp import FineTuning, Learner
from clnp.learner.progress import Progress
from clnp.plain import to_plain
from clnp.records import (
    CandidateChosen,
    CandidatePruned,
    CandidateRecord,
    CandidateTrained,
    EpochEnded,
    RoundEnded,
)
from clnp.storage.packing import pack, unpack
from support.learning import config, network, task


def alike(one, other):
    """Whether two nested states are equal."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        same_keys = isinstance(other, dict) and list(one) == list(other)
        return same_keys and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        same_size = isinstance(other, list | tuple) and len(one) == len(other)
        return same_size and all(map(alike, one, other))
    return type(one) is type(other) and one == other


def stored(state):
    """The state as it comes back from a checkpoint."""
    tensors = {}
    return unpack(pack(state, tensors, name="progress"), tensors)


@pytest.fixture(scope="module")
def states():
    """The last event and the state, at each progress of a task; the second candidate diverges."""
    options = config(
        margin=20.0,
        alphas=(1e-3,),
        lrs=(0.1, 1e30, 0.2),
        training={"epochs": 3, "batch_size": 16, "optimizer": "SGD", "patience": 3},
        fine_tuning=FineTuning(2, 0.01, rounds=2),
    )
    events, seen = [], []
    layers = nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)
    learner = Learner(
        network(layers=layers),
        options,
        on_event=events.append,
        on_progress=lambda progress: seen.append((events[-1], progress.to_state())),
    )
    learner.learn(task(num_samples=80))
    return seen


def of(states, kind, **where):
    """The states right after events of a kind, with these fields."""
    return [
        state
        for event, state in states
        if type(event) is kind and all(getattr(event, key) == v for key, v in where.items())
    ]


def test_an_empty_progress_has_an_empty_state():
    state = Progress().to_state()
    assert state == {
        "trained": [],
        "pruned": [],
        "group": [],
        "winner": None,
        "plans": [],
        "round": 0,
        "left_margin": False,
        "before_round": None,
    }
    assert Progress.from_state(state) == Progress()


def test_every_state_of_a_task_survives_a_checkpoint(states):
    assert len(states) >= 6
    for _, state in states:
        restored = Progress.from_state(stored(state))
        assert alike(restored.to_state(), state)
        # Twice, because a run may stop before the next epoch ends.
        assert alike(Progress.from_state(stored(restored.to_state())).to_state(), state)


def test_a_candidate_in_training_has_the_state_of_its_fit(states):
    first, second, third = of(states, EpochEnded, candidate=0)
    fits = [state["group"][0]["fit"] for state in (first, second, third)]
    assert [len(fit["epochs"]) for fit in fits] == [1, 2, 3]
    assert second["trained"] == []
    assert Progress.from_state(second).resumed == second["group"]
    assert fits[2]["epochs"][0] == fits[0]["epochs"][0]


def test_a_fit_that_an_earlier_version_saved_is_resumed(states):
    state = dict(of(states, EpochEnded, candidate=0)[1])
    expected = Progress.from_state(state)
    [lane] = state.pop("group")
    for others in ({}, {"group": []}):
        assert Progress.from_state({**state, **others, "fit": lane["fit"]}) == expected


def test_trained_candidates_keep_their_weights_and_diverged_ones_their_reason(states):
    last = [state for event, state in states if isinstance(event, CandidateTrained)][-1]
    assert last["group"] == []
    progress = Progress.from_state(stored(last))
    one, two, three = progress.trained
    assert [(c.alpha, c.lr) for c in (one, two, three)] == [(1e-3, lr) for lr in (0.1, 1e30, 0.2)]
    assert (one.num_epochs, three.num_epochs) == (3, 3)
    assert one.diverged is three.diverged is None
    assert one.score > 50
    assert list(progress.states) == [0, 2]
    first, third = progress.states.values()
    assert not alike(dict(first.tensors), dict(third.tensors))
    assert first.task.name == "a"
    assert first.free == {"0": 12}
    assert two.score is None
    assert "the loss of task 'a' is" in two.diverged


def test_states_are_kept_while_a_candidate_may_be_chosen(states):
    before = of(states, CandidatePruned)[-1]
    assert [c["state"] is not None for c in before["trained"]] == [True, False, True]
    (chosen,) = of(states, CandidateChosen)
    assert [c["state"] for c in chosen["trained"]] == [None] * 3
    progress = Progress.from_state(stored(before))
    one, _, three = progress.trained
    progress.trained[0] = replace(one, score=three.score - 4.0)
    progress.drop_states(4.0)
    assert list(progress.states) == [0, 2]
    progress.drop_states(2.0)
    assert list(progress.states) == [2]


def test_the_winner_has_its_plan(states):
    (chosen,) = of(states, CandidateChosen)
    assert {state["winner"] for state in of(states, CandidatePruned)} == {None}
    assert {bool(state["plans"]) for state in of(states, CandidatePruned)} == {False}
    progress = Progress.from_state(stored(chosen))
    assert progress.winner in (0, 2)
    (plan,) = progress.plans
    assert plan.task == "a"
    assert to_plain(plan) == chosen["plans"][0]
    assert plan.score >= plan.best - 20.0


def test_plans_of_candidates_are_kept(states):
    events = [event for event, _ in states if isinstance(event, CandidatePruned)]
    for number, state in enumerate(of(states, CandidatePruned), start=1):
        pruned = Progress.from_state(stored(state)).pruned
        assert [c.candidate for c in pruned] == [e.candidate for e in events[:number]]
        assert [c.plan for c in pruned] == [e.plan for e in events[:number]]
        for choice in pruned:
            assert choice.free_fraction == (12 - choice.plan.kept["0"]) / 12


def test_a_round_of_fine_tuning_keeps_the_open_task_before_it(states):
    during = of(states, EpochEnded, round=1)
    (after,) = of(states, RoundEnded, round=1)
    assert [len(state["group"][0]["fit"]["epochs"]) for state in during] == [1, 2]
    for state in during:
        progress = Progress.from_state(stored(state))
        assert progress.round == 1
        assert [progress.before_round.free] == [plan.kept for plan in progress.plans[:-1]]
        assert alike(progress.before_round.to_state(), state["before_round"])
    assert Progress.from_state(after).round == 2
    assert after["group"] == []
    assert not after["left_margin"]
    assert len(after["plans"]) == 2
    assert Progress.from_state({**after, "left_margin": True}).left_margin


def test_a_candidate_with_a_penalty_for_each_layer_survives_a_checkpoint():
    candidate = CandidateRecord({"fc1": 1e-3, "fc2": 0.0}, 0.1, 3, None, "too fast")
    assert Progress.from_state(stored(Progress([candidate]).to_state())).trained == [candidate]
