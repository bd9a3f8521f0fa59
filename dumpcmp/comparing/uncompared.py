"""Lists what of golden was held against nothing: how many values, where, and why that is so."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from dumpcmp.nouns.row import Row, Verdict, Why
from dumpcmp.nouns.rows import having, held_by
from dumpcmp.nouns.spoken import counted, plural

_NUMBER = re.compile(r"\d+")
_MOST = 100_000  # rows that are looked at: of more the others are counted
_MOST_REASONS = 4
_MOST_OPS = 3
_MOVE = (
    "  where they are added up after what was recorded: dump one step more, whose weights tell, or "
    "say so with --layout '* grad.*=d[ranks:partial] ...', or partial.avg for a mean"
)
_AFTER = {
    Verdict.COVERED: ", and all that was computed from it agrees",
    Verdict.DEAD: ", and nothing that is recorded was computed from it",
    Verdict.INCONCLUSIVE: ", and nothing after it shows whether it is right",
    Verdict.FUSED: "",
}


class _Because(StrEnum):
    """Why a value of golden was held against nothing."""

    IN_KERNEL = "it is inside of a kernel of my side that does not store it"
    GOLDEN_ALONE = "only golden has it"
    TERMS = "each rank has a term of it"
    IN_NO_ORDER = "my side holds it in no order that gives golden's"
    OTHER_NUMBERS = "it holds other numbers there, such as a count of its own"


class _Group(NamedTuple):
    """Values that were not compared for one reason."""

    verdict: Verdict
    because: _Because


def not_compared(rows: Sequence[Row]) -> Iterator[str]:
    """What of golden could not be compared, in a sentence for each reason, the most frequent first.

    States of generators and memory that nobody has written to are no results, and do not count;
    nor does what was compared and is open, which its row tells.
    """
    some = having(rows, *_AFTER)
    ops = _by_reason(islice(some, _MOST))
    if not ops:
        return
    counts = {group: found.total() for group, found in ops.items()}
    total, golden = sum(counts.values()), held_by(rows)["golden"]
    last = counted(len(some) - _MOST, "such row")
    more = f", and more among the last {last}" if len(some) > _MOST else ""
    share = f"{100 * total / golden:.1f} %"
    values, were = counted(golden, "value"), plural(total, "was", "were")
    yield f"{total} of golden's {values} ({share}) {were} not compared{more}:"
    ranked = sorted(counts, key=lambda group: -counts[group])
    for group in ranked[:_MOST_REASONS]:
        reason = f"{group.because}{_AFTER[group.verdict]}"
        yield f"  {counts[group]} {group.verdict}: {reason}: {_places(ops[group])}"
        if group == (Verdict.INCONCLUSIVE, _Because.TERMS):
            yield _MOVE
    if len(ranked) > _MOST_REASONS:
        yield f"  {sum(counts[group] for group in ranked[_MOST_REASONS:])} for other reasons"


def alone(rows: Sequence[Row]) -> Iterator[str]:
    """What my side computes in other ways, so that golden has nothing to hold against it."""
    some = islice(having(rows, Verdict.COVERED, Verdict.DEAD), _MOST)
    found = Counter(row.verdict for row in some if row.golden_key is None)
    if found:
        values = counted(found.total(), "value is", "values are")
        yield (
            f"{values} on one side only, mine: all that was computed from "
            f"{found[Verdict.COVERED]} of them agrees, or they are gradients of zeros; nothing was "
            f"computed from {found[Verdict.DEAD]}"
        )


def _by_reason(rows: Iterator[Row]) -> Mapping[_Group, Counter[str]]:
    """The ops whose values were not compared, with what they have in common between layers."""
    found: dict[_Group, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.golden_key is not None and not _is_open(row):
            group = _Group(row.verdict, _because(row))
            found[group][_NUMBER.sub("*", row.golden_key.op)] += 1
    return found


def _is_open(row: Row) -> bool:
    """Whether a value was compared, whole as it is, and is open for what it was computed from."""
    is_measured = row.verdict is Verdict.INCONCLUSIVE and row.metrics is not None
    return is_measured and not row.layout


def _because(row: Row) -> _Because:
    if row.verdict is Verdict.FUSED:
        return _Because.IN_KERNEL
    if row.target_key is None:
        return _Because.GOLDEN_ALONE
    if row.judgement.why is Why.TERMS:
        return _Because.TERMS
    return _Because.IN_NO_ORDER if row.metrics is None else _Because.OTHER_NUMBERS


def _places(ops: Counter[str]) -> str:
    """The ops with the most such values."""
    shown = ops.most_common(_MOST_OPS)
    rest = ops.total() - sum(count for _, count in shown)
    places = ", ".join(f"{count} in {op}" for op, count in shown)
    return places + (f" and {rest} in others" if rest else "")
