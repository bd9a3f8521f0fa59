"""Sizes that vary from run to run are told by the numbers of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx

from dumpcmp.taps.modes.traced import GraphOp, arguments_in
from dumpcmp.taps.recording.functions import function_of


def halved(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 2, 2, x.shape[1])[:, :, 1:]


def test_sizes_are_told_by_their_numbers() -> None:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(halved, backend=keep, dynamic=True)(torch.ones(8, 5))
    (node,) = (node for node in graphs[0].graph.nodes if node.target == "view")
    function = function_of(Tensor.view)
    _, text, sizes = arguments_in(node, function)
    op = GraphOp(node.name, function, cast(Any, None), text, sizes)
    names = {symbol.name for _, expression in sizes for symbol in expression.free_symbols}
    first = next(symbol.name for symbol in sizes[0][1].free_symbols)
    known = dict.fromkeys(names, 5) | {first: 8}
    assert op.told(known) == '{"args":[{"slot":"input.0"},4,2,5]}'
    assert op.told({}).count('{"object": "torch.SymInt"}') == 2
