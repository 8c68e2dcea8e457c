"""Names as they can be shown: without what a page or a figure cannot hold, and short enough."""

import unicodedata
from collections.abc import Sequence
from typing import Any

NAMELESS = "(no name)"
JOINERS = "\u200c\u200d"
"""Invisible, and needed: they hold letters and emoji together."""


def clean(value: Any) -> str:
    """The text on one line, without control characters, halves of characters and turns of writing.

    A name may come from anywhere. Control characters are not allowed in SVG, lone surrogates in
    no file, and a mark that turns the direction of writing would turn the rest of the page.
    """
    line = " ".join(str(value).split())
    kept = (
        character
        for character in line
        if unicodedata.category(character) not in ("Cc", "Cs", "Cf", "Cn") or character in JOINERS
    )
    return "".join(kept).strip() or NAMELESS


def shortened(text: str, limit: int) -> str:
    """The text in at most `limit` characters; what is left out is in the middle.

    Names mostly differ at their ends: features.0.conv, features.1.conv.
    """
    if len(text) <= limit:
        return text
    tail = max(1, (limit - 1) // 2)
    return f"{text[: max(1, limit - 1 - tail)]}…{text[-tail:]}"


def all_shortened(names: Sequence[str], limit: int) -> list[str]:
    """Every name in at most `limit` characters, none like another: numbered where they would be."""
    short = [shortened(clean(name), limit) for name in names]
    if len(set(short)) == len(short):
        return short
    width = len(str(len(short))) + 1
    return [f"{n} {shortened(clean(name), limit - width)}" for n, name in enumerate(names, 1)]


def without_common_start(names: Sequence[str]) -> tuple[str, list[str]]:
    """The words that all names begin with, and the names without them.

    without_common_start(["digits permuted 1", "digits permuted 2"])
        == ("digits permuted", ["1", "2"])
    """
    words = [clean(name).split(" ") for name in names]
    if len(words) < 2:
        return "", [" ".join(each) for each in words]
    num = 0
    while all(len(each) > num + 1 for each in words) and len({each[num] for each in words}) == 1:
        num += 1
    return " ".join(words[0][:num]), [" ".join(each[num:]) for each in words]
