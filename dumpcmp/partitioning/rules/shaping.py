"""Ops that move elements without changing them: views, permutations, joins, cuts, by index."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from dumpcmp.partitioning.configuration import TensorInfo
from dumpcmp.partitioning.rules.pointwise import broadcast
from dumpcmp.partitioning.rules.ruling import (
    Adjusted,
    Annotators,
    Arguments,
    DimKind,
    Domain,
    Names,
    NoRule,
    Ruling,
    dim_of,
    each,
    frozen,
    ids,
    instead,
    letters,
    of_one,
    ones,
    said,
    without,
)

Lengths = tuple[int, ...]
Both = tuple[Names, Names]  # the dims of the input and of the output
Followed = tuple[Names, Names, tuple[Adjusted, ...]]  # and arguments that change with them


def filled(sizes: Sequence[int], numel: int) -> list[int]:
    """`sizes` with their -1 replaced by what `numel` leaves for it."""
    rest = math.prod(size for size in sizes if size != -1)
    return [numel // rest if size == -1 and rest else size for size in sizes]


def regrouped(before: Sequence[int], after: Sequence[int]) -> tuple[list[str], list[str]]:
    """Names of the dims of a view from the shape `before` to `after`.

    Dims are taken from both sides until their products meet; one dim against several becomes a
    group of them, several against several stay whole.
    """
    one, two = ["1"] * len(before), ["1"] * len(after)
    for name, (mine, yours) in zip(letters(len(before)), _blocks(before, after), strict=False):
        left, right = _block(name, [before[i] for i in mine], [after[i] for i in yours])
        for i, word in zip(mine, left, strict=True):
            one[i] = word
        for i, word in zip(yours, right, strict=True):
            two[i] = word
    return one, two


def _blocks(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Dims of both sides, longer than one, that hold the same elements."""
    left = [i for i, size in enumerate(before) if size != 1]
    right = [i for i, size in enumerate(after) if size != 1]
    while left and right:
        mine, yours = [left.pop(0)], [right.pop(0)]
        while (a := math.prod(before[i] for i in mine)) != (
            b := math.prod(after[i] for i in yours)
        ):
            source, into = (left, mine) if a < b else (right, yours)
            if not source:
                raise NoRule(f"shape {list(before)} cannot become {list(after)}")
            into.append(source.pop(0))
        yield mine, yours


def _block(name: str, mine: list[int], yours: list[int]) -> tuple[list[str], list[str]]:
    """Names of the dims of a block, from their sizes on both sides."""
    if len(mine) > 1 and len(yours) > 1:
        return [str(size) for size in mine], [str(size) for size in yours]
    if len(mine) == 1 and len(yours) == 1:
        return [name], [name]
    several = [name, *(str(size) for size in max(mine, yours, key=len)[1:])]
    single = [f"({' '.join(several)})"]
    return (single, several) if len(mine) == 1 else (several, single)


def _resized(out: Names, parameter: str) -> tuple[Adjusted, ...]:
    """Sizes in `parameter` follow the names that lead the output's dims."""
    leading = [dim.strip("()").split()[0] for dim in out]
    return tuple(
        Adjusted(name, parameter, position)
        for position, name in enumerate(leading)
        if not name.isdecimal()
    )


def _view(arguments: Arguments, shape: Lengths, _: Names) -> Followed:
    parameter, sizes = arguments.sizes("size", "shape", "sizes")
    before, out = regrouped(shape, filled(sizes, math.prod(shape)))
    return before, out, _resized(out, parameter)


def _flatten(arguments: Arguments, shape: Lengths, _: Names) -> Both:
    start = dim_of(arguments.get("start_dim", default=0), len(shape))
    end = dim_of(arguments.get("end_dim", default=-1), len(shape)) + 1
    return regrouped(shape, [*shape[:start], math.prod(shape[start:end]), *shape[end:]])


def _unflatten(arguments: Arguments, shape: Lengths, _: Names) -> Followed:
    dim = arguments.dim(len(shape))
    parameter, sizes = arguments.sizes("sizes", "unflattened_size")
    inside = filled(sizes, shape[dim])
    before, out = regrouped(shape, [*shape[:dim], *inside, *shape[dim + 1 :]])
    return before, out, _resized(out[dim : dim + len(inside)], parameter)


def _expand(arguments: Arguments, shape: Lengths, _: Names) -> Followed:
    parameter, sizes = arguments.sizes("size", "sizes")
    new = len(sizes) - len(shape)
    names = letters(len(sizes))
    after = [shape[i - new] if size == -1 else size for i, size in enumerate(sizes)]
    out = ones(names, after)
    return ones(names[new:], shape), out, _resized(out, parameter)


def _permute(arguments: Arguments, _: Lengths, names: Names) -> Both:
    return names, [names[d] for d in arguments.sizes("dims")[1]]


def _transpose(arguments: Arguments, _: Lengths, names: Names) -> Both:
    out = list(names)
    if len(names) > 1:
        one, two = arguments.get("dim0", default=-2), arguments.get("dim1", default=-1)
        out[one], out[two] = out[two], out[one]
    return names, out


def _unsqueeze(arguments: Arguments, _: Lengths, names: Names) -> Both:
    at = arguments.dim(len(names) + 1)
    return names, [*names[:at], "1", *names[at:]]


def _squeeze(arguments: Arguments, shape: Lengths, names: Names) -> Both:
    dims = arguments.get("dim")
    if dims is None:  # then a dim whose part is one long vanishes as well: nothing is split
        dims, names = range(len(shape)), frozen(names, range(len(shape)))
    gone = {dim_of(d, len(shape)) for d in ([dims] if isinstance(dims, int) else dims)}
    names = ones(names, shape)
    return names, [n for i, n in enumerate(names) if not (i in gone and shape[i] == 1)]


def _cat(arguments: Arguments) -> Ruling:
    name, tensors = arguments.listed
    names = letters(max(len(tensor.shape) for tensor in tensors))
    dim = arguments.dim(len(names), default=0)
    dims = [
        said(instead(names, dim, str(t.shape[dim])))
        if len(t.shape) == len(names)
        else "0"  # torch lets an empty vector join anything
        for t in tensors
    ]
    return Ruling({name: dims}, [said(frozen(names, dim))])


def _stack(arguments: Arguments) -> Ruling:
    name, tensors = arguments.listed
    names = letters(len(tensors[0].shape))
    at = arguments.dim(len(names) + 1, default=0)
    out = said([*names[:at], str(len(tensors)), *names[at:]])
    return Ruling({name: [said(names)] * len(tensors)}, [out])


def _cut(arguments: Arguments, *, drop: bool = False) -> Ruling:
    """Split, chunk, unbind: several outputs, cut along a dim that stays whole."""
    name, shape = arguments.first
    names = letters(len(shape))
    dim = arguments.dim(len(shape), default=0)
    out = without(names, dim) if drop else instead(names, dim, "p#^")  # each has its own length
    return Ruling({name: said(frozen(names, dim))}, [said(out), "..."])


def _slice(arguments: Arguments, shape: Lengths, names: Names) -> Both:
    dim = arguments.dim(len(shape), default=0)
    start, end = arguments.get("start", default=0), arguments.get("end", default=shape[dim])
    whole = start in (0, -shape[dim]) and end >= shape[dim]
    if whole and arguments.get("step", default=1) == 1:
        return names, names
    return frozen(names, dim), instead(names, dim, "p^")


def _select(arguments: Arguments, shape: Lengths, names: Names) -> Both:
    dim = arguments.dim(len(shape), default=0)
    return frozen(names, dim), without(names, dim)


def _fullslice(arguments: Arguments, shape: Lengths, names: Names) -> Both:
    inputs, out, at = [], [], 0
    slicers = list(arguments.values.values())[1:]
    if len(slicers) == 1 and isinstance(slicers[0], list | tuple):  # x[a, b] is given a tuple
        slicers = list(slicers[0])
    for slicer in slicers:
        if slicer is None:
            out.append("1")
            continue
        if not isinstance(slicer, int | slice):
            raise NoRule(f"cannot follow the index {slicer!r}")
        whole = isinstance(slicer, slice) and len(range(shape[at])[slicer]) == shape[at]
        inputs.append(names[at] if whole else f"{names[at]}^")
        if isinstance(slicer, slice):
            out.append(names[at] if whole else str(len(range(shape[at])[slicer])))
        at += 1
    return [*inputs, *names[at:]], [*out, *names[at:]]


def _kept_whole(arguments: Arguments, shape: Lengths, names: Names) -> Both:
    """Flip, roll, cumulative sums: the dims they name stay whole, the others do not matter."""
    dims = arguments.get("dims", "dim", default=range(len(shape)))
    return frozen(names, dims), frozen(names, dims)


def _diff(arguments: Arguments) -> Ruling:
    name, shape = arguments.first
    names = letters(len(shape))
    dim = arguments.dim(len(shape), default=-1)
    beside = {added: said(instead(names, dim, f"{added}^")) for added in ("prepend", "append")}
    return Ruling({name: said(frozen(names, dim)), **beside}, [said(instead(names, dim, "p^"))])


def _pad(arguments: Arguments, _shape: Lengths, names: Names) -> Both:
    _, pad = arguments.sizes("pad", "padding")
    out = names
    for back in range(len(pad) // 2):
        if pad[2 * back] or pad[2 * back + 1]:
            names, out = frozen(names, -1 - back), instead(out, -1 - back, f"p{back}^")
    return names, out


def _repeat(arguments: Arguments, shape: Lengths, names: Names) -> Both:
    _, repeats = arguments.sizes("repeats", "dims")
    new = len(repeats) - len(shape)
    changed = [i for i in range(len(shape)) if repeats[new + i] != 1]
    out = [
        names[i - new] if i >= new and repeats[i] == 1 else f"r{i}^" for i in range(len(repeats))
    ]
    return frozen(names, changed), out


def _repeat_interleave(arguments: Arguments, _: Lengths, names: Names) -> Both:
    repeats, dim = arguments.get("repeats"), arguments.get("dim")
    if not isinstance(repeats, int) or dim is None:
        raise NoRule("repeats by a tensor, or over all dims")
    return names, instead(names, dim, f"({names[dim]} {repeats})")


def _filled_like(arguments: Arguments) -> Ruling:
    """``new_zeros`` and its like: the output has its own sizes and no value from the input."""
    name, _ = arguments.first
    parameter, sizes = arguments.sizes("size")
    out = ones(letters(len(sizes)), sizes)
    return Ruling({name: "?"}, [said(out)], _resized(out, parameter))


def _gather(arguments: Arguments) -> Ruling:
    (source, shape), index = arguments.first, arguments.needed("index")
    dim = arguments.dim(len(shape))
    uneven = [i for i in range(len(shape)) if i == dim or shape[i] != index[i]]
    names = letters(len(shape))
    own = said([f"i{i}^" if i in uneven else n for i, n in enumerate(names)])
    dims = {source: said(frozen(names, uneven)), "index": own}
    return Ruling(dims, [own], domains={"index": ids(shape[dim])})


def _scatter(arguments: Arguments) -> Ruling:
    (source, shape), index = arguments.first, arguments.needed("index")
    dim = arguments.dim(len(shape))
    src = arguments.shape("src") or index
    uneven = [
        i for i in range(len(shape)) if i == dim or not shape[i] == index[i] == src[i]
    ]  # fmt: skip
    names = letters(len(shape))
    own, other = (
        said([f"{word}{i}^" if i in uneven else n for i, n in enumerate(names)]) for word in "is"
    )
    whole = said(frozen(names, uneven))
    dims = {source: whole, "index": own, "src": own if src == index else other}
    unique = Domain(DimKind.PERMUTATION, shape[dim])  # writes to one place twice have no order
    return Ruling(dims, [whole], domains={"index": unique})


def _index_select(arguments: Arguments) -> Ruling:
    source, shape = arguments.first
    names, dim = letters(len(shape)), arguments.dim(len(shape))
    dims = {source: said(frozen(names, dim)), "index": "j"}
    return Ruling(dims, [said(instead(names, dim, "j"))], domains={"index": ids(shape[dim])})


def _index(arguments: Arguments) -> Ruling:
    """``x[i, :, j]``: indexed dims stay whole, the index's own dims can be split."""
    shape, given = arguments.needed("self"), list(arguments.get("indices"))
    places = [i for i, index in enumerate(given) if isinstance(index, TensorInfo)]
    picked = [given[i] for i in places]
    if any(not index.dtype.is_signed or index.dtype.is_floating_point for index in picked):
        raise NoRule("the shape of an index by a mask depends on its values")
    inside, joined = broadcast([index.shape for index in picked])
    *inside, joined = ([n if n == "1" else f"j{n}" for n in dims] for dims in (*inside, joined))
    names = frozen(letters(len(shape)), places)
    together = places == list(range(places[0], places[-1] + 1))
    at = places[0] if together else 0
    rest = [n for i, n in enumerate(names) if i not in places]
    dims = ["?"] * len(given)
    for place, own in zip(places, inside, strict=True):
        dims[place] = said(own)
    return Ruling(
        {"self": said(names), "indices": dims},
        [said([*rest[:at], *joined, *rest[at:]])],
        domains={"indices": ids(min(shape[i] for i in places))},
    )


def _one_hot(arguments: Arguments) -> Ruling:
    name, _ = arguments.first
    classes = arguments.get("num_classes", default=-1)
    if classes < 1:
        raise NoRule("the shape depends on the values")
    return Ruling({name: "*"}, [f"* {classes}"], domains={name: ids(classes)})


def _scattered(arguments: Arguments, *, drop: bool) -> Ruling:
    """``slice_scatter`` and ``select_scatter``: the dim that is written to stays whole."""
    shape = arguments.needed("self")
    names, dim = letters(len(shape)), arguments.dim(len(shape), default=0)
    whole = said(frozen(names, dim))
    own = without(names, dim) if drop else instead(names, dim, "p^")
    return Ruling({"self": whole, "src": said(own)}, [whole])


RULES: Annotators = {
    **dict.fromkeys(
        ["view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy"], of_one(_view)
    ),
    "flatten": of_one(_flatten),
    "unflatten": of_one(_unflatten),
    **each("expand broadcast_to expand_copy", of_one(_expand)),
    **each("permute permute_copy", of_one(_permute)),
    **each("transpose t swapaxes adjoint numpy_T", of_one(_transpose)),
    "unsqueeze": of_one(_unsqueeze),
    "squeeze": of_one(_squeeze),
    **each("cat concat concatenate", _cat),
    "stack": _stack,
    **each("split chunk split_with_sizes tensor_split", _cut),
    "unbind": partial(_cut, drop=True),
    **each("slice narrow", of_one(_slice)),
    "select": of_one(_select),
    "nnscaler.runtime.function.fullslice": of_one(_fullslice),
    **each("flip roll cumsum cumprod", of_one(_kept_whole)),
    "diff": _diff,
    **each("tril triu", "* a^ b^ -> * a^ b^"),
    **dict.fromkeys(
        ["pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d"], of_one(_pad)
    ),
    "repeat": of_one(_repeat),
    "repeat_interleave": of_one(_repeat_interleave),
    **each("new_zeros new_ones new_full", _filled_like),
    "gather": _gather,
    **each("scatter scatter_add", _scatter),
    "index_select": _index_select,
    "index": _index,
    "one_hot": _one_hot,
    "slice_scatter": partial(_scattered, drop=False),
    "select_scatter": partial(_scattered, drop=True),
}
