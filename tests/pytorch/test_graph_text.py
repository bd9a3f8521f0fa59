"""Graphs as text: whatever their dtypes are, there is one."""

import pytest
import torch
from torch import Tensor, fx

from dumpcmp.pytorch.graph_text import graph_text


def doubled(x: Tensor) -> Tensor:
    return x + x


@pytest.mark.parametrize("name", ["float32", "uint4"])
def test_a_graph_has_a_text(name: str) -> None:
    graph = fx.symbolic_trace(doubled)
    for node in graph.graph.nodes:
        node.meta["val"] = torch.empty(3, dtype=getattr(torch, name))
    text = graph_text(graph)
    assert "x + x" in text or "add" in text
    assert ("torch.uint4" in text) is (name == "uint4")  # for which torch has no abbreviation
