import json

import pytest

from clnp import records
from clnp.core.layers.ledger import Usage
from clnp.core.pruning.plan import CurvePoint, PruningPlan
from clnp.plain import UnreadableError, read, to_json, to_plain
from clnp.records import (
    KINDS,
    CandidatePruned,
    EpochEnded,
    Event,
    RunConfig,
    RunResult,
    RunStarted,
    TaskDescription,
    TaskEnded,
    event_to_plain,
    read_event,
    task_of,
)
from support.paths import ROOT

PLAN = PruningPlan(
    "a",
    {"fc": 4},
    {"fc": (0, 2)},
    {"fc": 0.5},
    {"fc": 1},
    91.5,
    92.0,
    1.0,
    (CurvePoint({"fc": 0.5}, {"fc": 2}, 91.5),),
)
EPOCH = EpochEnded(
    task="a",
    candidate=0,
    num_epochs=2,
    number=1,
    loss=0.1,
    penalised_loss=0.2,
    score=9.0,
    seconds=1,
)


@pytest.mark.parametrize(
    "event",
    [
        RunStarted(
            config=RunConfig(1, (TaskDescription("a"),), recipe="mine", data="/data"), at=0.0
        ),
        EPOCH,
        CandidatePruned(task="a", candidate=1, plan=PLAN, at=3.0),
        TaskEnded(task="a", new={"fc": 2}, score=9.0),
    ],
)
def test_an_event_is_read_as_it_was_written(event):
    plain = json.loads(to_json(event_to_plain(event)))
    assert plain["event"] == event.kind
    assert read_event(plain) == event


def test_every_event_has_its_own_kind():
    classes = [
        each
        for each in vars(records).values()
        if isinstance(each, type) and issubclass(each, Event) and each is not Event and each.logged
    ]
    assert sorted(KINDS) == sorted(each.kind for each in classes)
    assert all(KINDS[each.kind] is each for each in classes)


def test_an_epoch_is_either_of_a_candidate_or_of_a_round():
    plain = event_to_plain(EPOCH)
    assert plain["candidate"] == 0
    assert "round" not in plain
    assert "at" not in plain


@pytest.mark.parametrize("data", [3, {}, {"event": 5}, {"event": "later"}, {"event": "epoch"}])
def test_a_damaged_event_is_an_error(data):
    with pytest.raises(UnreadableError):
        read_event(data)


def test_the_task_of_an_event():
    assert task_of(EPOCH) == "a"
    assert task_of(RunStarted(config=RunConfig())) is None


def test_a_config_from_python_has_neither_recipe_nor_data():
    assert not {"recipe", "data"} & set(to_plain(RunConfig()))


def test_settings_have_defaults():
    settings = RunConfig(learner={"margin": 2.0, "fine_tuning": {"rounds": 3}}).settings
    assert (settings.margin, settings.per_layer, settings.fine_tuning.rounds) == (2.0, False, 3)


def test_committed_results_can_be_read():
    files = sorted((ROOT / "results").rglob("seed*.json"))
    assert files
    for file in files:
        data = json.loads(file.read_text(encoding="utf-8"))["result"]
        result = read(RunResult, data)
        assert len(result.tasks) == len(data["tasks"]) > 0
        assert [list(row) for row in result.scores] == data["scores"]
        assert len(result.capacity.usages) == len(data.get("capacity", {}).get("usages", ()))
        assert all(isinstance(usage, Usage) for usage in result.capacity.usages)
