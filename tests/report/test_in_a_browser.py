"""Pages in a headless Chromium: nothing overlaps, is cut off, faint, or wider than the screen."""

import html
import json
import re
import shutil
import subprocess

import pytest
from markupsafe import escape

from clnp.report.collection import read_collection
from clnp.report.draw import drawing
from clnp.report.page import POLICY, make_page
from support.written_runs import write_comparison, write_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
LONG = 'a name that is too long for any axis, with <b>, & and "quotes", ' + 80 * "x"
RUNS = {
    "long": lambda path: write_run(
        path,
        tasks=tuple(f"{LONG} {number}" for number in range(8)),
        sizes={f"{LONG} {number}": 400 for number in range(4)},
    ),
    "many": lambda path: write_run(
        path, tasks=tuple(f"task {number}" for number in range(21)), method="ewc"
    ),
    "compared": write_comparison,
}

# Texts are polygons: a rotated label overlaps only what it covers itself.
PROBE = """
const box = (text) => {
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
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = {overlaps: [], cut: [], faint: [], small: [], wide: 0, unreachable: [], moved: []};
const shown = [...document.querySelectorAll('.plot svg')].filter((svg) => svg.clientWidth);
for (const svg of shown) {
  const frame = svg.getBoundingClientRect();
  const name = svg.closest('[data-run]').dataset.run + ' ' + svg.closest('figure').id;
  const texts = [...svg.querySelectorAll('text')].filter((t) => t.textContent.trim());
  const shapes = texts.map(box);
  texts.forEach((text, i) => {
    const own = text.getBoundingClientRect(), m = text.getScreenCTM();
    if (own.left < frame.left - 2 || own.right > frame.right + 2 || own.top < frame.top - 2 ||
        own.bottom > frame.bottom + 2) found.cut.push([name, text.textContent]);
    if (Math.hypot(m.a, m.b) * parseFloat(getComputedStyle(text).fontSize) < 7)
      found.small.push([name, text.textContent]);
    for (let j = 0; j < i; j++)
      if (!apart(shapes[i], shapes[j]))
        found.overlaps.push([name, text.textContent, texts[j].textContent]);
  });
}
const paper = light(getComputedStyle(document.body).backgroundColor);
for (const e of document.querySelectorAll('h1, h2, h3, p, th, td, dt, dd, a, text, figcaption')) {
  const style = getComputedStyle(e), ink = e.tagName === 'text' ? style.fill : style.color;
  const [high, low] = [light(ink), paper].sort((a, b) => b - a);
  if ((high + 0.05) / (low + 0.05) < 4.5) found.faint.push([e.tagName, e.textContent, ink]);
}
document.querySelectorAll('details').forEach((d) => { d.open = true; });
for (const e of document.querySelectorAll('.scroll')) {
  const first = e.querySelector('th'), left = () => first.getBoundingClientRect().left, at = left();
  e.scrollLeft = 99;
  if (Math.abs(left() - at) > 1) found.moved.push(e.ariaLabel);
  if (first.clientWidth > 0.5 * e.clientWidth && e.scrollLeft) found.moved.push(first.textContent);
}
found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
for (const e of document.querySelectorAll('main *'))
  if (e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0 &&
      ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))
    found.unreachable.push(e.className);
const result = document.createElement('pre');
result.id = 'probe';
result.textContent = JSON.stringify(found);
document.body.replaceChildren(result);
"""
FAULTS = """
const text = document.querySelector('.plot text');
text.parentNode.appendChild(text.cloneNode(true));
text.style.fill = '#ffffee';
const last = [...document.querySelectorAll('.plot:not(.phone) text')].pop();
last.setAttribute('x', -99);
last.removeAttribute('transform');
document.querySelector('h1').style.width = '9999px';
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the pages of all runs below one another, so one start of the browser is enough."""
    folder = tmp_path_factory.mktemp("runs")
    bodies = []
    for name, write in RUNS.items():
        with drawing():
            text = make_page(read_collection([write(folder / name)])).text
        head, body, end = re.split(r"(?<=<body>)|(?=</body>)", text)
        bodies.append(f'<div data-run="{name}">{body}</div>')
    # The page forbids scripts, also those of this test.
    return head.replace(str(escape(POLICY)), "") + "".join(bodies) + end


def probe(page, folder, *, width, dark=False, change=""):
    """Return what the browser finds on the page with a window of this width."""
    media = "all" if dark else "print"
    text = page.replace("@media (prefers-color-scheme: dark)", f"@media {media}")
    file = folder / "page.html"
    framed = html.escape(f"{text}<script>{change}{PROBE}</script>")
    # A window has at least 500 pixels.
    file.write_text(
        f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{framed}" '
        "onload=\"document.body.append(this.contentDocument.getElementById('probe'))\"></iframe>",
        encoding="utf-8",
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options = [f"--user-data-dir={folder / 'profile'}", "--window-size=1300,900"]
    done = subprocess.run(
        [*command, *options, file.as_uri()], capture_output=True, text=True, check=True
    )
    dumped = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert dumped is not None, done.stderr
    return json.loads(html.unescape(dumped[1]))


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_everything_is_legible(page, tmp_path, width, dark):
    found = probe(page, tmp_path, width=width, dark=dark)
    assert found.pop("wide") == 0
    assert not any(found.values()), found


def test_the_probe_finds_faults(page, tmp_path):
    found = probe(page, tmp_path, width=1200, change=FAULTS)
    assert len(found["overlaps"]) == len(found["faint"]) == len(found["cut"]) == 1
    assert found["wide"] > 0
