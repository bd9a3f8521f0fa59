"""Large calls in tiles: what each needs of the arguments, so that float64 takes bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpTable
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction

AT_ONCE = 1 << 25  # elements of arguments that are widened at once: 256 MB of float64

TileCut = dict[str, int]  # parameter -> the dim of it that is cut along with the output

_PRODUCTS = OpTable(
    {
        "linear": ("input", "weight", "bias"),
        "mm": ("input", "mat2"),
        "matmul": ("input", "other"),
        "bmm": ("input", "mat2"),
        "addmm": ("bias", "input", "mat2"),
    }
)
_BY_ROW = OpTable(
    {
        "layer_norm": ("input", "normalized_shape"),
        "native_layer_norm": ("input", "normalized_shape"),
        "rms_norm": ("input", "normalized_shape"),
        "softmax": ("input", "dim"),
        "log_softmax": ("input", "dim"),
        "_softmax": ("input", "dim"),
        "_log_softmax": ("input", "dim"),
    }
)
_POINTWISE = (FunctionKind.ELEMENTWISE, FunctionKind.ADDS)


@dataclass(frozen=True, slots=True)
class CallTile:
    """A part of the output: where it begins in the cut dims, and what it is computed from."""

    arguments: CallArguments
    starts: tuple[tuple[int, int], ...]  # dim of the output, first index there


def tiles_of(function: ReplayFunction, arguments: CallArguments) -> list[CallTile]:
    """The tiles that a large call is run in; none where it is small, or cannot be cut."""
    size = sum(tensor.numel() for tensor in arguments.tensors())
    if size <= AT_ONCE or function.changes_first:
        return []
    tiles = [CallTile(arguments, ())]
    for dim in (0, -1):
        tiles = [part for tile in tiles for part in _cut(function, tile, dim)]
    return tiles if len(tiles) > 1 else []


def _cut(function: ReplayFunction, tile: CallTile, dim: int) -> Iterator[CallTile]:
    """`tile` in so many parts along `dim` of the output that each needs no more than the limit."""
    names, cut = _plan(function, tile.arguments, dim)
    named = dict(zip(names, tile.arguments.args, strict=False)) | tile.arguments.kwargs
    cut = {word: at for word, at in cut.items() if isinstance(named.get(word), Tensor)}
    length = max((named[word].shape[at] for word, at in cut.items()), default=0)
    size = sum(named[word].numel() for word in cut)
    step = max(1, length // max(1, math.ceil(size / AT_ONCE)))
    if not cut or step >= length:
        yield tile
        return
    for start in range(0, length, step):
        pieces = {
            word: named[word].narrow(at, start, min(step, length - start))
            for word, at in cut.items()
        }
        yield CallTile(_with(tile.arguments, names, pieces), (*tile.starts, (dim, start)))


def _with(
    arguments: CallArguments, names: tuple[str, ...], pieces: dict[str, Tensor]
) -> CallArguments:
    """`arguments` with `pieces` in place of the parameters of these names."""
    args = list(arguments.args)
    for place, word in enumerate(names[: len(args)]):
        args[place] = pieces.get(word, args[place])
    kwargs = {word: pieces.get(word, value) for word, value in arguments.kwargs.items()}
    return CallArguments(tuple(args), kwargs, arguments.autocast)


def _plan(
    function: ReplayFunction, arguments: CallArguments, dim: int
) -> tuple[tuple[str, ...], TileCut]:
    """The parameters' names in order, and which of them are cut where the output is at `dim`."""
    if function.kind in _POINTWISE:
        return _pointwise(arguments, dim)
    if function.name in _PRODUCTS:
        names = _PRODUCTS[function.name]
        named = dict(zip(names, arguments.args, strict=False)) | arguments.kwargs
        return names, _product(function.name, named, dim)
    names = _BY_ROW.get(function.name, ())
    named = dict(zip(names, arguments.args, strict=False)) | arguments.kwargs
    whole = dim == -1 or not names or not _spares_first(named, names[1])
    return names, {} if whole else {"input": 0}


def _spares_first(named: dict[str, Any], word: str) -> bool:
    """Whether what is normalised together, or summed over, lies in other dims than the first."""
    about, ndim = named.get(word), named["input"].ndim
    if isinstance(about, int):
        return bool(about % ndim)
    return isinstance(about, (list, tuple)) and len(about) < ndim


def _pointwise(arguments: CallArguments, dim: int) -> tuple[tuple[str, ...], TileCut]:
    names = tuple(str(place) for place in range(len(arguments.args)))
    tensors = {w: t for w, t in zip(names, arguments.args, strict=True) if isinstance(t, Tensor)}
    named = {w: t for w, t in arguments.kwargs.items() if isinstance(t, Tensor)}
    if dim == -1 or named or len(tensors) < len(arguments.tensors()):
        return names, {}
    ndim = max(tensor.ndim for tensor in tensors.values())
    whole = [w for w, t in tensors.items() if t.ndim == ndim and ndim and t.shape[0] > 1]
    return names, dict.fromkeys(whole, 0)


def _product(name: str, named: dict[str, Any], dim: int) -> TileCut:
    first, second = named["input"], named.get("weight", named.get("mat2", named.get("other")))
    if not isinstance(second, Tensor) or first.ndim < 2 or second.ndim < 2:
        return {}
    added: Any = named.get("bias")
    is_matrix = isinstance(added, Tensor) and added.ndim == 2
    if second.ndim == 2 and dim == 0:
        return {"input": 0} | ({"bias": 0} if is_matrix and added.shape[0] > 1 else {})
    if second.ndim == 2:
        along = {"weight": 0} if name == "linear" else {"mat2": 1, "other": 1}
        spread = isinstance(added, Tensor) and added.shape[-1] > 1
        return along | ({"bias": added.ndim - 1} if spread else {})
    return _batched(first, second, dim)


def _batched(first: Tensor, second: Tensor, dim: int) -> TileCut:
    alike = first.ndim == second.ndim and first.shape[0] == second.shape[0]
    return {"input": 0, "mat2": 0, "other": 0} if alike and dim == 0 else {}


def joined(parts: list[tuple[CallTile, Tensor]]) -> Tensor:
    """The whole whose tiles are `parts`, each at its place."""
    ndim = parts[0][1].ndim
    places = [{at % ndim: start for at, start in tile.starts} for tile, _ in parts]
    shape = [
        max(
            place.get(at, 0) + piece.shape[at]
            for place, (_, piece) in zip(places, parts, strict=True)
        )
        for at in range(ndim)
    ]
    whole = torch.empty(shape, dtype=parts[0][1].dtype, device=parts[0][1].device)
    for place, (_, piece) in zip(places, parts, strict=True):
        there = whole
        for at, start in place.items():
            there = there.narrow(at, start, piece.shape[at])
        there.copy_(piece)
    return whole
