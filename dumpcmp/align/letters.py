"""What ranks sent each other, found by its bytes where it arrived: no link leads from rank to rank.

A receive may have run before a step began, and a send in the step after the one that computed it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record

_ARRIVES = ("input", "grad_output")  # what may come into a stage, forward and backward


@dataclass(frozen=True)
class Letters:
    """The values that were sent, and those that no op of their own rank gave, by their bytes."""

    sent: frozenset[str] = frozenset()
    arrived: dict[str, list[tuple[int, Key]]] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Listing) -> Letters:
        """The letters of a run."""
        sent = frozenset(
            record.digest
            for key, records in listing.values.items()
            if key.op.function == Collective.SEND and key.slot.is_input
            for record in records
            if record.digest and math.prod(record.shape) > 1
        )
        arrived: dict[str, list[tuple[int, Key]]] = defaultdict(list)
        for key, records in listing.values.items() if sent else ():
            if key.slot.kind in _ARRIVES and key.op.function != Collective.SEND:
                for record in records:
                    if record.digest in sent and record.same_as is None:
                        arrived[record.digest].append((record.rank, key))
        return cls(sent, arrived)

    def delivered(self, records: Iterable[Record]) -> list[Key]:
        """What other ranks took that has the bytes of `records`; nothing unless all arrived."""
        found: dict[Key, None] = {}
        for record in records:
            there = self.arrived.get(record.digest, ()) if record.digest in self.sent else ()
            keys = [key for rank, key in there if rank != record.rank]
            if not keys:
                return []
            found |= dict.fromkeys(keys)
        return list(found)
