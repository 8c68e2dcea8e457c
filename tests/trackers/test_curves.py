import math

import pytest

from clnp.methods.packnet import PackNet
from clnp.methods.single import Finetune
from clnp.trackers.curves import Curves, Point, Table, clean, flat, label, settings
from support.tracked import LABELS, NAMES, Notebook, experiment


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """All that a tracker is told of a run: the events, and the result."""
    notebook = Notebook()
    result = experiment().run(tmp_path_factory.mktemp("runs") / "run", trackers=[notebook])
    return notebook.events, result


def read(events):
    """All points and tables of these events."""
    curves, points, tables = Curves(), [], []
    for event in events:
        some, others = curves.read(event)
        points += some
        tables += others
    return points, tables


def curve(points, section, measure, part=None):
    """The curve of that name: its steps and values."""
    found = [p for p in points if (p.section, p.measure, p.part) == (section, measure, part)]
    return [point.step for point in found], [point.value for point in found]


def test_epochs_are_curves_of_candidates_in_the_section_of_their_task(told):
    events, _ = told
    points, _ = read(events)
    for label_, name in zip(LABELS, NAMES, strict=True):
        for number in (0, 1):
            epochs = [
                event
                for event in events
                if event["event"] == "epoch"
                and event["task"] == name
                and event.get("candidate") == number
            ]
            for measure, key in (
                ("validation", "score"),
                ("loss", "loss"),
                ("penalised loss", "penalised_loss"),
                ("seconds", "seconds"),
            ):
                steps, values = curve(points, label_, measure, f"candidate {number + 1}")
                assert steps == [1, 2, 3, 4]
                assert values == [epoch[key] for epoch in epochs]


def test_fine_tuning_goes_on_to_the_right_of_the_candidate_that_was_chosen(told):
    points, _ = read(told[0])
    for label_ in LABELS:
        assert curve(points, label_, "validation", "fine-tuning")[0] == [5, 6, 7, 8]


def test_every_task_has_a_curve_of_test_scores_over_tasks(told):
    events, result = told
    points, _ = read(events)
    assert curve(points, "test score", LABELS[0]) == ([1, 2], [row[0] for row in result["scores"]])
    assert curve(points, "test score", LABELS[1]) == ([2], [result["scores"][1][1]])


def test_what_is_said_of_all_tasks(told):
    events, result = told
    points, _ = read(events)
    first, second = result["scores"]
    steps, averages = curve(points, "all tasks", "average test score")
    assert steps == [1, 2]
    assert averages == pytest.approx([first[0], sum(second) / 2])
    assert curve(points, "all tasks", "forgetting") == ([1, 2], [0.0, 0.0])
    assert curve(points, "all tasks", "backward transfer") == ([1, 2], [0.0, 0.0])
    when = [record["test_score"] for record in result["tasks"]]
    assert curve(points, "all tasks", "test score when learnt") == ([1, 2], when)
    validation = [record["score"] for record in result["tasks"]]
    assert curve(points, "all tasks", "validation when learnt") == ([1, 2], validation)
    seconds = curve(points, "all tasks", "seconds of the task")[1]
    assert seconds == pytest.approx(result["timings"]["tasks"], abs=0.2)
    forecasts = [event["forecast"] for event in events if event["event"] == "evaluation"]
    fit = [each["num_tasks"] for each in forecasts if each["num_tasks"] is not None]
    assert curve(points, "all tasks", "more tasks that fit")[1] == fit != []


def test_neurons_have_a_curve_for_each_group(told):
    events, result = told
    points, _ = read(events)
    sizes, free = result["capacity"]["sizes"], result["capacity"]["free"]
    for group, size in sizes.items():
        steps, used = curve(points, "neurons used percent", group)
        assert steps == [1, 2]
        assert used[-1] == pytest.approx(100 * (1 - free[group] / size))
        for key in ("new", "reused"):
            values = [record[key][group] for record in result["tasks"]]
            assert curve(points, f"neurons {key}", group) == ([1, 2], values)
    total = curve(points, "all tasks", "neurons used percent")[1][-1]
    assert total == pytest.approx(100 * (1 - sum(free.values()) / sum(sizes.values())))


def test_candidates_are_a_table_when_their_task_is_learnt(told):
    events, result = told
    _, tables = read(events)
    assert [table.title for table in tables] == list(LABELS)
    for table, record in zip(tables, result["tasks"], strict=True):
        assert [row[0] for row in table.rows] == ["1", "2"]
        assert [row[-1] for row in table.rows].index("yes") == record["winner"]
        for row, candidate in zip(table.rows, record["candidates"], strict=True):
            assert row[1:5] == (
                f"{candidate['alpha']:g}",
                f"{candidate['lr']:g}",
                str(candidate["num_epochs"]),
                f"{candidate['score']:.2f}",
            )
        kept = record["pruning"]["kept"]
        chosen = table.rows[record["winner"]]
        assert chosen[6] == ", ".join(f"{group} {count}" for group, count in kept.items())


def test_a_table_in_markdown():
    table = Table("t", ("a", "b"), (("1", "x|y"), ("2", "")))
    assert table.markdown() == "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n| 2 |  |"


def test_what_is_known_at_the_end(told):
    _, result = told
    points = Curves().finish(result)
    assert curve(points, "run", "seconds") == ([2], [result["timings"]["seconds"]])
    assert curve(points, "run", "stored MB")[1] == [sum(result["stored_bytes"].values()) / 1e6]
    assert curve(points, "run", "peak memory MB")[1][0] > 1


def test_a_baseline_forgets_and_has_no_neurons(tmp_path):
    notebook, made = Notebook(), experiment()
    object.__setattr__(made, "baseline", Finetune())
    result = made.run(tmp_path / "run", trackers=[notebook])
    points, _ = read(notebook.events)
    (first,), second = result["scores"]
    assert curve(points, "all tasks", "forgetting") == ([1, 2], [0.0, first - second[0]])
    assert not any(point.section.startswith("neurons") for point in points)
    assert curve(points, "all tasks", "neurons used percent") == ([], [])


def test_retraining_goes_on_to_the_right_of_the_training(tmp_path):
    notebook, made = Notebook(), experiment()
    object.__setattr__(made, "baseline", PackNet(retrain_epochs=3))
    made.run(tmp_path / "run", trackers=[notebook])
    points, tables = read(notebook.events)
    for label_ in LABELS:
        assert curve(points, label_, "validation", "candidate 1")[0] == [1, 2, 3, 4]
        assert curve(points, label_, "validation", "fine-tuning")[0] == [5, 6, 7]
    assert tables == []  # There was nothing to choose from.


def test_tasks_that_are_learnt_at_the_same_time_have_scores_at_the_end():
    events = [{"event": "begin", "task": name} for name in "ab"]
    events.insert(1, {"event": "evaluation", "task": "a", "scores": [None]})
    events.append({"event": "evaluation", "task": "b", "scores": [70.0, 80.0]})
    points, _ = read(events)
    assert curve(points, "all tasks", "average test score") == ([2], [75.0])
    assert curve(points, "all tasks", "forgetting") == ([], [])
    assert curve(points, "test score", "task 01 a") == ([2], [70.0])


def test_a_candidate_that_diverges_and_numbers_that_are_not_finite():
    epoch = {"event": "epoch", "task": "a", "candidate": 0, "num_epochs": 3, "number": 0}
    epoch |= {"loss": "nan", "penalised_loss": math.inf, "score": None, "seconds": 1.0}
    candidate = {"event": "candidate", "task": "a", "candidate": 0, "alpha": {"fc1": 1e-3}}
    candidate |= {"lr": 0.1, "num_epochs": 1, "score": None, "diverged": "the loss is NaN"}
    learnt = {"event": "task", "task": "a", "new": {}, "score": None, "test_score": None}
    points, (table,) = read([epoch, candidate, learnt])
    assert math.isnan(curve(points, "task 01 a", "loss", "candidate 1")[1][0])
    assert curve(points, "task 01 a", "penalised loss", "candidate 1")[1] == [math.inf]
    assert curve(points, "task 01 a", "validation", "candidate 1") == ([], [])
    assert table.rows == (("1", "fc1 0.001", "0.1", "1", "diverged", "", "", ""),)


def test_a_learning_rate_is_told_where_it_is_known():
    epoch = {"event": "epoch", "task": "a", "candidate": 1, "number": 2, "lr": 0.5}
    assert read([epoch])[0] == [Point("task 01 a", "learning rate", 3, 0.5, "candidate 2")]


def test_tasks_that_do_not_begin_with_an_event_are_counted():
    epochs = [
        {"event": "epoch", "task": name, "candidate": 0, "number": 0, "loss": 1.0}
        for name in ("x", "y", "x")
    ]
    points, _ = read(epochs)
    assert [point.section for point in points] == ["task 01 x", "task 02 y", "task 01 x"]


def test_evaluations_of_earlier_versions_have_scores_alone():
    events = [
        {"event": "begin", "task": "a", "number": 1, "num_tasks": 2, "at": 1.0},
        {"event": "evaluation", "task": "a", "scores": [50.0], "at": 3.0},
    ]
    assert {(p.section, p.measure): p.value for p in read(events)[0]} == {
        ("test score", "task 01 a"): 50.0,
        ("all tasks", "average test score"): 50.0,
        ("all tasks", "forgetting"): 0.0,
        ("all tasks", "backward transfer"): 0.0,
        ("all tasks", "seconds of the task"): 2.0,
    }


def test_events_that_are_about_no_task_say_nothing():
    for event in ({"event": "run", "tasks": []}, {"event": "finished"}, {}, {"task": 3}):
        assert Curves().read(event) == ([], [])


@pytest.mark.parametrize(
    ("number", "name", "num_tasks", "expected"),
    [
        (3, "cats", 10, "task 03 cats"),
        (3, "cats", 100, "task 003 cats"),
        (1, 'a/b\\c "<&>" é', 1, "task 01 a_b_c _____ é"),
        (1, "x" * 200, 1, f"task 01 {'x' * 40}"),
        (1, "../..", 1, "task 01 _"),
        (1, "", 1, "task 01"),
        (1, " ... ", 1, "task 01"),
    ],
)
def test_labels_of_tasks(number, name, num_tasks, expected):
    assert label(number, name, num_tasks) == expected


def test_clean_names_keep_what_modules_are_called():
    assert clean("layer1.0.conv-1 x") == "layer1.0.conv-1 x"


def test_settings_are_flat():
    config = {
        "format": 1,
        "tasks": [{"name": "a"}, {"name": "b"}],
        "data": "/somewhere",
        "seed": 3,
        "classifier": None,
        "learner": {"margin": 0.5, "alphas": [1e-3, {"fc1": 2.0}], "lrs": [], "check": True},
    }
    assert settings(config) == {
        "seed": 3,
        "learner.margin": 0.5,
        "learner.alphas": '[0.001, {"fc1": 2.0}]',
        "learner.check": True,
        "num_tasks": 2,
    }
    assert flat({"tasks": {"cats & dogs": {"margin": 1}}}) == {"tasks.cats _ dogs.margin": 1}


def test_fifty_tasks_keep_their_order():
    events = []
    for number in range(50):
        about = {"task": f"t{number}", "number": number + 1, "num_tasks": 50}
        events.append({"event": "begin", **about})
        events.append({"event": "evaluation", **about, "scores": [90.0] * (number + 1)})
    points, _ = read(events)
    titles = list(dict.fromkeys(p.measure for p in points if p.section == "test score"))
    assert titles == sorted(titles)
    assert len(titles) == 50
