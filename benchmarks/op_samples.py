"""The samples of torch's own tests: sound calls must be right, and results that are 5 % off wrong.

It needs the package ``expecttest``, which torch's tests import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from benchmarks.tables import Table
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import Rerun, rerun
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.taps.recording.calls import arguments_of
from dumpcmp.taps.recording.functions import function_of, in_order

HEADINGS = ("function", "dtype", "what is wrong, of a sound result")
DTYPES = (torch.float32, torch.bfloat16)
NUM_SAMPLES = 40  # of a function in each dtype, at most
OFF = 1.05
Sample = tuple[str, torch.dtype, Any, tuple[Any, ...], dict[str, Any]]


def samples() -> Iterator[Sample]:
    """Functions with what torch's tests give them."""
    from torch.testing._internal.common_methods_invocations import op_db

    infos: list[Any] = op_db
    for info in infos:
        for dtype in DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            for one in islice(info.sample_inputs("cpu", dtype), NUM_SAMPLES):
                yield info.name, dtype, info.op, (one.input, *one.args), one.kwargs


def called(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Rerun, Any]:
    """What a call gives when it is run again, and what it gave."""
    function = function_of(op)
    found, text = arguments_of(in_order(function, args), kwargs, function.positions)
    call = Call("M", 0, Op(f"x/{function.name}"), 0, 0, target=function.target, arguments=text)
    given = {slot: tensor.clone() for slot, tensor in found}
    return rerun(call, given), op(*map(_copied, args), **kwargs)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def table() -> Table:
    torch.manual_seed(0)
    counts: Counter[str] = Counter()
    functions: set[str] = set()
    rows: dict[tuple[str, str], list[str]] = {}
    for name, dtype, op, args, kwargs in samples():
        try:
            again, gave = called(op, args, kwargs)
        except Unreplayable:
            counts["refused"] += 1
            continue
        except (AssertionError, RuntimeError):  # the sample is of another device
            counts["not run"] += 1
            continue
        for slot, value in slots_of("output", gave):
            if not value.numel():
                continue
            functions.add(name)
            counts["sound"] += 1
            if said := wrong(hold(again, slot, value)):
                counts["alarms"] += 1
                rows.setdefault((name, str(dtype)), [name, str(dtype), said])
            is_finite = value.is_floating_point() and bool(torch.isfinite(value).all())
            if is_finite and not torch.equal(value * OFF, value):
                counts["planted"] += 1
                counts["found"] += bool(wrong(hold(again, slot, value * OFF)))
    how = (
        f"torch {torch.__version__}. {counts['sound']} results of {len(functions)} functions are "
        f"held against the function in float64: {counts['alarms']} are called wrong. Of "
        f"{counts['planted']} that were made 5 % larger {counts['found']} are found. "
        f"{counts['refused']} samples are of functions that are not run again."
    )
    return Table("Samples of torch's own tests", HEADINGS, list(rows.values()), how)
