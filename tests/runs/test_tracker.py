import json
from pathlib import Path

import pytest

from clnp.errors import RunError
from clnp.runs.trackers import IDENTIFIERS, note, recall
from clnp.trackers import TrackedRun


@pytest.mark.parametrize(
    ("path", "method", "title", "group"),
    [
        ("runs/mine", "clnp", "mine", None),
        ("runs/five/seed3", "clnp", "five/seed3", "five"),
        ("runs/five/seed-3", "clnp", "five/seed-3", "five"),
        ("runs/all/ewc/seed0", "ewc", "all/ewc/seed0", "all/ewc"),
        ("runs/all/clnp/seed0", "clnp", "all/clnp/seed0", "all/clnp"),
        ("runs/seedling", "clnp", "seedling", None),
    ],
)
def test_runs_are_called_after_their_directories(path, method, title, group):
    run = TrackedRun(Path(path), {"method": method}, {})
    assert (run.title, run.group) == (title, group)


def test_the_directory_one_is_in_has_a_name(tmp_path, monkeypatch):
    (tmp_path / "seed1").mkdir()
    monkeypatch.chdir(tmp_path / "seed1")
    assert TrackedRun(Path("."), {}, {}).title == f"{tmp_path.name}/seed1"


def test_the_recipe_of_a_run_without_one_is_its_config(tmp_path):
    run = TrackedRun(tmp_path, {"seed": 3}, {})
    assert json.loads(run.recipe) == {"seed": 3}
    (tmp_path / "recipe.toml").write_text("seed = 3\n# é", encoding="utf-8")
    assert run.recipe == "seed = 3\n# é"


def test_identifiers_are_kept_with_the_run(tmp_path):
    assert recall(tmp_path, "one") == {}
    note(tmp_path, "one", {"id": "a"})
    note(tmp_path, "two", {"id": "b"})
    note(tmp_path, "one", {"id": "c"})
    assert recall(tmp_path, "one") == {"id": "c"}
    assert recall(tmp_path, "two") == {"id": "b"}


def test_damaged_identifiers_are_named(tmp_path):
    (tmp_path / IDENTIFIERS).write_text("{")
    with pytest.raises(RunError, match=r"trackers\.json is damaged"):
        recall(tmp_path, "one")
    (tmp_path / IDENTIFIERS).write_text('{"one": 3}')
    assert recall(tmp_path, "one") == {}
