import json
import re

from clnp.report.collection import read_collection
from clnp.report.particulars import particulars
from support.written_runs import ENVIRONMENT, write, write_comparison, write_run, write_series


def plain(*paths):
    """The words, with a bar for each tag."""
    return re.sub(r"(<[^>]+>\s*)+", "|", particulars(read_collection(paths)))


def test_settings_environment_and_certificates_of_a_run(tmp_path):
    run = write_run(tmp_path / "run")
    write(run, "recipe.toml", 'name = "<b>"\n\nmargin = 1\n')
    text = plain(run)
    assert "|learner.margin|1.0|" in text
    assert "|cpu|a CPU|" in text
    assert f"|high|{1:064x}|" in text
    assert "name = &quot;&lt;b&gt;&quot;\n\nmargin = 1" in text
    assert "|Runs|" not in text


def test_the_tasks_are_not_listed_as_settings(tmp_path):
    assert "tasks" not in plain(write_run(tmp_path / "run")).split("Environment")[0]


def test_what_differs_between_runs(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", margin=4.0, seed=3)]
    assert "|What differs|key|a|b|learner.margin|1.0|4.0|Settings|" in plain(*runs)
    alike = [write_run(tmp_path / "c"), write_run(tmp_path / "d")]
    assert "The settings are the same but for the seeds." in plain(*alike)


def test_a_key_that_is_none_is_as_one_that_is_not_there(tmp_path):
    ours, other = write_run(tmp_path / "ours"), write_run(tmp_path / "other", method="ewc")
    for run, settings in ((ours, None), (other, {"strength": 100.0})):
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        write(run, "config.json", {**config, "baseline": settings})
    words = plain(ours, other).partition("Settings|")[0]
    assert "|baseline|" not in words
    assert "|baseline.strength|\u2013|100.0|" in words


def test_runs_are_listed_with_their_state(tmp_path):
    series = write_series(tmp_path / "series")
    write_run(series / "seed1", seed=1, num_learnt=1)
    text = plain(series)
    assert f"|{series / 'seed0'}|clnp|0|3 of 3|finished|60 s|" in text
    assert f"|{series / 'seed1'}|clnp|1|1 of 3|not finished|60 s|" in text


def test_each_environment_is_listed_once(tmp_path):
    series = write_series(tmp_path / "series", seeds=(0, 1, 2))
    other = {**ENVIRONMENT, "cpu": "another", "began": "2025-12-31"}
    write(series / "seed2", "environment.json", [ENVIRONMENT, other])
    text = plain(series)
    assert "|cpu|a CPU|another|" in text
    assert "|starts|3|1|" in text
    assert "|began|2025-12-31|" in text


def test_what_is_not_there_is_said(tmp_path):
    run = write_run(tmp_path / "run", method="ewc")
    (run / "environment.json").unlink()
    text = plain(run)
    assert "There is no environment.json." in text
    assert "There are none: only neural pruning freezes what it has learnt." in text


def test_certificates_of_several_runs_are_apart(tmp_path):
    compared = write_comparison(tmp_path / "compared")
    text = plain(compared)
    assert f"|Certificates of {compared / 'clnp/seed1'}|" in text
    assert f"Certificates of {compared / 'ewc/seed0'}" not in text


def test_the_settings_of_very_many_runs_are_left_where_they_are(tmp_path):
    runs = [write_run(tmp_path / f"m{n}", margin=float(n)) for n in range(14)]
    assert "Those of 2 more are in their config.json." in plain(*runs)
