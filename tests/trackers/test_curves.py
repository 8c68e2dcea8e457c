import math
from dataclasses import replace

import pytest

from clnp.methods.packnet import PackNet
from clnp.methods.single import Finetune
from clnp.records import (
    CandidateTrained,
    EpochEnded,
    Evaluated,
    RunConfig,
    RunFinished,
    RunStarted,
    RunStopped,
    TaskDescription,
    TaskEnded,
    TaskStarted,
)
from clnp.trackers.curves import Curves, Table, clean, label, settings
from support.tracked import LABELS, NAMES, Notebook, experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The events of a run, its points and tables, and its result."""
    notebook = Notebook()
    result = experiment().run(tmp_path_factory.mktemp("runs") / "run", trackers=[notebook])
    return notebook.events, *read(notebook.events), result


def read(events):
    """All points and tables of these events."""
    curves, points, tables = Curves(), [], []
    for event in events:
        some, others = curves.read(event)
        points += some
        tables += others
    return points, tables


def curve(points, section, measure, part=None):
    """The steps and values of a curve."""
    found = [p for p in points if (p.section, p.measure, p.part) == (section, measure, part)]
    return [point.step for point in found], [point.value for point in found]


def test_epochs_are_curves_of_candidates_in_the_section_of_their_task(run):
    events, points, *_ = run
    for title, name in zip(LABELS, NAMES, strict=True):
        own = [e for e in events if isinstance(e, EpochEnded) and e.task == name]
        for number in (0, 1):
            epochs = [event for event in own if event.candidate == number]
            for measure, key in (
                ("validation", "score"),
                ("loss", "loss"),
                ("penalised loss", "penalised_loss"),
                ("seconds", "seconds"),
            ):
                steps, values = curve(points, title, measure, f"candidate {number + 1}")
                assert steps == [1, 2, 3, 4]
                assert values == [getattr(epoch, key) for epoch in epochs]
        # Fine-tuning is to the right of the candidate that was chosen.
        assert curve(points, title, "validation", "fine-tuning")[0] == [5, 6, 7, 8]


def test_measures_of_all_tasks_are_curves_over_tasks(run):
    events, points, _, result = run
    first, second = result.scores
    assert curve(points, "test score", LABELS[0]) == ([1, 2], [first[0], second[0]])
    assert curve(points, "test score", LABELS[1]) == ([2], [second[1]])
    steps, averages = curve(points, "all tasks", "average test score")
    assert steps == [1, 2]
    assert averages == pytest.approx([first[0], sum(second) / 2])
    assert curve(points, "all tasks", "forgetting") == ([1, 2], [0.0, 0.0])
    assert curve(points, "all tasks", "backward transfer") == ([1, 2], [0.0, 0.0])
    when = [record.test_score for record in result.tasks]
    assert curve(points, "all tasks", "test score when learned") == ([1, 2], when)
    validation = [record.score for record in result.tasks]
    assert curve(points, "all tasks", "validation when learned") == ([1, 2], validation)
    seconds = curve(points, "all tasks", "seconds of the task")[1]
    assert seconds == pytest.approx(result.timings.tasks, abs=0.2)
    forecasts = [event.forecast for event in events if isinstance(event, Evaluated)]
    fit = [each.num_tasks for each in forecasts if each.num_tasks is not None]
    assert curve(points, "all tasks", "more tasks that fit")[1] == fit != []


def test_neurons_have_a_curve_for_each_group(run):
    _, points, _, result = run
    sizes, free = result.capacity.sizes, result.capacity.free
    for group, size in sizes.items():
        steps, used = curve(points, "neurons used percent", group)
        assert steps == [1, 2]
        assert used[-1] == pytest.approx(100 * (1 - free[group] / size))
        for key in ("new", "reused"):
            values = [getattr(record, key)[group] for record in result.tasks]
            assert curve(points, f"neurons {key}", group) == ([1, 2], values)
    total = curve(points, "all tasks", "neurons used percent")[1][-1]
    assert total == pytest.approx(100 * (1 - sum(free.values()) / sum(sizes.values())))


def test_the_candidates_of_an_ended_task_are_a_table(run):
    *_, tables, result = run
    assert [table.title for table in tables] == list(LABELS)
    for table, record in zip(tables, result.tasks, strict=True):
        assert [row[0] for row in table.rows] == ["1", "2"]
        assert [row[-1] for row in table.rows].index("yes") == record.winner
        for row, candidate in zip(table.rows, record.candidates, strict=True):
            assert row[1:5] == (
                f"{candidate.alpha:g}",
                f"{candidate.lr:g}",
                str(candidate.num_epochs),
                f"{candidate.score:.2f}",
            )
        kept = ", ".join(f"{group} {count}" for group, count in record.pruning.kept.items())
        assert table.rows[record.winner][6] == kept
    table = Table("t", ("a", "b"), (("1", "x|y"), ("2", "")))
    assert table.markdown() == "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n| 2 |  |"


def test_time_and_memory_are_points_at_the_end(run):
    result = run[-1]
    points = Curves().finish(result)
    assert curve(points, "run", "seconds") == ([2], [result.timings.seconds])
    assert curve(points, "run", "stored MB")[1] == [sum(result.stored_bytes.values()) / 1e6]
    assert curve(points, "run", "peak memory MB")[1][0] > 1


def test_a_baseline_forgets_and_has_no_neurons(tmp_path):
    notebook, made = Notebook(), replace(experiment(), baseline=Finetune())
    result = made.run(tmp_path / "run", trackers=[notebook])
    points, _ = read(notebook.events)
    (first,), second = result.scores
    assert curve(points, "all tasks", "forgetting") == ([1, 2], [0.0, first - second[0]])
    assert not any(point.section.startswith("neurons") for point in points)
    assert curve(points, "all tasks", "neurons used percent") == ([], [])


def test_retraining_is_to_the_right_of_training(tmp_path):
    notebook, made = Notebook(), replace(experiment(), baseline=PackNet(retrain_epochs=3))
    made.run(tmp_path / "run", trackers=[notebook])
    points, tables = read(notebook.events)
    for title in LABELS:
        assert curve(points, title, "validation", "candidate 1")[0] == [1, 2, 3, 4]
        assert curve(points, title, "validation", "fine-tuning")[0] == [5, 6, 7]
    assert tables == []  # There were no candidates.


def started(name, number=1, num_tasks=2, at=None):
    return TaskStarted(
        task=name,
        number=number,
        num_tasks=num_tasks,
        num_candidates=1,
        num_epochs=3,
        epochs_before=0,
        epochs_of_run=6,
        at=at,
    )


def epoch(name, loss=1.0):
    return EpochEnded(
        task=name,
        candidate=0,
        num_epochs=3,
        number=0,
        loss=loss,
        penalised_loss=math.inf,
        score=50.0,
        seconds=1.0,
    )


def test_tasks_that_are_learned_together_have_scores_at_the_end():
    events = [
        started("a"),
        Evaluated(task="a", scores=(None,)),
        started("b", 2),
        Evaluated(task="b", scores=(70.0, 80.0)),
    ]
    points, _ = read(events)
    assert curve(points, "all tasks", "average test score") == ([2], [75.0])
    assert curve(points, "all tasks", "forgetting") == ([], [])
    assert curve(points, "test score", "task 01 a") == ([2], [70.0])


def test_a_candidate_may_diverge_to_numbers_that_are_not_finite():
    trained = CandidateTrained(
        task="a", candidate=0, alpha={"fc1": 1e-3}, lr=0.1, num_epochs=1, diverged="the loss is NaN"
    )
    points, (table,) = read([epoch("a", math.nan), trained, TaskEnded(task="a")])
    assert math.isnan(curve(points, "task 01 a", "loss", "candidate 1")[1][0])
    assert curve(points, "task 01 a", "penalised loss", "candidate 1")[1] == [math.inf]
    assert table.rows == (("1", "fc1 0.001", "0.1", "1", "diverged", "", "", ""),)


def test_tasks_without_a_start_are_counted():
    points, _ = read([epoch("x"), epoch("y"), epoch("x")])
    assert list(dict.fromkeys(p.section for p in points)) == ["task 01 x", "task 02 y"]


def test_an_evaluation_may_have_scores_only():
    points, _ = read([started("a", at=1.0), Evaluated(task="a", scores=(50.0,), at=3.0)])
    assert {(point.section, point.measure): point.value for point in points} == {
        ("test score", "task 01 a"): 50.0,
        ("all tasks", "average test score"): 50.0,
        ("all tasks", "forgetting"): 0.0,
        ("all tasks", "backward transfer"): 0.0,
        ("all tasks", "seconds of the task"): 2.0,
    }


@pytest.mark.parametrize(
    "event", [RunStarted(config=RunConfig()), RunStopped(), RunFinished(num_tasks=1)]
)
def test_events_about_no_task_have_no_points(event):
    assert Curves().read(event) == ([], [])


@pytest.mark.parametrize(
    ("number", "name", "num_tasks", "expected"),
    [
        (3, "cats", 10, "task 03 cats"),
        (3, "cats", 100, "task 003 cats"),  # Sorted as text, tasks keep their order.
        (1, 'a/b\\c "<&>" é', 1, "task 01 a_b_c _____ é"),
        (1, "x" * 200, 1, f"task 01 {'x' * 40}"),
        (1, "../..", 1, "task 01 _"),
        (1, "", 1, "task 01"),
        (1, " ... ", 1, "task 01"),
    ],
)
def test_labels_of_tasks(number, name, num_tasks, expected):
    assert label(number, name, num_tasks) == expected


def test_names_of_modules_are_not_changed():
    assert clean("layer1.0.conv-1 x") == "layer1.0.conv-1 x"


def test_settings_are_flat():
    config = RunConfig(
        format=1,
        tasks=(TaskDescription("a"), TaskDescription("b")),
        head="multi",
        seed=3,
        learner={
            "margin": 0.5,
            "alphas": [1e-3, {"fc1": 2.0}],
            "lrs": [],
            "check": True,
            "tasks": {"cats & dogs": {"margin": 1}},
        },
        recipe="mine",
        data="/somewhere",
    )
    assert settings(config) == {
        "head": "multi",
        "seed": 3,
        "learner.margin": 0.5,
        "learner.alphas": '[0.001, {"fc1": 2.0}]',
        "learner.check": True,
        "learner.tasks.cats _ dogs.margin": 1,
        "method": "clnp",
        "recipe": "mine",
        "num_tasks": 2,
    }
