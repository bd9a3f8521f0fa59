"""Norms, softmax, and losses over classes."""

from functools import partial

from dumpcmp.partitioning.rules.ruling import (
    COUNT,
    POSITIVE,
    Adjusted,
    Annotator,
    Arguments,
    NoRule,
    Ruling,
    dim_of,
    frozen,
    ids,
    letters,
    said,
    words,
)

_HOME = "dumpcmp.partitioning.equivalents"
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_VALID = {"running_var": POSITIVE, "num_batches_tracked": COUNT}
_REDUCTIONS = ("none", "mean", "sum")


def _over_last(arguments: Arguments, noutputs: int = 1) -> Ruling:
    """Layer and RMS norm: the last dims are normalised together."""
    shape = arguments.needed("input")
    ndim = len(arguments.get("normalized_shape"))
    names = frozen(letters(len(shape)), range(-ndim, 0))
    inside = said(names[len(names) - ndim :])
    moments = said([*names[: len(names) - ndim], *["1"] * ndim])
    dims = {"input": said(names), "weight": inside, "bias": inside}
    return Ruling(dims, [said(names), *[moments] * (noutputs - 1)])


def _group_norm(arguments: Arguments) -> Ruling:
    name = "input" if "input" in arguments.values else "self"
    shape = arguments.needed(name)
    groups = arguments.get("num_groups")
    names = ["n", f"(g {shape[1] // groups})", *(f"x{i}^" for i in range(len(shape) - 2))]
    dims = {name: said(names), "weight": names[1], "bias": names[1]}
    return Ruling(dims, [said(names)], (Adjusted("g", "num_groups"),))


def _batch_norm(arguments: Arguments, synchronised: str, outputs: int = 1) -> Ruling:
    """In training the statistics of all of `n` are needed: its split is synchronised."""
    shape = arguments.needed("input")
    names = ["n", "c", *(f"x{i}^" for i in range(len(shape) - 2))]
    training = arguments.get("training", default=False)
    dims = {"input": said(names), "num_batches_tracked": "1"}
    dims |= dict.fromkeys(("weight", "bias", "running_mean", "running_var"), "c")
    sync = {"n": f"{_HOME}.{synchronised}"} if training else {}
    given = [said(names), *["c"] * (outputs - 1)]
    return Ruling(dims, given, (), _VALID, sync, _STATISTICS)


def _instance_norm(arguments: Arguments, synchronised: str, ndim: int | None = None) -> Ruling:
    """Each image is normalised alone; running statistics are of all of them: synchronised."""
    shape = arguments.needed("input")
    batch = [] if ndim is not None and len(shape) == ndim + 1 else ["n"]
    names = [*batch, "c", *(f"x{i}^" for i in range(len(shape) - len(batch) - 1))]
    dims = {"input": said(names)}
    dims |= dict.fromkeys(("weight", "bias", "running_mean", "running_var"), "c")
    own = arguments.get("use_input_stats", "training", default=True)
    own = own or not arguments.get("track_running_stats", default=True)
    tracked = own and arguments.shape("running_mean") is not None
    sync = {"n": f"{_HOME}.{synchronised}"} if tracked and batch else {}
    return Ruling(dims, [said(names)], (), _VALID, sync, _STATISTICS)


def _along(arguments: Arguments) -> Ruling:
    """Softmax and its like: `dim` is normalised, the others are independent."""
    name, first = next(iter(arguments.tensors.items()))
    dim = arguments.get("dim")
    if dim is None:
        raise NoRule("no dim is given")
    names = said(frozen(letters(len(first.shape)), [dim]))
    return Ruling({name: names}, [names])


def _normalize(arguments: Arguments) -> Ruling:
    shape = arguments.needed("input")
    names = said(frozen(letters(len(shape)), [arguments.get("dim", default=1)]))
    return Ruling({"input": names}, [names])


def _cosine_similarity(arguments: Arguments) -> Ruling:
    shape = arguments.needed("x1")
    dim = dim_of(arguments.get("dim", default=1), len(shape))
    names = frozen(letters(len(shape)), [dim])
    return Ruling({"x1": said(names), "x2": said(names)}, [said(names[:dim] + names[dim + 1 :])])


def _class_loss(arguments: Arguments, noutputs: int = 1) -> Ruling:
    """Cross entropy and NLL: samples are independent, their mean is not a sum of means."""
    name = "input" if "input" in arguments.values else "self"
    shape = arguments.needed(name)
    reduction = arguments.get("reduction", default="mean")
    if isinstance(reduction, int):
        reduction = _REDUCTIONS[reduction]
    mark = {"none": "", "sum": "+", "mean": "^"}[reduction]
    rest = [f"x{i}{mark}" for i in range(len(shape) - 2)]
    samples = ([f"n{mark}"] if len(shape) > 1 else []) + rest
    logits = [*samples[:1], "c^", *rest] if len(shape) > 1 else ["c^"]
    classes = shape[1] if len(shape) > 1 else shape[0]
    target = arguments.get("target")
    by_class = target is not None and target.shape == shape
    dims = {name: said(logits), "target": said(logits if by_class else samples), "weight": "c^"}
    out = said(samples) if reduction == "none" else "1"
    domains = {"weight": POSITIVE, "target": POSITIVE if by_class else ids(classes)}
    return Ruling(dims, [out, *["1"] * (noutputs - 1)], (), domains, {}, ("weight",))


RULES: dict[str, Annotator] = {
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
        _instance_norm, synchronised="instancenorm2d_synchronised", ndim=2
    ),
    **dict.fromkeys(
        words("softmax log_softmax _softmax _log_softmax softmin logcumsumexp _safe_softmax"),
        _along,
    ),
    "normalize": _normalize,
    "cosine_similarity": _cosine_similarity,
    "cross_entropy": _class_loss,
    "cross_entropy_loss": _class_loss,
    "nll_loss": _class_loss,
    "nll_loss_nd": _class_loss,
    "nll_loss_forward": partial(_class_loss, noutputs=2),
}
