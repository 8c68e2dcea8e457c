"""The L1 penalty on the weights that a task trains (Alg. 1, line 3), and its gradient."""

from collections.abc import Mapping

import torch
from torch import Tensor

from clnp.checks import FLOAT32_FROM_0
from clnp.core.layers.body import Body
from clnp.core.structure.graph import Graph
from clnp.errors import ArgumentError, unknown_name


def l1_penalty(body: Body, alpha: float | Mapping[str, float]) -> Tensor:
    """Return alpha times the sum of |w| over the weights that the open task trains."""
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
    """Return the weights that the open task trains, by the strength of their penalty."""
    given = type(alpha), tuple(alpha.items()) if isinstance(alpha, Mapping) else alpha
    if body.alphas[0] != given:  # It is the same in every step of a fit.
        body.alphas = given, alpha_by_layer(body.graph, alpha)
    alphas = body.alphas[1]
    found: dict[float, list[Tensor]] = {}
    for path, weight in body.weights():
        if alphas.get(path):
            found.setdefault(alphas[path], []).append(weight)
    return found


def alpha_by_layer(graph: Graph, alpha: float | Mapping[str, float]) -> dict[str, float]:
    """Return the strength of the L1 penalty for each layer; the longest path that fits counts."""
    if not isinstance(alpha, Mapping):
        common: float = FLOAT32_FROM_0("alpha", alpha)
        return dict.fromkeys(graph.sites, common)
    found: dict[str, tuple[str, float]] = {}
    for name, value in alpha.items():
        strength = FLOAT32_FROM_0(f"alpha of {name}", value)
        inside = [p for p in graph.sites if p == name or p.startswith(f"{name}.")]
        if not inside:
            raise ArgumentError(unknown_name("layer", name, graph.sites))
        for path in inside:
            if path not in found or len(name) > len(found[path][0]):
                found[path] = (name, strength)
    return {path: strength for path, (_, strength) in found.items()}
