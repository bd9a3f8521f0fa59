"""Ops that multiply and sum: matrix products, linear layers, einsum, attention, embedding."""

from collections.abc import Sequence

from dumpcmp.partitioning.rules.pointwise import broadcast
from dumpcmp.partitioning.rules.ruling import (
    MASK,
    Adjusted,
    Annotator,
    Arguments,
    Domain,
    NoRule,
    Ruling,
    ids,
    letters,
    said,
)


def _linear(arguments: Arguments) -> Ruling:
    out = "o" if len(arguments.needed("weight")) == 2 else ""
    mark = "k^" if arguments.get("bias") is not None else "k+"
    weight = f"{out} {mark}".strip()
    return Ruling(
        {"input": f"* {mark}", "weight": weight, "bias": out or "1"}, [f"* {out}".strip()]
    )


def _matmul(arguments: Arguments) -> Ruling:
    one, two = arguments.needed("self", "input"), arguments.needed("other", "tensor2", "mat2")
    (left, right), batch = broadcast([one[:-2], two[:-2]])
    left += ["m", "k+"] if len(one) > 1 else ["k+"]
    right += ["k+", "n"] if len(two) > 1 else ["k+"]
    out = batch + (["m"] if len(one) > 1 else []) + (["n"] if len(two) > 1 else [])
    names = list(arguments.tensors)[:2]
    return Ruling(dict(zip(names, map(said, (left, right)), strict=True)), [said(out)])


def _fixed(*dims: str, out: str) -> Annotator:
    def rule(arguments: Arguments) -> Ruling:
        return Ruling(dict(zip(arguments.tensors, dims, strict=True)), [out])

    return rule


def _added(left: str, right: str, out: str) -> Annotator:
    """``beta * self + alpha * (left @ right)``: the summed dim stays whole, or self adds twice."""

    def rule(arguments: Arguments) -> Ruling:
        added, *_ = (tensor.shape for tensor in arguments.tensors.values())
        names = out.split()[len(out.split()) - len(added) :]
        own = said(_ones(names, added))
        return Ruling(dict(zip(arguments.tensors, (own, left, right), strict=True)), [out])

    return rule


def _einsum(arguments: Arguments) -> Ruling:
    equation = next((v for v in arguments.values.values() if isinstance(v, str)), ".")
    listed = next((v for v in arguments.values.values() if isinstance(v, list | tuple)), None)
    if "." in equation:
        raise NoRule("einsum with '...' has no annotation yet")
    terms, _, out = equation.replace(" ", "").partition("->")
    if "->" not in equation:
        out = "".join(sorted(c for c in set(terms) - {","} if terms.count(c) == 1))
    for term in terms.split(","):
        if len(set(term)) != len(term):
            raise NoRule(f"einsum {equation!r} takes a diagonal, which no split respects")
    dims = [said([c if c in out else f"{c}+" for c in term]) for term in terms.split(",")]
    if listed is not None:
        name = next(n for n, v in arguments.values.items() if v is listed)
        return Ruling({name: dims}, [said(list(out))])
    return Ruling(dict(zip(arguments.tensors, dims, strict=True)), [said(list(out))])


def _attention(arguments: Arguments) -> Ruling:
    query, key = arguments.needed("query"), arguments.needed("key")
    value = arguments.needed("value")
    heads = letters(len(query) - 2)
    grouped = list(heads)
    if arguments.get("enable_gqa", default=False) and query[-3] != key[-3]:
        grouped[-1] = f"({heads[-1]} {query[-3] // key[-3]})"
    kv, values = (_ones(heads, shape[:-2]) for shape in (key, value))
    row = "l^" if arguments.get("is_causal", default=False) else "l"
    dims = {
        "query": said([*grouped, row, "e^"]),
        "key": said([*kv, "s^", "e^"]),
        "value": said([*values, "s^", "v"]),
    }
    mask = arguments.shape("attn_mask")
    if mask is not None:
        names = [*grouped, row, "s^"][len(query) - len(mask) :]
        dims["attn_mask"] = said(_ones(names, mask))
    return Ruling(dims, [said([*grouped, row, "v"])], domains=_masked(arguments))


def _ones(names: Sequence[str], shape: Sequence[int]) -> list[str]:
    """`names`, with 1 where a dim is one long and broadcasts."""
    return ["1" if size == 1 else name for name, size in zip(names, shape, strict=True)]


def _masked(arguments: Arguments) -> dict[str, Domain]:
    mask = arguments.get("attn_mask")
    return {"attn_mask": MASK} if mask is not None and not mask.dtype.is_floating_point else {}


def _embedding(arguments: Arguments) -> Ruling:
    limit = ids(arguments.needed("weight")[0])
    indices = "indices" if "indices" in arguments.values else "input"
    return Ruling({"weight": "n^ e", indices: "*"}, ["* e"], domains={indices: limit})


def _embedding_range(arguments: Arguments) -> Ruling:
    """A table whose part knows which ids it holds: its rows can be split, ids outside add zeros."""
    limit = ids(arguments.needed("weight")[0])
    bounds = (Adjusted("n", "start", how="start"), Adjusted("n", "stop", how="stop"))
    return Ruling({"input": "*", "weight": "n+ e"}, ["* e"], bounds, domains={"input": limit})


RULES: dict[str, Annotator] = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": _fixed("m k+", "k+ n", out="m n"),
    "bmm": _fixed("b m k+", "b k+ n", out="b m n"),
    "mv": _fixed("m k+", "k+", out="m"),
    "dot": _fixed("k+", "k+", out="1"),
    "outer": _fixed("m", "n", out="m n"),
    "addmm": _added("a k^", "k^ b", "a b"),
    "addmv": _added("a k^", "k^", "a"),
    "baddbmm": _added("n a k^", "n k^ b", "n a b"),
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "nnscaler.runtime.function.embedding": _embedding_range,
}
