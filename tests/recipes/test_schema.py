from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

import pytest
from hypothesis import given, strategies as st

from clnp.checks import COUNT, settle
from clnp.errors import ArgumentError, RecipeError
from clnp.recipes.schema import build, hint_of, recipe_fields, to_toml
from clnp.recipes.toml import parse

Rate = float | Mapping[str, float]


@dataclass(frozen=True)
class Permuted:
    kind: Literal["permuted"]
    num_tasks: int = 10


@dataclass(frozen=True)
class Split:
    kind: Literal["split"] = "split"
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chain:
    kind: Literal["chain"]
    parts: tuple["Permuted | Split | Chain", ...]


@dataclass(frozen=True)
class Optimizer:
    name: str | Callable[[int], int] = "Adam"
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Literal["constant", "cosine", "milestones"] = "constant"
    augment: Callable[[int], int] | None = None

    def __post_init__(self) -> None:
        if self.name == "":
            raise ArgumentError("the optimizer needs a name", argument="name")
        if self.options.get("lr"):
            raise ArgumentError("options cannot hold lr")


@dataclass(frozen=True)
class Recipe:
    """A recipe to test with."""

    margin: float
    seed: int = 0
    resume: bool = False
    rate: Rate = 1e-5
    rates: tuple[Rate, ...] = ()
    patience: int | None = None
    resolution: int | None = 100
    head: str | None = "single"
    optimizer: Optimizer = field(default_factory=Optimizer)
    fine_tuning: Optimizer | None = None
    stream: Permuted | Split | Chain = field(default_factory=Split)
    layers: Mapping[str, Split] = field(default_factory=dict)
    label: str = field(init=False, default="x")


def made(text: str, cls: Any = Recipe) -> Any:
    return build(cls, parse(text, name="recipe.toml"))


def message_of(text: str, cls: Any = Recipe) -> str:
    with pytest.raises(RecipeError) as caught:
        made(text, cls)
    return str(caught.value)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "a whole number"),
        (float, "a number"),
        (bool, "true or false"),
        (str, "text"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (Literal["a"], "'a'"),
        (Split, "a table"),
        (Any, "any value"),
        (tuple[float, ...], "a list of numbers"),
        (tuple[bool, ...], "a list of true or false"),
        (tuple[tuple[int, ...], ...], "a list of lists of whole numbers"),
        (tuple[Any, ...], "a list"),
        (tuple[Literal["a", "b"] | None, ...], "a list of one of 'a', 'b' or \"none\""),
        (tuple[Permuted | Split, ...], "a list of tables"),
        (Mapping[str, str], "a table of texts"),
        (Mapping[str, Any], "a table"),
        (dict[str, Split], "a table of tables"),
        (tuple[Mapping[str, float], ...], "a list of tables of numbers"),
        (float | Mapping[str, float], "a number or a table of numbers"),
        (int | str | tuple[int, ...], "a whole number, text or a list of whole numbers"),
        (Permuted | Split, "a table"),
        (Optional[int], 'a whole number or "none"'),  # noqa: UP045
        (bool | None, 'true, false or "none"'),
        (str | Callable[[int], int], "text"),
    ],
)
def test_a_type_is_described_in_words(hint, words):
    assert hint_of(hint).words == words


@dataclass(frozen=True)
class NoKeys:
    function: Callable[[int], int]
    maybe: Callable[[int], int] | None = None
    functions: tuple[Callable[[int], int], ...] = ()
    by_name: Mapping[str, Callable[[int], int]] = field(default_factory=dict)
    by_number: Mapping[int, str] = field(default_factory=dict)
    pair: tuple[int, int] = (0, 0)
    raw: bytes = b""
    derived: int = field(init=False, default=3)


def test_a_field_that_toml_cannot_hold_is_not_a_key():
    assert dict(recipe_fields(NoKeys)) == {}


def test_every_type_of_field_is_read():
    recipe = made("""
        margin = 3
        seed = -1
        resume = true
        rate = { "layer1.0" = 1, b = 0.5 }
        rates = [1, { a = 2 }, inf]
        patience = 4
        resolution = "none"
        head = "none"
        [optimizer]
        name = "SGD"
        options = { momentum = 0.9, betas = [1, "x"], nested = { a = true } }
        schedule = "cosine"
        [fine_tuning]
        [stream]
        kind = "chain"
        [[stream.parts]]
        kind = "permuted"
        num_tasks = 3
        [[stream.parts]]
        kind = "chain"
        [[stream.parts.parts]]
        kind = "split"
        classes = [1, 2]
        [layers.fc1]
        classes = [3]
        """)
    inner = Chain("chain", (Split(classes=(1, 2)),))
    assert recipe == Recipe(
        margin=3.0,
        seed=-1,
        resume=True,
        rate={"layer1.0": 1.0, "b": 0.5},
        rates=(1.0, {"a": 2.0}, float("inf")),
        patience=4,
        resolution=None,
        head=None,
        optimizer=Optimizer(
            "SGD", {"momentum": 0.9, "betas": [1, "x"], "nested": {"a": True}}, "cosine"
        ),
        fine_tuning=Optimizer(),
        stream=Chain("chain", (Permuted("permuted", 3), inner)),
        layers={"fc1": Split(classes=(3,))},
    )
    for number in (recipe.margin, recipe.rates[0], recipe.rate["layer1.0"]):
        assert type(number) is float
    assert made("margin = 1.0\nfine_tuning = 'none'") == Recipe(1.0)


KINDS = "It must be one of 'permuted', 'split', 'chain'"
KEYS = "margin, seed, resume, rate, rates, patience, resolution, head, optimizer, fine_tuning"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed = 1.0", "seed is 1.0. It must be a whole number"),
        ("seed = true", "seed is true. It must be a whole number"),
        ("resume = 1", "resume is 1. It must be true or false"),
        ("head = 3", 'head is 3. It must be text or "none"'),
        ('rate = "high"', 'rate is "high". It must be a number or a table of numbers'),
        ("rate = nan", "rate is nan. It must be a number or a table of numbers"),
        (f"rate = 1{'0' * 400}", f"rate is 1{'0' * 56}.... It must be a number or a table of num"),
        ("rate.a.b = 1", "rate.a is { b = 1 }. It must be a number"),
        ("rates = 1", "rates is 1. It must be a list of numbers or tables of numbers"),
        ("rates = [1, true]", "rates.1 is true. It must be a number or a table of numbers"),
        ("rates = [{ 'a b' = '' }]", 'rates.0."a b" is "". It must be a number'),
        ("patience = 2024-01-01", 'patience is 2024-01-01. It must be a whole number or "none"'),
        ("optimizer = []", "optimizer is []. It must be a table"),
        ("fine_tuning = 1", 'fine_tuning is 1. It must be a table or "none"'),
        ("optimizer.options = 1", "optimizer.options is 1. It must be a table"),
        (
            'optimizer.schedule = "cosin"',
            "optimizer.schedule is \"cosin\". It must be one of 'constant', 'cosine', "
            "'milestones'. Did you mean 'cosine'?",
        ),
        ("optimizer.schedule = 3", "optimizer.schedule is 3. It must be one of 'constant', 'cos"),
        ('stream = "split"', 'stream is "split". It must be a table'),
        ("layers.a = 1", "layers.a is 1. It must be a table"),
        ("layers.a.kind = 'chain'", "layers.a.kind is \"chain\". It must be 'split'"),
        ("sede = 1", f"unknown key 'sede'. Did you mean 'seed'? Known: {KEYS}, stream, layers"),
        ("label = 'y'", f"unknown key 'label'. Did you mean 'layers'? Known: {KEYS}, stream, l"),
        (
            "optimizer.nmae = 1",
            "unknown key 'optimizer.nmae'. Did you mean 'name'? Known: name, options, schedule",
        ),
        ("optimizer.augment = 1", "unknown key 'optimizer.augment'. Did you mean 'name'? Known: "),
        ("optimizer.name = ''", "the optimizer needs a name"),
        ("optimizer.options = { lr = 1 }", "options cannot hold lr"),
        ("stream.num_tasks = 3", f"stream.kind is missing. {KINDS}"),
        ("stream.kind = 3", f"stream.kind is 3. {KINDS}"),
        (
            "stream.kind = 'permutted'",
            f"stream.kind is \"permutted\". {KINDS}. Did you mean 'permuted'?",
        ),
        (
            "stream = { kind = 'permuted', classes = [] }",
            "unknown key 'stream.classes'. Known: kind, num_tasks",
        ),
        ("stream.kind = 'chain'", "stream.parts is missing. It must be a list of tables"),
        (
            "stream = { kind = 'chain', parts = [{ kind = 'chain', parts = [{}] }] }",
            f"stream.parts.0.parts.0.kind is missing. {KINDS}",
        ),
    ],
)
def test_an_error_has_its_place_and_the_remedy(line, message):
    assert message_of(f"margin = 1\n\n{line}\n").startswith(f"recipe.toml, line 3: {message}")


@dataclass(frozen=True)
class Strict:
    low: int = 3
    high: int = 0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ArgumentError("low is above high", argument="low")


@dataclass(frozen=True)
class HasStrict:
    strict: Strict | None = None


@pytest.mark.parametrize(
    ("text", "cls", "message"),
    [
        ("seed = 1", Recipe, ": margin is missing. It must be a number"),
        (
            "margin = 1\n[stream]\nkind = 'chain'\n[[stream.parts]]\nnum_tasks = 1\n",
            Recipe,
            f", line 4: stream.parts.0.kind is missing. {KINDS}",
        ),
        (
            "margin = 1\n[optimizer]\nschedule = 'cosine'\nname = ''\n",
            Recipe,
            ", line 4: the optimizer needs a name",
        ),
        (
            "margin = 1\n[optimizer]\nschedule = 'cosine'\noptions.lr = 3\n",
            Recipe,
            ", line 2: options cannot hold lr",
        ),
        ("high = 1", Strict, ": low is above high"),
        ("\n[strict]\nhigh = 1\n", HasStrict, ", line 2: low is above high"),
    ],
)
def test_an_error_has_the_line_of_its_key_or_else_of_its_table(text, cls, message):
    assert message_of(text, cls) == f"recipe.toml{message}"


def test_an_error_in_an_assignment_has_its_text():
    document = parse("margin = 1", name="recipe.toml").set("rate.a=high")
    with pytest.raises(RecipeError) as caught:
        build(Recipe, document)
    assert str(caught.value) == '--set rate.a=high: rate.a is "high". It must be a number'


def test_all_errors_are_reported_at_once_in_the_order_of_the_document():
    text = """seed = "x"
[optimizer]
schedule = "x"
name = ""
[stream]
kind = "chain"
[[stream.parts]]
kind = "split"
[[stream.parts]]
kind = "permuted"
num_tasks = 1.5
clases = []
"""
    schedules = "It must be one of 'constant', 'cosine', 'milestones'"
    assert message_of(text).splitlines() == [
        "recipe.toml: 6 problems:",
        '  - recipe.toml, line 1: seed is "x". It must be a whole number',
        f'  - recipe.toml, line 3: optimizer.schedule is "x". {schedules}',
        "  - recipe.toml, line 4: the optimizer needs a name",
        "  - recipe.toml, line 11: stream.parts.1.num_tasks is 1.5. It must be a whole number",
        "  - recipe.toml, line 12: unknown key 'stream.parts.1.clases'. Known: kind, num_tasks",
        "  - recipe.toml: margin is missing. It must be a number",
    ]


@dataclass(frozen=True)
class Counts:
    tasks: int
    classes: int
    samples: int = 1
    least: int = 1

    def __post_init__(self) -> None:
        settle(self, dict.fromkeys(("tasks", "classes", "samples"), COUNT))
        if self.samples < self.least:
            raise ArgumentError("samples is below least", argument="samples")


def test_all_wrong_values_of_a_table_are_reported_at_once():
    assert message_of("tasks = 0\nclasses = 0\nsamples = 0", Counts).splitlines() == [
        "recipe.toml: 3 problems:",
        "  - recipe.toml, line 1: tasks is 0. It must be a whole number, 1 or more",
        "  - recipe.toml, line 2: classes is 0. It must be a whole number, 1 or more",
        "  - recipe.toml, line 3: samples is 0. It must be a whole number, 1 or more",
    ]
    # A default is no error where it only follows from one.
    assert message_of("tasks = 1\nclasses = 1\nleast = 2", Counts).endswith("below least")
    lines = message_of("tasks = 1\nclasses = 1\nleast = 2\nmost = 1", Counts).splitlines()
    known = "Known: tasks, classes, samples, least"
    assert lines == [f"recipe.toml, line 4: unknown key 'most'. {known}"]


def test_a_recipe_is_written_as_toml():
    parts = (Permuted("permuted", 2), Chain("chain", (Split(),)))
    recipe = Recipe(
        1.0,
        rate={"layer1.0": 1.0},
        rates=(float("inf"), {}),
        head=None,
        optimizer=Optimizer(options={"a": {"b": 'say "x"'}}),
        stream=Chain("chain", parts),
        layers={"fc1": Split(classes=(1,))},
    )
    text = to_toml(recipe, header="Resolved.")
    assert (
        text
        == """\
# Resolved.

margin = 1.0
seed = 0
resume = false
rate = { "layer1.0" = 1.0 }
rates = [inf, {}]
patience = "none"
resolution = 100
head = "none"

[optimizer]
name = "Adam"
options = { a = { b = "say \\"x\\"" } }
schedule = "constant"

[stream]
kind = "chain"

[[stream.parts]]
kind = "permuted"
num_tasks = 2

[[stream.parts]]
kind = "chain"

[[stream.parts.parts]]
kind = "split"
classes = []

[layers.fc1]
kind = "split"
classes = [1]
"""
    )
    assert made(text) == recipe


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.floats(allow_nan=False)
INTS = st.integers(-(10**18), 10**18)
RATES = NUMBERS | st.dictionaries(TEXTS, NUMBERS, max_size=3)
VALUES = st.recursive(
    st.booleans() | INTS | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OPTIMIZERS = st.builds(
    Optimizer,
    name=TEXTS.filter(bool),
    options=st.dictionaries(TEXTS.filter(lambda key: key != "lr"), VALUES, max_size=3),
    augment=st.none(),
)
SPLITS = st.builds(Split, classes=st.lists(INTS, max_size=3).map(tuple))
STREAMS = st.recursive(
    st.builds(Permuted, kind=st.just("permuted"), num_tasks=INTS) | SPLITS,
    lambda inner: st.builds(
        Chain, kind=st.just("chain"), parts=st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=4,
)
RECIPES = st.builds(
    Recipe,
    margin=NUMBERS,
    seed=INTS,
    resume=st.booleans(),
    rate=RATES,
    rates=st.lists(RATES, max_size=3).map(tuple),
    patience=st.none() | INTS,
    resolution=st.none() | INTS,
    head=st.none() | TEXTS.filter(lambda text: text != "none"),
    optimizer=OPTIMIZERS,
    fine_tuning=st.none() | OPTIMIZERS,
    stream=STREAMS,
    layers=st.dictionaries(TEXTS, SPLITS, max_size=2),
)


@given(RECIPES)
def test_a_recipe_reads_back_equal(recipe):
    assert made(to_toml(recipe, header="A header\nof two lines")) == recipe
