"""Whether a call draws random numbers decides whether the generator's state is recorded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dumpcmp.taps.recording.functions import function_of

CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]] = [
    (F.dropout, ("x",), {}, True),
    (F.dropout, ("x", 0.5, True), {}, True),
    (F.dropout, ("x", 0.5, False), {}, False),
    (F.dropout, ("x",), {"training": False}, False),
    (torch.dropout, ("x", 0.5), {"train": False}, False),
    (F.scaled_dot_product_attention, ("q", "k", "v"), {}, False),
    (F.scaled_dot_product_attention, ("q", "k", "v", None, 0.1), {}, True),
    (F.scaled_dot_product_attention, ("q", "k", "v"), {"dropout_p": 0.1}, True),
    (F.rrelu, ("x",), {}, False),
    (torch.rand, (3,), {}, True),
    (F.linear, ("x", "w"), {}, False),
]


@pytest.mark.parametrize("function, args, kwargs, draws", CALLS)
def test_a_call_draws_only_where_its_switch_is_on(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], draws: bool
) -> None:
    assert function_of(function).draws(args, kwargs) is draws
