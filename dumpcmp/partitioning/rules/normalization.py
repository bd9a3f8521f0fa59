"""Norms, softmax, and losses over classes."""

from functools import partial

from dumpcmp.partitioning.rules.pointwise import reduction_mark
from dumpcmp.partitioning.rules.ruling import (
    COUNT,
    POSITIVE,
    Adjusted,
    Annotators,
    Arguments,
    Names,
    NoRule,
    Ruling,
    each,
    frozen,
    ids,
    letters,
    numbered,
    of_one,
    said,
    without,
)

_HOME = "dumpcmp.partitioning.equivalents"
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_VALID = {"running_var": POSITIVE, "num_batches_tracked": COUNT}
_PER_CHANNEL = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), "c")
_SOFTMAXES = "softmax log_softmax _softmax _log_softmax softmin logcumsumexp _safe_softmax"
_CLASS_LOSSES = "cross_entropy cross_entropy_loss nll_loss nll_loss_nd"


def _over_last(arguments: Arguments, noutputs: int = 1) -> Ruling:
    """Layer and RMS norm: the last dims are normalised together."""
    shape = arguments.needed("input")
    ndim = len(arguments.get("normalized_shape"))
    before = len(shape) - ndim
    names = frozen(letters(len(shape)), range(-ndim, 0))
    inside, moments = said(names[before:]), said([*names[:before], *["1"] * ndim])
    dims = {"input": said(names), "weight": inside, "bias": inside}
    return Ruling(dims, [said(names), *[moments] * (noutputs - 1)])


def _group_norm(arguments: Arguments) -> Ruling:
    name, shape = arguments.first
    channels = f"(g {shape[1] // arguments.get('num_groups')})"
    whole = said(["n", channels, *numbered("x#^", len(shape) - 2)])
    dims = {name: whole, "weight": channels, "bias": channels}
    return Ruling(dims, [whole], (Adjusted("g", "num_groups"),))


def _batch_norm(arguments: Arguments, synchronised: str, outputs: int = 1) -> Ruling:
    """In training the statistics of all of `n` are needed: its split is synchronised."""
    whole = said(["n", "c", *numbered("x#^", len(arguments.needed("input")) - 2)])
    training = arguments.get("training", default=False)
    dims = {"input": whole, "num_batches_tracked": "1", **_PER_CHANNEL}
    sync = {"n": f"{_HOME}.{synchronised}"} if training else {}
    return Ruling(dims, [whole, *["c"] * (outputs - 1)], (), _VALID, sync, _STATISTICS)


def _instance_norm(arguments: Arguments, synchronised: str, ndim: int | None = None) -> Ruling:
    """Each image is normalised alone; running statistics are of all of them: synchronised."""
    shape = arguments.needed("input")
    batch = [] if ndim is not None and len(shape) == ndim + 1 else ["n"]
    whole = said([*batch, "c", *numbered("x#^", len(shape) - len(batch) - 1)])
    own = arguments.get("use_input_stats", "training", default=True)
    own = own or not arguments.get("track_running_stats", default=True)
    tracked = own and arguments.shape("running_mean") is not None
    sync = {"n": f"{_HOME}.{synchronised}"} if tracked and batch else {}
    return Ruling({"input": whole, **_PER_CHANNEL}, [whole], (), _VALID, sync, _STATISTICS)


def _along(
    arguments: Arguments, shape: tuple[int, ...], names: Names, default: int | None = None
) -> tuple[Names, Names]:
    """Softmax and its like: `dim` is normalised, the others are independent."""
    names = frozen(names, arguments.dim(len(shape), default))
    return names, names


def _cosine_similarity(arguments: Arguments) -> Ruling:
    shape = arguments.needed("x1")
    dim = arguments.dim(len(shape), default=1)
    names = frozen(letters(len(shape)), dim)
    return Ruling({"x1": said(names), "x2": said(names)}, [said(without(names, dim))])


def _class_loss(arguments: Arguments, noutputs: int = 1) -> Ruling:
    """Cross entropy and NLL: samples are independent, their mean is not a sum of means."""
    name, shape = arguments.first
    if name not in ("input", "self"):
        raise NoRule(f"argument {name!r} is not the input")
    mark = reduction_mark(arguments)
    rest = numbered(f"x#{mark}", len(shape) - 2)
    samples, classes = ([f"n{mark}"], shape[1]) if len(shape) > 1 else ([], shape[0])
    logits, samples = [*samples, "c^", *rest], [*samples, *rest]
    target = arguments.get("target")
    by_class = target is not None and target.shape == shape
    dims = {name: said(logits), "target": said(logits if by_class else samples), "weight": "c^"}
    domains = {"weight": POSITIVE, "target": POSITIVE if by_class else ids(classes)}
    outputs = ["1" if mark else said(samples), *["1"] * (noutputs - 1)]
    return Ruling(dims, outputs, (), domains, {}, ("weight",))


RULES: Annotators = {
    "layer_norm": _over_last,
    "native_layer_norm": partial(_over_last, noutputs=3),
    "rms_norm": _over_last,
    "_fused_rms_norm": partial(_over_last, noutputs=2),
    "group_norm": _group_norm,
    "batch_norm": partial(_batch_norm, synchronised="batch_norm_synchronised"),
    "_native_batch_norm_legit_functional": partial(
        _batch_norm, synchronised="native_batch_norm_synchronised", outputs=5
    ),
    "_native_batch_norm_legit_no_training": partial(_batch_norm, synchronised="", outputs=3),
    "nnscaler.graph.function.wrapnn.wrap_batchnorm2d_func": partial(
        _batch_norm, synchronised="batchnorm2d_synchronised"
    ),
    "instance_norm": partial(_instance_norm, synchronised="instance_norm_synchronised"),
    "nnscaler.graph.function.wrapnn.wrap_instancenorm2d_func": partial(
        _instance_norm, synchronised="instance_norm_synchronised", ndim=2
    ),
    **each(_SOFTMAXES, of_one(_along)),
    "normalize": of_one(partial(_along, default=1)),
    "cosine_similarity": _cosine_similarity,
    **each(_CLASS_LOSSES, _class_loss),
    "nll_loss_forward": partial(_class_loss, noutputs=2),
}
