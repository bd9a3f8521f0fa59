"""How much memory a call may take: what it would give out is known before it runs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet, OpTable
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction
from dumpcmp.replay.unreplayable import Unreplayable

MOST_BYTES = 8 << 30  # of float64 that one call may give out
_WIDTH = 8  # bytes of an element
_ATTENTION = "scaled_dot_product_attention"
_BROADCASTS = (FunctionKind.ELEMENTWISE, FunctionKind.ADDS)

# What these give out depends on the values that they are given, so that nothing but those can say
# how much it is: no more than so many elements for each of the first tensor.
_BY_VALUE = OpTable({
    "nonzero": 8, "argwhere": 8, "masked_select": 1, "unique": 3, "unique_consecutive": 3,
    "_unique": 3, "_unique2": 3, "getitem": 8, "index": 8, "_unsafe_index": 8, "where": 8,
})  # fmt: skip


# Functions that give out no more than they take, whatever their other arguments are.
_NO_LARGER = OpSet(
    """
    T abs bfloat16 cat clamp clone contiguous chunk detach double flatten float half mT masked_fill
    neg permute relu reshape select split squeeze stack t to transpose tril triu type_as unbind
    unsqueeze view
    """
)
# Functions that give out no more than their first tensor has, as values and as indices.
_LIKE_FIRST = OpSet(
    """
    _log_softmax_backward_data _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu_backward _softmax_backward_data argmax argmin
    argsort avg_pool2d_backward batch_norm convolution_backward cross_entropy cudnn_batch_norm
    cudnn_batch_norm_backward cumsum dropout group_norm index_add index_copy index_put layer_norm
    log_softmax logsumexp max_pool2d_with_indices_backward mean native_batch_norm_backward
    native_group_norm_backward native_layer_norm_backward nll_loss nll_loss_backward norm rms_norm
    scatter scatter_add setitem softmax sort std sum threshold_backward topk var
    """
)
_PRODUCTS = OpSet("addmm baddbmm bmm dot matmul mm mv")
_BY_ROWS = OpSet(("embedding", "linear", _ATTENTION))
_MOST_SIZES = 64  # numbers of a tensor that may be a shape
_COUNTS = OpSet("bincount one_hot")
_CROSSED = OpSet("outer addr")  # of each element of one with each of the other


def check_size(function: ReplayFunction, arguments: CallArguments, limit: int = MOST_BYTES) -> None:
    """Refuse a call that would give out more than `limit` bytes."""
    if _WIDTH * _at_most(function, arguments) <= limit:
        return
    nbytes = _WIDTH * _num_elements(function, arguments)
    if nbytes > limit:
        raise Unreplayable(f"it gives out {nbytes:.3g} bytes in float64, and {limit:.3g} may be")


def _at_most(function: ReplayFunction, arguments: CallArguments) -> float:
    """More elements than a call can give out, where that is plain; else infinitely many.

    To know it precisely takes a run on tensors without memory, and torch seconds to learn those.
    """
    tensors = arguments.tensors()
    sizes = [float(tensor.numel()) for tensor in tensors]
    if function.name in _NO_LARGER:
        return sum(sizes)
    if function.name in _LIKE_FIRST:
        return 2 * math.prod(max(1.0, size) for size in sizes[:1]) + sum(sizes)
    if function.name in _PRODUCTS:
        return math.prod(max(1.0, size) for size in sizes[:3])
    if len(tensors) > 1 and function.name in _BY_ROWS:
        return _by_rows(function.name, tensors)
    return math.inf


def _by_rows(name: str, tensors: list[Tensor]) -> float:
    """What an op gives out that makes a row of another length of each row."""
    first, second, *others = tensors
    if name == "embedding":
        by_rows = second.shape[-1:] if not first.is_floating_point() else [second.numel()]
        return float(first.numel()) * max(by_rows, default=1)
    if name == _ATTENTION:
        return float(first.numel()) * (others[0].shape[-1] if others and others[0].ndim else 1)
    rows = float(first.numel()) / float(max([1, *first.shape[-1:]]))
    return rows * float(max(second.shape[:1], default=1))


def _num_elements(function: ReplayFunction, arguments: CallArguments) -> float:
    tensors = arguments.tensors()
    if function.name == "repeat_interleave" and len(tensors) > 1:
        rows = tensors[0].numel() / max(1, max(tensors[0].shape, default=1))
        return float(tensors[1].sum()) * max(1.0, rows)
    if function.name in _COUNTS:
        return _counted(function.name, tensors[0], arguments)
    if function.kind in _BROADCASTS and tensors and function.name not in _CROSSED:
        return _broadcast(tensors)
    return _as_meta(function, arguments)


def _broadcast(tensors: list[Tensor]) -> float:
    ndim = max(t.ndim for t in tensors)
    shapes = [(1,) * (ndim - t.ndim) + tuple(t.shape) for t in tensors]
    return math.prod(float(max(sizes)) for sizes in zip(*shapes, strict=True))


def _counted(name: str, ids: Tensor, arguments: CallArguments) -> float:
    told = [leaf for leaf in arguments.leaves() if isinstance(leaf, int)]
    most = max([int(ids.max()) + 1 if ids.numel() else 0, *told])
    return float(most) * (ids.numel() if name == "one_hot" else 1)


def _as_meta(function: ReplayFunction, arguments: CallArguments) -> float:
    """Run the call without memory: tensors have shapes and no elements."""
    trouble: Exception | None = None
    for shape in (_shape_but_sizes, _shape_but_numbers) if function.reads_sizes else (_shape,):
        try:
            with torch.device("meta"):
                result = function.run(*(shapes := arguments.mapped(shape)).args, **shapes.kwargs)
        except Exception as error:
            trouble = trouble or error
        else:
            return float(sum(tensor.numel() for _, tensor in slots_of("", result)))
    assert trouble is not None
    return _by_value(function, arguments, trouble)


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    return leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf


def _shape_but_sizes(leaf: Any) -> Any:
    """The same; what may tell sizes keeps its numbers."""
    is_float = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return _shape(leaf) if is_float else _shape_but_numbers(leaf)


def _shape_but_numbers(leaf: Any) -> Any:
    """The same; what may tell factors of sizes keeps its numbers, too."""
    is_short = isinstance(leaf, Tensor) and leaf.ndim <= 1 and leaf.numel() <= _MOST_SIZES
    return leaf if is_short else _shape(leaf)


def _by_value(function: ReplayFunction, arguments: CallArguments, error: Exception) -> float:
    factor = _BY_VALUE.get(function.name)
    if factor is None:
        said = str(error).partition("\n")[0][:120]
        raise Unreplayable(f"how much it gives out cannot be told: {said}") from None
    return float(factor * max((t.numel() for t in arguments.tensors()), default=0))
