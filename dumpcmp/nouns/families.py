"""Which functions are names for the same thing, or ways to the same thing."""

from __future__ import annotations

from dumpcmp.nouns.op_names import OpSet, OpTable

DTYPES_OF_CASTS = OpTable({
    "float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64",
    "int": "int32", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8",
    "bool": "bool",
})  # fmt: skip
_CASTS = OpSet(("to", "type", "type_as", "_to_copy", *DTYPES_OF_CASTS))

# Functions whose result has the elements of what was given, in their order: its shape says it all.
_SHAPING = OpSet(
    """
    _reshape_alias _unsafe_view alias atleast_1d atleast_2d atleast_3d broadcast_tensors
    broadcast_to clone contiguous cpu cuda data detach expand expand_as flatten lift lift_fresh
    pin_memory ravel reshape reshape_as squeeze unflatten unsqueeze view view_as view_as_complex
    view_as_real
    """
)

# Functions that can do each other's work: to find one in the place of another is no finding.
_FAMILIES = (
    _SHAPING,
    _CASTS,
    OpSet("t T mT H mH transpose permute movedim adjoint"),
    OpSet("linear addmm mm matmul bmm baddbmm mv addmv dot einsum tensordot inner outer"),
    OpSet(
        """
        getitem slice select narrow index index_select gather take take_along_dim chunk split
        split_with_sizes unsafe_split unsafe_chunk unbind tensor_split embedding one_hot
        """
    ),
    OpSet("setitem copy index_put index_copy scatter select_scatter slice_scatter"),
    OpSet("cat stack hstack vstack dstack column_stack"),
    OpSet("pow square sqrt rsqrt reciprocal div mul"),
    OpSet("add sub rsub addcmul addcdiv lerp neg"),
    OpSet("masked_fill where clamp clamp_min clamp_max maximum minimum relu"),
    OpSet("layer_norm native_layer_norm rms_norm _fused_rms_norm"),
    OpSet("group_norm native_group_norm instance_norm batch_norm native_batch_norm"),
    OpSet("dropout native_dropout"),
    OpSet("conv1d conv2d conv3d convolution _convolution"),
    OpSet("zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full"),
)
_FAMILY = OpTable({name: family for family in _FAMILIES for name in family})


def family_of(function: str) -> OpSet:
    """The functions that can do the work of `function`, itself among them."""
    return _FAMILY.get(function) or OpSet((function,))


def is_shaping(function: str) -> bool:
    """Whether the shape of its result says all that `function` did with what it was given."""
    return function in _SHAPING


def is_cast(function: str) -> bool:
    """Whether `function` only gives its elements another dtype."""
    return function in _CASTS
