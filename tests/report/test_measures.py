import math

import pytest

from clnp.report.collection import read_collection
from clnp.report.measures import (
    Mean,
    average_after,
    by_task,
    claimed_shares,
    free_share,
    free_shares,
    members_table,
    over_runs,
    reused_share,
    spread_of,
    used_share,
)
from clnp.runs.history import read_run
from support.written_runs import change, raise_scores, write_comparison, write_run, write_series


def test_a_spread_is_over_what_is_finite():
    found = spread_of([1.0, None, 3.0, math.nan, math.inf])
    assert found == Mean(2.0, pytest.approx(math.sqrt(2)), 2)
    assert spread_of([None, math.nan]) is None


def test_rows_of_different_lengths_are_averaged_as_far_as_they_go():
    assert over_runs([[1.0, 2.0], [3.0]]) == [spread_of([1.0, 3.0]), spread_of([2.0])]
    assert over_runs([]) == []


def test_shares_of_neurons(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    assert used_share(run, "fc2") == [0, 4, 12, 24]
    assert used_share(run, "unknown") == []
    assert free_share(run) == pytest.approx((88 + 76) / 2)
    assert reused_share(run.tasks[0], "fc1") == 0
    assert reused_share(run.tasks[1], "fc1") == 20
    assert reused_share(run.tasks[1], "unknown") is None
    assert average_after(run) == [91.0, 91.5, 92.0]


def test_members_are_averaged_over_their_seeds(tmp_path):
    (member,) = read_collection([write_series(tmp_path / "series")]).members
    assert by_task(member, lambda task: task.now)[0].mean == 91.5
    assert claimed_shares(member, "fc1") == [2, 4, 6]
    assert free_shares(member) == {"fc1": 88, "fc2": 76}


def test_a_run_that_learned_fewer_tasks_has_claimed_nothing_for_the_others(tmp_path):
    """Shares and what is free of it are those of the same runs."""
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", num_learned=1, seed=1)]
    (member,) = read_collection(runs).members
    assert claimed_shares(member, "fc1") == [2, 2, 3]
    free = [100 - used_share(run, "fc1")[-1] for run in member.runs]
    assert 100 - sum(claimed_shares(member, "fc1")) == sum(free) / 2


def table_of(*paths):
    """The table of members: the shown value by label and title."""
    table = members_table(read_collection(paths))
    rows = [dict(zip(table.header, map(shown, row), strict=True)) for row in table.rows]
    return {row["run"]: row for row in rows}


def shown(cell):
    return None if cell is None else str(cell)


def test_the_columns_of_a_comparison(tmp_path):
    found = table_of(write_comparison(tmp_path / "compared"))
    clnp, ewc = found["clnp"], found["ewc"]
    assert clnp["average"] == "92.50 ± 0.71"
    assert clnp["forgetting"] == clnp["forward transfer"] == "0.00 ± 0.00"
    assert ewc["forgetting"] == "1.50 ± 0.00"
    assert ewc["backward transfer"] == "-1.50 ± 0.00"
    assert (clnp["free neurons, %"], ewc["free neurons, %"]) == ("82.0 ± 0.0", None)
    assert (clnp["stored, MB"], clnp["seconds"]) == ("2.50 ± 0.00", "60 ± 0")


def test_a_column_that_nobody_has_anything_in_is_left_out(tmp_path):
    found = table_of(write_run(tmp_path / "run", stored_bytes=None))["run"]
    assert "forward transfer" not in found
    assert "stored, MB" not in found


def transfers(*paths):
    """The forward transfer of every member, by its label."""
    return {label: row["forward transfer"] for label, row in table_of(*paths).items()}


def test_tasks_are_held_against_those_alone_of_the_same_comparison(tmp_path):
    first = write_comparison(tmp_path / "first", methods=("clnp", "single"))
    second = write_comparison(tmp_path / "second", methods=("clnp", "single"))
    for seed in (0, 1):
        raise_scores(second / "single" / f"seed{seed}", 5)
    assert transfers(first, second) == {
        "first/clnp": "0.00 ± 0.00",
        "first/single": "0.00 ± 0.00",
        "second/clnp": "-5.00 ± 0.00",
        "second/single": "0.00 ± 0.00",
    }
    # Which of the two it would be is not known.
    other = write_series(tmp_path / "other", margin=3.0)
    assert transfers(first, second, other)["other/other"] is None


def test_runs_beside_a_comparison_are_held_against_the_same_tasks_alone(tmp_path):
    compared = write_comparison(tmp_path / "compared", methods=("ewc", "single"))
    same = write_series(tmp_path / "same", seeds=(1, 0))
    assert transfers(compared, compared / "single", same)["same/same"] == "0.00 ± 0.00"
    more = write_series(tmp_path / "more", seeds=(0, 1, 2))
    assert transfers(compared, more)["clnp"] is None  # One of its seeds is not there.
    others = write_series(tmp_path / "others", tasks=("low", "high", "low again"))
    assert transfers(compared, others)["clnp"] is None
    heads = write_series(tmp_path / "heads")
    for seed in (0, 1):
        change(heads / f"seed{seed}", "config.json", head="single")
    assert transfers(compared, heads)["clnp"] is None


def test_the_number_of_tasks_is_a_column_if_runs_differ(tmp_path):
    compared = write_comparison(tmp_path / "compared")
    assert "tasks learned" not in table_of(compared)["clnp"]
    write_run(compared / "clnp/seed1", seed=1, num_learned=2)
    found = table_of(compared)
    assert found["clnp"]["tasks learned"] == "2.5 ± 0.7"
    assert found["single"]["tasks learned"] == "3.0 ± 0.0"


def test_a_run_without_a_learned_task_does_not_count(tmp_path):
    compared = write_comparison(tmp_path / "compared")
    (write_run(compared / "clnp/seed1", seed=1, num_learned=0) / "result.json").unlink()
    assert table_of(compared)["clnp"]["average"] == "92.00"
