from matplotlib.figure import Figure

from clnp.report import markup
from clnp.report.picture import Picture, Table
from clnp.report.style import drawing

NASTY = "<script>alert(\"1\")</script> & 'x'\n\x00"
SAFE = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#x27;x&#x27;"


def test_text_is_escaped_everywhere():
    table = Table((NASTY,), ((NASTY, NASTY),))
    parts = [
        markup.text(NASTY),
        markup.paragraph(NASTY),
        markup.heading(2, NASTY),
        markup.table(table, label=NASTY),
        markup.folded(NASTY, ""),
        markup.facts([(NASTY, NASTY, NASTY, "")]),
        markup.listing([NASTY]),
    ]
    for part in parts:
        assert SAFE in part
        assert "<script" not in part
        assert "\x00" not in part


def test_a_table_has_heads_for_columns_and_rows():
    html = markup.table(Table(("task", "score"), (("low", None), ("high", ""))), label="Scores")
    assert '<th scope="col">score</th>' in html
    assert '<tr><th scope="row">low</th><td>\u2013</td></tr>' in html
    assert '<th scope="row">high</th><td></td>' in html
    assert 'role="region" tabindex="0" aria-label="Scores"' in html


def test_a_very_long_table_ends_and_says_so():
    rows = tuple((number, number) for number in range(1200))
    table = Table(("a", "b"), rows)
    assert markup.table(table, label="x").count("<tr>") == 1001
    with drawing():
        picture = Picture("loss", "Loss", "words", "words", Figure(), table)
        assert "200 more rows are in figures/loss.csv." in markup.figure(picture)


def test_a_figure_has_caption_numbers_and_a_box_to_scroll_in():
    with drawing():
        table = Table(("a",), ((1,),))
        html = markup.figure(Picture("loss", "Loss <x>", "It <falls>", "d", Figure(), table))
    assert "<figcaption>It &lt;falls&gt;</figcaption>" in html
    assert '<details><summary aria-label="Numbers: Loss &lt;x&gt;">Numbers</summary>' in html
    assert 'class="plot" role="region" tabindex="0" aria-label="Loss &lt;x&gt;"' in html
