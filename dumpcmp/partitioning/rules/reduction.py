"""Ops that reduce dims: only sums can be split along what they reduce."""

from functools import partial

from dumpcmp.partitioning.rules.pointwise import pointwise
from dumpcmp.partitioning.rules.ruling import (
    Annotator,
    Arguments,
    Ruling,
    dim_of,
    letters,
    said,
    words,
)


def _reduction(arguments: Arguments, mark: str = "^", noutputs: int = 1) -> Ruling:
    name, tensor = next(iter(arguments.tensors.items()))
    rank = len(tensor.shape)
    given = arguments.get("dim", "axis")
    dims = [given] if isinstance(given, int) else list(given or range(rank))
    gone = {dim_of(d, rank) for d in dims}
    keep = arguments.get("keepdim", default=False)
    names = letters(rank)
    inputs = [f"{n}{mark}" if i in gone else n for i, n in enumerate(names)]
    out = ["1" if i in gone else n for i, n in enumerate(names) if keep or i not in gone]
    return Ruling({name: said(inputs)}, [said(out)] * noutputs)


def _extreme(arguments: Arguments) -> Ruling:
    """``max(dim)`` gives values and places, ``max()`` the value, ``max(other)`` the larger ones."""
    if arguments.shape("other") is not None:
        return pointwise(arguments)
    return _reduction(arguments, noutputs=1 if arguments.get("dim") is None else 2)


def _ordered(arguments: Arguments, noutputs: int = 2) -> Ruling:
    """Sort and topk: the dim stays whole and may change its length."""
    name, tensor = next(iter(arguments.tensors.items()))
    names = letters(len(tensor.shape))
    dim = arguments.get("dim", default=-1)
    out = [*names]
    names[dim], out[dim] = f"{names[dim]}^", "q^"
    return Ruling({name: said(names)}, [said(out)] * noutputs)


RULES: dict[str, Annotator] = {
    "sum": partial(_reduction, mark="+"),
    **dict.fromkeys(
        words(
            "mean amax amin prod any all var std argmax argmin logsumexp norm linalg_vector_norm "
            "vector_norm count_nonzero"
        ),
        _reduction,
    ),
    "var_mean": partial(_reduction, noutputs=2),
    "std_mean": partial(_reduction, noutputs=2),
    **dict.fromkeys(("max", "min", "median"), _extreme),
    **dict.fromkeys(("sort", "topk"), _ordered),
    "argsort": partial(_ordered, noutputs=1),
}
