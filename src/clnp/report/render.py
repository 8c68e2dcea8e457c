"""A figure as files for a paper, and as SVG with the colours and font of the page."""

import html
import io
import re

import matplotlib
from markupsafe import Markup
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure

from .draw import THEMED, Picture

DOTS_PER_INCH = 300
FORMATS = ("svg", "pdf", "png")
_NO_DATE: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def settle(figure: Figure) -> None:
    """Compute the layout of the figure, once for all its files."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")


def render(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file with its own fonts; the bytes are reproducible."""
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "clnp"}):
        return _save(figure, kind)


def _save(figure: Figure, kind: str) -> bytes:
    # `savefig` would draw everything a second time to lay it out.
    file = io.BytesIO()
    figure.set_dpi(DOTS_PER_INCH)
    canvas = get_registered_canvas_class(kind)(figure)
    getattr(canvas, f"print_{kind}")(file, metadata=_NO_DATE[kind])
    return file.getvalue()


def inline(picture: Picture) -> Markup:
    """Return the figure as an SVG element: text is text, inks are variables, ids are unique."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": picture.name}):
        text = _save(picture.figure, "svg").decode()
    text = text[text.index("<svg") :]
    # Its rules would apply to the whole page; those that matter are in report.css.
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Names of tasks cannot match: quotation marks in text are escaped.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{picture.name}-\1"', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\1{picture.name}-", text)
    for ink, variable in THEMED.items():
        text = text.replace(f": {ink}", f": var({variable})")
    # The font of the page, with the size of the figure.
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"font: (?:[\w.]+ )*?([\d.]+px)[^;\"]*", r"font-size: \1", text)
    text = re.sub(r"\n\s*", "\n", text)
    return Markup(_with_description(text, picture))


def _with_description(text: str, picture: Picture) -> str:
    """Return the element with a role, a title and a description for screen readers."""
    _, _, content = text.partition(">")
    width, height = 72 * picture.figure.get_size_inches()
    title, description = f"{picture.name}-title", f"{picture.name}-description"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{title} {description}">'
        f'<title id="{title}">{html.escape(picture.title)}</title>'
        f'<desc id="{description}">{html.escape(picture.description)}</desc>'
        f"{content}"
    )
