"""Ops that read or write by index: gather, scatter, index."""

from dumpcmp.partitioning.configuration import TensorInfo
from dumpcmp.partitioning.rules.pointwise import broadcast
from dumpcmp.partitioning.rules.ruling import (
    Annotator,
    Arguments,
    DimKind,
    Domain,
    NoRule,
    Ruling,
    dim_of,
    frozen,
    ids,
    letters,
    said,
)


def _name_of(arguments: Arguments) -> str:
    return "self" if "self" in arguments.values else "input"


def _gather(arguments: Arguments) -> Ruling:
    source = _name_of(arguments)
    shape, index = arguments.needed(source), arguments.needed("index")
    dim = dim_of(arguments.get("dim"), len(shape))
    uneven = [i for i in range(len(shape)) if i == dim or shape[i] != index[i]]
    names = letters(len(shape))
    own = [f"i{i}^" if i in uneven else n for i, n in enumerate(names)]
    dims = {source: said(frozen(names, uneven)), "index": said(own)}
    return Ruling(dims, [said(own)], domains={"index": ids(shape[dim])})


def _scatter(arguments: Arguments) -> Ruling:
    source = _name_of(arguments)
    shape, index = arguments.needed(source), arguments.needed("index")
    dim = dim_of(arguments.get("dim"), len(shape))
    src = arguments.shape("src")
    uneven = [
        i
        for i in range(len(shape))
        if i == dim or shape[i] != index[i] or (src is not None and src[i] != index[i])
    ]
    names = letters(len(shape))
    own = [f"i{i}^" if i in uneven else n for i, n in enumerate(names)]
    dims = {source: said(frozen(names, uneven)), "index": said(own), "src": said(own)}
    if src is not None and src != index:
        dims["src"] = said([f"s{i}^" if i in uneven else n for i, n in enumerate(names)])
    unique = Domain(DimKind.PERMUTATION, shape[dim])  # writes to one place twice have no order
    return Ruling(dims, [dims[source]], domains={"index": unique})


def _index_select(arguments: Arguments) -> Ruling:
    source = _name_of(arguments)
    shape = arguments.needed(source)
    dim = dim_of(arguments.get("dim"), len(shape))
    names = letters(len(shape))
    out = [*names]
    out[dim] = "j"
    dims = {source: said(frozen(names, [dim])), "index": "j"}
    return Ruling(dims, [said(out)], domains={"index": ids(shape[dim])})


def _index(arguments: Arguments) -> Ruling:
    """``x[i, :, j]``: indexed dims stay whole, the index's own dims can be split."""
    shape = arguments.needed("self")
    given = list(arguments.get("indices"))
    places = [i for i, index in enumerate(given) if isinstance(index, TensorInfo)]
    picked = [given[i] for i in places]
    if any(not index.dtype.is_signed or index.dtype.is_floating_point for index in picked):
        raise NoRule("the shape of an index by a mask depends on its values")
    inside, joined = broadcast([index.shape for index in picked])
    inside, joined = (
        [[f"j{n}" if n != "1" else n for n in d] for d in inside],
        [f"j{n}" if n != "1" else n for n in joined],
    )
    names = frozen(letters(len(shape)), places)
    together = places == list(range(places[0], places[-1] + 1))
    at = places[0] if together else 0
    rest = [n for i, n in enumerate(names) if i not in places]
    texts = iter(inside)
    dims = [said(next(texts)) if i in places else "?" for i in range(len(given))]
    smallest = min(shape[i] for i in places)
    return Ruling(
        {"self": said(names), "indices": dims},
        [said([*rest[:at], *joined, *rest[at:]])],
        domains={"indices": ids(smallest)},
    )


def _one_hot(arguments: Arguments) -> Ruling:
    name = _name_of(arguments)
    classes = arguments.get("num_classes", default=-1)
    if classes < 1:
        raise NoRule("the shape depends on the values")
    return Ruling({name: "*"}, [f"* {classes}"], domains={name: ids(classes)})


def _slice_scatter(arguments: Arguments) -> Ruling:
    shape = arguments.needed("self")
    dim = dim_of(arguments.get("dim", default=0), len(shape))
    names = letters(len(shape))
    own = [*names]
    own[dim] = "p^"
    whole = said(frozen(names, [dim]))
    return Ruling({"self": whole, "src": said(own)}, [whole])


def _select_scatter(arguments: Arguments) -> Ruling:
    shape = arguments.needed("self")
    dim = dim_of(arguments.get("dim", default=0), len(shape))
    names = frozen(letters(len(shape)), [dim])
    return Ruling({"self": said(names), "src": said(names[:dim] + names[dim + 1 :])}, [said(names)])


RULES: dict[str, Annotator] = {
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter_add"), _scatter),
    "index_select": _index_select,
    "index": _index,
    "one_hot": _one_hot,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
}
