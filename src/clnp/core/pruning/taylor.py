"""The Taylor score of neurons: how much of the loss would change without them, to first order.

For one sample with loss L, setting the weights w_ij to zero by which a layer reads neuron j changes
L by about -sum_i w_ij dL/dw_ij. The score of the neuron is the mean square of that over all samples
(Molchanov et al., *Importance Estimation for Neural Network Pruning*, 2019):

    s_j = E[(sum_i w_ij dL/dw_ij)^2],    where    sum_i w_ij dL/dw_ij = sum_p x_jp dL/dx_jp

with x_jp the neuron at the places p where the layer reads it, such as the pixels of a channel. The
right-hand side needs no gradient of a weight, so that one backward pass gives the terms of all
samples. They are squared one by one: gradients of a trained network cancel within a batch, and a
mean over batches would measure their noise, and depend on the size of the batches.

Layers differ in scale. So the score, like contribution (see `activity`), is cumulated: the share
of a neuron in the sum of s over all that the layer reads, the largest of several readers, and then
the sum of all shares in its group that are no larger than its own. A threshold of 0.05 cuts, in
every layer, the neurons that together make up 5 % of the layer's sum. A neuron that is always 0, or
that nothing reads, has the score 0.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from clnp.core.layers.body import Body
from clnp.core.layers.stage import Pass, Staged
from clnp.core.structure.axis import groups_of
from clnp.errors import ArgumentError

from .activity import (
    Activity,
    by_group,
    check_batches,
    cumulated,
    feed,
    listening,
    meters_of,
    on_device,
    real_entries,
)

Loss = Callable[..., Tensor]
"""`loss(outputs, targets)`: the mean over a batch."""


@torch.inference_mode(False)
def taylor(body: Body, batches: Iterable[Any], loss: Loss) -> Activity:
    """Measure the cumulated Taylor score of all neurons, in evaluation mode."""
    check_batches(batches)
    meters = meters_of(body)
    sums: dict[Staged, dict[Pass, list[tuple[str, Tensor]]]] = {layer: {} for layer in meters}
    read: list[tuple[Staged, Pass, Tensor]] = []

    def on_input(layer: Staged, x: Tensor) -> Tensor:
        running = layer.stage.running
        if layer not in meters:
            return x
        meters[layer].read(x.detach())
        if not groups_of(layer.site.columns) or (running is Pass.FROZEN and layer.shared):
            return x
        # For this layer alone: a neuron may have several readers.
        own = x.view_as(x) if torch.is_grad_enabled() and x.requires_grad else x.detach()
        read.append((layer, running, own if own.requires_grad else own.requires_grad_()))
        return own

    for batch in batches:
        read.clear()
        targets = _targets(batch, body.device)
        with torch.enable_grad(), listening(body, on_input):
            value = _checked(loss(feed(body, batch, body.run_open), *targets))
        gradients = torch.autograd.grad(value, [x for *_, x in read], allow_unused=True)
        for (layer, running, x), gradient in zip(read, gradients, strict=True):
            if gradient is not None:
                terms = _terms(layer, running, x.detach(), gradient)
                before = sums[layer].get(running)
                squares = [(g, part.sum(1).square().sum(1)) for g, part in terms]
                if before is not None:
                    squares = [
                        (g, old + new) for (g, old), (_, new) in zip(before, squares, strict=True)
                    ]
                sums[layer][running] = squares
    return cumulated(body, meters, sums, what="Taylor score")


def _terms(
    layer: Staged, running: Pass, x: Tensor, gradient: Tensor
) -> Iterable[tuple[str, Tensor]]:
    """Yield x dL/dx of each sample, `[neurons, span, samples]`, for each segment of neurons."""
    dim = layer.layer_kind.neuron_dim % x.ndim
    samples, *places = [d for d in range(x.ndim) if d != dim]
    wide = torch.promote_types(x.dtype, torch.float32)
    # The loss is a mean: each sample counts by its own loss.
    terms = x.to(wide) * gradient.to(wide) * x.shape[samples]
    if places:
        terms = terms.sum(places)
    by_entry = terms if dim < samples else terms.T
    return by_group(layer, running, real_entries(layer, running, by_entry.double()))


def _targets(batch: Any, device: torch.device) -> list[Any]:
    """Return what follows the inputs in a batch."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise ArgumentError(
            "a batch holds no targets, which the loss needs. Give pairs of inputs and targets, "
            "such as those of a DataLoader"
        )
    return [on_device(each, device) for each in batch[1:]]


def _checked(value: object) -> Tensor:
    """Return the loss, a single number with a gradient."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
        return value
    found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    if isinstance(value, Tensor) and value.numel() == 1:
        found = "a tensor without a gradient"
    raise ArgumentError(
        f"loss returned {found}. It must return the mean loss of the batch, computed from the "
        "outputs, such as torch.nn.functional.cross_entropy does"
    )
