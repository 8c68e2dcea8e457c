import json
import re

from clnp.report.collection import read_collection
from clnp.report.headline import alarm, headline, lead
from support.written_runs import write, write_comparison, write_run, write_series


def facts(path):
    """Name -> value and what more is said."""
    html = headline(read_collection([path]))
    found = re.findall(r"<dt>(.*?)</dt><dd.*?>(.*?)</dd><dd.*?>(.*?)</dd>", html)
    return {name: (value, more) for name, value, more in found}


def change(run, **keys):
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    for task in result["tasks"]:
        task |= keys
    write(run, "result.json", result)


def test_the_headline_of_a_run(tmp_path):
    assert facts(write_run(tmp_path / "run")) == {
        "Average test accuracy": ("92.00 %", "Of 3 tasks, after the last"),
        "Forgetting": (
            "0, exactly",
            "The test outputs of all tasks are what they were when learnt, to the last bit; "
            "3 certificates, verified at the end.",
        ),
        "Capacity left": (
            "82 %",
            "Of the neurons of a layer, averaged over the layers; least in fc2, 76 %.",
        ),
        "Room": ("About 7 more tasks like the last would fit", "fc1 fills up first."),
    }


def test_the_headline_of_a_series(tmp_path):
    series = write_series(tmp_path / "series")
    found = facts(series)
    assert found["Average test accuracy"][0] == "92.50 ± 0.71 %"
    assert found["Average test accuracy"][1] == "Mean over 2 seeds, of 3 tasks, after the last"
    assert found["Forgetting"][1].endswith("6 certificates, verified at the end.")
    result = json.loads((series / "seed1/result.json").read_text(encoding="utf-8"))
    result["forecast"]["num_tasks"] = 3
    write(series / "seed1", "result.json", result)
    assert facts(series)["Room"][0] == "About 3 to 7 more tasks"
    result["forecast"]["num_tasks"] = None
    write(series / "seed1", "result.json", result)
    assert "This is seed 0; others say otherwise" in facts(series)["Room"][1]


def test_tasks_in_which_nothing_was_learnt_stand_above_all_numbers(tmp_path):
    run = write_run(tmp_path / "run")
    change(run, score=91.0, guess=50.0)
    assert alarm(read_collection([run])) == ""
    assert 'class="value good"' in headline(read_collection([run]))
    change(run, score=50.0, guess=50.0)
    words = re.sub("<.*?>", " ", alarm(read_collection([run])))
    assert " NOT LEARNT " in words
    assert " low, high, wide. " in words
    assert "Always naming the same class is as good: train longer" in words
    html = headline(read_collection([run]))
    assert 'class="value good"' not in html
    assert "In 3 of 3 nothing was learnt that could be forgotten." in html
    assert facts(run)["Room"][0] == "unknown"


def test_tasks_in_which_some_seeds_or_methods_learnt_nothing(tmp_path):
    series = write_series(tmp_path / "series", tasks=tuple(f"t{k}" for k in range(7)))
    change(series / "seed1", score=50.0, guess=50.0)
    words = alarm(read_collection([series]))
    assert "<li>t0 (1 of 2 seeds), t1 (1 of 2 seeds), " in words
    assert "t4 (1 of 2 seeds) and 2 more.</li>" in words
    other = write_run(tmp_path / "ewc", method="ewc")
    assert "<li>clnp: t0 (1 of 2 seeds)" in alarm(read_collection([series, other]))


def test_the_room_left_is_told_in_whole_sentences(tmp_path):
    long, other = "encoder.layers.3." * 9 + "fc1", "encoder.layers.3." * 9 + "fc2"
    needed = {"conv1": 3, "conv2": 6, "conv3": 15, "conv4": 30, "conv5": 60, long: 174}
    forecast = {
        "num_tasks": 1,
        "bottleneck": long,
        "like": ["a"],
        "free": {**dict.fromkeys(needed, 9), other: 0},
        "room": {**dict.fromkeys(needed, 1.0), other: None},
        "one_more": needed,
        "next_num_tasks": 3,
        "next_bottleneck": "conv1",
        "to_next": {group: 2 * num for group, num in needed.items()},
    }
    value, more = facts(write_run(tmp_path / "run", forecast=forecast))["Room"]
    assert value == "About 1 more task like the last would fit"
    assert re.fullmatch(r"\S{32} fills up first; .* 60 in conv5, .* for 3, where .*", more)
    assert more.endswith("fc2 is full, and the last tasks did without.")
    assert len(set(re.findall(r"\S+…\S+", more))) == 2


def test_where_there_is_nothing_more_to_say_nothing_is_said(tmp_path):
    run = write_run(tmp_path / "run", forecast={"num_tasks": None, "bottleneck": None, "like": "a"})
    html = headline(read_collection([run]))
    assert "No limit in sight: the last tasks claimed no new neuron</dd></div>" in html
    assert "(no name)" not in html


def test_certificates_are_verified_once_the_run_has_ended(tmp_path):
    run = write_run(tmp_path / "run", num_learnt=2)
    assert facts(run)["Forgetting"][1].endswith("2 certificates.")


def test_a_baseline_forgets(tmp_path):
    found = facts(write_run(tmp_path / "run", method="ewc"))
    assert found["Forgetting"] == (
        "1.50",
        "The outputs of 2 of 3 tasks are not what they were when learnt.",
    )
    assert found["Stored"][0] == "2.50 MB"
    assert "Room" not in found


def test_tasks_that_are_learnt_at_the_same_time_can_forget_nothing(tmp_path):
    scores = [[None], [None, None], [91.0, 92.0, 93.0]]
    run = write_run(tmp_path / "run", method="joint", scores=scores)
    change(run, unchanged=True)
    assert facts(run)["Forgetting"] == ("nothing to forget", "All were learnt at the same time.")


def test_zero_is_claimed_only_where_it_was_seen(tmp_path):
    run = write_run(tmp_path / "run")
    change(run, unchanged=None)
    assert facts(run)["Forgetting"] == (
        "not measured",
        "No test data to judge by; 3 certificates.",
    )
    change(run, unchanged=False)
    assert facts(run)["Forgetting"][0] == "0.00"
    assert "3 of 3 tasks are not what they were" in facts(run)["Forgetting"][1]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result["tasks"][0]["unchanged"] = None
    result["tasks"][1]["unchanged"] = result["tasks"][2]["unchanged"] = True
    write(run, "result.json", result)
    assert facts(run)["Forgetting"][1].startswith("The test outputs of 2 of 3 tasks are what")


def test_several_methods_have_a_table(tmp_path):
    html = headline(read_collection([write_comparison(tmp_path / "compared")]))
    cells = re.findall(r"<tr><th[^>]*>ewc</th>(.*?)</tr>", html)[0]
    assert "<td>91.50 ± 0.71</td><td>1.50 ± 0.00</td><td>-1.50 ± 0.00</td>" in cells
    assert "Forward transfer: mean gain over learning it alone." in html


def test_nothing_learnt_has_no_headline(tmp_path):
    run = write_run(tmp_path / "run", num_learnt=0)
    assert headline(read_collection([run])) == "<p>No task has been learnt yet.</p>"


def test_scores_without_percent_and_without_test_data(tmp_path):
    run = write_run(tmp_path / "run")
    change(run, objective="regression")
    assert facts(run)["Average test score"][0] == "92.00"
    none = write_run(tmp_path / "none", scores=[])
    assert facts(none)["Average test score"][0] == "unknown"


def test_the_average_of_the_tasks_that_have_test_data(tmp_path):
    scores = [[90.0], [90.0, None], [90.0, None, 94.0]]
    found = facts(write_run(tmp_path / "run", scores=scores))["Average test accuracy"]
    assert found == ("92.00 %", "Of 2 of 3 tasks, after the last")


def test_what_was_run_in_a_sentence(tmp_path):
    run = write_run(tmp_path / "run")
    assert lead(read_collection([run])) == (
        "3 tasks, low to wide, learnt by neural pruning in a multi-head network. "
        "Took 60 s on a CPU."
    )
    one = write_run(tmp_path / "one", tasks=("x" * 500,), method="ewc")
    assert lead(read_collection([one])).startswith("1 task, xxx")
    assert len(lead(read_collection([one]))) < 200
    none = write_run(tmp_path / "none", num_learnt=0)
    assert lead(read_collection([none])).startswith("0 tasks learnt by neural pruning")
    write(none, "environment.json", [])
    assert "on" not in lead(read_collection([none])).split(".")[1]
    compared = write_comparison(tmp_path / "compared")
    assert "learnt by clnp, single, ewc in" in lead(read_collection([compared]))
