import math
from dataclasses import replace

import pytest

from clnp.terminal.status import Scene, View
from clnp.terminal.tables import ASCII, BLOCKS, Screen, cells
from clnp.terminal.watch import closing, frame, line, unfinished

VIEW = View(
    run="runs/mine",
    status="running",
    recipe="permuted-digits",
    method="clnp",
    seed=0,
    num_tasks=10,
    num_learnt=2,
    task="digits permuted 3",
    number=3,
    phase="training",
    candidate=1,
    num_candidates=2,
    epoch=4,
    num_epochs=40,
    losses=[1.0, 0.5, 0.25, 0.125],
    scores=[50.0, 80.0, 90.0, 95.5],
    epochs_done=110,
    epochs_of_run=440,
    seconds=12.0,
    seconds_left=170.0,
    silent=2.0,
    epoch_seconds=0.1,
    tasks=[{"task": "digits permuted 1", "test_score": 96.1}, {"task": "b", "test_score": None}],
    average=96.1,
    sizes={"fc1": 400, "fc2": 40},
    claimed={"fc1": [100, 100], "fc2": [20, 10]},
)
DONE = replace(
    VIEW, status="finished", phase=None, task=None, number=None, num_learnt=10, epoch=None
)
FAILURE = replace(VIEW, status="failed", reason="every candidate diverged")
STOP = replace(VIEW, status="stopped")
START = View("runs/mine", status="running", method="clnp", seed=0, num_tasks=10, silent=0.0)


def scene(*views, kind="run", labels=None):
    return Scene("runs/mine", kind, views, labels or [f"seed {n}" for n in range(len(views))])


def shown(*views, kind="run", **options):
    return frame(scene(*views, kind=kind), screen=Screen(**options))


def test_a_run_in_training():
    lines = shown(VIEW)
    assert lines[0] == "runs/mine: permuted-digits, clnp, seed 0"
    assert lines[1] == "task 3 of 10: digits permuted 3"
    assert lines[2].endswith("  25 %, about 3 min left")
    assert lines[2].count("━") == 10
    assert lines[3].endswith("  candidate 1 of 2, epoch 4 of 40")
    assert lines[4].split() == ["loss", "0.125", "█▄▂▁"]
    assert lines[5].split() == ["validation", "95.50", "▁▆▇█"]
    assert lines[6] == "learnt: digits permuted 1 96.10, b; average 96.10"
    assert lines[7].startswith("fc1  200 of 400 free  ")
    assert lines[8].startswith("fc2    10 of 40 free  ")
    assert lines[8].count("·") == pytest.approx(lines[8].count("▓"), abs=1)
    assert lines[9:] == ["last heard of 2 s ago"]


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (
            VIEW,
            "task 3 of 10, digits permuted 3: candidate 1 of 2, epoch 4 of 40, loss 0.125, "
            "validation 95.50; 25 % done, about 3 min left",
        ),
        (
            replace(VIEW, phase="pruning", epoch=None, at_least=True),
            "task 3 of 10, digits permuted 3: candidate 1 of 2, pruning; 25 % done, at least 3 min "
            "left",
        ),
        (
            replace(VIEW, phase="fine-tuning", round=2, at_most=True),
            "task 3 of 10, digits permuted 3: fine-tuning round 2, epoch 4 of 40, loss 0.125, "
            "validation 95.50; 25 % done, at most 3 min left",
        ),
        (
            replace(VIEW, phase="fine-tuning", round=2, seconds_left=None),
            "task 3 of 10, digits permuted 3: fine-tuning round 2, epoch 4 of 40, loss 0.125, "
            "validation 95.50; 25 % done",
        ),
        (
            replace(VIEW, candidate=None, epoch=None, losses=[], scores=[]),
            "task 3 of 10, digits permuted 3: starting; 25 % done, about 3 min left",
        ),
        (replace(VIEW, task=None), "2 of 10 tasks learnt"),
        (START, "starting"),
        (View("runs/mine"), "waiting for runs/mine, which cannot be read yet"),
        (DONE, "finished: 10 of 10 tasks"),
        (FAILURE, "failed after 2 of 10 tasks: every candidate diverged"),
        (STOP, "stopped after 2 of 10 tasks; clnp resume runs/mine goes on"),
    ],
)
def test_a_run_in_a_line(view, text):
    assert line(scene(view)) == text


def test_a_run_that_is_not_there():
    found = Scene("runs/mine", None)
    assert line(found) == "waiting for runs/mine, where there is no run yet"
    assert frame(found, screen=Screen()) == [line(found)]


def test_silence_is_told_of():
    late = replace(VIEW, silent=180.0)
    assert shown(late)[-1] == (
        "no news for 3 min; if it was stopped, clnp resume runs/mine goes on"
    )
    # An epoch takes two minutes: that is no silence yet.
    assert shown(replace(late, epoch_seconds=120.0))[-1] == "last heard of 3 min ago"


def test_a_run_that_has_ended():
    assert shown(DONE)[1] == "finished: 10 of 10 tasks in 12 s"
    assert not any("heard" in text for text in shown(DONE))
    assert shown(FAILURE)[1] == "failed after 2 of 10 tasks: every candidate diverged"
    full = replace(DONE, full="no neuron of fc2 is free. Widen it")
    assert "full: no neuron of fc2 is free" in shown(full)


def test_a_run_that_has_hardly_begun():
    assert shown(START)[:2] == ["runs/mine: an experiment, clnp, seed 0", "starting"]
    assert shown(replace(VIEW, epoch=None, candidate=None, losses=[], scores=[]))[3] == (
        "now  starting"
    )


def test_many_layers_and_tasks_are_left_out():
    many = replace(
        VIEW,
        sizes={f"layer{number}": 9 for number in range(40)},
        claimed={},
        tasks=[{"task": f"task {number}", "test_score": 90.0} for number in range(50)],
    )
    lines = shown(many)
    assert "... 35 more" in lines
    told = next(text for text in lines if text.startswith("learnt: "))
    assert told.startswith("learnt: 47 before, task 47 90.00")
    assert told.endswith("task 49 90.00; average 96.10")
    assert len(shown(many, height=8)) == 7


def test_curves_that_are_not_finite():
    odd = replace(VIEW, losses=[1.0, math.nan], scores=[math.inf, math.nan], epoch=2)
    assert [text.split()[1] for text in shown(odd)[4:6]] == ["nan", "nan"]
    assert "loss nan, validation nan" in line(scene(odd))


@pytest.mark.parametrize("width", [20, 39, 40, 60, 79, 120])
@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_every_line_fits(width, glyphs):
    names = ("a <b> & \"c\" 'd'", "数字の分類" * 9, "x" * 300, "\x1b[31mred\x07\n", " ", "é")
    for name in names:
        odd = replace(
            VIEW,
            run=f"runs/{name}",
            task=name,
            recipe=name,
            sizes={name: 10**6},
            claimed={name: [5]},
            tasks=[{"task": name, "test_score": 1.0}] * 3,
            reason=name,
        )
        for status in ("waiting", "running", "finished", "failed", "stopped"):
            view = replace(odd, status=status)
            for kind, views in (("run", [view]), ("series", [view] * 9)):
                found = scene(*views, kind=kind, labels=[name] * len(views))
                lines = frame(found, screen=Screen(width, 24, glyphs))
                assert 0 < len(lines) <= 23
                assert all(cells(text) <= width and text.isprintable() for text in lines)
                if glyphs is ASCII and name.isascii():
                    assert all(text.isascii() for text in lines)


def test_a_line_for_each_of_several_runs():
    views = (DONE, FAILURE, VIEW, START, View("runs/mine/seed4"))
    lines = shown(*views, kind="series", glyphs=ASCII)
    assert lines[0] == "runs/mine: 1 of 5 runs finished"
    assert [text.split(" %  ")[1] for text in lines[1:6]] == [
        "10 of 10 tasks in 12 s, average 96.10",
        "failed: every candidate diverged",
        "task 3 of 10, about 3 min left",
        "starting",
        "waiting",
    ]
    assert lines[1].startswith("seed 0  #################### 100 %")
    assert lines[3].startswith("seed 2  #####---------------  25 %")
    wide = shown(*views, kind="series", width=120)[3]
    assert wide.endswith(" %  task 3 of 10, candidate 1 of 2, epoch 4 of 40, about 3 min left")
    assert lines[-1] == "last heard of 0 s ago"
    silent = [replace(view, silent=200.0) for view in (DONE, START, VIEW)]
    told = shown(*silent, kind="series")
    assert told[-1] == "no news for 3 min; if it was stopped, clnp resume runs/mine goes on"
    assert told[3].endswith("task 3 of 10, no news for 3 min")


@pytest.mark.parametrize("width", [40, 59, 60, 79, 80, 120])
def test_the_bar_gives_way_and_the_number_never(width):
    ewc = replace(DONE, num_tasks=5, num_learnt=5, seconds=20.0)
    found = Scene(
        "runs/mine",
        "comparison",
        [ewc, ewc, VIEW, FAILURE, replace(FAILURE, reason="x" * 200)],
        ["clnp, seed 0", "superposition, seed 10", "ewc, seed 0", "si, seed 0", "hat, seed 0"],
    )
    lines = frame(found, screen=Screen(width))[1:6]
    assert [text.split(" %  ")[0].split()[-1] for text in lines] == ["100", "100", "25", "25", "25"]
    assert len({text.index(" %  ") for text in lines}) == 1
    told = [text.split(" %  ")[1] for text in lines]
    assert told[0].startswith("5 of 5 tasks")
    assert told[2].startswith("task 3 of 10")
    assert not any("…" in text for text in told[:3])
    if width == 60:
        assert told[0] == "5 of 5 tasks in 20 s"
        assert lines[0].count("━") == 8
    if width >= 79:
        assert told[0] == "5 of 5 tasks in 20 s, average 96.10"
        assert lines[0].count("━") == min(20, width - 22 - 9 - 1 - cells(told[0]))


def test_of_many_runs_those_that_are_under_way_are_shown():
    views = [DONE] * 30 + [VIEW] * 3 + [View("x")] * 30
    lines = shown(*views, kind="series", height=16)
    assert len(lines) <= 15
    assert sum("task 3 of 10" in text for text in lines) == 3
    assert any(text.startswith("... 52 more") for text in lines)


def test_several_runs_in_a_line():
    assert line(scene(DONE, VIEW, FAILURE, START, kind="series")) == (
        "1 of 4 runs finished; seed 1 25 % (task 3 of 10); seed 2 failed; seed 3 0 % (starting)"
    )


def test_a_run_between_two_tasks_is_not_starting():
    between = replace(VIEW, task=None, number=None, phase=None, num_learnt=9)
    found = scene(between, START, kind="series")
    assert line(found) == (
        "0 of 2 runs finished; seed 0 25 % (9 of 10 tasks learnt); seed 1 0 % (starting)"
    )
    assert frame(found, screen=Screen())[1].endswith(" 25 %  9 of 10 tasks learnt")


def test_the_last_word():
    assert closing(scene(DONE)) == (
        "finished: 10 of 10 tasks, average 96.10; clnp inspect runs/mine shows all"
    )
    assert closing(scene(FAILURE)) == "failed after 2 of 10 tasks: every candidate diverged"
    assert closing(scene(DONE, FAILURE, kind="series")).splitlines() == [
        "failed: seed 1: every candidate diverged",
        "1 of 2 runs finished; clnp inspect runs/mine shows all",
    ]
    assert closing(scene(STOP)) == "stopped after 2 of 10 tasks; clnp resume runs/mine goes on"
    assert closing(scene(DONE, STOP, kind="series")) == (
        "1 of 2 runs finished; clnp inspect runs/mine shows all, clnp resume runs/mine goes on"
    )
    assert line(scene(DONE, STOP, kind="series")) == "1 of 2 runs finished; seed 1 stopped"
    assert shown(STOP)[1] == "stopped after 2 of 10 tasks; clnp resume runs/mine goes on"
    assert shown(DONE, STOP, kind="series")[2].endswith("stopped after 2 of 10 tasks")


def test_how_several_runs_stand_that_are_not_all_finished():
    assert unfinished(scene(DONE, DONE, kind="series")) == []
    assert unfinished(scene(View("a"), View("b"), kind="series")) == [
        "none has begun; clnp resume runs/mine goes on"
    ]
    assert unfinished(scene(DONE, VIEW, kind="series")) == [
        "seed 1 25 % (task 3 of 10)",
        "last heard of 2 s ago",
    ]
    assert unfinished(scene(DONE, STOP, kind="series")) == [
        "seed 1 stopped",
        "clnp resume runs/mine goes on",
    ]
    assert unfinished(scene(DONE, FAILURE, kind="series")) == [
        "seed 1 failed: every candidate diverged",
        "clnp resume runs/mine tries again",
    ]


def test_a_run_that_failed_before_its_tasks_were_known():
    assert line(scene(View("a", status="failed", reason="no"))) == "failed after 0 tasks: no"
