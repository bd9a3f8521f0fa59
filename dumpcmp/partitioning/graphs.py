"""A graph as a list of ops: what either reader gives, with equal ops merged."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dumpcmp.partitioning.checking import Subject


@dataclass(frozen=True, slots=True)
class Node:
    """One node: an op to verify (`subject`), or the reason why there is none."""

    name: str
    op: str
    source: str = ""
    subject: Subject | None = None
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


def identity(subject: Subject) -> str:
    """What makes two ops the same for verification: op, shapes, dtypes, arguments, annotation."""
    return f"{subject.call} | {subject.anno} | {subject.call.imports} | {subject.options}"


def merged(graph: Graph) -> Iterator[Node]:
    """Each op once, under the names of all nodes that are the same."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        same = identity(node.subject) if node.subject else f"{node.op} | {node.reason}"
        groups.setdefault(same, []).append(node)
    for group in groups.values():
        first = group[0]
        name = " ".join(node.name for node in group)
        subject = replace(first.subject, node=name) if first.subject else None
        yield replace(first, name=name, subject=subject)
