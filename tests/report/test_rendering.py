import re
import xml.etree.ElementTree as ET

import pytest

from clnp.report.collection import read_collection
from clnp.report.page import draw_all
from clnp.report.rendering import FORMATS, inline, render, settle
from clnp.report.style import THEMED, drawing
from support.written_runs import write_run

NAMES = ('a <b> & "c"', "$x_1$ costs 5", "\u65e5\u672c\u8a9e")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("runs") / "run", tasks=NAMES)
    with drawing():
        found = [picture for own in draw_all(read_collection([run])).values() for picture in own]
        for picture in found:
            settle(picture.figure)
    return {picture.name: picture for picture in found}


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


def test_files_for_a_paper_need_no_font_of_the_reader(pictures):
    svg = render(pictures["accuracy"].figure, "svg").decode()
    assert "<text" not in svg
    assert "var(--" not in svg
    pdf = render(pictures["accuracy"].figure, "pdf")
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_a_png_is_fit_for_print(pictures):
    head = render(pictures["accuracy"].figure, "png")[16:20]
    assert int.from_bytes(head, "big") == 2040


def test_text_in_the_page_is_text(pictures):
    svg = inline(pictures["accuracy"])
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    assert set(NAMES) <= set(texts)
    assert "DejaVu" not in svg


def test_inks_are_variables_of_the_page(pictures):
    for picture in pictures.values():
        svg = inline(picture)
        assert not [ink for ink in THEMED if ink in svg.lower()], picture.name
        assert "var(--ink)" in svg
        assert "<style" not in svg


def test_ids_are_unique_in_the_page_and_all_are_found(pictures):
    page = "".join(inline(picture) for picture in pictures.values())
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:url\(#|xlink:href="#)([^")]+)', page)
    assert used
    assert set(used) <= set(ids)


def test_a_figure_says_what_it_is(pictures):
    for picture in pictures.values():
        root = ET.fromstring(inline(picture))
        assert root.get("role") == "img"
        title, description = root.get("aria-labelledby").split()
        found = {e.get("id"): e.text for e in root if e.tag in (f"{SVG}title", f"{SVG}desc")}
        assert found[title] == picture.title
        assert found[description] == picture.description


def test_nothing_in_a_figure_is_elsewhere(pictures):
    for picture in pictures.values():
        links = re.findall(r'(?:href|src)="([^"]+)"', inline(picture))
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
