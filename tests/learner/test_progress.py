import pytest
import torch
from torch import Tensor, nn

import clnp
from clnp.learner.learner import Learner
from clnp.learner.progress import Candidate, Choice, Progress
from clnp.storage.packing import pack, unpack
from clnp.training.config import FineTuning, LearnerConfig, Training
from clnp.training.task import Task


def alike(one, other):
    """Whether two nested states are the same; lists and tuples are."""
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
    """The state as a checkpoint gives it back."""
    tensors = {}
    return unpack(pack(state, tensors, name="progress"), tensors)


@pytest.fixture(scope="module")
def states():
    """All that a small task was at, from its first epoch to its end; the second of three diverges.

    Of each candidate 3 epochs, then the candidate itself.
    """
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
    config = LearnerConfig(
        margin=20.0,
        alphas=(1e-3,),
        lrs=(0.1, 1e30, 0.2),
        training=Training(epochs=3, batch_size=16, optimizer="SGD", patience=3),
        fine_tuning=FineTuning(2, 0.01, rounds=2),
    )
    seen, told = [], []
    learner = Learner(
        clnp.ContinualNet(model, x[:2]),
        config,
        on_event=told.append,
        on_progress=lambda progress: seen.append((dict(told[-1]), progress.to_state())),
    )
    learner.learn(Task("a", (x, y)))
    return seen


def of(states, kind, **where):
    """The states right after events of a kind, with these details."""
    return [
        state
        for event, state in states
        if event["event"] == kind and all(event.get(key) == v for key, v in where.items())
    ]


def test_a_task_that_has_not_begun_has_come_nowhere():
    state = Progress().to_state()
    assert state == {
        "trained": [],
        "pruned": [],
        "fit": None,
        "group": [],
        "winner": None,
        "plans": [],
        "round": 0,
        "left_margin": False,
        "before_round": None,
    }
    assert Progress.from_state(state) == Progress()


def test_every_state_of_a_task_goes_through_a_checkpoint(states):
    assert len(states) >= 6
    for _, state in states:
        restored = Progress.from_state(stored(state))
        assert alike(restored.to_state(), state)
        # Twice, because a run may break off before the next epoch has ended.
        assert alike(Progress.from_state(stored(restored.to_state())).to_state(), state)


def test_a_candidate_in_training_has_a_fit_to_go_on_with(states):
    first, second, third = of(states, "epoch", candidate=0)
    assert [len(state["fit"]["epochs"]) for state in (first, second, third)] == [1, 2, 3]
    assert second["trained"] == []
    progress = Progress.from_state(second)
    assert progress.fit is None
    assert progress.resumed is second["fit"]
    assert [state["fit"]["epochs"][0] for state in (second, third)] == (
        [first["fit"]["epochs"][0]] * 2
    )


def test_trained_candidates_keep_their_weights_and_diverged_ones_their_reason(states):
    (state,) = of(states, "candidate", candidate=2)
    assert state["fit"] is None
    one, two, three = Progress.from_state(stored(state)).trained
    assert [c.lr for c in (one, two, three)] == [0.1, 1e30, 0.2]
    assert [c.alpha for c in (one, two, three)] == [1e-3] * 3
    assert (one.num_epochs, three.num_epochs) == (3, 3)
    assert one.diverged is three.diverged is None
    assert one.score > 50
    assert not alike(dict(one.state.tensors), dict(three.state.tensors))
    assert one.state.task.name == "a"
    assert one.state.free == {"0": 12}
    assert (two.score, two.state) == (None, None)
    assert "the loss of task 'a' is" in two.diverged


def test_states_are_held_only_of_candidates_that_may_be_chosen(states):
    (before,) = of(states, "pruning", candidate=2)
    scores = [c["score"] for c in before["trained"]]
    assert [c["state"] is not None for c in before["trained"]] == [True, False, True]
    (chosen,) = of(states, "chosen")
    assert [c["state"] for c in chosen["trained"]] == [None] * 3
    progress = Progress.from_state(stored(before))
    worse, better = sorted(score for score in scores if score is not None)
    assert worse < better
    progress.let_go(below=better - worse)
    assert [c.state is not None for c in progress.trained] == [True, False, True]
    progress.let_go(below=(better - worse) / 2)
    kept = [c.score for c in progress.trained if c.state is not None]
    assert kept == [better]


def test_the_winner_comes_with_its_plan(states):
    (chosen,) = of(states, "chosen")
    assert {state["winner"] for state in of(states, "pruning")} == {None}
    assert {bool(state["plans"]) for state in of(states, "pruning")} == {False}
    progress = Progress.from_state(stored(chosen))
    assert progress.winner in (0, 2)
    (plan,) = progress.plans
    assert plan.task == "a"
    assert plan.to_json() == chosen["plans"][0]
    assert plan.score >= plan.best - 20.0


def test_candidates_that_are_pruned_need_not_be_pruned_again(states):
    told = [event for event, _ in states if event["event"] == "pruning"]
    for number, state in enumerate(of(states, "pruning"), start=1):
        pruned = Progress.from_state(stored(state)).pruned
        assert [choice.candidate for choice in pruned] == [e["candidate"] for e in told[:number]]
        assert [choice.plan.to_json() for choice in pruned] == [e["plan"] for e in told[:number]]
        for choice in pruned:
            assert choice.free_fraction == (12 - choice.plan.kept["0"]) / 12


def test_a_round_of_fine_tuning_knows_what_was_before_it(states):
    during = of(states, "epoch", round=1)
    (after,) = of(states, "round", round=1)
    assert [len(state["fit"]["epochs"]) for state in during] == [1, 2]
    for state in during:
        progress = Progress.from_state(stored(state))
        assert progress.round == 1
        assert progress.before_round.task.name == "a"
        assert [progress.before_round.free] == [plan.kept for plan in progress.plans[:-1]]
        assert alike(progress.before_round.to_state(), state["before_round"])
    assert Progress.from_state(after).round == 2
    assert after["fit"] is None
    assert not after["left_margin"]
    assert len(after["plans"]) == 2
    assert Progress.from_state({**after, "left_margin": True}).left_margin


def test_weights_are_not_printed():
    assert repr(Candidate(1e-3, 0.1, 3, 90.0)) == (
        "Candidate(alpha=0.001, lr=0.1, num_epochs=3, score=90.0, diverged=None)"
    )


def test_an_alpha_for_each_layer_goes_through_a_checkpoint():
    candidate = Candidate({"fc1": 1e-3, "fc2": 0.0}, 0.1, 3, None, "too fast")
    state = stored(Progress([candidate]).to_state())
    assert Progress.from_state(state).trained == [candidate]


def test_two_tasks_do_not_share_their_candidates():
    Progress().trained.append(Candidate(0.0, 0.1, 1, None))
    Progress().pruned.append(Choice(0, None, 0.5))
    assert (Progress().trained, Progress().pruned) == ([], [])
