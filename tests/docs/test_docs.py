"""The documentation is true: its code runs, its commands parse, its links resolve."""

import argparse
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import clnp
from clnp.cli import app
from clnp.data import named
from clnp.recipes import bundled, recipe
from clnp.recipes.reference import markdown
from clnp.recipes.schema import build
from clnp.recipes.toml import parse
from clnp.records import EpochEnded
from support.paths import ROOT, program
from support.runs import break_off, untimed

GUIDES = sorted((ROOT / "docs").glob("*.md"))
BENCHMARKS = ROOT / "benchmarks/README.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    BENCHMARKS,
    *GUIDES,
]
ALONE = ("export.md", "guarantee.md", "models.md", "pruning.md")
"""Pages whose Python blocks need nothing but one another."""


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """The code blocks in that language: the line on which each begins, and its text."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def run_blocks(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """The names after the Python blocks of the page have run, one after the other."""
    for line, source in blocks(path, "python"):
        # Empty lines in front, so that a traceback points to the line in the page.
        exec(compile("\n" * line + source, str(path), "exec"), names)
    return names


def command_lines(path: Path) -> list[str]:
    """Every `clnp ...` of a shell block, and those in the text that have arguments."""
    text = path.read_text(encoding="utf-8")
    shell = [line for _, block in blocks(path, "sh") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = [found for found in re.findall(r"`([^`\n]+)`", prose) if len(found.split()) > 2]
    return [line for line in (*shell, *inline) if line.startswith("clnp ")]


def commands() -> dict[str, argparse.ArgumentParser]:
    """The commands of `clnp` by name."""
    actions = app.parser()._actions
    return dict(next(a for a in actions if isinstance(a, argparse._SubParsersAction)).choices)


def load(name: str) -> tuple[DataLoader, torch.Tensor, torch.Tensor]:
    """Noise with a bright line in it, across or upright; its place is the class."""
    number = ["flowers", "trees", "birds"].index(name)
    y = torch.arange(600) % 3
    x = torch.rand(600, 1, 8, 8, generator=torch.Generator().manual_seed(number))
    lines = x if number % 2 == 0 else x.mT
    lines[torch.arange(600), 0, 2 * y + number // 2] += 0.35
    train = TensorDataset(x[:400], y[:400])
    return DataLoader(train, batch_size=32, shuffle=True), x[400:], y[400:]


def anchors(path: Path) -> set[str]:
    """What a link to a heading of the page is called."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading) for heading in headings)
    return {heading.lower().replace(" ", "-") for heading in kept}


def test_every_page_with_python_has_a_test():
    assert {path.name for path in GUIDES if blocks(path, "python")} == {
        *ALONE,
        "comparing.md",
        "quickstart.md",
        "runs.md",
        "tracking.md",
        "your-own-loop.md",
    }
    for path in PAGES:
        assert len(blocks(path, "python")) == path.read_text(encoding="utf-8").count("```python")


def test_the_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_loop_and_the_learner_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (_, loop), (_, learner) = blocks(ROOT / "README.md", "python")
    x = torch.randn(300, 20)
    y = x[:, :3].argmax(1)
    batches = list(zip(x[:200].split(20), y[:200].split(20), strict=True))
    names = {"loader": batches * 10, "x_val": x[200:], "y_val": y[200:]}
    exec(compile(loop, "README.md", "exec"), names)

    net = names["net"]
    assert net.tasks == ("flowers",)
    assert names["plan"].score >= names["plan"].best - 1.0
    assert names["accuracy"](lambda x: net(x, task="flowers")) == names["plan"].score > 60
    assert 0 < sum(names["plan"].kept.values()) < 128
    assert "flowers" in capsys.readouterr().out
    assert clnp.load("net.safetensors", names["model"]).tasks == ("flowers",)

    names.update(x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    exec(compile(learner, "README.md", "exec"), names)
    assert net.tasks == ("flowers", "trees")
    assert names["report"].test_score > 60
    net.verify()


def test_the_index_lists_every_page_once():
    index = ROOT / "docs/index.md"
    listed = re.findall(r"^- \[[^]]+\]\(([\w-]+\.md)\): ", index.read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == [path.name for path in GUIDES if path != index]


@pytest.mark.parametrize("name", ALONE)
def test_pages_that_need_nothing_else_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_blocks(ROOT / "docs" / name, {})
    shown = [text for _, text in blocks(ROOT / "docs" / name, "text")]
    said = capsys.readouterr().out
    if name == "models.md":
        assert all(text in said for text in shown)
    if name == "export.md":
        assert shown[-1] in said


def test_every_name_of_the_package_in_a_page_exists():
    for path in [ROOT / "README.md", *GUIDES]:
        text = re.sub(r"clnp\.json", "", path.read_text(encoding="utf-8"))
        for name in set(re.findall(r"(?<![\w/])clnp((?:\.[A-Za-z_]\w*)+)", text)):
            thing = clnp
            for part in name[1:].split("."):
                assert hasattr(thing, part), f"{path.name} names clnp{name}, which does not exist"
                thing = getattr(thing, part)


def test_the_quick_start_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = run_blocks(ROOT / "docs/quickstart.md", {})
    assert names["net"].tasks == ("low", "high")
    assert min(names["result"].scores[-1]) > 80
    wine = named.find("wine", "data")
    assert (len(wine.train[0]), wine.num_classes, wine.shape) == (140, 3, (13,))
    assert app.main(["inspect", "runs/mine"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "72 neurons; classifier: 7" in out
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    assert re.search("nothing was forgotten: .*", page)[0] in out


def demo() -> dict[int, float]:
    """Return the accuracy of each task of the demo, as the quickstart shows it."""
    text = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    rows = re.findall(r"^digits permuted (\d+) +(\S+)  (\S+)  +\d+ \+ ", text, re.MULTILINE)
    assert all(learned == now for _, learned, now in rows)
    return {int(number): float(now) for number, _, now in rows}


def test_outputs_in_the_guides_are_those_of_the_demo():
    scores = demo()
    assert list(scores) == list(range(1, 11))
    average = f"{sum(scores.values()) / len(scores):.2f}"
    assert f"average test accuracy {average} percent" in (ROOT / "docs/report.md").read_text()
    pages = [ROOT / "docs" / name for name in ("quickstart.md", "runs.md", "command-line.md")]
    page = "".join(path.read_text(encoding="utf-8") for path in pages)
    # In tables and JSON, and in the log.
    shown = re.findall(r"digits permuted (\d+)\"?:? +(?:validation \S+ test )?(\d+\.\d+)", page)
    assert len(shown) >= 17
    for number, score in shown:
        assert f"{float(score):.2f}" == f"{scores[int(number)]:.2f}", f"task {number} of the demo"
    assert set(re.findall(r"[Aa]verage (?:test accuracy )?(\d+\.\d+)", page)) == {average}


def small_tasks(num_tasks: int) -> dict[str, Any]:
    """Return a model, data, tasks and a config that learns them in a moment."""
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
    labelled = [(x, (x[:, index] > 0).long()) for index in range(num_tasks)]
    tasks = [clnp.Task(str(index), data, test=data) for index, data in enumerate(labelled)]
    config = clnp.LearnerConfig(training=clnp.Training(epochs=2))
    return {"model": clnp.data.models.MLP(6, (8, 8), 2), "x": x, "tasks": tasks, "config": config}


def test_a_run_is_extended_and_verified_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks(ROOT / "docs/runs.md", small_tasks(3))
    assert [len(row) for row in names["result"].scores] == [1, 2, 3]
    assert list(names["checked"].scores) == ["0", "1", "2"]


def test_methods_are_compared_from_python(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs the extra report")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clnp.report.render.FORMATS", ("svg",))  # One is enough here.
    names = run_blocks(ROOT / "docs/comparing.md", small_tasks(2))
    page = (tmp_path / "runs/report/report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("clnp", "single", "ewc", "packnet"))
    page = (tmp_path / "runs/mine/report.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("clnp", "l2", "over 2 seeds"))

    outputs = {}
    for name, settings in {
        "finetune": clnp.methods.Finetune(),
        "l2": names["L2"](strength=0.1),
        "lwf": names["LwF"](),
    }.items():
        model, x, tasks, config = (names[key] for key in ("model", "x", "tasks", "config"))
        made = clnp.Experiment(model, x[:2], tasks, config, baseline=settings)
        break_off(made, f"runs/broken/{name}", EpochEnded, task="1")
        whole, result = (made.run(f"runs/{kind}/{name}") for kind in ("whole", "broken"))
        assert untimed(result) == untimed(whole)
        assert result.method == name
        outputs[name] = str([record.outputs for record in result.tasks])
    assert len(set(outputs.values())) == 3  # What they add to the loss makes a difference.


def test_the_loop_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = run_blocks(ROOT / "docs/your-own-loop.md", {"load": load})
    net = names["net"]
    assert net.tasks == ("flowers", "trees", "birds")
    for task in net.tasks:
        _, x, y = load(task)
        assert (net(x, task=task).argmax(1) == y).double().mean() > 0.8, task
    net.verify()
    out = capsys.readouterr().out
    assert "each task: new + reused neurons" in out
    assert net.certificates["flowers"].digest in out


def test_the_trackers_of_ones_own_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = run_blocks(ROOT / "docs/tracking.md", {})
    assert min(names["result"].scores[-1]) > 60
    assert names["net"].tasks == ("sign of 0", "sign of 1")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["sign of 0", "sign of 1"]
    assert lines[-1].endswith(" good")
    for run in ("tracked", "loop"):
        assert list(Path("runs", run, "tensorboard", "candidate 1").iterdir())


def test_the_page_of_recipe_keys_is_up_to_date():
    page = (ROOT / "docs/recipe-keys.md").read_text(encoding="utf-8")
    assert page == markdown(), "docs/recipe-keys.md is out of date: run `make docs`"


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_toml_block_is_a_recipe(path):
    for line, text in blocks(path, "toml"):
        build(recipe.Recipe, parse(text, name=f"{path.name}, the block after line {line}"))


@pytest.mark.parametrize("path", [ROOT / "README.md", *GUIDES], ids=lambda path: path.name)
def test_every_command_line_can_be_given(path, capsys):
    lines = command_lines(path)
    for line in lines:
        words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
        try:
            options = app.parser().parse_args(words)
        except SystemExit as stopped:
            if not stopped.code:  # --help
                continue
            pytest.fail(f"{path.name}: {line}\n{capsys.readouterr().err}")
        if getattr(options, "assignments", []):
            # Files of one's own are copies of the first recipe in these pages.
            known = options.recipe in bundled.names()
            recipe.load(options.recipe if known else "permuted-digits", options.assignments)


@pytest.mark.parametrize("path", [ROOT / "README.md", *GUIDES], ids=lambda path: path.name)
def test_every_command_that_is_named_exists(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"`clnp ([a-z]+)", text)) <= set(commands())


def test_the_page_of_the_command_line_has_every_command():
    text = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `clnp ([a-z]+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(commands())


def test_every_extra_that_is_named_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in (*PAGES, *sources))
    lists = re.findall(r"pip install '(?:\.|clnp)\[([a-z,]+)\]'", text)
    lists += re.findall(r"extras\.command\('([a-z]+)'\)", text)
    named = {extra for some in lists for extra in some.split(",")}
    assert named >= {"demo", "report", "mlflow"}
    assert named <= set(project["optional-dependencies"])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), f"{path.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(there), f"{path.name} links to {target}: no such heading"


def test_every_run_of_the_benchmarks_is_linked():
    linked = set(re.findall(r"\((results/[^)]+)\)", BENCHMARKS.read_text(encoding="utf-8")))
    here = (ROOT / "benchmarks/results").iterdir()
    assert linked == {f"results/{path.name}" for path in here}


def test_ranges_of_the_benchmarks_are_in_their_runs():
    triple = r"(\d+\.\d+)x? *\((\d+\.\d+) \.\. (\d+\.\d+)\)"
    runs = "".join(path.read_text() for path in (ROOT / "benchmarks/results").iterdir())
    measured = [tuple(map(float, found)) for found in re.findall(triple, runs)]
    shown = re.findall(triple, BENCHMARKS.read_text(encoding="utf-8"))
    assert len(shown) > 50
    for words in shown:
        # The page may have fewer digits.
        half = 0.501 * 10.0 ** -len(words[0].partition(".")[2])
        told = [float(text) for text in words]
        assert any(
            all(abs(a - b) <= half for a, b in zip(told, found, strict=True)) for found in measured
        ), words


def test_the_page_about_speed_has_the_numbers_of_the_benchmarks():
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    numbers = re.findall(r"\d+\.\d+", page)
    assert len(numbers) > 15
    assert set(numbers) <= set(re.findall(r"\d+\.\d+", BENCHMARKS.read_text(encoding="utf-8")))


def test_the_page_of_public_names_is_up_to_date_and_has_them_all():
    api = program(ROOT / "docs/api.py")
    assert api.PAGE.read_text(encoding="utf-8") == api.page(), "run: make docs"
    listed = [name for _, names in api.SECTIONS.values() for name in names]
    namespaces = {name for name in clnp.__all__ if isinstance(getattr(clnp, name), ModuleType)}
    own = {name for name in listed if "." not in name}
    assert own == set(clnp.__all__) - namespaces - {"__version__"}
    assert namespaces <= {name.partition(".")[0] for name in listed}
    for name in listed:
        assert "." in api.meaning(name), f"{name} has no docstring"
    assert {"begin_task", "verify", "load", "forward"} <= set(api.methods(clnp.ContinualNet))


def test_every_picture_is_shown_and_every_one_that_is_shown_is_there():
    shown = set()
    for page in PAGES:
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text("utf-8")):
            assert len(words) > 20, f"{page.name}: {target} needs words for who cannot see it"
            shown.add((page.parent / target).resolve())
    assert shown == {path.resolve() for path in (ROOT / "docs/pictures").iterdir()}


def test_what_is_cited_is_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {clnp.__version__}\n" in text
