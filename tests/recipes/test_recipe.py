from dataclasses import replace

import pytest
import torch

from clnp.data.models import MLP, NarrowCNN, WideCNN
from clnp.data.streams import Chain, Permuted, Split
from clnp.errors import ArgumentError, RecipeError
from clnp.recipes import bundled
from clnp.recipes.recipe import Network, Recipe, find, load
from clnp.recipes.schema import to_toml
from clnp.training.config import LearnerConfig, Training

SMALL = """\
seed = 3

[stream]
kind = "permuted"
dataset = "digits"
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return file


def refused(call, *args, **options):
    """The message of the error and the argument that it names."""
    with pytest.raises(ArgumentError) as caught:
        call(*args, **options)
    return str(caught.value), caught.value.argument


def message_of(call, *args):
    with pytest.raises(RecipeError) as caught:
        call(*args)
    return str(caught.value)


def widths_of(model):
    """The outputs of every layer that has weights of its own, but BatchNorm."""
    return [len(m.weight) for m in model.modules() if hasattr(m, "weight") and m.weight.ndim > 1]


@pytest.mark.parametrize(
    ("network", "kind", "widths"),
    [
        (Network(), MLP, [2000, 2000]),
        (Network("mlp", (7,)), MLP, [7]),
        (Network("mlp", (7, 5, 3)), MLP, [7, 5, 3]),
        (Network("narrow-cnn"), NarrowCNN, [32, 32, 64, 64, 512]),
        (Network("narrow-cnn", (2, 3, 4, 5, 6)), NarrowCNN, [2, 3, 4, 5, 6]),
        (Network("wide-cnn"), WideCNN, [128, 256, 512, 1024, 2048]),
        (Network("wide-cnn", (2, 3, 4, 5, 6)), WideCNN, [2, 3, 4, 5, 6]),
    ],
)
def test_networks_are_the_ones_of_the_paper_unless_widths_are_given(network, kind, widths):
    with torch.device("meta"):  # The large ones need no numbers here.
        model = network.build((3, 32, 32), 9)
    assert type(model) is kind
    assert widths_of(model) == [*widths, 9]


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


def test_a_network_of_images_takes_nothing_else():
    for model in ("narrow-cnn", "wide-cnn"):
        for shape in ((64,), (8, 8), (1, 1, 8, 8)):
            assert refused(Network(model).build, shape, 3) == (
                f"a {model} takes images, channels x height x width; the samples have shape "
                f"{shape}",
                "model",
            )


def test_a_narrow_cnn_takes_square_images_only():
    assert refused(Network("narrow-cnn").build, (3, 8, 9), 3) == (
        "a narrow-cnn takes square images; the samples have shape (3, 8, 9)",
        "model",
    )


@pytest.mark.parametrize("model", ["narrow-cnn", "wide-cnn"])
@pytest.mark.parametrize("widths", [(8,), (8,) * 4, (8,) * 6])
def test_a_network_of_another_number_of_layers_is_refused(model, widths):
    assert refused(Network, model, widths) == (
        f"widths has {len(widths)} entries; a {model} has 5 hidden layers",
        "widths",
    )


@pytest.mark.parametrize(("model", "num"), [("mlp", 2), ("narrow-cnn", 5)])
@pytest.mark.parametrize("width", [0, -4])
def test_a_layer_without_neurons_is_refused(model, num, width):
    widths = [*[8] * (num - 1), width]
    assert refused(Network, model, tuple(widths)) == (
        f"widths is {widths}; each must be 1 or more",
        "widths",
    )


def test_a_recipe_needs_nothing_but_a_stream(path):
    stream = Permuted("permuted", "digits")
    recipe = Recipe(stream)
    assert (recipe.description, recipe.seed) == ("", 0)
    assert recipe.network == Network("mlp", (), "multi")
    assert recipe.learner == LearnerConfig()
    loaded = load(str(path))
    assert (loaded.name, loaded.recipe) == ("small", Recipe(stream, seed=3))


def test_a_recipe_of_the_package_is_found_by_its_name():
    short, document = find("permuted-digits")
    assert short == "permuted-digits"
    assert document.data["stream"] == {"kind": "permuted", "dataset": "digits", "num_tasks": 10}
    assert document.place(()) == "permuted-digits.toml"


def test_a_file_is_found_by_its_path_whatever_it_is_called(path, monkeypatch):
    assert find(str(path))[0] == "small"
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("HOME", str(path.parent))
    recipes = [load(name).recipe for name in ("small.toml", "~/small.toml", str(path))]
    assert recipes[0] == recipes[1] == recipes[2]
    path.rename("plain")
    assert load("plain").name == "plain"
    assert find("plain")[1].place(()) == "plain"


def test_a_recipe_of_the_package_goes_before_a_file_of_its_name(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    path.rename("permuted-digits")
    assert load("permuted-digits").recipe.seed == 0
    assert load("./permuted-digits").recipe.seed == 3


def test_an_unknown_recipe_is_named():
    known = ", ".join(bundled.names())
    assert message_of(find, "permuted-digit") == (
        "unknown recipe 'permuted-digit'; did you mean 'permuted-digits'? "
        f"Known: {known}, or a path such as my.toml"
    )


@pytest.mark.parametrize("name", ["my.toml", "recipes/mine"])
def test_a_path_to_nothing_is_a_path(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message_of(load, name) == f"{name}: there is no such file; check the path"


def test_assignments_are_made_one_after_the_other(path):
    loaded = load(
        str(path),
        ["seed=5", "learner.margin=2", "learner.margin=4", "network.widths=[8, 9]"],
    )
    recipe = loaded.recipe
    assert loaded.name == "small"
    assert recipe.seed == 5
    assert recipe.learner == LearnerConfig(margin=4.0)
    assert recipe.network.widths == (8, 9)
    assert recipe.stream == Permuted("permuted", "digits", 10)


def test_streams_are_told_apart_by_their_kind(path):
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
    assert load(str(path)).recipe.stream == Chain(
        "chain",
        (
            Permuted("permuted", "digits", 2),
            Split("split", "digits", 5, order="shuffled"),
        ),
    )


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("stream.num_tasks=0", "num_tasks is 0; it must be 1 or more"),
        ("network.widths=[8, 0]", "widths is [8, 0]; each must be 1 or more"),
    ],
)
def test_what_a_recipe_must_not_hold_is_refused_where_it_was_written(path, assignment, message):
    assert message_of(load, str(path), [assignment]) == f"--set {assignment}: {message}"


def test_a_method_trains_as_the_learner_does_but_for_what_it_says(path):
    path.write_text(
        f"{SMALL}[learner.training]\nepochs = 3\nlr = 0.5\nalpha = {{fc1 = 1.0}}\n"
        "[methods.si.training]\nlr = 0.25\n"
    )
    loaded = load(str(path), ["methods.ewc.training.batch_size=7", "learner.training.epochs=4"])
    methods = loaded.recipe.methods
    assert (methods.si.training.epochs, methods.si.training.lr) == (4, 0.25)
    assert methods.si.training.alpha == {"fc1": 1.0}
    ewc = methods.ewc.training
    assert (ewc.epochs, ewc.lr, ewc.batch_size) == (4, 0.5, 7)
    assert methods.hat.training is None
    assert loaded.document.place(("methods", "si", "training", "epochs")) == (
        "--set learner.training.epochs=4"
    )


def test_a_recipe_that_is_written_reads_back_equal_also_where_a_method_says_none(path, tmp_path):
    training = 'patience = 1\nclip_norm = 0.5\naugment = "flip"\n'
    nothing = 'patience = "none"\nclip_norm = "none"\naugment = "none"\n'
    path.write_text(f"{SMALL}[learner.training]\n{training}[methods.ewc.training]\n{nothing}")
    recipe = load(str(path)).recipe
    assert recipe.methods.ewc.training == Training()
    written = tmp_path / "written.toml"
    written.write_text(to_toml(recipe))
    assert load(str(written)).recipe == recipe
    # A table that is none can still be given keys.
    changed = load(str(written), ["methods.si.training.epochs=2", "learner.fine_tuning.epochs=2"])
    assert changed.recipe.methods.si.training == replace(recipe.learner.training, epochs=2)
    assert changed.recipe.learner.fine_tuning.epochs == 2


def test_what_a_method_inherits_is_refused_once(path):
    path.write_text(f"{SMALL}[learner.training]\nlr = -1.0\n[methods.si.training]\nepochs = 2\n")
    message = message_of(load, str(path))
    assert message.count("lr is -1.0; it must be") == 1
    assert "methods" not in message


def test_what_a_file_must_not_hold_is_refused_by_its_line(path):
    path.write_text(f'{SMALL}num_tasks = 0\n[network]\nmodel = "wide-cnn"\nwidths = [1]\n')
    assert message_of(load, str(path)) == (
        f"{path}: 2 problems:\n"
        f"  - {path}, line 6: num_tasks is 0; it must be 1 or more\n"
        f"  - {path}, line 9: widths has 1 entries; a wide-cnn has 5 hidden layers"
    )


def test_a_mistake_is_told_with_the_place_of_its_key(path):
    loaded = load(str(path), ["stream.num_tasks=4"])
    error = ArgumentError("too many", argument="num_tasks")
    assert str(loaded.mistake(error, "stream")) == (
        "--set stream.num_tasks=4: stream.num_tasks: too many"
    )
    assert str(loaded.mistake(ArgumentError("odd"), "stream")).endswith(": stream: odd")
    assert "line 1" in str(loaded.mistake(ArgumentError("odd"), "seed"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "mpl"}, "unknown model 'mpl'; did you mean 'mlp'?"),
        ({"head": "singel"}, "unknown head 'singel'; did you mean 'single'?"),
    ],
)
def test_a_network_that_is_not_known_is_refused(options, message):
    with pytest.raises(ArgumentError) as caught:
        Network(**options)
    assert str(caught.value).startswith(message)
    assert [caught.value.argument] == list(options)


def test_images_too_small_for_a_wide_cnn_are_refused():
    wide = Network("wide-cnn", widths=(2, 2, 2, 2, 2))
    assert wide.build((3, 23, 23), 4)(torch.zeros(1, 3, 23, 23)).shape == (1, 4)
    with pytest.raises(ArgumentError, match="takes images of at least 23 x 23; the samples have"):
        wide.build((3, 22, 23), 4)
