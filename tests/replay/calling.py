"""Calls as captures write them down, made from a function and what it is given."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.taps.modes.aten import aten_function
from dumpcmp.taps.recording.calls import arguments_of
from dumpcmp.taps.recording.functions import function_of, in_order

Given = dict[str, Tensor]


def called(func: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Call, Given]:
    """The Call of ``func(*args, **kwargs)``, and copies of its tensors by slot."""
    aten = isinstance(func, torch._ops.OpOverload)
    function = aten_function(func) if aten else function_of(func)
    found, text = arguments_of(in_order(function, args), kwargs, function.positions)
    call = Call("M", 0, Op(f"x/{function.name}"), 0, 0, target=function.target, arguments=text)
    return call, {slot: tensor.clone() for slot, tensor in found}


def outputs_of(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Given:
    """What the function itself gives, by slot."""
    result = func(*args, **kwargs)
    return dict(slots_of("output", args[0] if result is None else result))


def held(func: Callable[..., Any], args: Any, got: Given, **kwargs: Any) -> dict[str, Replay]:
    """What `got` is, held against the replay of the call."""
    call, given = called(func, *args, **kwargs)
    replay = rerun(call, given)
    return {slot: hold(replay, slot, value) for slot, value in got.items()}


def wrongs(func: Callable[..., Any], args: Any, got: Given, **kwargs: Any) -> dict[str, str]:
    """What is wrong with `got`, slot by slot."""
    found = held(func, args, got, **kwargs)
    unknown = {slot: one.unknown for slot, one in found.items() if one.unknown}
    assert not unknown, unknown
    return {slot: said for slot, one in found.items() if (said := wrong(one))}
