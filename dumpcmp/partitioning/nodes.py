"""Ops to be verified, as either reader of graphs gives them, with equal ones merged."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dumpcmp.partitioning.call import OpCall


@dataclass(frozen=True, slots=True)
class Candidate:
    """An op to be verified, or the reason why it is not, and what to call it in the report."""

    call: OpCall
    options: tuple[Mapping[str, Any], ...] | None = None  # None: every legal one
    anno: str = ""
    node: str = ""
    source: str = ""
    noutputs: int | None = None  # how many outputs the user expects
    reason: str = ""  # why there is nothing to verify
    computes: bool = True  # takes tensors and gives tensors

    @property
    def identity(self) -> str:
        """What makes two ops the same here: op, shapes, dtypes, arguments, annotation."""
        return f"{self.call} | {self.anno} | {self.call.imports} | {self.options} | {self.reason}"


def merged(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Each op once, under the names of all nodes that are the same."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.identity, []).append(candidate)
    for group in groups.values():
        yield replace(group[0], node=" ".join(each.node for each in group))
