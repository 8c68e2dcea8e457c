import datetime
import os
import tomllib

import pytest
from hypothesis import given, strategies as st

from clnp.errors import RecipeError
from clnp.recipes import toml
from clnp.recipes.toml import (
    Document,
    Inline,
    document_text,
    dotted,
    key_text,
    parse,
    read,
    shown,
    value_text,
)


def lines_of(text: str) -> dict[str, int]:
    """The line of each key by its path."""
    places = parse(text, name="r.toml").places
    return {
        ".".join(map(str, path)): int(place.removeprefix("r.toml, line "))
        for path, place in places.items()
        if path
    }


def message_of(call, *args, **options) -> str:
    with pytest.raises(RecipeError) as caught:
        call(*args, **options)
    return str(caught.value)


def test_keys_have_the_lines_they_are_written_on():
    text = """# a comment

seed = 0

[learner]  # more
margin = 3 # x = 1
  [learner.training]
\tlr=1
"""
    document = parse(text, name="recipe.toml")
    assert document.data == {"seed": 0, "learner": {"margin": 3, "training": {"lr": 1}}}
    assert document.places == {
        (): "recipe.toml",
        ("seed",): "recipe.toml, line 3",
        ("learner",): "recipe.toml, line 5",
        ("learner", "margin"): "recipe.toml, line 6",
        ("learner", "training"): "recipe.toml, line 7",
        ("learner", "training", "lr"): "recipe.toml, line 8",
    }


def test_a_key_that_is_not_written_has_the_place_of_the_table_around_it():
    document = parse("x = 1\n[a]\nb = {c = 1}\n", name="r.toml")
    assert document.place(("a", "b", "c")) == "r.toml, line 3"
    assert document.place(("a", "b", "d")) == "r.toml, line 3"
    assert document.place(("a", "z", "z")) == "r.toml, line 2"
    assert document.place(("z",)) == document.place(()) == "r.toml"
    assert parse("\n# nothing\n", name="r.toml") == Document({}, {(): "r.toml"})


def test_dotted_and_quoted_keys_have_places():
    text = 'a . "b.c" = 1\n\'q=r\' = 2\n[ x . "y z" ]\n"[k]".v = 3\na."".b = 4\n'
    document = parse(text, name="r.toml")
    assert document.place(("a", "b.c")) == "r.toml, line 1"
    assert document.places[("a",)] == "r.toml, line 1"
    assert document.place(("q=r",)) == "r.toml, line 2"
    assert document.places[("x",)] == "r.toml, line 3"
    assert document.places[("x", "y z")] == "r.toml, line 3"
    assert document.places[("x", "y z", "[k]", "v")] == "r.toml, line 4"
    assert document.places[("x", "y z", "a", "", "b")] == "r.toml, line 5"


def test_keys_and_titles_inside_texts_are_ignored():
    text = '''a = """
[not.a.table]
b = 1 ] }
# no comment
"" \\""" '''  # The closing marks are escaped.
    text += "'''\n\"\"\"\nc = '''\nd = \"\"\"\n]\n'''\ne = 5\n[f]\n"
    assert lines_of(text) == {"a": 1, "c": 7, "e": 11, "f": 12}


def test_arrays_and_inline_tables_may_span_lines():
    text = """a = [ # the first ]
  [1, 2],
  [3], # last, or so ]

  { x = 1, y = [
    2,
  ] },
] # closed,
b.c = { d = { e = 1 }, f = [{ g = 1 }] }
h = 1
"""
    places = {"a": 1, "b": 9, "b.c": 9, "b.c.d": 9, "b.c.d.e": 9, "b.c.f": 9, "h": 10}
    assert lines_of(text) == places
    assert parse(text, name="r.toml").place(("a", 3, "x")) == "r.toml, line 1"


def test_tables_in_arrays_are_counted():
    text = """[[a.b]]
x = 1
[a.b.c]
y = 1
[[a.b.d]]
z = 1
[[a.b.d]]
z = 2
[a.b.d.e]
[[a.b]]
[[a.b.d]]
z = 3
[a.f]
x = 1
"""
    assert lines_of(text) == {
        "a": 1,
        "a.b": 1,
        "a.b.0": 1,
        "a.b.0.x": 2,
        "a.b.0.c": 3,
        "a.b.0.c.y": 4,
        "a.b.0.d": 5,
        "a.b.0.d.0": 5,
        "a.b.0.d.0.z": 6,
        "a.b.0.d.1": 7,
        "a.b.0.d.1.z": 8,
        "a.b.0.d.1.e": 9,
        "a.b.1": 10,
        "a.b.1.d": 11,
        "a.b.1.d.0": 11,
        "a.b.1.d.0.z": 12,
        "a.f": 13,
        "a.f.x": 14,
    }


def test_a_table_is_where_it_is_first_mentioned():
    assert lines_of("[a.b]\n[a]\nc = 1\n") == {"a": 1, "a.b": 1, "a.c": 3}


def test_windows_line_ends_count_once_and_other_separators_do_not_count():
    assert lines_of("a = 1\r\n\r\nb = '''\r\nx'''\r\nc = 1\r\n") == {"a": 1, "b": 3, "c": 5}
    assert lines_of('a = "\u2028\x85"\nb = 1') == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("start", "line", "end"), [("[", "  [1, 2],", "]"), ("'''", "a = 1", "'''"), ("[", "1,", "]")]
)
def test_a_long_value_is_not_parsed_again_for_each_line(start, line, end, monkeypatch):
    num_calls = 0

    def loads(text, *, plain=tomllib.loads):
        nonlocal num_calls
        num_calls += 1
        return plain(text)

    monkeypatch.setattr(tomllib, "loads", loads)
    body = f"{line}\n" * 5000
    assert lines_of(f"a = {start}\n{body}{end}\nb = 1\n") == {"a": 1, "b": 5003}
    assert num_calls == 4  # all of the text, the first line of a, all of a, and b


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a = 1\n\nb 2\n",
            "line 3: this is not TOML: expected '=' after a key in a key/value pair",
        ),
        ("a = 1\na = 2\n", "line 2: this is not TOML: cannot overwrite a value"),
        ("a = 1\na = 2", "line 2: this is not TOML: cannot overwrite a value"),
        ("[a]\nb = \n", "line 2: this is not TOML: invalid value"),
        ('x = 1\na = """\nb = 1\n\n', "line 2: this is not TOML: unterminated string"),
        ("a = ", "line 1: this is not TOML: invalid value"),
    ],
)
def test_an_error_of_syntax_has_its_line(text, message):
    assert message_of(parse, text, name="recipe.toml") == f"recipe.toml, {message}"


def test_values_that_python_cannot_hold_are_refused():
    many = message_of(parse, f"a = {'1' * 5000}", name="r.toml")
    assert many == "r.toml: this is not TOML: a number has thousands of digits"


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 20_000,
        "a = [\n" + "[\n" * 20_000 + "]\n" * 20_001,
        "[" + "a." * 20_000 + "b]",
        '"a" . ' * 101 + "b = 1",
    ],
)
def test_deep_nesting_is_refused_before_it_is_parsed(monkeypatch, text):
    monkeypatch.setattr(toml.tomllib, "loads", None)
    expected = "r.toml: its values are nested too deeply. A recipe needs a few levels of brackets"
    assert message_of(parse, text, name="r.toml") == f"{expected} and keys."


def test_brackets_in_texts_and_comments_do_not_count():
    quotes = "'" + "[" * 200 + "'", '"' + "[" * 200 + '\\""', '"""' + "[\n" * 200 + '"""'
    for text in quotes:
        assert len(parse(f"a = {text} # {'[' * 200}", name="r.toml").data["a"]) >= 200
    assert parse(f"a = [{'1.5, ' * 200}]", name="r.toml").data["a"] == [1.5] * 200


def test_a_large_file_is_not_read():
    assert message_of(read, "/dev/zero").startswith("/dev/zero has more than 1048576 bytes. Give")


def test_a_file_is_read_and_called_by_its_path(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_bytes("\ufeffa = 'ä'\r\n".encode())
    document = read(path)
    assert document == Document({"a": "ä"}, {(): str(path), ("a",): f"{path}, line 1"})
    assert read(str(path)) == document


def test_files_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = "no.toml cannot be read: No such file or directory. Check the path."
    assert message_of(read, "no.toml") == missing
    assert message_of(read, os.curdir) == ". cannot be read: Is a directory. Check the path."
    (tmp_path / "latin.toml").write_bytes(b"a = 1\nb = '\xe4'\n")
    latin = "latin.toml, line 2: byte 0xe4 is not UTF-8. Save the file as UTF-8."
    assert message_of(read, "latin.toml") == latin


TEXT = """seed = 0
[learner]
margin = 0.5
[learner.alpha]
fc1 = 1.0
[[stream.parts]]
num_tasks = 2
[[stream.parts]]
num_tasks = 3
"""


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("seed=1", ("seed",), 1),
        ("learner.margin=3", ("learner", "margin"), 3),
        (" learner . margin = 3.5 ", ("learner", "margin"), 3.5),
        ("learner.lrs=[1, 2]", ("learner", "lrs"), [1, 2]),
        ("learner.alpha={a = 1}", ("learner", "alpha"), {"a": 1}),
        ('learner.alpha."layer1.0.conv"=1e-4', ("learner", "alpha", "layer1.0.conv"), 1e-4),
        ("learner.alpha.'a=b'=2", ("learner", "alpha", "a=b"), 2),
        ("learner.recalibrate=true", ("learner", "recalibrate"), True),
        ('network.head="single"', ("network", "head"), "single"),
        ("network.head=single", ("network", "head"), "single"),
        ("network.head=a = b", ("network", "head"), "a = b"),
        ("network.head=", ("network", "head"), ""),
        ("network.head=1\nseed = 2", ("network", "head"), "1\nseed = 2"),
        ("stream.parts.1.num_tasks=5", ("stream", "parts", 1, "num_tasks"), 5),
        ("stream.parts.0={}", ("stream", "parts", 0), {}),
        ("stream.parts=[]", ("stream", "parts"), []),
        ("names.0=x", ("names", "0"), "x"),
        ("a.b.c.d=1", ("a", "b", "c", "d"), 1),
        ("learner=3", ("learner",), 3),
    ],
)
def test_one_value_can_be_set(assignment, path, value):
    before = parse(TEXT, name="r.toml")
    after = before.set(assignment)
    found = after.data
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)
    assert after.places[path] == f"--set {assignment}"
    assert after.place((*path, "below")) == f"--set {assignment}"
    assert before == parse(TEXT, name="r.toml")


def test_setting_a_value_keeps_the_others_and_their_places():
    before = parse(TEXT, name="r.toml")
    after = before.set("stream.parts.1.num_tasks=5")
    assert after.data["stream"]["parts"] == [{"num_tasks": 2}, {"num_tasks": 5}]
    assert after.data["learner"] == before.data["learner"]
    changed = {("stream", "parts", 1, "num_tasks"): "--set stream.parts.1.num_tasks=5"}
    assert after.places == {**before.places, **changed}


def test_everything_below_a_value_has_its_place():
    after = parse(TEXT, name="r.toml").set("learner.alpha={fc1 = 2}").set("a.b=1").set("a.c=2")
    assert after.place(("learner", "alpha", "fc1")) == "--set learner.alpha={fc1 = 2}"
    assert after.place(("learner", "margin")) == "r.toml, line 3"
    assert after.place(("learner",)) == "r.toml, line 2"
    assert after.place(("a",)) == "--set a.b=1"
    assert after.place(("a", "c")) == "--set a.c=2"


@pytest.mark.parametrize("text", ["learner.margin", "=3", " =3", "a..b=3", "#a=3", "[a]\nb=3"])
def test_an_assignment_without_a_key_is_refused(text):
    assert message_of(parse(TEXT, name="r.toml").set, text) == (
        f"--set {text}: this is not KEY=VALUE with a key as in TOML. Write for example --set "
        "learner.margin=1."
    )


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed.x=3", "seed is 0, not a table. Set seed itself."),
        ("learner.margin.x.y=3", "learner.margin is 0.5, not a table. Set learner.margin itself."),
        ("empty.0=1", "empty is a list of 0, which has no '0'. Give the whole list."),
        *(
            (
                f"stream.parts.{index}.num_tasks=3",
                f"stream.parts is a list of 2, which has no '{index}'. Give an index from 0 to 1.",
            )
            for index in (2, -1, "x")
        ),
    ],
)
def test_a_value_without_a_place_in_the_document_is_refused(assignment, message):
    document = parse(f"empty = []\n{TEXT}", name="r.toml")
    assert message_of(document.set, assignment) == f"--set {assignment}: {message}"


def test_an_assignment_that_is_not_utf_8_is_refused():
    document = parse(TEXT, name="r.toml")
    message = message_of(document.set, "description=\udce4")
    assert message == "--set 'description=\\udce4': this is not UTF-8"


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SCALARS = (
    st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dates()
    | st.times()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (1e-5, "1e-05"),
        (3.0, "3.0"),
        (float("-inf"), "-inf"),
        ('a "b" \\ c', '"a \\"b\\" \\\\ c"'),
        ("two\nlines\ttab\x00\x7f", '"two\\nlines\\ttab\\u0000\\u007f"'),
        ("Größe 粒", '"Größe 粒"'),
        ([1, [2.5], "x"], '[1, [2.5], "x"]'),
        ({"a": 1, "b.c": {}}, '{ a = 1, "b.c" = {} }'),
        (datetime.date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_a_value_is_written_as_toml(value, text):
    assert value_text(value) == text
    assert tomllib.loads(f"x = {text}") == {"x": value}


def test_a_key_has_quotes_where_toml_needs_them():
    for key in ("a", "a-b_3", "0"):
        assert key_text(key) == key
    for key in ("", "a.b", "a b", "ä", 'a"b', "a\n"):
        assert key_text(key).startswith('"')
        assert tomllib.loads(f"{key_text(key)} = 1") == {key: 1}
    assert dotted(["alpha", "layer1.0", 2]) == 'alpha."layer1.0".2'


def test_a_long_value_is_shortened_in_a_message():
    assert shown("x" * 58) == '"' + "x" * 58 + '"'
    assert shown("x" * 59) == '"' + "x" * 56 + "..."


def test_a_value_that_toml_does_not_have_is_refused():
    message = "None is of type NoneType, which TOML does not have."
    assert message_of(value_text, [None]) == message


def test_a_document_has_plain_keys_first_and_then_tables():
    data = {
        "table": {"x": 1, "inner": {"y": 2}, "z": 3},
        "only": {"tables": {"y": 2}},
        "empty": {},
        "seed": 0,
        "alpha": Inline({"layer1.0": 1e-5}),
        "parts": [{"kind": "a", "inner": {"y": 2}}, {}, {"parts": [{"x": 1}]}],
        "mixed": [{"x": 1}, 3],
        "none": [],
    }
    text = document_text(data, header="What this is.\n\nMore.")
    assert (
        text
        == """\
# What this is.
#
# More.

seed = 0
alpha = { "layer1.0" = 1e-05 }
mixed = [{ x = 1 }, 3]
none = []

[table]
x = 1
z = 3

[table.inner]
y = 2

[only.tables]
y = 2

[empty]

[[parts]]
kind = "a"

[parts.inner]
y = 2

[[parts]]

[[parts]]

[[parts.parts]]
x = 1
"""
    )
    assert tomllib.loads(text) == data
    assert document_text({}).strip() == ""


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_document_reads_back_equal(data):
    assert tomllib.loads(document_text(data)) == data
