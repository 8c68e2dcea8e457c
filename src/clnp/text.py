"""Text for people: names without characters that a page cannot hold, and durations."""

import math
import unicodedata
from collections.abc import Sequence

NAMELESS = "(no name)"
JOINERS = "\u200c\u200d"
"""Invisible, and needed: they hold letters and emoji together."""


def clean(value: object) -> str:
    """Return the text on one line, without control characters.

    SVG allows no control characters, and no file a lone surrogate. A mark that changes the
    direction of writing would change it for the rest of the page.
    """
    line = " ".join(str(value).split())
    kept = (
        character
        for character in line
        if unicodedata.category(character) not in ("Cc", "Cs", "Cf", "Cn") or character in JOINERS
    )
    return "".join(kept).strip() or NAMELESS


def printable(text: str) -> str:
    """Return the text with an escape for each character that would control a terminal.

    Line breaks stay: a message may have several lines. For a path on one line, see `one_line`.
    """
    return "".join(_escaped(each) if _is_control(each) and each != "\n" else each for each in text)


class Styled(str):
    """A text with colours and bold type for a terminal, and nothing else that controls one."""


def one_line(text: str) -> str:
    """Return the printable text with an escape for each line break, too."""
    return printable(text).replace("\n", "\\n")


def _is_control(character: str) -> bool:
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return unicodedata.category(character) in kinds and character not in JOINERS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def shortened(text: str, limit: int) -> str:
    """Return the text in at most `limit` characters, shortened in the middle.

    Names mostly differ at their ends: features.0.conv, features.1.conv.
    """
    if len(text) <= limit:
        return text
    tail = max(1, (limit - 1) // 2)
    return f"{text[: max(1, limit - 1 - tail)]}…{text[-tail:]}"


def all_shortened(names: Sequence[str], limit: int) -> list[str]:
    """Return names of at most `limit` characters, numbered if two would be equal."""
    short = [shortened(clean(name), limit) for name in names]
    if len(set(short)) == len(short):
        return short
    width = len(str(len(short))) + 1
    return [f"{n} {shortened(clean(name), limit - width)}" for n, name in enumerate(names, 1)]


def without_common_start(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the words that all names begin with, and the names without them.

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


def duration(seconds: float) -> str:
    """Return a time to about a tenth: 40 s, 3 min, 2 h 10 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return "an unknown time"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
