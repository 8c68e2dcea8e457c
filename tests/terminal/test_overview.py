import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from safetensors.numpy import save_file

from clnp.cli import app
from clnp.errors import RunError
from clnp.plain import to_json
from clnp.records import (
    Environment,
    LearnerSettings,
    RunFailed,
    TaskDescription,
    event_to_plain,
)
from clnp.runs.directory import (
    CHECKPOINT,
    ENVIRONMENT,
    EVENTS,
    RESULT,
    STATUS,
    resume_command,
)
from clnp.terminal.overview import environment_of, inspect
from clnp.terminal.summary import room
from clnp.terminal.tables import Screen
from clnp.training.config import FineTuning
from support.paths import SRC
from support.progress import END, FAILURE, STOP, begin, epoch, experiment, make
from support.results import made_up

LEARNER = {"margin": 2.0, "importance": "activity", "per_layer": False}
SETTINGS = LearnerSettings(**LEARNER)
START = Environment(
    began="2030-01-02T03:04:05+00:00",
    command=("clnp", "run", "mine.toml"),
    clnp="0.3",
    commit="0123456789abcdef+",
    python="3.13.1",
    torch="2.11.0",
    numpy="2.3.4",
    platform="Linux x86_64",
    cpu="Fast CPU",
    num_threads=4,
)


def write(path, *events, result=None, starts=(START,), **changes):
    """Write a run with this result that has had these events."""
    num_tasks = 2 if result is None else max(1, len(result.tasks))
    tasks = tuple(TaskDescription(f"task {number + 1}") for number in range(num_tasks))
    make(path, *events, **{"tasks": tasks, "learner": LEARNER, **changes})
    (path / ENVIRONMENT).write_text(to_json(list(starts)))
    if result is not None:
        (path / RESULT).write_text(to_json(result))
        (path / CHECKPOINT).write_bytes((2).to_bytes(8, "little") + b"{}")
    return path


def shown(path, **options):
    return inspect(str(path), screen=Screen(**options))[1]


def test_ten_tasks_and_three_layers_fit_on_one_screen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = {"conv1": 96, "conv2": 128, "fc1": 512}
    lines = shown(write(Path("run"), END, result=made_up(10, sizes, claim=7))).splitlines()
    assert len(lines) <= 40
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(lines)
    for part in (
        "run: mine, seed 0, head multi",
        "finished: 10 of 10 tasks in 12 s",
        "Average test accuracy 90.90, forgetting exactly 0, layers 53 % free on average.",
        "nothing was forgotten",
        "task 10",
        "conv2",
        "Pruning: by activity, one threshold, margin 2; change in validation -0.50",
        "Grid: 10 candidates in all; chosen: alpha 0.001, lr 0.01 (10 tasks).",
        "Room: about 3 more tasks like the last would fit; conv1 fills up first",
        "Size: network 0.17 MB, peak memory of the run 800 MB.",
        "Certificates: SHA-256 of everything that 10 tasks read",
        "Environment: Python 3.13.1, NumPy 2.3.4, Linux x86_64, 4 threads, commit",
    ):
        assert part in text, part


@pytest.mark.parametrize("width", [40, 80, 120])
def test_many_tasks_and_layers_take_no_more(tmp_path, monkeypatch, width):
    sizes = {f"blocks.{number}.conv": 3000 + number for number in range(60)}
    names = [f"a task with a name that is far too long for any table {n}" for n in range(50)]
    monkeypatch.chdir(tmp_path)
    path = write(Path("run"), END, result=made_up(50, sizes, claim=50, names=names))
    lines = shown(path, width=width).splitlines()
    assert len(lines) <= (42 if width >= 80 else 60)
    assert all(cell_len(line) <= width for line in lines)
    assert sum(line.startswith("... ") for line in lines) == 2
    assert "... 55 more" in lines


def test_names_cannot_harm_a_terminal(tmp_path):
    names = ("a <b> & \"c\" 'd'", "数字" * 40, "[red]" * 99, "\x1b[31mred\x07", " ", "é")
    result = made_up(6, {"<fc1>\x1b[2J": 90}, names=names)
    path = write(tmp_path / "a b'c", END, result=result)
    for unicode in (True, False):
        text = shown(path, unicode=unicode)
        assert all(line.isprintable() for line in text.splitlines())
        assert "a <b> & \"c\" 'd'" in text
    assert "\x1b" not in inspect(str(path), in_full=True)[1]


def test_a_run_that_is_working(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(write(Path("run"), starts=())).splitlines() == [
        "run: mine, seed 0, head multi",
        "not finished: 0 of 2 tasks",
        "Last news 0 s ago.",
    ]
    write(Path("run"), begin(), epoch(0, 2.0), starts=(replace(START, gpu="Fast GPU"), START))
    assert shown(Path("run"), width=120).splitlines()[1:5] == [
        "started 2 times, last 2030-01-02T03:04:05+00:00 on Fast CPU, torch 2.11.0, clnp 0.3",
        "not finished: 0 of 2 tasks",
        "now: task 1 of 2, task 1: candidate 1 of 2, epoch 1 of 10, loss 1, validation 50.00; 2 % "
        "done, about 2 min left",
        "Last news 0 s ago.",
    ]


def test_a_run_that_was_stopped_or_lost_its_result(tmp_path):
    path = write(tmp_path, begin(), STOP, result=made_up(1, {"fc1": 9}, finished=False))
    resume = "Resume with the Python program that started it."
    assert f"stopped after 0 of 1 tasks. {resume}" in shown(path, width=120)
    write(path, END)
    (path / RESULT).unlink()
    lost = "finished, but its result.json is missing. Restore it with the Python program that"
    assert lost in shown(path, width=120)


@pytest.mark.parametrize(
    ("num_done", "changes", "end"),
    [
        (0, {}, "Resuming it would fail again. Change the recipe, and start a new run."),
        (1, {"method": "ewc"}, "fail again. Change the recipe, and start a new run."),
        (1, {}, "or leave it out, and resume with `clnp run RECIPE --out {}`."),
        (1, {"recipe": None}, "leave it out, and resume with the Python program that started it."),
    ],
)
def test_a_run_that_would_fail_again(tmp_path, num_done, changes, end):
    result = made_up(num_done, {"fc1": 9}, finished=False)
    text = shown(write(tmp_path, begin(), FAILURE, result=result, **changes), width=1000)
    assert f"failed after {num_done} of 1 tasks: every candidate diverged\n" in text
    assert f"{end.format(tmp_path)}\n" in text


def test_a_run_that_failed_for_another_reason(tmp_path):
    resume = resume_command(write(tmp_path))
    for reason, end in (
        ("ValueError: no", f"\nResume with {resume} once that is solved."),
        (f"no space left. Resume with {resume}", ""),
    ):
        failed = RunFailed(task="a", reason=reason, mendable=True, at=1.0)
        text = shown(write(tmp_path, begin(), failed, starts=()), width=1000)
        assert text.endswith(f"failed after 0 of 2 tasks: {reason}{end}")


def test_a_run_of_an_older_version(tmp_path):
    write(tmp_path)
    (tmp_path / STATUS).unlink()
    (tmp_path / EVENTS).write_text(json.dumps(event_to_plain(FAILURE)))
    assert "failed after 0 of 2 tasks: every candidate diverged" in shown(tmp_path)


def test_a_full_network_without_an_ended_task(tmp_path):
    empty = made_up(0, {"fc1": 9}, full="no neuron of fc1 is free. Widen it")
    text = shown(write(tmp_path / "run", END, result=empty))
    assert "No task has ended yet." in text
    assert "Full: no neuron of fc1 is free." in text


def test_the_environment():
    gpu = replace(START, cuda="13.2", commit=None, num_threads=1)
    assert environment_of((START, gpu)) == [
        "Environment: Python 3.13.1, NumPy 2.3.4, CUDA 13.2, Linux x86_64, 1 thread, "
        "commit not known."
    ]
    assert environment_of((START,))[0].endswith("commit 0123456789ab+.")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "[]", "config.json is damaged: it contains a list"),
        ("result.json", "{{", "result.json is damaged"),
        ("series.json", '{"recipe": "a"}', "series.json is damaged"),
        ("compare.json", '{"seeds": [1]}', "compare.json is damaged"),
    ],
)
def test_damaged_files_are_named(tmp_path, file, text, message):
    path = write(tmp_path / "run", END, result=made_up(2, {"fc1": 9}))
    (path / file).write_text(text)
    with pytest.raises(RunError, match=message):
        inspect(str(path))


@pytest.mark.parametrize(
    ("file", "text"),
    [("result.json", '{"tasks": 3}'), ("environment.json", '[{"gpu": 1}]'), ("result.json", "{}")],
)
@pytest.mark.parametrize("in_full", [True, False])
def test_missing_values_are_left_out(tmp_path, file, text, in_full):
    path = write(tmp_path / "run", result=made_up(2, {"fc1": 9}))
    (path / file).write_text(text)
    text = " ".join(inspect(str(path), in_full=in_full)[1].split())
    assert "mine, seed 0" in text
    assert "None" not in text


def test_a_series_and_a_comparison(tmp_path):
    known = {"format": 1, "recipe": "mine", "seeds": [0, 1]}
    series = tmp_path / "clnp"
    write(series / "seed0", END, result=made_up(2, {"fc1": 9}))
    write(series / "seed1", begin(), epoch(0, 2.0))
    (series / "series.json").write_text(json.dumps(known))
    compared = {**known, "methods": ["clnp"]}
    (tmp_path / "compare.json").write_text(json.dumps(compared))
    for path, kind, title, label in (
        (series, "series", "mine", "seed 1"),
        (tmp_path, "comparison", "mine with clnp", "clnp, seed 1"),
    ):
        answer, text = inspect(str(path))
        first, second, third, _, *table = text.splitlines()
        assert first == f"{path}: {title}, 1 of 2 runs finished"
        assert second.startswith(f"{label}: task 1 of 2, task 1: candidate 1 of 2, epoch 1 of 10")
        assert third == "Last news 0 s ago."
        assert any(" 90.50" in line for line in table)
        assert json.loads(to_json(answer))[kind]["seeds"] == [0, 1]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "run"
    tuning = FineTuning(epochs=1, lr=0.01)
    experiment("größer", "<y> & 'z'", alphas=(1e-4, 1e-3), fine_tuning=tuning).run(path)
    return path


def test_a_real_run_on_one_screen(real, capsys):
    assert app.main(["inspect", str(real)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert any(line.startswith("größer ") for line in lines)
    assert any(line.startswith("Room: ") for line in lines)
    assert app.main(["inspect", str(real), "--all"]) == 0
    assert "Environment of start 1" in capsys.readouterr().out
    assert app.main(["inspect", str(real), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("config", "environment", "result", "status"):
        assert found[name] == json.loads((real / f"{name}.json").read_text())


def test_a_terminal_without_blocks_and_without_torch(real):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clnp", "inspect", str(real)],
        capture_output=True,
        env={"PYTHONPATH": SRC, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
        check=True,
    )
    out = done.stdout.decode("ascii")
    assert "gr\\xf6\\xdfer" in out
    assert any(line.split()[-1].strip("12.") == "" for line in out.splitlines() if "% " in line)
    # It is quick, because nothing is computed.
    assert b"| torch\n" not in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        (b"", "is damaged: its header cannot be read"),
        (b"\x02" + bytes(7) + b"{}more", "is damaged: it has 14 bytes instead of 10"),
    ],
)
def test_a_damaged_checkpoint_is_named(tmp_path, content, message):
    path = write(tmp_path, END, result=made_up(2, {"fc1": 10}))
    assert "Damaged" not in shown(path)
    (path / CHECKPOINT).unlink()
    if content is not None:
        (path / CHECKPOINT).write_bytes(content)
    expected = f"Damaged: the {CHECKPOINT} {message}, and with it the network. Restore a copy"
    assert expected in " ".join(shown(path, width=200).split())


def test_a_checkpoint_with_private_tensors_is_whole(tmp_path):
    path = write(tmp_path, END, result=made_up(2, {"fc1": 10}))
    save_file({"A": np.zeros(2), "_extra_state": np.zeros(3)}, path / CHECKPOINT)
    assert "Damaged" not in shown(path)


def test_after_tasks_that_learned_nothing_the_room_is_unknown():
    result = made_up(2, {"fc1": 10})
    assert room(result)[0].startswith("Room: ")
    record = replace(result.tasks[1], score=50.0, test_score=50.0, guess=50.0)
    assert record.is_guess
    unknown = room(replace(result, tasks=(result.tasks[0], record)))
    assert unknown == [
        "Room: unknown. The forecast depends on the last tasks, in which nothing was learned."
    ]
