"""Which calls compute each row of their output from the same row of what they were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.op_names import OpSet, OpTable, plain_name
from dumpcmp.nouns.record import Call
from dumpcmp.replay.kinds import KINDS, FunctionKind

_Shapes = Mapping[str, tuple[int, ...]]  # by slot

# Functions that take rows in one slot, and the same of the others for every row.
_BY_ROW = OpTable(
    {
        **dict.fromkeys(("linear", "matmul", "mm", "softmax", "log_softmax"), "input.0"),
        **dict.fromkeys(("layer_norm", "rms_norm"), "input.0"),
        "addmm": "input.1",
    }
)
_SOFTMAX, _NORMS = OpSet("softmax log_softmax"), OpSet("layer_norm rms_norm")
_POINTWISE = frozenset((FunctionKind.ELEMENTWISE, FunctionKind.ADDS))
_CASTS = OpSet("_to_copy bfloat16 clone contiguous double float half neg relu to")
_ODD = OpSet("_prelu_kernel addr arange linspace logspace outer polar prelu rrelu")


def unfit_for_rows(call: Call, sampled: _Shapes, whole: _Shapes) -> str:
    """Why `call` cannot be run again on some rows of its values; empty where it can.

    `sampled` are the shapes of values of which the same rows are kept, `whole` those of its other
    inputs.
    """
    name = plain_name(call.op.function)
    if name not in _BY_ROW and not _is_pointwise(name):
        return f"only some rows are kept, and {name} may need others"
    if len({shape[:-1] for shape in sampled.values()}) > 1:
        return "only some rows are kept, and its values have other rows than each other"
    taken = {slot for slot in sampled if slot.startswith("input.")}
    if _is_pointwise(name):
        fits = bool(taken) and all(len(shape) < 2 for shape in whole.values())
    else:
        fits = taken == {_BY_ROW[name]} and all(len(shape) < 3 for shape in whole.values())
        fits = fits and all(len(shape) > 1 for shape in sampled.values())
        fits = fits and _spares_rows(name, argument_tree(call))
    return "" if fits else f"only some rows are kept, and {name} was not given them row by row"


def _is_pointwise(name: str) -> bool:
    is_plain = KINDS.get(name) in _POINTWISE and name not in _ODD
    return is_plain or name in _CASTS


def _spares_rows(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether what is normalised together is the last dim alone."""
    args, kwargs = arguments.get("args", []), arguments.get("kwargs", {})
    if name in _SOFTMAX:
        return bool(kwargs.get("dim", args[1] if len(args) > 1 else None) == -1)
    if name in _NORMS:
        about = kwargs.get("normalized_shape", args[1] if len(args) > 1 else None)
        listed = next(iter(about.values())) if isinstance(about, dict) else about
        return isinstance(listed, list) and len(listed) == 1
    return True
