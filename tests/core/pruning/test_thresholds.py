import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import clnp
from clnp.core.pruning.activity import Activity
from clnp.core.pruning.subsets import Subsets
from clnp.core.pruning.thresholds import (
    KEEP_ALL,
    CurvePoint,
    PruningPlan,
    extra_by_group,
    neurons_by_group,
    plan,
    survivors,
    threshold_by_group,
)
from clnp.core.structure.graph import Graph
from clnp.errors import ArgumentError, PruningError
from support.networks import HEADS, ConvNet, example, first, make


def activity(**groups: list[float]) -> Activity:
    """Free neurons with these activities; no neuron is owned."""
    free = {group: torch.tensor(values, dtype=torch.float64) for group, values in groups.items()}
    return Activity(free, {group: torch.zeros(0) for group in groups})


class Score:
    """A score that depends on how many neurons are kept, and that notes what it was asked."""

    def __init__(self, by_count: Callable[[int], float] | Mapping[int, float]) -> None:
        self.by_count = by_count if callable(by_count) else by_count.__getitem__
        self.asked: list[tuple[tuple[int, ...], ...]] = []

    def __call__(self, keep: Mapping[str, tuple[int, ...]], at_least: float | None = None) -> float:
        self.asked.append(tuple(tuple(neurons) for neurons in keep.values()))
        return self.by_count(sum(len(neurons) for neurons in keep.values()))


def search(found: Activity, score: Callable[..., float], **options: object) -> PruningPlan:
    given = {"margin": 0.0, "best": None, "per_layer": False, "resolution": None}
    given |= {"allow_guessing": True, "on_evaluation": lambda point: None}
    given |= {"ignores_input": lambda keep: False, **options}
    return plan(found, score, task="a", thresholds=None, reused=lambda keep: {}, **given)


def test_survivors_are_above_the_threshold_of_their_group():
    found = activity(a=[0.0, 1.0, 2.0], b=[1.0, 3.0])
    assert survivors(found, {"a": 0.0, "b": 1.0}) == {"a": (1, 2), "b": (1,)}
    assert survivors(found, {"a": KEEP_ALL, "b": math.inf}) == {"a": (0, 1, 2), "b": ()}


def test_the_highest_threshold_is_found_where_the_score_is_not_monotone():
    found = activity(a=[float(n) for n in range(1, 11)])
    # Of ten neurons, three are enough, four to seven are not, eight and more are.
    score = Score(lambda num: 1.0 if num == 3 or num >= 8 else 0.0)
    made = search(found, score)
    assert made.keep == {"a": (7, 8, 9)}
    assert made.thresholds == {"a": 7.0}
    assert made.score == 1.0
    assert made.best == 1.0


def test_the_same_neurons_are_never_evaluated_twice():
    found = activity(a=[0.0, 1.0, 1.0, 2.0], b=[0.0, 1.0, 3.0])
    for per_layer in (False, True):
        score = Score(lambda num: float(num == 7))
        made = search(found, score, per_layer=per_layer)
        assert len(set(score.asked)) == len(score.asked) == made.num_evaluations
        assert made.kept == {"a": 4, "b": 3}


def test_the_curve_holds_every_evaluation_in_order():
    found = activity(a=[1.0, 2.0], b=[2.0, 4.0])
    score = Score({4: 9.0, 0: 1.0, 1: 5.0, 3: 8.5})
    made = search(found, score, margin=0.5)
    assert made.curve == (
        CurvePoint({"a": KEEP_ALL, "b": KEEP_ALL}, {"a": 2, "b": 2}, 9.0),
        CurvePoint({"a": 4.0, "b": 4.0}, {"a": 0, "b": 0}, 1.0),
        CurvePoint({"a": 2.0, "b": 2.0}, {"a": 0, "b": 1}, 5.0),
        CurvePoint({"a": 1.0, "b": 1.0}, {"a": 1, "b": 2}, 8.5),
    )
    assert [point.theta for point in made.curve] == [KEEP_ALL, 4.0, 2.0, 1.0]
    assert [point.num_kept for point in made.curve] == [4, 0, 1, 3]
    assert made.keep == {"a": (1,), "b": (0, 1)}


def test_the_margin_is_inclusive():
    found = activity(a=[1.0, 2.0])
    assert search(found, Score({2: 5.0, 0: 4.5}), margin=0.5).keep == {"a": ()}


def test_a_given_best_takes_the_place_of_the_unpruned_score():
    found = activity(a=[1.0, 2.0, 3.0])
    score = Score({0: 4.0, 1: 6.0})
    made = search(found, score, best=6.5, margin=1.0)
    assert made.best == 6.5
    assert made.keep == {"a": (2,)}
    assert made.num_evaluations == 2


def test_no_threshold_within_the_margin_is_an_error_that_says_what_the_network_scores():
    found = activity(a=[1.0, 2.0, 3.0])
    expected = (
        "no threshold stays within 0.5 of 9: the unpruned network itself scores 7. "
        "Train longer, or allow a larger margin"
    )
    score = Score(lambda _: 7.0)
    with pytest.raises(PruningError, match=expected):
        search(found, score, best=9.0, margin=0.5)
    assert len(score.asked) == 4


def test_neurons_that_never_fire_are_dropped_if_the_score_allows():
    found = activity(a=[0.0, 0.0, 1.0])
    by_count = {3: 5.0, 0: 0.0, 1: 5.0}
    assert search(found, Score(by_count)).keep == {"a": (2,)}
    with_dead_ones = search(found, Score({3: 5.0, 0: 0.0, 1: 4.0}))
    assert with_dead_ones.keep == {"a": (0, 1, 2)}
    assert with_dead_ones.thresholds == {"a": KEEP_ALL}


def test_per_layer_goes_on_from_the_common_threshold():
    found = activity(a=[1.0, 2.0, 3.0], b=[1.0, 5.0, 6.0])

    def score(keep: Mapping[str, tuple[int, ...]], at_least: float | None) -> float:
        return float(2 in keep["a"] and 2 in keep["b"])

    common = search(found, score)
    assert common.thresholds == {"a": 2.0, "b": 2.0}
    assert common.keep == {"a": (2,), "b": (1, 2)}
    made = search(found, score, per_layer=True)
    assert made.thresholds == {"a": 2.0, "b": 5.0}
    assert made.keep == {"a": (2,), "b": (2,)}
    assert made.score == 1.0
    assert made.curve[-1].theta is None


activities = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=12)


@given(activities, activities, st.randoms(use_true_random=False), st.sampled_from([None, 30]))
def test_the_highest_of_all_thresholds_is_found_for_any_score(one, two, random, resolution):
    found = activity(a=one, b=two)
    table = [random.random() for _ in range(len(one) + len(two) + 1)]
    score = Score(table.__getitem__)
    made = search(found, score, margin=0.2, resolution=resolution)
    candidates = sorted({*one, *two, 0.0}, reverse=True)
    within = [
        theta
        for theta in [*candidates, KEEP_ALL]
        if table[sum(v > theta for v in [*one, *two])] >= table[-1] - 0.2
    ]
    assert survivors(found, dict.fromkeys("ab", within[0])) == made.keep
    assert made.thresholds["a"] == within[0]
    assert len(set(score.asked)) == len(score.asked)


def test_a_coarse_search_tries_strides_from_the_top_and_halves_the_gap():
    found = activity(a=[float(n) for n in range(1, 101)])
    score = Score(lambda num: float(num >= 47))
    assert search(found, score, resolution=10).kept == {"a": 47}
    assert [len(keep) for (keep,) in score.asked] == [100, 0, 11, 22, 33, 44, 55, 49, 46, 47]
    # The first that holds counts, although fewer strides below it would not hold.
    score = Score(lambda num: float(19 <= num <= 22 or num >= 47))
    assert search(found, score, resolution=10).kept == {"a": 19}
    assert [len(keep) for (keep,) in score.asked] == [100, 0, 11, 22, 16, 19, 17, 18]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 12))
def test_any_resolution_finds_the_highest_threshold_of_a_monotone_score(size, needed, resolution):
    found = activity(a=[float(n) for n in range(1, size + 1)])
    needed = min(needed, size)
    made = search(found, Score(lambda num: float(num >= needed)), resolution=resolution)
    assert made.kept == {"a": needed}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"margin": -0.1}, "margin is -0.1. It must be a number, 0 or more"),
        ({"margin": math.nan}, "margin is nan. It must be a number, 0 or more"),
        ({"margin": "1"}, "margin is '1'. It must be a number, 0 or more"),
        ({"margin": None}, "plan_pruning needs score and margin, or thresholds"),
        ({"resolution": 0}, "resolution is 0. It must be a whole number, 1 or more"),
        ({"resolution": "5"}, "resolution is '5'. It must be a whole number, 1 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, expected):
    score = Score(lambda _: 1.0)
    with pytest.raises(ArgumentError, match=expected):
        search(activity(a=[1.0]), score, **options)
    assert score.asked == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "score returned nan. It must be a finite number"),
        (-math.inf, "score returned -inf. It must be a finite number"),
        (None, r"score returned None \(NoneType\), not a number. It must be one number, higher is"),
        ("good", r"score returned 'good' \(str\), not a number"),
        (torch.ones(3), r"\(Tensor\), not a number"),
    ],
)
def test_a_score_that_is_no_number_is_refused(value, expected):
    with pytest.raises(PruningError, match=expected):
        search(activity(a=[1.0]), lambda keep, at_least: value)


@pytest.mark.parametrize(
    ("best", "expected"), [(math.nan, "best is nan. It must be a fin"), ("x", "best is 'x'")]
)
def test_a_best_score_that_is_no_number_is_refused(best, expected):
    with pytest.raises(PruningError, match=expected):
        search(activity(a=[1.0]), Score(lambda _: 1.0), best=best)


def test_a_score_is_told_what_is_needed_except_of_the_unpruned_network():
    found, needed = activity(a=[float(n) for n in range(1, 11)]), {}

    def score(keep: Mapping[str, tuple[int, ...]], at_least: float | None) -> float:
        needed[len(keep["a"])] = at_least
        return 10.0 * len(keep["a"])

    made = search(found, score, margin=35.0)
    assert made.kept == {"a": 7}
    assert needed == {10: None, **dict.fromkeys(range(8), 65.0)}
    needed.clear()
    with pytest.raises(PruningError, match="the unpruned network itself scores 100"):
        search(found, score, margin=35.0, best=200.0)
    assert needed == {10: None, **dict.fromkeys(range(10), 165.0)}


def test_a_score_that_gives_up_early_makes_the_same_plan():
    found = activity(a=[float(n) for n in range(1, 41)], b=[float(n % 7) for n in range(40)])
    true = {n: 100 - 60 * math.exp(-n / 9) - (n % 5) for n in range(81)}

    def patient(keep: Mapping[str, tuple[int, ...]], at_least: float | None) -> float:
        return true[sum(map(len, keep.values()))]

    def hasty(keep: Mapping[str, tuple[int, ...]], at_least: float | None) -> float:
        score = patient(keep, None)
        return score - 1000 if at_least is not None and score < at_least else score

    for margin in (0.0, 3.0, 20.0):
        for per_layer in (False, True):
            for resolution in (None, 4):
                options = {"margin": margin, "per_layer": per_layer, "resolution": resolution}
                one, two = (search(found, score, **options) for score in (patient, hasty))
                assert (one.keep, one.score, one.best) == (two.keep, two.score, two.best)


def test_a_plan_describes_itself():
    made = search(activity(a=[1.0, 2.0, 3.0]), Score({3: 5.0, 0: 4.0, 1: 4.5}), margin=0.5)
    assert made.task == "a"
    assert made.available == {"a": 3}
    assert str(made) == "keep a 1 of 3, score 4.5 (best 5, margin 0.5), 3 evaluations"
    assert "curve" not in repr(made)


@pytest.fixture
def net() -> clnp.ContinualNet:
    """A dense network with an open task, in which two neurons of fc1 and one of fc2 are dead."""
    made = make()
    made.begin_task("a")
    with torch.no_grad():
        made.model.fc1.bias_free[[1, 4]] = -1e4
        made.model.fc2.bias_free[0] = -1e4
        made.model.fc1.bias_free[[0, 2, 3, 5, 6]] = 1.0
        made.model.fc2.bias_free[1:] = 1.0
    return made


X = example("mlp")


def test_a_threshold_of_zero_keeps_exactly_the_neurons_that_ever_fire(net):
    found = net.measure_activity([X])
    made = net.plan_pruning(found, thresholds=0)
    assert made.keep == {"fc1": (0, 2, 3, 5, 6), "fc2": (1, 2, 3, 4)}
    net.eval()
    before = net(X)
    net.end_task(made)
    assert net.ledger.claimed() == {"fc1": 5, "fc2": 4}
    torch.testing.assert_close(net(X, task="a"), before)


def test_a_neuron_that_fires_once_survives_a_threshold_of_zero(net):
    with torch.no_grad():
        net.model.fc1.weight_free[1] = 0.0
        net.model.fc1.weight_free[1, 0] = 1.0
        net.model.fc1.bias_free[1] = -float(X[:, 0].sort().values[-2:].mean())
    made = net.plan_pruning(net.measure_activity([X]), thresholds=0.0)
    assert 1 in made.keep["fc1"]
    assert 4 not in made.keep["fc1"]


def test_given_thresholds_are_used_as_they_are(net):
    found = net.measure_activity([X])
    theta = float(found["fc1"].median())
    for thresholds in ({"fc1": theta}, {"fc1": theta, "fc2": -1}):
        made = net.plan_pruning(found, thresholds=thresholds)
        assert made.keep["fc1"] == tuple((found["fc1"] > theta).nonzero().flatten().tolist())
        assert made.keep["fc2"] == (0, 1, 2, 3, 4)
        assert made.score is None
        assert made.num_evaluations == 0
    assert str(made) == "keep fc1 3 of 7, fc2 5 of 5, 0 evaluations"


def test_a_given_threshold_is_scored_once_if_a_score_is_given(net):
    found = net.measure_activity([X])
    shapes = []

    def score(predict: Callable[[Tensor], Tensor]) -> float:
        shapes.append(predict(X).shape)
        return 3.0

    made = net.plan_pruning(found, score, thresholds=0.0)
    assert shapes == [(8, 4)]
    assert made.score == 3.0
    assert made.curve == (CurvePoint({"fc1": 0.0, "fc2": 0.0}, {"fc1": 5, "fc2": 4}, 3.0),)
    assert str(made) == "keep fc1 5 of 7, fc2 4 of 5, score 3, 1 evaluation"


@pytest.mark.parametrize("options", [{"margin": 1.0}, {"best": 1.0}, {"per_layer": True}])
def test_given_thresholds_and_a_margin_do_not_go_together(net, options):
    found = net.measure_activity([X])
    with pytest.raises(ArgumentError, match="Leave margin, best and per_layer out"):
        net.plan_pruning(found, thresholds=0.0, **options)


def test_the_score_is_handed_exactly_what_the_ended_task_will_be(net):
    learned = []
    net.end_task(first({"fc1": 3, "fc2": 2}))
    net.begin_task("b")
    found = net.measure_activity([X])

    def score(predict: Callable[[Tensor], Tensor]) -> float:
        learned.append(predict(X))
        return -float(len(learned) < 3)

    made = net.plan_pruning(found, score, margin=0.0, best=0.0)
    net.end_task(made)
    assert torch.equal(net(X, task="b"), learned[-1])


def test_the_score_may_run_ended_tasks_in_between(net):
    net.end_task(first({"fc1": 3, "fc2": 2}))
    before = net(X, task="a")
    net.begin_task("b")

    def score(predict: Callable[[Tensor], Tensor]) -> float:
        seen = predict(X)
        assert torch.equal(net(X, task="a"), before)
        net(X)
        assert torch.equal(predict(X), seen)
        return 1.0

    net.plan_pruning(net.measure_activity([X]), score, margin=0.0, allow_guessing=True)


def test_scores_are_taken_without_gradients_in_evaluation_mode():
    net, x = make("conv"), example("conv")
    net.begin_task("a")
    net.train()

    def score(predict: Callable[[Tensor], Tensor]) -> float:
        outputs = predict(x.clone().requires_grad_())
        assert not outputs.requires_grad
        assert torch.equal(predict(x), outputs)
        return 1.0

    net.plan_pruning(net.measure_activity([x]), score, margin=0.0, allow_guessing=True)
    assert all(module.training for module in net.modules())


def test_an_exception_in_the_score_comes_out_as_it_is(net):
    def score(predict: object) -> float:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        net.plan_pruning(net.measure_activity([X]), score, margin=0.0)
    net.eval()
    assert bool(net(X).isfinite().all())


@pytest.mark.parametrize("when", ["pruned", "next task"])
def test_activity_of_another_time_is_refused(net, when):
    found = net.measure_activity([X])
    if when == "pruned":
        net.prune({"fc1": [0, 1]})
    else:
        net.end_task(first({"fc1": 3}))
        net.begin_task("b")
    with pytest.raises(PruningError, match="this activity does not belong to the open task as it"):
        net.plan_pruning(found, thresholds=0.0)


OWN = {"fc1": [3.0, 0, 1, 0, 0, 2, 0], "fc2": torch.arange(5)}


def test_importance_may_be_numbers_of_ones_own(net):
    plan = net.plan_pruning(OWN, thresholds=0.5)
    assert plan.keep == {"fc1": (0, 2, 5), "fc2": (1, 2, 3, 4)}
    assert plan.reused == {"fc1": None, "fc2": None}
    net.end_task(plan)
    net.begin_task("b")
    net.end_task(net.plan_pruning({"fc1": [1.0] * 4, "fc2": [1.0]}, thresholds=0.0))
    assert net.capacity().of("b", "fc1").reused is None


def test_importance_of_ones_own_has_the_precision_of_a_float(net):
    """In single precision 0.1 is above 0.1."""
    plan = net.plan_pruning({**OWN, "fc1": [0.1, 0.2, 0.1, 0, 0, 0.3, 0]}, thresholds=0.1)
    assert plan.keep["fc1"] == (1, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0], "importance is of type list. It must be what measure_activity returns, or a num"),
        ({"fc1": OWN["fc1"]}, "importance lacks fc2. Give a number for each free neuron of every"),
        (
            {**OWN, "fc2": [1.0]},
            r"importance of fc2 has shape \[1\]. .* each of its 5 free",
        ),
        ({**OWN, "fc2": torch.ones(5, 1)}, r"importance of fc2 has shape \[5, 1\]. It must have a"),
        ({**OWN, "fc2": "size"}, "importance of fc2 is 'size'. It must be a tensor of 5 numbers"),
        ({**OWN, "fc2": [1, 2, -3, 4, 5]}, "importance of fc2 holds -3.0. It must be finite"),
        ({**OWN, "fc2": [1, 2, math.nan, 4, 5]}, "importance of fc2 holds nan. It must be finite"),
        ({**OWN, "fc3": [1.0]}, "fc3"),
    ],
)
def test_importance_of_ones_own_is_checked(net, given, message):
    with pytest.raises(ArgumentError, match=message):
        net.plan_pruning(given, thresholds=0.0)


@pytest.mark.parametrize("when", ["pruned", "next task", "same widths"])
@pytest.mark.parametrize("call", ["prune", "end_task"])
def test_a_plan_of_another_time_is_refused(net, call, when):
    made = net.plan_pruning(net.measure_activity([X]), thresholds=0.0)
    if when == "pruned":
        net.prune({"fc1": [0, 1]})
    elif when == "next task":
        net.end_task(first({"fc1": 3}))
        net.begin_task("b")
    else:
        net.abandon_task()
        net.begin_task("b")
    expected = rf"this plan was made for task 'a' .*Make one for '{net.open_task}' as it is now"
    with pytest.raises(PruningError, match=expected):
        getattr(net, call)(made)
    assert net.open_task is not None


@pytest.mark.parametrize("kept", [(0, 0), (0,) * 20, (7,)])
@pytest.mark.parametrize("call", ["prune", "end_task"])
def test_a_plan_of_neurons_that_are_not_free_is_refused(net, call, kept):
    made = net.plan_pruning(net.measure_activity([X]), thresholds=0.0)
    with pytest.raises(PruningError, match=r"fc1: (a neuron is named twice|7 is no free neuron)"):
        getattr(net, call)(replace(made, keep={**made.keep, "fc1": kept}))
    assert net.ledger.tasks == ()


def same_score(predict):
    """Whatever the network says."""
    predict(X)
    return 1.0


def test_the_plan_of_a_later_task_counts_from_its_own_free_neurons(net):
    learn_first = first({"fc1": 3, "fc2": 2})
    net.end_task(learn_first)
    net.begin_task("b")
    made = net.plan_pruning(net.measure_activity([X]), same_score, margin=0.0, allow_guessing=True)
    assert made.available == {"fc1": 4, "fc2": 3}
    assert made.kept == {"fc1": 0, "fc2": 0}
    assert made.num_evaluations == 2
    net.end_task(made)
    assert net.ledger.claimed() == {"fc1": 3, "fc2": 2}


def test_a_full_network_has_nothing_to_prune():
    net = make()
    net.begin_task("a")
    net.end_task()
    net.begin_task("b")
    made = net.plan_pruning(net.measure_activity([X]), same_score, margin=0.0, per_layer=True)
    assert made.kept == {"fc1": 0, "fc2": 0}
    assert made.num_evaluations == 1
    net.end_task(made)


def test_a_score_that_is_not_defined_for_few_neurons_is_too_low():
    """A correlation of outputs that are all the same, say."""

    def score(keep, at_least):
        return math.nan if len(keep["a"]) < 2 else 10.0

    made = search(activity(a=[1.0, 2.0, 3.0]), score, margin=1.0)
    assert made.kept == {"a": 2}
    assert all(math.isfinite(point.score) for point in made.curve)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """The graph of a network with BatchNorm: groups conv1, conv2 and fc1, classifier fc2."""
    return clnp.ContinualNet(ConvNet(), example("conv")).graph


def test_one_threshold_is_for_all_groups(graph):
    assert threshold_by_group(graph, 2) == {"conv1": 2.0, "conv2": 2.0, "fc1": 2.0}


def test_thresholds_name_groups_or_layers_in_them(graph):
    found = threshold_by_group(graph, {"bn1": 0.5, "fc1": math.inf})
    assert found == {"conv1": 0.5, "conv2": -1, "fc1": math.inf}


@pytest.mark.parametrize("name", ["fc2", "dropout", "conv9"])
def test_a_threshold_for_no_group_is_refused(graph, name):
    with pytest.raises(ArgumentError, match=f"unknown group '{name}'.*Known: conv1, conv2, fc1"):
        threshold_by_group(graph, {name: 0.0})


@pytest.mark.parametrize("value", [math.nan, False, None, "0"])
def test_a_threshold_that_is_no_number_is_refused(graph, value):
    with pytest.raises(ArgumentError, match=f"threshold is {value!r}. It must be a number"):
        threshold_by_group(graph, value)
    with pytest.raises(ArgumentError, match=f"threshold of fc1 is {value!r}. It must be a number"):
        threshold_by_group(graph, {"fc1": value})


AVAILABLE = {"conv1": 6, "conv2": 5, "fc1": 7}


@pytest.mark.parametrize(
    "neurons",
    [[4, 0], (4, 0), {0, 4}, torch.tensor([4, 0]), np.array([4, 0]), iter([4, 0])],
)
def test_neurons_may_be_given_in_any_form_and_order(graph, neurons):
    found = neurons_by_group(graph, {"bn1": neurons}, AVAILABLE)
    assert {group: list(values) for group, values in found.items()} == {
        "conv1": [0, 4],
        "conv2": [0, 1, 2, 3, 4],
        "fc1": [0, 1, 2, 3, 4, 5, 6],
    }


def test_no_neurons_may_be_named(graph):
    assert neurons_by_group(graph, {"fc1": []}, AVAILABLE)["fc1"] == []
    assert neurons_by_group(graph, {"fc1": torch.tensor([])}, AVAILABLE)["fc1"] == []


@pytest.mark.parametrize("value", [7, -1, True, 1.0, "1", None])
def test_a_neuron_that_is_not_there_is_refused(graph, value):
    expected = f"fc1: {value!r} is no free neuron; the open task has 7, numbered from 0"
    with pytest.raises(PruningError, match=expected):
        neurons_by_group(graph, {"fc1": [0, value]}, AVAILABLE)


def test_a_neuron_that_is_named_twice_is_refused(graph):
    with pytest.raises(PruningError, match="fc1: a neuron is named twice"):
        neurons_by_group(graph, {"fc1": [1, 2, 1]}, AVAILABLE)


def test_a_group_may_go_by_one_name_only(graph):
    twice = pytest.raises(ArgumentError, match=r"bn1 and conv1 are the same group\. Name it once")
    with twice:
        extra_by_group(graph, {"conv1": 1, "bn1": 2})
    with twice:
        threshold_by_group(graph, {"conv1": 0.1, "bn1": 0.2})
    with twice:
        neurons_by_group(graph, {"conv1": [0], "bn1": [1]}, {"conv1": 6, "conv2": 5, "fc1": 7})


@pytest.mark.parametrize("count", [-1, 1.0, True, None])
def test_a_number_of_extra_neurons_that_makes_no_sense_is_refused(graph, count):
    expected = f"the number of new neurons of fc1 is {count!r}. It must be a whole number, 0 or"
    with pytest.raises(ArgumentError, match=expected):
        extra_by_group(graph, {"fc1": count})
    with pytest.raises(ArgumentError, match=r"unknown group 'fc2'. Did you mean 'fc1'"):
        extra_by_group(graph, {"fc2": 1})


def learned(*, head="multi", num_tasks=1):
    """Return a network that has learned tasks of two classes, the last one still open."""
    net = make(head=head)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    for number in range(num_tasks):
        if number:
            net.end_task()
            net.widen({"fc1": 4, "fc2": 4})
        net.begin_task(f"task {number}", 2)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for _ in range(80):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    def score(predict: Callable[[Tensor], Tensor]) -> float:
        return float((predict(x).argmax(1) == y).float().mean())

    def loss(predict: Callable[[Tensor], Tensor]) -> float:
        return float(torch.nn.functional.cross_entropy(predict(x), y))

    return net, net.measure_activity([x]), score, loss


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("num_tasks", [1, 2])
def test_a_score_from_0_to_1_with_a_margin_of_1_is_refused(head, num_tasks):
    net, found, score, _ = learned(head=head, num_tasks=num_tasks)
    message = (
        r"a network whose outputs do not depend on the input scores 0\.[45]\d*, which is within "
        r"the margin of 1 of the best score, 1: nothing would be kept\. Give score and margin \(1\)"
    )
    with pytest.raises(PruningError, match=message):
        net.plan_pruning(found, score, margin=1)
    assert net.plan_pruning(found, score, margin=1, allow_guessing=True).num_kept == 0
    assert net.plan_pruning(found, score, margin=0.1).num_kept < sum(found.num_free().values())


def test_a_loss_given_as_the_score_is_refused():
    net, found, _, loss = learned()
    message = r"more than the best score, 0\.\d+. If the score is a loss, return its negative"
    with pytest.raises(PruningError, match=message):
        net.plan_pruning(found, loss, margin=0.1)
    net.plan_pruning(found, lambda predict: -loss(predict), margin=0.1)


def test_what_gives_the_same_outputs_for_every_input_is_refused():
    """Although they are better than those of the head's bias alone: of the larger class, say."""
    found = activity(a=[1.0, 2.0], b=[3.0, 4.0])
    by_count = Score(lambda count: {0: 10.0, 1: 91.0}.get(count, 95.0))
    message = "what is left within the margin of 5 gives the same outputs for every input: it scor"
    asked = []

    def ignores_input(keep: Mapping[str, tuple[int, ...]]) -> bool:
        asked.append(dict(keep))
        return True

    options = {"margin": 5.0, "ignores_input": ignores_input}
    with pytest.raises(PruningError, match=message) as caught:
        search(found, by_count, allow_guessing=False, **options)
    assert caught.value.guesses
    assert asked == [{"a": (), "b": (1,)}]
    assert search(found, by_count, **options).num_kept == 1
    # Both groups keep neurons: what they give is not asked.
    search(activity(a=[4.0, 1.0], b=[4.0]), by_count, allow_guessing=False, **options)
    assert len(asked) == 1


@pytest.mark.parametrize("head", HEADS)
def test_neurons_that_nothing_reaches_give_the_same_outputs(head):
    net, _, score, _ = learned(head=head)
    subsets = Subsets(net._body, score)
    free = {group: range(count) for group, count in net.ledger.free().items()}
    assert not subsets.ignores_input({**free, "fc1": (0, 1, 2, 3)})
    assert subsets.ignores_input({**free, "fc1": ()})
    assert subsets.ignores_input({**free, "fc2": ()})


def test_a_margin_of_half_of_what_was_learned_is_a_warning():
    net, found, score, _ = learned()
    message = r"the best score is 1: the margin gives up more than half of what the task has learne"
    with pytest.warns(UserWarning, match=message) as seen:
        net.plan_pruning(found, score, margin=0.35)
    assert seen[0].filename == __file__


def test_a_later_task_may_keep_nothing_and_do_well_on_what_it_reuses():
    net, found, score, _ = learned(num_tasks=2)
    asked = []

    def percent(predict: Callable[[Tensor], Tensor]) -> float:
        asked.append(100 * score(predict))
        return asked[-1]

    made = net.plan_pruning(found, percent, margin=5.0)
    assert made.num_kept == 0
    assert made.score > 90
    # Two more evaluations, which are not in the curve: of the head's bias, and of the plan.
    assert asked[-2] < 60
    assert asked[-1] == made.score
    assert asked[:-2] == [point.score for point in made.curve]


def test_an_ordinary_plan_needs_no_further_evaluation():
    net, found, score, _ = learned()
    asked, seen = [], []

    def percent(predict: Callable[[Tensor], Tensor]) -> float:
        asked.append(100 * score(predict))
        return asked[-1]

    made = net.plan_pruning(found, percent, margin=2.0, on_evaluation=seen.append)
    assert 0 < made.num_kept < 12
    assert len(asked) == made.num_evaluations
    assert tuple(seen) == made.curve


def test_an_evaluation_that_is_not_defined_is_progress_too():
    seen = []
    score = {2: 1.0, 0: math.nan}
    made = search(
        activity(a=[1.0, 1.0]), lambda keep, _: score[len(keep["a"])], on_evaluation=seen.append
    )
    assert [point.num_kept for point in seen] == [2, 0]
    assert made.num_evaluations == 1


def test_a_given_set_of_thresholds_is_an_evaluation():
    net, found, score, _ = learned()
    seen = []
    made = net.plan_pruning(found, score, thresholds=1e9, on_evaluation=seen.append)
    assert tuple(seen) == made.curve
    assert made.num_kept == 0


@pytest.mark.parametrize("interrupted", [1, 3])
def test_an_interrupted_plan_leaves_the_network_as_it_was(interrupted):
    net, found, score, _ = learned(num_tasks=2)
    before, mode = net.state_dict(), net.training
    before = {name: tensor.clone() for name, tensor in before.items()}
    outputs = net.eval()(X), net(X, task="task 0")
    net.train(mode)
    asked = []

    def pressed(predict: Callable[[Tensor], Tensor]) -> float:
        asked.append(score(predict))
        if len(asked) == interrupted:
            raise KeyboardInterrupt
        return asked[-1]

    with pytest.raises(KeyboardInterrupt):
        net.plan_pruning(found, pressed, margin=0.0)
    assert (net.training, net.open_task) == (mode, "task 1")
    after = net.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(net.eval()(X), outputs[0])
    assert torch.equal(net(X, task="task 0"), outputs[1])
    net.end_task(net.plan_pruning(found, score, margin=0.0))
