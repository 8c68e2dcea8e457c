from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clnp.data.models import MLP, NarrowCNN, WideCNN


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_mlp_at_the_papers_size():
    model = MLP()
    assert list(dict(model.named_children())) == ["fc1", "fc2", "fc3"]
    assert num_parameters(model) == (784 + 1) * 2000 + (2000 + 1) * 2000 + (2000 + 1) * 10
    assert model(torch.randn(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("widths", [(), (5,), (5, 6, 7, 8)])
def test_mlp_has_one_hidden_layer_per_width(widths):
    model = MLP(12, widths, 4)
    layers = dict(model.named_children())
    assert list(layers) == [f"fc{n + 1}" for n in range(len(widths) + 1)]
    assert [layer.out_features for layer in layers.values()] == [*widths, 4]
    assert model(torch.randn(2, 3, 4)).shape == (2, 4)


def test_mlp_puts_relu_between_layers_and_not_after_the_last():
    model = MLP(12, (5, 6), 4)
    x = torch.randn(7, 3, 4)
    h = F.relu(F.linear(x.reshape(7, 12), model.fc1.weight, model.fc1.bias))
    h = F.relu(F.linear(h, model.fc2.weight, model.fc2.bias))
    assert torch.equal(model(x), F.linear(h, model.fc3.weight, model.fc3.bias))


def test_narrow_cnn_at_the_papers_size():
    model = NarrowCNN()
    convs = [(3, 32), (32, 32), (32, 64), (64, 64)]
    expected = sum((9 * num_in + 1) * num_out for num_in, num_out in convs)
    expected += (64 * 8 * 8 + 1) * 512 + (512 + 1) * 10
    assert num_parameters(model) == expected
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_narrow_cnn_runs_the_papers_layers_in_order():
    model = NarrowCNN(4, widths=(2, 3, 4, 5, 6)).eval()
    x = torch.randn(2, 3, 32, 32)
    h = F.relu(F.conv2d(x, model.conv1.weight, model.conv1.bias, padding=1))
    h = F.relu(F.conv2d(h, model.conv2.weight, model.conv2.bias, padding=1))
    h = F.max_pool2d(h, kernel_size=3, stride=2, padding=1)
    h = F.relu(F.conv2d(h, model.conv3.weight, model.conv3.bias, padding=1))
    h = F.relu(F.conv2d(h, model.conv4.weight, model.conv4.bias, padding=1))
    h = F.max_pool2d(h, kernel_size=3, stride=2, padding=1)
    assert h.shape == (2, 5, 8, 8)
    h = F.relu(F.linear(h.reshape(2, -1), model.fc1.weight, model.fc1.bias))
    assert torch.equal(model(x), F.linear(h, model.fc2.weight, model.fc2.bias))


def test_narrow_cnn_drops_after_each_pool_and_after_fc1():
    model = NarrowCNN(4, widths=(2, 3, 4, 5, 6))
    order: list[str] = []
    for name, module in model.named_children():
        module.register_forward_hook(lambda *_, name=name: order.append(name))
    model(torch.randn(2, 3, 32, 32))
    expected = "conv1 conv2 dropout1 conv3 conv4 dropout2 fc1 dropout3 fc2"
    assert order == expected.split()
    rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.25, 0.25, 0.5]


@pytest.mark.parametrize("image_size", [1, 5, 28, 31, 32, 33])
def test_narrow_cnn_takes_images_of_any_size(image_size):
    model = NarrowCNN(7, widths=(2, 3, 4, 5, 6), in_channels=1, image_size=image_size)
    assert model(torch.randn(2, 1, image_size, image_size)).shape == (2, 7)


def test_wide_cnn_at_the_papers_size():
    with torch.device("meta"):
        model = WideCNN()
        logits = model(torch.empty(2, 3, 32, 32))
    widths = [3, 128, 256, 512, 1024, 2048]
    kernels = sum(9 * num_in * num_out for num_in, num_out in pairwise(widths))
    scales_and_shifts = 2 * sum(widths[1:])
    classifier = (9 * 2048 + 1) * 10
    assert num_parameters(model) == kernels + scales_and_shifts + classifier
    assert logits.shape == (2, 10)


def test_wide_cnn_runs_the_papers_layers_in_order():
    model = WideCNN(4, widths=(2, 3, 4, 5, 6))
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda _m, _i, out, name=name: shapes.append((name, tuple(out.shape)))
        )
    model(torch.randn(2, 3, 32, 32))
    sides = [32, 15, 13, 7, 5]
    expected = []
    for number, (width, side) in enumerate(zip((2, 3, 4, 5, 6), sides, strict=True), start=1):
        expected += [(f"{kind}{number}", (2, width, side, side)) for kind in ("conv", "bn")]
    assert shapes == [*expected, ("conv6", (2, 4, 3, 3))]


def test_wide_cnn_has_relu_after_each_norm_and_averages_the_logits():
    model = WideCNN(4, widths=(2, 3, 4, 5, 6), in_channels=1).eval()
    h = x = torch.randn(2, 1, 32, 32)
    for conv, norm in zip(
        (model.conv1, model.conv2, model.conv3, model.conv4, model.conv5),
        (model.bn1, model.bn2, model.bn3, model.bn4, model.bn5),
        strict=True,
    ):
        h = F.relu(norm(conv(h)))
    assert torch.equal(model(x), model.conv6(h).mean((2, 3)))
