import gc
import warnings

import pytest
import torch
from torch import nn

from clnp import Learner
from clnp.records import EpochEnded
from clnp.training.batches import Batches
from clnp.training.cuda_graph import WARM_UP, CapturedStep
from clnp.training.optimizer import can_be_captured
from support.learning import config as made_config, moments, network as made_network, reopened, task

pytestmark = pytest.mark.gpu


def network():
    layers = nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 3)
    return made_network(device="cuda", layers=layers)


def config(cuda_graph=True, **training):
    options = {"epochs": 10, "lr": 0.01, "alpha": 1e-4, "schedule": "cosine", **training}
    return made_config(training={**options, "cuda_graph": cuda_graph})


def test_each_call_is_one_step():
    total = torch.zeros((), device="cuda")
    values = torch.arange(1000.0, device="cuda")

    def step(indices):
        total.add_(values[indices].sum())

    captured = CapturedStep(step, 10, torch.device("cuda"))
    expected = 0.0
    for indices in torch.randperm(1000, device="cuda").split(10)[:20]:
        captured(indices)
        captured(indices[:3])
        expected += indices.sum().item() + indices[:3].sum().item()
    assert total.item() == expected
    assert captured._graph is not None


def test_each_step_draws_new_random_numbers_that_follow_the_seed():
    drawn = torch.zeros(4, device="cuda")
    captured = CapturedStep(lambda indices: drawn.copy_(torch.rand(4, device="cuda")), 1, "cuda")
    indices = torch.zeros(1, dtype=torch.long, device="cuda")
    for _ in range(WARM_UP + 1):
        captured(indices)
    sequences = []
    for _ in range(2):
        torch.manual_seed(7)
        sequence = []
        for _ in range(3):
            captured(indices)
            sequence.append(drawn.tolist())
        sequences.append(sequence)
    assert sequences[0] == sequences[1]
    assert sequences[0][0] != sequences[0][1] != sequences[0][2]


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "RMSprop", "SGD"])
def test_captured_training_agrees_with_plain_training(optimizer, precision):
    losses = {}
    for cuda_graph in (False, True):
        net, events = network(), []
        lr = 0.3 if optimizer == "SGD" else 0.01
        options = config(cuda_graph, optimizer=optimizer, precision=precision, clip_norm=1.0, lr=lr)
        learner = Learner(net, options, on_event=events.append)
        first, second = task("a"), task("b", seed=1)
        learner.learn(first)
        answer = net(first.test[0].cuda(), task="a")
        report = learner.learn(second)
        assert report.test_score > 65
        assert torch.equal(net(first.test[0].cuda(), task="a"), answer)
        net.verify()
        losses[cuda_graph] = [e.loss for e in events if isinstance(e, EpochEnded)]
    tolerance = 0.02 if precision == "float32" else 0.1
    assert losses[True][:10] == pytest.approx(losses[False][:10], rel=tolerance)


def test_captured_training_resumes():
    learner = Learner(network(), config())
    [(progress, open_state)] = moments(
        learner, task(), lambda progress: [len(x.fit.epochs) for x in progress.lanes] == [4]
    )
    report = Learner(reopened(network(), open_state), config()).learn(task(), progress)
    assert report.candidates[0].num_epochs == 10
    assert report.test_score > 65


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "float16"},
        {"optimizer": "SGD", "lr": 0.1, "optimizer_options": {"foreach": True}},
        {"optimizer": "Adagrad", "lr": 0.1},
        {"cuda_graph": False},
    ],
)
def test_training_that_cannot_be_captured_runs_as_it_is(options):
    made = config(**options)
    data = Batches(torch.device("cuda"), torch.zeros(2, 6).cuda(), torch.zeros(2).cuda())
    assert not can_be_captured(made.training, data)
    assert Learner(network(), made).learn(task()).test_score > 65


class Ring:
    """A reference to a graph, and to itself."""

    def __init__(self, graph):
        self.graph, self.ring = graph, self


def test_collecting_an_old_graph_does_not_break_a_capture():
    indices, rings = torch.arange(4, device="cuda"), []
    total = torch.zeros((), device="cuda")

    def step(indices):
        rings.clear()  # Garbage for the next collection.
        _ = [[] for _ in range(2000)]
        total.add_(indices.sum())

    before = gc.get_threshold()
    for _ in range(3):
        captured = CapturedStep(step, 4, torch.device("cuda"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(WARM_UP):
                captured(indices)
            gc.set_threshold(10)
            try:
                captured(indices)
            finally:
                gc.set_threshold(*before)
        assert captured._graph is not None
        rings.append(Ring(captured))


class ReadsOnHost(nn.Module):
    """Reads an input on the host in every step, which cannot be captured."""

    def forward(self, x):
        return torch.tanh(x) if x.abs().max().item() > 1e9 else x


def test_a_step_that_cannot_be_captured_runs_as_it_is():
    layers = ReadsOnHost(), nn.Linear(6, 40), nn.ReLU(), nn.Dropout(0.1), nn.Linear(40, 3)
    net = made_network(device="cuda", layers=layers)
    with pytest.warns(UserWarning, match="run without cuda_graph"):
        assert Learner(net, config()).learn(task()).test_score > 65
    # Later steps are captured again.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Learner(network(), config()).learn(task()).test_score > 65


def test_a_failed_capture_changes_neither_stream_nor_random_numbers():
    def step(indices):
        torch.rand(3, device="cuda")
        indices.sum().item()

    captured = CapturedStep(step, 4, torch.device("cuda"))
    indices = torch.arange(4, device="cuda")
    stream = torch.cuda.current_stream()
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(WARM_UP + 2):
                captured(indices)
        drawn.append(torch.rand(2, device="cuda").tolist())
    assert drawn[0] == drawn[1]
    assert torch.cuda.current_stream() == stream
    assert captured._graph is None
