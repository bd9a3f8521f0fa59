"""Runs whose index was damaged where it tells of calls: an error that says so, and no verdict."""

from pathlib import Path

import h5py
import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call


@pytest.mark.parametrize("text", ["{", "[1]", '{"args": 1}', '{"kwargs": []}', "[" * 10_000])
def test_arguments_that_nobody_wrote_are_told_of(text: str) -> None:
    call = Call("Net", 2, Op("0/linear"), 1, 0, arguments=text)
    told = r"0/linear \(call 1, token 2\): its arguments are damaged"
    with pytest.raises(ArchiveError, match=told):
        argument_tree(call)


def test_a_comparison_ends_at_damaged_arguments(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for name in ("golden", "target"):
        with dumpcmp.capture(net, tmp_path / name):
            net(torch.randn(2, 4))
    (part,) = (tmp_path / "target").glob("*/Sequential/0/part-0000.h5")
    with h5py.File(part) as file:
        start, text = file["_index/calls"].id.get_offset(), file["_index/calls"][()]
    content = bytearray(part.read_bytes())
    content[start + text.index(b"[{", text.index(b"0/linear"))] ^= 1
    part.write_bytes(content)
    with pytest.raises(ArchiveError, match="its arguments are damaged"):
        dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    found = dumpcmp.audit(tmp_path / "target").findings
    assert any("of the index has arguments" in finding.problem for finding in found)
