"""One PyTorch operation that ran: its name however it was spelled, its tensors, its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .layouts import Groups, Neurons, Refusal, State

_OPERATORS = "add sub mul div truediv floordiv mod pow matmul and or xor lshift rshift"
_METADATA = (
    "shape size dim ndim ndimension numel nelement stride storage_offset dtype device layout "
    "is_cuda is_cpu is_meta is_mps is_xla is_sparse is_quantized is_leaf is_contiguous is_pinned "
    "is_floating_point is_complex is_signed is_inference is_nested is_tensor is_shared is_conj "
    "is_neg requires_grad grad grad_fn retains_grad version output_nr names name element_size "
    "itemsize nbytes get_device has_names is_same_size is_set_to data_ptr repr str format hash "
    "len dir broadcast_shapes result_type can_cast promote_types "
    "set_grad_enabled register_hook retain_grad"
)
METADATA = frozenset(_METADATA.split())
"""Operations that look at a tensor's form only: allowed, but for the `SIZES` of weights."""
SIZES = frozenset(["shape", "size", "numel", "nelement", "len"])
"""What tells the number of neurons when a weight is asked."""


def operation_name(func: Callable[..., Any]) -> str:
    """One name for all spellings: torch.add, Tensor.add_, __iadd__ and __radd__ are "add"."""
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__", "__delete__"):
        attribute = str(getattr(getattr(func, "__self__", None), "__name__", "attribute"))
        return attribute.strip("_") if name == "__get__" else f"set {attribute}"
    bare = name.strip("_").removeprefix("special_")
    operators = _OPERATORS.split()
    is_operator = name.startswith("__") and bare not in operators  # torch.rand is no operator
    if is_operator and bare[:1] in ("r", "i") and bare[1:] in operators:
        return bare[1:]
    return bare


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (list, tuple, set)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return [t for name in value.__dataclass_fields__ for t in tensors_in(getattr(value, name))]
    return []


@dataclass(frozen=True)
class Call:
    """One operation that ran: its tensors with the shapes and states from before it ran."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    tensors: tuple[tuple[torch.Tensor, tuple[int, ...], State], ...]
    groups: Groups

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first tensor that comes out."""
        for tensor in tensors_in(self.result):
            return tuple(tensor.shape)
        raise Refusal(
            f"'{self.name}' reads the values of hidden neurons",
            "Neurons of later tasks are not there for earlier ones: let the path of the forward "
            "pass depend on the network's input alone",
        )

    def placed(self) -> list[tuple[tuple[int, ...], State]]:
        """Shape and state of every tensor that goes in."""
        return [(shape, state) for _, shape, state in self.tensors]

    def subject(self) -> tuple[tuple[int, ...], Neurons]:
        """Shape and neurons of the tensor that the operation is about, the only one with any."""
        first = self.args[0] if self.args else self.kwargs.get("input")
        hidden = [item for item in self.tensors if isinstance(item[2], Neurons)]
        for tensor, shape, state in hidden:
            if tensor is first and isinstance(state, Neurons) and len(hidden) == 1:
                return shape, state
        raise Refusal(
            f"'{self.name}' takes hidden neurons where they cannot be followed",
            "Compute what it needs from the network's input or from constants",
        )

    def argument(self, position: int, *names: str) -> Any:
        """The argument at a position or under one of its names; None when it is not given."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None


def imitate(value: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with `make(tensor)` for every tensor."""
    if isinstance(value, torch.Tensor):
        return make(value)
    if isinstance(value, (list, tuple)):
        items = [imitate(item, make) for item in value]
        named = hasattr(value, "_fields")
        return type(value)(*items) if named else type(value)(items)
    if isinstance(value, dict):
        return {key: imitate(item, make) for key, item in value.items()}
    return value


MARKER = 1_000_003
"""A size that no real dimension has: a probe's neuron axis is recognised by it."""


def probe(shape: tuple[int, ...], neurons: Neurons, *, dtype: torch.dtype) -> torch.Tensor:
    """A tensor without storage whose neuron axis has an unmistakable size."""
    sizes = [MARKER if dim == neurons.dim else size for dim, size in enumerate(shape)]
    return torch.empty(sizes, dtype=dtype, device="meta")


def follow(call: Call) -> Neurons | None:
    """The neurons of the result, found by running the operation on a probe.

    None when the neuron axis comes out with another size, or not at all.
    """
    shape, neurons = call.subject()
    stand_in = probe(shape, neurons, dtype=call.tensors[0][0].dtype)
    # Indices may lie on any device; only those of the CPU go with a probe.
    args, kwargs = imitate((call.args[1:], dict(call.kwargs)), torch.Tensor.cpu)
    if call.args:
        args = (stand_in, *args)
    else:
        kwargs["input"] = stand_in
    try:
        outcome = tensors_in(call.func(*args, **kwargs))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    dims = set()
    real = tensors_in(call.result)
    for tensor, probed in zip(real, outcome, strict=False):
        found = [dim for dim, size in enumerate(probed.shape) if size == MARKER]
        if tensor.ndim != probed.ndim or len(found) != 1:
            return None
        dims.add(found[0])
    if len(dims) != 1 or len(real) != len(outcome):
        return None
    return Neurons(dims.pop(), neurons.axis)
