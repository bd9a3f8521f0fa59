"""The arguments of a call as they would be if everything were spelled out."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dumpcmp.nouns.families import DTYPES_OF_CASTS, is_cast
from dumpcmp.nouns.given import Bounds, CallInputs, DtypeWord, Stand, is_whole
from dumpcmp.nouns.op_names import ATTENTION, OpSet, canonical, plain_name
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.value import DTYPES, Dtype, Kind


@dataclass(frozen=True, slots=True)
class Calling:
    """A call, and what is known of the first tensor that it was given."""

    call: Call
    given: CallInputs
    first: Record | None

    @property
    def function(self) -> str:
        """One name for the function, however it was reached, and for all casts and attention.

        What those are asked for does not depend on which of them it is.
        """
        function = self.call.op.function
        if is_cast(function):
            return "to"
        is_attention = canonical(function) == ATTENTION
        return ATTENTION if is_attention else plain_name(function)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of the first tensor."""
        return self.first.shape if self.first else None

    @property
    def dtype(self) -> str:
        """Of the first tensor."""
        return self.first.dtype if self.first else ""


DIMS = frozenset(("dim", "dims", "dim0", "dim1", "start_dim", "end_dim", "source", "destination"))
_SIZES = frozenset(("size", "shape", "normalized_shape", "sizes"))
_IN_ANY_ORDER = OpSet("all amax amin any flip logsumexp mean norm prod std sum var var_mean")
_ADDS_A_DIM = OpSet("stack unsqueeze")


def plain_argument(name: str, value: Any, calling: Calling) -> Any:
    """`value` as it would be if it were spelled out."""
    if name in DIMS:
        return _plain_dims(value, calling)
    if name in _SIZES:
        return Stand.UNKNOWN  # the shapes of the results are held against each other
    if value is None:
        return _meant(name, calling)
    if name == "stride" and value == ():  # that of the kernel
        return Stand.UNKNOWN
    if name == "equation" and isinstance(value, str):
        return _plain_equation(value)
    if isinstance(value, float) and abs(value) in _LARGEST:
        return "the largest", math.copysign(1.0, value)  # of whichever dtype
    return value


_LARGEST = frozenset((3.4028234663852886e38, 3.3895313892515355e38, 65504.0, sys.float_info.max))


def _meant(name: str, calling: Calling) -> Any:
    """What an argument is that is None."""
    if name == "dtype":
        return DtypeWord(calling.dtype) if calling.dtype else Stand.UNKNOWN
    if name == "scale" and "scaled_dot_product" in calling.function:
        width = calling.shape[-1] if calling.shape else 0
        return 1 / math.sqrt(width) if width else Stand.UNKNOWN
    if name == "eps":
        return DTYPES[calling.dtype].eps if calling.dtype in DTYPES else Stand.UNKNOWN
    return None


def _plain_dims(value: Any, calling: Calling) -> Any:
    if calling.shape is None:
        return Stand.UNKNOWN
    rank = len(calling.shape) + (calling.function in _ADDS_A_DIM)
    if value is None or value == ():
        return tuple(range(rank))
    dims = value if isinstance(value, tuple) else (value,)
    if not all(map(is_whole, dims)):
        return Stand.UNKNOWN
    dims = tuple(dim % rank if rank else dim for dim in dims)
    return tuple(sorted(dims)) if calling.function in _IN_ANY_ORDER else dims


def _plain_equation(equation: str) -> str:
    """An equation of einsum with its letters in order of appearance."""
    letters: dict[str, str] = {}
    return "".join(
        letters.setdefault(c, chr(ord("a") + len(letters))) if c.isalpha() else c
        for c in "".join(equation.split())
    )


def is_without_effect(name: str, function: str, *sides: Mapping[str, Any]) -> bool:
    """Whether an argument does nothing in both calls, or only the numbers tell what it does."""
    if name == "momentum" or (name == "p" and "dropout" in function):
        return all(side.get("training") is False for side in sides)
    if name in ("attn_mask", "is_causal"):  # a causal mask may be given as one
        return len({side.get("attn_mask") is None for side in sides}) > 1
    return name == "enable_gqa"  # that heads are repeated inside: they may have been before


def asked_dtype(calling: Calling) -> Any:
    """The dtype that a cast asks for; unknown where it asks for a place, or for another's."""
    named = DTYPES_OF_CASTS.get(calling.call.op.function)
    values = (*calling.given.args, *calling.given.kwargs.values())
    asked = next((value for value in values if isinstance(value, DtypeWord)), Stand.UNKNOWN)
    return DtypeWord(named) if named else asked


# What an index takes


def taken_of(calling: Calling) -> dict[str, Any]:
    """What a getitem takes of each dim, or a setitem sets, and what it sets it to."""
    _, index, value = (*calling.given.args, None, None)[:3]
    parts = index if type(index) is tuple else (index,)
    return {"index": _taken(parts, calling.shape), "value": value}


def _taken(parts: tuple[Any, ...], shape: tuple[int, ...] | None) -> Any:
    if shape is None or any(type(p) is tuple or isinstance(p, (Stand, bool)) for p in parts):
        return Stand.UNKNOWN  # a mask may stand for several dims
    num_taken = sum(part is not None and part is not Ellipsis for part in parts)
    whole = [Bounds(None, None, None)] * (len(shape) - num_taken)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    sizes = iter(shape)
    spread = (*parts[:at], *whole, *parts[at + 1 :])
    return tuple(part if part is None else _taken_of_dim(part, next(sizes, 0)) for part in spread)


def _taken_of_dim(part: Any, size: int) -> Any:
    if isinstance(part, Bounds) and all(each is None or is_whole(each) for each in part):
        return slice(*part).indices(size)
    if is_whole(part):
        return part % size if size else part
    return Stand.UNKNOWN


# Numbers


def are_near(golden: complex, target: complex, *dtypes: str) -> bool:
    """Whether two constants are the same in the arithmetic that they are used in.

    Short floats are computed in float32, and only rounded to their own at the end.
    """
    if golden == target or (golden != golden and target != target):
        return True
    if is_whole(golden) and is_whole(target):
        return False
    eps = _widest(DTYPES[name] for name in dtypes if name in DTYPES)
    return bool(abs(golden - target) <= eps * max(abs(golden), abs(target)))


def _widest(dtypes: Any) -> float:
    """The rounding of the arithmetic that values of `dtypes` are computed in."""
    inexact: list[Dtype] = [d for d in dtypes if d.kind in (Kind.FLOAT, Kind.COMPLEX)]
    return max((min(d.eps, 2.0**-23) for d in inexact), default=2.0**-23)
