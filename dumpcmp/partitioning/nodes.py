"""A graph as a list of ops: what either reader gives, with equal ops merged."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dumpcmp.partitioning.checking import Candidate


@dataclass(frozen=True, slots=True)
class Node:
    """One node: an op to verify (`candidate`), or the reason why there is none."""

    name: str
    op: str
    source: str = ""
    candidate: Candidate | None = None
    reason: str = ""
    computes: bool = False  # takes tensors and gives tensors


@dataclass(frozen=True, slots=True)
class Graph:
    """All nodes that call something, in order."""

    nodes: tuple[Node, ...]

    @property
    def num_compute(self) -> int:
        """Nodes that compute something from tensors."""
        return sum(node.computes for node in self.nodes)


def identity(candidate: Candidate) -> str:
    """What makes two ops the same for verification: op, shapes, dtypes, arguments, annotation."""
    return f"{candidate.call} | {candidate.anno} | {candidate.call.imports} | {candidate.options}"


def merged(graph: Graph) -> Iterator[Node]:
    """Each op once, under the names of all nodes that are the same."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        same = identity(node.candidate) if node.candidate else f"{node.op} | {node.reason}"
        groups.setdefault(same, []).append(node)
    for group in groups.values():
        first = group[0]
        name = " ".join(node.name for node in group)
        candidate = replace(first.candidate, node=name) if first.candidate else None
        yield replace(first, name=name, candidate=candidate)
