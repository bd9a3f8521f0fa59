"""Ops that move elements without changing them: views, permutations, joins, cuts."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from dumpcmp.partitioning.configuration import TensorInfo
from dumpcmp.partitioning.rules.ruling import (
    Adjusted,
    Annotator,
    Arguments,
    NoRule,
    Ruling,
    dim_of,
    frozen,
    letters,
    said,
)


def _first(arguments: Arguments) -> tuple[str, tuple[int, ...]]:
    for name, tensor in arguments.tensors.items():
        return name, tensor.shape
    raise NoRule("takes no tensor: nothing to partition")


def _sizes(arguments: Arguments, *names: str) -> tuple[str, list[int]]:
    """The parameter that holds a list of sizes, and the list."""
    for name in names:
        given = arguments.values.get(name)
        if isinstance(given, list | tuple) and all(isinstance(size, int) for size in given):
            return name, list(given)
    raise NoRule(f"needs a list of integers as {names[0]!r}")


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


def _view(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    parameter, sizes = _sizes(arguments, "size", "shape", "sizes")
    after = filled(sizes, math.prod(shape))
    before, out = regrouped(shape, after)
    return Ruling({name: said(before)}, [said(out)], resized(out, parameter))


def resized(out: Sequence[str], parameter: str) -> tuple[Adjusted, ...]:
    """Sizes in `parameter` follow the names that lead the output's dims."""
    leading = [dim.strip("()").split()[0] for dim in out]
    return tuple(
        Adjusted(name, parameter, position)
        for position, name in enumerate(leading)
        if not name.isdecimal()
    )


def _flatten(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    start = dim_of(arguments.get("start_dim", default=0), len(shape))
    end = dim_of(arguments.get("end_dim", default=-1), len(shape))
    after = [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]]
    before, out = regrouped(shape, after)
    return Ruling({name: said(before)}, [said(out)])


def _unflatten(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    dim = dim_of(arguments.get("dim"), len(shape))
    parameter, sizes = _sizes(arguments, "sizes", "unflattened_size")
    inside = filled(sizes, shape[dim])
    before, out = regrouped(shape, [*shape[:dim], *inside, *shape[dim + 1 :]])
    moved = resized(out[dim : dim + len(inside)], parameter)
    return Ruling({name: said(before)}, [said(out)], moved)


def _expand(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    parameter, sizes = _sizes(arguments, "size", "sizes")
    new = len(sizes) - len(shape)
    names = letters(len(sizes))
    inputs = ["1" if size == 1 else names[new + i] for i, size in enumerate(shape)]
    out = [
        "1" if (size == 1 or (size == -1 and shape[i - new] == 1)) else names[i]
        for i, size in enumerate(sizes)
    ]
    return Ruling({name: said(inputs)}, [said(out)], resized(out, parameter))


def _permute(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    _, order = _sizes(arguments, "dims")
    names = letters(len(shape))
    return Ruling({name: said(names)}, [said([names[d] for d in order])])


def _transpose(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    names = letters(len(shape))
    out = list(names)
    if len(shape) > 1:
        one, two = arguments.get("dim0", default=-2), arguments.get("dim1", default=-1)
        out[one], out[two] = out[two], out[one]
    return Ruling({name: said(names)}, [said(out)])


def _unsqueeze(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    names = letters(len(shape))
    at = dim_of(arguments.get("dim"), len(shape) + 1)
    return Ruling({name: said(names)}, [said([*names[:at], "1", *names[at:]])])


def _squeeze(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    dims = arguments.get("dim")
    every = dims is None  # then a dim whose part is one long vanishes as well: nothing is split
    gone = set(range(len(shape))) if every else _counted(dims, len(shape))
    names = [
        "1" if size == 1 else f"{n}^" if every else n
        for n, size in zip(letters(len(shape)), shape, strict=True)
    ]
    out = [n for i, n in enumerate(names) if not (i in gone and shape[i] == 1)]
    return Ruling({name: said(names)}, [said(out)])


def _counted(dims: int | Sequence[int], rank: int) -> set[int]:
    return {dim_of(d, rank) for d in ([dims] if isinstance(dims, int) else dims)}


def _listed(arguments: Arguments) -> tuple[str, list[TensorInfo]]:
    for name, value in arguments.values.items():
        if isinstance(value, list | tuple) and any(isinstance(v, TensorInfo) for v in value):
            return name, list(value)
    raise NoRule("takes no list of tensors")


def _cat(arguments: Arguments) -> Ruling:
    name, tensors = _listed(arguments)
    rank = max(len(tensor.shape) for tensor in tensors)
    dim = dim_of(arguments.get("dim", default=0), rank)
    names = letters(rank)
    dims = [
        said([str(t.shape[i]) if i == dim else n for i, n in enumerate(names)])
        if len(t.shape) == rank
        else "0"  # torch lets an empty vector join anything
        for t in tensors
    ]
    return Ruling({name: dims}, [said(frozen(names, [dim]))])


def _stack(arguments: Arguments) -> Ruling:
    name, tensors = _listed(arguments)
    names = letters(len(tensors[0].shape))
    at = dim_of(arguments.get("dim", default=0), len(names) + 1)
    out = said([*names[:at], str(len(tensors)), *names[at:]])
    return Ruling({name: [said(names)] * len(tensors)}, [out])


def _cut(arguments: Arguments, *, drop: bool = False) -> Ruling:
    """Split, chunk, unbind: several outputs, cut along a dim that stays whole."""
    name, shape = _first(arguments)
    dim = dim_of(arguments.get("dim", default=0), len(shape))
    names = frozen(letters(len(shape)), [dim])
    out = [n for i, n in enumerate(names) if i != dim] if drop else [*names]
    if not drop:
        out[dim] = "p#^"  # each output has a length of its own
    return Ruling({name: said(names)}, [said(out), "..."])


def _slice(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    dim = dim_of(arguments.get("dim", default=0), len(shape))
    start, end = arguments.get("start", default=0), arguments.get("end", default=shape[dim])
    whole = start in (0, -shape[dim]) and end >= shape[dim]
    step = arguments.get("step", default=1)
    names = letters(len(shape))
    if whole and step == 1:
        return Ruling({name: said(names)}, [said(names)])
    out = [*names]
    out[dim] = "p^"
    return Ruling({name: said(frozen(names, [dim]))}, [said(out)])


def _select(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    dim = dim_of(arguments.get("dim", default=0), len(shape))
    names = frozen(letters(len(shape)), [dim])
    return Ruling({name: said(names)}, [said(names[:dim] + names[dim + 1 :])])


def _fullslice(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    names, inputs, out, at = letters(len(shape)), [], [], 0
    for slicer in [v for n, v in arguments.values.items() if n != name]:
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
    return Ruling({name: said(inputs + names[at:])}, [said(out + names[at:])])


def _kept_whole(arguments: Arguments) -> Ruling:
    """Flip, roll, cumulative sums: the dims they name stay whole, the others do not matter."""
    name, shape = _first(arguments)
    dims = arguments.get("dims", "dim")
    if dims is None:
        dims = list(range(len(shape)))
    names = said(frozen(letters(len(shape)), [dims] if isinstance(dims, int) else dims))
    return Ruling({name: names}, [names])


def _diff(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    names = letters(len(shape))
    out = [*names]
    dim = arguments.get("dim", default=-1)
    names[dim], out[dim] = f"{names[dim]}^", "p^"
    beside = {}
    for added in ("prepend", "append"):
        beside[added] = said([*names[:dim], f"{added}^", *names[dim:][1:]])
    return Ruling({name: said(names), **beside}, [said(out)])


def _last_two(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    names = said(frozen(letters(len(shape)), [-1, -2]))
    return Ruling({name: names}, [names])


def _pad(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    _, pad = _sizes(arguments, "pad", "padding")
    names = letters(len(shape))
    out = [*names]
    for back in range(len(pad) // 2):
        if pad[2 * back] or pad[2 * back + 1]:
            names[-1 - back], out[-1 - back] = f"{names[-1 - back]}^", f"p{back}^"
    return Ruling({name: said(names)}, [said(out)])


def _repeat(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    _, repeats = _sizes(arguments, "repeats", "dims")
    new = len(repeats) - len(shape)
    names = letters(len(shape))
    kept = [n if repeats[new + i] == 1 else f"{n}^" for i, n in enumerate(names)]
    out = [
        names[i - new] if i >= new and repeats[i] == 1 else f"r{i}^" for i in range(len(repeats))
    ]
    return Ruling({name: said(kept)}, [said(out)])


def _repeat_interleave(arguments: Arguments) -> Ruling:
    name, shape = _first(arguments)
    repeats, dim = arguments.get("repeats"), arguments.get("dim")
    if not isinstance(repeats, int) or dim is None:
        raise NoRule("repeats by a tensor, or over all dims")
    names = letters(len(shape))
    out = [*names]
    out[dim] = f"({names[dim]} {repeats})"
    return Ruling({name: said(names)}, [said(out)])


def _filled_like(arguments: Arguments) -> Ruling:
    """``new_zeros`` and its like: the output has its own sizes and no value from the input."""
    name, _ = _first(arguments)
    parameter, sizes = _sizes(arguments, "size")
    out = ["1" if size == 1 else n for n, size in zip(letters(len(sizes)), sizes, strict=True)]
    return Ruling({name: "?"}, [said(out)], resized(out, parameter))


RULES: dict[str, Annotator] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy"), _view),
    "flatten": _flatten,
    "unflatten": _unflatten,
    **dict.fromkeys(("expand", "broadcast_to", "expand_copy"), _expand),
    **dict.fromkeys(("permute", "permute_copy"), _permute),
    **dict.fromkeys(("transpose", "t", "swapaxes", "adjoint", "numpy_T"), _transpose),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    "stack": _stack,
    **dict.fromkeys(("split", "chunk", "split_with_sizes", "tensor_split"), _cut),
    "unbind": partial(_cut, drop=True),
    **dict.fromkeys(("slice", "narrow"), _slice),
    "select": _select,
    "nnscaler.runtime.function.fullslice": _fullslice,
    **dict.fromkeys(("flip", "roll", "cumsum", "cumprod"), _kept_whole),
    "diff": _diff,
    **dict.fromkeys(("tril", "triu"), _last_two),
    **dict.fromkeys(("pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d"), _pad),
    "repeat": _repeat,
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(("new_zeros", "new_ones", "new_full"), _filled_like),
}
