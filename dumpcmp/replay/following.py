"""Follows elements through ops: from the marks of what an op took to marks of what it gave out.

Each rule is run for either side with its own marks and its own indices. Where both sides then
have an equal mark, they have computed the same from the same. What no rule knows is touched
wherever anything that it took is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.op_names import OpTable
from dumpcmp.replay.counterparts import (
    NONE,
    Counterparts,
    TooManyMarksError,
    all_touched,
    by_rows,
    grouped,
    is_by_rows,
    joined,
    paired,
    running,
    spread,
)
from dumpcmp.replay.indexing import INDEXING
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.marked import FollowRule, Given, Hinted, Marked, MarkedCall
from dumpcmp.replay.unreplayable import Unreplayable

_MISFITS = (RuntimeError, IndexError, KeyError, TypeError, ValueError)


def follow(golden: MarkedCall, target: MarkedCall) -> dict[str, Counterparts]:
    """What corresponds to what in the outputs of a call, by slot, as its two sides ran it.

    Where a rule does not fit the call, whatever the reason, nothing is known of its outputs.
    """
    slots = list(golden.shapes)
    try:
        rule = _rule_for(golden.call.target)
        given = [rule(side) for side in (golden, target)]
        if len({len(each) for each in given} | {len(slots)}) > 1:
            raise Unreplayable("the sides give out other numbers of values")
        found = {
            slot: _fitting(_paired(*sides), target.shapes[slot])
            for slot, *sides in zip(slots, *given, strict=True)
        }
    except (DumpcmpError, TooManyMarksError, *_MISFITS):
        found = {slot: all_touched(golden.shapes[slot], target.shapes[slot]) for slot in slots}
    return {slot: by_value(one, golden, target, slot) for slot, one in found.items()}


def _paired(golden: Given, target: Given) -> Counterparts:
    ours, theirs = joined(golden), joined(target)
    if not (isinstance(golden, Hinted) and isinstance(target, Hinted)):
        return paired(ours, theirs)
    close = paired(joined([ours, *golden.hints]), joined([theirs, *target.hints]))
    return paired(ours.expand(close.grid), theirs.expand(close.of.shape), close)


def _fitting(found: Counterparts, shape: tuple[int, ...]) -> Counterparts:
    """`found`, if it is of the rows or elements of a value of `shape`."""
    if tuple(found.of.shape) not in (shape, by_rows(shape)):
        raise Unreplayable("its inputs have more dims on one side than what it gave out")
    return found


def by_value(
    found: Counterparts, golden: MarkedCall, target: MarkedCall, slot: str
) -> Counterparts:
    """The same of integers, of which the values themselves are known.

    Equal ones at the same place are the same, whatever they were computed from. Those that differ
    are not, where they were computed from numbers that rounding may have moved.
    """
    ours, theirs = golden.got.get(slot), target.got.get(slot)
    if ours is None or theirs is None or not (ours.numel() and theirs.numel()):
        return found
    of = spread(found.of, tuple(theirs.shape)).clone().reshape(-1)
    grid = tuple(ours.shape)
    if any(one.read is None for one in golden.marked):
        moved = ours.reshape(-1)[of.clamp(min=0)] != theirs.reshape(-1)
        of[moved] = NONE
    if ours.shape == theirs.shape:
        free = torch.ones(of.numel(), dtype=torch.bool)
        free[of[of >= 0]] = False
        same = (of < 0) & (ours == theirs).reshape(-1) & free
        of[same] = same.nonzero()[:, 0]
    return Counterparts(of.reshape(theirs.shape), grid)


def _rule_for(name: str) -> FollowRule:
    function = function_named(name)
    if function.name in _RULES:
        return _RULES[function.name]
    if function.kind in (FunctionKind.ELEMENTWISE, FunctionKind.ADDS):
        return _elementwise
    raise Unreplayable("no rule follows it")


# Elements and rows


def _elementwise(side: MarkedCall) -> list[Given]:
    """Each element from one of each input, as they broadcast."""
    ndim = max(len(each.shape) for each in side.marked)
    rows = all(is_by_rows(m.marks, m.shape) or m.shape[-1:] in ((), (1,)) for m in side.marked)
    shown = [m.marks if rows else m.whole for m in side.marked]
    return [[marks.reshape((1,) * (ndim - marks.ndim) + tuple(marks.shape)) for marks in shown]]


def _rowwise(side: MarkedCall) -> list[Given]:
    """Each row from one row of the first input; what else there is are weights."""
    first, *others = side.marked
    if any((other.marks < 0).any() for other in others):
        raise Unreplayable("its weights are another computation")
    return [[_row_marks(first)]]


def _row_marks(one: Marked) -> Tensor:
    """A mark for each row along the last dim."""
    if is_by_rows(one.marks, one.shape) or not one.shape:
        return one.marks
    return grouped(one.marks, (len(one.shape) - 1,))


def _contracted(side: MarkedCall) -> list[Given]:
    """Of matmul: an element from a row of the first and a column of the second."""
    *bias, first, second = side.marked  # of addmm what is added comes first
    ndim = max(len(first.shape), len(second.shape))
    if min(len(first.shape), len(second.shape)) < 2:
        raise Unreplayable("vectors are not followed")
    columns = grouped(second.marks, (len(second.shape) - 2,))
    return [[_row_marks(first), columns, *(_wide(each.marks, ndim) for each in bias)]]


def _wide(marks: Tensor, ndim: int) -> Tensor:
    return marks.reshape((1,) * (ndim - marks.ndim) + tuple(marks.shape))


def _grouped_contraction(side: MarkedCall) -> list[Given]:
    """Of grouped_mm: each row from one row, and the weights of the group that it lies in."""
    asked = side.named("input", "mat2", "offs")
    rows, ends = asked["input"], asked["offs"].known
    if len(rows.shape) != 2:
        raise Unreplayable("groups of columns are not followed")
    group = torch.searchsorted(ends, torch.arange(rows.shape[0], dtype=ends.dtype), right=True)
    return [[_row_marks(rows), group.reshape(-1, 1)]]


def _softmax(side: MarkedCall) -> list[Given]:
    asked = side.named("input", "dim")
    one, dim = asked["input"], int(asked["dim"])
    if dim % len(one.shape) == len(one.shape) - 1:
        return [[_row_marks(one)]]
    marks = one.whole
    return [[marks, grouped(marks, (dim % marks.ndim,))]]


def _reduced(side: MarkedCall) -> list[Given]:
    """Of sums, means, maxima, norms: each from a group along the dims that are gone."""
    asked = side.named("input", "dim")
    one, told = asked["input"], asked.get("dim", asked.get("axis"))
    if not one.shape:
        return [[one.marks]]
    listed = [told] if isinstance(told, int) else list(told or range(len(one.shape)))
    dims = tuple(sorted(dim % len(one.shape) for dim in listed))
    marks = grouped(one.marks, dims)
    (shape,) = side.shapes.values()
    if len(shape) < len(one.shape):
        marks = marks.reshape([n for dim, n in enumerate(marks.shape) if dim not in dims])
    return [[marks]]


def _scanned(side: MarkedCall) -> list[Given]:
    asked = side.named("input", "dim")
    one = asked["input"]
    return [[running(one.whole, int(asked["dim"]) % len(one.shape))]]


def _attention(side: MarkedCall) -> list[Given]:
    """Each row of queries from all keys and values that it may look at."""
    asked = side.named("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    query, *others = (asked[name] for name in ("query", "key", "value"))
    if isinstance(asked.get("attn_mask"), Marked) and (asked["attn_mask"].marks < 0).any():
        raise Unreplayable("its mask is another computation")
    rows, sources = _row_marks(query), [_row_marks(query)]
    causal = bool(asked.get("is_causal", False))
    for other in others:
        marks = _row_marks(other)
        heads = rows.shape[-3] if rows.ndim > 2 else 1
        if marks.ndim > 2 and marks.shape[-3] != heads:  # groups of heads share keys and values
            marks = marks.repeat_interleave(heads // marks.shape[-3], -3)
        dim = marks.ndim - 2
        sources.append(running(marks, dim) if causal else grouped(marks, (dim,)))
    return [sources]


# What only moves


def _moved(side: MarkedCall) -> list[Given]:
    """The function itself, run on marks; several tensors are told apart."""
    function = function_named(side.call.target)
    told = _apart(side, [one.whole for one in side.marked])
    got = function.run(*told.args, **told.kwargs)
    return [[marks] for marks in ([got] if isinstance(got, Tensor) else got)]


def _apart(side: MarkedCall, marks: Sequence[Tensor]) -> Any:
    """The arguments with `marks` in place of tensors, each in a range of its own."""
    left = iter(marks)
    number = iter(range(len(marks)))

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Marked):
            return leaf
        one, shift = next(left), next(number) << 40
        return torch.where(one < 0, NONE, one + shift)

    return side.arguments.mapped(change)


def _stacked(side: MarkedCall) -> list[Given]:
    """Of cat: rows stay rows unless they are put end to end."""
    asked = side.named("tensors", "dim")
    last = len(side.marked[0].shape) - 1
    dim = int(asked.get("dim", 0)) % (last + 1)
    if dim == last or not all(is_by_rows(m.marks, m.shape) for m in side.marked):
        return _moved(side)
    told = _apart(side, [one.marks for one in side.marked])
    return [[function_named(side.call.target).run(*told.args, **told.kwargs)]]


def _split(side: MarkedCall) -> list[Given]:
    """Of split and chunk: rows stay rows; of columns every part has the same rows."""
    (one,) = side.marked
    asked = side.named("input", "parts", "dim")
    last = len(one.shape) - 1
    if not is_by_rows(one.marks, one.shape):
        return _moved(side)
    if int(asked.get("dim", 0)) % (last + 1) == last:
        return [[one.marks] for _ in side.shapes]
    told = side.with_marks(whole=False)
    got = function_named(side.call.target).run(*told.args, **told.kwargs)
    return [[marks] for marks in got]


def _reshaped(side: MarkedCall) -> list[Given]:
    """Of views: by the shapes alone; rows stay rows where the last dim is kept or divided."""
    one = side.marked[0]
    (shape,) = side.shapes.values()
    if not (is_by_rows(one.marks, one.shape) and shape):
        return [[one.whole.reshape(shape)]]
    width, new = one.shape[-1], shape[-1]
    outer = (*shape[:-1], 1)
    if new and width % new == 0:
        share = width // new
        marks = torch.where(one.marks < 0, NONE, one.marks * share + torch.arange(share))
        return [[marks.reshape(outer)]]
    if width and new % width == 0:  # several rows become one
        share = new // width
        return [[grouped(one.marks.reshape(-1, share), (1,)).reshape(outer)]]
    return [[one.whole.reshape(shape)]]


def _permuted(side: MarkedCall) -> list[Given]:
    """Of transpose and permute: rows stay rows where the last dim stays the last."""
    (one,) = side.marked
    (shape,) = side.shapes.values()
    if is_by_rows(one.marks, one.shape) and function_named(side.call.target).name != "t":
        told = side.with_marks(whole=False)
        got = function_named(side.call.target).run(*told.args, **told.kwargs)
        if got.shape[-1] == 1 and tuple(got.shape[:-1]) == tuple(shape[:-1]):
            return [[got]]
    return _moved(side)


def _expanded(side: MarkedCall) -> list[Given]:
    one = side.marked[0]
    (shape,) = side.shapes.values()
    marks = one.marks if one.shape[-1:] == shape[-1:] else one.whole
    rows = is_by_rows(marks, one.shape)
    return [[marks.expand((*shape[:-1], 1) if rows else shape)]]


def _unchanged(side: MarkedCall) -> list[Given]:
    return [[side.marked[0].marks]]


def _fresh(side: MarkedCall) -> list[Given]:
    """Of zeros_like and the like: nothing of the values, only their shape."""
    shapes = map(by_rows, side.shapes.values())
    return [[torch.zeros(shape, dtype=torch.int64)] for shape in shapes]


def _rules() -> OpTable[FollowRule]:
    found: dict[str, FollowRule] = {}
    for words, rule in (*_TABLE, *INDEXING):
        found |= dict.fromkeys(words.split(), rule)
    return OpTable(found)


_TABLE: tuple[tuple[str, FollowRule], ...] = (
    ("""to float half bfloat16 double long int bool type type_as contiguous clone detach alias
        relu relu6 abs neg clamp clamp_min clamp_max clip hardtanh threshold floor ceil round trunc
        sign frac logical_not bitwise_not isnan isinf isfinite dropout _to_copy
        lift_fresh_copy requires_grad_""", _unchanged),
    ("""eq ne lt le gt ge maximum minimum logical_and logical_or logical_xor bitwise_and bitwise_or
        bitwise_xor floor_divide remainder fmin fmax isclose""", _elementwise),
    ("linear layer_norm rms_norm native_layer_norm normalize _fused_rms_norm", _rowwise),
    ("matmul bmm mm addmm baddbmm", _contracted),
    ("grouped_mm _grouped_mm", _grouped_contraction),
    ("softmax log_softmax _softmax _log_softmax softmin", _softmax),
    ("""sum mean amax amin prod var std logsumexp any all count_nonzero
        nansum""", _reduced),
    ("cumsum cumprod logcumsumexp", _scanned),
    ("scaled_dot_product_attention", _attention),
    ("""select narrow slice unbind roll flip repeat tile stack hstack vstack diagonal tril triu
        repeat_interleave tensor_split""", _moved),
    ("cat", _stacked),
    ("split chunk split_with_sizes", _split),
    ("""view reshape view_as reshape_as flatten unflatten squeeze unsqueeze ravel _unsafe_view
        atleast_1d atleast_2d atleast_3d""", _reshaped),
    ("permute transpose t T mT movedim moveaxis swapaxes swapdims", _permuted),
    ("expand expand_as broadcast_to", _expanded),
    ("zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full", _fresh),
)  # fmt: skip
_RULES = _rules()
