"""Ops that multiply and sum: matrix products, attention, embedding; convolution and pooling."""

from functools import partial

from dumpcmp.partitioning.rules.pointwise import broadcast
from dumpcmp.partitioning.rules.ruling import (
    MASK,
    Adjusted,
    Annotator,
    Annotators,
    Arguments,
    NoRule,
    Ruling,
    each,
    ids,
    letters,
    numbered,
    ones,
    said,
)


def _linear(arguments: Arguments) -> Ruling:
    out = "o" if len(arguments.needed("weight")) == 2 else ""
    mark = "k^" if arguments.get("bias") is not None else "k+"
    dims = {"input": f"* {mark}", "weight": f"{out} {mark}".strip(), "bias": out or "1"}
    return Ruling(dims, [f"* {out}".strip()])


def _matmul(arguments: Arguments) -> Ruling:
    one, two = arguments.needed("self", "input"), arguments.needed("other", "tensor2", "mat2")
    (left, right), batch = broadcast([one[:-2], two[:-2]])
    rows, columns = ["m"] * (len(one) > 1), ["n"] * (len(two) > 1)
    dims = [said([*left, *rows, "k+"]), said([*right, "k+", *columns])]
    return Ruling(
        dict(zip(list(arguments.tensors)[:2], dims, strict=True)), [said(batch + rows + columns)]
    )


def _added(left: str, right: str, out: str) -> Annotator:
    """``beta * self + alpha * (left @ right)``: the summed dim stays whole, or self adds twice."""

    def annotate(arguments: Arguments) -> Ruling:
        added, *_ = (tensor.shape for tensor in arguments.tensors.values())
        names = out.split()
        own = said(ones(names[len(names) - len(added) :], added))
        return Ruling(dict(zip(arguments.tensors, (own, left, right), strict=True)), [out])

    return annotate


def _einsum(arguments: Arguments) -> Ruling:
    equation = next((v for v in arguments.values.values() if isinstance(v, str)), ".")
    if "." in equation:
        raise NoRule("einsum with '...' has no annotation yet")
    terms, _, out = equation.replace(" ", "").partition("->")
    if "->" not in equation:
        out = "".join(sorted(c for c in set(terms) - {","} if terms.count(c) == 1))
    for term in terms.split(","):
        if len(set(term)) != len(term):
            raise NoRule(f"einsum {equation!r} takes a diagonal, which no split respects")
    dims = [said([c if c in out else f"{c}+" for c in term]) for term in terms.split(",")]
    if arguments.tensors:
        return Ruling(dict(zip(arguments.tensors, dims, strict=True)), [said(out)])
    return Ruling({arguments.listed[0]: dims}, [said(out)])


def _attention(arguments: Arguments) -> Ruling:
    query, key, value = (arguments.needed(name) for name in ("query", "key", "value"))
    heads = letters(len(query) - 2)
    grouped = list(heads)
    if arguments.get("enable_gqa", default=False) and query[-3] != key[-3]:
        grouped[-1] = f"({heads[-1]} {query[-3] // key[-3]})"
    row = "l^" if arguments.get("is_causal", default=False) else "l"
    dims = {
        "query": said([*grouped, row, "e^"]),
        "key": said([*ones(heads, key[:-2]), "s^", "e^"]),
        "value": said([*ones(heads, value[:-2]), "s^", "v"]),
    }
    domains = {}
    if (mask := arguments.shape("attn_mask")) is not None:
        names = [*grouped, row, "s^"][len(query) - len(mask) :]
        dims["attn_mask"] = said(ones(names, mask))
        if not arguments.get("attn_mask").dtype.is_floating_point:
            domains["attn_mask"] = MASK
    return Ruling(dims, [said([*grouped, row, "v"])], domains=domains)


def _embedding(arguments: Arguments) -> Ruling:
    limit = ids(arguments.needed("weight")[0])
    indices = "indices" if "indices" in arguments.values else "input"
    return Ruling({"weight": "n^ e", indices: "*"}, ["* e"], domains={indices: limit})


def _embedding_range(arguments: Arguments) -> Ruling:
    """A table whose part knows which ids it holds: its rows can be split, ids outside add zeros."""
    limit = ids(arguments.needed("weight")[0])
    bounds = (Adjusted("n", "start", how="start"), Adjusted("n", "stop", how="stop"))
    return Ruling({"input": "*", "weight": "n+ e"}, ["* e"], bounds, domains={"input": limit})


def _convolution(
    arguments: Arguments, transposed: bool | None = None, ndim: int | None = None
) -> Ruling:
    image, weight = arguments.needed("input"), arguments.needed("weight")
    ndim = len(weight) - 2 if ndim is None else ndim
    if len(image) not in (ndim + 1, ndim + 2):
        raise NoRule(f"an image of {len(image)} dims does not fit a kernel of {ndim}")
    if transposed is None:
        transposed = bool(arguments.get("transposed", default=False))
    batch = ["n"] * (len(image) - ndim - 1)
    groups = arguments.get("groups", default=1)
    channels, kernel, out = _channels(groups, transposed, arguments.get("bias") is not None)
    dims = {
        "input": said([*batch, channels, *numbered("x#^", ndim)]),
        "weight": said([*kernel, *numbered("k#^", ndim)]),
        "bias": out,
    }
    adjusted = (Adjusted("g", "groups"),) if groups > 1 else ()
    return Ruling(dims, [said([*batch, out, *numbered("y#^", ndim)])], adjusted)


def _channels(groups: int, transposed: bool, bias: bool) -> tuple[str, list[str], str]:
    """Names of the input channels, of the weight's first two dims, and of the output channels."""
    if groups > 1:
        return "(g i^)", ["(g i^)", "o^"] if transposed else ["(g o^)", "i^"], "(g o^)"
    summed = "i^" if bias else "i+"  # a bias in every part would be counted in each
    return summed, [summed, "o"] if transposed else ["o", summed], "o"


def _spatial(ndim: int) -> str:
    """The last `ndim` dims belong together; those before are independent."""
    return f"* {said(numbered('x#^', ndim))} -> * {said(numbered('y#^', ndim))}"


def _family(ndim: int) -> Annotators:
    pools = ("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "upsample_nearest")
    both = f"{_spatial(ndim)}, * {said(numbered('y#^', ndim))}"
    return {
        f"conv{ndim}d": partial(_convolution, transposed=False, ndim=ndim),
        f"conv_transpose{ndim}d": partial(_convolution, transposed=True, ndim=ndim),
        f"max_pool{ndim}d_with_indices": both,
        **{f"{pool}{ndim}d": _spatial(ndim) for pool in pools},
    }


RULES: Annotators = {
    "linear": _linear,
    "matmul": _matmul,
    "mm": "m k+, k+ n -> m n",
    "bmm": "b m k+, b k+ n -> b m n",
    "mv": "m k+, k+ -> m",
    "dot": "k+, k+ -> 1",
    "outer": "m, n -> m n",
    "addmm": _added("a k^", "k^ b", "a b"),
    "addmv": _added("a k^", "k^", "a"),
    "baddbmm": _added("n a k^", "n k^ b", "n a b"),
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
    "nnscaler.runtime.function.embedding": _embedding_range,
    "convolution": _convolution,
    **_family(1),
    **_family(2),
    **_family(3),
    **each("upsample_bilinear2d upsample_bicubic2d", _spatial(2)),
    **each("pixel_shuffle pixel_unshuffle", _spatial(3)),
}
