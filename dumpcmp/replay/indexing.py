"""Follows elements through what chooses, takes by an index or a mask, and puts by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet
from dumpcmp.replay.counterparts import NONE, grouped, is_by_rows, mixed
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.marked import FollowRule, Given, Hinted, Marked, MarkedCall
from dumpcmp.replay.unreplayable import Unreplayable

_OF_ALL = OpSet("argmax argmin")  # without a dim
_DISPATCHED = OpSet("index index_put")

# What chooses


def _chosen(side: MarkedCall) -> list[Given]:
    """Of topk, sort and argmax: whatever is given out at a place is one of the scores."""
    name = function_named(side.call.target).name
    asked = side.named("input", *(("k", "dim") if name == "topk" else ("dim",)))
    one, indices = asked["input"], list(side.got.values())[-1]
    dim = asked.get("dim", None if name in _OF_ALL else -1)
    if dim is None or not one.shape:
        marks = one.whole.reshape(-1)[indices.reshape(-1)].reshape(indices.shape)
    else:
        listed = indices if indices.ndim == len(one.shape) else indices.unsqueeze(dim)
        marks = one.whole.gather(dim, listed).reshape(indices.shape)
    return [[marks] for _ in side.shapes]


def _found_places(side: MarkedCall) -> list[Given]:
    """Of nonzero: each place is known by the element of the mask that it is."""
    one = side.marked[0]
    marks = one.whole[one.known != 0]
    if len(side.shapes) == 1 and len(next(iter(side.shapes.values()))) == 2:
        return [[marks.reshape(-1, 1)]]
    return [[marks] for _ in side.shapes]


# What indices and masks take


def _taken(side: MarkedCall) -> list[Given]:
    """Of indexing: from the element that is taken, and from the index that takes it."""
    asked = side.named("input", "key")
    one, parts = asked["input"], _parts(side, asked["key"])
    marks, cut = one.whole, parts
    if is_by_rows(one.marks, one.shape) and _spares_last(parts, len(one.shape)):
        marks = one.marks
    elif is_by_rows(one.marks, one.shape) and _cuts_last(parts, len(one.shape)):
        marks, cut = one.marks, [*parts[:-1], slice(None)]
    taken = marks[tuple(part.known if isinstance(part, Marked) else part for part in cut)]
    indices = [_placed(part, parts, taken.ndim) for part in parts if isinstance(part, Marked)]
    same = torch.full((), hash(str(parts[-1])) & 0xFFFFFFFF) if cut is not parts else None
    return [Hinted([taken, *([] if same is None else [same])], indices)]


def _parts(side: MarkedCall, key: Any) -> list[Any]:
    """The parts of an index, as Python's brackets have them."""
    if isinstance(key, list) and not any(isinstance(part, Marked) for part in key):
        return [torch.tensor(key)]
    if function_named(side.call.target).name in _DISPATCHED:  # aten's None is a slice
        return [slice(None) if part is None else part for part in key]
    return list(key) if isinstance(key, tuple | list) else [key]


def _cuts_last(parts: list[Any], ndim: int) -> bool:
    """Whether a key takes a slice of the last dim, and what it takes of the others is plain."""
    full = parts[0] is Ellipsis or len(parts) == ndim
    return full and isinstance(parts[-1], slice) and not any(isinstance(p, Marked) for p in parts)


def _spares_last(parts: list[Any], ndim: int) -> bool:
    """Whether a key leaves the last dim whole."""
    num = sum(
        (part.known.ndim if part.known.dtype == torch.bool else 1)
        for part in parts
        if isinstance(part, Marked)
    )
    num += sum(isinstance(part, int | slice) and not isinstance(part, bool) for part in parts)
    if any(part is Ellipsis for part in parts):
        return parts[-1] is Ellipsis
    return num < ndim and not (parts and parts[-1] is None)


def _placed(index: Marked, parts: list[Any], ndim: int) -> Tensor:
    """The marks of an index at the dims of what it takes."""
    marks = index.whole
    if index.known.dtype == torch.bool:
        marks = marks[index.known]
    if any(isinstance(part, int) or part is Ellipsis for part in parts):
        raise Unreplayable("indices of several kinds are not followed")
    which = [i for i, part in enumerate(parts) if isinstance(part, Marked)]
    together = which == list(range(which[0], which[-1] + 1))
    widest = max(
        1 if isinstance(p, Marked) and p.known.dtype == torch.bool else p.known.ndim
        for p in parts
        if isinstance(p, Marked)
    )
    before = which[0] if together else 0
    behind = ndim - before - widest
    full = (1,) * (widest - marks.ndim) + tuple(marks.shape)
    return marks.reshape((1,) * before + full + (1,) * behind)


def _gathered(side: MarkedCall) -> list[Given]:
    asked = side.named("input", "dim", "index")
    index = asked["index"]
    return [Hinted([asked["input"].whole.gather(int(asked["dim"]), index.known)], [index.whole])]


def _index_selected(side: MarkedCall) -> list[Given]:
    asked = side.named("input", "dim", "index")
    one, index = asked["input"], asked["index"]
    dim = int(asked["dim"]) % len(one.shape)
    marks = one.marks if dim < len(one.shape) - 1 else one.whole
    sizes = [1] * len(one.shape)
    sizes[dim] = index.known.numel()
    taken = marks.index_select(dim, index.known.reshape(-1))
    return [Hinted([taken], [index.whole.reshape(sizes)])]


def _embedded(side: MarkedCall) -> list[Given]:
    names = ("weight", "input")  # aten's order; that of torch.nn.functional is the other
    asked = side.named(*(names[::-1] if "functional" in side.call.target else names))
    index = asked["input"]
    if (asked["weight"].marks < 0).any():
        raise Unreplayable("its weights are another computation")
    return [Hinted([index.known.unsqueeze(-1)], [index.whole.unsqueeze(-1)])]


def _masked_selected(side: MarkedCall) -> list[Given]:
    asked = side.named("input", "mask")
    mask = asked["mask"].known
    marks = asked["input"].whole.broadcast_to(mask.shape)
    return [Hinted([marks[mask]], [asked["mask"].whole.broadcast_to(mask.shape)[mask]])]


# What indices and masks put


def _put(side: MarkedCall) -> list[Given]:
    """Of setitem: from what was written there last, or from what was there before."""
    asked = side.named("input", "key", "value")
    base, key, value = asked["input"], asked["key"], asked["value"]
    parts = _parts(side, key)
    plain = tuple(part.known if isinstance(part, Marked) else part for part in parts)
    rows = is_by_rows(base.marks, base.shape) and _spares_last(parts, len(base.shape))
    rows = rows and not (isinstance(value, Marked) and not is_by_rows(value.marks, value.shape))
    marks = (base.marks if rows else base.whole).clone()
    if isinstance(value, Marked):
        new = value.marks if rows else value.whole
        marks[plain] = torch.where(new < 0, NONE, new + (1 << 40))
    else:
        marks[plain] = 1 << 41
    return [[marks]]


def _scattered(side: MarkedCall) -> list[Given]:
    """Of scatter and index_copy: the same along a dim."""
    asked = side.named("input", "dim", "index", "src")
    base, index, src = asked["input"].whole.clone(), asked["index"].known, asked.get("src")
    dim = int(asked["dim"])
    if not isinstance(src, Marked):
        return [[base.scatter(dim, index, 1 << 41)]]
    new = src.whole
    new = torch.where(new < 0, NONE, new + (1 << 40))
    if "index_copy" in side.call.target:
        return [[base.index_copy(dim, index, new)]]
    return [[base.scatter(dim, index, new)]]


def _added(side: MarkedCall) -> list[Given]:
    """Of index_add and scatter_add: from what was there, and all that was added, in any order."""
    asked = side.named("input", "dim", "index", "src")
    base, index, src = (
        asked["input"],
        asked["index"].known,
        asked["src" if "src" in asked else "source"],
    )
    dim = int(asked["dim"]) % len(base.shape)
    rows = is_by_rows(src.marks, src.shape) and dim < len(base.shape) - 1
    if "index_add" in side.call.target and rows:
        marks, new = base.marks, src.marks
        if not is_by_rows(marks, base.shape):
            marks = grouped(marks, (len(base.shape) - 1,))
    else:
        marks, new = base.whole, src.whole
    add = "index_add" if "index_add" in side.call.target else "scatter_add"
    total = getattr(torch.zeros_like(marks), add)(dim, index, mixed(new))
    odd = getattr(torch.zeros_like(marks), add)(dim, index, (new < 0).long())
    return [[marks, torch.where(odd > 0, NONE, total & ((1 << 63) - 1))]]


def _picked(side: MarkedCall) -> list[Given]:
    """Of where: from the one that the condition picks."""
    asked = side.named("condition", "input", "other")
    if "input" not in asked:
        return _found_places(side)
    condition, (shape,) = asked["condition"].known, side.shapes.values()
    both = []
    for number, each in enumerate((asked["input"], asked["other"])):
        marks = each.whole if isinstance(each, Marked) else torch.zeros((), dtype=torch.int64)
        both.append(torch.where(marks < 0, NONE, marks + (number << 40)).broadcast_to(shape))
    first, second = both
    return [[torch.where(condition, first, second)]]


def _filled(side: MarkedCall) -> list[Given]:
    asked = side.named("input", "mask", "value")
    mask, (shape,) = asked["mask"].known, side.shapes.values()
    marks = asked["input"].whole.broadcast_to(shape)
    return [[torch.where(mask, 1 << 41, marks)]]


INDEXING: tuple[tuple[str, FollowRule], ...] = (
    ("topk sort argsort max min argmax argmin", _chosen),
    ("nonzero argwhere", _found_places),
    ("getitem index", _taken),
    ("gather take_along_dim", _gathered),
    ("index_select", _index_selected),
    ("embedding", _embedded),
    ("masked_select", _masked_selected),
    ("setitem index_put", _put),
    ("scatter index_copy", _scattered),
    ("index_add scatter_add", _added),
    ("where", _picked),
    ("masked_fill", _filled),
)  # fmt: skip
