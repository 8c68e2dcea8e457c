"""A task as a plain narrow module, with no trace of clnp in it."""

from collections.abc import Mapping

from torch import nn

from clnp.core.structure.kinds import is_mixing, plain_layer
from clnp.core.structure.surgery import original, with_layers

from .stage import Tensors


def subnetwork(model: nn.Module, layers: Mapping[str, Tensors]) -> nn.Module:
    """A copy of `model` whose layers at the given paths are plain and hold copies of these tensors.

    It is in evaluation mode, as the ended task is, and asks for no gradients: PyTorch may compute a
    layer that does in another way, whose last bits differ.
    """
    plain = {path: _filled(model.get_submodule(path), tensors) for path, tensors in layers.items()}
    made = with_layers(model, plain).requires_grad_(False)
    made.eval()
    return made


def _filled(layer: nn.Module, tensors: Tensors) -> nn.Module:
    first = next(iter(tensors.values()))
    num_inputs = first.shape[1] if is_mixing(layer) else len(first)
    made = plain_layer(layer, num_outputs=len(first), num_inputs=num_inputs)
    state = made.state_dict()
    made.load_state_dict({**state, **{name: tensor.detach() for name, tensor in tensors.items()}})
    return original(layer, made)
