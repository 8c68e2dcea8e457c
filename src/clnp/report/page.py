"""The page: sections in order, each with its figures, or a sentence where there are none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clnp.version import __version__

from . import markup
from .accuracy import draw_average, draw_scores
from .capacity import draw_usage
from .collection import Collection
from .curves import draw_loss, draw_validation
from .grid import draw_grid
from .growth import draw_growth
from .headline import alarm, headline, lead
from .matrix import draw_matrix
from .particulars import particulars
from .picture import Picture
from .rendering import settle
from .reuse import draw_reuse
from .stylesheet import STYLE
from .thresholds import draw_pruning, draw_thresholds

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing is loaded from anywhere, by the order of the page itself."""

Draw = Callable[[Collection], Picture | None]


@dataclass(frozen=True)
class Section:
    """A part of the page: its heading, its figures, and what it says where it has none."""

    name: str
    title: str
    draws: tuple[Draw, ...]
    nothing: str


NO_NEURONS = "No task has claimed neurons yet; baselines claim none."
NO_CURVES = (
    "No pruning curve is known: nothing has been pruned yet, its events are missing, or the method "
    "does not prune neurons."
)
SECTIONS = (
    Section(
        "scores",
        "Accuracy of each task",
        (draw_scores, draw_average),
        "No task has a test score yet.",
    ),
    Section("capacity", "Capacity of each layer", (draw_usage, draw_growth), NO_NEURONS),
    Section("transfer", "New and reused neurons", (draw_reuse,), NO_NEURONS),
    Section(
        "pruning",
        "Pruning within the margin",
        (draw_pruning, draw_thresholds),
        NO_CURVES,
    ),
    Section("matrix", "The accuracy matrix", (draw_matrix,), "No task has a test score yet."),
    Section(
        "training",
        "Training and the grid",
        (draw_loss, draw_validation, draw_grid),
        "No epoch is known: training has not begun, or its events are missing.",
    ),
)


def draw_all(collection: Collection) -> dict[str, list[Picture]]:
    """The figures of every section, by its name."""
    found: dict[str, list[Picture]] = {}
    for section in SECTIONS:
        pictures = (draw(collection) for draw in section.draws)
        found[section.name] = [picture for picture in pictures if picture is not None]
    return found


def make_page(collection: Collection) -> tuple[str, list[Picture]]:
    """The page and all its figures, each with a place for all its parts."""
    pictures = draw_all(collection)
    drawn = [picture for own in pictures.values() for picture in own]
    for picture in drawn:
        settle(picture.figure)
    return write_page(collection, pictures), drawn


def write_page(collection: Collection, pictures: dict[str, list[Picture]]) -> str:
    """The whole page; it needs nothing but itself."""
    names = [("summary", "Summary"), *((s.name, s.title) for s in SECTIONS)]
    names.append(("particulars", "Settings, environment, certificates"))
    body = [
        '<section aria-labelledby="summary">',
        markup.heading(2, "Summary", "summary"),
        alarm(collection),
        _notes(collection.notes),
        headline(collection),
        "</section>",
    ]
    for section in SECTIONS:
        body += _section(section, collection, pictures[section.name])
    body += [
        '<section aria-labelledby="particulars">',
        markup.heading(2, "Settings, environment, certificates", "particulars"),
        particulars(collection),
        "</section>",
    ]
    return _document(collection, names, "\n".join(body))


def _section(section: Section, collection: Collection, pictures: Sequence[Picture]) -> list[str]:
    parts = [
        f'<section aria-labelledby="{section.name}">',
        markup.heading(2, section.title, section.name),
    ]
    owners = [member.label for member in collection.with_neurons]
    if section.nothing in (NO_NEURONS, NO_CURVES) and 0 < len(owners) < len(collection.members):
        parts.append(
            markup.paragraph(f"Of what is compared, neurons are claimed by {_all(owners)}.")
        )
    for picture in pictures:
        if len(pictures) > 1:
            parts.append(markup.heading(3, picture.title))
        parts.append(markup.figure(picture))
    if not pictures:
        parts.append(markup.paragraph(section.nothing))
    if section.name == "training" and pictures and draw_grid not in section.draws[: len(pictures)]:
        parts.append(markup.paragraph(_why_no_grid(collection)))
    parts.append("</section>")
    return parts


def _all(labels: Sequence[str]) -> str:
    """The labels, as one says them."""
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else f"{last} alone"


def _why_no_grid(collection: Collection) -> str:
    if len(collection.members) > 1:
        return "The grids of several methods or settings are in the reports of each of them."
    return "There was no grid: each task was trained with one alpha and learning rate."


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return (
        '<aside class="notes" aria-labelledby="notes">'
        f"{markup.heading(3, 'Please note', 'notes')}{markup.listing(notes)}</aside>"
    )


def _document(collection: Collection, names: Sequence[tuple[str, str]], body: str) -> str:
    title = markup.text(collection.title)
    contents = "".join(
        f'<li><a href="#{name}">{markup.text(words)}</a></li>' for name, words in names
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="clnp {__version__}">
<title>{title}</title>
<style>
{STYLE}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<div class="page">
<header>
<h1>{title}</h1>
{markup.paragraph(lead(collection), "lead")}
</header>
<nav aria-labelledby="contents"><h2 id="contents">Contents</h2><ul>{contents}</ul></nav>
<main id="main" tabindex="-1">
{body}
</main>
<footer>Made by clnp {__version__}. Each figure is beside this page in
<code>figures/</code> as SVG, PDF and PNG for a paper, its numbers as CSV.</footer>
</div>
</body>
</html>
"""
