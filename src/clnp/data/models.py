"""The three networks of Golkar, Kagan and Cho, "Continual Learning via Neural Pruning" (2019).

They are plain PyTorch modules. No `forward` contains a width, so they also run when their layers
are narrower.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers fc1, fc2, ... with ReLU between them: the paper's network for permuted MNIST.

    Args:
        num_inputs: Numbers of a sample, after its dimensions are flattened.
        widths: Neurons of each hidden layer.
        num_outputs: Number of outputs.

    Shape:
        [batch, ...] to [batch, num_outputs].

    Example:
        >>> net = clnp.ContinualNet(clnp.models.MLP(784, (100, 100)), torch.randn(2, 1, 28, 28))
    """

    def __init__(
        self,
        num_inputs: int = 784,
        widths: Sequence[int] = (2000, 2000),
        num_outputs: int = 10,
    ) -> None:
        super().__init__()
        sizes = [num_inputs, *widths, num_outputs]
        for number, (num_in, num_out) in enumerate(pairwise(sizes), start=1):
            self.add_module(f"fc{number}", nn.Linear(num_in, num_out))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        *hidden, last = self.children()
        for layer in hidden:
            x = F.relu(layer(x))
        logits: Tensor = last(x)
        return logits


class NarrowCNN(nn.Module):
    """Four convolutions and two linear layers: the paper's multi-head network for CIFAR.

    All kernels are 3x3 with padding 1. Each of the two max pools halves the image, rounded up.

    Args:
        num_outputs: Number of outputs, those of fc2.
        widths: Channels of conv1 to conv4, and neurons of fc1.
        in_channels: Channels of an image.
        image_size: Height and width of an image.

    Shape:
        [batch, in_channels, image_size, image_size] to [batch, num_outputs].

    Example:
        >>> net = clnp.ContinualNet(clnp.models.NarrowCNN(), torch.randn(2, 3, 32, 32))
    """

    def __init__(
        self,
        num_outputs: int = 10,
        *,
        widths: Sequence[int] = (32, 32, 64, 64, 512),
        in_channels: int = 3,
        image_size: int = 32,
    ) -> None:
        super().__init__()
        width1, width2, width3, width4, width5 = widths
        self.conv1 = nn.Conv2d(in_channels, width1, 3, padding=1)
        self.conv2 = nn.Conv2d(width1, width2, 3, padding=1)
        self.dropout1 = nn.Dropout(0.25)
        self.conv3 = nn.Conv2d(width2, width3, 3, padding=1)
        self.conv4 = nn.Conv2d(width3, width4, 3, padding=1)
        self.dropout2 = nn.Dropout(0.25)
        pooled = -(-image_size // 4)
        self.fc1 = nn.Linear(width4 * pooled * pooled, width5)
        self.dropout3 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(width5, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.dropout1(x)
        x = F.relu(self.conv3(x))
        x = F.relu(self.conv4(x))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.dropout2(x)
        x = F.relu(self.fc1(x.flatten(1)))
        x = self.dropout3(x)
        logits: Tensor = self.fc2(x)
        return logits


class WideCNN(nn.Module):
    """Six convolutions: the paper's single-head network for CIFAR.

    BatchNorm and ReLU follow conv1 to conv5. The outputs are those of conv6, averaged over the
    image. All kernels are 3x3. An image of 32 x 32 has the sides 32, 15, 13, 7, 5 and 3 after the
    convolutions.

    Args:
        num_outputs: Number of outputs, those of conv6.
        widths: Channels of conv1 to conv5.
        in_channels: Channels of an image.

    Shape:
        [batch, in_channels, height, width] to [batch, num_outputs]; sides of at least 23.

    Example:
        >>> model = clnp.models.WideCNN(widths=(32, 64, 128, 256, 512))
        >>> net = clnp.ContinualNet(model, torch.randn(2, 3, 32, 32), head="single")
    """

    def __init__(
        self,
        num_outputs: int = 10,
        *,
        widths: Sequence[int] = (128, 256, 512, 1024, 2048),
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        width1, width2, width3, width4, width5 = widths
        # BatchNorm would subtract a bias again.
        self.conv1 = nn.Conv2d(in_channels, width1, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width1)
        self.conv2 = nn.Conv2d(width1, width2, 3, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(width2)
        self.conv3 = nn.Conv2d(width2, width3, 3, bias=False)
        self.bn3 = nn.BatchNorm2d(width3)
        self.conv4 = nn.Conv2d(width3, width4, 3, stride=2, padding=1, bias=False)
        self.bn4 = nn.BatchNorm2d(width4)
        self.conv5 = nn.Conv2d(width4, width5, 3, bias=False)
        self.bn5 = nn.BatchNorm2d(width5)
        self.conv6 = nn.Conv2d(width5, num_outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = F.relu(self.bn4(self.conv4(x)))
        x = F.relu(self.bn5(self.conv5(x)))
        logits: Tensor = self.conv6(x)
        return logits.mean((2, 3))
