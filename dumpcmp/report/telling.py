"""One row in words: what it took in, what it gave, where the difference is from, and its looks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dumpcmp.nouns.background import CloseUp
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.selection import closest, names_key
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.kernel_sources import kernel_source

_MOST = 5  # rows that are explained at once
_MOST_CODE = 40  # lines of a kernel

_ORIGINS = {
    Origin.EQUAL: "Both sides are the same, bit for bit.",
    Origin.INTRODUCED: "The difference begins here: what went in does not explain it.",
    Origin.INHERITED: "The op is right for what it was given: the difference was there before.",
    Origin.AMPLIFIED: "The op is right for what it was given, and makes the difference larger.",
    Origin.FLIPPED: "A choice on the way to it was another, so that it is another computation.",
    Origin.UNKNOWN: "Whether it began here or before is not known: the op was not run again.",
}

_MADE = {
    Origin.INTRODUCED: "The difference begins here: golden's optimizer makes another of those.",
    Origin.INHERITED: "Golden's optimizer makes the same of those: it was there before.",
}


def meant(outcome: Outcome, name: str) -> list[int]:
    """The rows that a reader means: those called `name`, or where the first divergence is."""
    if not name:
        first = outcome.first_divergence
        keys = first and (first.golden_key, first.target_key)
        rows = enumerate(outcome.rows) if first else ()
        return [i for i, row in rows if row.root and (row.golden_key, row.target_key) == keys][:1]
    found = [place for place, row in enumerate(outcome.rows) if names_key(row.key, name)]
    if not found:
        near = ", ".join(closest(name, sorted({row.key.op for row in outcome.rows})))
        raise SelectionError(f"no value is called {name!r}", hint=f"closest: {near or 'none'}")
    told = [place for place in found if not outcome.rows[place].key.slot.is_input] or found
    return sorted(told, key=lambda place: not outcome.rows[place].verdict.fails)[:_MOST]


def words_of(outcome: Outcome, place: int) -> Iterator[str]:
    """All that is known of one row, a line at a time."""
    row = outcome.rows[place]
    yield f"{row.key}"
    yield f"  {row.verdict}{', root' if row.root else ''}: {row.reason or 'nothing is wrong'}"
    if row.source and not row.key.slot.is_weight:
        yield f"  computed at {row.source}"
    if row.kernel:
        source = kernel_source(outcome, row)
        where = f", generated in {source.file}:{source.meant}" if source else ""
        yield f"  by the kernel {row.kernel}{where}"
        yield from (
            f"    {n:5}  {line}" for n, line in (source.excerpt(_MOST_CODE) if source else ())
        )
    taken = _made_of if row.key.slot.is_weight else _taken
    yield from (f"  {line}" for line in taken(outcome, row))
    yield from (f"  {line}" for line in _given(row))
    is_made = row.replay is not None and row.replay.num_ops == 0
    made = _MADE.get(row.origin) if is_made else None
    yield f"  {made or _ORIGINS[row.origin]}{_parts(row)}"
    if row.cause is not None:
        yield f"  It inherits from {row.cause}."
    heirs = sum(other.cause == row.key for other in outcome.rows)
    if heirs:
        inherit = counted(heirs, "failing row only inherits", "failing rows only inherit")
        yield f"  {inherit} from it."
    looks = {one.row: one for one in outcome.background.close_ups}
    yield from (f"  {line}" for line in _looks(looks.get(place)))


def _taken(outcome: Outcome, row: Row) -> Iterator[str]:
    """What the call took in, and how far the sides agree on it."""
    for other in outcome.rows:
        if other.key.site == row.key.site and other.key.slot.is_input and other.key != row.key:
            yield f"took {other.key.slot} {_agrees(other)}"


def _made_of(outcome: Outcome, row: Row) -> Iterator[str]:
    """What a weight was in the step before that has it, and its gradients since."""
    key = row.key
    alike = {key.slot, Slot(f"grad.{key.slot.name}")}
    earlier = [
        other
        for other in outcome.rows
        if (other.key.model, other.key.op) == (key.model, key.op)
        and other.key.slot in alike
        and other.key.step < key.step
    ]
    before = max((other.key.step for other in earlier if other.key.slot == key.slot), default=0)
    for other in earlier:
        if other.key.step >= before:
            word = "was" if other.key.slot == key.slot else "had the gradient"
            yield f"{word} at token {other.key.step} {_agrees(other)}"


def _agrees(row: Row) -> str:
    shape = list(row.golden_shape or row.target_shape or ())
    return f"{row.golden_dtype or row.target_dtype} {shape}: {row.verdict.value}, {_apart(row)}"


def _apart(row: Row) -> str:
    if row.metrics is None:
        return "not measured"
    return "the same" if row.metrics.equal else f"rel_l2 {row.metrics.rel_l2:.3g}"


def _given(row: Row) -> Iterator[str]:
    sides = (
        ("golden", row.golden_dtype, row.golden_shape, row.metrics and row.metrics.golden),
        ("mine", row.target_dtype, row.target_shape, row.metrics and row.metrics.target),
    )
    for name, dtype, shape, extent in sides:
        if shape is None:
            yield f"{name} has no such value"
        elif extent:
            spread = f"{extent.min:.4g} .. {extent.max:.4g}, norm {extent.norm:.4g}"
            yield f"{name} has {dtype} {list(shape)}: {spread}"
        else:
            yield f"{name} has {dtype} {list(shape)}"
    if row.metrics is not None and not row.metrics.equal:
        m = row.metrics
        most = f"{m.max_abs_diff:.3g} at {list(m.worst)}" if m.worst else "not known"
        yield f"rel_l2 {m.rel_l2:.3g}, cosine {m.cosine:.6f}, largest difference {most}"


def _parts(row: Row) -> str:
    if row.replay is None or not row.replay.is_known:
        return ""
    shares = {"introduced": row.replay.introduced, "inherited": row.replay.inherited}
    told = [f"{name} {share:.3g}" for name, share in shares.items() if not math.isnan(share)]
    return f" {', '.join(told).capitalize()}." if told else ""


def _looks(one: CloseUp | None) -> Iterator[str]:
    if one is None or one.problem:
        yield "No closer look" + (f": {one.problem}." if one else " was taken at it.")
        return
    for hypothesis in one.hypotheses:
        yield f"Looks like: {hypothesis.said} (explains {100 * hypothesis.fit:.1f} %)."
    if not one.hypotheses:
        yield "None of the known looks explains 90 % of the difference."
    yield from (f"In {place}." for place in one.places)
