import builtins
import csv
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

import clnp
from clnp import extras
from clnp.cli import app
from clnp.errors import ArgumentError, RunError
from clnp.report.write import PAGE, write_report
from support.written_runs import write_comparison, write_run

NAMES = ("accuracy", "capacity", "pruning", "training")
KINDS = {"svg", "pdf", "png", "csv", "md", "tex"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with few figures."""
    path = tmp_path_factory.mktemp("runs") / "run"
    return write_run(path, tasks=("low",), method="ewc", num_candidates=1)


def test_the_report_of_a_run_is_in_its_directory(tmp_path):
    run = write_run(tmp_path / "run", tasks=("low",))
    files = write_report(run)
    assert files[0] == run / "report/report.html"
    assert {file.name for file in files[1:]} == {f"{n}.{kind}" for n in NAMES for kind in KINDS}
    assert all(file.parent == run / "report/figures" for file in files[1:])
    assert all(file.stat().st_size for file in files)
    with (run / "report/figures/training.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[4:] == ["epoch", "loss", "validation_score"]
    assert len(rows) == 2 * 3 + 1


def test_the_same_run_gives_the_same_bytes_without_a_window(run, tmp_path, monkeypatch):
    first = write_report(run, out=tmp_path / "a")
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    imported = builtins.__import__

    def watch(name, *args, **kwargs):
        assert name != "matplotlib.pyplot"
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", watch)
    second = clnp.write_report([run], out=tmp_path / "b")
    assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]


def test_a_comparison_has_the_table_of_clnp_compare(tmp_path):
    files = write_report(write_comparison(tmp_path / "c"), out=tmp_path / "out")
    own = {file.suffix for file in files if file.stem == "comparison"}
    assert own == {".csv", ".md", ".tex"}
    text = (tmp_path / "out/figures/comparison.tex").read_text()
    assert r"\label{tab:comparison}" in text
    figure = (tmp_path / "out/figures/accuracy.tex").read_text()
    assert r"\caption{Test score of each task when it was learned" in figure


def test_several_runs_need_a_directory(run):
    with pytest.raises(RunError, match=r"A report about 2 runs needs a directory\. .*--out DIR"):
        write_report([run, run / "other"])
    with pytest.raises(RunError, match="There is no run to report on"):
        write_report([])


@pytest.mark.parametrize("paths", [3, None, [3], ["a", None]])
def test_only_paths_are_accepted(paths):
    with pytest.raises(ArgumentError) as caught:
        write_report(paths)
    wrong = paths[-1] if isinstance(paths, list) else paths
    message = f"{wrong!r} is not a path. Give the directory of a run, or a list of them."
    assert str(caught.value) == message


def test_nothing_is_written_without_a_run(tmp_path):
    with pytest.raises(RunError, match="nothing"):
        write_report(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(run, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RunError, match=r"cannot be written to .* Choose another directory"):
        write_report(run, out=file)


def test_without_matplotlib_the_message_says_what_to_install(run, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    with pytest.raises(RunError, match=re.escape(extras.command("report"))):
        write_report(run)


def test_matplotlib_is_loaded_only_by_a_report(run):
    code = "import clnp, clnp.report.write, sys; clnp.write_report; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "matplotlib" not in done.stdout.split()


def command(*words):
    from clnp.cli import app

    return app.main(["report", *map(str, words)])


def test_the_command_replaces_an_earlier_report(run, capsys):
    own, old = run / "report/figures/notes.txt", run / "report/figures/capacity.png"
    own.parent.mkdir(parents=True)
    for file in (own, old):
        file.write_text("of an earlier report")
    assert command(run) == 0
    out = capsys.readouterr().out
    assert str(run / "report/report.html") in out
    assert f"{run / 'report/figures'}: csv, md, pdf, png, svg, tex" in out
    assert own.exists()
    assert not old.exists()


def test_the_command_answers_in_json(run, tmp_path, capsys):
    other = write_run(tmp_path / "other", tasks=("low",), method="single", num_candidates=1)
    assert command(run, other, "--out", tmp_path / "out", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["page"] == str(tmp_path / "out/report.html")
    assert f"{tmp_path / 'out/figures/training.svg'}" in answer["files"]
    assert all(os.path.isfile(file) for file in answer["files"])


def test_the_command_without_a_directory_for_several_runs(tmp_path, capsys):
    assert command(tmp_path / "a", tmp_path / "b") == 2
    assert "--out DIR" in capsys.readouterr().err


@pytest.mark.slow
def test_a_large_report_stays_small(tmp_path):
    run = write_run(
        tmp_path / "run",
        tasks=tuple(f"task {number}" for number in range(50)),
        sizes={f"block{number}.conv": 6000 for number in range(20)},
        num_candidates=4,
        num_epochs=60,
    )
    page, *_ = write_report(run)
    assert page.stat().st_size < 5_000_000


def test_a_report_leaves_out_what_is_damaged_and_says_so(run, tmp_path, capsys):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    paths = [str(run), str(tmp_path / "broken"), str(tmp_path / "gone")]
    assert app.main(["report", *paths, "--out", str(tmp_path / "both")]) == 1
    page = tmp_path / "both" / PAGE
    out, error = capsys.readouterr()
    assert out == ""
    assert "broken/config.json is damaged: it has no format." in error
    assert "gone does not exist." in error
    assert error.endswith(f"The report of the others is in {page}.\n")
    assert "Left out: " in page.read_text()
    assert app.main(["report", *paths[1:], "--out", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()


def test_figures_that_a_report_no_longer_has_are_removed_and_others_stay(tmp_path):
    run = write_run(tmp_path / "run", tasks=("low",), method="ewc", num_candidates=1)
    figures = run / "report" / "figures"
    figures.mkdir(parents=True)
    for name in ("capacity.svg", "comparison.tex", "loss.pdf", "mine.svg"):
        (figures / name).touch()
    write_report(run)
    assert not (figures / "capacity.svg").exists()  # A baseline has no neurons.
    assert not (figures / "comparison.tex").exists()
    assert (figures / "loss.pdf").exists()
    assert (figures / "mine.svg").exists()
