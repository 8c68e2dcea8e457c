import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.results_made_up import made_up
from torch import nn

from clnp.cli import app
from clnp.errors import RunError
from clnp.runs.directory import FORMAT
from clnp.runs.experiment import Experiment
from clnp.terminal.overview import (
    choices,
    environment,
    headline,
    inspect,
    overview,
    proofs,
    room,
    stored,
)
from clnp.terminal.tables import ASCII, Screen, cells
from clnp.training.config import FineTuning, LearnerConfig, Training
from clnp.training.task import Task
from support.paths import SRC

LEARNER = {
    "margin": 2.0,
    "importance": "activity",
    "per_layer": False,
    "tasks": {},
    "fine_tuning": None,
}
SESSION = {
    "began": "2030-01-02T03:04:05+00:00",
    "command": ["clnp", "run", "mine.toml"],
    "clnp": "0.3",
    "commit": "0123456789abcdef+",
    "python": "3.13.1",
    "torch": "2.11.0",
    "numpy": "2.3.4",
    "platform": "Linux x86_64",
    "cpu": "Fast CPU",
    "num_threads": 4,
    "gpu": None,
    "cuda": None,
}


def config(num_tasks=2, **others):
    made = {
        "format": FORMAT,
        "recipe": "mine",
        "seed": 0,
        "head": "multi",
        "learner": LEARNER,
        "tasks": [{"name": f"task {number + 1}"} for number in range(num_tasks)],
    }
    return {**made, **others}


def write(path, *, result=None, events=(), sessions=(SESSION,), **others):
    """A run as it lies in its directory."""
    path.mkdir(parents=True, exist_ok=True)
    num_tasks = len(result["tasks"]) if result is not None else 2
    (path / "config.json").write_text(json.dumps(config(num_tasks, **others)))
    (path / "environment.json").write_text(json.dumps(list(sessions)))
    (path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    if result is not None:
        (path / "result.json").write_text(json.dumps(result))
    return path


def shown(path, **options):
    return inspect(str(path), screen=Screen(**options))[1]


def test_ten_tasks_and_three_layers_are_a_screenful(tmp_path, monkeypatch):
    sizes = {"conv1": 96, "conv2": 128, "fc1": 512}
    monkeypatch.chdir(tmp_path)
    path = write(Path("run"), result=made_up(10, sizes, claim=7))
    lines = shown(path).splitlines()
    assert len(lines) <= 40
    assert max(map(cells, lines)) <= 80
    text = "\n".join(lines)
    for part in (
        "mine, seed 0, head multi",
        "finished: 10 of 10 tasks in 12 s",
        "Average test accuracy 90.90, forgetting exactly 0, layers 53 % free on average.",
        "nothing was forgotten",
        "task 10",
        "conv2",
        "Pruning: by activity, one threshold, margin 2; validation given up: 0.50",
        "Grid: candidates 1; chosen: alpha 0.001, lr 0.01 (10 of 10 tasks).",
        "Room: about 3 more tasks like the last would fit; conv1 fills up first; 2",
        "Size: network 0.17 MB, peak memory of the run 800 MB.",
        "Certificates: SHA-256 of what 10 tasks read",
        "Environment: Python 3.13.1, NumPy 2.3.4, Linux x86_64, 4 threads, commit",
    ):
        assert part in text, part


@pytest.mark.parametrize("width", [40, 80, 120])
def test_many_tasks_and_layers_are_no_more_than_a_screenful(tmp_path, monkeypatch, width):
    sizes = {f"blocks.{number}.conv": 3000 + number for number in range(60)}
    names = [f"a task with a name that is far too long for any table {n}" for n in range(50)]
    monkeypatch.chdir(tmp_path)
    path = write(Path("run"), result=made_up(50, sizes, claim=50, names=names))
    lines = shown(path, width=width).splitlines()
    assert len(lines) <= (42 if width >= 80 else 60)
    assert all(cells(line) <= width for line in lines)
    assert sum(line.startswith("... ") for line in lines) == 2
    assert "... 55 more" in lines


def test_names_cannot_harm_a_terminal(tmp_path):
    names = ("a <b> & \"c\" 'd'", "数字" * 40, "x" * 300, "\x1b[31mred\x07", " ", "é")
    path = write(tmp_path / "a b'c", result=made_up(6, {"<fc1>\x1b[2J": 90}, names=names))
    for glyphs in (Screen().glyphs, ASCII):
        text = shown(path, glyphs=glyphs)
        assert all(line.isprintable() for line in text.splitlines())
        assert "a <b> & \"c\" 'd'" in text
    assert "\x1b" not in inspect(str(path), in_full=True)[1]


def test_all_of_it_can_be_had(tmp_path):
    names = [f"task {number + 1}" for number in range(50)]
    result = made_up(50, {f"layer{number}": 90 for number in range(8)})
    path = write(tmp_path / "run", result=result)
    answer, text = inspect(str(path), in_full=True)
    assert answer["result"] == result
    lines = text.splitlines()
    for part in ("Candidates", "Forecast", "Pruning, margin 2"):
        assert part in lines
    assert all(f"{result['certificates'][name]}  {name}" in lines for name in names)
    assert "command: clnp run mine.toml" in lines
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in names)
    assert "layer7: new" in text


def test_a_run_that_has_just_begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(Path("run"), sessions=())
    events = path / "events.jsonl"
    events.touch()
    os.utime(events, (time.time() - 3 * 3600,) * 2)
    assert shown(path).splitlines() == [
        "run: mine, seed 0, head multi",
        "not finished: 0 of 2 tasks; last heard of 3 h ago",
        "if it is not at work any more, the Python program that began it goes on",
    ]
    assert inspect(str(path), in_full=True)[1] == shown(path)


def test_a_run_without_an_ended_task(tmp_path):
    empty = made_up(0, {"fc1": 9}, full="no neuron of fc1 is free. Widen it", finished=True)
    text = shown(write(tmp_path / "run", result=empty))
    assert "No task has been learnt yet." in text
    assert "Full: no neuron of fc1 is free." in text


def test_a_run_that_failed(tmp_path):
    failed = {"event": "failed", "task": "a", "reason": "every candidate diverged"}
    half = made_up(1, {"fc1": 9}, finished=False)
    text = shown(write(tmp_path / "run", result=half, events=[failed]))
    assert "failed after 1 of 1 tasks: every candidate diverged" in text
    assert "task 1" in text


def test_what_was_forgotten_is_in_the_headline():
    forgot = made_up(2, {}, method="finetune")
    forgot["tasks"][0]["unchanged"] = False
    forgot["scores"][1][0] = 60.0
    assert headline(forgot) == [
        "Average test accuracy 75.50, forgetting 30.00, backward transfer -30.00.",
        "Checked after every task; outputs differ from when their task ended, forgetting 30.00.",
    ]
    ours = made_up(2, {"fc1": 9})
    ours["tasks"][0]["unchanged"] = False
    ours["scores"][1][0] = 89.0
    assert headline(ours)[1].endswith("outputs differ from when their task ended: see clnp verify.")


def test_a_headline_without_test_data():
    result = made_up(2, {"fc1": 10})
    result["scores"] = [[None], [None, None]]
    for task in result["tasks"]:
        task.update(test_score=None, unchanged=None)
    assert headline(result) == ["Layers 80 % free on average."]
    half = made_up(2, {"fc1": 10})
    half["scores"] = [[90.0], [90.0, None]]
    half["tasks"][1].update(test_score=None, unchanged=None)
    first, second = headline(half)
    assert first.startswith("Average test accuracy of 1 of 2 tasks 90.00, ")
    assert "the outputs of 1 of 2 tasks are what they were" in second
    one = made_up(1, {"fc1": 10})
    one["scores"] = [["nan"]]
    assert headline(one)[0].startswith("Average test accuracy nan, forgetting exactly 0,")


def test_the_choices_of_a_grid_are_counted():
    result = made_up(5, {"fc1": 90})
    first = result["tasks"][0]
    first["candidates"].append({**first["candidates"][0], "lr": 0.1, "diverged": "NaN"})
    for number, lr in ((2, 0.02), (3, 0.02), (4, 0.03)):
        result["tasks"][number]["candidates"][0]["lr"] = lr
    result["tasks"][1]["candidates"][0]["alpha"] = {"fc1": 0.5, "fc2": 0.25}
    pruning, grid = choices({"learner": {**LEARNER, "tasks": {"a": {}}}}, result)
    assert grid == (
        "Grid: candidates 2 for the first task, 1 for the others; chosen: alpha 0.001, lr 0.02 "
        "(2 of 5 tasks); alpha 0.001, lr 0.01 (1 of 5 tasks); 2 others; 1 diverged."
    )
    assert "margin 2 unless a task has its own" in pruning
    assert choices({"learner": LEARNER}, made_up(1, {}, method="ewc")) == []


def test_how_survivors_were_pruned_and_tuned_is_told():
    result = made_up(3, {"fc1": 90})
    result["tasks"][2]["num_rounds"] = 2
    learner = {**LEARNER, "fine_tuning": {"rounds": 2}, "per_layer": True}
    text = choices({"learner": {**learner, "importance": "contribution"}}, result)[0]
    assert text.startswith("Pruning: by contribution, one threshold for each layer, margin 2;")
    assert text.endswith("fine-tuning rounds kept: 0 by 2 tasks, 2 by 1 task.")


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ((92.5, 90.0), "validation given up: 1.75 on average, 3.00 at most"),
        ((93.5, 96.0), "validation gained: 1.75 on average, 0.50 at least"),
        ((93.0, 96.0), "validation gained: 1.50 on average, 0.00 at least"),
        ((92.0, 96.0), "validation gained: 1.00 on average; given up: 1.00 at most"),
        ((93.001, 93.001), "validation given up: 0.00 on average, 0.00 at most"),
    ],
)
def test_what_pruning_gave_up_may_be_a_gain(scores, text):
    result = made_up(2, {"fc1": 9})
    for record, score in zip(result["tasks"], scores, strict=True):
        record["score"] = score
    assert choices({"learner": LEARNER}, result)[0].endswith(f"; {text}.")


def test_notes_are_left_out_where_there_is_nothing_to_say():
    result = made_up(1, {}, method="ewc", certificates={}, stored_bytes={})
    result["timings"] = {"seconds": 1.0}
    assert (room(result), stored(result), proofs(Path("r"), result)) == ([], [], [])


def test_certificates_are_recomputed_by_whatever_can(tmp_path):
    result = {"certificates": {"a": "0123456789abcdef"}}
    [text] = proofs(tmp_path, result)
    assert text.endswith("; ContinualNet.load of its checkpoint.safetensors recomputes them.")
    (tmp_path / "recipe.toml").touch()
    [text] = proofs(tmp_path, result)
    assert text.endswith(f"; clnp verify {tmp_path} recomputes them.")
    assert environment([]) == []


def test_the_environment_names_what_matters():
    gpu = environment([SESSION, {**SESSION, "cuda": "13.2", "commit": None, "num_threads": 1}])
    assert gpu == [
        "Environment: Python 3.13.1, NumPy 2.3.4, CUDA 13.2, Linux x86_64, 1 thread, "
        "commit not known."
    ]
    assert environment([SESSION])[0].endswith("commit 0123456789ab+.")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "[]", "config.json is damaged: it holds a list"),
        ("result.json", "{{", "result.json is damaged"),
        ("result.json", '{"tasks": 3}', "the files of .* are damaged, or of another version"),
        ("environment.json", '[{"gpu": 1}]', "the files of .* are damaged, or of another version"),
    ],
)
@pytest.mark.parametrize("in_full", [True, False])
def test_damaged_files_are_named(tmp_path, file, text, message, in_full):
    path = write(tmp_path / "run", result=made_up(2, {"fc1": 9}))
    (path / file).write_text(text)
    with pytest.raises(RunError, match=message):
        inspect(str(path), in_full=in_full)


def test_damaged_events_are_passed_over(tmp_path):
    path = write(tmp_path / "run")
    (path / "events.jsonl").write_bytes(b'{"event": "epo\n\xff\xfe\n[]\n{"x": 1}\n')
    assert "not finished" in shown(path)


def test_a_damaged_series_and_comparison_are_named(tmp_path):
    for file in ("series.json", "compare.json"):
        folder = tmp_path / file
        folder.mkdir()
        (folder / file).write_text('{"seeds": [1]}')
        with pytest.raises(RunError, match=r"(are|is) damaged"):
            inspect(str(folder))


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    tuning = FineTuning(epochs=1, lr=0.01)
    training = Training(epochs=3, lr=0.05, batch_size=16)
    options = LearnerConfig(margin=5.0, training=training, fine_tuning=tuning, alphas=(1e-4, 1e-3))
    tried = [Task("größer", (x, y), test=(x, y)), Task("<y> & 'z'", (x, 1 - y))]
    path = tmp_path_factory.mktemp("real") / "run"
    Experiment(model, x[:2], tried, options).run(path)
    return path


def test_a_real_run_is_a_screenful(real, capsys):
    assert app.main(["inspect", str(real)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert any(line.startswith("größer ") for line in lines)
    assert any(line.startswith("Room: ") for line in lines)
    assert app.main(["inspect", str(real), "--all"]) == 0
    assert "Environment of start 1" in capsys.readouterr().out
    assert app.main(["inspect", str(real), "--json"]) == 0
    result = json.loads((real / "result.json").read_text())
    assert json.loads(capsys.readouterr().out)["result"] == result
    assert result["forecast"]["need"].keys() == {"0"}


def test_a_terminal_that_knows_no_blocks_gets_plain_characters(real):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clnp", "inspect", str(real)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": SRC, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
        check=True,
    )
    out = done.stdout.decode("ascii")
    assert "gr\\xf6\\xdfer" in out
    assert any(line.split()[-1].strip("12.") == "" for line in out.splitlines() if "% " in line)
    # It is quick, because nothing has to be computed.
    assert b"| torch\n" not in done.stderr


def test_the_text_is_what_overview_gives(real):
    files = {name: json.loads((real / f"{name}.json").read_text()) for name in ("config", "result")}
    sessions = json.loads((real / "environment.json").read_text())
    screen = Screen(width=60)
    text = overview(real, files["config"], sessions, files["result"], "told", screen=screen)
    assert text.startswith("told\n\nAverage test accuracy ")
