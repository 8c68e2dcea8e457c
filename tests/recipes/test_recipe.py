from dataclasses import replace

import pytest
import torch

from clnp.data.models import MLP, NarrowCNN, WideCNN
from clnp.data.streams import Chain, Permuted, Split
from clnp.errors import ArgumentError, RecipeError
from clnp.methods import EWC
from clnp.methods.registry import Chosen, Methods
from clnp.recipes import bundled
from clnp.recipes.recipe import Network, Recipe, difference, find, load
from clnp.recipes.schema import to_toml
from clnp.training.config import LearnerConfig, Training

SMALL = """\
seed = 3

[stream]
kind = "permuted"
dataset = "digits"
"""


FIVE = "has 5 hidden layers. Give a number for each."


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def refused(call, *args):
    """The message of the error and the argument that it names."""
    with pytest.raises(ArgumentError) as caught:
        call(*args)
    return str(caught.value), caught.value.argument


def message_of(call, *args):
    with pytest.raises(RecipeError) as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("network", "kind", "widths"),
    [
        (Network(), MLP, [2000, 2000]),
        (Network("mlp", (7, 5, 3)), MLP, [7, 5, 3]),
        (Network("narrow-cnn"), NarrowCNN, [32, 32, 64, 64, 512]),
        (Network("narrow-cnn", (2, 3, 4, 5, 6)), NarrowCNN, [2, 3, 4, 5, 6]),
        (Network("wide-cnn"), WideCNN, [128, 256, 512, 1024, 2048]),
        (Network("wide-cnn", (2, 3, 4, 5, 6)), WideCNN, [2, 3, 4, 5, 6]),
    ],
)
def test_networks_are_those_of_the_paper_unless_widths_are_given(network, kind, widths):
    with torch.device("meta"):  # The large ones need no numbers here.
        model = network.build((3, 32, 32), 9)
    assert type(model) is kind
    layers = [m for m in model.modules() if hasattr(m, "weight") and m.weight.ndim > 1]
    assert [len(layer.weight) for layer in layers] == [*widths, 9]


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (Network("mlp", (7, 5)), (6,)),
        (Network("mlp", (7, 5)), (2, 3, 4)),
        (Network("narrow-cnn", (2, 3, 4, 5, 6)), (1, 8, 8)),
        (Network("narrow-cnn", (2, 3, 4, 5, 6)), (4, 13, 13)),
        (Network("wide-cnn", (2, 3, 4, 5, 6)), (1, 23, 27)),
    ],
)
def test_networks_fit_the_samples(network, shape):
    assert network.build(shape, 4)(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize(
    ("model", "shape", "needed"),
    [
        ("narrow-cnn", (64,), "images, channels x height x width"),
        ("wide-cnn", (1, 1, 8, 8), "images, channels x height x width"),
        ("narrow-cnn", (3, 8, 9), "square images"),
        ("wide-cnn", (3, 22, 23), "images of at least 23 x 23"),
    ],
)
def test_samples_that_do_not_fit_a_network_are_refused(model, shape, needed):
    message = f"a {model} takes {needed}, but the samples have shape {shape}. Use another model."
    assert refused(Network(model).build, shape, 3) == (message, "model")


@pytest.mark.parametrize(
    ("model", "widths", "message"),
    [
        ("narrow-cnn", (8,), f"widths has 1 entries. A narrow-cnn {FIVE}"),
        ("wide-cnn", (8,) * 6, f"widths has 6 entries. A wide-cnn {FIVE}"),
        ("mlp", (8, 0), "widths is [8, 0]. Each must be 1 or more"),
        ("wide-cnn", (8, 8, 8, 8, -4), "widths is [8, 8, 8, 8, -4]. Each must be 1 or more"),
    ],
)
def test_widths_that_do_not_fit_a_network_are_refused(model, widths, message):
    assert refused(Network, model, widths) == (message, "widths")


def test_a_recipe_needs_only_a_stream(path):
    stream = Permuted("permuted", "digits")
    recipe = Recipe(stream)
    assert (recipe.description, recipe.seed, recipe.method) == ("", 0, "clnp")
    assert (recipe.network, recipe.learner) == (Network("mlp", (), "multi"), LearnerConfig())
    loaded = load(str(path))
    assert (loaded.name, loaded.recipe) == ("small", Recipe(stream, seed=3))


def test_a_bundled_recipe_is_found_by_its_name():
    short, document = find("permuted-digits")
    assert short == "permuted-digits"
    assert document.data["stream"] == {"kind": "permuted", "dataset": "digits", "num_tasks": 10}
    assert document.place(()) == "permuted-digits.toml"


def test_a_file_is_found_by_its_path(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    recipes = [load(name).recipe for name in ("small.toml", "~/small.toml", str(path))]
    assert recipes[0] == recipes[1] == recipes[2]
    path.rename("plain")
    assert load("plain").name == find("plain")[1].place(()) == "plain"


def test_a_bundled_recipe_has_priority_over_a_file(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.rename("permuted-digits")
    assert load("permuted-digits").recipe.seed == 0
    assert load("./permuted-digits").recipe.seed == 3


def test_an_unknown_recipe_is_named(tmp_path, monkeypatch):
    assert message_of(find, "permuted-digit") == (
        "unknown recipe 'permuted-digit'. Did you mean 'permuted-digits'? "
        f"Known: {', '.join(bundled.names())}, or a path such as my.toml"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("my.toml", "recipes/mine"):
        assert message_of(load, name).startswith(f"{name} cannot be read: No such file")


def test_assignments_replace_keys_one_after_the_other(path):
    loaded = load(
        str(path),
        ["seed=5", "learner.margin=2", "learner.margin=4", "network.widths=[8, 9]"],
    )
    recipe = loaded.recipe
    assert (loaded.name, recipe.seed, recipe.network.widths) == ("small", 5, (8, 9))
    assert recipe.learner == LearnerConfig(margin=4.0)
    assert recipe.stream == Permuted("permuted", "digits", 10)


@pytest.mark.parametrize(("one", "many"), [("alpha", "alphas"), ("lr", "lrs")])
def test_an_assignment_without_an_effect_is_refused(path, one, many):
    assignments = [f"learner.{many}=[0.1]", f"learner.training.{one}=0.2"]
    assert message_of(load, str(path), assignments) == (
        f"--set learner.training.{one}=0.2 has no effect, because learner.{many} is given. "
        f"Set learner.{many}."
    )


def test_a_stream_has_the_class_of_its_kind(path):
    path.write_text(
        """\
[stream]
kind = "chain"
parts = [
    {kind = "permuted", dataset = "digits", num_tasks = 2},
    {kind = "split", dataset = "digits", classes_per_task = 5, order = "shuffled"},
]
"""
    )
    parts = (Permuted("permuted", "digits", 2), Split("split", "digits", 5, order="shuffled"))
    assert load(str(path)).recipe.stream == Chain("chain", parts)


def test_a_method_inherits_the_training_of_the_learner(path):
    path.write_text(
        f"{SMALL}[learner.training]\nepochs = 3\nlr = 0.5\nalpha = {{fc1 = 1.0}}\n"
        "[methods.si.training]\nlr = 0.25\n"
    )
    loaded = load(str(path), ["methods.ewc.training.batch_size=7", "learner.training.epochs=4"])
    methods = loaded.recipe.methods
    assert methods.si.training == Training(epochs=4, lr=0.25, alpha={"fc1": 1.0})
    assert methods.ewc.training == Training(epochs=4, lr=0.5, alpha={"fc1": 1.0}, batch_size=7)
    assert methods.hat.training is None


def test_a_written_recipe_reads_back_equal_also_where_a_method_says_none(path, tmp_path):
    training = 'patience = 1\nclip_norm = 0.5\naugment = "flip"\n'
    nothing = 'patience = "none"\nclip_norm = "none"\naugment = "none"\n'
    path.write_text(f"{SMALL}[learner.training]\n{training}[methods.ewc.training]\n{nothing}")
    recipe = load(str(path)).recipe
    assert recipe.methods.ewc.training == Training()
    written = tmp_path / "written.toml"
    written.write_text(to_toml(recipe))
    assert load(str(written)).recipe == recipe
    # A table that is None can still get keys.
    changed = load(str(written), ["methods.si.training.epochs=2", "learner.fine_tuning.epochs=2"])
    assert changed.recipe.methods.si.training == replace(recipe.learner.training, epochs=2)
    assert changed.recipe.learner.fine_tuning.epochs == 2


def test_errors_have_their_place_and_inherited_ones_are_reported_once(path):
    path.write_text(
        f"{SMALL}num_tasks = 0\n[learner.training]\nlr = -1.0\n[methods.si.training]\nepochs = 2\n"
        '[network]\nmodel = "wide-cnn"\n'
    )
    lines = message_of(load, str(path), ["network.widths=[1]"]).splitlines()
    assert lines[:2] == [
        f"{path}: 3 problems:",
        f"  - {path}, line 6: num_tasks is 0. It must be a whole number, 1 or more",
    ]
    assert lines[2].startswith(f"  - {path}, line 8: training: lr is -1.0. It must be")
    assert lines[3:] == [f"  - --set network.widths=[1]: widths has 1 entries. A wide-cnn {FIVE}"]


def test_what_only_follows_from_another_error_is_not_reported(path):
    needs = 'learner.training.schedule="milestones"'
    assert "there are no milestones" in message_of(load, path, [needs])
    message = message_of(load, path, [needs, "learner.training.milestones=[1.5]"])
    assert message.endswith("learner.training.milestones.0 is 1.5. It must be a whole number")


CHOSEN = """
[methods.ewc]
strength = 5.0
[methods.hat]
strength = 0.5
[chosen]
clnp = { on = "test" }
ewc = { on = "validation", trials = 20, seeds = [1000, 1001] }
"""


def sources(path, *assignments, methods=("clnp", "ewc", "si", "hat")):
    """What a comparison says about the settings of the methods."""
    loaded = (load(str(path), [*assignments, f"method={name}"]) for name in methods)
    return [each.recipe.settings_source.note for each in loaded]


def test_a_recipe_says_where_the_settings_of_methods_come_from(path, tmp_path):
    path.write_text(f"{SMALL}{CHOSEN}")
    notes = [
        "settings chosen on test data",
        "settings chosen on validation data, 20 trials, seeds 1000 1001",
        "default settings, not tuned",
        "settings of the recipe, which does not say how they were chosen",
    ]
    assert sources(path) == sources(path, "seed=4", "description=mine") == notes
    written = tmp_path / "written.toml"
    written.write_text(to_toml(load(str(path)).recipe))
    assert sources(written) == notes


def test_settings_that_are_changed_are_no_longer_chosen(path, tmp_path):
    path.write_text(f"{SMALL}{CHOSEN}")
    given = "settings of the recipe, which does not say how they were chosen"
    [ewc] = sources(path, "methods.ewc.strength=4.0", methods=["ewc"])
    assert ewc == given
    chosen = 'chosen.ewc={on="test",trials=3,seeds=[7]}'
    [ewc] = sources(path, "methods.ewc.strength=4.0", chosen, methods=["ewc"])
    assert ewc == "settings chosen on test data, 3 trials, seed 7"
    for change in ("stream.num_tasks=2", "learner.margin=1", "network.widths=[8]"):
        clnp, ewc, *_ = sources(path, change)
        assert clnp == "settings chosen on test data, before the recipe was changed"
        assert ewc.endswith("trials, seeds 1000 1001, before the recipe was changed")
    # A run keeps the changed recipe.
    written = tmp_path / "written.toml"
    written.write_text(to_toml(load(str(path), ["learner.margin=1"]).recipe))
    assert sources(written)[0].endswith("before the recipe was changed")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ('ewk = { on = "test" }', "line 7: chosen: unknown method 'ewk'. Did you mean 'ewc'"),
        ('ewc = { on = "tests" }', "chosen.ewc.on is \"tests\". It must be one of 'validation', "),
        ("ewc = { trials = 3 }", "chosen.ewc.on is missing"),
        ('ewc = { on = "test", trials = 0 }', "trials is 0. It must be a whole number, 1 or more"),
    ],
)
def test_an_impossible_source_of_settings_is_named(path, chosen, message):
    path.write_text(f"{SMALL}\n[chosen]\n{chosen}\n")
    assert message in message_of(load, str(path))


def test_an_unknown_method_is_named(path):
    assert message_of(load, str(path), ["method=ecw"]).startswith(
        "--set method=ecw: unknown method 'ecw'. Did you mean 'ewc'? Known: clnp, single, "
    )


def test_an_error_gets_the_place_of_its_key(path):
    loaded = load(str(path), ["stream.num_tasks=4"])
    error = ArgumentError("too many", argument="num_tasks")
    assert str(loaded.error(error, "stream")) == (
        "--set stream.num_tasks=4: stream.num_tasks: too many"
    )
    assert str(loaded.error(ArgumentError("odd"), "stream")) == f"{path}, line 3: stream: odd"


def test_the_first_difference_of_recipes_is_found():
    stream = Permuted("permuted", "digits")
    recipe = Recipe(stream)
    assert difference(recipe, replace(recipe, description="another")) is None
    assert difference(recipe, replace(recipe, chosen={"clnp": Chosen("test")})) is None
    other = replace(recipe, methods=Methods(ewc=EWC(strength=5.0)))
    assert difference(recipe, other) is None
    ewc = (replace(recipe, method="ewc"), replace(other, method="ewc"))
    assert difference(*ewc) == ("methods.ewc.strength", "5.0, not 100.0")
    learner = LearnerConfig(margin=3.0, lrs=(0.1,))
    assert difference(replace(recipe, learner=learner), recipe) == (
        "learner.margin",
        "0.5, not 3.0",
    )
