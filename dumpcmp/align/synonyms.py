"""Functions that do the same under other names: in eager code, in graphs, and in the dispatcher."""

from __future__ import annotations

from functools import cache

# Functions whose outputs are views of their first input, as far as its layout allows.
_VIEWS = frozenset(
    """
    alias as_strided broadcast_to chunk contiguous data detach diagonal dsplit expand expand_as
    flatten getitem H hsplit mH movedim mT narrow permute real reshape reshape_as select slice split
    split_with_sizes squeeze swapaxes swapdims T t tensor_split transpose unbind unflatten unfold
    unsafe_chunk unsafe_split unsafe_view unsqueeze view view_as view_as_complex view_as_real vsplit
    """.split()  # noqa: SIM905
)
_COPIES = frozenset("clone copy lift_fresh lift_fresh_copy to dropout".split())  # noqa: SIM905
_CASTS = "bfloat16 bool cpu cuda double float half int long to_copy type type_as"
_CONTRACTIONS = frozenset(
    "addbmm addmm addmv baddbmm bmm dot einsum linear matmul mm mv tensordot".split()  # noqa: SIM905
)
_SYNONYMS = {
    **dict.fromkeys(_CASTS.split(), "to"),
    **dict.fromkeys(("and", "bitwise_and", "logical_and"), "and"),
    **dict.fromkeys(("or", "bitwise_or", "logical_or"), "or"),
    **dict.fromkeys(("not", "invert", "bitwise_not", "logical_not"), "not"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "mkldnn_convolution"), "conv"),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), "conv"),
    "adaptive_avg_pool2d": "mean",
    "batch_norm_legit": "batch_norm",
    "batch_norm_legit_no_training": "batch_norm",
    "constant_pad_nd": "pad",
    "cudnn_batch_norm": "batch_norm",
    "grouped_mm_fallback": "grouped_mm",
    "index": "getitem",
    "index_put": "setitem",
    "max_pool2d_with_indices": "max_pool2d",
    "nll_loss_forward": "nll_loss",
    "rsub": "sub",
    "scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "special_expm1": "expm1",
    "true_divide": "div",
    "truediv": "div",
    "upsample_bilinear2d": "interpolate",
    "upsample_nearest2d": "interpolate",
}
BACKWARD = "backward."  # what autograd ran is never what the program wrote


@cache
def canonical(function: str) -> str:
    """One name for all that do what `function` does: ``aten._to_copy`` and ``float`` are ``to``.

    >>> canonical("aten._unsafe_view"), canonical("aten.native_layer_norm")
    ('unsafe_view', 'layer_norm')
    """
    if function.startswith(BACKWARD):
        return function
    name = function.removeprefix("aten.").lstrip("_").removeprefix("native_")
    return _SYNONYMS.get(name, name)


@cache
def gives_views(function: str) -> bool:
    """Whether the outputs of `function` are its first input, seen in another way."""
    return _plain(function) in _VIEWS


@cache
def keeps_elements(function: str) -> bool:
    """Whether what `function` gives out can be its first input once more, element by element."""
    return _plain(function) in _VIEWS or _plain(function) in _COPIES


@cache
def contracts(function: str) -> bool:
    """Whether `function` multiplies matrices, however it lays them out before."""
    return _plain(function) in _CONTRACTIONS


def _plain(function: str) -> str:
    return canonical(function.removeprefix(BACKWARD))
