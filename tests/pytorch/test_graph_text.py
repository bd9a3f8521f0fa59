"""Graphs as text: whatever their dtypes are, there is one."""

import pytest
import torch
from torch import Tensor, fx
from torch.utils._dtype_abbrs import dtype_abbrs

from dumpcmp.pytorch.graph_text import graph_text


def doubled(x: Tensor) -> Tensor:
    return x + x


@pytest.mark.parametrize("has_abbreviation", [True, False])
def test_a_graph_has_a_text(has_abbreviation: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.symbolic_trace(doubled)
    for node in graph.graph.nodes:
        node.meta["val"] = torch.empty(3)
    if not has_abbreviation:
        monkeypatch.delitem(dtype_abbrs, torch.float32)
    text = graph_text(graph)
    assert "x + x" in text or "add" in text
    assert ("f32" in text) is has_abbreviation
    assert ("torch raised KeyError" in text) is not has_abbreviation
