"""A figure as files for a paper, and as SVG that takes on the colours of the page it stands in."""

import html
import io
import re
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .picture import Picture
from .style import THEMED, WIDTH

DOTS_PER_INCH = 300
FORMATS = ("svg", "pdf", "png")


def settle(figure: Figure) -> None:
    """Find places for all parts of the figure, once for all its files."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def render(figure: Figure, kind: str) -> bytes:
    """The figure as a file that needs no font of its reader; the same bytes every time."""
    undated: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "png": {"Software": None},
    }
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "clnp"}):
        return _saved(figure, kind, undated[kind])


def _saved(figure: Figure, kind: str, metadata: dict[str, Any]) -> bytes:
    # `savefig` would draw everything a second time, to find places that are found already.
    file = io.BytesIO()
    figure.set_dpi(DOTS_PER_INCH)
    canvases: dict[str, Any] = {
        "svg": FigureCanvasSVG,
        "pdf": FigureCanvasPdf,
        "png": FigureCanvasAgg,
    }
    getattr(canvases[kind](figure), f"print_{kind}")(file, metadata=metadata)
    return file.getvalue()


def inline(picture: Picture) -> str:
    """The figure as an SVG element: text is text, inks are variables, ids are its own."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": picture.name}):
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        text = _saved(picture.figure, "svg", metadata).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Its rules would hold for the whole page; those that matter are in the style sheet.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # What is written can hold none of these: a quotation mark is not one within text.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{picture.name}-\1"', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\1{picture.name}-", text)
    for ink, variable in THEMED.items():
        text = text.replace(f": {ink}", f": var({variable})")
    # The font of the page; its size is kept.
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"font: (?:[\w.]+ )*?([\d.]+px)[^;\"]*", r"font-size: \1", text)
    text = re.sub(r"\n\s*", "\n", text)
    return _opened(text, picture)


def _opened(text: str, picture: Picture) -> str:
    """The element with a role, a title and a description for who cannot see it."""
    box = re.search(r'viewBox="([^"]+)"', text)
    end = text.index(">") + 1
    title, description = f"{picture.name}-title", f"{picture.name}-description"
    view = box[1] if box is not None else "0 0 100 100"
    share = picture.figure.get_figwidth() / WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{view}" role="img" aria-labelledby="{title} {description}" '
        f'style="--share: {share:.3f}">'
        f'<title id="{title}">{html.escape(picture.title)}</title>'
        f'<desc id="{description}">{html.escape(picture.description)}</desc>'
        f"{text[end:]}"
    )
