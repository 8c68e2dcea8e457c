"""Copies whose layers compute nothing."""

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from clnp.core.structure.discover import discover
from clnp.core.structure.sketch import Sketcher
from clnp.errors import GraphError
from support.assembled import Assembled

IMAGES = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
LAYERS = {
    "Conv2d": (nn.Conv2d(3, 8, 3, stride=2, padding=1), (IMAGES,)),
    "depthwise": (nn.Conv2d(3, 3, 3, groups=3), (IMAGES,)),
    "grouped": (nn.Conv2d(4, 8, 1, groups=2), (torch.ones(2, 4, 5, 5),)),
    "Linear": (nn.Linear(9, 4), (IMAGES,)),
    "BatchNorm2d": (nn.BatchNorm2d(3), (IMAGES,)),
    "PReLU": (nn.PReLU(3), (IMAGES,)),
    "LayerNorm": (nn.LayerNorm(9), (IMAGES,)),
    "attention": (nn.MultiheadAttention(8, 2), (torch.ones(5, 2, 8),) * 3),
    "LSTM": (nn.LSTM(9, 4), (IMAGES[0],)),
    "Embedding": (nn.Embedding(5, 4), (torch.tensor([[1, 2, 3]]),)),
}


def forms(outputs):
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return [
        forms(each) if isinstance(each, tuple) else (each.shape, each.dtype) for each in tensors
    ]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("training", [False, True])
def test_layers_have_the_shapes_of_their_outputs_and_nothing_else(name, training):
    layer, inputs = LAYERS[name]
    model = nn.ModuleDict({"layer": layer}).train(training)
    expected = layer(*inputs)
    sketch = Sketcher(model, ["layer"]).sketch()["layer"]
    assert not any(map(torch.count_nonzero, sketch.parameters()))
    outputs = sketch(*inputs)
    assert forms(outputs) == forms(expected)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    assert len(first.unique()) == 1


def test_an_output_depends_on_the_input():
    layer = Sketcher(nn.Sequential(nn.Linear(9, 4)), ["0"]).sketch()[0]
    assert layer(torch.ones(2, 9)).unique() == 2
    assert layer(torch.zeros(2, 9)).unique() == 1


def test_inputs_that_do_not_fit_raise_the_error_of_the_layer():
    layer = Sketcher(nn.Sequential(nn.Linear(9, 4)), ["0"]).sketch()[0]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        layer(torch.ones(2, 8))
    with pytest.raises(RuntimeError, match="same dtype"):
        layer(torch.ones(2, 9, dtype=torch.float64))


class Peculiar(nn.Module):
    """A layer that only runs on the device of its input: it reads a value."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(9))

    def forward(self, x):
        return x * self.scale if x.sum().item() != 0 else x


def test_a_layer_that_cannot_be_outlined_computes_with_zeros():
    layer = Sketcher(nn.Sequential(Peculiar()), ["0"]).sketch()[0]
    assert torch.equal(layer(torch.ones(2, 9)), torch.zeros(2, 9))


def test_a_refused_model_never_computes(monkeypatch):
    """The problems of a large model are listed without a pass through it."""
    model = torchvision.models.vit_b_16(image_size=64)
    monkeypatch.setattr(F, "multi_head_attention_forward", _on_meta(F.multi_head_attention_forward))
    monkeypatch.setattr(F, "layer_norm", _on_meta(F.layer_norm))
    with pytest.raises(GraphError) as caught:
        discover(model, torch.zeros(1, 3, 64, 64))
    assert len(caught.value.problems) == 40


def _on_meta(function):
    def run(x, *args, **kwargs):
        assert x.is_meta
        return function(x, *args, **kwargs)

    return run


def test_a_model_that_only_fails_as_a_sketch_is_run():
    """Weights of zeros are a reason to fail that the model itself does not have."""

    def run(m, x):
        if not m.fc.weight.any():
            raise OverflowError
        return m.fc(m.first(x))

    model = Assembled(run, first=nn.Linear(12, 8), fc=nn.Linear(8, 2))
    with pytest.raises(GraphError) as caught:
        discover(model, torch.zeros(2, 12))
    assert "OverflowError" not in str(caught.value)
    assert "uses weights outside their module" in str(caught.value)


@pytest.mark.parametrize("number", range(15))
def test_discovery_can_be_interrupted_in_every_pass(number):
    passes = iter(range(number + 1))

    def run(m, x):
        if next(passes) == number:
            raise KeyboardInterrupt
        return m.fc(m.first(x))

    model = Assembled(run, first=nn.Linear(12, 8), fc=nn.Linear(8, 2))
    with pytest.raises(KeyboardInterrupt):
        discover(model, torch.zeros(2, 12))
