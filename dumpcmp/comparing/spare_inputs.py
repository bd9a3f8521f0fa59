"""Inputs that a call need not be given to be run again: others tell what they do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.op_names import OpTable
from dumpcmp.nouns.record import Call

# The backward pass of a batch norm in training has the moments of its batch, and those of the run
# besides; that of attention has what the forward pass gave, which it can compute. Kernels of other
# devices have them in other places, or not at all. By position.
_TRAINS = 7
_SPARE = OpTable(
    {
        "native_batch_norm_backward": (3, 4),
        "_scaled_dot_product_flash_attention_for_cpu_backward": (4, 5),
        "_scaled_dot_product_flash_attention_backward": (4, 5),
        "_scaled_dot_product_cudnn_attention_backward": (4, 5),
        "_scaled_dot_product_efficient_attention_backward": (5, 6),
    }
)


def without_spare_inputs(flow: DataFlow) -> dict[Site, Call]:
    """Golden's calls that are given what they can do without, without it."""
    return dict(_spared(flow))


def needs(call: Call, key: Key) -> bool:
    """Whether a call that may lack some of its inputs has this one."""
    return call.op.function not in _SPARE or f'"{key.slot}"' in call.arguments


def _spared(flow: DataFlow) -> Iterator[tuple[Site, Call]]:
    for site in flow.calls:
        spare = _SPARE.get(site.op.function)
        call = flow.golden.calls.get(site) if spare else None
        if spare is None or call is None or not call.arguments:
            continue
        told = argument_tree(call)
        args = told.get("args", [])
        if _is_told(site, args):
            told["args"] = [None if at in spare else arg for at, arg in enumerate(args)]
            yield site, replace(call, arguments=json.dumps(told, separators=(",", ":")))


def _is_told(site: Site, args: Sequence[Any]) -> bool:
    """Whether the arguments say that those inputs are spare."""
    if "batch_norm" not in site.op.function:
        return True
    return len(args) > _TRAINS and args[_TRAINS] is True
