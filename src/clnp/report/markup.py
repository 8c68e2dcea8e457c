"""Pieces of HTML; all text that comes from a run is escaped here."""

import html
from collections.abc import Sequence
from typing import Any

from clnp.text import clean

from .picture import Picture, Table
from .rendering import inline

MOST_ROWS = 1000
"""Rows of a table in the page."""


def text(value: Any) -> str:
    """The value as text of HTML, on one line."""
    return html.escape(clean(value))


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph."""
    named = f' class="{kind}"' if kind else ""
    return f"<p{named}>{text(words)}</p>"


def heading(level: int, words: str, name: str = "") -> str:
    """A heading that can be linked to."""
    named = f' id="{name}"' if name else ""
    return f"<h{level}{named}>{text(words)}</h{level}>"


def table(content: Table, *, label: str, kind: str = "") -> str:
    """A table in a box of its own to scroll in; rows beyond the limit are left out."""
    named = f' class="{kind}"' if kind else ""
    head = "".join(f'<th scope="col">{_cell(cell)}</th>' for cell in content.header)
    rows = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>'
        + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in content.rows[:MOST_ROWS]
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}">'
        f"<table{named}><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "\u2013"  # An en dash.
    return "" if value == "" else text(value)


def folded(summary: str, content: str, *, of: str = "") -> str:
    """What is shown on request; `of` says what it belongs to, to who hears the page."""
    named = f' aria-label="{text(summary)}: {text(of)}"' if of else ""
    return f"<details><summary{named}>{text(summary)}</summary>\n{content}</details>"


def figure(picture: Picture) -> str:
    """A figure with its caption and its numbers."""
    name = picture.name
    numbers = table(picture.table, label=f"Numbers: {picture.title}")
    left_out = len(picture.table.rows) - MOST_ROWS
    if left_out > 0:
        numbers += paragraph(f"{left_out} more rows are in figures/{name}.csv.")
    return (
        f'<figure id="figure-{name}">\n'
        f'<div class="plot" role="region" tabindex="0" aria-label="{text(picture.title)}">\n'
        f"{inline(picture)}</div>\n"
        f"<figcaption>{text(picture.caption)}</figcaption>\n"
        f"{folded('Numbers', numbers, of=picture.title)}\n</figure>\n"
    )


def facts(entries: Sequence[tuple[str, str, str, str]]) -> str:
    """Numbers in large type: name, value, what more there is to say if any, the kind of value."""
    cells = "".join(
        f'<div><dt>{text(name)}</dt><dd class="value {kind}">{text(value)}</dd>'
        + (f'<dd class="more">{text(more)}</dd>' if more else "")
        + "</div>\n"
        for name, value, more, kind in entries
    )
    return f'<dl class="facts">\n{cells}</dl>\n'


def listing(items: Sequence[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"
