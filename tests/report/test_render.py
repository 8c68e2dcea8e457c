import re
import xml.etree.ElementTree as ET

import pytest

from clnp.report.collection import read_collection
from clnp.report.draw import THEMED, drawing
from clnp.report.page import make_page
from clnp.report.render import FORMATS, inline, render
from support.written_runs import write_run

NAMES = ('a <b> & "c"', "$x_1$ costs 5", "\u65e5\u672c\u8a9e")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("runs") / "run", tasks=NAMES)
    with drawing():
        return make_page(read_collection([run])).pictures


pytestmark = pytest.mark.usefixtures("style")


def test_files_have_their_format(pictures):
    starts = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    for kind in FORMATS:
        assert render(pictures["accuracy"].figure, kind).startswith(starts[kind])


def test_files_are_the_same_every_time(pictures):
    for kind in FORMATS:
        figure = pictures["capacity"].figure
        assert render(figure, kind) == render(figure, kind)
    assert inline(pictures["capacity"]) == inline(pictures["capacity"])


def test_files_for_a_paper_contain_their_fonts(pictures):
    svg = render(pictures["accuracy"].figure, "svg").decode()
    assert "<text" not in svg
    assert "var(--" not in svg
    pdf = render(pictures["accuracy"].figure, "pdf")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_a_png_has_300_dots_per_inch(pictures):
    head = render(pictures["accuracy"].figure, "png")[16:20]
    assert int.from_bytes(head, "big") == 2040


def test_text_in_the_page_is_text(pictures):
    svg = inline(pictures["accuracy"])
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    assert set(NAMES) <= set(texts)
    assert "DejaVu" not in svg


def test_colours_are_variables_of_the_page(pictures):
    for picture in pictures.values():
        svg = inline(picture)
        assert not [ink for ink in THEMED if ink in svg.lower()], picture.name
        assert "var(--ink)" in svg
        assert "<style" not in svg


def test_ids_are_unique_in_the_page_and_every_reference_has_one(pictures):
    page = "".join(inline(picture) for picture in pictures.values())
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:url\(#|xlink:href="#)([^")]+)', page)
    assert used
    assert set(used) <= set(ids)


def test_a_figure_has_a_title_and_an_alternative_text(pictures):
    for picture in pictures.values():
        root = ET.fromstring(inline(picture))
        assert root.get("role") == "img"
        title, description = root.get("aria-labelledby").split()
        found = {e.get("id"): e.text for e in root if e.tag in (f"{SVG}title", f"{SVG}desc")}
        assert found[title] == picture.title
        assert found[description] == picture.description


def test_a_figure_loads_nothing(pictures):
    for picture in pictures.values():
        links = re.findall(r'(?:href|src)="([^"]+)"', inline(picture))
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
