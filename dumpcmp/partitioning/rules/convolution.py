"""Convolutions, transposed convolutions, pooling and resampling, in 1 to 3 dims."""

from functools import partial

from dumpcmp.partitioning.rules.ruling import (
    Adjusted,
    Annotator,
    Arguments,
    NoRule,
    Ruling,
    frozen,
    letters,
    said,
)


def _convolution(
    arguments: Arguments, transposed: bool | None = None, ndim: int | None = None
) -> Ruling:
    image, weight = arguments.needed("input"), arguments.needed("weight")
    ndim = len(weight) - 2 if ndim is None else ndim
    if len(image) not in (ndim + 1, ndim + 2):
        raise NoRule(f"an image of {len(image)} dims does not fit a kernel of {ndim}")
    if transposed is None:
        transposed = bool(arguments.get("transposed", default=False))
    batch = ["n"] if len(image) == ndim + 2 else []
    groups = arguments.get("groups", default=1)
    bias = arguments.get("bias") is not None
    channels, kernel, out = _names(groups, transposed, bias)
    space = [f"x{i}^" for i in range(ndim)]
    dims = {
        "input": said([*batch, channels, *space]),
        "weight": said([*kernel, *(f"k{i}^" for i in range(ndim))]),
        "bias": out,
    }
    adjusted = (Adjusted("g", "groups"),) if groups > 1 else ()
    return Ruling(dims, [said([*batch, out, *(f"y{i}^" for i in range(ndim))])], adjusted)


def _names(groups: int, transposed: bool, bias: bool) -> tuple[str, list[str], str]:
    """Names of the input channels, of the weight's first two dims, and of the output channels."""
    if groups > 1:
        kernel = ["(g i)", "o^"] if transposed else ["(g o)", "i^"]
        return "(g i^)", [_grouped(k) for k in kernel], "(g o^)"
    summed = "i^" if bias else "i+"  # a bias in every part would be counted in each
    return summed, [summed, "o"] if transposed else ["o", summed], "o"


def _grouped(dim: str) -> str:
    return dim.replace("i)", "i^)").replace("o)", "o^)")


def _spatial(arguments: Arguments, ndim: int, noutputs: int = 1) -> Ruling:
    """The last `ndim` dims belong together; those before are independent."""
    name, image = next(iter(arguments.tensors.items()))
    names = frozen(letters(len(image.shape)), range(-ndim, 0))
    out = [*names[: len(names) - ndim], *(f"y{i}^" for i in range(ndim))]
    return Ruling({name: said(names)}, [said(out)] * noutputs)


def _family(ndim: int) -> dict[str, Annotator]:
    pools = ("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "upsample_nearest")
    return {
        f"conv{ndim}d": partial(_convolution, transposed=False, ndim=ndim),
        f"conv_transpose{ndim}d": partial(_convolution, transposed=True, ndim=ndim),
        f"max_pool{ndim}d_with_indices": partial(_spatial, ndim=ndim, noutputs=2),
        **{f"{pool}{ndim}d": partial(_spatial, ndim=ndim) for pool in pools},
    }


RULES: dict[str, Annotator] = {
    "convolution": _convolution,
    **_family(1),
    **_family(2),
    **_family(3),
    "upsample_bilinear2d": partial(_spatial, ndim=2),
    "upsample_bicubic2d": partial(_spatial, ndim=2),
    "pixel_shuffle": partial(_spatial, ndim=3),
    "pixel_unshuffle": partial(_spatial, ndim=3),
}
