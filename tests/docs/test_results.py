"""The programs in results/ collect runs, and make the tables and pictures of the pages."""

import json

import pytest

from clnp.report.collection import read_collection
from clnp.studies.summaries import texts
from support.paths import ROOT, program

RESULTS = ROOT / "results"
BEGAN = "2030-01-02T03:04:05+00:00"


@pytest.fixture
def collect():
    return program(RESULTS / "collect.py")


@pytest.fixture
def tables():
    return program(RESULTS / "tables.py")


@pytest.fixture
def here(tmp_path, monkeypatch, collect, tables):
    """An empty directory in place of results/."""
    monkeypatch.setattr(collect, "HERE", tmp_path)
    monkeypatch.setattr(tables, "HERE", tmp_path)
    return tmp_path


def write_run(path, result, environment, config):
    """Write the files of a run that are collected."""
    path.mkdir(parents=True)
    (path / "result.json").write_text(json.dumps(result))
    (path / "environment.json").write_text(json.dumps([environment]))
    (path / "config.json").write_text(json.dumps(config))


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_tables_of_results_are_current(tables):
    num_tables = 0
    for page in tables.PAGES:
        text = (ROOT / page).read_text()
        assert tables.filled(text) == text, "run: make docs"
        num_tables += len(tables.MARK.findall(text))
    assert num_tables >= 5


def test_tables_are_made_of_the_results(tables, here):
    (here / "x").mkdir()
    for seed, score in enumerate((80.0, 90.0)):
        task = {"new": {"fc1": 10 + 10 * seed}, "best_score": score, "score": score - 1}
        task["pruning"] = {"score": score - 2}
        result = {"tasks": [task, task], "capacity": {"sizes": {"fc1": 100}}}
        (here / "x" / f"seed{seed}.json").write_text(json.dumps({"result": result}))
    page = "a\n<!-- table: capacity x -->\nold\n<!-- end of table -->\nb"
    assert tables.filled(page).splitlines() == [
        "a",
        "<!-- table: capacity x -->",
        "| used, % | T1 | T2 |",
        "|---|---|---|",
        "| fc1 (100) | 15.0 | 30.0 |",
        "<!-- end of table -->",
        "b",
    ]
    assert tables.pruning("x")[1] == ["`x`", "85.0 ± 7.1", "83.0 ± 7.1", "84.0 ± 7.1"]


def test_summaries_are_those_of_the_results_beside_them(collect):
    folders = [path.parent for path in sorted(RESULTS.glob("*/summary.json"))]
    assert len(folders) >= 4
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        found = collect.summarise(folder)
        assert {key: summary[key] for key in found} == json.loads(json.dumps(found)), folder


def test_results_are_collected_from_runs(collect, here):
    known = sorted((RESULTS / "permuted-mnist").glob("seed*.json"))[0]
    record = json.loads(known.read_text())
    environment = {**record["environment"], "began": BEGAN, "commit": None}
    config = {"head": "single", "learner": {"margin": 0.3}, "baseline": None}
    write_run(here / "run", record["result"], environment, {**config, "tasks": []})
    collect.collect("permuted-mnist", [here / "run"], "abc")
    found = json.loads((here / "permuted-mnist" / known.name).read_text())
    assert found["result"] == record["result"]
    assert found["settings"] == config
    assert (found["environment"]["commit"], found["environment"]["date"]) == ("abc", "2030-01-02")


def test_a_search_is_collected_from_its_runs(collect, tables, here):
    command = ["clnp", "run", "x", "--set", "method=ewc", "--set", "methods.ewc.strength=1e3"]
    environment = {
        **dict.fromkeys(collect.VERSIONS, "1"),
        "began": BEGAN,
        "command": [*command, "--set", "methods.ewc.training.optimizer=SGD", "--seed", "0"],
    }
    result = {
        "method": "ewc",
        "seed": 0,
        "tasks": [
            {"task": "a", "test_score": 90.0, "new": {"fc1": 3}},
            {"task": "b", "test_score": 70.0, "new": {"fc1": 2}},
        ],
        "scores": [[90.0], [60.0, 70.0]],
        "timings": {"seconds": 9.87},
    }
    lines = [
        {"result": result, "environment": environment},
        {"result": result, "environment": environment, "set": ["methods.ewc.strength=10"]},
        {"result": {**result, "seed": 1}, "environment": environment},  # Kept, and not shown.
    ]
    write_lines(here / "runs.jsonl", lines)
    collect.collect_tried(here / "s" / "baselines.jsonl", [here / "runs.jsonl"], None)
    assert tables.search("s")[1:] == [
        ["`ewc`", '`strength = 1000.0`, `optimizer = "SGD"`', "**65.00**", "80.00"],
        ["`ewc`", "`strength = 10`", "**65.00**", "80.00"],
    ]
    environment["commit"] = "abc+"
    with pytest.raises(SystemExit, match=r"is abc\+\. Name its commit"):
        collect.tried(lines[0], None)
    line = collect.tried(lines[0], "abc")
    assert line["environment"]["commit"] == "abc"
    assert line["new"] == [{"fc1": 3}, {"fc1": 2}]


def test_what_was_tried_is_shown_as_it_was(tables, here):
    common = {"n": 1, "full": False, "fc1": [10], "fc2": [20]}
    lines = [
        {**common, "mean": 98.0, "val": [97.0], "set": ["learner.margin=1", "stream.num_tasks=1"]},
        {**common, "mean": 97.0, "val": [98.0], "set": []},
    ]
    path = here / "x.jsonl"
    write_lines(path, lines)
    assert tables.tried("x.jsonl")[1:] == [
        ["as printed", "98.00", "97.00", "10, 20"],
        ["`margin = 1`", "97.00", "98.00", "10, 20"],
    ]
    both = {**common, "n": 2, "full": True, "mean": 50.0, "val": [60.0, 70.0], "set": []}
    path.write_text(json.dumps({**both, "fc1": [10, 30], "fc2": [0, 2000]}) + "\n")
    assert tables.tried("x.jsonl")[1:] == [
        ["as printed", "2, then full", "65.00", "50.00", "2 %, 100 %"],
    ]


def test_comparisons_are_collected_from_their_runs(collect, tables, here, monkeypatch):
    environment = {**dict.fromkeys(collect.VERSIONS, "1"), "began": BEGAN}
    for method, score in (("ewc", 70.0), ("clnp", 80.0), ("single", 85.0)):
        for seed in (0, 1):
            result = {
                "method": method,
                "seed": seed,
                "num_tasks": 2,
                "scores": [[score], [score + seed, score + seed]],
                "timings": {"seconds": 10.0, "peak_bytes": 3e6},
                "stored_bytes": {"network": 2e6},
            }
            config = {"head": "multi", "learner": {}, "baseline": {"strength": 3.0}}
            write_run(here / "runs" / method / f"seed{seed}", result, environment, config)
    collect.collect_comparison("x", [here / "runs" / "ewc"], None)
    collect.collect_comparison("x", [here / "runs"], "abc")
    folder = here / "compare-x"
    found = json.loads((folder / "clnp" / "seed1.json").read_text())
    assert found["environment"]["commit"] == "abc"
    assert found["settings"] == config
    write_lines(here / "lines.jsonl", [{"result": result, "environment": environment}])
    with pytest.raises(SystemExit, match="A run has no config"):
        collect.collect_comparison("x", [here / "lines.jsonl"], "abc")
    head, *rows = tables.comparison("x")
    assert head[:2] == ["method", "average"]
    assert [row[:2] for row in rows] == [
        ["clnp", "80.50 ± 0.71"],
        ["single", "**85.50 ± 0.71**"],
        ["ewc", "70.50 ± 0.71"],
    ]
    assert {file.suffix for file in folder.glob("comparison.*")} == {".txt", ".csv", ".md", ".tex"}
    before = (folder / "comparison.txt").read_text()
    (folder / "comparison.txt").write_text("old")
    monkeypatch.setattr("sys.argv", ["collect.py", "--comparison", "x"])
    collect.main()
    assert (folder / "comparison.txt").read_text() == before
    collect.collect_comparison("x", [here / "runs" / "ewc"], None, "changed")
    assert [row[0] for row in tables.comparison("x-changed")[1:]] == ["ewc"]


def test_tables_of_comparisons_are_those_of_the_results_beside_them(collect):
    for table in RESULTS.glob("compare-*/comparison.*"):
        written = texts(collect.compared(table.parent))
        assert table.read_text() == written[table.suffix[1:]], table


def test_a_report_can_be_made_from_committed_results(tmp_path):
    pictures = program(RESULTS / "pictures.py")
    for name in pictures.SHOWN:
        pictures.restore(name, tmp_path / name)
        found = read_collection([tmp_path / name])
        summary = json.loads((RESULTS / name / "summary.json").read_text())
        assert [run.seed for run in found.runs] == summary["seeds"]
        assert all(run.finished for run in found.runs)
        averages = [sum(run.scores[-1]) / len(run.scores[-1]) for run in found.runs]
        assert sum(averages) / len(averages) == pytest.approx(summary["average"]["mean"])
