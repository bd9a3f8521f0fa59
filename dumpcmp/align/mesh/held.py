"""What the ranks of a run hold of a value, and why it may not become a whole one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dumpcmp.align.mesh.declared import Declarations, complete, on_mesh
from dumpcmp.align.mesh.regions import Shard
from dumpcmp.align.mesh.unshard import Load
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.layouts import Layout, parse_layout
from dumpcmp.nouns.op_names import BACKWARD, plain_name
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.spoken import ranks_named
from dumpcmp.nouns.value import Value

_SMALL = 1 << 14  # bytes of a shard


class AssemblyError(AlignError):
    """Shards that do not become a whole value, and why: the row is inconclusive."""


class TermsError(AssemblyError):
    """Each rank has a term of what should be one value on all of them, as gradients should."""


class LostShardError(AssemblyError):
    """Shards without that of a rank which is missing, or stopped: nobody knows what it held."""


class LackingShardError(AssemblyError):
    """Some ranks have none of what golden has one of for each."""


@dataclass(frozen=True)
class RunFacts:
    """What assembling needs to know of a run besides the records of a value."""

    num_ranks: int = 1
    declared: Declarations = field(default_factory=Declarations)
    stopped: Mapping[range, str] = field(default_factory=dict)  # ranks with less than others


@dataclass(frozen=True, slots=True)
class Held:
    """What the ranks of one run hold of a value, and how to read it."""

    records: tuple[Record, ...]
    load: Callable[[Record], Value]
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def slot(self) -> Slot:
        """The slot that the value is in."""
        return self.records[0].key.slot

    @property
    def is_backward(self) -> bool:
        """Whether autograd computed the value, so that it is of a mean over a rank's samples."""
        return self.records[0].key.op.function.startswith(BACKWARD)

    @property
    def is_transposed(self) -> bool:
        """Whether autograd exchanged the two dims of the value, so that samples are the second."""
        key = self.records[0].key
        return self.is_backward and plain_name(key.op.function) == "t" and key.slot.is_output

    @property
    def lost(self) -> str:
        """Which ranks may have had a share of the value, and stopped before; empty where none."""
        ranks = {record.rank for record in self.records}
        lost = {run: why for run, why in self.facts.stopped.items() if run.start not in ranks}
        where = set(lost.values())
        return (
            f"{ranks_named(lost)} {where.pop() if len(where) == 1 else 'stopped'}" if lost else ""
        )

    def shards(self) -> list[Shard]:
        """Each rank's share with all that is known of its layout: recorded, then declared."""
        whole = self.facts.num_ranks == 1  # what users declare speaks of partitioned runs
        declared = None if whole else self.facts.declared.layout_of(self.records[0].key)
        return [self._shard(record, declared) for record in self.records]

    def _shard(self, record: Record, declared: Layout | None) -> Shard:
        layout = parse_layout(record.layout)
        if declared is not None:
            layout = complete(declared.expanded(len(record.shape)), layout)
            layout = on_mesh(layout, self.facts.declared.mesh, self.facts.num_ranks, record.rank)
        return Shard(record.rank, record.shape, layout, record.digest)

    def loader(self) -> Load:
        """Reads the shard at a position; a small one once, for all layouts that are tried."""
        known: dict[int, Value] = {}

        def load(position: int) -> Value:
            value = known.get(position) or self.load(self.records[position])
            if value.nbytes <= _SMALL:
                known[position] = value
            return value

        return load
