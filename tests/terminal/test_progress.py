import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clnp.palette import CLNP, NEW
from clnp.records import (
    CandidateChosen,
    CandidateTrained,
    EpochEnded,
    Evaluated,
    NetworkFull,
    RoundEnded,
    RunConfig,
    RunFailed,
    RunFinished,
    RunStarted,
    SubsetScored,
    TaskEnded,
    TaskResumed,
    TaskStarted,
    task_of,
)
from clnp.studies.console import Console
from clnp.terminal import progress
from clnp.terminal.progress import Lines, Live, described
from clnp.training.config import FineTuning
from support.progress import experiment, pruned
from support.runs import Crash
from support.terminal import SRC

NUMBERS = {"number": 2, "num_tasks": 3, "num_candidates": 4, "num_epochs": 20}
NUMBERS |= {"epochs_before": 80, "epochs_of_run": 240}
PLAN = TaskStarted(task="a", **NUMBERS)
RESUMED = TaskResumed(task="a", **NUMBERS)
EPOCH = EpochEnded(
    task="a",
    candidate=1,
    number=6,
    num_epochs=20,
    loss=0.123456,
    penalised_loss=0.5,
    score=91.666,
    seconds=0.04567,
)
CANDIDATE = CandidateTrained(
    task="a", candidate=1, alpha=1e-3, lr=0.0030, num_epochs=12, score=91.666
)
SUBSET = SubsetScored(task="a", candidate=1, number=12, kept=340, available=800)
ROUND = RoundEnded(task="a", round=0, score=91.0)
TASK = TaskEnded(task="a", new={"fc1": 3, "fc2": 0}, score=91.666, test_score=90.333)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """A wide terminal, whatever the tests run in."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def text_of(stream):
    """Return what a terminal shows, without colours and movements."""
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", stream.getvalue())


class Watched:
    """Shows events on a screen, and remembers the status after each."""

    def __init__(self, path=None) -> None:
        self.stream = io.StringIO()
        self.live = Live(self.stream)
        self.events, self.seen = [], []
        if path is not None:
            self.live.begin(path)

    def show(self, event):
        self.live.show(event)
        self.events.append(event)
        self.seen.append(self.live.status)

    def of(self, *kinds):
        """Return events of these kinds, each with the status after it."""
        pairs = zip(self.events, self.seen, strict=True)
        return [(event, status) for event, status in pairs if isinstance(event, kinds)]

    def check(self, total):
        """Check that the bar of the run only moves forward, and ends at its total."""
        done = [status.epochs_done for status in self.seen]
        assert done == sorted(done)
        assert {status.epochs_of_run for status in self.seen[1:]} == {total}
        assert (done[-1], self.seen[-1].state) == (total, "finished")
        self.live.close()


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PLAN, "task 2 of 3: a"),
        (RESUMED, "task 2 of 3: a, resumed"),
        (EPOCH, "  candidate 2 of 4, epoch 7 of 20: loss 0.1235, validation 91.67, 0.0457 s"),
        (
            replace(EPOCH, candidate=None, round=1, num_epochs=9),
            "  fine-tuning round 2, epoch 7 of 9: loss 0.1235, validation 91.67, 0.0457 s",
        ),
        (
            replace(EPOCH, score=float("nan")),
            "  candidate 2 of 4, epoch 7 of 20: loss 0.1235, validation nan, 0.0457 s",
        ),
        (CANDIDATE, "  candidate 2 of 4, alpha 0.001, lr 0.003: validation 91.67 after 12 epochs"),
        (
            replace(CANDIDATE, alpha={"fc1": 0.1}, lr=1e-5, num_epochs=1),
            "  candidate 2 of 4, alpha fc1 0.1, lr 1e-05: validation 91.67 after 1 epoch",
        ),
        (
            replace(CANDIDATE, score=None, diverged="the loss is nan"),
            "  candidate 2 of 4, alpha 0.001, lr 0.003: diverged and is dropped: the loss is nan",
        ),
        (pruned(), "  candidate 2 of 4 pruned: keeps fc1 3, fc2 0, validation 90.50"),
        (SUBSET, "  candidate 2 of 4, pruning: 12 evaluations, 340 of 800 neurons"),
        (
            replace(SUBSET, candidate=None, round=1, number=1),
            "  fine-tuning round 2, pruning: 1 evaluation, 340 of 800 neurons",
        ),
        (ROUND, "  fine-tuning round 1: validation 91.00"),
        (
            replace(ROUND, round=2, kept=False),
            "  fine-tuning round 3: validation 91.00, outside the margin: rolled back",
        ),
        (
            replace(ROUND, score=None, kept=False),
            "  fine-tuning round 1: diverged, outside the margin: rolled back",
        ),
        (TASK, "learned a: validation 91.67, test 90.33; new neurons fc1 3, fc2 0"),
        (replace(TASK, test_score=None, new={}), "learned a: validation 91.67"),
        (
            replace(TASK, new={}, guess=91.7),
            "learned a: validation 91.67, test 90.33; NO BETTER than always naming the same class, "
            "91.70",
        ),
        (
            replace(TASK, full=("fc2",)),
            "learned a: validation 91.67, test 90.33; new neurons fc1 3, fc2 0; fc2 full",
        ),
        (
            replace(TASK, score=None, test_score=None, new={}),
            "a waits for the other tasks, which are learned together",
        ),
        (RunFailed(task="a", reason="all diverged"), "failed: all diverged"),
        (NetworkFull(task="a", reason="fc1 is full"), "the network is full: fc1 is full"),
        (CandidateChosen(task="a", candidate=1), None),
        (Evaluated(task="a"), None),
        (RunFinished(num_tasks=3), None),
        (RunStarted(config=RunConfig()), None),
    ],
)
def test_an_event_is_described_in_one_line(event, line):
    assert described(event, PLAN) == line


def test_without_the_start_of_a_task_its_numbers_are_left_out():
    assert described(EPOCH, None).startswith("  candidate 2, epoch 7 of 20: loss")
    assert described(pruned(), None).startswith("  candidate 2 pruned")


def test_lines_begin_with_the_time_since_the_start(clock, tmp_path):
    with (tmp_path / "log").open("w") as file:
        lines = Lines(file, label="seed 1: ")
        for seconds, text in ((0, "one"), (59.9, "two"), (61, "three"), (3600 * 30 + 605, "four")):
            clock.seconds = 100 + seconds
            lines.say(text)
        # They are written at once.
        assert (tmp_path / "log").read_text().splitlines() == [
            "[0:00:00] seed 1: one",
            "[0:00:59] seed 1: two",
            "[0:01:01] seed 1: three",
            "[30:10:05] seed 1: four",
        ]


def test_a_log_has_an_epoch_every_ten_seconds_and_everything_else(clock):
    stream = io.StringIO()
    lines = Lines(stream)
    lines.show(PLAN)
    for number in range(25):
        clock.seconds += 1
        lines.show(replace(EPOCH, number=number))
    lines.show(CANDIDATE)
    for number in range(1, 13):
        clock.seconds += 1
        lines.show(replace(SUBSET, number=number))
    lines.show(TASK)
    lines.close()
    assert [line.split(":")[2] for line in stream.getvalue().splitlines()] == [
        "00] task 2 of 3",
        "10]   candidate 2 of 4, epoch 10 of 20",
        "20]   candidate 2 of 4, epoch 20 of 20",
        "25]   candidate 2 of 4, alpha 0.001, lr 0.003",
        "30]   candidate 2 of 4, pruning",
        "37] learned a",
    ]


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_bar_counts_every_epoch(tmp_path, at_once):
    watched = Watched()
    made = experiment("a", "b", alphas=(1e-4, 1e-3, 1e-2), candidates_at_once=at_once)
    made.run(tmp_path / "run", on_event=watched.show)
    assert [status.epochs_done for _, status in watched.of(EpochEnded)] == list(range(1, 25))
    watched.live.say("hello")
    lines = text_of(watched.stream).splitlines()
    assert [line.split(":")[0] for line in lines] == ["learned a", "learned b", "hello"]
    watched.check(24)


@pytest.mark.parametrize("lr", [0.01, 50.0])  # A rate of 50 leaves the margin.
def test_the_bar_counts_fine_tuning(tmp_path, lr):
    watched = Watched()
    tuning = FineTuning(6, lr, rounds=2)
    experiment("a", "b", fine_tuning=tuning).run(tmp_path / "run", on_event=watched.show)
    tuned = [s.epochs_done for e, s in watched.of(EpochEnded) if e.round == 0 and e.task == "a"]
    assert tuned == [5, 6, 7, 8, 9, 10]
    # A round that is rolled back is the last one, which leaves out the epochs of the others.
    assert watched.of(TaskEnded)[0][1].epochs_done == 16
    watched.check(32)
    text = text_of(watched.stream)
    assert text.count("fine-tuning round 1: ") == 2
    assert ("rolled back" in text) is (lr == 50.0)


# A task has 2 x 4 epochs, a candidate after each 4, 1 or 2 prunings, and 3 epochs of a round.
@pytest.mark.parametrize(("task", "stop_at"), [("a", 2), ("a", 7), ("a", 13), ("b", 9)])
def test_the_bar_of_a_resumed_run_continues(tmp_path, task, stop_at):
    num_seen = 0

    def stop(event):
        nonlocal num_seen
        counts = not isinstance(event, TaskStarted | Evaluated) and task_of(event) == task
        num_seen += counts
        if num_seen == stop_at:
            raise Crash

    made = experiment("a", "b", alphas=(1e-4, 1e-3), fine_tuning=FineTuning(3, 0.01))
    with pytest.raises(Crash):
        made.run(tmp_path / "run", on_event=stop, checkpoint_seconds=0)
    watched = Watched(tmp_path / "run")
    made.run(tmp_path / "run", on_event=watched.show, checkpoint_seconds=0)
    assert isinstance(watched.events[0], TaskResumed)
    first = watched.seen[0]
    assert len(first.learned) == (0 if task == "a" else 1)
    assert first.epochs_done >= (0 if task == "a" else 11)
    watched.check(22)
    number = 1 if task == "a" else 2
    assert f"task {number} of 2: {task}, resumed\n" in text_of(watched.stream)


@pytest.mark.parametrize("name", ["[bold]a[/bold]", "[/red]", "[link=x]y", ":bomb: [1, 2]"])
def test_names_are_shown_literally(name):
    stream = io.StringIO()
    live = Live(stream)
    live.show(replace(RESUMED, task=name))
    live.show(replace(TASK, task=name))
    live.say(f"hello {name} {'word ' * 40}")  # It is not broken at the end of a line.
    live.close()
    lines = text_of(stream).splitlines()
    assert lines[0] == f"task 2 of 3: {name}, resumed"
    assert lines[1].startswith(f"learned {name}: validation 91.67, ")
    assert lines[2] == f"hello {name} {'word ' * 40}"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def shown_by(run_path, monkeypatch, **variables):
    """Return what a terminal gets of a run."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    live = Live(stream)
    # A recipe may be refused before the first task.
    live.show(RunStarted(config=RunConfig()))
    assert stream.getvalue() == ""
    live.begin(run_path)
    tuning = FineTuning(2, 0.01, rounds=1)
    made = experiment("[bold]a", "b", fine_tuning=tuning)

    def show(event):
        live.show(event)
        if live._live.is_started:
            live._live.refresh()

    made.run(run_path, on_event=show)
    live.close()
    return stream.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_run_shows_what_watch_shows_and_restores_the_terminal(tmp_path, monkeypatch, columns):
    shown = shown_by(tmp_path / "run", monkeypatch, COLUMNS=str(columns), COLORTERM="truecolor")
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert shown.count(hide) == shown.count(show) == 1
    assert shown.index(hide) < shown.index(show)
    assert {code(CLNP), code(NEW)} <= set(re.findall(r"\x1b\[([\d;]+)m", shown))
    lines = text_of(io.StringIO(shown)).replace("\r", "\n").splitlines()
    assert max(len(line) for line in lines if not line.startswith("learned")) <= columns
    plain = " ".join(" ".join(lines).split())
    assert "task 1 of 2: [bold]a run ━" in plain
    assert "fine-tuning round 1, epoch 2 of 2" in plain
    assert "earlier tasks, in turn █ last task · free" in plain
    assert re.search(r"learned \[bold\]a: validation [\d.]+, test [\d.]+; new", plain)


def code(colour):
    """Return the escape code of a colour, as rich writes it."""
    return "38;2;" + ";".join(str(int(colour[index : index + 2], 16)) for index in (1, 3, 5))


def test_no_colour_where_none_is_wanted(tmp_path, monkeypatch):
    shown = shown_by(tmp_path / "run", monkeypatch, NO_COLOR="1")
    assert not re.findall(r"\x1b\[[\d;]*m", shown)
    assert "neurons of a task, in turn" in shown


def test_a_console_shows_warnings_only(capsys):
    console = Console()
    console.show(RunStarted(config=RunConfig()))
    console.say("hello")
    console.warn("no space left")
    assert capsys.readouterr() == ("", "clnp: no space left\n")


def test_downloads():
    stream = io.StringIO()
    lines, live = Lines(stream), Live(bar_stream := io.StringIO())
    for num_bytes in (0, 500_000, 2_500_000):
        lines.download("[train].gz", num_bytes, 2_500_000)
        live.download("[train].gz", num_bytes, 2_500_000)
    lines.download("test.gz", 0, None)
    live.close()
    shown = [line.split("] ", 1)[1] for line in stream.getvalue().splitlines()]
    assert shown == ["downloading [train].gz, 2.5 MB", "downloading test.gz"]
    assert re.search(r"\[train\]\.gz ━+ 2\.5/2\.5 MB", text_of(bar_stream))


class Gone(Terminal):
    """A terminal that has been closed."""

    def write(self, text):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_end_a_run(tmp_path):
    live, lines = Live(Gone()), Lines(Gone())

    def show(event):
        live.show(event)
        lines.show(event)

    assert experiment("a").run(tmp_path / "run", on_event=show).finished
    live.close()


def test_lines_without_a_reader_do_not_end_a_process():
    read, write = os.pipe()
    os.close(read)
    program = "from clnp.terminal import Lines; Lines().say('hello')"
    env = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run([sys.executable, "-c", program], stderr=write, env=env)
    os.close(write)
    assert done.returncode == 0
