"""Reads which FX node each op of a GE graph came from, out of the graph's text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dumpcmp.importing.foreign import ForeignFileError, check_regular

_FILE = re.compile(r"dynamo_(?:original|optimized)_.*\.txt")
_LINE = re.compile(r"\s*(?:(?P<block>\w+)\s*:?\s*\{|(?P<end>\})|(?P<name>\w+)\s*:\s*(?P<word>.*))")
_TENSOR = re.compile(r"(?P<node>[^-]+)-.+\.OUTPUT\.(?P<number>\d{1,6})")
_ATTRIBUTE = "_fx_tensor_name"


def is_graph(path: str) -> bool:
    """Whether a file at `path` has a name as torchair gives the text of a graph."""
    return bool(_FILE.fullmatch(path.rpartition("/")[2]))


@dataclass(frozen=True, slots=True)
class GeGraph:
    """Ops of GE, and the FX node and output that each of their outputs is."""

    tensors: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    def __add__(self, other: GeGraph) -> GeGraph:
        """Both; what one of them says otherwise than the other, neither says."""
        both = {**other.tensors, **self.tensors}
        clash = [at for at in self.tensors if other.tensors.get(at, self.tensors[at]) != both[at]]
        return GeGraph({at: tensor for at, tensor in both.items() if at not in clash})

    def node_of(self, op: str) -> str:
        """The FX node that `op` computes; `op` where none is known."""
        return self.tensors[op, 0][0] if (op, 0) in self.tensors else op

    def parts_of(self, name: str) -> list[str]:
        """The ops that were fused into the op `name`, whose names stand in it one by one.

        Empty where the name is not made of names of the graph alone.
        """
        known = {op for op, _ in self.tensors}
        found = []
        while name:
            part = next((name[:n] for n in range(len(name), 0, -1) if name[:n] in known), "")
            if not part:
                return []
            found.append(part)
            name = name[len(part) :]
        return found


def graph_in(path: Path, largest: int) -> GeGraph:
    """What the text at `path`, a protobuf in words, says of FX nodes."""
    check_regular(path)
    if path.stat().st_size > largest:
        raise ForeignFileError(f"{path}: it is larger than any graph's text")
    tensors: dict[tuple[str, int], tuple[str, int]] = {}
    for op, number, name in _named_outputs(path.read_bytes().decode(errors="replace")):
        if found := _TENSOR.fullmatch(name):
            tensors[op, number] = found["node"], int(found["number"])
    return GeGraph(tensors)


def _named_outputs(text: str) -> Iterator[tuple[str, int, str]]:
    """Each output of an op that an attribute names: the op, the output's number, the name."""
    blocks: list[str] = []
    op, number, key = "", -1, ""
    named: list[tuple[int, str]] = []
    for line in text.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        if found["block"]:
            blocks.append(found["block"])
            if blocks[-2:] == ["op", "output_desc"]:
                number += 1
        elif found["end"]:
            if blocks and blocks.pop() == "op":
                yield from ((op, at, name) for at, name in named)
                op, number, named = "", -1, []
        else:
            word = found["word"].strip().strip('"')
            if blocks[-1:] == ["op"] and found["name"] == "name":
                op = word
            elif blocks[-1:] == ["attr"] and found["name"] == "key":
                key = word
            elif blocks[-2:] == ["attr", "value"] and found["name"] == "s" and key == _ATTRIBUTE:
                named.append((number, word))
