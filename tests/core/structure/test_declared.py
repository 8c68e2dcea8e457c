"""What is refused without running the model."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from clnp.core.structure.declared import validate
from clnp.core.structure.discover import discover
from clnp.errors import GraphError
from support.assembled import Assembled

VECTORS = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return (x * self.scale).sum(1, keepdim=True) * x


class OwnForward(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 2


class OwnConvForward(nn.Conv1d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


def hooked():
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda module, args, output: output * 2)
    return layer


def patched():
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: x
    return layer


def pruned():
    return prune.l1_unstructured(nn.Linear(8, 8), "weight", amount=1)


class Gone(torch.jit.ScriptModule):
    """TorchScript, however little of it."""


LAYERS = {
    "torchscript": (Gone, "Gone is TorchScript"),
    "lazy": (lambda: nn.LazyInstanceNorm1d(affine=True), "is lazy and not initialised"),
    "layer_norm": (lambda: nn.LayerNorm(8), "LayerNorm normalises over several neurons"),
    "rms_norm": (lambda: nn.RMSNorm(8), "RMSNorm normalises over several neurons"),
    "group_norm": (lambda: nn.GroupNorm(2, 8), "GroupNorm normalises over several neurons"),
    "attention": (lambda: nn.MultiheadAttention(8, 2), "MultiheadAttention is attention"),
    "lstm": (lambda: nn.LSTM(8, 8), "LSTM is recurrent"),
    "gru_cell": (lambda: nn.GRUCell(8, 8), "GRUCell is recurrent"),
    "embedding": (lambda: nn.Embedding(9, 8), "Embedding has weights (weight) that cannot be"),
    "transposed": (lambda: nn.ConvTranspose1d(8, 8, 1), "has weights (weight, bias) that cannot"),
    "prelu": (nn.PReLU, "PReLU has one slope for all neurons"),
    "sync": (lambda: nn.SyncBatchNorm(8), "SyncBatchNorm is not supported"),
    "instance": (lambda: nn.InstanceNorm1d(8, affine=True), "has a scale or statistics for each"),
    "instance_statistics": (
        lambda: nn.InstanceNorm1d(8, track_running_stats=True), "has a scale or statistics for each"
    ),
    "parameter": (Scaled, "Scaled owns weights (scale) outside a layer"),
    "grouped": (
        lambda: nn.Conv1d(8, 8, 1, groups=2),
        "Conv1d is a grouped convolution (8 to 8 channels in 2 groups)",
    ),
    "multiplier": (lambda: nn.Conv1d(8, 16, 1, groups=8), "Conv1d is a grouped convolution"),
    "statistics": (
        lambda: nn.BatchNorm1d(8, track_running_stats=False),
        "BatchNorm1d has track_running_stats=False",
    ),
    "forward": (lambda: OwnForward(8, 8), "OwnForward is a Linear with its own forward"),
    "conv_forward": (lambda: OwnConvForward(8, 8, 1), "is a Conv1d with its own _conv_forward"),
    "patched": (patched, "Linear is a Linear with its own forward"),
    "hook": (hooked, "Linear has hooks"),
    "parametrized": (
        lambda: parametrizations.orthogonal(nn.Linear(8, 8)),
        "ParametrizedLinear has a parametrization on weight",
    ),
    "spectral_norm": (
        lambda: torch.nn.utils.spectral_norm(nn.Linear(8, 8)),
        "Linear computes its weight from weight_orig",
    ),
    "pruned": (pruned, "Linear computes its weight from weight_orig"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_refused(name):
    make, expected = LAYERS[name]
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(make()), nn.Linear(8, 2))
    validation = validate(model)
    [problem] = validation.problems
    assert problem.where == "1.0"
    assert expected in problem.found
    assert problem.remedy
    assert validation.layers == ("0", "2")
    assert validation.refused == ("1.0",)


def only_problem(model):
    with pytest.raises(GraphError) as caught:
        discover(model, VECTORS)
    [problem] = caught.value.problems
    return problem


@pytest.mark.parametrize(
    "name", ["layer_norm", "parameter", "forward", "parametrized", "prelu", "spectral_norm"]
)
def test_refused_layer_causes_no_other_problem(name):
    make, expected = LAYERS[name]
    model = nn.Sequential(nn.Linear(8, 8), make(), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    problem = only_problem(model)
    assert problem.where == "1"
    assert expected in problem.found


def test_parameter_of_a_module_with_layers():
    model = Assembled(
        lambda m, x: m.fc(m.first(x) + m.shift), first=nn.Linear(8, 8), fc=nn.Linear(8, 2)
    )
    model.shift = nn.Parameter(torch.zeros(8))
    problem = only_problem(model)
    assert problem.where == "(model)"
    assert "Assembled owns weights (shift) outside a layer" in problem.found
    assert validate(model).layers == ("first", "fc")


def test_tensors_as_plain_attributes():
    act = Assembled(lambda m, x: torch.maximum(x, x * m._slope))
    act._slope, act.later, act.names = torch.tensor(0.1), None, ["a", "b"]
    model = nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 2))
    model.table = {"scales": [torch.ones(8)]}
    model[2].mask = torch.ones(2)
    with pytest.raises(GraphError) as caught:
        discover(model, VECTORS)
    table, slope, mask = caught.value.problems
    assert [problem.where for problem in (table, slope, mask)] == ["(model)", "1", "2"]
    assert "Sequential holds tensors in the plain attribute 'table'" in table.found
    assert slope.found == (
        "Assembled holds tensors in the plain attribute '_slope', where they would be neither "
        "moved, saved nor certified"
    )
    assert slope.remedy == "Register each with self.register_buffer"
    assert "Linear holds tensors in the plain attribute 'mask'" in mask.found
    assert validate(model).layers == ("0", "2")


def test_a_list_of_parameters_is_no_tensor_of_its_own():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    model.trained = list(model.parameters())
    assert validate(model).problems == ()
    model.register_buffer("scale", torch.ones(1))
    model.also = [model.scale]
    [problem] = validate(model).problems
    assert "tensors in the plain attribute 'also'" in problem.found


def test_lazy_layers_are_not_run():
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 2))
    with pytest.raises(GraphError) as caught:
        discover(model, VECTORS)
    assert [problem.where for problem in caught.value.problems] == ["0", "1"]
    assert "LazyLinear is lazy and not initialised" in caught.value.problems[0].found
    model(VECTORS)
    assert discover(model, VECTORS).groups == {"0": 8}


def test_shared_weights():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    model[1].weight = model[0].weight
    problem = only_problem(model)
    assert problem.where == "1"
    assert "Linear shares its weight with '0'" in problem.found


def test_compiled_model():
    compiled = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), backend="eager")
    problem = only_problem(compiled)
    assert problem.where == "(model)"
    assert "OptimizedModule is a compiled model" in problem.found


def test_what_is_supported():
    model = nn.ModuleList(
        [
            nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv3d(4, 4, 1),
            nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm1d(4), nn.BatchNorm2d(4, affine=False),
            nn.BatchNorm3d(4), nn.PReLU(4),
        ]
    )  # fmt: skip
    validation = validate(copy.deepcopy(model).requires_grad_(False))
    assert validation.problems == ()
    assert len(validation.layers) == 9
    without_weights = nn.ModuleList([nn.ReLU(), nn.Dropout(), nn.InstanceNorm1d(4), nn.Softmax(1)])
    assert validate(without_weights).layers == ()


def test_modules_in_a_plain_list_must_be_registered_too():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model.blocks, model.functions = list(model), {"relu": nn.ReLU()}
    assert validate(model).problems == ()
    model.backbone = {"first": nn.Linear(8, 8)}
    [problem] = validate(model).problems
    assert "holds modules with weights in the plain attribute 'backbone'" in problem.found
