"""The colours of figures, page and terminal, by what they mean.

A colour has one meaning everywhere: blue is neural pruning, magenta are new neurons, moss green
reused ones. All can be distinguished with any kind of colour vision, and stand out from a light and
a dark page. `DARK` has another shade for those that would not do there.
"""

INK, MUTED, LINE, SOFT, PAPER = "#1f2328", "#59636d", "#d0d7dd", "#eef1f3", "#fefefe"
"""Text, secondary text, lines, shaded areas, and the background."""
ACCENT, GOOD, WARN, WARN_SOFT = "#0b63a5", "#0a7a55", "#8a4b00", "#fff4e0"
"""Links, what is as it should be, warnings and their background."""
NEW, REUSED, EARLIER = "#c030c0", "#609048", "#c8d0d8"
"""Neurons: new ones of a task, those of earlier tasks that it uses, and the others of those."""
MARGIN = GOOD
"""What is within the margin."""
CLNP = "#0072b2"
"""Neural pruning."""
OTHERS = (
    *("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f8f8f"),
    *("#5a00ff", "#784b1e", "#d2b469", "#b44bff", "#4b5a5a"),
)
"""Other methods. The colours of Okabe and Ito, without the yellow that is invisible on white paper,
and further ones that can be distinguished from them."""

VARIABLES = {
    "--ink": INK,
    "--muted": MUTED,
    "--line": LINE,
    "--soft": SOFT,
    "--paper": PAPER,
    "--accent": ACCENT,
    "--good": GOOD,
    "--warn": WARN,
    "--warn-soft": WARN_SOFT,
    "--clnp": CLNP,
    "--violet": OTHERS[6],
    "--brown": OTHERS[7],
    "--slate": OTHERS[10],
    "--earlier": EARLIER,
}
"""The variables of the style sheet, for the colours that differ on a dark page."""
DARK = {
    "--ink": "#e6eaee",
    "--muted": "#9ba6b1",
    "--line": "#3a424b",
    "--soft": "#242b33",
    "--paper": "#14181d",
    "--accent": "#6cb6f0",
    "--good": "#4cc79a",
    "--warn": "#f0b45c",
    "--warn-soft": "#2e2515",
    "--clnp": "#167bc2",
    "--violet": "#a98bfc",
    "--brown": "#a06d43",
    "--slate": "#a7c7c7",
    "--earlier": "#48525c",
}


def style() -> str:
    """Return the rules of a style sheet that define the variables, for light and dark pages."""
    light, dark = (
        " ".join(f"{name}: {colour};" for name, colour in colours.items())
        for colours in (VARIABLES, DARK)
    )
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
    )
