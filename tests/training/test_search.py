import itertools
import math

import pytest

from clnp.training.search import NUM_SPREAD, Between, OneOf, SpreadThenNear, Times, Trial

SPACE = {"strength": Between(1e-2, 1e3), "kept": OneOf((False, True))}
SEARCH = SpreadThenNear(SPACE, "ewc")


def tried(settings, scores):
    return [Trial(each, score) for each, score in zip(settings, scores, strict=True)]


@pytest.mark.parametrize("log", [True, False])
def test_a_range_has_a_number_at_every_position(log):
    values = Between(1.0, 100.0, log=log)
    assert [values.at(0.0), values.at(1.0)] == [1.0, 100.0]
    assert values.at(0.5) == (10.0 if log else 50.0)  # Two digits.
    assert values.position(values.at(0.5)) == pytest.approx(0.5, abs=0.01)
    assert (values.position(0.1), values.position(1e9)) == (0.0, 1.0)


def test_a_range_around_a_number_is_in_proportion_to_it():
    assert Times(0.1, 3.0).around(0.02) == Between(0.002, 0.06)


def test_values_without_an_order_share_the_positions():
    values = OneOf(("a", "b"))
    assert [values.at(x) for x in (0.0, 0.49, 0.5, 1.0)] == ["a", "a", "b", "b"]
    assert [values.at(values.position(value)) for value in ("a", "b", "c")] == ["a", "b", "a"]


def test_the_first_trials_are_spread_over_the_ranges():
    found = SEARCH.ask([], NUM_SPREAD)
    decades = sorted(math.log10(each["strength"]) for each in found)
    gaps = [after - before for before, after in itertools.pairwise(decades)]
    assert max(gaps) < 1.4  # Of five decades.
    assert {each["kept"] for each in found} == {False, True}


def test_a_search_depends_on_its_history_and_its_seed_alone():
    whole = SEARCH.ask([], 4)
    first = SEARCH.ask([], 2)
    assert [*first, *SEARCH.ask(tried(first, [None, None]), 2)] == whole
    assert SpreadThenNear(SPACE, "si").ask([], 4) != whole


def test_later_trials_are_near_the_best_one():
    settings = [{"strength": 10.0**n, "kept": n == 2} for n in range(-2, 2)] * 4
    # The highest score counts; a trial that failed has none.
    history = tried(settings, [50.0, 90.0, None, 80.0] * 4)
    found = SEARCH.ask(history, 100)
    near = [each for n, each in enumerate(found, len(history)) if n % 4]
    assert sum(0.01 < each["strength"] < 1.0 for each in near) > 60
    assert len({each["strength"] for each in near}) > 20
    far = [each for n, each in enumerate(found, len(history)) if n % 4 == 0]
    assert max(each["strength"] for each in far) > 100


def test_without_a_finished_trial_the_search_goes_on_spreading():
    failed = tried(SEARCH.ask([], 20), [None] * 20)
    assert SEARCH.ask(failed, 4) == SEARCH.ask([], 24)[20:]
