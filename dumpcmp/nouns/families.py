"""Which functions are names for the same thing, or ways to the same thing."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Other names of a function -> the one that captures use.
_SYNONYMS = {
    "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "absolute": "abs",
    "negative": "neg", "concat": "cat", "concatenate": "cat", "clip": "clamp", "arctan": "atan",
    "arcsin": "asin", "arccos": "acos", "greater": "gt", "less": "lt", "not_equal": "ne",
    "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim", "_softmax": "softmax",
    "_log_softmax": "log_softmax", "special_expit": "sigmoid",
}  # fmt: skip

DTYPES_OF_CASTS = {
    "float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64",
    "int": "int32", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8",
    "bool": "bool",
}  # fmt: skip
_CASTS = _words("to type type_as _to_copy") | frozenset(DTYPES_OF_CASTS)

# Functions whose result has the elements of what was given, in their order: its shape says it all.
_SHAPING = _words(
    """
    _unsafe_view alias atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to clone
    contiguous cpu cuda data detach expand expand_as flatten lift lift_fresh pin_memory ravel
    reshape reshape_as squeeze unflatten unsqueeze view view_as view_as_complex view_as_real
    """
)

# Functions that can do each other's work: to find one in the place of another is no finding.
_FAMILIES = (
    _SHAPING,
    _CASTS,
    _words("t T mT H mH transpose permute movedim adjoint"),
    _words("linear addmm mm matmul bmm baddbmm mv addmv dot einsum tensordot inner outer"),
    _words(
        """
        getitem slice select narrow index index_select gather take take_along_dim chunk split
        split_with_sizes unsafe_split unsafe_chunk unbind tensor_split embedding one_hot
        """
    ),
    _words("setitem copy index_put index_copy scatter select_scatter slice_scatter"),
    _words("cat stack hstack vstack dstack column_stack"),
    _words("pow square sqrt rsqrt reciprocal div mul"),
    _words("add sub rsub addcmul addcdiv lerp neg"),
    _words("masked_fill where clamp clamp_min clamp_max maximum minimum relu"),
    _words("layer_norm native_layer_norm rms_norm _fused_rms_norm"),
    _words("group_norm native_group_norm instance_norm batch_norm native_batch_norm"),
    _words("dropout native_dropout"),
    _words("conv1d conv2d conv3d convolution _convolution"),
    _words("zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full"),
)
_FAMILY = {name: family for family in _FAMILIES for name in family}


def plain_name(function: str) -> str:
    """One name for a function, however it was reached: ``aten.gelu`` is ``gelu``."""
    last = function.rpartition(".")[2]
    if last.startswith("_scaled_dot_product"):
        return "scaled_dot_product_attention"
    return "to" if last in _CASTS else _SYNONYMS.get(last, last)


def family_of(function: str) -> frozenset[str]:
    """The functions that can do the work of `function`, itself among them."""
    return _FAMILY.get(function, frozenset((function,)))


def is_shaping(function: str) -> bool:
    """Whether the shape of its result says all that `function` did with what it was given."""
    return function in _SHAPING


def is_cast(function: str) -> bool:
    """Whether `function` only gives its elements another dtype."""
    return function in _CASTS
