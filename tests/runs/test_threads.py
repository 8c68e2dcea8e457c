"""A run uses one thread if its batches are small, and restores the user's number."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import clnp
from clnp import Experiment, LearnerConfig, Task, Training
from clnp.errors import ArgumentError
from clnp.records import TaskEnded
from clnp.runs.directory import last_environment, read_environments
from clnp.runs.experiment import RunLoop
from clnp.runs.threads import SMALL, fitting
from support.paths import ROOT

OWN = 3
"""The user's number of threads, which no rule would choose."""


@pytest.fixture(autouse=True)
def _own_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(OWN)
    yield
    torch.set_num_threads(before)


def task(name):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    return Task(name, (x[:30], x[:30].argmax(1)), test=(x[30:], x[30:].argmax(1)))


def experiment(names="a", **options):
    torch.manual_seed(0)
    training = Training(epochs=1, lr=0.01, batch_size=8)
    config = LearnerConfig(margin=5.0, training=training)
    model = clnp.models.MLP(6, (8, 8), 6)
    return Experiment(model, torch.zeros(2, 6), [task(n) for n in names], config, **options)


def run(made, path):
    """Run an experiment, and return the numbers of threads at its events."""
    used = set[int]()
    made.run(path, on_event=lambda event: used.add(torch.get_num_threads()))
    return used


def test_a_small_network_runs_on_one_thread_and_the_number_is_restored(tmp_path):
    assert run(experiment(), tmp_path / "run") == {1}
    assert torch.get_num_threads() == OWN
    assert last_environment(tmp_path / "run").num_threads == 1


def test_a_large_batch_runs_on_the_number_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr("clnp.runs.threads.SMALL", 8 * (6 * 8 + 8 * 8 + 8 * 6))
    assert run(experiment(), tmp_path / "run") == {OWN}
    monkeypatch.setattr("clnp.runs.threads.SMALL", 8 * (6 * 8 + 8 * 8 + 8 * 6) + 1)
    assert run(experiment(), tmp_path / "small") == {1}


def test_a_number_that_is_given_is_used(tmp_path):
    assert run(experiment(threads=2), tmp_path / "run") == {2}
    assert torch.get_num_threads() == OWN


def test_the_number_is_restored_after_an_error(tmp_path):
    def fail(event):
        if isinstance(event, TaskEnded):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment().run(tmp_path / "run", on_event=fail)
    assert torch.get_num_threads() == OWN


def test_a_resumed_run_keeps_its_number(tmp_path):
    experiment(threads=2).run(tmp_path / "run")
    assert run(experiment("ab"), tmp_path / "run") == {2}
    assert run(experiment("abc", threads=1), tmp_path / "run") == {1}
    found = [each.num_threads for each in read_environments(tmp_path / "run")]
    assert found == [2, 2, 1]


def test_a_run_is_verified_with_its_number(tmp_path):
    experiment(threads=2).run(tmp_path / "run")
    assert clnp.verify(experiment(), tmp_path / "run").exact
    assert torch.get_num_threads() == OWN


@pytest.mark.parametrize("given", [0, -1, 1025, 1.5, True, "2"])
def test_a_number_of_threads_is_a_whole_number(given):
    message = f"threads is {given!r}. It must be a whole number, 1 to 1024"
    with pytest.raises(ArgumentError) as caught:
        experiment(threads=given)
    assert str(caught.value).rstrip(".") == message


def test_multiplications_count_and_parameters_do_not():
    # The same number of weights, at one position and at 100.
    few, many = torch.zeros(2, 3, 3, 3), torch.zeros(2, 3, 12, 12)
    layer = nn.Conv2d(3, 10, 3)
    largest = SMALL // (3 * 10 * 9)
    assert fitting(layer, few, largest) == 1
    assert fitting(layer, few, largest + 1) is None
    assert fitting(layer, many, largest) is None
    assert fitting(layer, many, largest // 100) == 1


def test_counting_leaves_the_model_and_random_numbers_as_they_are():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten())
    before = [tensor.clone() for tensor in model.state_dict().values()]
    state = torch.get_rng_state()
    fitting(model, torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)), 8)
    assert model.training
    pairs = zip(model.state_dict().values(), before, strict=True)
    assert all(torch.equal(now, then) for now, then in pairs)
    assert torch.equal(torch.get_rng_state(), state)


def test_inputs_may_have_names():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 5)

        def forward(self, *, left, right):
            return self.layer(left) + self.layer(right)

    example = {"left": torch.zeros(1, 4), "right": torch.zeros(1, 4)}
    assert fitting(Sum(), example, SMALL // 40 - 1) == 1
    assert fitting(Sum(), example, SMALL // 40) is None


def test_the_documentation_has_the_rule():
    rule = f"{SMALL / 1e6:.0f} million multiplications"
    assert rule in " ".join((ROOT / "docs" / "speed.md").read_text().split())
    assert rule in " ".join(Experiment.__doc__.split())


def test_nothing_is_counted_for_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr("clnp.runs.experiment.fitting", pytest.fail)
    method, run = SimpleNamespace(device=torch.device("cuda")), SimpleNamespace(path=tmp_path)
    loop = SimpleNamespace(experiment=experiment(), run=run, method=method)
    assert RunLoop._num_threads(loop) is None
