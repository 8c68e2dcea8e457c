import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from clnp.report.collection import read_collection
from clnp.report.page import SECTIONS, make_page
from clnp.report.style import drawing
from clnp.report.write import NAMES
from support.written_runs import write, write_comparison, write_run

EMPTY = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Notes what is opened, and that everything is closed in its turn."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

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
        return make_page(read_collection(paths))[0]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(write_run(tmp_path_factory.mktemp("runs") / "run"))


def test_the_page_is_well_formed(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [v for name, v in reader.attributes if name == "href" and v.startswith("#")]
    assert {link[1:] for link in links} <= set(ids)


def test_the_page_needs_nothing_but_itself(page):
    reader = Reader()
    reader.feed(page)
    assert not {"script", "link", "img", "iframe"} & set(reader.seen)
    assert "default-src 'none'" in page
    loaded = [v for n, v in reader.attributes if n in ("src", "href", "xlink:href")]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in loaded)
    assert "@import" not in page
    assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"|http-equiv', "", page)


def test_headings_are_in_order(page):
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", page)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_sections_are_in_order_and_in_the_contents(page):
    titles = [re.sub("<[^>]+>", "", h) for h in re.findall(r"<h2 id[^>]*>(.*?)</h2>", page)]
    assert titles == [
        "Contents",
        "Summary",
        "Accuracy of each task",
        "Capacity of each layer",
        "New and reused neurons",
        "Pruning within the margin",
        "The accuracy matrix",
        "Training and the grid",
        "Settings, environment, certificates",
    ]
    assert all(f'href="#{section.name}"' in page for section in SECTIONS)


def test_every_figure_is_on_the_page(page):
    assert set(re.findall(r'<figure id="figure-(\w+)"', page)) == set(NAMES)


def test_names_cannot_break_out(tmp_path):
    nasty = '</title></svg><script>alert(1)</script>"onload="x\'&amp;<!--'
    html = page_of(write_run(tmp_path / "run", tasks=(nasty, "b"), sizes={nasty: 50}))
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert "script" not in reader.seen
    assert "onload" not in dict(reader.attributes)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 3


def test_what_is_not_there_is_said_in_a_sentence(tmp_path):
    html = page_of(write_run(tmp_path / "run", num_learnt=0, num_candidates=1))
    for section in SECTIONS[:-1]:
        assert section.nothing in html
    assert "There was no grid" in html
    assert html.count("<figure") == 2
    assert "Please note" in html
    baseline = page_of(write_run(tmp_path / "base", method="ewc"))
    assert "baselines claim none" in baseline
    assert "the method does not prune neurons" in baseline
    assert "Please note" not in baseline


def test_a_comparison_says_where_its_grids_are(tmp_path):
    html = page_of(write_comparison(tmp_path / "compared"))
    assert html.count("Of what is compared, neurons are claimed by clnp alone.") == 3
    assert "The grids of several methods or settings are in the reports of each of them." in html


def test_that_nothing_was_learnt_stands_at_the_top(tmp_path):
    run = write_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    for task in result["tasks"]:
        task |= {"score": 10.0, "guess": 10.0}
    write(run, "result.json", result)
    html = page_of(run)
    assert html.index("NOT LEARNT") < html.index("92.00 %") < html.index("</section>")
