"""The L1 penalty on the weights that a task trains (Alg. 1, line 3), and its gradient."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .arguments import alpha_by_layer
from .body import Body


def l1_penalty(body: Body, alpha: float | Mapping[str, float]) -> Tensor:
    """alpha times the sum of |w| over the weights that the open task trains."""
    terms = [
        strength * torch.linalg.vector_norm(weight, 1)
        for strength, weights in _penalised(body, alpha).items()
        for weight in weights
    ]
    return torch.stack(terms).sum() if terms else body.head.weight.new_zeros(())


@torch.no_grad()
def add_l1_gradient(body: Body, alpha: float | Mapping[str, float]) -> None:
    """Add alpha sign(w) to the gradients of the weights that the open task trains."""
    for strength, weights in _penalised(body, alpha).items():
        weights = [weight for weight in weights if weight.requires_grad]
        gradients = []
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        if weights:
            torch._foreach_add_(gradients, torch._foreach_sign(weights), alpha=strength)


def _penalised(body: Body, alpha: float | Mapping[str, float]) -> dict[float, list[Tensor]]:
    """The weights that the open task trains, by the strength of their penalty."""
    alphas = alpha_by_layer(body.graph, alpha)
    found: dict[float, list[Tensor]] = {}
    for path, weight in body.weights():
        if alphas.get(path):
            found.setdefault(alphas[path], []).append(weight)
    return found
