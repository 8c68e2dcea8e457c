import csv
import json

import pytest

from clnp.errors import RunError
from clnp.plain import to_json, to_plain
from clnp.records import (
    CapacityRecord,
    RunResult,
    SettingsSource,
    Spread,
    TaskRecord,
    TaskSummary,
    Timings,
)
from clnp.studies.summaries import (
    aggregate,
    comparison_table,
    described,
    plus_minus,
    rows_of,
    texts,
)


def result(seed, scores, free=1, *, test_scores=None, unchanged=True, num_tasks=None):
    return RunResult(
        finished=True,
        seed=seed,
        num_tasks=num_tasks or len(scores),
        tasks=tuple(
            TaskRecord(f"t{index}", test_score=score, unchanged=unchanged)
            for index, score in enumerate(test_scores or scores)
        ),
        scores=tuple(tuple(scores[: index + 1]) for index in range(len(scores))),
        capacity=CapacityRecord(sizes={"fc1": 200}, free={"fc1": free}),
        timings=Timings(seconds=10.0 * (seed + 1)),
    )


def test_means_and_deviations_over_the_seeds():
    summary = aggregate([result(0, [90.0, 80.0], 100), result(3, [94.0, 82.0], 140)])
    assert (summary.seeds, summary.num_tasks) == ((0, 3), (2, 2))
    assert summary.average == Spread(86.5, pytest.approx(2.1213, abs=1e-3))
    assert summary.tasks[0] == TaskSummary("t0", 92.0, pytest.approx(2.828427))
    assert summary.used["fc1"] == Spread(40.0, pytest.approx(14.142136))
    assert (summary.forgetting, summary.unchanged, summary.seconds.mean) == (0.0, True, 25.0)
    text = described(summary)
    assert text.startswith("2 seeds, mean ± standard deviation\n")
    assert "average  86.50 ± 2.12" in text
    assert "fc1        40.0 ± 14.1" in text
    assert text.endswith("to the last bit.")


def test_one_seed_has_no_deviation():
    summary = aggregate([result(0, [90.0], 100)])
    assert summary.average == Spread(90.0, 0.0)
    assert described(summary).startswith("1 seed\n")
    assert "±" not in described(summary)


def test_runs_of_different_lengths_share_their_first_tasks():
    runs = [result(0, [90.0, 80.0], num_tasks=3), result(1, [94.0], num_tasks=3)]
    summary = aggregate(runs)
    assert [task.task for task in summary.tasks] == ["t0"]
    assert (summary.num_tasks, summary.num_tasks_in_all) == ((2, 1), 3)
    assert "deviation\nlearned: 2, 1 of 3 tasks, averaged over these\n\n" in described(summary)
    assert list(to_plain(summary))[1:4] == ["num_tasks", "num_tasks_in_all", "average"]
    assert aggregate([result(0, [94.0]), result(1, [90.0, 80.0])]).num_tasks_in_all == 2
    whole = aggregate([result(0, [90.0, 80.0])])
    assert "num_tasks_in_all" not in to_plain(whole)
    assert "learned" not in described(whole)


def test_forgetting_is_the_largest_loss():
    summary = aggregate([result(0, [90.0, 80.0], test_scores=[93.5, 80.0], unchanged=False)])
    assert summary.forgetting == 3.5
    assert "outputs have changed, and a task lost 3.50 at most" in described(summary)


def test_a_summary_needs_results():
    with pytest.raises(RunError, match=r"No run of the series is finished\."):
        aggregate([])
    with pytest.raises(RunError, match=r"ended no task\."):
        aggregate([result(0, [90.0]), result(1, [])])


def test_a_mean_with_its_deviation():
    assert plus_minus(Spread(98.456, 0.0349)) == "98.46 ± 0.03"
    assert plus_minus(Spread(98.456, 0.0349), 1, sign=None) == "98.5"
    assert plus_minus(Spread(-0.001)) == "0.00 ± 0.00"


def results(*, seeds=(0, 1), scores=((90.0,), (70.0, 80.0)), num_tasks=2):
    """Results of a method with what a comparison reads of them."""
    return [
        RunResult(
            finished=True,
            seed=seed,
            num_tasks=num_tasks,
            scores=tuple(tuple(score + seed for score in row) for row in scores),
            timings=Timings(seconds=10.0 + seed, peak_bytes=3 * 10**6),
            stored_bytes={"network": 2 * 10**6, "heads": 0},
        )
        for seed in seeds
    ]


def test_rows_are_means_over_seeds():
    alone = results(scores=((85.0,), (85.0, 82.0)))
    ours, single = rows_of({"clnp": results(), "single": alone, "ewc": []})
    assert (ours.method, single.method, ours.seeds) == ("clnp", "single", (0, 1))
    assert (ours.average.mean, ours.average.deviation) == (75.5, pytest.approx(0.5**0.5))
    assert (ours.forgetting.mean, ours.backward_transfer.mean) == (20.0, -20.0)
    assert (ours.forward_transfer.mean, single.forward_transfer.mean) == (-2.0, 0.0)
    assert (ours.stored.mean, ours.peak.mean) == (2.0, 3.0)
    assert ours.tasks is None
    keys = "method seeds average forgetting backward_transfer forward_transfer free stored seconds"
    assert list(json.loads(to_json(ours))) == [*keys.split(), "peak"]


def test_the_table_in_every_format():
    """Forward transfer is unknown without tasks learned alone, and has no column."""
    found = rows_of({"clnp": results(), "ewc": results(scores=((90.0,), (90.0, 75.0)))})
    written = texts(found)
    assert found[0].forward_transfer is None
    assert "forward" not in written["txt"]
    assert "-20.00 ± 0.00" in written["txt"]
    assert written["md"].splitlines()[3].split(" | ")[1:3] == [
        "**83.00 ± 0.71**",
        "**0.00 ± 0.00**",
    ]
    line, _ = csv.DictReader(written["csv"].splitlines())
    assert float(line["average_mean"]) == 75.5
    start = r"clnp & $75.50 \pm 0.71$ & $20.00 \pm 0.00$ & $-20.00 \pm 0.00$ & "
    assert written["tex"].splitlines()[9].strip().startswith(start)
    assert r"\label{tab:comparison}" in written["tex"]
    one = texts(rows_of({"clnp": results(seeds=(0,))}))
    assert "±" not in one["txt"]
    assert r"  clnp & $75.00$ & $20.00$ & $-20.00$ & " in one["tex"]


def test_time_and_memory_are_never_the_best():
    (quick, *_), (slow, *_) = results(seeds=(0,)), results(seeds=(3,))
    lines = texts(rows_of({"clnp": [quick], "ewc": [slow]}))["md"].splitlines()
    head, ours, theirs = (lines[number].split(" | ") for number in (0, 2, 3))
    best = [title for title, *cells in zip(head, ours, theirs, strict=True) if "**" in f"{cells}"]
    assert best == ["average"]
    assert (ours[-3], theirs[-3]) == ("10", "13")


def test_free_neurons_are_a_column_where_there_are_any():
    (row,) = rows_of({"clnp": [result(0, [90.0], 100), result(1, [90.0], 140)]})
    assert row.free == Spread(60.0, pytest.approx(14.142136))
    assert "free neurons, %" in texts([row])["md"]
    assert "free neurons" not in texts(rows_of({"clnp": results()}))["md"]


def test_footnotes_say_where_settings_come_from():
    """A note that several methods share has one number."""
    tuned, default = SettingsSource("validation", 20, (7, 8)), SettingsSource("defaults")
    names = ["single", "ewc", "si", "finetune", "old"]
    sources = dict(zip(names, [default, tuned, tuned, default], strict=False))
    found = rows_of({name: results() for name in names}, sources)
    assert comparison_table(found).names == [
        *("single [1]", "ewc [2]", "si [2]", "finetune [1]"),
        "old",
    ]
    notes = [
        "[1] default settings, not tuned.",
        "[2] settings chosen on validation data, 20 trials, seeds 7 8.",
    ]
    assert comparison_table(found).footnotes == notes
    written = texts(found)
    assert written["txt"].splitlines()[-2:] == notes
    assert written["txt"].splitlines()[2].startswith("ewc [2]  ")
    assert written["md"].endswith(f" |\n\n{notes[0]}  \n{notes[1]}\n")
    assert "| ewc [2] | 75.50" in written["md"]
    assert "ewc [2] & $75.50" in written["tex"]
    assert written["tex"].splitlines()[-3].endswith(f"{{\\footnotesize {notes[1]}}} \\\\")
    table = list(csv.DictReader(written["csv"].splitlines()))
    assert [row["method"] for row in table] == names
    assert [row["settings"] for row in table] == [
        *(note.partition(" ")[2].rstrip(".") for note in (notes[0], notes[1], notes[1], notes[0])),
        "",
    ]
    assert to_plain(found[1])["settings"]["num_trials"] == 20


def test_tasks_are_counted_unless_every_run_learned_all():
    fewer = results(seeds=(0,), scores=((90.0,),))
    found = rows_of({"clnp": fewer, "single": results(seeds=(0,))})
    assert [row.tasks.mean for row in found] == [1, 2]
    written = texts(found)
    assert [line.split()[:3] for line in written["txt"].splitlines()] == [
        ["method", "tasks", "learned"],
        ["clnp", "1.0", "90.00"],
        ["single", "2.0", "75.00"],
    ]
    assert written["md"].startswith("| method | tasks learned | average |")
    assert float(next(csv.DictReader(written["csv"].splitlines()))["tasks"]) == 1
    assert r"clnp & $1.0$ & $\mathbf{90.00}$" in written["tex"]
    assert "1.5 ± 0.7" in texts(rows_of({"clnp": [*fewer, *results(seeds=(1,))]}))["txt"]
    grown = rows_of({"single": results(scores=((90.0,),), num_tasks=1), "clnp": results()})
    assert [row.tasks.mean for row in grown] == [1, 2]


def test_a_network_that_was_full_from_the_start_has_no_average():
    found = rows_of({"clnp": results(scores=()), "single": results()})
    assert (found[0].tasks.mean, found[0].average, found[0].forward_transfer) == (0, None, None)
    line = texts(found)["md"].splitlines()[2]
    assert line.startswith("| clnp | 0.0 ± 0.0 | - | - | - | - | 2.00")
