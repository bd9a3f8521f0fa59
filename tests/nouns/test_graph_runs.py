"""What an archive tells of a compiled graph is read as it was written, and damage is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dumpcmp.nouns import graph_runs
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.graph_runs import GRAPH, TARGET, ValueOfGraph, read_runs, runs_written
from dumpcmp.nouns.record import Call

VALUES = [
    ValueOfGraph(
        "float32", (2, 8), (8, 1), (("a/linear", 0, "output.0"), ("b/relu", 1, "input.0"))
    ),
    ValueOfGraph("bfloat16", None, None, (("b/relu", 1, "output.0"),)),
    ValueOfGraph("float32", (), (), (("b/relu", 1, "grad_output.0"),)),
]
STORED = {("b/relu", 1, "output.0"): "cpp_fused_relu_0#1"}


def told(text: str) -> Call:
    return Call("Net", 0, GRAPH, 0, 3, TARGET, arguments=text)


@pytest.mark.parametrize("most", [2048, 1])
def test_a_run_is_read_as_it_was_written(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runs, "MOST_VALUES", most)
    runs = list(read_runs(map(told, runs_written(5, VALUES, STORED))))
    assert len(runs) == (1 if most > 1 else 3)
    assert [value for run in runs for value in run.values] == VALUES
    assert {place: kernel for run in runs for place, kernel in run.stored.items()} == STORED
    assert {run.number for run in runs} == {5}


@pytest.mark.parametrize("text", ["", "[]", '{"run":0}', '{"omitted":"9 characters"}'])
def test_damage_is_told_with_its_place(text: str) -> None:
    with pytest.raises(ArchiveError, match="compiled graph is damaged"):
        list(read_runs([told(text)]))
    assert not list(read_runs([replace(told(text), op=type(GRAPH)("a/linear"))]))
