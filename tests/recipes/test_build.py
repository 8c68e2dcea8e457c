import re

import numpy as np
import pytest
import torch

from clnp.errors import DataError, RecipeError
from clnp.recipes.build import experiment_of
from clnp.recipes.recipe import load

CPU = torch.device("cpu")
RECIPE = """\
seed = 3
[stream]
kind = "chain"
parts = [
    {kind = "split", dataset = "digits", classes_per_task = 3, num_tasks = 2},
    {kind = "permuted", dataset = "other", num_tasks = 2},
]
[network]
widths = [8, 9]
head = "single"
"""


@pytest.fixture
def recipe(tmp_path):
    def save(name, shape):
        x = np.zeros((20, *shape), dtype=np.uint8)
        y = np.arange(20) % 5
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    save("other", (1, 8, 8))
    save("wide", (1, 8, 9))
    path = tmp_path / "chain.toml"
    path.write_text(RECIPE)
    return path


def test_a_recipe_becomes_tasks_and_a_network(recipe):
    made = experiment_of(load(str(recipe)), CPU, str(recipe.parent))
    assert [task.name for task in made.tasks] == [
        "digits 0-2",
        "digits 3-5",
        "other permuted 1",
        "other permuted 2",
    ]
    assert made.head == "single"
    assert made.seed == 3
    assert made.model.fc1.weight.shape == (8, 64)
    assert made.model.fc3.weight.shape == (5, 9)
    assert made.example_input.shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("stream.parts.1.dataset=wide", "stream: samples of different shapes do not fit one netw"),
        ("stream.parts.0.num_tasks=4", "4 x 3 classes are more than the 10 of digits"),
        ("network={model = 'wide-cnn'}", "network.model: a wide-cnn takes images of at least"),
        ("learner.fine_tuning.alpha={fc4 = 1}", "learner.fine_tuning.alpha: unknown layer 'fc4'"),
        (
            "learner.tasks.'digits 9'.margin=1",
            "learner.tasks.\"digits 9\": unknown task 'digits 9'. Did",
        ),
        (
            "learner.tasks.'digits *'.alphas=[{fc4 = 1}]",
            "learner.tasks.\"digits *\".alphas: unknown layer 'fc4'",
        ),
        ("learner.alphas=[-1]", "learner.alphas=[-1]: one of alphas is -1"),
        ("learner.alphas=[1e308]", "one of alphas is 1e+308. It must be a finite float32 number"),
        (
            "learner.training.optimizer_options={no = 1}",
            "--set learner.training.optimizer_options={no = 1}: learner.training.optimizer_options",
        ),
        ("network.widths=[1000000000000, 1]", "network.widths: the network needs "),
        ("network.widths=[1000000000000000000, 1]", "network.widths: the network has more "),
    ],
)
def test_an_error_has_the_place_of_its_key(recipe, assignment, message):
    with pytest.raises(RecipeError) as caught:
        experiment_of(load(str(recipe), [assignment]), CPU, str(recipe.parent))
    assert message in str(caught.value)


def test_a_missing_data_set_is_named(recipe):
    with pytest.raises(DataError, match=r"there is no file .*gone\.npz"):
        experiment_of(load(str(recipe), ["stream.parts.1.dataset=gone"]), CPU, str(recipe.parent))


def test_a_criterion_of_ones_own_is_imported_by_its_path(recipe, monkeypatch):
    code = "def largest(net, batches):\n    return net.measure_activity(batches)\n"
    (recipe.parent / "my_criterion.py").write_text(code)
    given = load(str(recipe), ["learner.importance=my_criterion:largest"])
    with pytest.raises(RecipeError, match=r"learner.importance: importance is .* No module named"):
        experiment_of(given, CPU, str(recipe.parent))
    monkeypatch.syspath_prepend(recipe.parent)
    made = experiment_of(given, CPU, str(recipe.parent))
    assert made.config.importance == "my_criterion:largest"
    # A run resumes only with the same code.
    described = made.describe().learner["importance"]
    assert re.fullmatch(r"my_criterion\.largest [0-9a-f]{8}", described)
    monkeypatch.setattr("my_criterion.largest", lambda net, batches: {})
    assert made.describe().learner["importance"] != described
