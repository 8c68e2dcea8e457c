from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clnp import Experiment, LearnerConfig, Objective, Task, Training
from clnp.errors import ArgumentError
from clnp.methods.single import Finetune
from clnp.training.fit import joined


class Both(NamedTuple):
    logits: Tensor
    hidden: Tensor


@dataclass
class Record:
    logits: Tensor
    note: str = "same for all"


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: x,
        lambda x: {"logits": x, "more": [x + 1, (x,)], "none": None},
        lambda x: Both(x, x + 1),
        lambda x: Record(x),
        lambda x: [x, {"a": Record(x)}],
    ],
)
def test_outputs_of_batches_are_joined_however_they_are_nested(nest):
    parts = torch.arange(6.0).reshape(3, 2).split(2)
    pairs = [(nest(part), torch.ones(len(part))) for part in parts]
    outputs, targets = joined(pairs)
    whole = nest(torch.cat(parts))
    assert type(outputs) is type(whole)
    assert repr(outputs) == repr(whole)
    assert len(targets) == 3


def test_outputs_that_are_not_of_samples_are_refused():
    with pytest.raises(ArgumentError, match="returns a tensor without an axis, such as a loss"):
        joined([({"loss": torch.tensor(1.0)}, torch.ones(2))])


class Nested(nn.Module):
    """A network that returns more than its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.out(torch.relu(self.hidden(x))), "none": None}


@pytest.mark.parametrize("baseline", [None, Finetune()])
def test_networks_that_return_dictionaries_learn(tmp_path, baseline):
    own = Objective(
        "own",
        lambda outputs, y: F.cross_entropy(outputs["logits"], y),
        lambda outputs, y: 100 * (outputs["logits"].argmax(1) == y).double().mean().item(),
        highest=100.0,
    )
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    y = (x[:, 0] > 0).long()
    tasks = [
        Task(name, (x[:200], y[:200]), test=(x[200:], y[200:]), num_outputs=2, objective=own)
        for name in "ab"
    ]
    config = LearnerConfig(margin=5.0, training=Training(epochs=10, lr=0.02, batch_size=32))
    result = Experiment(Nested(), x[:2], tasks, config, baseline=baseline).run(tmp_path / "run")
    assert min(result["scores"][-1]) > 80
    if baseline is None:
        assert [task["unchanged"] for task in result["tasks"]] == [True, True]
    assert result["tasks"][0]["outputs"] != result["tasks"][1]["outputs"]
