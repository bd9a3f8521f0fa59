"""Frames are traced under the program's own modes alone, wherever a torch reads them."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch.overrides import BaseTorchFunctionMode

from dumpcmp.pytorch.names import private
from dumpcmp.taps.inductor import hidden_mode
from dumpcmp.taps.modes.function_mode import FunctionMode


def test_a_torch_that_reads_the_modes_too_early_traces_under_the_programs_own() -> None:
    ours, theirs = FunctionMode.__new__(FunctionMode), BaseTorchFunctionMode()
    seen: list[Any] = []

    def trace_frame(code: int, tf_mode_stack: list[Any], *, export: bool) -> None:
        seen.append((code, tf_mode_stack, export))

    hidden_mode._trace_under_others(trace_frame, 1, [theirs, ours], export=True)
    assert seen == [(1, [theirs], True)]


def test_the_stand_in_knows_what_torch_calls_it() -> None:
    trace = private("torch._dynamo.convert_frame:trace_frame")
    assert "tf_mode_stack" in signature(trace).parameters
