import io
import os
import re
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clnp.runs.experiment import Experiment
from clnp.terminal import progress
from clnp.terminal.progress import Bars, Lines, Silence, described, per_second
from clnp.training.config import FineTuning, LearnerConfig, Training
from clnp.training.task import Task

PLAN = {
    "event": "begin",
    "task": "a",
    "number": 2,
    "num_tasks": 3,
    "num_candidates": 4,
    "num_epochs": 20,
    "epochs_before": 80,
    "epochs_of_run": 240,
}
EPOCH = {
    "event": "epoch",
    "task": "a",
    "number": 6,
    "num_epochs": 20,
    "loss": 0.123456,
    "penalised_loss": 0.5,
    "score": 91.666,
    "seconds": 0.04567,
}
CANDIDATE = {
    "event": "candidate",
    "task": "a",
    "candidate": 1,
    "alpha": 1e-3,
    "lr": 0.0030,
    "num_epochs": 12,
    "score": 91.666,
    "diverged": None,
}
PRUNING = {
    "event": "pruning",
    "task": "a",
    "candidate": 1,
    "plan": {"keep": {"fc1": [0, 4, 5], "fc2": []}, "score": 90.5},
}
ROUND = {"event": "round", "task": "a", "round": 0, "score": 91.0, "kept": True}
NEW = {"fc1": 3, "fc2": 0}
TASK = {"event": "task", "task": "a", "new": NEW, "score": 91.666, "test_score": 90.333}


class Stop(BaseException):
    """A crash."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """A wide terminal, whatever the tests run in."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told to."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def experiment(*names, **options):
    """A few small tasks, learnt in four epochs each."""
    tasks = []
    for number, name in enumerate(names):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(60, 4, generator=generator)
        y = (x @ torch.randn(4, 3, generator=generator)).argmax(1)
        tasks.append(Task(name, (x[:50], y[:50]), test=(x[50:], y[50:])))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3))
    training = {"epochs": 4, "lr": 0.02, "batch_size": 16, **options.pop("training", {})}
    config = LearnerConfig(**{"margin": 5.0, "training": Training(**training), **options})
    return Experiment(model, torch.zeros(2, 4), tasks, config)


def text_of(stream):
    """What a terminal shows, without colours and movements."""
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", stream.getvalue())


def counts(bars):
    """Of the run and of the task: where the bar is, and where it ends."""
    return [(bar.completed, bar.total) for bar in bars._progress.tasks]


class Watched:
    """Shows events with bars, and remembers where these were after each."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.bars = Bars(self.stream)
        self.events, self.places = [], []

    def show(self, event):
        self.bars.show(event)
        self.events.append(event)
        self.places.append(counts(self.bars))

    def of(self, kind):
        """Events of a kind, each with where the bars were after it."""
        pairs = zip(self.events, self.places, strict=True)
        return [(event, places) for event, places in pairs if event["event"] == kind]

    def check(self, num_tasks, sizes):
        """Bars move forward only, and end a task, and the run, at their totals.

        `sizes` are the epochs of the tasks that were seen; those before had as many as the first.
        """
        for before, after in pairwise(self.places):
            for (old, old_total), (new, new_total) in zip(before, after, strict=True):
                assert new_total is None or new <= new_total
                assert old <= new or new == 0 or old_total != new_total
        ended = [places for _, places in self.of("task")]
        before = (num_tasks - len(ended)) * sizes[0]
        total = before + sum(sizes)
        assert ended == [
            [(before + sum(sizes[: number + 1]), total), (size, size)]
            for number, size in enumerate(sizes)
        ]
        self.bars.close()
        *_, run, task, end = text_of(self.stream).split("\n")
        size = sizes[-1]
        assert re.match(rf"run +━+ +{total}/{total} +epochs ", run)
        assert re.match(rf"task {num_tasks} of {num_tasks}, .* ━+ +{size}/{size} +epochs ", task)
        assert end == ""


def test_silence_shows_nothing(capfd):
    silence = Silence()
    for event in (PLAN, EPOCH, TASK):
        silence.show(event)
    silence.say("hello")
    silence.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (PLAN, "task 2 of 3: a"),
        ({**PLAN, "event": "resumed"}, "task 2 of 3: a, taken up again"),
        (
            {**EPOCH, "candidate": 1},
            "  candidate 2 of 4, epoch 7 of 20: loss 0.1235, validation 91.67, 0.0457 s",
        ),
        (
            {**EPOCH, "round": 1, "num_epochs": 9},
            "  fine-tuning round 2, epoch 7 of 9: loss 0.1235, validation 91.67, 0.0457 s",
        ),
        (
            {**EPOCH, "candidate": 1, "score": "nan"},
            "  candidate 2 of 4, epoch 7 of 20: loss 0.1235, validation nan, 0.0457 s",
        ),
        (
            CANDIDATE,
            "  candidate 2 of 4, alpha 0.001, lr 0.003: validation 91.67 after 12 epochs",
        ),
        (
            {**CANDIDATE, "alpha": {"fc1": 0.1}, "lr": 1e-5},
            "  candidate 2 of 4, alpha fc1 0.1, lr 1e-05: validation 91.67 after 12 epochs",
        ),
        (
            {**CANDIDATE, "score": None, "diverged": "the loss is nan"},
            "  candidate 2 of 4, alpha 0.001, lr 0.003: diverged and is dropped: the loss is nan",
        ),
        (PRUNING, "  candidate 2 of 4 pruned: keeps fc1 3, fc2 0, validation 90.50"),
        (ROUND, "  fine-tuning round 1: validation 91.00"),
        (
            {**ROUND, "round": 2, "kept": False},
            "  fine-tuning round 3: validation 91.00, outside the margin: taken back",
        ),
        (
            {**ROUND, "score": None, "kept": False},
            "  fine-tuning round 1: diverged, outside the margin: taken back",
        ),
        (TASK, "learnt a: validation 91.67, test 90.33; new neurons fc1 3, fc2 0"),
        (
            {**TASK, "test_score": None},
            "learnt a: validation 91.67; new neurons fc1 3, fc2 0",
        ),
        (
            {**TASK, "test_score": "nan"},
            "learnt a: validation 91.67, test nan; new neurons fc1 3, fc2 0",
        ),
        ({**TASK, "new": {}}, "learnt a: validation 91.67, test 90.33"),
        (
            {**TASK, "new": {}, "guess": 91.7},
            "learnt a: validation 91.67, test 90.33; NO BETTER than always naming the same class, "
            "91.70",
        ),
        ({**TASK, "new": {}, "guess": 50.0}, "learnt a: validation 91.67, test 90.33"),
        (
            {**TASK, "full": ["fc2"]},
            "learnt a: validation 91.67, test 90.33; new neurons fc1 3, fc2 0; fc2 is full",
        ),
        (
            {**TASK, "score": None, "test_score": None, "new": {}},
            "a waits for the others, to be learnt with them",
        ),
        ({"event": "failed", "task": "a", "reason": "all diverged"}, "failed: all diverged"),
        (
            {"event": "full", "task": "a", "reason": "no neuron of fc1 is free"},
            "the network is full: no neuron of fc1 is free",
        ),
        ({"event": "chosen", "task": "a", "candidate": 1, "kept": {}}, None),
        ({"event": "evaluation", "task": "a", "scores": []}, None),
        ({"event": "finished", "num_tasks": 3}, None),
        ({"event": "run", "tasks": ["a"]}, None),
    ],
)
def test_an_event_is_described_in_one_line(event, line):
    assert described(event, PLAN) == line


def test_without_a_plan_the_numbers_that_it_has_are_not_known():
    assert described({**EPOCH, "candidate": 1}, {}) == (
        "  candidate 2, epoch 7 of 20: loss 0.1235, validation 91.67, 0.0457 s"
    )
    assert described(PRUNING, {}).startswith("  candidate 2 pruned")


def test_lines_begin_with_the_time_since_the_start(clock):
    stream = io.StringIO()
    lines = Lines(stream)
    for seconds, text in ((0, "one"), (59.9, "two"), (61, "three"), (3600 * 30 + 605, "four")):
        clock.seconds = 100 + seconds
        lines.say(text)
    assert stream.getvalue() == "[0:00:00] one\n[0:00:59] two\n[0:01:01] three\n[30:10:05] four\n"


def test_lines_are_written_at_once(tmp_path):
    with (tmp_path / "log").open("w") as file:
        Lines(file).say("hello")
        assert (tmp_path / "log").read_text() == "[0:00:00] hello\n"


def test_epochs_are_told_of_every_ten_seconds_and_all_else_always(clock):
    stream = io.StringIO()
    lines = Lines(stream)
    lines.show(PLAN)
    for number in range(25):
        clock.seconds += 1
        lines.show({**EPOCH, "candidate": 1, "number": number})
    lines.show(CANDIDATE)
    lines.show({"event": "chosen", "task": "a", "candidate": 1, "kept": {}})
    lines.show(TASK)
    lines.close()
    assert [line.split(":")[-2:] for line in stream.getvalue().splitlines()] == [
        ["00] task 2 of 3", " a"],
        [
            "10]   candidate 2 of 4, epoch 10 of 20",
            " loss 0.1235, validation 91.67, 0.0457 s",
        ],
        [
            "20]   candidate 2 of 4, epoch 20 of 20",
            " loss 0.1235, validation 91.67, 0.0457 s",
        ],
        [
            "25]   candidate 2 of 4, alpha 0.001, lr 0.003",
            " validation 91.67 after 12 epochs",
        ],
        ["25] learnt a", " validation 91.67, test 90.33; new neurons fc1 3, fc2 0"],
    ]


def test_a_run_is_told_in_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    stream, events = io.StringIO(), []
    lines = Lines(stream)

    def show(event):
        events.append(event)
        lines.show(event)

    tuning = FineTuning(2, 0.01, rounds=2)
    made = experiment("[bold]a[/bold]", "[b] :bomb:", alphas=(1e-4, 1e-3), fine_tuning=tuning)
    made.run(tmp_path / "run", on_event=show)
    told = [line.split("] ", 1)[1] for line in stream.getvalue().splitlines()]
    # Each event has the plan of its own task.
    plan, expected = {}, []
    for event in events:
        plan = event if event["event"] == "begin" else plan
        expected.append(described(event, plan))
    assert told == [line for line in expected if line is not None]
    assert told[0] == "task 1 of 2: [bold]a[/bold]"
    assert told[1].startswith("  candidate 1 of 2, epoch 1 of 4: loss ")
    assert sum(line.startswith("  candidate 2 of 2, alpha 0.001, lr 0.02: v") for line in told) == 2
    assert sum(" pruned: keeps 0 " in line for line in told) >= 2
    assert sum(line.startswith("  fine-tuning round 1, epoch 2 of 2: loss ") for line in told) == 2
    assert "task 2 of 2: [b] :bomb:" in told
    assert told[-1].startswith("learnt [b] :bomb:: validation ")


def test_bars_reach_their_totals(tmp_path):
    watched = Watched()
    experiment("a", "b", "c", alphas=(1e-4, 1e-3)).run(tmp_path / "run", on_event=watched.show)
    epochs = [places for _, places in watched.of("epoch")]
    assert epochs == [[(number, 24), ((number - 1) % 8 + 1, 8)] for number in range(1, 25)]
    watched.check(3, [8, 8, 8])


def test_bars_move_on_while_candidates_are_trained_at_the_same_time(tmp_path):
    watched = Watched()
    made = experiment("a", "b", alphas=(1e-4, 1e-3, 1e-2), candidates_at_once=2)
    made.run(tmp_path / "run", on_event=watched.show)
    epochs = [places for _, places in watched.of("epoch")]
    assert epochs == [[(number, 24), ((number - 1) % 12 + 1, 12)] for number in range(1, 25)]
    watched.check(2, [12, 12])


def test_bars_reach_their_totals_with_early_stopping(tmp_path):
    watched = Watched()
    made = experiment(
        "a", "b", alphas=(1e-4, 1e-3), training={"epochs": 30, "patience": 1, "lr": 0.1}
    )
    made.run(tmp_path / "run", on_event=watched.show)
    candidates = watched.of("candidate")
    assert min(event["num_epochs"] for event, _ in candidates) < 30
    for event, (_, task) in candidates:
        assert task == (30 * (event["candidate"] + 1), 60)
    watched.check(2, [60, 60])


def test_bars_reach_their_totals_with_a_candidate_that_diverges(tmp_path):
    watched = Watched()
    made = experiment("a", "b", lrs=(0.1, 1e30), training={"optimizer": "SGD"})
    made.run(tmp_path / "run", on_event=watched.show)
    ended = [(event["diverged"] is None, task) for event, (_, task) in watched.of("candidate")]
    assert ended == [(True, (4, 8)), (False, (8, 8))] * 2
    watched.check(2, [8, 8])


@pytest.mark.parametrize("lr", [0.01, 50.0])  # A rate of 50 leaves the margin.
def test_bars_stand_still_while_survivors_are_trained(tmp_path, lr):
    watched = Watched()
    tuning = FineTuning(6, lr, rounds=2)
    experiment("a", "b", fine_tuning=tuning).run(tmp_path / "run", on_event=watched.show)
    tuned = [task for event, (_, task) in watched.of("epoch") if "round" in event]
    assert len(tuned) >= 12
    assert set(tuned) == {(4, 4)}
    watched.check(2, [4, 4])
    text = text_of(watched.stream)
    assert text.count("fine-tuning round 1: ") == 2
    assert ("taken back" in text) is (lr == 50.0)


def test_bars_know_that_only_the_first_task_has_a_grid(tmp_path):
    watched = Watched()
    made = experiment("a", "b", "c", alphas=(1e-4, 1e-3, 1e-2), search_on="first")
    made.run(tmp_path / "run", on_event=watched.show)
    watched.check(3, [12, 4, 4])


# A task has 2 x 4 epochs, a candidate after each 4, 1 or 2 prunings, and 3 epochs of a round.
@pytest.mark.parametrize(
    ("task", "stop_at"),
    [*(("a", number) for number in (2, 5, 7, 10, 11, 12, 13, 15)), ("b", 4), ("b", 9), ("b", 14)],
)
def test_bars_of_a_task_that_is_taken_up_again_reach_their_totals(tmp_path, task, stop_at):
    num_seen = 0

    def stop(event):
        nonlocal num_seen
        num_seen += event["event"] not in ("begin", "run", "evaluation") and event["task"] == task
        if num_seen == stop_at:
            raise Stop

    made = experiment("a", "b", alphas=(1e-4, 1e-3), fine_tuning=FineTuning(3, 0.01))
    with pytest.raises(Stop):
        made.run(tmp_path / "run", on_event=stop, checkpoint_seconds=0)
    watched = Watched()
    made.run(tmp_path / "run", on_event=watched.show, checkpoint_seconds=0)
    left = 2 if task == "a" else 1
    assert watched.events[0]["event"] == "resumed"
    assert watched.places[0] == [((2 - left) * 8, 16), (0, 8)]
    tuned = [task for event, (_, task) in watched.of("epoch") if "round" in event]
    pruned = [task for _, (_, task) in (*watched.of("pruning"), *watched.of("chosen"))]
    assert set(tuned + pruned) <= {(8, 8)}
    watched.check(2, [8] * left)
    assert f"task {3 - left} of 2: {task}, taken up again\n" in text_of(watched.stream)


def test_bars_show_rate_and_score_of_the_last_epoch_of_this_task():
    bars = Bars(io.StringIO())
    bars.show(PLAN)
    one = bars._progress.tasks[1]
    assert one.fields == {"unit": "epochs", "rate": ""}
    bars.show({**EPOCH, "candidate": 0, "seconds": 0.25})
    assert one.fields["rate"] == "4/s  91.67 validation"
    bars.show({**EPOCH, "candidate": 0, "seconds": 0.0})
    assert one.fields["rate"] == "  91.67 validation"
    bars.show({**PLAN, "number": 3})
    assert one.fields == {"unit": "epochs", "rate": ""}
    assert one.description == "task 3 of 3, a"
    bars.close()


def test_bars_tell_in_lines_only_what_is_worth_keeping(tmp_path):
    watched = Watched()
    experiment("a", "b", alphas=(1e-4, 1e-3)).run(tmp_path / "run", on_event=watched.show)
    watched.bars.say("hello")
    lines = text_of(watched.stream).splitlines()
    assert [line.split(":")[0] for line in lines] == ["learnt a", "learnt b", "hello"]
    watched.bars.show({"event": "full", "task": "c", "reason": "no neuron is free"})
    assert text_of(watched.stream).splitlines()[-1] == "the network is full: no neuron is free"
    watched.bars.close()


@pytest.mark.parametrize("name", ["[bold]a[/bold]", "[/red]", "[link=x]y", ":bomb: [1, 2]"])
def test_bars_show_names_literally(name):
    stream = io.StringIO()
    bars = Bars(stream)
    bars.show({**PLAN, "task": name, "event": "resumed"})
    bars.show({**TASK, "task": name})
    bars.say(f"hello {name}")
    bars.close()
    lines = text_of(stream).splitlines()
    assert lines[:3] == [
        f"task 2 of 3: {name}, taken up again",
        f"learnt {name}: validation 91.67, test 90.33; new neurons fc1 3, fc2 0",
        f"hello {name}",
    ]
    assert lines[4].startswith(f"task 2 of 3, {name} ━")


def test_a_line_longer_than_the_terminal_is_not_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    bars = Bars(stream)
    bars.say("word " * 30)
    assert stream.getvalue() == "word " * 30 + "\n"


def test_bars_that_have_seen_no_task_leave_no_trace():
    stream = io.StringIO()
    bars = Bars(stream)
    bars.show({"event": "run", "tasks": ["a"]})
    bars.close()
    bars.close()
    assert stream.getvalue() == ""


class Terminal:
    """A pseudo terminal; `shown` is what has been written to it when it is closed."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w")
        self._chunks: list[bytes] = []
        # A terminal that nobody reads stops whoever writes to it.
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._master, 4096):
                self._chunks.append(chunk)
        except OSError:  # Linux says in this way that the other side is closed.
            pass

    def close(self) -> str:
        self.stream.close()
        self._thread.join()
        os.close(self._master)
        return b"".join(self._chunks).decode()


HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def test_bars_are_drawn_on_a_terminal_which_is_then_left_as_it_was(tmp_path):
    terminal = Terminal()
    bars = Bars(terminal.stream)
    made = experiment("[bold]a", "b", alphas=(1e-4, 1e-3))
    try:
        made.run(tmp_path / "run", on_event=bars.show)
    finally:
        bars.close()
    shown = terminal.close()
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    assert shown.index(HIDE_CURSOR) < shown.index(SHOW_CURSOR)
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)
    assert re.search(r"task 1 of 2, \[bold\]a ━+ +0/8 +epochs", plain)
    assert re.search(r"learnt \[bold\]a: validation [\d.]+, test [\d.]+; new", plain)
    run, task = plain.splitlines()[-2:]
    assert re.match(r"run +━+ 16/16 epochs ", run)
    assert re.match(r"task 2 of 2, b ━+ 8/8 +epochs [\d.e+]+/s  [\d.]+ validation ", task)


def test_a_terminal_is_not_touched_before_there_is_something_to_show():
    # A recipe may be refused, and nobody closes the bars.
    terminal = Terminal()
    bars = Bars(terminal.stream)
    bars.show({"event": "run", "tasks": ["a"]})
    assert terminal.close() == ""


def test_downloads_are_told_in_lines():
    stream = io.StringIO()
    lines = Lines(stream)
    for num_bytes in (0, 500_000, 2_500_000):
        lines.download("train.gz", num_bytes, 2_500_000)
    lines.download("test.gz", 0, None)
    told = [line.split("] ", 1)[1] for line in stream.getvalue().splitlines()]
    assert told == ["downloading train.gz, 2.5 MB", "downloading test.gz"]


def test_downloads_have_bars():
    stream = io.StringIO()
    bars = Bars(stream)
    for num_bytes in (0, 1_000_000, 2_500_000):
        bars.download("[train].gz", num_bytes, 2_500_000)
    bars.close()
    assert re.search(r"\[train\]\.gz ━+ 2\.5/2\.5 MB", text_of(stream))


class Gone(io.StringIO):
    """A terminal that has been closed."""

    def isatty(self):
        return True

    def write(self, text):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_is_gone_does_not_end_a_run(tmp_path):
    bars = Bars(Gone())
    result = experiment("a").run(tmp_path / "run", on_event=bars.show)
    bars.say("hello")
    bars.close()
    assert result["finished"] is True


def test_a_rate_is_short():
    found = [per_second(seconds) for seconds in (0.0, 1e-6, 0.000943, 0.02, 3.0, 1234.0)]
    assert found == ["", "1000000/s", "1060/s", "50/s", "0.333/s", "0.00081/s"]
