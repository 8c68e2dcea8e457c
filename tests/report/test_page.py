import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from clnp.plain import to_plain
from clnp.report import page as report_page
from clnp.report.collection import read_collection
from clnp.report.draw import drawing
from clnp.report.page import facts, lead, make_page
from support.written_runs import (
    ENVIRONMENT,
    change,
    change_tasks,
    write,
    write_comparison,
    write_run,
    write_series,
)

EMPTY = {"meta", "link", "br", "img", "input", "hr"}
SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that every element is closed in turn."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(*paths):
    with drawing():
        return make_page(read_collection(paths)).text


def words_of(*paths):
    """Return the text of the page, with a bar for each run of tags."""
    return re.sub(r"(\s*<[^>]+>\s*)+", "|", SVG.sub("", page_of(*paths)))


@pytest.fixture
def no_figures(monkeypatch):
    """Leave out the figures, which take most of the time."""
    monkeypatch.setattr(report_page, "_sections", lambda collection: [])


def facts_of(path):
    return {fact.name: (fact.value, fact.more) for fact in facts(read_collection([path]))}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(write_run(tmp_path_factory.mktemp("runs") / "run"))


def test_the_page_is_well_formed(page):
    reader = Reader(page)
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [v for name, v in reader.attributes if name == "href" and v.startswith("#")]
    assert {link[1:] for link in links} <= set(ids)
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", page)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_the_page_loads_nothing(page):
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe"} & set(reader.seen)
    assert "default-src 'none'" in page.replace("&#39;", "'")
    loaded = [v for n, v in reader.attributes if n in ("src", "href", "xlink:href")]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in loaded)
    assert "@import" not in page
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"|http-equiv', "", page)


def test_sections_and_figures(page):
    titles = re.findall(r"<h2 id[^>]*>(.*?)</h2>", page)
    ends = ["Settings, environment, certificates"]
    assert titles == ["Contents", "Summary", "Capacity", "Scores", "Pruning", "Training", *ends]
    assert sorted(re.findall(r'<figure id="figure-(\w+)"', page)) == [
        "accuracy",
        "capacity",
        "pruning",
        "training",
    ]
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        assert figure.count("<svg ") == 2  # The other one is for a phone.
        assert '<details><summary aria-label="Numbers: ' in figure
        assert '<th scope="col">' in figure
        assert '<tr><th scope="row">' in figure


def test_names_cannot_break_out(tmp_path):
    nasty = '</title></svg><script>alert(1)</script>"onload="x\'&amp;<!--\x00'
    run = write_run(tmp_path / "run", tasks=(nasty, "b"), sizes={nasty: 50})
    change(run, "config.json", recipe=nasty)
    write(run, "recipe.toml", nasty)
    html = page_of(run)
    reader = Reader(html)
    assert "script" not in reader.seen
    assert "onload" not in dict(reader.attributes)
    assert "\x00" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 5


def test_a_long_table_ends_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(report_page, "MOST_ROWS", 1)
    run = write_run(tmp_path / "run", tasks=("low",), method="ewc", num_candidates=3)
    assert "2 more rows are in figures/training.csv." in page_of(run)


def test_sections_without_figures_have_a_sentence(tmp_path):
    html = words_of(write_run(tmp_path / "run", num_learned=0, num_candidates=1))
    for words in (
        report_page.NO_SCORES,
        report_page.NO_NEURONS,
        report_page.NO_PRUNING,
        "No task has been learned yet.",
        "|Notes|",
    ):
        assert words in html
    baseline = words_of(write_run(tmp_path / "base", method="ewc"))
    assert "tasks of baselines claim none" in baseline
    assert "There are none: only neural pruning freezes weights." in baseline
    assert "|Notes|" not in baseline


def test_a_comparison_has_a_table_of_methods(tmp_path):
    html = words_of(write_comparison(tmp_path / "compared"))
    assert "|ewc|91.50 ± 0.71|1.50 ± 0.00|-1.50 ± 0.00|" in html
    best = re.findall("<strong>(.*?)</strong>", page_of(tmp_path / "compared"))
    assert best[:2] == ["92.50 ± 0.71", "0.00 ± 0.00"]
    assert "Forward transfer: mean gain compared with learning each task alone." in html
    assert html.count("Only clnp claim and prune neurons.") == 2


def test_tasks_in_which_nothing_was_learned_are_above_all_numbers(tmp_path, no_figures):
    run = write_run(tmp_path / "run")
    change_tasks(run, score=91.0, guess=50.0)
    assert "NOT LEARNED" not in page_of(run)
    change_tasks(run, score=50.0, guess=50.0)
    html = page_of(run)
    assert html.index("NOT LEARNED") < html.index("low, high, wide.") < html.index("92.00 %")
    assert 'class="value good"' not in html
    assert facts_of(run)["Forgetting"][1].endswith("In 3 of 3, nothing was learned.")
    assert facts_of(run)["Room"][0] == "unknown"


def test_tasks_in_which_some_seeds_learned_nothing(tmp_path):
    series = write_series(tmp_path / "series", tasks=tuple(f"t{k}" for k in range(7)))
    change_tasks(series / "seed1", score=50.0, guess=50.0)
    (line,) = report_page.guesses(read_collection([series]))
    assert line.startswith("t0 (1 of 2 seeds), t1 (1 of 2 seeds), ")
    assert line.endswith("t4 (1 of 2 seeds) and 2 more.")
    other = write_run(tmp_path / "ewc", method="ewc")
    (line,) = report_page.guesses(read_collection([series, other]))
    assert line.startswith("clnp: t0 (1 of 2 seeds)")


def test_the_summary_of_a_run(tmp_path):
    assert facts_of(write_run(tmp_path / "run")) == {
        "Average test accuracy": ("92.00 %", "Of 3 tasks, after the last."),
        "Forgetting": (
            "0, exactly",
            "The test outputs of all tasks are bit for bit what they were when learned; "
            "3 certificates, verified at the end.",
        ),
        "Capacity left": (
            "82 %",
            "Free neurons, averaged over the layers; least in fc2, 76 %.",
        ),
        "Room": ("About 7 more tasks", "If they are like the last; fc1 fills up first."),
    }
    unfinished = write_run(tmp_path / "unfinished", num_learned=2)
    assert facts_of(unfinished)["Forgetting"][1].endswith("2 certificates.")
    assert "Forgetting" not in facts_of(write_run(tmp_path / "first", num_learned=1))


def test_the_summary_of_a_series(tmp_path):
    series = write_series(tmp_path / "series")
    found = facts_of(series)
    assert found["Average test accuracy"] == ("92.50 ± 0.71 %", "Of 3 tasks, after the last.")
    words = "Values are means ± standard deviations over 2 seeds."
    assert lead(read_collection([series])).endswith(words)
    assert found["Forgetting"][1].endswith("6 certificates, verified at the end.")
    forecast = {"num_tasks": 3, "bottleneck": "fc1", "like": ["a"]}
    change(series / "seed1", forecast=forecast)
    assert facts_of(series)["Room"][0] == "About 3 to 7 more tasks"
    change(series / "seed1", forecast={**forecast, "num_tasks": None})
    assert facts_of(series)["Room"][1].endswith("This is seed 0; other seeds differ.")


def test_a_baseline_forgets(tmp_path):
    found = facts_of(write_run(tmp_path / "run", method="ewc"))
    assert found["Forgetting"] == ("1.50", "The test outputs of 2 of 3 tasks have changed.")
    assert found["Stored"][0] == "2.50 MB"
    assert "Room" not in found


def test_tasks_that_are_learned_at_the_same_time_cannot_be_forgotten(tmp_path):
    scores = [[None], [None, None], [91.0, 92.0, 93.0]]
    run = write_run(tmp_path / "run", method="joint", scores=scores)
    change_tasks(run, unchanged=True)
    assert facts_of(run)["Forgetting"][0] == "nothing to forget"


def test_zero_forgetting_is_reported_only_if_measured(tmp_path):
    run = write_run(tmp_path / "run")
    change_tasks(run, unchanged=None)
    words = "There is no test data; 3 certificates."
    assert facts_of(run)["Forgetting"] == ("not measured", words)
    change_tasks(run, unchanged=False)
    words = "The test outputs of 3 of 3 tasks have changed."
    assert facts_of(run)["Forgetting"] == ("0.00", words)
    change_tasks(run, 0, unchanged=None)
    change_tasks(run, 1, 2, unchanged=True)
    assert facts_of(run)["Forgetting"][1].startswith("The test outputs of 2 of 3 tasks are")


def test_scores_that_are_not_accuracies_and_missing_scores(tmp_path):
    run = write_run(tmp_path / "run")
    change_tasks(run, objective="regression")
    assert facts_of(run)["Average test score"][0] == "92.00"
    none = write_run(tmp_path / "none", scores=[])
    assert facts_of(none)["Average test accuracy"][0] == "unknown"
    some = write_run(tmp_path / "some", scores=[[90.0], [90.0, None], [90.0, None, 94.0]])
    words = "Of 2 of 3 tasks, after the last."
    assert facts_of(some)["Average test accuracy"] == ("92.00 %", words)


def test_the_first_sentence(tmp_path):
    run = write_run(tmp_path / "run")
    assert lead(read_collection([run])) == (
        "3 tasks, low to wide, learned by neural pruning in a multi-head network. "
        "Took 60 s on a CPU."
    )
    one = write_run(tmp_path / "one", tasks=("x" * 500,), method="ewc")
    assert lead(read_collection([one])).startswith("1 task, xxx")
    assert len(lead(read_collection([one]))) < 200
    none = write_run(tmp_path / "none", num_learned=0)
    write(none, "environment.json", [])
    words = "0 tasks learned by neural pruning in a multi-head network."
    assert lead(read_collection([none])) in (words, words.replace(" in a multi-head network", ""))
    compared = write_comparison(tmp_path / "compared")
    assert "learned by clnp, single, ewc in" in lead(read_collection([compared]))


def test_settings_environment_and_certificates_of_a_run(tmp_path, no_figures):
    run = write_run(tmp_path / "run")
    write(run, "recipe.toml", 'name = "<b>"\n\nmargin = 1\n')
    text = words_of(run)
    assert "|learner.margin|1.0|" in text
    assert "|cpu|a CPU|" in text
    assert f"|high|{1:064x}|" in text
    assert "name = &#34;&lt;b&gt;&#34;\n\nmargin = 1" in text
    assert "|Runs|" not in text
    assert "|tasks|" not in text.rpartition("|Settings|")[2]


def test_settings_that_differ(tmp_path, no_figures):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", margin=4.0, seed=3)]
    table = "|Settings that differ|key|a|b|learner.margin|1.0|4.0|Settings|"
    text = words_of(*runs)
    assert table in text
    assert "|All settings of a|" in text
    alike = [write_run(tmp_path / "c"), write_run(tmp_path / "d")]
    assert "The settings are the same, except for the seeds." in words_of(*alike)
    change(runs[1], "config.json", baseline={"strength": 100.0}, learner={"margin": 1.0})
    found = report_page.differences(read_collection(runs))
    assert ("baseline.strength", None, "100.0") in found.rows
    assert "baseline" not in [row[0] for row in found.rows]  # None is as a missing key.


def test_runs_and_their_environments_are_listed(tmp_path, no_figures):
    series = write_series(tmp_path / "series", seeds=(0, 1, 2))
    write_run(series / "seed1", seed=1, num_learned=1)
    known = to_plain(ENVIRONMENT)
    other = {**known, "cpu": "another", "began": "2025-12-31"}
    write(series / "seed2", "environment.json", [known, other])
    text = words_of(series)
    assert f"|{series / 'seed0'}|clnp|0|3 of 3|finished|60 s|" in text
    assert f"|{series / 'seed1'}|clnp|1|1 of 3|not finished|60 s|" in text
    assert "|cpu|a CPU|another|" in text
    assert "|starts|3|1|" in text
    assert "|began|2025-12-31|" in text
    assert f"|Certificates of {series / 'seed1'}|" in text


def test_a_missing_environment(tmp_path, no_figures):
    run = write_run(tmp_path / "run", tasks=("a",))
    (run / "environment.json").unlink()
    assert "There is no environment.json." in words_of(run)
