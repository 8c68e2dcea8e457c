"""Rules: what every PyTorch operation does to the neurons of its tensors.

While a model is traced, every tensor has a state: its `Neurons` (which dimension is the neuron
axis, and whose neurons lie along it), or a `Mark` that says why it has none. `interpret` gives the
state of an operation's result, or raises a `Refusal`. All sizes are those of the full-width model.
"""

import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from .axis import Axis, Segment
from .inputs import imitate, tensors_in


class Mark(enum.Enum):
    """The reason why a tensor has no neurons."""

    INPUT = "a tensor computed from the network's input"
    CONSTANT = "a constant tensor"
    UNSEEN = "a tensor of unknown origin"
    OUTPUTS = "outputs of the classifier"
    UNKNOWN = "behind a problem that was reported"


@dataclass(frozen=True)
class Neurons:
    """Neurons along dimension `dim`, arranged as `axis`."""

    dim: int
    axis: Axis


State = Neurons | Mark


@dataclass(eq=False)
class Refusal(Exception):
    """Raised if an operation cannot be sliced by neuron, with what was found and what to do."""

    found: str
    remedy: str


class Groups:
    """The sets of mixing layers that make the same neurons, each named after the first that ran."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}

    def add(self, path: str) -> None:
        """Add the layer at `path`, which makes its own neurons until they meet others."""
        self._leader.setdefault(path, path)

    def find(self, path: str) -> str:
        """Return the name of the group that the layer at `path` makes."""
        return self._leader[path]

    def join(self, one: str, other: str) -> None:
        """Unite the groups that two layers make."""
        order = list(self._leader)
        first, second = sorted((self.find(one), self.find(other)), key=order.index)
        for path, leader in self._leader.items():
            if leader == second:
                self._leader[path] = first

    def resolve(self, axis: Axis) -> Axis:
        """Return the axis with every group under its present name."""
        return tuple(
            segment if segment.group is None else replace(segment, group=self.find(segment.group))
            for segment in axis
        )

    def names(self) -> list[str]:
        """Return the groups in the order in which they are made."""
        return list(dict.fromkeys(self._leader.values()))


def spell(axis: Axis) -> str:
    """Return the axis in words: "64 of 'conv1' + 3 of the input"."""
    parts = []
    for segment in axis:
        wide = f" x {segment.span}" if segment.span > 1 else ""
        owner = "of the input" if segment.group is None else f"of {segment.group!r}"
        parts.append(f"{segment.size}{wide} {owner}")
    return " + ".join(parts)


def full_size(axis: Axis) -> int:
    """Count the entries of the axis in the full-width model."""
    return sum(segment.size * segment.span for segment in axis)


def merge_axes(groups: Groups, one: Axis, other: Axis) -> Axis:
    """Join the groups of two axes that meet element by element, and return the axis of both."""
    one, other = groups.resolve(one), groups.resolve(other)
    if one == other:
        return one
    both = f"{spell(one)} against {spell(other)}"
    if 1 in (full_size(one), full_size(other)) and full_size(one) != full_size(other):
        raise Refusal(
            f"one neuron is broadcast over many ({both})",
            "Give both sides the same number of neurons: a gate of one channel cannot be pruned "
            "together with the channels that it multiplies",
        )
    if [(each.size, each.span) for each in one] != [(each.size, each.span) for each in other]:
        raise Refusal(
            f"neurons meet whose boundaries differ ({both})",
            "Bring both sides to the same groups first, for example with a 1x1 convolution or a "
            "Linear layer on one of them",
        )
    for mine, theirs in zip(one, other, strict=True):
        if mine.group is not None and theirs.group is not None:
            groups.join(mine.group, theirs.group)
        elif mine.group != theirs.group:
            raise Refusal(
                f"hidden neurons meet the network's input ({both})",
                "Put a convolution or a Linear layer between the input and the sum, so that every "
                "summand is made of neurons",
            )
    return groups.resolve(one)


class Operand(NamedTuple):
    """A tensor that an operation reads, with its shape and state from before."""

    tensor: torch.Tensor
    shape: tuple[int, ...]
    state: State


def meet(groups: Groups, operands: Sequence[Operand], *, num_dims: int) -> Neurons:
    """Return the neurons of tensors, some with neurons, broadcast to `num_dims` dimensions."""
    found: Neurons | None = None
    for _, shape, state in operands:
        if isinstance(state, Neurons):
            dim = state.dim + num_dims - len(shape)
            if found is None:
                found = Neurons(dim, state.axis)
            elif found.dim != dim:
                raise _other_dimension(found.dim, dim)
            else:
                found = Neurons(dim, merge_axes(groups, found.axis, state.axis))
    assert found is not None
    for _, shape, state in operands:
        dim = found.dim - num_dims + len(shape)
        if not isinstance(state, Neurons) and dim >= 0 and shape[dim] != 1:
            refuse_fixed(found, state, shape)
    return found


def _other_dimension(one: int, other: int) -> Refusal:
    return Refusal(
        f"neurons lie along dimension {one} of one tensor and {other} of another",
        "Bring the neurons of both tensors to the same dimension first",
    )


def refuse_fixed(neurons: Neurons, state: Mark, shape: tuple[int, ...]) -> None:
    """Refuse a tensor without neurons that has one entry for each neuron."""
    found = f"{spell(neurons.axis)} meet {state.value} of shape {shape}, which has entries for them"
    if state is Mark.INPUT:
        raise Refusal(
            f"hidden neurons meet the network's input: {found}",
            "Put a convolution or a Linear layer between the input and this operation",
        )
    raise Refusal(
        found,
        "Use a constant of size 1 along the neurons, a layer if it is learned, or torch.zeros_like "
        "and the like for zeros and noise",
    )


def reshape(neurons: Neurons, before: Sequence[int], after: Sequence[int]) -> Neurons:
    """Return the neurons after a row-major reshape, which may merge dimensions behind them.

    reshape([N, C, H, W] -> [N, C * H * W]) makes each neuron H * W entries wide, and the other way
    round. Nothing before the neuron axis may merge into it, and no neuron may be cut.
    """
    ahead = math.prod(before[: neurons.dim])
    size = before[neurons.dim]
    for dim, entries in enumerate(after):
        if math.prod(after[:dim]) != ahead:
            continue
        spans = [segment.span * entries for segment in neurons.axis]
        if entries and all(span % size == 0 for span in spans):
            axis = tuple(
                replace(segment, span=span // size)
                for segment, span in zip(neurons.axis, spans, strict=True)
            )
            return Neurons(dim, axis)
    raise Refusal(
        f"the shape {tuple(before)} becomes {tuple(after)}, which splits the neuron axis "
        f"(dimension {neurons.dim}: {spell(neurons.axis)}) or merges it with what lies before it",
        "Merge only dimensions behind the neurons into them, as flatten(1) does, and do not "
        "shuffle or regroup channels",
    )


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
"""Operations that look at a tensor's form only: allowed, except for the `SIZES` of weights."""
SIZES = frozenset(["shape", "size", "numel", "nelement", "len"])
"""Operations that show the number of neurons of a weight."""


def operation_name(func: Callable[..., Any]) -> str:
    """Return one name for all spellings: torch.add, Tensor.add_ and __radd__ are "add"."""
    name = str(getattr(func, "__name__", func))
    if name in ("__get__", "__set__", "__delete__"):
        attribute = str(getattr(getattr(func, "__self__", None), "__name__", "attribute"))
        return attribute.strip("_") if name == "__get__" else f"set {attribute}"
    bare = name.strip("_").removeprefix("special_")
    if (
        name.startswith("__") and bare[0] in "ri" and bare[1:] in _OPERATORS.split()
    ):  # Not torch.rand.
        return bare[1:]
    return bare


@dataclass(frozen=True)
class Call:
    """One operation that ran, and its tensors with the shapes and states from before."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any
    operands: tuple[Operand, ...]
    groups: Groups

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the first tensor in the result."""
        for tensor in tensors_in(self.result):
            return tuple(tensor.shape)
        raise Refusal(
            f"'{self.name}' reads the values of hidden neurons",
            "Neurons of later tasks are not there for earlier ones: let the path of the forward "
            "pass depend on the network's input alone",
        )

    @property
    def first(self) -> Any:
        """Return the first argument."""
        return self.args[0] if self.args else self.kwargs.get("input")

    def subject(self) -> tuple[tuple[int, ...], Neurons]:
        """Return shape and neurons of the first argument, which must be the only one with any."""
        hidden = [operand for operand in self.operands if isinstance(operand.state, Neurons)]
        for tensor, shape, state in hidden:
            if tensor is self.first and isinstance(state, Neurons) and len(hidden) == 1:
                return shape, state
        raise Refusal(
            f"'{self.name}' takes hidden neurons where they cannot be followed",
            "Compute what it needs from the network's input or from constants",
        )

    def where(self) -> str:
        """Say where the neurons of the first argument lie."""
        shape, neurons = self.subject()
        return f"(dimension {neurons.dim} of {shape}: {spell(neurons.axis)})"

    def argument(self, position: int, *names: str) -> Any:
        """Return the argument at a position or under one of its names, or None."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None


MARKER = 100_003
"""A size that no real dimension has, by which the neuron axis of a probe is recognised."""


def probe(shape: tuple[int, ...], neurons: Neurons, *, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without storage whose neuron axis has an unmistakable size."""
    sizes = [MARKER if dim == neurons.dim else size for dim, size in enumerate(shape)]
    return torch.empty(sizes, dtype=dtype, device="meta")


def follow(call: Call) -> Neurons | None:
    """Find the neurons of the result by running the operation on a probe.

    Return None if the neuron axis has another size in the result, or is gone.
    """
    shape, neurons = call.subject()
    stand_in = probe(shape, neurons, dtype=call.operands[0].tensor.dtype)
    # Indices may lie on any device; only those of the CPU go with a probe.
    args, kwargs = imitate((call.args[1:], dict(call.kwargs)), torch.Tensor.cpu)
    if call.args:
        args = (stand_in, *args)
    else:
        kwargs["input"] = stand_in
    try:
        probed = tensors_in(call.func(*args, **kwargs))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    dims = [[dim for dim, size in enumerate(each.shape) if size == MARKER] for each in probed]
    same_form = [each.ndim for each in probed] == [each.ndim for each in tensors_in(call.result)]
    if not dims or len(dims[0]) != 1 or dims != dims[:1] * len(dims) or not same_form:
        return None
    return Neurons(dims[0][0], neurons.axis)


Rule = Callable[[Call], State]

FORM_ONLY = ("to", "type_as")
"""Operations that take only type and device from their second tensor."""

_NO_WEIGHTS = "Neurons may meet only through the weights of a Linear layer or a convolution"


def interpret(call: Call) -> State:
    """Return the state of the results of an operation, or raise a `Refusal`."""
    states = [operand.state for operand in call.operands]
    if call.name in FORM_ONLY:
        return states[0]
    if Mark.UNKNOWN in states:
        return Mark.UNKNOWN
    hidden = any(isinstance(state, Neurons) for state in states)
    if Mark.UNSEEN in states and (hidden or Mark.OUTPUTS in states):
        raise Refusal(
            f"'{call.name}' takes a tensor that is neither an input, nor made in forward, nor a "
            "parameter or buffer of the model: it would be neither moved, saved nor certified",
            "Compute it in forward, or register it as a buffer where it is held",
        )
    if Mark.OUTPUTS in states:
        if hidden:
            raise Refusal(
                f"'{call.name}' lets hidden neurons meet the outputs of the classifier",
                "Let neurons reach the outputs through the classifier alone",
            )
        return Mark.OUTPUTS
    if hidden:
        if call.kwargs.get("out") is not None:
            raise Refusal(f"'{call.name}' writes into out=", "Use its return value instead")
        return RULES.get(call.name, _unrecognised)(call)
    return next((mark for mark in (Mark.INPUT, Mark.UNSEEN) if mark in states), Mark.CONSTANT)


def _unrecognised(call: Call) -> State:
    _ = call.shape  # refuses what reads values, with another message
    raise Refusal(
        f"'{call.name}' on hidden neurons is not known to leave each neuron to itself",
        "Replace it by an operation that acts on every neuron alone, or move it behind the "
        "classifier",
    )


def _pointwise(call: Call) -> State:
    if call.name == "type" and isinstance(call.result, str):
        return Mark.CONSTANT
    if call.name == "where" and len(call.args) + len(call.kwargs) == 1:
        return _unrecognised(call)
    return meet(call.groups, call.operands, num_dims=len(call.shape))


def _constant(call: Call) -> State:
    return Mark.CONSTANT


def _reshape(call: Call) -> State:
    tensor, shape, state = call.operands[0]
    if tensor is call.first and isinstance(state, Neurons):
        return reshape(state, shape, call.shape)
    return _unrecognised(call)


def _expand(call: Call) -> State:
    shape, neurons = call.subject()
    dim = neurons.dim + len(call.shape) - len(shape)
    if call.shape[dim] != shape[neurons.dim]:
        raise Refusal(
            f"one neuron is broadcast over many ({shape} to {call.shape})",
            "Expand along other dimensions only",
        )
    return Neurons(dim, neurons.axis)


def _move(call: Call) -> State:
    if call.name == "squeeze" and len(call.args) + len(call.kwargs) == 1:
        raise Refusal(
            "'squeeze' without a dimension drops whatever has size 1, a neuron axis too",
            "Name the dimension: squeeze(dim)",
        )
    found = follow(call)
    if found is None:
        raise Refusal(
            f"'{call.name}' takes apart, repeats or indexes the neuron axis {call.where()}",
            "Make each part with its own layer, and index other dimensions only",
        )
    return found


def _reduce(call: Call) -> State:
    if call.name in ("max", "min") and len(call.operands) > 1:  # of two tensors: no reduction
        return _pointwise(call)
    found = follow(call)
    if found is None:
        raise _mixing(call)
    return found


def _mixing(call: Call) -> Refusal:
    return Refusal(
        f"'{call.name}' over the neuron axis {call.where()} mixes neurons without weights",
        f"{_NO_WEIGHTS}: apply it to other dimensions, or to the outputs of the classifier",
    )


_ALONG: dict[str, tuple[int, Any]] = {
    "softmax": (1, None), "log_softmax": (1, None), "softmin": (1, None), "cumsum": (1, None),
    "cumprod": (1, None), "logcumsumexp": (1, None), "cummax": (1, None), "cummin": (1, None),
    "flip": (1, None), "sort": (1, -1), "argsort": (1, -1), "topk": (2, -1), "roll": (2, None),
    "normalize": (2, 1), "gumbel_softmax": (4, -1), "index_select": (1, None),
}  # fmt: skip


def _along(call: Call) -> State:
    shape, neurons = call.subject()
    position, default = _ALONG[call.name]
    dims = call.argument(position, "dim", "dims", "axis")
    if call.name == "flip" and isinstance(dims, int):
        dims = call.args[1:]
    if dims is None:
        dims = default
    if dims is None and "softm" in call.name:
        dims = 0 if len(shape) in (0, 1, 3) else 1  # what PyTorch assumes
    touched = [dims] if isinstance(dims, int) else list(dims or range(len(shape)))
    if neurons.dim in [dim % len(shape) for dim in touched]:
        raise _mixing(call)
    return neurons


def _spatial(call: Call) -> State:
    """Follow pooling: the last dimensions are space, and the neurons must not be among them."""
    if call.name == "instance_norm" and len(call.operands) > 1:
        return _normalise(call)
    shape, neurons = call.subject()
    digits = re.search(r"([123])d", call.name)
    if neurons.dim >= (len(shape) - int(digits[1]) if digits else 2):
        raise _mixing(call)
    return neurons


def _pad(call: Call) -> State:
    shape, neurons = call.subject()
    amounts = list(call.argument(1, "pad"))
    place = 2 * (len(shape) - 1 - neurons.dim)
    if any(amounts[place : place + 2]):
        raise Refusal(
            f"'pad' adds to the neuron axis {call.where()}",
            "Widen with a 1x1 convolution or a Linear layer instead of padding",
        )
    return neurons


def _concatenate(call: Call) -> State:
    """Follow neurons that come one after the other, or else meet element by element."""
    first = next(state for _, _, state in call.operands if isinstance(state, Neurons))
    for _, _, state in call.operands:
        if isinstance(state, Neurons) and state.dim != first.dim:
            raise _other_dimension(first.dim, state.dim)
    dim = (call.argument(1, "dim", "axis") or 0) % len(call.shape)
    axis: Axis = ()
    if call.name != "stack" and dim == first.dim:
        for _, shape, state in call.operands:
            if isinstance(state, Neurons):
                axis += state.axis
            elif shape != (0,):  # torch.cat skips such tensors, whatever the others are.
                axis += (Segment(None, shape[dim]),)
        return Neurons(dim, axis)
    axis = first.axis
    for _, shape, state in call.operands:
        if isinstance(state, Neurons):
            axis = merge_axes(call.groups, axis, state.axis)
        else:
            refuse_fixed(first, state, shape)
    return Neurons(first.dim + (call.name == "stack" and dim <= first.dim), axis)


def _setitem(call: Call) -> State:
    target, index, value = call.args
    single = not isinstance(value, torch.Tensor) or value.numel() == 1
    if isinstance(index, torch.Tensor) and index.shape == target.shape and single:
        return meet(call.groups, call.operands, num_dims=target.ndim)  # h[h < 0] = 0
    shape, neurons = call.subject()
    try:
        part = probe(shape, neurons, dtype=torch.float32)[imitate(index, torch.Tensor.cpu)].shape
    except (RuntimeError, ValueError, IndexError, TypeError):
        part = torch.Size()
    if MARKER not in part or not single:
        raise Refusal(
            "an assignment writes single neurons, or values for each of them, into a tensor",
            "Build the tensor with operations that treat all neurons alike, such as torch.where",
        )
    return neurons


def _refused(found: str, remedy: str) -> Rule:
    def refuse(call: Call) -> State:
        raise Refusal(f"'{call.name}' {found}", remedy)

    return refuse


_normalise = _refused(
    "normalises over several neurons at once, or with values for each of them that belong to no "
    "layer",
    "Use a BatchNorm module, or no normalisation",
)
_multiply = _refused(
    "multiplies hidden neurons outside a layer",
    f"{_NO_WEIGHTS}: use the nn.Linear or nn.Conv module, called once. Attention between neurons "
    "cannot be pruned yet",
)
_rearrange = _refused(
    "moves neurons between channels and space, or regroups them",
    "Use interpolation or a strided convolution instead",
)


_NAMES: dict[Rule, str] = {
    _pointwise: (
        "abs absolute neg negative pos positive exp exp2 expm1 log log10 log1p log2 sqrt rsqrt "
        "square reciprocal sin cos tan asin acos atan arcsin arccos arctan sinh cosh tanh asinh "
        "acosh atanh arcsinh arccosh arctanh sigmoid relu relu6 leaky_relu elu celu selu gelu silu "
        "mish softplus softsign hardtanh hardswish hardsigmoid hardshrink softshrink tanhshrink "
        "logsigmoid log_sigmoid threshold rrelu rrelu_with_noise erf erfc erfinv floor ceil round "
        "trunc fix frac sign sgn signbit nan_to_num logit expit isnan isinf isfinite isposinf "
        "isneginf isreal logical_not bitwise_not invert clamp_min clamp_max sinc lgamma digamma i0 "
        "deg2rad rad2deg bernoulli dropout dropout1d dropout2d dropout3d feature_dropout "
        "alpha_dropout feature_alpha_dropout native_dropout clone contiguous detach float double "
        "half bfloat16 int long short bool type cuda cpu cast zeros_like ones_like empty_like "
        "full_like rand_like randn_like randint_like fill zero normal uniform exponential "
        "log_normal cauchy geometric random data alias identity real conj resolve_conj "
        "resolve_neg add sub subtract mul multiply div divide truediv true_divide floordiv "
        "floor_divide mod remainder fmod pow float_power maximum minimum fmax fmin where lerp "
        "addcmul addcdiv atan2 arctan2 hypot copysign eq ne lt le gt ge greater greater_equal "
        "less less_equal not_equal logical_and logical_or logical_xor bitwise_and bitwise_or "
        "bitwise_xor and or xor lshift rshift bitwise_left_shift bitwise_right_shift xlogy "
        "masked_fill clamp clip logaddexp logaddexp2 heaviside nextafter ldexp isclose rsub "
        "expand_as copy"
    ),
    _constant: "new_zeros new_ones new_empty new_full new_tensor",
    _reshape: "view reshape flatten unflatten view_as reshape_as ravel",
    _expand: "expand broadcast_to",
    _move: (
        "permute transpose t T mT H mH adjoint swapaxes swapdims movedim moveaxis unsqueeze "
        "squeeze getitem narrow select split split_with_sizes chunk tensor_split unbind repeat "
        "tile repeat_interleave unsafe_chunk unsafe_split"
    ),
    _reduce: (
        "sum mean prod amax amin max min argmax argmin norm vector_norm linalg_vector_norm "
        "linalg_norm var std var_mean std_mean logsumexp median nanmedian nanmean nansum all any "
        "count_nonzero aminmax mode kthvalue"
    ),
    _along: " ".join(_ALONG),
    _spatial: (
        " ".join(
            f"{kind}_pool{d}d{end}"
            for kind in ("max", "avg", "lp", "adaptive_max", "adaptive_avg", "fractional_max")
            for d in (1, 2, 3)
            for end in ("", "_with_indices")
        )
        + " interpolate upsample upsample_nearest upsample_bilinear instance_norm"
    ),
    _normalise: ("layer_norm native_layer_norm group_norm rms_norm local_response_norm batch_norm"),
    _pad: "pad",
    _concatenate: "cat concat concatenate stack",
    _setitem: "setitem",
    _multiply: (
        "matmul mm bmm mv dot inner outer einsum tensordot bilinear linear addmm addbmm baddbmm "
        "addmv conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cdist "
        "scaled_dot_product_attention multi_head_attention_forward chain_matmul multi_dot kron"
    ),
    _rearrange: (
        "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle unfold fold"
    ),
}
RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}
"""The rule of every operation that may touch neurons."""
