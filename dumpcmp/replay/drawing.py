"""Functions that draw random numbers, and those whose draw can be read off what they gave out."""

from __future__ import annotations

from typing import Any

from dumpcmp.nouns.op_names import OpSet, OpTable
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction

NOT_DRAWING = "without dropout it can be run again: model.eval(), or a share of 0"

# Those that drop elements if an argument asks for it: the names of their parameters.
_RECURRENT = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train")
_PACKED = ("data", "batch_sizes", "hx", "params", "has_biases", "num_layers", "dropout", "train")
_DROPPING: OpTable[tuple[str, ...]] = OpTable(
    {
        "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p"),
        "multi_head_attention_forward": (
            *(str(i) for i in range(10)),
            "dropout_p",
            "",
            "",
            "training",
        ),
        "rrelu": ("input", "lower", "upper", "training"),
        **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _RECURRENT),
    }
)
_ELEMENTWISE = OpSet("dropout native_dropout")
_BY_CHANNEL = OpSet("dropout1d dropout2d dropout3d feature_dropout")


def _named(names: tuple[str, ...], arguments: CallArguments) -> dict[str, Any]:
    return dict(zip(names, arguments.args, strict=False)) | arguments.kwargs


def draws(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether this call takes numbers from a random generator."""
    if function.kind is FunctionKind.DRAWS:
        return "dropout" not in function.name or bool(_share(arguments))
    if function.name == "rrelu":
        return bool(_named(_DROPPING["rrelu"], arguments).get("training", False))
    if function.name not in _DROPPING:
        return False
    is_packed = _is_packed(arguments) and _DROPPING[function.name] is _RECURRENT
    named = _named(_PACKED if is_packed else _DROPPING[function.name], arguments)
    trains = named.get("training", named.get("train", True))
    return bool(named.get("dropout_p", named.get("dropout", 0.0))) and bool(trains)


def draws_alone(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether what this call draws depends on a generator alone: ``randn``, ``uniform_``.

    Of a tensor that it fills, or that it makes another like, it takes nothing but the form.
    """
    if function.kind is not FunctionKind.DRAWS or "dropout" in function.name:
        return False
    tensors = len(arguments.tensors())
    return not tensors or (
        tensors == 1 and (function.changes_first or function.name.endswith("_like"))
    )


def dropped_share(function: ReplayFunction, arguments: CallArguments) -> float:
    """The share of elements that a dropout drops, 0 of any other function and of an idle one."""
    if function.name not in _ELEMENTWISE and function.name not in _BY_CHANNEL:
        return 0.0
    return _share(arguments)


def _share(arguments: CallArguments) -> float:
    named = _named(("input", "p", "training"), arguments)
    trains = named.get("training", named.get("train", True))
    return float(named.get("p", 0.5)) if trains else 0.0


def _is_packed(arguments: CallArguments) -> bool:
    """Whether a recurrent layer is given sequences one after the other, and their sizes."""
    return len(arguments.args) > 3 and isinstance(arguments.args[3], (list, tuple))
