import pytest

from clnp.studies.tables import Mean, Table, best_of, to_csv, to_latex, to_markdown, to_text

TABLE = Table(
    ("method", "average", "stored, MB", "seeds"),
    (("a_b", Mean(93.0, 1.0, 3), None, 3), ("b & c|d", Mean(-0.251), Mean(0.5), 1)),
    name="mine",
    caption="50 % of it",
    best=frozenset({(0, 1)}),
)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (Mean(98.456, 0.031, 3), "98.46 ± 0.03"),
        (Mean(98.456), "98.46"),
        (Mean(-0.0001), "0.00"),
        (Mean(5.0, 0.0, 3, digits=0), "5 ± 0"),
    ],
)
def test_a_mean_in_text(mean, expected):
    assert str(mean) == expected


def test_means_and_deviations_have_columns_of_their_own():
    table = Table(
        ("task", "clnp: now", "ewc", "reused, % of active"),
        (("a", Mean(93.0, 1.0, 3), Mean(90.25), Mean(4.0, digits=0)), ("b", None, None, 1)),
    )
    assert to_csv(table).splitlines() == [
        "task,clnp_now_mean,clnp_now_std,ewc,reused_of_active",
        "a,93.0,1.0,90.25,4",
        "b,,,,1",
    ]
    assert to_csv(Table(("a", "b"), ())) == "a,b\n"
    assert to_csv(Table(("a", "b"), (), keys=("c", "d"))) == "c,d\n"


def test_text_and_markdown():
    assert to_text(TABLE).splitlines()[1].split() == ["a_b", "93.00", "±", "1.00", "-", "3"]
    assert to_markdown(TABLE).splitlines() == [
        "| method | average | stored, MB | seeds |",
        "|---|---|---|---|",
        "| a_b | **93.00 ± 1.00** | - | 3 |",
        r"| b & c\|d | -0.25 | 0.50 | 1 |",
    ]


def test_latex_has_a_caption_a_label_and_rules_of_booktabs():
    assert to_latex(TABLE).splitlines() == [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{50 \% of it}",
        r"  \label{tab:mine}",
        r"  \begin{tabular}{lrrr}",
        r"  \toprule",
        r"  method & average & stored, MB & seeds \\",
        r"  \midrule",
        r"    a\_b & $\mathbf{93.00 \pm 1.00}$ & -- & $3$ \\",
        r"    b \& c$|$d & $-0.25$ & $0.50$ & $1$ \\",
        r"  \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


def test_latex_escapes_what_means_something_there():
    [*_, row, _, _, _] = to_latex(Table(("a",), ((r"~ ^ \ & % $ # _ { } <",),))).splitlines()
    assert row.strip() == (
        r"\textasciitilde{} \textasciicircum{} \textbackslash{} \& \% \$ \# \_ \{ \} $<$ \\"
    )


def test_the_best_is_what_is_shown():
    """Values that are shown alike are equally good; if all are alike, none is the best."""
    rows = [("a", Mean(1.001)), ("b", Mean(0.999)), ("c", None), ("d", Mean(0.5))]
    assert best_of(rows, 1, highest=True) == {(0, 1), (1, 1)}
    assert best_of(rows, 1, highest=False) == {(3, 1)}
    assert best_of(rows[:3], 1, highest=True) == set()
    assert best_of([], 1, highest=True) == set()
