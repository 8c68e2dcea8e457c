"""Reports as a reader sees them: in a browser, light and dark, on a phone and on a wide screen."""

import json
import re
import tempfile
from pathlib import Path

import pytest

from clnp.cli import app
from clnp.report.collection import read_collection
from clnp.report.page import make_page
from clnp.report.style import drawing
from clnp.report.write import NAMES
from support.browser import browser, find_browser
from support.written_runs import raise_scores, write_comparison, write_run, write_series

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")

PHONE, WIDE = 390, 1600
RECIPE = {
    "learner.training.epochs": "4",
    "learner.alphas": "[1e-4, 1e-3]",
    "learner.margin": "5",
    "network.widths": "[40, 30]",
}

# Texts as polygons on the screen: a turned label overlaps nothing that only its upright box does.
OVERLAPS = """(() => {
  const corners = (text) => {
    const b = text.getBBox(), m = text.getScreenCTM(), inset = 0.12 * b.height;
    return [[b.x + 0.5, b.y + inset], [b.x + b.width - 0.5, b.y + inset],
            [b.x + b.width - 0.5, b.y + b.height - inset], [b.x + 0.5, b.y + b.height - inset]]
      .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
  };
  const apart = (one, other) => [one, other].some((shape) => shape.some((p, i) => {
    const q = shape[(i + 1) % 4], nx = q[1] - p[1], ny = p[0] - q[0];
    const along = (points) => points.map(([x, y]) => x * nx + y * ny);
    const a = along(one), b = along(other);
    return Math.max(...a) <= Math.min(...b) || Math.max(...b) <= Math.min(...a);
  }));
  const found = [];
  for (const svg of document.querySelectorAll('.plot svg')) {
    const texts = [...svg.querySelectorAll('text')].filter((t) => t.textContent.trim());
    const shapes = texts.map(corners);
    const name = svg.closest('figure').id;
    for (let i = 0; i < texts.length; i++)
      for (let j = 0; j < i; j++)
        if (!apart(shapes[i], shapes[j]))
          found.push([name, texts[i].textContent, texts[j].textContent]);
  }
  return found;
})()"""

CUT_OFF = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll('.plot svg')) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) {
      const own = text.getBoundingClientRect();
      if (own.left < box.left - 2 || own.right > box.right + 2 || own.top < box.top - 2 ||
          own.bottom > box.bottom + 2) found.push([svg.closest('figure').id, text.textContent]);
    }
  }
  return found;
})()"""

# What stands out to the right without a box of its own to scroll in.
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

FAINT = """(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor), found = [];
  const fixed = ['rgb(0, 0, 0)', 'rgb(255, 255, 255)'];  // Text on a coloured ground.
  for (const e of document.querySelectorAll('h1, h2, h3, p, th, td, dt, dd, a, text, figcaption')) {
    const style = getComputedStyle(e), ink = e.tagName === 'text' ? style.fill : style.color;
    if (e.tagName === 'text' && fixed.includes(ink)) continue;
    const [high, low] = [light(ink), paper].sort((a, b) => b - a);
    if ((high + 0.05) / (low + 0.05) < 4.5) found.push([e.tagName, e.textContent, ink]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def page():
    # Its name is short: the browser has sockets in it.
    short = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with short as profile, browser(Path(profile)) as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A run of a small recipe, and the page about it."""
    run = tmp_path_factory.mktemp("runs") / "split-digits"
    settings = [part for key, value in RECIPE.items() for part in ("--set", f"{key}={value}")]
    command = ["run", "split-digits", "--out", str(run), "--quiet", "--device", "cpu", *settings]
    assert app.main(command) == 0
    return run, written(run, run / "report.html")


def written(run, file):
    """The page of a report, without the files for a paper."""
    with drawing():
        text, _ = make_page(read_collection([run]))
    file.write_text(text, encoding="utf-8")
    return file


LONG = 'a name that is too long for any axis, with <b>, & and "quotes", ' + 80 * "x"
RUNS = {
    "two": lambda path: write_run(path, tasks=("cats", "dogs"), sizes={"fc": 40}),
    "one": lambda path: write_run(path, tasks=("only",), sizes={"fc": 40}, num_candidates=1),
    "twelve": lambda path: write_run(
        path,
        tasks=tuple(f"{LONG} {number}" for number in range(12)),
        sizes={f"{LONG} {number}": 400 for number in range(11)},
    ),
    "twenty-four": lambda path: write_run(
        path, tasks=tuple(f"task {number}" for number in range(24)), sizes={"fc": 2000}
    ),
    "unfinished": lambda path: write_run(path, num_learnt=1),
    "nothing": lambda path: write_run(path, tasks=(80 * "x",), num_learnt=0),
    "series": lambda path: write_series(path, seeds=(0, 1, 2)),
    "comparison": write_comparison,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of many kinds of runs by name, each made when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    class Pages(dict):
        def __missing__(self, name):
            self[name] = written(RUNS[name](folder / name), folder / f"{name}.html")
            return self[name]

    return Pages()


def show(page, path, *, width=1200, theme="light"):
    page.set_width(width)
    page.set_theme(theme)
    page.open(path)


def test_nothing_is_asked_for_and_nothing_goes_wrong(page, report):
    show(page, report[1])
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1
    assert page.complaints == []


def test_every_figure_can_be_seen(page, report):
    show(page, report[1])
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure')].map((f) => { const s = f.querySelector('svg'),"
        " b = s.getBoundingClientRect(); return [f.id, b.width, b.height,"
        " s.querySelectorAll('path').length]; })"
    )
    assert {name.removeprefix("figure-") for name, *_ in sizes} == set(NAMES)
    for name, width, height, num_paths in sizes:
        assert width > 200, name
        assert height > 60, name
        assert num_paths > 10, name


def test_numbers_are_those_of_the_result(page, report):
    run, path = report
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    show(page, path)
    cells = page.evaluate(
        "[...document.querySelectorAll('#figure-accuracy tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    now = result["scores"][-1]
    assert cells == [
        [task["task"], f"{task['test_score']:.2f}", f"{score:.2f}"]
        for task, score in zip(result["tasks"], now, strict=True)
    ]
    values = page.evaluate(
        "[...document.querySelectorAll('.facts .value')].map((e) => e.textContent)"
    )
    assert values[0] == f"{sum(now) / len(now):.2f} %"
    assert values[1] == "0, exactly"
    claimed = page.evaluate(
        "[...document.querySelectorAll('#figure-capacity tbody tr')]"
        ".map((row) => [...row.cells].slice(2, -2).map((cell) => +cell.textContent))"
    )
    assert claimed == [[task["new"][group] for task in result["tasks"]] for group in ("fc1", "fc2")]
    digests = page.evaluate(
        "[...document.querySelectorAll('.digests td')].map((cell) => cell.textContent)"
    )
    assert digests == list(result["certificates"].values())


def test_numbers_are_folded_and_can_be_unfolded(page, report):
    show(page, report[1])
    shown = "document.querySelector('#figure-accuracy table').checkVisibility()"
    assert page.evaluate(shown) is False
    page.evaluate("document.querySelector('#figure-accuracy summary').click()")
    assert page.evaluate(shown) is True


def test_the_contents_lead_somewhere(page, report):
    show(page, report[1], width=WIDE)
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    page.evaluate("document.querySelector('nav a[href=\"#matrix\"]').click()")
    assert -5 <= page.evaluate("document.getElementById('matrix').getBoundingClientRect().top") < 60


@pytest.mark.parametrize("width", [PHONE, WIDE, 360, 800])
@pytest.mark.parametrize("name", ["one", "twelve", "comparison", "unfinished", "nothing"])
def test_the_page_does_not_move_sideways(page, pages, name, width):
    show(page, pages[name], width=width)
    assert page.evaluate(SIDEWAYS) == 0
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate(SIDEWAYS) == 0


def test_the_table_of_all_methods_is_whole_in_a_common_window(page, tmp_path):
    methods = ("clnp", "single", "finetune", "joint", "ewc", "packnet", "hat", "superposition")
    compared = write_comparison(tmp_path / "compared", methods=methods)
    raise_scores(compared / "superposition/seed1", -30)  # "76.00 ± 21.92": wide cells.
    show(page, written(compared, tmp_path / "report.html"), width=1285)
    sizes = "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.members').parentNode)"
    whole, seen = page.evaluate(sizes)
    assert whole <= seen
    heights = "[...document.querySelectorAll('.members tbody tr')].map(e => e.clientHeight)"
    assert max(page.evaluate(heights)) < 40


@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_figures_can_be_read_on_any_screen(page, report, width):
    show(page, report[1], width=width)
    assert page.evaluate(SIDEWAYS) == 0
    sizes = page.evaluate(
        "[...document.querySelectorAll('.plot text')].map((t) => {"
        " const m = t.getScreenCTM(); return Math.hypot(m.a, m.b) *"
        " parseFloat(getComputedStyle(t).fontSize); })"
    )
    assert min(sizes) > 6.5
    assert max(sizes) < 24


@pytest.mark.parametrize("name", RUNS)
def test_no_label_lies_on_another_and_none_is_cut_off(page, pages, name):
    show(page, pages[name])
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CUT_OFF) == []
    assert page.complaints == []


def test_labels_that_lie_on_one_another_would_be_found(page, pages):
    show(page, pages["two"])
    page.evaluate(
        "(() => { const text = document.querySelector('.plot text');"
        " text.parentNode.appendChild(text.cloneNode(true)); })()"
    )
    assert len(page.evaluate(OVERLAPS)) == 1
    page.evaluate("document.querySelector('.plot text').setAttribute('x', -99)")
    assert len(page.evaluate(CUT_OFF)) == 1


def test_no_label_lies_on_another_in_a_real_run(page, report):
    show(page, report[1])
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_light_and_dark(page, pages, theme):
    show(page, pages["unfinished"], theme=theme)
    assert page.evaluate(FAINT) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[theme]


def test_figures_take_on_the_colours_of_the_page(page, pages):
    script = "getComputedStyle(document.querySelector('.plot text')).fill"
    show(page, pages["two"])
    light = page.evaluate(script)
    page.set_theme("dark")
    assert page.evaluate(script) != light


def test_on_paper_it_is_black_on_white(page, pages):
    show(page, pages["two"])
    page.set_theme("dark", media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('.plot text')).fill") == (
        "rgb(0, 0, 0)"
    )
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_everything_that_scrolls_can_be_reached_with_the_keyboard(page, pages):
    show(page, pages["comparison"], width=PHONE)
    missing = page.evaluate(
        "[...document.querySelectorAll('main *')].filter((e) => e.scrollWidth > e.clientWidth + 1"
        " && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0)"
        ".map((e) => e.className)"
    )
    assert missing == []


def test_names_are_words_and_nothing_else(page, tmp_path):
    nasty = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    run = write_run(tmp_path / "run", tasks=(nasty,), method="ewc")
    show(page, written(run, tmp_path / "report.html"))
    assert page.evaluate("document.images.length + document.scripts.length") == 0
    assert page.complaints == []
    assert nasty in page.evaluate("document.querySelector('.lead').textContent")


def test_the_text_of_the_page_has_no_marks_of_a_program(page, pages):
    for name in RUNS:
        show(page, pages[name])
        words = page.evaluate("document.body.innerText")
        assert re.findall(r"\b(None|nan|undefined|\[\]|\{\})\b", words) == []
