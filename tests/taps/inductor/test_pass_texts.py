"""Passes of a graph: what they changed is kept in order, and nothing twice."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from dumpcmp.taps.inductor import pass_texts
from dumpcmp.taps.inductor.pass_texts import PassTexts, unpacked


def graph() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: x + 1)


def multiply(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=operator.add):
        node.target = operator.mul


def test_what_a_pass_changed_is_kept_under_its_name() -> None:
    module, texts = graph(), PassTexts({})
    assert texts.around(module, "nothing", lambda: 3) == 3
    texts.around(module, "multiply", lambda: multiply(module))
    texts.around(module, "again", lambda: multiply(module))
    module.graph.call_function(torch.sin, (next(iter(module.graph.nodes)),))
    texts.around(module, "late", lambda: None)
    found = dict(unpacked(texts.taken()))
    assert [*found] == ["000-before-nothing", "001-multiply", "002-before-late"]
    assert "x + 1" in found["000-before-nothing"] and "x * 1" in found["001-multiply"]
    assert "sin" in found["002-before-late"]


def test_what_forward_and_backward_share_is_with_both() -> None:
    module, texts = graph(), PassTexts({"aot": "another text"})
    texts.around(module, "joint", lambda: multiply(module))
    texts.cut()
    forward, backward = graph(), graph()
    texts.around(forward, "forward", lambda: multiply(forward))
    first = [name for name, _ in unpacked(texts.taken())]
    texts.around(backward, "backward", lambda: None)
    second = [name for name, _ in unpacked(texts.taken())]
    shared = ["000-before-joint", "001-joint"]
    assert first == [*shared, "002-before-forward", "003-forward"]
    assert second == [*shared, "002-before-backward"]


def test_texts_are_bounded_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_texts, "_MOST_BYTES", 10)
    module, texts = graph(), PassTexts({})
    texts.around(module, "multiply", lambda: multiply(module))
    assert all("not kept" in text for _, text in unpacked(texts.taken()))
