"""What collectives gave to ranks, against what they should have given."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from dumpcmp.align.mesh.deliveries import Traffic
from dumpcmp.comparing.laying import Handover
from dumpcmp.comparing.side import archive_at, asked_now
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError, LayoutError
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import LaidOut, Measured, Trouble
from dumpcmp.nouns.value import Value


def traffic_at(path: Path) -> Traffic:
    """The collectives of the archive at `path`."""
    return _traffic(path, asked_now())


@lru_cache(maxsize=4)
def _traffic(path: Path, _asked: str) -> Traffic:
    archive = archive_at(path)
    calls = archive.calls_by_rank(archive.ranks)

    def load(record: Record) -> Value:
        if record.kept is Kept.SUMMARY:
            raise LayoutError(
                "only summaries are kept of what the collective took and gave, so that it cannot "
                f"be checked: dump again with --keep-full '{record.key.op}'"
            )
        return archive.load(record)

    return Traffic(calls, archive.shards, load)


def handed_over(task: Handover) -> Measured:
    """What the ranks got from a collective against what they should: the one that is farthest."""
    if task.keys[0].slot.is_gradient:
        said = "golden has no value that is its partner"
        return Measured(trouble=Trouble.UNCHECKED, said=said)
    try:
        traffic = traffic_at(task.path)
        got = [one for key in task.keys for one in traffic.deliveries(key)]
        laid = LaidOut(f"over {traffic.groups(task.keys[0].site)}")
        measured = [Measured(measure(o.expected, o.got), laid=laid, rank=o.rank) for o in got]
    except DumpcmpError as error:
        return Measured(trouble=Trouble.UNCHECKED, said=error.message)
    unknown = Measured(trouble=Trouble.UNCHECKED, said="what the collective gave was not recorded")
    return max(measured, key=_badness, default=unknown)


def _badness(found: Measured) -> float:
    metrics = found.metrics
    if metrics is None or metrics.equal or not metrics.count:
        return 0.0
    known = metrics.nonfinite_agree and not math.isnan(metrics.rel_l2)
    return metrics.rel_l2 if known else math.inf
